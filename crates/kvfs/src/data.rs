//! The bytes of files: read, write, truncate.
//!
//! A small file lies in its node. A larger one is pages in `dmap`; pages that were never written
//! are holes. Written pages wait in the inode's buffer, over those in the store; pages of the store
//! at and above `Buffer::cut` are dead. Three invariants make most questions cheap to answer:
//!
//! - no page, stored or waiting, begins at or beyond the size, or holds a byte beyond it; what is
//!   missing at its end is zero;
//! - `Body::Paged(n)` is the number of distinct blocks stored or waiting, but for the waiting ones
//!   marked as not counted;
//! - a file with `Body::Inline(n)` has no pages, and all of it behind byte `n` is a hole.

use env::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvdb::Cursor;

use crate::attr::{FileKind, Ino, WriteHints, Written};
use crate::error::{Error, Result};
use crate::fs::{Atime, Fs};
use crate::inode::{Inode, InodeState, Page, Slot};
use crate::layout::{self, Body, INLINE_MAX, PAGE, blocks_of};
use crate::partial_page::PartialPage;

/// The largest file: what a signed 64-bit offset can express, in whole pages.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64 & !(PAGE - 1);
/// The size up to which the pages of a file are read together with their neighbours on the device:
/// these are the rest of the file, and other small files. A single page of a larger one is read
/// alone, unless the file is read in order.
const AROUND: u64 = 256 << 10;
/// A large write is copied in pieces of this, aligned in the file, and its pages share the piece.
/// One page that outlives the others keeps no more than this alive.
const PIECE: u64 = 64 << 10;

impl Fs {
    /// Up to `len` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        let data =
            self.reading(ino, |state| self.read_locked(ino, state, offset, u64::from(len)))?;
        self.core.counters.bytes_read.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data)
    }

    /// Reads as many bytes as `room` has; returns how many there were.
    pub fn read_into(&self, ino: Ino, offset: u64, room: &mut [u8]) -> Result<usize> {
        let length = self.reading(ino, |state| {
            let end = offset.saturating_add(room.len() as u64).min(state.attr.size);
            let is_inline = matches!(state.attr.body, Body::Inline(_));
            if offset >= end || is_inline || offset / PAGE == (end - 1) / PAGE {
                let data = self.read_locked(ino, state, offset, room.len() as u64)?;
                room[..data.len()].copy_from_slice(&data);
                return Ok(data.len());
            }
            let length = (end - offset) as usize;
            self.read_pages(ino, state, offset, &mut room[..length])?;
            Ok(length)
        })?;
        self.core.counters.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }

    /// Reads of a file, with what that does to its access time.
    fn reading<T>(&self, ino: Ino, read: impl FnOnce(&InodeState) -> Result<T>) -> Result<T> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        if state.gone {
            return Err(Error::Stale(ino));
        }
        match state.attr.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("reading something that is not a file")),
        }
        let data = read(&state)?;
        let stale = self.atime_is_stale(&state);
        drop(state);
        if stale {
            let mut state = inode.state.write();
            state.attr.atime = self.now();
        }
        Ok(data)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        match state.attr.kind {
            _ if state.gone => Err(Error::Stale(ino)),
            FileKind::Symlink => Ok(self.content(ino, &state)?.into()),
            _ => Err(Error::Invalid("not a symbolic link")),
        }
    }

    fn atime_is_stale(&self, state: &InodeState) -> bool {
        let (a, m, c) = (state.attr.atime, state.attr.mtime, state.attr.ctime);
        match self.core.options.atime {
            Atime::Never => false,
            _ if self.core.options.read_only => false,
            Atime::Relative => {
                a <= m
                    || a <= c
                    || self.core.env.wall()
                        > Duration::from_secs((a.secs.max(0) as u64).saturating_add(86_400))
            }
        }
    }

    pub(crate) fn read_locked(
        &self,
        ino: Ino,
        state: &InodeState,
        offset: u64,
        len: u64,
    ) -> Result<Bytes> {
        let end = offset.saturating_add(len).min(state.attr.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        if let Body::Inline(have) = state.attr.body {
            let have = u64::from(have);
            let mut data = Vec::new();
            if offset < have {
                let content = self.content(ino, state)?;
                if end <= have {
                    return Ok(content.slice(offset as usize..end as usize));
                }
                data.extend_from_slice(&content[offset as usize..]);
            }
            data.resize((end - offset) as usize, 0);
            return Ok(data.into());
        }
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        if first == last {
            let from = (offset % PAGE) as usize;
            let to = from + (end - offset) as usize;
            let page = self.page(ino, state, first)?.unwrap_or_default();
            if page.len() >= to {
                return Ok(page.slice(from..to));
            }
            let mut data = page.get(from..).unwrap_or_default().to_vec();
            data.resize(to - from, 0);
            return Ok(data.into());
        }
        let mut data = vec![0; (end - offset) as usize];
        self.read_pages(ino, state, offset, &mut data)?;
        Ok(data.into())
    }

    /// A page as it is now, waiting or stored; `None` where the file has none.
    pub(crate) fn page(&self, ino: Ino, state: &InodeState, block: u64) -> Result<Option<Bytes>> {
        Ok(match state.buffer.pages.get(&block).map(|slot| &slot.page) {
            Some(Page::Shared(b)) => Some(b.clone()),
            Some(Page::Own(v)) => Some(Bytes::copy_from_slice(v)),
            Some(Page::Part(part)) => Some(self.whole(ino, state, block, part)?.into()),
            None => self.stored_page(ino, state, block)?,
        })
    }

    /// The page that `part` is of, which is read for it.
    fn whole(
        &self,
        ino: Ino,
        state: &InodeState,
        block: u64,
        part: &PartialPage,
    ) -> Result<Vec<u8>> {
        Ok(part.over(&self.stored_page(ino, state, block)?.unwrap_or_default()))
    }

    /// Fills `room` from `offset` on with stored and waiting pages, both in order; of a block that
    /// is both, the waiting one lies over the stored one.
    fn read_pages(&self, ino: Ino, state: &InodeState, offset: u64, room: &mut [u8]) -> Result<()> {
        let end = offset + room.len() as u64;
        let (first, behind) = (offset / PAGE, blocks_of(end));
        let mut waiting = state.buffer.pages.range(first..behind).peekable();
        let whole = |&(_, slot): &(&u64, &Slot)| slot.page.is_whole();
        let all_waiting = !state.buffer.pages.is_empty()
            && state.buffer.pages.range(first..behind).filter(whole).count() as u64
                == behind - first;
        let stored = if all_waiting || !state.stored || first >= state.buffer.cut {
            Vec::new()
        } else {
            let (start, stop) =
                (layout::page_key(ino, first), layout::page_key(ino, behind.min(state.buffer.cut)));
            self.core.scope.scan(self.core.layout.dmap, &start, &stop, (behind - first) as usize)?
        };
        let mut stored = stored.into_iter().peekable();
        let mut filled = 0;
        loop {
            let stored_block = match stored.peek() {
                Some((key, _)) => Some(layout::decode_page_key(key)?.1),
                None => None,
            };
            let waiting_block = waiting.peek().map(|(block, _)| **block);
            let Some(block) = waiting_block.into_iter().chain(stored_block).min() else { break };
            let slot = waiting.next_if(|(b, _)| **b == block);
            let page = if stored_block == Some(block) { stored.next() } else { None };
            let stored_bytes = || page.as_ref().map_or(Ok(&[][..]), |(_, v)| checked_page(ino, v));
            let joined;
            let bytes: &[u8] = match slot.map(|(_, slot)| &slot.page) {
                Some(Page::Shared(b)) => b,
                Some(Page::Own(v)) => v,
                Some(Page::Part(part)) => {
                    joined = part.over(stored_bytes()?);
                    &joined
                }
                None => stored_bytes()?,
            };
            let start = block * PAGE;
            let skip = offset.saturating_sub(start) as usize;
            let take = (end - start).min(PAGE) as usize;
            let bytes = bytes.get(skip..bytes.len().min(take)).unwrap_or_default();
            // Holes and short pages before this one.
            let at = (start.max(offset) - offset) as usize;
            room[filled..at].fill(0);
            filled = at + bytes.len();
            room[at..filled].copy_from_slice(bytes);
        }
        room[filled..].fill(0);
        Ok(())
    }

    /// A page as the store has it, unless it is cut off.
    pub(crate) fn stored_page(
        &self,
        ino: Ino,
        state: &InodeState,
        block: u64,
    ) -> Result<Option<Bytes>> {
        if !state.stored || block >= state.buffer.cut {
            return Ok(None);
        }
        let get = || self.core.scope.get(self.core.layout.dmap, &layout::page_key(ino, block));
        let in_order = state.next_page.swap(block + 1, Ordering::Relaxed) == block;
        // The neighbours of a page of a large file are mostly other pages of it.
        let page =
            if in_order || state.attr.size <= AROUND { get()? } else { kvdb::read_alone(get)? };
        if let Some(page) = &page {
            checked_page(ino, page)?;
        }
        Ok(page)
    }

    /// Writes all of `data`; it is in memory when this returns, and committed later.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], hints: WriteHints) -> Result<u32> {
        self.write_for(ino, offset, data, hints).map(|_| data.len() as u32)
    }

    /// `write` that also returns what a cache of attributes must be told.
    pub fn write_for(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        hints: WriteHints,
    ) -> Result<Written> {
        let lost_privileges = if hints.from_cache {
            self.write_cached(ino, offset, data, hints)?
        } else {
            self.writable()?;
            self.retry_on_lock(|| {
                let _call = self.enter()?;
                if hints.append {
                    self.append(ino, data, hints)
                } else {
                    self.write_in_call(ino, offset, data, hints)
                }
            })?
        };
        Ok(Written { bytes: data.len() as u64, lost_privileges })
    }

    /// `write` for a call that has entered the view. Returns whether the file has lost set-uid or
    /// set-gid bits.
    pub(crate) fn write_in_call(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        hints: WriteHints,
    ) -> Result<bool> {
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|&end| end <= MAX_SIZE)
            .ok_or(Error::TooLarge)?;
        if data.is_empty() {
            return Ok(false);
        }
        self.reserve(data.len() as u64)?;
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        match state.attr.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("writing something that is not a file")),
        }
        self.write_locked(&inode, &mut state, offset, data)?;
        debug_assert!(state.attr.size >= end);
        let lost_privileges = self.touch_content(&mut state, self.now(), hints.unprivileged_group);
        self.mark_dirty(&inode, &mut state);
        self.core.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.commit_if_large(&inode, &mut state);
        drop(state);
        self.throttle_writer();
        Ok(lost_privileges)
    }

    /// Makes a file at least this long. (Under the freeze lock.)
    pub(crate) fn extend_in_call(&self, ino: Ino, size: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        if state.attr.kind == FileKind::File && state.attr.size < size {
            self.truncate(&inode, &mut state, size)?;
            self.touch_content(&mut state, self.now(), None);
            self.mark_dirty(&inode, &mut state);
        }
        Ok(())
    }

    /// Puts data into the buffer and moves the size; the caller marks the inode dirty.
    pub(crate) fn write_locked(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        if let Body::Inline(have) = state.attr.body {
            if end <= INLINE_MAX {
                let mut content = if offset == 0 && data.len() as u64 >= u64::from(have) {
                    data.to_vec()
                } else {
                    let mut content = Vec::with_capacity(end.max(u64::from(have)) as usize);
                    content.extend_from_slice(&self.content(inode.ino, state)?);
                    if content.len() < end as usize {
                        content.resize(end as usize, 0);
                    }
                    content[offset as usize..end as usize].copy_from_slice(data);
                    content
                };
                content.shrink_to_fit();
                state.attr.body = Body::Inline(content.len() as u32);
                state.inline = Some(content.into());
                state.attr.size = state.attr.size.max(end);
                return Ok(());
            }
            self.move_to_pages(inode.ino, state)?;
        }
        // What has to be read is read before anything changes: a write is done whole or not at all,
        // also when the device fails.
        let mut edges = self.edges(inode.ino, state, offset, end)?;
        let mut at = 0;
        while at < data.len() {
            let from = offset + at as u64;
            let len = (PIECE - from % PIECE).min((data.len() - at) as u64) as usize;
            self.write_piece(state, from, &data[at..at + len], &mut edges);
            at += len;
        }
        Ok(())
    }

    /// The pages of which a write of `[offset, end)` keeps a part that is not in memory: at most
    /// the first and the last. A page is read unless little of it is written.
    fn edges(
        &self,
        ino: Ino,
        state: &InodeState,
        offset: u64,
        end: u64,
    ) -> Result<BTreeMap<u64, Edge>> {
        let mut edges = BTreeMap::new();
        for block in [offset / PAGE, (end - 1) / PAGE] {
            let start = block * PAGE;
            let held = state.attr.size.saturating_sub(start).min(PAGE);
            // Nothing is stored at or beyond the size.
            if offset <= start && end >= start + held || held == 0 || edges.contains_key(&block) {
                continue;
            }
            let inside = offset.saturating_sub(start) as usize;
            let len = (end.min(start + PAGE) - start) as usize - inside;
            let stored = state.stored && block < state.buffer.cut;
            let edge = match state.buffer.pages.get(&block).map(|slot| &slot.page) {
                Some(Page::Part(part)) if !part.has_room(inside, len) => {
                    Edge::Read(self.whole(ino, state, block, part)?)
                }
                Some(_) => continue,
                None if stored && PartialPage::takes(len) => Edge::Unread,
                None => match self.stored_page(ino, state, block)? {
                    Some(page) => Edge::Read(page.into()),
                    None => continue,
                },
            };
            edges.insert(block, edge);
        }
        Ok(edges)
    }

    /// The content of a small file becomes its page 0.
    pub(crate) fn move_to_pages(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        let content = self.content(ino, state)?;
        state.inline = None;
        state.attr.body = Body::Paged(u64::from(!content.is_empty()));
        if !content.is_empty() {
            state.buffer.pages.insert(0, Slot { page: Page::Own(content.to_vec()), counted: true });
        }
        Ok(())
    }

    /// Writes one aligned piece. Pages written from their start over all they held are slices of
    /// one copy; others are put together.
    fn write_piece(
        &self,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
        edges: &mut BTreeMap<u64, Edge>,
    ) {
        let mut shared: Option<Bytes> = None;
        let mut at = 0;
        while at < data.len() {
            let from = offset + at as u64;
            let (block, inside) = (from / PAGE, (from % PAGE) as usize);
            let len = (PAGE as usize - inside).min(data.len() - at);
            let held = state.attr.size.saturating_sub(block * PAGE).min(PAGE) as usize;
            let bytes = &data[at..at + len];
            let page = if inside == 0 && len >= held {
                let shared = shared.get_or_insert_with(|| Bytes::copy_from_slice(data));
                Page::Shared(shared.slice(at..at + len))
            } else {
                let waiting = state
                    .buffer
                    .pages
                    .get_mut(&block)
                    .map(|slot| std::mem::replace(&mut slot.page, Page::Own(Vec::new())));
                match (edges.remove(&block), waiting) {
                    (Some(Edge::Unread), _) => Page::Part(PartialPage::of(inside, bytes)),
                    (Some(Edge::Read(page)), _) => Page::Own(page).with(inside, bytes),
                    (None, Some(page)) => page.with(inside, bytes),
                    (None, None) => {
                        Page::Own(Vec::with_capacity(PAGE as usize)).with(inside, bytes)
                    }
                }
            };
            self.put_page(state, block, page);
            at += len;
            state.attr.size = state.attr.size.max(offset + at as u64);
        }
    }

    /// Puts a page into the buffer. Call before the size moves over it: what lies beyond the size
    /// is known not to exist.
    pub(crate) fn put_page(&self, state: &mut InodeState, block: u64, page: Page) {
        let Body::Paged(count) = &mut state.attr.body else {
            debug_assert!(false, "pages belong to paged files");
            return;
        };
        let buffer = &mut state.buffer;
        if let Some(slot) = buffer.pages.get_mut(&block) {
            slot.page = page;
            return;
        }
        let blocks = blocks_of(state.attr.size);
        let new = block >= blocks || block >= buffer.cut || !state.stored;
        // Without holes every block below the end exists.
        let dense = *count == blocks;
        if new {
            *count += 1;
        } else if !dense {
            buffer.uncounted += 1;
        }
        buffer.pages.insert(block, Slot { page, counted: new || dense });
    }

    /// Sets the size. Nothing is committed: the range delete of what is cut off goes with the
    /// inode's next commit.
    pub(crate) fn truncate(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        size: u64,
    ) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Error::TooLarge);
        }
        let old = state.attr.size;
        match state.attr.body {
            Body::Inline(have) if size < u64::from(have) => {
                state.inline =
                    Some(Bytes::copy_from_slice(&self.content(inode.ino, state)?[..size as usize]));
                state.attr.body = Body::Inline(size as u32);
            }
            Body::Paged(_) if size < old => self.cut(inode.ino, state, size)?,
            _ => {}
        }
        state.attr.size = size;
        Ok(())
    }

    fn cut(&self, ino: Ino, state: &mut InodeState, size: u64) -> Result<()> {
        if size == 0 {
            state.buffer.pages.clear();
            state.buffer.uncounted = 0;
            state.buffer.cut = 0;
            state.attr.body = Body::Inline(0);
            state.inline = None;
            return Ok(());
        }
        self.count_pages(ino, state)?;
        let (kept, blocks) = (blocks_of(size), blocks_of(state.attr.size));
        let Body::Paged(count) = state.attr.body else { return Ok(()) };
        // All that has to be read, before anything changes.
        let count = if count == blocks {
            kept
        } else if kept <= blocks - kept {
            self.pages_between(ino, state, 0, kept)?
        } else {
            count - self.pages_between(ino, state, kept, blocks)?
        };
        // The page that the new end is in keeps its first bytes only.
        let rest = (size % PAGE) as usize;
        if rest > 0 {
            let block = kept - 1;
            let joined = match state.buffer.pages.get(&block).map(|slot| &slot.page) {
                Some(Page::Part(part)) => Some(self.whole(ino, state, block, part)?),
                _ => None,
            };
            if let Some(slot) = state.buffer.pages.get_mut(&block) {
                if let Some(joined) = joined {
                    slot.page = Page::Own(joined);
                }
                match &mut slot.page {
                    Page::Shared(b) => b.truncate(rest),
                    Page::Own(v) => v.truncate(rest),
                    Page::Part(_) => debug_assert!(false, "it was made whole"),
                }
            } else if let Some(page) = self.stored_page(ino, state, block)?
                && page.len() > rest
            {
                let page = Page::Own(page[..rest].to_vec());
                state.buffer.pages.insert(block, Slot { page, counted: true });
            }
        }
        state.buffer.pages.split_off(&kept);
        state.buffer.cut = state.buffer.cut.min(kept);
        state.attr.body = Body::Paged(count);
        Ok(())
    }

    /// How many blocks of `[from, to)` are stored or waiting.
    pub(crate) fn pages_between(
        &self,
        ino: Ino,
        state: &InodeState,
        from: u64,
        to: u64,
    ) -> Result<u64> {
        let mut count = state.buffer.pages.range(from..to).count() as u64;
        if state.stored && from < to.min(state.buffer.cut) {
            let mut stored = self.stored_blocks(ino, from, to.min(state.buffer.cut))?;
            while let Some(block) = stored.next()? {
                if !state.buffer.pages.contains_key(&block) {
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// The blocks of `[from, to)` that the store has pages of, in order, without reading a page.
    pub(crate) fn stored_blocks(&self, ino: Ino, from: u64, to: u64) -> Result<StoredBlocks> {
        let (start, end) = (layout::page_key(ino, from), layout::page_key(ino, to));
        let cursor = self.core.scope.cursor(self.core.layout.dmap, &start, &end)?.keys_only();
        Ok(StoredBlocks { cursor, ino, position: from })
    }
}

/// A page that a write keeps a part of.
enum Edge {
    /// As it was read.
    Read(Vec<u8>),
    /// What is written of it goes over it where it lies.
    Unread,
}

/// The value of a page, which may not be longer than a page.
fn checked_page(ino: Ino, page: &[u8]) -> Result<&[u8]> {
    if page.len() as u64 > PAGE {
        return Err(Error::Corrupt { ino, what: format!("a page of {} bytes", page.len()) });
    }
    Ok(page)
}

/// A walk over the page keys of one file.
pub(crate) struct StoredBlocks {
    cursor: Cursor,
    ino: Ino,
    /// The cursor stands before the first stored block at or above this.
    position: u64,
}

impl StoredBlocks {
    pub fn next(&mut self) -> Result<Option<u64>> {
        let Some(tuple) = self.cursor.next()? else { return Ok(None) };
        let (_, block) = layout::decode_page_key(&tuple.key)?;
        self.position = block + 1;
        Ok(Some(block))
    }

    /// The first stored block at or above `block`, which does not go back.
    pub fn next_from(&mut self, block: u64) -> Result<Option<u64>> {
        if block != self.position {
            self.cursor.seek(&layout::page_key(self.ino, block))?;
        }
        self.next()
    }
}

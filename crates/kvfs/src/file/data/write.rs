//! Writes files into the buffers of their inodes. If a write keeps a part of a page that is not in
//! memory, the page is read before anything changes, or the write becomes a partial page.

use env::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::MAX_SIZE;
use crate::attr::{FileKind, Ino, WriteHints};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::partial_page::PartialPage;
use crate::inode::{DirtyPage, Inode, InodeState, Page};
use crate::layout::{Body, INLINE_MAX, PAGE};

/// The unit in which a large write is copied, in bytes, aligned in the file. The pages of one unit
/// share an allocation, so a page that outlives the others keeps at most this much memory
/// allocated.
const PIECE: u64 = 64 << 10;

impl Fs {
    /// Writes all of `data`, for a call that has entered the view. Returns whether the file has
    /// lost set-uid or set-gid bits.
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
        if let Some(more) = self.core.promises.not_promised(ino, offset, end) {
            self.reserve(more)?;
        }
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        match state.attr.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("writing something that is not a file")),
        }
        self.write_locked(&inode, &mut state, offset, data)?;
        self.core.superseded.rewritten(ino, offset, end);
        debug_assert!(state.attr.size >= end);
        let lost_privileges = state.touch_content(self.now(), hints.unprivileged_group);
        self.mark_dirty(&inode, &mut state);
        self.core.promises.keep(ino, &mut state, offset, end);
        self.complete(&inode, &mut state)?;
        self.core.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.commit_if_large(&inode, &mut state);
        drop(state);
        self.throttle_writer();
        Ok(lost_privileges)
    }

    /// Extends a file to at least `size` bytes. (Under the freeze lock.)
    pub(crate) fn extend_in_call(&self, ino: Ino, size: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        if state.attr.kind == FileKind::File && state.attr.size < size {
            self.truncate(&inode, &mut state, size)?;
            state.touch_content(self.now(), None);
            self.changed(&inode, &mut state)?;
        }
        Ok(())
    }

    /// Puts data into the buffer and updates the size. The caller marks the inode dirty.
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
                    content.extend_from_slice(&self.core.pages.content(inode.ino, state)?);
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
        // All reads are done before anything changes: a write is applied as a whole or not at all,
        // even if the device fails.
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

    /// Returns the pages of which a write of `[offset, end)` keeps a part that is not in memory: at
    /// most the first and the last. A page is read unless the write changes little of it.
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
            // Nothing is stored at or after the size.
            if offset <= start && end >= start + held || held == 0 || edges.contains_key(&block) {
                continue;
            }
            let inside = offset.saturating_sub(start) as usize;
            let len = (end.min(start + PAGE) - start) as usize - inside;
            let stored = state.stored && block < state.buffer.cut;
            let edge = match state.buffer.pages.get(&block).map(|dirty| &dirty.page) {
                Some(Page::Part(part)) if !part.has_room(inside, len) => {
                    Edge::Read(self.core.pages.whole(ino, state, block, part)?)
                }
                Some(_) => continue,
                None if stored && PartialPage::takes(len) => Edge::Unread,
                None => match self.core.pages.stored_page(ino, state, block)? {
                    Some(page) => Edge::Read(page.into()),
                    None => continue,
                },
            };
            edges.insert(block, edge);
        }
        Ok(edges)
    }

    /// Turns the content of a small file into its page 0.
    pub(crate) fn move_to_pages(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        let content = self.core.pages.content(ino, state)?;
        state.inline = None;
        state.attr.body = Body::Paged(u64::from(!content.is_empty()));
        if !content.is_empty() {
            state
                .buffer
                .pages
                .insert(0, DirtyPage { page: Page::Own(content.to_vec()), counted: true });
        }
        Ok(())
    }

    /// Writes one aligned piece. Pages that are overwritten from their start to at least their old
    /// end are slices of one copy. The other pages are assembled.
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
                    .map(|dirty| std::mem::replace(&mut dirty.page, Page::Own(Vec::new())));
                match (edges.remove(&block), waiting) {
                    (Some(Edge::Unread), _) => Page::Part(PartialPage::of(inside, bytes)),
                    (Some(Edge::Read(page)), _) => Page::Own(page).with(inside, bytes),
                    (None, Some(page)) => page.with(inside, bytes),
                    (None, None) => {
                        Page::Own(Vec::with_capacity(PAGE as usize)).with(inside, bytes)
                    }
                }
            };
            self.core.pages.put(state, block, page);
            at += len;
            state.attr.size = state.attr.size.max(offset + at as u64);
        }
    }
}

/// A page of which a write keeps a part.
enum Edge {
    /// The page as it was read.
    Read(Vec<u8>),
    /// The page is not read, and the written bytes become a partial page over the stored page.
    Unread,
}

//! Manages the space of files: preallocates, punches and zeroes ranges, finds data and holes, and
//! copies ranges.

use std::ops::Range;
use std::sync::Arc;

use kvdb::Batch;

use crate::attr::{Allocate, AllocateMode, FileKind, Ino, Whence, WriteHints, Written};
use crate::error::{Error, Result};
use crate::file::data::MAX_SIZE;
use crate::fs::Fs;
use crate::inode::privileges::CAPABILITY;
use crate::inode::{DirtyPage, Inode, InodeState, Page};
use crate::layout::{self, Attributes, Body, PAGE, blocks_of};
use crate::space::promises::Ranges;

/// The maximum number of bytes that one call of `copy_file_range` copies. The caller calls again
/// for the rest.
const COPY_MAX: u64 = 16 << 20;
/// The number of bytes that are copied under one acquisition of the locks.
const COPY_STEP: u64 = 1 << 20;

/// Checks the arguments of a call, and returns the end of its range.
fn end_of(how: Allocate, offset: u64, len: u64) -> Result<u64> {
    if len == 0 {
        return Err(Error::Invalid("an empty range"));
    }
    let end = offset.checked_add(len).filter(|&end| end <= MAX_SIZE).ok_or(Error::TooLarge)?;
    match how.mode {
        AllocateMode::Collapse => Err(Error::Unsupported("collapsing or inserting a range")),
        AllocateMode::Punch if !how.keep_size => {
            Err(Error::Unsupported("punching a hole without keeping the size"))
        }
        _ => Ok(end),
    }
}

impl Fs {
    /// Implements `fallocate`. An allocation stores no data, because a log-structured store has no
    /// fixed places that could be reserved. The allocation sets aside space for the unwritten part
    /// of the range (see `promises`), and the host allocates this space. Fails with ENOSPC if that
    /// is impossible.
    pub fn fallocate(&self, ino: Ino, how: Allocate, offset: u64, len: u64) -> Result<()> {
        self.fallocate_for(ino, how, offset, len, WriteHints::default()).map(drop)
    }

    /// Like `fallocate`, and also returns the effects that a cache of attributes must be notified
    /// of.
    pub fn fallocate_for(
        &self,
        ino: Ino,
        how: Allocate,
        offset: u64,
        len: u64,
        hints: WriteHints,
    ) -> Result<Written> {
        self.writable()?;
        let lost_privileges = self.core.locks.retry(|| {
            let _call = self.enter()?;
            self.allocate_inside(ino, how, offset, len, hints)
        })?;
        Ok(Written { bytes: len, lost_privileges })
    }

    /// Carries out one `fallocate` and returns whether the file has lost set-uid or set-gid bits.
    fn allocate_inside(
        &self,
        ino: Ino,
        how: Allocate,
        offset: u64,
        len: u64,
        hints: WriteHints,
    ) -> Result<bool> {
        let end = end_of(how, offset, len)?;
        let inode = self.inode(ino)?;
        if how.mode == AllocateMode::Allocate {
            let missing = self.unwritten(ino, &inode.state.read(), offset, end)?;
            self.reserve_for_promise(ino, &missing)?;
        }
        let mut state = self.lock(&inode)?;
        if state.attr.kind != FileKind::File {
            return Err(if state.is_dir() {
                Error::IsDirectory
            } else {
                Error::Invalid("space of something that is not a file")
            });
        }
        let missing = match how.mode {
            AllocateMode::Allocate => self.unwritten(ino, &state, offset, end)?,
            _ => Ranges::default(),
        };
        // The whole call is one change: commits that are made during it already have the new size
        // and times.
        let before = state.attr;
        let lost_capability = state.buffer.lost_capability;
        let capability = state.xattrs.as_ref().and_then(|all| all.get(CAPABILITY).cloned());
        if !how.keep_size && end > state.attr.size {
            state.attr.size = end;
        }
        let lost_privileges = state.touch_content(self.now(), hints.unprivileged_group);
        let cleared = match how.mode {
            AllocateMode::Allocate => {
                self.core.promises.make(ino, &mut state, &missing).map(|()| false)
            }
            _ => self.clear(&inode, &mut state, offset, end.min(before.size), before.size),
        };
        match cleared {
            Ok(committed) => {
                if how.mode != AllocateMode::Allocate {
                    self.core.superseded.rewritten(ino, offset, end);
                }
                if how.mode == AllocateMode::Punch {
                    self.core.promises.release(ino, &mut state, offset, end);
                }
                if !committed || state.buffer.promise_changed {
                    self.changed(&inode, &mut state)?;
                }
            }
            Err(e) => {
                state.attr = Attributes { body: state.attr.body, ..before };
                state.buffer.lost_capability = lost_capability;
                if let (Some(all), Some(value)) = (&mut state.xattrs, capability) {
                    all.insert(CAPABILITY.into(), value);
                }
                return Err(e);
            }
        }
        Ok(lost_privileges)
    }

    /// Makes `[offset, end)` of a file of `size` bytes read as zeros. The edge pages are changed in
    /// the buffer; whole pages are removed in one commit with the edges and the node. After an
    /// error nothing has changed. Returns whether everything is committed.
    fn clear(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        offset: u64,
        end: u64,
        size: u64,
    ) -> Result<bool> {
        let ino = inode.ino;
        if offset >= end {
            return Ok(false);
        }
        if let Body::Inline(have) = state.attr.body {
            let have = u64::from(have);
            self.clear_inline(ino, state, offset.min(have) as usize..end.min(have) as usize)?;
            return Ok(false);
        }
        self.core.pages.count(ino, state)?;
        // The page that contains the end of the file counts as whole.
        let first = offset.div_ceil(PAGE);
        let behind = if end == size { blocks_of(end) } else { end / PAGE };
        let edges = self.zeroed_edges(ino, state, offset..end, first..behind)?;
        if first >= behind {
            edges
                .into_iter()
                .for_each(|(block, page)| self.core.pages.put(state, block, Page::Own(page)));
            return Ok(false);
        }
        let removed = self.core.pages.between(ino, state, first, behind)?;
        // The node is committed with the pages, so that its page count is right in the store as
        // well.
        let Body::Paged(count) = state.attr.body else { return Ok(false) };
        let mut kept = state.buffer.pages.split_off(&first);
        let mut behind_range = kept.split_off(&behind);
        state.buffer.pages.append(&mut behind_range);
        // The edge pages exist, so the page count includes them.
        let mut fresh = Vec::new();
        for (block, page) in edges {
            match state
                .buffer
                .pages
                .insert(block, DirtyPage { page: Page::Own(page), counted: true })
            {
                Some(old) => drop(kept.insert(block, old)),
                None => fresh.push(block),
            }
        }
        let mut attr = state.attr;
        attr.body = Body::Paged(count.saturating_sub(removed));
        let mut batch = Batch::new();
        if state.stored {
            let (start, stop) = (layout::page_key(ino, first), layout::page_key(ino, behind));
            batch.delete_range(self.core.layout.dmap, start.to_vec(), stop.to_vec());
        }
        if let Err(e) = self.stage(ino, state, &attr, &mut batch).and_then(|()| self.apply(batch)) {
            fresh.iter().for_each(|block| drop(state.buffer.pages.remove(block)));
            state.buffer.pages.append(&mut kept);
            return Err(e);
        }
        self.mark_committed(state, attr);
        Ok(true)
    }

    /// Makes a range of the content that the node has read as zeros.
    fn clear_inline(&self, ino: Ino, state: &mut InodeState, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut content = self.core.pages.content(ino, state)?.to_vec();
        if range.end == content.len() {
            content.truncate(range.start);
        } else {
            content[range].fill(0);
        }
        state.attr.body = Body::Inline(content.len() as u32);
        state.inline = Some(content.into());
        Ok(())
    }

    /// Returns the pages of a range of bytes that are not among those of `whole`, each with the
    /// bytes of the range zeroed.
    fn zeroed_edges(
        &self,
        ino: Ino,
        state: &InodeState,
        range: Range<u64>,
        whole: Range<u64>,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut edges = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let block = at / PAGE;
            let to = range.end.min((block + 1) * PAGE);
            if whole.contains(&block) {
                at = to.max(whole.end * PAGE);
                continue;
            }
            let (from, until) = ((at % PAGE) as usize, (to - block * PAGE) as usize);
            if let Some(zeroed) = self.zeroed_page(ino, state, block, from, until)? {
                edges.push((block, zeroed));
            }
            at = to;
        }
        Ok(edges)
    }

    /// Returns the page with the bytes `from..to` zeroed, or `None` if the file does not have the
    /// page.
    fn zeroed_page(
        &self,
        ino: Ino,
        state: &InodeState,
        block: u64,
        from: usize,
        to: usize,
    ) -> Result<Option<Vec<u8>>> {
        let Some(page) = self.core.pages.page(ino, state, block)? else { return Ok(None) };
        let mut page = page.to_vec();
        let to = to.min(page.len());
        if from < to {
            page[from..to].fill(0);
        }
        Ok(Some(page))
    }

    /// Returns the first offset at or after `offset` that is data or a hole, as `whence` specifies.
    /// The end of the file counts as a hole. Fails with ENXIO if there is no such offset.
    pub fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        if state.gone {
            return Err(Error::Stale(ino));
        }
        self.seek_before(ino, &state, offset, whence, state.attr.size)
    }

    /// Like `seek`, but as if the file ended at `size`.
    fn seek_before(
        &self,
        ino: Ino,
        state: &InodeState,
        offset: u64,
        whence: Whence,
        size: u64,
    ) -> Result<u64> {
        if offset >= size {
            return Err(Error::NoSuchOffset);
        }
        if let Body::Inline(have) = state.attr.body {
            let have = u64::from(have);
            return match whence {
                Whence::Data if offset < have => Ok(offset),
                Whence::Data => Err(Error::NoSuchOffset),
                Whence::Hole => Ok(offset.max(have.min(size))),
            };
        }
        let (first, blocks) = (offset / PAGE, blocks_of(size));
        let mut stored = if state.stored && first < state.buffer.cut {
            Some(self.core.pages.stored_blocks(ino, first, blocks.min(state.buffer.cut))?)
        } else {
            None
        };
        let mut next_stored = || stored.as_mut().map_or(Ok(None), |s| s.next());
        let mut waiting =
            state.buffer.pages.range(first..blocks).map(|(&block, _)| block).peekable();
        match whence {
            Whence::Data => {
                let nearest = match (next_stored()?, waiting.peek().copied()) {
                    (Some(s), Some(w)) => Some(s.min(w)),
                    (s, w) => s.or(w),
                };
                let block = nearest.ok_or(Error::NoSuchOffset)?;
                Ok(offset.max(block * PAGE))
            }
            Whence::Hole => {
                let mut block = first;
                let mut s = next_stored()?;
                while block < blocks {
                    while s.is_some_and(|s| s < block) {
                        s = next_stored()?;
                    }
                    while waiting.peek().is_some_and(|&w| w < block) {
                        waiting.next();
                    }
                    if s != Some(block) && waiting.peek() != Some(&block) {
                        break;
                    }
                    block += 1;
                }
                Ok(offset.max(block * PAGE).min(size))
            }
        }
    }

    /// Copies up to `len` bytes from one file to another, or within one file if the ranges do not
    /// overlap. Returns the number of bytes copied, which is less than `len` only at the end of the
    /// source, or if the range is too long for one call. Holes stay holes. Pages that are whole and
    /// aligned in both files are shared instead of copied (see `reflink`).
    pub fn copy_file_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.copy_file_range_for((from, from_offset), (to, to_offset), len, WriteHints::default())
            .map(|copied| copied.bytes)
    }

    /// Like `copy_file_range`, and also returns the effects that a cache of attributes must be
    /// notified of.
    pub fn copy_file_range_for(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        hints: WriteHints,
    ) -> Result<Written> {
        self.writable()?;
        if from == to && from_offset.abs_diff(to_offset) < len {
            return Err(Error::Invalid("overlapping ranges of one file"));
        }
        self.core.locks.retry(|| self.copy_once((from, from_offset), (to, to_offset), len, hints))
    }

    fn copy_once(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        hints: WriteHints,
    ) -> Result<Written> {
        let _call = self.enter()?;
        let source = self.inode(from)?;
        // Bytes that the copy appends to its own source are not copied again.
        let len = match source.state.read() {
            state if state.attr.kind == FileKind::File && !state.gone => {
                len.min(state.attr.size.saturating_sub(from_offset))
            }
            _ => len,
        };
        let shared = self.reflink_pages((from, from_offset), (to, to_offset), len, hints)?;
        let Written { bytes: mut copied, mut lost_privileges } = shared;
        while copied < len && copied < COPY_MAX {
            let at = (from_offset.saturating_add(copied), to_offset.saturating_add(copied));
            match self.copy_piece((&source, at.0), (to, at.1), len - copied, hints) {
                Ok(Written { bytes: 0, .. }) => break,
                Ok(piece) => {
                    copied += piece.bytes;
                    lost_privileges |= piece.lost_privileges;
                }
                Err(e) if copied == 0 => return Err(e),
                // The bytes copied so far stay copied, and the next call returns the error.
                Err(_) => break,
            }
        }
        Ok(Written { bytes: copied, lost_privileges })
    }

    /// Copies up to `len` bytes of data, or of a hole, from `from_offset`. Copies 0 bytes at the
    /// end of the source.
    fn copy_piece(
        &self,
        (source, from_offset): (&Inode, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        hints: WriteHints,
    ) -> Result<Written> {
        let (from, want) = (source.ino, len.min(COPY_STEP));
        let piece = {
            let state = source.state.read();
            match state.attr.kind {
                _ if state.gone => return Err(Error::Stale(from)),
                FileKind::File => {}
                FileKind::Dir => return Err(Error::IsDirectory),
                _ => return Err(Error::Invalid("copying from something that is not a file")),
            }
            let size = state.attr.size;
            if from_offset >= size {
                return Ok(Written::default());
            }
            let data_at = match self.seek_before(from, &state, from_offset, Whence::Data, size) {
                Err(Error::NoSuchOffset) => size,
                other => other?,
            };
            if data_at > from_offset {
                CopyPiece::Hole((data_at - from_offset).min(len))
            } else {
                let end = size.min(from_offset.saturating_add(want));
                let hole_at = self.seek_before(from, &state, from_offset, Whence::Hole, end)?;
                let length = hole_at - from_offset;
                CopyPiece::Data(self.core.pages.read(from, &state, from_offset, length)?)
            }
        };
        let (bytes, lost_privileges) = match piece {
            CopyPiece::Hole(n) => (n, self.write_hole(to, to_offset, n, hints)?),
            CopyPiece::Data(data) => {
                (data.len() as u64, self.write_in_call(to, to_offset, &data, hints)?)
            }
        };
        Ok(Written { bytes, lost_privileges })
    }

    /// Makes a range a hole and extends the file to contain it.
    fn write_hole(&self, ino: Ino, offset: u64, len: u64, hints: WriteHints) -> Result<bool> {
        let zero = Allocate { mode: AllocateMode::Zero, keep_size: false };
        self.allocate_inside(ino, zero, offset, len, hints)
    }
}

enum CopyPiece {
    Hole(u64),
    Data(bytes::Bytes),
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use kvdb::{CreateOptions, Kvdb, OpenOptions};
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

    use super::*;
    use crate::{Caller, FsOptions, ROOT};

    #[test]
    fn a_copy_whose_hole_does_not_fit_says_how_much_was_copied_before_it() {
        let (db, env) = (kvdb::Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db, env, FsOptions::default()).unwrap();
        let make = |name: &[u8]| {
            fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino
        };
        let (from, to) = (make(b"from"), make(b"to"));
        fs.write(from, 0, &[7; PAGE as usize], Default::default()).unwrap();
        fs.write(from, 2 * PAGE, b"behind a hole", Default::default()).unwrap();
        let at = MAX_SIZE - PAGE - 100;
        assert_eq!(fs.copy_file_range(from, 0, to, at, 3 * PAGE).unwrap(), PAGE);
        assert_eq!(fs.read(to, at, 2 * PAGE as u32).unwrap()[..], [7; PAGE as usize]);
        let beyond = fs.copy_file_range(from, PAGE, to, MAX_SIZE - 100, PAGE);
        assert!(matches!(beyond, Err(Error::TooLarge)), "{beyond:?}");
    }

    #[test]
    fn a_file_keeps_its_capability_when_space_cannot_be_freed() {
        let mut random = env::Random::new(1);
        let page: Vec<u8> = (0..PAGE / 8).flat_map(|_| random.number().to_le_bytes()).collect();
        for value in [&[1; 20][..], &[2; 1000]] {
            let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
            let env = Arc::new(Simulated::new(7));
            let open = OpenOptions { threads: false, zero_journal: false, ..Default::default() };
            let create = CreateOptions { open: open.clone(), ..Default::default() };
            let db = Kvdb::create(device.clone(), env.clone(), create).unwrap();
            let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
            let ino =
                fs.mknod(ROOT, b"f", FileKind::File, 0o755, 0, Caller::default()).unwrap().ino;
            fs.write(ino, 0, &page, Default::default()).unwrap();
            fs.setxattr(ino, CAPABILITY, value, Default::default()).unwrap();
            fs.shutdown().unwrap();
            db.flush().unwrap();
            db.close().unwrap();
            drop((fs, db));

            let (db, _) = Kvdb::open(device.clone(), env.clone(), open).unwrap();
            let fs = Fs::open(db, env, FsOptions::default()).unwrap();
            fs.getattr(ino).unwrap();
            device.inject(Fault::always(Operation::Read, FaultKind::Error));
            let punch = Allocate { mode: AllocateMode::Punch, keep_size: true };
            assert!(fs.fallocate(ino, punch, 100, 100).is_err());
            device.clear();
            assert_eq!(fs.getxattr(ino, CAPABILITY).unwrap(), value);
            fs.fallocate(ino, punch, 100, 100).unwrap();
            assert!(matches!(fs.getxattr(ino, CAPABILITY), Err(Error::NoAttribute)));
            assert_eq!(fs.verify().unwrap().findings, []);
        }
    }
}

//! Shares pages between two files: a copy of whole pages refers to those of the original, and costs
//! only their keys. In a view over a wire the server makes the references, and the client sends
//! only their keys.

use std::sync::Arc;

use bytes::Bytes;
use env::sync::RwLockWriteGuard;
use kvdb::{Batch, Isolation, Reference, Scope, View};

use crate::attr::{FileKind, Ino, WriteHints, Written};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::privileges::CAPABILITY;
use crate::inode::{Inode, InodeState};
use crate::layout::{self, Attributes, Body, PAGE, PageKeys};

/// The maximum number of pages that one call shares.
const PER_LOCK: u64 = 16 << 10;
/// The maximum number of pages that one call shares over a wire, where all pages are one change,
/// whose size is limited.
const PER_CHANGE: u64 = 4 << 10;
/// The number of bytes of pages without a place from which on a copy first makes the store place
/// them.
const WORTH_PLACING: usize = 64 << 10;
/// Approximate cost of a page in the store, in bytes.
const COST: u64 = 64;

/// Pages that a file is about to share with another one.
struct Shared {
    batch: Batch,
    /// The pages that a server shares.
    references: Vec<Reference>,
    /// The number of these pages.
    pages: u64,
    /// The number of all pages that the file has with them.
    count: u64,
}

/// The content that is shared.
struct Source<'a> {
    /// The state that has it, or `None` over a wire.
    view: Option<View>,
    /// The size of the file.
    end: u64,
    /// The lock of the file, if it has to stay as it is.
    _held: Option<RwLockWriteGuard<'a, InodeState>>,
}

impl Fs {
    /// Makes the first part of a copy that can be done by sharing, in one commit. If it copies 0
    /// bytes, nothing is changed. Both offsets must be page boundaries, and a part that ends within
    /// a page must end at the end of both files. (Under the freeze lock.)
    pub(crate) fn reflink_pages(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        hints: WriteHints,
    ) -> Result<Written> {
        let aligned = from_offset.is_multiple_of(PAGE) && to_offset.is_multiple_of(PAGE);
        // A serializable transaction must lock the data that it reads, so it copies.
        let locks = matches!(&self.core.scope, Scope::Transaction(t) if t.isolation() == Isolation::Serializable);
        if !aligned || locks || from == to {
            return Ok(Written::default());
        }
        let (source, target) = (self.inode(from)?, self.inode(to)?);
        let is_served = self.core.scope.is_served();
        let most = if is_served { PER_CHANGE } else { PER_LOCK };
        if is_served {
            // A directory would have to be locked first.
            let is_file = |inode: &Inode| inode.state.read().attr.kind == FileKind::File;
            if !is_file(&source) || !is_file(&target) {
                return Ok(Written::default());
            }
            // This may commit other files, so no file is locked yet.
            self.reserve(COST * layout::blocks_of(len.min(most * PAGE)))?;
        }
        // There is no view of a state over a wire: the source stays locked until the references are
        // made. Files are locked in the order of their numbers.
        let early = if is_served && to < from { Some(self.lock(&target)?) } else { None };
        let Some(Source { view, end: source_end, _held }) = self.source_of(&source)? else {
            return Ok(Written::default());
        };
        let mut len = len.min(source_end.saturating_sub(from_offset)).min(most * PAGE);
        let to_end = to_offset.checked_add(len).ok_or(Error::TooLarge)?;
        if !is_served {
            self.reserve(COST * layout::blocks_of(len))?;
        }

        let mut state = match early {
            Some(state) => state,
            None => self.lock(&target)?,
        };
        let Attributes { kind, nlink, body, .. } = state.attr;
        if kind != FileKind::File || nlink == 0 || matches!(body, Body::Inline(1..)) {
            return Ok(Written::default());
        }
        if from_offset + len < source_end || to_end < state.attr.size {
            len -= len % PAGE;
        }
        if len == 0 {
            return Ok(Written::default());
        }
        self.commit_dirty(&target, &mut state)?;
        let shared = self.stage_shared(view, (from, from_offset), (to, to_offset), len, &state)?;
        let lost_privileges =
            self.commit_shared(&target, &mut state, shared, to_offset + len, hints)?;
        self.core.superseded.rewritten(to, to_offset, to_offset + len);
        self.core.promises.keep(to, &mut state, to_offset, to_offset + len);
        if state.buffer.promise_changed {
            self.mark_dirty(&target, &mut state);
        }
        Ok(Written { bytes: len, lost_privileges })
    }

    /// Returns the content that a file can share, or `None` if it has no pages.
    fn source_of<'a>(&self, source: &'a Inode) -> Result<Option<Source<'a>>> {
        let is_served = self.core.scope.is_served();
        let mut state = self.lock(source)?;
        let Attributes { kind, nlink, body, .. } = state.attr;
        if kind != FileKind::File || nlink == 0 || !matches!(body, Body::Paged(1..)) {
            return Ok(None);
        }
        self.commit_dirty(source, &mut state)?;
        // The view is taken under the source's lock, so that it has the current content.
        let view = if is_served { None } else { Some(self.core.scope.view()?) };
        let end = state.attr.size;
        Ok(Some(Source { view, end, _held: is_served.then_some(state) }))
    }

    /// Puts pages of the file `from` in the place of those that the file `to` has there.
    fn stage_shared(
        &self,
        view: Option<View>,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        state: &InodeState,
    ) -> Result<Shared> {
        let dmap = self.core.layout.dmap;
        let (first, blocks) = (from_offset / PAGE, layout::blocks_of(len));
        let (start, end) = (layout::page_key(from, first), layout::page_key(from, first + blocks));
        let (mut pages, mut references) = (Vec::new(), Vec::new());
        match view {
            Some(view) => {
                let scan = || view.scan_stored(dmap, &start, &end, blocks as usize);
                pages = scan()?;
                // Pages that wait in memory for their places would be copied. They get them now,
                // unless the store is full.
                let copied: usize = pages.iter().map(|(_, page)| page.copied()).sum();
                if copied >= WORTH_PLACING && self.core.db.here()?.write_out().is_ok() {
                    pages = scan()?;
                }
            }
            None => references = self.references((from, first), (to, to_offset / PAGE), blocks)?,
        }

        let to_first = to_offset / PAGE;
        let mut batch = Batch::new();
        let mut count = match state.attr.body {
            Body::Paged(count) => count,
            Body::Inline(_) => 0,
        };
        if count > 0 {
            count -= self.core.pages.between(to, state, to_first, to_first + blocks)?.min(count);
            let (start, end) =
                (layout::page_key(to, to_first), layout::page_key(to, to_first + blocks));
            batch.delete_range(dmap, start.to_vec(), end.to_vec());
        }
        let shared = (pages.len() + references.len()) as u64;
        let mut keys = PageKeys::with_capacity(pages.len());
        for (key, value) in pages {
            let (_, block) = layout::decode_page_key(&key)?;
            batch.put_stored(dmap, keys.key(to, block - first + to_first), value);
        }
        Ok(Shared { batch, references, pages: shared, count: count + shared })
    }

    /// Commits pages that a file shares, up to the offset `end`. Returns `true` if the file has
    /// lost privileges. On an error the file is as before.
    fn commit_shared(
        &self,
        target: &Arc<Inode>,
        state: &mut InodeState,
        shared: Shared,
        end: u64,
        hints: WriteHints,
    ) -> Result<bool> {
        let Shared { mut batch, references, pages, count } = shared;
        let before = state.attr;
        let lost_capability = state.buffer.lost_capability;
        let capability = state.xattrs.as_ref().and_then(|all| all.get(CAPABILITY).cloned());
        let lost_privileges = state.touch_content(self.now(), hints.unprivileged_group);
        // The target is dirty until it is committed.
        self.mark_dirty(target, state);
        let mut attr = state.attr;
        attr.body = Body::Paged(count);
        attr.size = attr.size.max(end);
        let staged = self.stage(target.ino, state, &attr, &mut batch);
        let applied = staged.and_then(|()| match self.core.scope.is_served() {
            true => self.apply_with(batch, references),
            false => self.apply(batch),
        });
        if let Err(e) = applied {
            // Nothing was copied, so the target has not changed.
            state.attr = before;
            state.buffer.lost_capability = lost_capability;
            if let (Some(all), Some(value)) = (&mut state.xattrs, capability) {
                all.insert(CAPABILITY.into(), value);
            }
            return Err(e);
        }
        self.mark_committed(state, attr);
        state.stored |= pages > 0;
        Ok(lost_privileges)
    }

    /// Returns references to the pages of a file in a number of blocks from `first` on, for another
    /// file from `to_first` on. No page is read.
    fn references(
        &self,
        (from, first): (Ino, u64),
        (to, to_first): (Ino, u64),
        blocks: u64,
    ) -> Result<Vec<Reference>> {
        let dict = self.core.layout.dmap;
        let mut stored = self.core.pages.stored_blocks(from, first, first + blocks)?;
        let mut references = Vec::new();
        while let Some(block) = stored.next()? {
            let key = layout::page_key(to, block - first + to_first);
            let of = layout::page_key(from, block);
            references.push(Reference {
                dict,
                key: Bytes::copy_from_slice(&key),
                of: (dict, Bytes::copy_from_slice(&of)),
            });
        }
        Ok(references)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::Simulated;
    use kvdb::{CreateOptions, Kvdb, OpenOptions};
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

    use super::*;
    use crate::{Caller, FsOptions, ROOT};

    #[test]
    fn a_copy_that_fails_leaves_the_times_of_its_target() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let env = Arc::new(Simulated::new(7));
        let open = OpenOptions { threads: false, zero_journal: false, ..Default::default() };
        let create = CreateOptions { open, ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), create).unwrap();
        let fs = Fs::open(db, env.clone(), FsOptions::default()).unwrap();
        let make = |name: &[u8], pages: u64| {
            let ino =
                fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
            fs.write(ino, 0, &vec![1; (pages * PAGE) as usize], Default::default()).unwrap();
            fs.fsync(ino, false).unwrap();
            ino
        };
        let (from, to, other) = (make(b"from", 8), make(b"to", 8), make(b"other", 1));
        let before = fs.getattr(to).unwrap();
        env.advance(std::time::Duration::from_secs(5));
        fs.write(other, 0, b"x", Default::default()).unwrap();
        device.inject(Fault::always(Operation::Write, FaultKind::Error));
        assert!(fs.fsync(other, false).is_err(), "the store fails");
        let copied = fs.reflink_pages((from, 0), (to, 0), 8 * PAGE, WriteHints::default());
        assert!(copied.is_err(), "{copied:?}");
        assert_eq!(fs.getattr(to).unwrap(), before);
    }
}

//! Commits dirty inodes. File data and attribute changes wait in their inode and are committed as
//! one unit: on fsync, at the interval, when too much data waits, and before a name operation that
//! must not overtake them.
//!
//! A batch with the node of an inode contains everything that is dirty of the inode (`stage`), so
//! that the store never holds a size or page count without its pages.

use env::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use env::sync::RwLockWriteGuard;
use kvdb::{Batch, Scope, Transaction};

use crate::attr::Ino;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::request;
use crate::inode::locks::Accepting;
use crate::inode::privileges::CAPABILITY;
use crate::inode::{Buffer, Inode, InodeState};
use crate::layout::{self, Attributes, PAGE, PageKeys};
use crate::pages::compress;

/// The dirty bytes that are charged for the node of a dirty inode.
const NODE_CHARGE: usize = 512;
/// The maximum number of inodes that the interval commits in one batch. The second limit is in
/// dirty bytes.
const GROUP: usize = 256;
const GROUP_BYTES: usize = 4 << 20;
/// The number of inodes that the interval takes out of the queue at once, to commit them in the
/// order of their numbers.
const ORDERED: usize = 16 * GROUP;
/// The number of dirty bytes at which the writer of a file commits the file, so that the batches of
/// a stream have about the same size.
const FILE_LIMIT: usize = 8 << 20;

/// An inode of a group, staged and locked until the group is committed.
struct Held<'a> {
    inode: &'a Arc<Inode>,
    state: RwLockWriteGuard<'a, InodeState>,
    attr: Attributes,
}

impl Fs {
    /// Commits each inode of the queue once, in groups. Files of medium size together fill a batch
    /// whose pages the store writes to their final place; a single such file would be written
    /// twice, once through the journal. An inode that cannot be committed stays dirty and does not
    /// stop the others. (Under the freeze lock.)
    pub(crate) fn commit_older_than(&self, limit: Duration) -> Result<()> {
        let mut rounds = usize::MAX;
        let mut result = Ok(());
        while rounds > 0 {
            let _draining = self.core.dirty.draining.lock();
            rounds = rounds.min(self.core.dirty.len());
            let mut groups = self.core.dirty.pop(limit, rounds.min(ORDERED));
            if groups.is_empty() {
                break;
            }
            rounds -= groups.len();
            // Inodes that are committed together are adjacent on the device. Sorted by number,
            // these are inodes of one directory.
            groups.sort_unstable_by_key(|inode| inode.ino);
            for group in groups.chunks_mut(GROUP) {
                if let Err(e) = self.commit_inodes(group, false)
                    && result.is_ok()
                {
                    result = Err(e);
                }
            }
        }
        self.core.inode_cache.trim();
        result
    }

    /// Commits inodes that were taken out of the queue, in batches of bounded size. Files without a
    /// name are committed only if `unlinked` is set: their data need not be durable, and most of
    /// them are removed before they are ever written.
    fn commit_inodes(&self, group: &mut [Arc<Inode>], unlinked: bool) -> Result<()> {
        // The lock order is: directories (whose attributes were set), one after the other, then all
        // other inodes by number.
        group.sort_by_cached_key(|inode| (!inode.state.read().is_dir(), inode.ino));
        let mut result: Result<()> = Ok(());
        let mut held: Vec<Held<'_>> = Vec::with_capacity(group.len());
        let mut batch = Batch::new();
        let mut bytes = 0;
        for inode in &*group {
            let mut state = inode.state.write();
            state.queued = false;
            if state.is_dir() || state.attr.nlink == 0 && !unlinked || !state.dirty || state.gone {
                let committed =
                    if state.is_dir() { self.commit_dirty(inode, &mut state) } else { Ok(()) };
                self.enqueue_if_dirty(inode, &mut state);
                result = result.and(committed);
                continue;
            }
            if bytes > 0 && bytes + state.charged > GROUP_BYTES {
                result = result.and(self.commit_group(&mut held, std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += state.charged;
            let staged = self.core.pages.count(inode.ino, &mut state).and_then(|()| {
                let attr = state.attr;
                self.stage(inode.ino, &mut state, &attr, &mut batch).map(|()| attr)
            });
            match staged {
                Ok(attr) => held.push(Held { inode, state, attr }),
                Err(e) => {
                    // The batch holds a part of this inode without its node, so the group must not
                    // be committed as a batch.
                    self.enqueue_if_dirty(inode, &mut state);
                    drop(state);
                    batch = Batch::new();
                    bytes = 0;
                    let others = self.commit_one_by_one(&mut held);
                    result = result.and::<()>(Err(e)).and(others);
                }
            }
        }
        result.and(self.commit_group(&mut held, batch))
    }

    fn commit_group(&self, held: &mut Vec<Held<'_>>, batch: Batch) -> Result<()> {
        if held.is_empty() {
            return Ok(());
        }
        if self.apply(batch).is_err() {
            return self.commit_one_by_one(held);
        }
        for mut one in held.drain(..) {
            self.mark_committed(&mut one.state, one.attr);
        }
        Ok(())
    }

    /// Commits the members of a group one by one, after the group as a whole has failed.
    fn commit_one_by_one(&self, held: &mut Vec<Held<'_>>) -> Result<()> {
        let mut result = Ok(());
        for mut one in held.drain(..) {
            result = result.and(self.commit_dirty(one.inode, &mut one.state));
            self.enqueue_if_dirty(one.inode, &mut one.state);
        }
        result
    }

    fn enqueue_if_dirty(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.dirty && !state.gone {
            self.enqueue(inode, state);
        }
    }

    fn enqueue(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if !state.queued {
            state.queued = true;
            self.core.dirty.push(self.core.env.monotonic(), inode.clone());
        }
    }

    /// Fails with ENOSPC unless `more` bytes fit into the store in addition to everything that is
    /// dirty already. Commits dirty data if that may make room.
    pub(crate) fn reserve(&self, more: u64) -> Result<()> {
        self.core.free_space.reserve(more, || self.commit_older_than(Duration::MAX))
    }

    /// Marks `state` as newer than the store, and charges for its dirty data.
    pub(crate) fn mark_dirty(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        state.dirty = true;
        self.core.space.charge(state, NODE_CHARGE + state.buffer.pages.len() * PAGE as usize);
        self.enqueue(inode, state);
    }

    /// Marks `state` as newer than the store. In write-through mode this also commits it, which
    /// completes the request of the kernel.
    pub(crate) fn changed(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        self.mark_dirty(inode, state);
        self.complete(inode, state)
    }

    /// Commits an inode that was marked dirty, in write-through mode.
    pub(crate) fn complete(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        if self.writes_through() {
            self.commit_dirty_with(inode, state, |batch| request::completes(batch, inode.ino))?;
        }
        Ok(())
    }

    /// Returns whether every change is committed before its call returns. (Changes of a transaction
    /// are not in the store before it commits, except for the log of a durable one.)
    pub(crate) fn writes_through(&self) -> bool {
        let lasts = match &self.core.scope {
            Scope::Mainline(_) => true,
            Scope::Transaction(transaction) => transaction.is_durable(),
            Scope::Frozen(_) | Scope::Served(_) => false,
        };
        self.core.options.write_through && lasts
    }

    /// Commits this file if it holds much dirty data, as the writer's share of the work. The caller
    /// then releases the inode and calls `throttle_writer`.
    pub(crate) fn commit_if_large(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.charged >= FILE_LIMIT.min(self.core.options.write_buffer / 2) {
            self.commit_or_warn(inode, state);
        }
    }

    /// Commits the longest waiting inodes until the buffer has room. The caller holds no lock
    /// except the freeze lock.
    pub(crate) fn throttle_writer(&self) {
        let mut rounds = None;
        while self.core.space.dirty_bytes() > self.core.options.write_buffer {
            let _draining = self.core.dirty.draining.lock();
            if self.core.space.dirty_bytes() <= self.core.options.write_buffer {
                // Another writer has made room while this thread waited.
                return;
            }
            let rounds = rounds.get_or_insert_with(|| self.core.dirty.len());
            let mut group = self.core.dirty.pop(Duration::MAX, GROUP.min(*rounds));
            if group.is_empty() {
                return;
            }
            *rounds -= group.len();
            if let Err(e) = self.commit_inodes(&mut group, true) {
                tracing::warn!("committing dirty data failed, will be tried again: {e}");
            }
        }
    }

    /// Commits an inode, and logs a failure. An accepted write does not fail because making room
    /// for the next one fails: the data stays dirty, and fsync reports the error.
    fn commit_or_warn(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if let Err(e) = self.commit_dirty(inode, state) {
            tracing::warn!(
                ino = inode.ino,
                "committing dirty data failed, will be tried again: {e}"
            );
        }
    }

    /// Commits the inode if it is dirty. The caller holds the lock of the inode.
    pub(crate) fn commit_dirty(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        self.commit_dirty_with(inode, state, |_| {})
    }

    /// Commits the inode if it is dirty; `hint` sets properties of the batch.
    pub(crate) fn commit_dirty_with(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        hint: impl FnOnce(&mut Batch),
    ) -> Result<()> {
        if !state.dirty || state.gone {
            return Ok(());
        }
        self.core.pages.count(inode.ino, state)?;
        let mut batch = Batch::new();
        hint(&mut batch);
        let attr = state.attr;
        if state.buffer.pages.len() <= 1 && state.buffer.cut != u64::MAX
            || state.buffer.pages.is_empty() && state.inline.is_none()
        {
            // A truncation or a change of attributes must be possible in a full store.
            batch.releases_space();
        }
        self.stage(inode.ino, state, &attr, &mut batch)?;
        self.apply(batch)?;
        self.mark_committed(state, attr);
        Ok(())
    }

    /// Adds all dirty data of this inode to `batch`, and its node with `attr`. Callers call
    /// `Pages::count` before they copy and change `state.attr`, and `mark_committed` after the
    /// commit.
    pub(crate) fn stage(
        &self,
        ino: Ino,
        state: &mut InodeState,
        attr: &Attributes,
        batch: &mut Batch,
    ) -> Result<()> {
        let layout = &self.core.layout;
        debug_assert_eq!(
            state.buffer.uncounted, 0,
            "pages must be counted before the node is written"
        );
        if state.charged > 0 {
            batch.takes_promised_space();
        }
        if state.buffer.cut != u64::MAX && state.stored {
            let (start, end) = (layout::page_key(ino, state.buffer.cut), layout::pages_end(ino));
            batch.delete_range(layout.dmap, start.to_vec(), end.to_vec());
        }
        self.stage_pages(ino, state, batch)?;
        if state.buffer.lost_capability {
            batch.delete(layout.imap, layout::xattr_key(ino, CAPABILITY));
        }
        if state.buffer.promise_changed {
            self.core.promises.stage(ino, attr.nlink, batch);
        }
        if attr.nlink > 0 {
            let content = self.core.pages.content(ino, state)?;
            batch.put(
                layout.imap,
                layout::node_key(ino),
                layout::encode_node(attr, state.xattrs.as_deref(), &content),
            );
            if state.orphaned {
                batch.delete(layout.imap, layout::orphan_key(ino));
            }
        } else if self.writes_through() {
            let node = layout::encode_node(
                attr,
                state.xattrs.as_deref(),
                &self.core.pages.content(ino, state)?,
            );
            batch.put(layout.imap, layout::orphan_key(ino), node);
        } else if !state.orphaned
            && (state.stored || !state.buffer.pages.is_empty() || state.has_external_xattrs())
        {
            batch.put(layout.imap, layout::orphan_key(ino), b"".as_slice());
        }
        Ok(())
    }

    fn stage_pages(&self, ino: Ino, state: &mut InodeState, batch: &mut Batch) -> Result<()> {
        let (layout, pages) = (&self.core.layout, &mut state.buffer.pages);
        if pages.is_empty() {
            return Ok(());
        }
        let (xattrs, default) = (state.xattrs.as_deref(), self.core.options.compress);
        compress::announce(&self.core.db, layout, ino, xattrs, default)?;
        let mut keys = PageKeys::with_capacity(pages.len());
        let mut patched = 0;
        for (&block, dirty) in pages.iter_mut() {
            patched += u64::from(!dirty.page.is_whole());
            dirty.page.stage(batch, layout.dmap, keys.key(ino, block));
        }
        self.core.counters.pages_written.fetch_add(pages.len() as u64, Ordering::Relaxed);
        self.core.counters.pages_patched.fetch_add(patched, Ordering::Relaxed);
        Ok(())
    }

    /// Updates the state of an inode after the batch of `stage` was committed.
    pub(crate) fn mark_committed(&self, state: &mut InodeState, attr: Attributes) {
        let buffer = std::mem::take(&mut state.buffer);
        if !buffer.pages.is_empty() {
            state.stored = true;
        } else if buffer.cut == 0 {
            state.stored = false;
        }
        // A file without a name may get one later; the note of its promise is written then.
        state.buffer.promise_changed = buffer.promise_changed && attr.nlink == 0;
        state.orphaned = attr.nlink == 0
            && (state.orphaned
                || state.stored
                || state.has_external_xattrs()
                || self.writes_through());
        state.attr = attr;
        if attr.nlink > 0 {
            state.inline = None;
        }
        state.dirty = false;
        self.core.space.charge(state, 0);
    }

    /// Drops all dirty data of an inode that was removed.
    pub(crate) fn discard(&self, ino: Ino, state: &mut InodeState) {
        self.core.promises.forget(ino);
        state.gone = true;
        state.dirty = false;
        state.buffer = Buffer::default();
        state.inline = None;
        self.core.space.charge(state, 0);
    }
}

impl Accepting for Fs {
    fn commit_accepted(&self, transaction: &Transaction, ino: Ino) -> Result<()> {
        let _call = self.enter()?;
        let Some(inode) = self.core.inode_cache.get(ino) else { return Ok(()) };
        let mut state = inode.state.write();
        if !state.dirty || state.attr.nlink == 0 {
            return Ok(());
        }
        transaction
            .past_its_locks(|| kvdb::without_lock_waits(|| self.commit_dirty(&inode, &mut state)))
    }
}

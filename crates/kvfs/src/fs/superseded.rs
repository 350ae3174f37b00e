//! The state of a view before a commit or a rollback, kept until every cache has been notified.
//!
//! A commit changes files that programs have open, and the kernel may have cached pages of them.
//! The kernel is told to drop these pages, but that takes time, and dirty pages are first written
//! back as whole pages, of which a program may have changed only four bytes. If such a page were
//! written unchanged, it would undo the commit in all its other bytes.
//!
//! So the state before a change of the view is kept until all caches have been notified. A page
//! that is written out of a cache in this time is compared with the page in that state, and only
//! bytes that differ are written. The cache may have read the page before or after the change:
//! bytes that no program has written are either the old bytes, which are left out, or the current
//! bytes, which change nothing.
//!
//! Bytes that calls have written since the change are not compared: if a program has truncated a
//! file and written it again, all its bytes are new, including bytes that equal the old bytes.
//!
//! A program that appends in this time writes at the end that its kernel knows, where the file may
//! now contain bytes of the commit. Such a write is moved to the current end.
//!
//! This method works for only one change at a time: with two changes, a page could be older than
//! the state with which it is compared. So changes take turns: the next change of a view begins
//! when the watchers have been notified of the previous one.

use std::collections::HashSet;
use std::sync::Arc;

use env::sync::{Mutex, MutexGuard, RwLock};
use kvdb::Scope;

use crate::attr::Ino;
use crate::error::Result;
use crate::fs::rewritten::Rewritten;
use crate::fs::{Fs, FsOptions};
use crate::inode::inode_allocator::InodeAllocator;

/// The state of a view before a change.
pub(crate) struct SupersededState {
    pub fs: Fs,
    /// The inodes that have changed, or `None` if any may have changed.
    changes: Option<HashSet<Ino>>,
    /// The bytes that calls have written since the change.
    pub rewritten: Rewritten,
}

#[derive(Default)]
pub(crate) struct Superseded {
    /// The lock that serializes changes. It is held from before a change until all watchers have
    /// been notified of the change.
    turn: Mutex<()>,
    before: RwLock<Option<Arc<SupersededState>>>,
}

/// The turn of one change of the view. The turn ends when this value is dropped, after the watchers
/// have been notified of the change.
pub(crate) struct ChangeTurn<'a> {
    superseded: &'a Superseded,
    _turn: MutexGuard<'a, ()>,
}

impl Superseded {
    /// Waits until the previous change has ended. The caller must not hold a lock that a call of
    /// the view takes.
    pub fn turn(&self) -> ChangeTurn<'_> {
        ChangeTurn { superseded: self, _turn: self.turn.lock() }
    }

    /// Returns the state before the change that is in progress, if it has changed this inode.
    pub fn state_before(&self, ino: Ino) -> Option<Arc<SupersededState>> {
        let before = self.before.read();
        before
            .as_ref()
            .filter(|b| b.changes.as_ref().is_none_or(|changes| changes.contains(&ino)))
            .cloned()
    }

    /// Records that a call has written the bytes from `from` to `to` of a file. The call holds the
    /// lock of the file.
    pub fn rewritten(&self, ino: Ino, from: u64, to: u64) {
        if let Some(before) = self.state_before(ino) {
            before.rewritten.add(ino, from, to);
        }
    }
}

impl ChangeTurn<'_> {
    /// Publishes the state before a change that has been made. This is called while the view is
    /// frozen, before any call can see the change.
    pub fn publish(&self, before: SupersededState) {
        *self.superseded.before.write() = Some(Arc::new(before));
    }
}

impl Drop for ChangeTurn<'_> {
    fn drop(&mut self) {
        *self.superseded.before.write() = None;
    }
}

impl Fs {
    /// Returns the current state, before a change to the inodes `changes` (`None`: any inodes). The
    /// view is frozen, and dirty data is committed.
    pub(crate) fn state_before_change(
        &self,
        changes: Option<HashSet<Ino>>,
    ) -> Result<SupersededState> {
        let core = &self.core;
        let options = FsOptions { read_only: true, inode_memory: 0, ..core.options.clone() };
        let scope = Scope::Frozen(core.scope.view()?);
        let inode_allocator = InodeAllocator::of_frozen();
        let fs = Fs::without_parent(
            core.db.clone(),
            scope,
            core.env.clone(),
            core.layout,
            core.listings.hash_key,
            inode_allocator,
            options,
        );
        Ok(SupersededState { fs, changes, rewritten: Rewritten::default() })
    }
}

//! The state of a view before a commit or a rollback, kept until every cache has been told.
//!
//! A commit changes files that programs have open, and the kernel may hold pages of them that it
//! read before. It is told to drop these, but that takes a while, and what it holds dirty it writes
//! back first: whole pages, of which a program may have changed four bytes. Written as they come,
//! such a page would undo the commit in all its other bytes.
//!
//! So from the moment at which the view changes until all caches have been told, the state before
//! it is kept. A page that comes out of a cache in this time is compared with the page as it was,
//! and only bytes that differ are written. Whether the cache has read the page before the change or
//! after it does not matter then: bytes that no program has touched are those of before, which are
//! left out, or those of now, which change nothing.
//!
//! What calls have written since then is left out of the comparison: of a file that a program has
//! cut to nothing and written anew, no byte is one of before, and one that is equal to it counts.
//!
//! A program that appends in the same time does so behind the end that it knows, where the bytes of
//! the commit may be now. It is taken to the end that is.
//!
//! That holds for one change at a time. With two, a page could be older than the state it is
//! compared with. So they take turns: the next change of a view begins when the watchers have been
//! told of the previous one.

use std::collections::HashSet;
use std::sync::Arc;

use env::sync::{Mutex, MutexGuard, RwLock};
use kvdb::Scope;

use crate::attr::Ino;
use crate::error::Result;
use crate::fs::rewritten::Rewritten;
use crate::fs::{Fs, FsOptions};
use crate::inode_allocator::InodeAllocator;

/// The state before a change.
pub(crate) struct SupersededState {
    pub fs: Fs,
    /// The inodes that have changed; `None`: any may have.
    changes: Option<HashSet<Ino>>,
    /// The bytes that calls have written since.
    pub rewritten: Rewritten,
}

#[derive(Default)]
pub(crate) struct Superseded {
    /// Held from before a change until all watchers have been told of it.
    turn: Mutex<()>,
    before: RwLock<Option<Arc<SupersededState>>>,
}

/// A change of the view that watchers are being told of, until this is dropped.
pub(crate) struct ChangeTurn<'a> {
    superseded: &'a Superseded,
    _turn: MutexGuard<'a, ()>,
}

impl Superseded {
    /// Waits until the previous change has ended. Call without a lock that a call of the view
    /// takes.
    pub fn turn(&self) -> ChangeTurn<'_> {
        ChangeTurn { superseded: self, _turn: self.turn.lock() }
    }

    /// The state before the change that is under way, if it has changed this inode.
    pub fn state_before(&self, ino: Ino) -> Option<Arc<SupersededState>> {
        let before = self.before.read();
        before
            .as_ref()
            .filter(|b| b.changes.as_ref().is_none_or(|changes| changes.contains(&ino)))
            .cloned()
    }

    /// A call has written the bytes from `from` to `to` of a file, which is locked.
    pub fn rewritten(&self, ino: Ino, from: u64, to: u64) {
        if let Some(before) = self.state_before(ino) {
            before.rewritten.add(ino, from, to);
        }
    }
}

impl ChangeTurn<'_> {
    /// Publishes the state before the change, which has been made. Call while the view is frozen,
    /// before any call can see the change.
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
    /// The state as it is now, for a change that is about to be made of these inodes (`None`: of
    /// any). The view is frozen, and what was dirty is committed.
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
            core.hash_key,
            inode_allocator,
            options,
        );
        Ok(SupersededState { fs, changes, rewritten: Rewritten::default() })
    }
}

//! What a view was before it became another one all at once.
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
//! A program that appends in the same time does so behind the end that it knows, where the bytes of
//! the commit may be now. It is taken to the end that is.
//!
//! That holds for one change at a time. With two a page could be older than the state it is
//! compared with. So they take turns: the next change of a view begins when those that watch have
//! been told of the one before.

use std::collections::HashSet;
use std::sync::Arc;

use env::sync::{Mutex, MutexGuard, RwLock};
use kvdb::Scope;

use super::{Fs, FsOptions};
use crate::attr::Ino;
use crate::error::Result;
use crate::inode_allocator::InodeAllocator;

/// The state before a change.
pub(crate) struct Before {
    pub fs: Fs,
    /// The inodes that have changed; `None`: any may have.
    touched: Option<HashSet<Ino>>,
}

#[derive(Default)]
pub(crate) struct Past {
    /// Held from before a change until all watchers have been told of it.
    turn: Mutex<()>,
    before: RwLock<Option<Arc<Before>>>,
}

/// A change of the view that watchers are being told of, until this is dropped.
pub(crate) struct Turn<'a> {
    past: &'a Past,
    _turn: MutexGuard<'a, ()>,
}

impl Past {
    /// Waits for the end of the change before. Call without a lock that a call of the view takes.
    pub fn turn(&self) -> Turn<'_> {
        Turn { past: self, _turn: self.turn.lock() }
    }

    /// The state before the change that is under way, if it has changed this inode.
    pub fn of(&self, ino: Ino) -> Option<Arc<Before>> {
        let before = self.before.read();
        before
            .as_ref()
            .filter(|b| b.touched.as_ref().is_none_or(|touched| touched.contains(&ino)))
            .cloned()
    }
}

impl Turn<'_> {
    /// The change has been made. Call before anybody can see it: while the view is frozen.
    pub fn is_made(&self, before: Before) {
        *self.past.before.write() = Some(Arc::new(before));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.past.before.write() = None;
    }
}

impl Fs {
    /// The state as it is now, for a change that is about to be made of these inodes (`None`: of
    /// any). The view is frozen, and what was dirty is committed.
    pub(crate) fn before(&self, touched: Option<HashSet<Ino>>) -> Result<Before> {
        let core = &self.core;
        let options = FsOptions { read_only: true, inode_memory: 0, ..core.options.clone() };
        let scope = Scope::Frozen(core.scope.view()?);
        let numbers = InodeAllocator::from(u64::MAX >> 16);
        let fs = Fs::of(
            core.db.clone(),
            scope,
            core.env.clone(),
            core.layout,
            core.hash_key,
            numbers,
            options,
        );
        Ok(Before { fs, touched })
    }
}

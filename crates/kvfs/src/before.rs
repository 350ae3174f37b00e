//! What a view was before it became another one all at once.
//!
//! A commit changes files that programs have open, and the kernel may hold pages of them that it
//! read before. It is told to drop these, but that takes a while, and what it holds dirty it writes
//! back first: whole pages, of which a program may have changed four bytes. Written as they come,
//! such a page would undo the commit in all its other bytes.
//!
//! So from the moment at which the view changes until everybody has been told, the state before it
//! is kept. A page that comes out of a cache in this time is compared with the page as it was, and
//! only bytes that differ are written. Whether the cache has read the page before the change or
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

use crate::attr::{Ino, WriteHints};
use crate::error::{Error, Result};
use crate::fs::{Fs, FsOptions};
use crate::numbers::Numbers;

/// The state before a change.
pub(crate) struct Before {
    fs: Fs,
    /// The inodes that have changed; `None`: any may have.
    touched: Option<HashSet<Ino>>,
}

#[derive(Default)]
pub(crate) struct Past {
    /// Held from before a change until everybody has been told of it.
    turn: Mutex<()>,
    before: RwLock<Option<Arc<Before>>>,
}

/// A change of the view that not everybody knows of; when this is dropped, all do.
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
    fn of(&self, ino: Ino) -> Option<Arc<Before>> {
        let before = self.before.read();
        before
            .as_ref()
            .filter(|b| b.touched.as_ref().is_none_or(|touched| touched.contains(&ino)))
            .cloned()
    }
}

impl Turn<'_> {
    /// The change has been made. Call before anybody can see it: with the gate closed.
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
    /// any). The gate is closed, and what was dirty is committed.
    pub(crate) fn before(&self, touched: Option<HashSet<Ino>>) -> Result<Before> {
        let core = &self.core;
        let options = FsOptions { read_only: true, inode_memory: 0, ..core.options.clone() };
        let scope = Scope::Frozen(core.scope.view()?);
        let numbers = Numbers::from(u64::MAX >> 16);
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

    /// Whether the change that is being told has changed the size of a file.
    pub fn is_resized(&self, ino: Ino) -> bool {
        let Some(before) = self.core.past.of(ino) else { return false };
        let size = |fs: &Fs| fs.getattr(ino).ok().map(|attr| attr.size);
        size(&before.fs) != size(self)
    }

    /// Writes to the end of a file, wherever whoever writes believes that to be. (Inside the gate.)
    pub(crate) fn append(&self, ino: Ino, data: &[u8], hints: WriteHints) -> Result<bool> {
        let end = self.attr_of(ino)?.size;
        self.write_inside(ino, end, data, hints)
    }

    /// Takes what a cache had of a file since before. (Inside the gate.)
    pub(crate) fn take_cached(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        hints: WriteHints,
    ) -> Result<bool> {
        let Some(before) = self.core.past.of(ino) else {
            return self.write_inside(ino, offset, data, hints);
        };
        let old = match before.fs.read(
            ino,
            offset,
            u32::try_from(data.len()).map_err(|_| Error::TooLarge)?,
        ) {
            // It was not there, so there was nothing to read of it.
            Err(Error::Stale(_)) => return self.write_inside(ino, offset, data, hints),
            old => old?,
        };
        let mut dropped = false;
        for (from, to) in differing(&old, data) {
            dropped |= self.write_inside(ino, offset + from as u64, &data[from..to], hints)?;
        }
        if old.len() < data.len() {
            // A program has written behind the old end. What it wrote there, or skipped, may be
            // zeros.
            self.extend_inside(ino, offset + data.len() as u64)?;
        }
        Ok(dropped)
    }
}

/// The ranges of `new` that differ from `old`, which goes on with zeros.
fn differing(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (at, byte) in new.iter().enumerate() {
        if *byte == old.get(at).copied().unwrap_or(0) {
            continue;
        }
        match ranges.last_mut() {
            Some((_, to)) if *to == at => *to += 1,
            _ => ranges.push((at, at + 1)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_taken() {
        assert_eq!(differing(b"abcdef", b"abcdef"), []);
        assert_eq!(differing(b"abcdef", b"Xbcdef"), [(0, 1)]);
        assert_eq!(differing(b"abcdef", b"abXXeX"), [(2, 4), (5, 6)]);
        assert_eq!(differing(b"ab", b"ab\0\0c"), [(4, 5)], "behind the old end there were zeros");
        assert_eq!(differing(b"abc", b"ab"), [], "what is shorter says nothing of the rest");
    }
}

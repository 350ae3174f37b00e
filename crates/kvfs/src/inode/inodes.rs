//! Manages the inodes of one view: loads inodes that are not in memory, and locks inodes for
//! changes.
//!
//! Only this module decides how an inode is read, because that depends on the view: a serializable
//! transaction locks a file before it reads it, and reads a directory without a lock (`locks`).
//! `inode_cache` has the inodes that are in memory.

use std::sync::Arc;

use env::sync::RwLockWriteGuard;
use kvdb::{DictionaryId, Scope, View};

use crate::attr::{FileKind, Ino};
use crate::error::{Error, Result};
use crate::inode::inode_cache::InodeCache;
use crate::inode::locks::Locks;
use crate::inode::{Identity, Inode, InodeState};
use crate::layout::{self, Attributes, Xattrs};

/// An inode to which the kernel refers, and its identity.
pub(crate) type Known = (Ino, Identity);

pub(crate) struct Inodes {
    scope: Scope,
    imap: DictionaryId,
    locks: Arc<Locks>,
    cache: Arc<InodeCache>,
}

impl Inodes {
    /// Returns the inodes of `imap` in `scope`. `cache` keeps the inodes in memory.
    pub fn new(
        scope: Scope,
        imap: DictionaryId,
        locks: Arc<Locks>,
        cache: Arc<InodeCache>,
    ) -> Inodes {
        Inodes { scope, imap, locks, cache }
    }

    /// Returns an inode from memory, loading it if necessary.
    pub fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.cache.get_or_load(ino, || self.load(ino))
    }

    fn load(&self, ino: Ino) -> Result<InodeState> {
        if ino == 0 {
            return Err(Error::Stale(ino));
        }
        // Reading a directory does not lock it (see `locks`), so the kind of the inode is read
        // without a lock.
        if self.locks.transaction().is_some()
            && let Some((attr, xattrs)) = self.node_in(&self.scope.view()?, ino)?
            && attr.kind == FileKind::Dir
        {
            return Ok(InodeState { read_unlocked: true, ..InodeState::new(attr, xattrs) });
        }
        self.locks.in_store(ino, false)?;
        let value = self.scope.get(self.imap, &layout::node_key(ino))?.ok_or(Error::Stale(ino))?;
        let (attr, xattrs, _) = layout::decode_node(ino, &value)?;
        Ok(InodeState::new(attr, xattrs))
    }

    /// Returns the node that a state has of an inode, without locking it.
    pub fn node_in(&self, view: &View, ino: Ino) -> Result<Option<(Attributes, Option<Xattrs>)>> {
        let Some(value) = view.get(self.imap, &layout::node_key(ino))? else { return Ok(None) };
        let (attr, xattrs, _) = layout::decode_node(ino, &value)?;
        Ok(Some((attr, xattrs)))
    }

    /// Locks an inode for a change. The inode must still exist.
    pub fn lock<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, InodeState>> {
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::Stale(inode.ino));
        }
        self.locks.for_change(inode.ino, &mut state)?;
        Ok(state)
    }

    /// Locks a directory for adding or removing entries.
    pub fn lock_dir<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, InodeState>> {
        let mut state = inode.state.write();
        if !state.gone {
            self.locks.for_change(inode.ino, &mut state)?;
        }
        match () {
            () if state.gone => Err(Error::NotFound),
            () if !state.is_dir() => Err(Error::NotDirectory),
            () if state.attr.nlink == 0 => Err(Error::NotFound),
            () => Ok(state),
        }
    }

    /// Returns the current parent of a directory.
    pub fn parent_of(&self, dir: Ino) -> Result<Ino> {
        let inode = self.get(dir)?;
        let state = inode.state.read();
        if state.read_unlocked
            && let Some((attr, _)) = self.node_in(&self.scope.view()?, dir)?
        {
            return Ok(attr.parent);
        }
        Ok(state.attr.parent)
    }

    /// Returns the identities of those inodes that exist or are stranded.
    pub fn identities(&self, inos: impl IntoIterator<Item = Ino>) -> Result<Vec<Known>> {
        let view = self.scope.view()?;
        let mut known = Vec::new();
        for ino in inos {
            let identity = match (self.cache.stranded(ino), self.cache.get(ino)) {
                (Some(identity), _) => identity,
                (None, Some(inode)) => Identity::of(&inode.state.read().attr),
                (None, None) => match self.node_in(&view, ino)? {
                    Some((attr, _)) => Identity::of(&attr),
                    None => continue,
                },
            };
            known.push((ino, identity));
        }
        Ok(known)
    }
}

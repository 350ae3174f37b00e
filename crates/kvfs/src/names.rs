//! The names of one view: looks up entries, stages changes of them, and knows which directory is
//! below which.
//!
//! Every call that adds or removes a name stages the change here. So the listings that are in
//! progress are notified before the commit, which is required (`listing_table`). If the commit
//! fails, the notification does no harm.
//!
//! The commit of a transaction and the replacement of a whole state change names, too, but not by a
//! batch of a call: `apply_commit` and `replaced_state` notify the listings themselves.

pub(crate) mod listing_order;
pub(crate) mod listing_table;

use std::sync::Arc;

use env::sync::{Mutex, MutexGuard};
use kvdb::{Batch, DictionaryId, Scope};

use self::listing_table::ListingTable;
use crate::attr::{FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::inode::inodes::Inodes;
use crate::layout;

/// A directory entry, by its directory and its name.
pub(crate) type Place<'a> = (Ino, &'a [u8]);

/// The inode of a name.
pub(crate) struct NamedInode {
    pub ino: Ino,
    pub kind: FileKind,
    pub inode: Arc<Inode>,
}

impl NamedInode {
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }
}

pub(crate) struct Names {
    scope: Scope,
    nmap: DictionaryId,
    inodes: Arc<Inodes>,
    listings: Arc<ListingTable>,
    /// The tree lock, which every operation that locks more than one directory holds; see `inode`.
    tree: Mutex<()>,
}

impl Names {
    /// Returns the names that `scope` has in `nmap`, of these inodes.
    pub fn new(
        scope: Scope,
        nmap: DictionaryId,
        inodes: Arc<Inodes>,
        listings: Arc<ListingTable>,
    ) -> Names {
        Names { scope, nmap, inodes, listings, tree: Mutex::new(()) }
    }

    /// Takes the lock that every operation holds while it locks more than one directory. It keeps
    /// the parents of all directories stable.
    pub fn lock_tree(&self) -> MutexGuard<'_, ()> {
        self.tree.lock()
    }

    /// Returns the inode and kind of an entry.
    pub fn find(&self, (dir, name): Place<'_>) -> Result<Option<(Ino, FileKind)>> {
        match self.scope.get(self.nmap, &layout::name_key(dir, name))? {
            Some(value) => layout::decode_name(dir, &value).map(Some),
            None => Ok(None),
        }
    }

    /// Fails with EEXIST if an entry of this name exists, even if it is unreadable.
    pub fn check_free(&self, (dir, name): Place<'_>) -> Result<()> {
        match self.scope.get(self.nmap, &layout::name_key(dir, name))? {
            Some(_) => Err(Error::Exists),
            None => Ok(()),
        }
    }

    /// Returns the inode of an entry, or `None` if there is no entry. Call with the directory's
    /// lock. `locked`: another directory that the caller has locked.
    pub fn named(&self, (dir, name): Place<'_>, locked: Ino) -> Result<Option<NamedInode>> {
        let Some((ino, kind)) = self.find((dir, name))? else { return Ok(None) };
        let inode = self.inode_of((dir, name), (ino, kind), locked)?;
        Ok(Some(NamedInode { ino, kind, inode }))
    }

    /// Returns the inode of an entry, which must exist. Call with the directory's lock. Two kinds
    /// of entries in a damaged store are refused: one that names its own directory, whose lock the
    /// caller would wait for in vain, and one with a wrong kind, since directories precede other
    /// inodes in the lock order. `locked`: another directory that the caller has locked.
    pub fn inode_of(
        &self,
        (dir, name): Place<'_>,
        (ino, kind): (Ino, FileKind),
        locked: Ino,
    ) -> Result<Arc<Inode>> {
        let corrupt = |what: &str| Error::Corrupt {
            ino: dir,
            what: format!("the entry `{}` names inode {ino}, which {what}", name.escape_ascii()),
        };
        if ino == dir {
            return Err(corrupt("is the directory that it is in"));
        }
        let inode = self.inodes.get(ino).map_err(|e| match e {
            Error::Stale(_) => corrupt("does not exist"),
            e => e,
        })?;
        if ino == locked {
            return if kind == FileKind::Dir {
                Ok(inode)
            } else {
                Err(corrupt("is of another kind"))
            };
        }
        let state = inode.state.read();
        if !state.gone && (state.attr.kind == FileKind::Dir) != (kind == FileKind::Dir) {
            return Err(corrupt("is of another kind"));
        }
        drop(state);
        Ok(inode)
    }

    /// Adds to `batch` a name that the directory does not have.
    pub fn stage_new(
        &self,
        (dir, name): Place<'_>,
        (ino, kind): (Ino, FileKind),
        batch: &mut Batch,
    ) {
        self.stage_replacement((dir, name), (ino, kind), batch);
        self.listings.remember_added(dir, name);
    }

    /// Adds to `batch` that a name becomes the name of another inode. Listings return it as before.
    pub fn stage_replacement(
        &self,
        (dir, name): Place<'_>,
        (ino, kind): (Ino, FileKind),
        batch: &mut Batch,
    ) {
        batch.put(self.nmap, layout::name_key(dir, name), layout::encode_name(ino, kind));
    }

    /// Adds to `batch` the removal of a name.
    pub fn stage_removal(&self, dir: &Inode, name: &[u8], batch: &mut Batch) {
        batch.delete(self.nmap, layout::name_key(dir.ino, name));
        self.listings.remember_removed(dir, name);
    }

    /// Returns whether `dir` is `above` or one of its descendants. Call with the lock of the tree.
    /// `parent_of_locked` knows the parents of the directories that the caller has locked.
    pub fn is_below(
        &self,
        dir: Ino,
        above: Ino,
        parent_of_locked: &dyn Fn(Ino) -> Option<Ino>,
    ) -> Result<bool> {
        let mut at = dir;
        // In a damaged store the way up may contain a cycle: it then returns to a directory visited
        // after some power of two of steps (Brent).
        let (mut mark, mut next_mark) = (0, 1);
        for step in 0u64.. {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            if at == mark {
                break;
            }
            if step == next_mark {
                (mark, next_mark) = (at, next_mark * 2);
            }
            at = match parent_of_locked(at) {
                Some(parent) => parent,
                None => self.inodes.parent_of(at)?,
            };
        }
        Err(Error::Corrupt { ino: dir, what: "its parents form a circle".into() })
    }
}

//! The file system itself: its state, and the first steps of every call. `build` assembles its
//! parts, `inode_numbers` and `counter` allocate inode numbers, and `opening` opens the file
//! system.

mod build;
pub(crate) mod counter;
mod freeze_lock;
mod inode_numbers;
mod options;
pub(crate) mod request;
mod rewritten;
mod statfs;
mod statistics;
pub(crate) mod superseded;
pub(crate) mod ticker;

use env::sync::atomic::Ordering;
use std::sync::Arc;

use env::Env;
use env::sync::{Mutex, RwLockWriteGuard};
use kvdb::{Batch, Durability, Reference, Scope};

use self::freeze_lock::{CallGuard, FreezeLock};
pub use self::options::{Atime, FsOptions, ZONE_SIZE};
use self::statistics::Counters;
pub use self::statistics::Statistics;
use self::superseded::Superseded;
use self::ticker::Ticker;
use crate::attr::{Ino, Timestamp};
use crate::error::{Error, Result};
use crate::inode::dirty_queue::DirtyQueue;
use crate::inode::inode_allocator::InodeAllocator;
use crate::inode::inode_cache::InodeCache;
use crate::inode::inodes::Inodes;
use crate::inode::locks::Locks;
use crate::inode::{Inode, InodeState};
use crate::layout::Layout;
use crate::names::Names;
use crate::names::listing_table::ListingTable;
use crate::pages::Pages;
use crate::pages::lost::Lost;
use crate::pages::reading_ahead::ReadingAhead;
use crate::space::file_limits::FileLimits;
use crate::space::free_space::FreeSpace;
use crate::space::promises::Promises;
use crate::space::space_account::SpaceAccount;
use crate::space::store::Store;

pub(crate) struct Core {
    pub db: Store,
    /// The state that this view reads and writes. All changes of the view to the store are made
    /// through this scope.
    pub scope: Scope,
    /// The view in which the transaction of this view began and to which it commits, or `None` if
    /// this is not the view of a transaction.
    pub parent: Option<Parent>,
    pub env: Arc<dyn Env>,
    pub layout: Layout,
    pub options: FsOptions,
    pub inode_cache: Arc<InodeCache>,
    pub inodes: Arc<Inodes>,
    pub names: Names,
    /// The content of files. Its methods are called with the lock of the inode held.
    pub pages: Pages,
    pub freeze_lock: FreezeLock,
    /// The locks that calls take in the store.
    pub locks: Arc<Locks>,
    pub superseded: Superseded,
    pub inode_allocator: InodeAllocator,
    pub dirty: DirtyQueue,
    pub space: Arc<SpaceAccount>,
    pub free_space: FreeSpace,
    pub files: Arc<FileLimits>,
    pub promises: Promises,
    pub lost: Lost,
    pub listings: Arc<ListingTable>,
    pub reading_ahead: ReadingAhead,
    pub counters: Counters,
    /// Orphans whose removal has failed; see `orphans`.
    pub left_orphans: Mutex<Vec<Ino>>,
    pub ticker: Arc<Ticker>,
}

/// A view in which transactions begin: the mainline, a clone, or another transaction.
#[derive(Clone)]
pub(crate) struct Parent {
    pub fs: Fs,
    /// The number of the view ([`crate::Views::number`]).
    pub number: u16,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.ticker.stop();
    }
}

/// An open file system. Clones of this value refer to the same file system. All calls may be made
/// from any thread.
///
/// If the last clone is dropped without [`Fs::shutdown`], uncommitted data is lost, as after a
/// kill.
#[derive(Clone)]
pub struct Fs {
    pub(crate) core: Arc<Core>,
}

impl Fs {
    /// Returns the user who began the transaction of this view. Works after the view has ended,
    /// too.
    pub fn user(&self) -> Option<u32> {
        match &self.core.scope {
            Scope::Transaction(transaction) => transaction.user(),
            Scope::Mainline(_) | Scope::Frozen(_) | Scope::Served(_) => None,
        }
    }

    /// Returns the transactions that this view is within, the outermost first, followed by the
    /// transaction of this view. The transactions may have ended. The list is empty for a view that
    /// is not a transaction.
    pub fn transactions(&self) -> Vec<kvdb::TransactionId> {
        let mut all = Vec::new();
        let mut fs = Some(self);
        while let Some(Core { scope: Scope::Transaction(transaction), parent, .. }) =
            fs.map(|fs| &*fs.core)
        {
            all.push(transaction.id());
            fs = parent.as_ref().map(|parent| &parent.fs);
        }
        all.reverse();
        all
    }

    /// Returns the number of the view in whose place this view is seen: the view in which the
    /// transaction began, or the view in whose place that view is seen. Returns `None` if this view
    /// is not seen in place of another view.
    pub fn in_place_of(&self) -> Option<u16> {
        match &self.core.scope {
            Scope::Transaction(transaction) if transaction.is_in_place() => {
                let place = |parent: &Parent| parent.fs.in_place_of().unwrap_or(parent.number);
                self.core.parent.as_ref().map(place)
            }
            _ => None,
        }
    }

    /// Takes the freeze lock for a call. Fails with ESTALE if the view has ended.
    pub(crate) fn enter(&self) -> Result<CallGuard<'_>> {
        self.core.freeze_lock.enter()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.core.env.wall().into()
    }

    /// Checks that changes are possible; every call that changes something begins with it. A store
    /// that has failed accepts no more changes, because data that waits in memory could never be
    /// committed.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.core.options.read_only { Err(Error::ReadOnly) } else { self.core.db.takes_writes() }
    }

    /// Returns an inode from memory, loading it if necessary.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.core.inodes.get(ino)
    }

    /// Locks an inode for a change. The inode must still exist.
    pub(crate) fn lock<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, InodeState>> {
        self.core.inodes.lock(inode)
    }

    /// Locks a directory for adding or removing entries.
    pub(crate) fn lock_dir<'a>(
        &self,
        inode: &'a Inode,
    ) -> Result<RwLockWriteGuard<'a, InodeState>> {
        self.core.inodes.lock_dir(inode)
    }

    /// Applies a batch as one unit: on the mainline as a commit of the store, in a transaction as a
    /// change of its write set. The caller holds the freeze lock. On the mainline, the call fails
    /// with `Locked` instead of waiting for a lock (see `locks`).
    pub(crate) fn apply(&self, batch: Batch) -> Result<()> {
        self.core.counters.commits.fetch_add(1, Ordering::Relaxed);
        let commit = || self.core.scope.apply(batch, Durability::Buffered);
        match &self.core.scope {
            Scope::Mainline(_) => Ok(kvdb::without_lock_waits(commit)?),
            Scope::Transaction(_) | Scope::Frozen(_) | Scope::Served(_) => Ok(commit()?),
        }
    }

    /// Applies a batch like `apply`, and then puts values by reference. The mainline does not use
    /// this method.
    pub(crate) fn apply_with(&self, batch: Batch, references: Vec<Reference>) -> Result<()> {
        self.core.counters.commits.fetch_add(1, Ordering::Relaxed);
        Ok(self.core.scope.apply_with(batch, references, Durability::Buffered)?)
    }
}

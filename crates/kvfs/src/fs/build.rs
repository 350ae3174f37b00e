//! Puts the parts of a view together.

use std::sync::Arc;

use env::Env;
use env::sync::Mutex;
use kvdb::Scope;

use super::statistics::Counters;
use super::superseded::Superseded;
use super::{Core, Fs, FsOptions, Parent};
use crate::fs::freeze_lock::FreezeLock;
use crate::inode::dirty_queue::DirtyQueue;
use crate::inode::inode_allocator::InodeAllocator;
use crate::inode::inode_cache::InodeCache;
use crate::inode::inodes::Inodes;
use crate::inode::locks::{Accepting, Locks};
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

impl Fs {
    /// Returns the view of a transaction that began in `parent`. This takes microseconds,
    /// independently of the size of the view.
    pub(crate) fn of_transaction(parent: Parent, scope: Scope, options: FsOptions) -> Fs {
        let core = parent.fs.core.clone();
        let (db, env) = (core.db.clone(), core.env.clone());
        let allocator = core.inode_allocator.for_transaction();
        Fs::build(
            Some(parent),
            db,
            scope,
            env,
            core.layout,
            core.listings.hash_key,
            allocator,
            options,
        )
    }

    pub(crate) fn without_parent(
        db: Store,
        scope: Scope,
        env: Arc<dyn Env>,
        layout: Layout,
        hash_key: [u8; 16],
        inode_allocator: InodeAllocator,
        options: FsOptions,
    ) -> Fs {
        Fs::build(None, db, scope, env, layout, hash_key, inode_allocator, options)
    }

    #[allow(clippy::too_many_arguments)]
    fn build(
        parent: Option<Parent>,
        db: Store,
        scope: Scope,
        env: Arc<dyn Env>,
        layout: Layout,
        hash_key: [u8; 16],
        inode_allocator: InodeAllocator,
        options: FsOptions,
    ) -> Fs {
        let inode_cache = InodeCache::new(options.inode_memory);
        let pages = Pages::new(scope.clone(), layout);
        let reading_ahead = ReadingAhead::new(scope.clone(), layout);
        let space = Arc::new(SpaceAccount::new(db.promised_space()));
        let shared = parent.as_ref().map_or(&space, |parent| &parent.fs.core.space).clone();
        let free_space =
            FreeSpace::new(db.clone(), scope.clone(), layout.imap, space.clone(), shared);
        let around = parent.as_ref().map(|parent| parent.fs.core.files.clone());
        let files = Arc::new(FileLimits::new(scope.clone(), layout.imap, around));
        let promises = Promises::new(db.promised_space(), layout.imap);
        let listings = Arc::new(ListingTable::new(options.inode_memory, hash_key));
        let accepting =
            parent.as_ref().map(|parent| Arc::new(parent.fs.clone()) as Arc<dyn Accepting>);
        let locks = Arc::new(Locks::new(scope.clone(), layout.imap, env.clone(), accepting));
        let inode_cache = Arc::new(inode_cache);
        let inodes = Inodes::new(scope.clone(), layout.imap, locks.clone(), inode_cache.clone());
        let inodes = Arc::new(inodes);
        let names = Names::new(scope.clone(), layout.nmap, inodes.clone(), listings.clone());
        let core = Core {
            db,
            scope,
            parent,
            env,
            layout,
            inode_cache,
            inodes,
            names,
            pages,
            options,
            freeze_lock: FreezeLock::default(),
            locks,
            superseded: Superseded::default(),
            inode_allocator,
            dirty: DirtyQueue::default(),
            space,
            free_space,
            files,
            promises,
            lost: Lost::default(),
            listings,
            reading_ahead,
            counters: Counters::default(),
            left_orphans: Mutex::default(),
            ticker: Arc::default(),
        };
        Fs { core: Arc::new(core) }
    }
}

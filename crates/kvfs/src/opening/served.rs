//! The file system of a view that a server holds: everything but the store is local. A snapshot is
//! read-only; a transaction is changed by its client alone, and so is the main branch while the
//! server lends it.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use kvdb::{Scope, ServedView};

use crate::attr::ROOT;
use crate::error::{Error, Result};
use crate::fs::{Fs, FsOptions, ZONE_SIZE};
use crate::inode::inode_allocator::InodeAllocator;
use crate::layout::{self, Layout, Super};
use crate::space::store::Store;

/// Limit of the bytes that wait in memory in the view of a transaction that a server holds. A batch
/// is at most an eighth larger, plus one write.
const MOST_WAITING: usize = 8 << 20;

impl Fs {
    /// Opens the file system of a snapshot that a server holds ([`kvdb::ServedView`]). It is
    /// read-only, whatever the options. Fails with `NotFound` if the view has no file system.
    ///
    /// Calls that work on whole trees and states (walks, differences, checks) fail on it: they are
    /// made where the store is.
    pub fn served(view: Arc<dyn ServedView>, env: Arc<dyn Env>, options: FsOptions) -> Result<Fs> {
        Fs::of_served(view, env, FsOptions { read_only: true, ..options }, |_, _| {
            InodeAllocator::of_frozen()
        })
    }

    /// Opens the file system of a transaction that a server holds, or of the main branch that it
    /// lends ([`ServedView::is_main`]), for changes. Written data waits in memory as in any view;
    /// it is sent to the server at the flush interval, with a sync, and when too much waits.
    /// [`Fs::end_served`] commits the transaction, or returns the branch.
    pub fn served_transaction(
        view: Arc<dyn ServedView>,
        env: Arc<dyn Env>,
        options: FsOptions,
    ) -> Result<Fs> {
        if !view.writable() {
            return Err(Error::ReadOnly);
        }
        // A batch has to fit into a frame, as far as possible.
        let write_buffer = options.write_buffer.min(MOST_WAITING);
        let options = FsOptions { read_only: false, write_buffer, ..options };
        let fs = Fs::of_served(view, env, options, InodeAllocator::of_served)?;
        fs.core.free_space.refill(0);
        fs.start_ticker();
        Ok(fs)
    }

    fn of_served(
        view: Arc<dyn ServedView>,
        env: Arc<dyn Env>,
        options: FsOptions,
        allocator: impl FnOnce(Arc<dyn ServedView>, u64) -> InodeAllocator,
    ) -> Result<Fs> {
        let layout = Layout::of_names(|name| view.dictionary(name)).ok_or(Error::NotFound)?;
        let scope = Scope::Served(view.clone());
        // Announces all data that the first calls ask for, so that it is fetched together.
        let (record, root) = (layout::SUPER_KEY, layout::node_key(ROOT));
        scope.announce(layout.imap, &[&record, &root]);
        let value = scope.get(layout.imap, &record)?.ok_or(Error::NotFound)?;
        let Super { hash_key, zone_size } = Super::decode(&value)?;
        let zone_size = options.zone_size.or(zone_size).unwrap_or(ZONE_SIZE);
        let fs = Fs::without_parent(
            Store::Served(view.clone()),
            scope,
            env,
            layout,
            hash_key,
            allocator(view, zone_size),
            FsOptions { zone_size: Some(zone_size), ..options },
        );
        let root = fs.inode(ROOT)?;
        if !root.state.read().is_dir() {
            return Err(Error::Corrupt { ino: ROOT, what: "the root is not a directory".into() });
        }
        Ok(fs)
    }

    /// Calls `end` when all written data is with the server and no call is in progress. If `end`
    /// says that the transaction has ended, the view ends, too: later calls fail with ESTALE.
    pub fn end_served<T>(&self, end: impl FnOnce() -> Result<(T, bool)>) -> Result<T> {
        // Commits most dirty data while other calls continue, to keep the freeze short.
        {
            let _call = self.enter()?;
            self.commit_older_than(Duration::MAX)?;
            self.core.scope.sync()?;
        }
        let mut frozen = self.core.freeze_lock.freeze();
        if frozen.ended() {
            return Err(Error::Stale(ROOT));
        }
        self.commit_older_than(Duration::MAX)?;
        let (ended, is_over) = end()?;
        if is_over {
            frozen.end();
            drop(frozen);
            self.core.ticker.stop();
        }
        Ok(ended)
    }

    /// Ends the view and drops its unsent changes: later calls fail with ESTALE.
    pub fn leave_served(&self) {
        self.core.freeze_lock.freeze().end();
        self.core.ticker.stop();
    }
}

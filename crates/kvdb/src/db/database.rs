//! The open store of a [`crate::Kvdb`]. [`Database`] connects the parts of the store, each of which
//! owns its state. Work that involves one part is a method of that part; this module has the work
//! that involves several parts. The order of their locks is documented in `lock_order`.

use env::sync::Mutex;
use std::sync::Arc;

use super::prefetch::Prefetch;
use super::threads::Threads;
use crate::background::activity::Activity;
use crate::background::{Admission, Background, Compactor, Defragmenter, Flusher};
use crate::catalog::Catalog;
use crate::commit::feed::Feed;
use crate::commit::recent::RecentCommits;
use crate::commit::{CommitParts, Committer};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::journal::Writer;
use crate::locks::Locks;
use crate::manifest::Edit;
use crate::options::Shares;
use crate::read::ranks::Ranks;
use crate::scrub::Scrubber;
use crate::snapshots::Snapshotter;
use crate::transactions::{TransactionParts, Transactions};

/// The maximum weight, in bytes, of the runs that a close merges because of deletions. The merge
/// stitches the data that it keeps, and takes about a second at most.
const MERGED_BEFORE_CLOSE: u64 = 256 << 20;

/// The parts of an open store. The parts are visible only in this room, which passes each call of a
/// client to the responsible part. Each part holds pointers to the other parts that it needs.
pub(super) struct Database {
    pub(super) engine: Engine,
    /// The number of the last commit that the store had when it was opened.
    pub(super) recovered: u64,
    pub(super) commits: Arc<Committer>,
    pub(super) feed: Arc<Feed>,
    pub(super) ranks: Arc<Ranks>,
    pub(super) snapshotter: Arc<Snapshotter>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) transactions: Arc<Transactions>,
    pub(super) activity: Arc<Activity>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) compactor: Arc<Compactor>,
    pub(super) defragmenter: Arc<Defragmenter>,
    pub(super) admission: Arc<Admission>,
    pub(super) threads: Threads,
    pub(super) scrubber: Arc<Scrubber>,
    /// The prefetch that [`crate::Kvdb::warm`] has prepared, or `None`.
    pub(super) prefetch: Mutex<Option<Arc<Prefetch>>>,
}

impl Database {
    /// Connects the parts around `engine`, in the order that the module `engine` documents. The
    /// next commit has number `next_seq`, and the journal continues with `writer`.
    pub(super) fn new(engine: Engine, next_seq: u64, writer: Writer) -> Database {
        let shares = Shares::of(&engine.options);
        let locks = Arc::new(Locks::new(shares.locks));
        let ranks = Arc::new(Ranks::new(shares.ranks));
        let (recent, feed) = (Arc::<RecentCommits>::default(), Arc::<Feed>::default());
        let commits = Arc::new(Committer::new(
            &engine,
            CommitParts {
                locks: locks.clone(),
                recent: recent.clone(),
                feed: feed.clone(),
                ranks: ranks.clone(),
            },
            next_seq,
            writer,
        ));
        let background = Background::new(&engine, &commits, recent.clone());
        let Background { activity, flusher, compactor, defragmenter, admission } = background;
        let snapshotter = Arc::new(Snapshotter::new(
            engine.clone(),
            commits.clone(),
            flusher.clone(),
            compactor.clone(),
            admission.clone(),
        ));
        let catalog = Arc::new(Catalog::new(
            engine.clone(),
            commits.clone(),
            admission.clone(),
            snapshotter.clone(),
        ));
        let scrubber = Arc::new(Scrubber::new(engine.clone(), commits.clone()));
        let transactions = Arc::new(Transactions::new(
            engine.clone(),
            TransactionParts {
                commits: commits.clone(),
                recent,
                locks,
                snapshotter: snapshotter.clone(),
                catalog: catalog.clone(),
                admission: admission.clone(),
            },
        ));
        Database {
            threads: Threads::new(engine.env.monotonic()),
            engine,
            recovered: next_seq - 1,
            commits,
            feed,
            ranks,
            snapshotter,
            catalog,
            transactions,
            activity,
            flusher,
            compactor,
            defragmenter,
            admission,
            scrubber,
            prefetch: Mutex::default(),
        }
    }

    /// Ends background work and makes everything durable. Later writes are refused; views stay
    /// readable.
    pub(super) fn close(&self) -> Result<()> {
        let closed = self.close_store();
        self.prefetch.lock().take().iter().for_each(|prefetch| prefetch.stop());
        // Close the remote zones here, since other threads may hold the store for a moment longer.
        self.engine.zones.close_remote();
        closed
    }

    fn close_store(&self) -> Result<()> {
        self.transactions.close();
        self.feed.close();
        self.merge_before_close();
        self.stop_threads();
        if self.engine.options.read_only || self.engine.health.close() {
            return Ok(());
        }
        // An unfinished compaction is abandoned, and the space that it has written is freed.
        drop(self.compactor.merge_alone());
        self.engine.health.check()?;
        let flushed = match self.engine.options.flush_on_close {
            true => self.flusher.flush_all(),
            false => Ok(()),
        };
        // The journal has all commits, whether or not the flush succeeded.
        let end = self.commits.log.end();
        self.commits.sync_to(&*self.admission, end)?;
        match flushed {
            // The next open flushes when there is space.
            Err(Error::NoSpace) => {}
            other => other?,
        }
        let closed = self.commits.log.at_end(|last_used| {
            let mut edits = Vec::new();
            if let Some((number, position)) = last_used {
                edits.push(Edit::SegmentEnds { number, position });
            }
            edits.push(Edit::Streams(self.engine.zones.positions()));
            edits.push(Edit::Closed);
            let mut manifest = self.engine.versions.manifest()?;
            match manifest.commit(edits) {
                Ok(()) => manifest.vouch().map(|()| true),
                // If this edit is missing, the next open has to search for the journal's end.
                Err(Error::NoSpace) => Ok(false),
                Err(e) => Err(e),
            }
        })?;
        if closed && let Err(e) = self.give_all_back() {
            tracing::warn!("space in which nothing lies is not given back: {e}");
        }
        Ok(())
    }

    /// Merges runs with recent deletions before the store is closed, because the space of the
    /// deleted data would otherwise stay in use until the store is opened again. Errors are not
    /// returned, since a lasting problem also fails the next steps of the close.
    fn merge_before_close(&self) {
        let options = &self.engine.options;
        if options.read_only || !options.flush_on_close || self.engine.health.check().is_err() {
            return;
        }
        if self.flusher.flush_all().is_ok()
            && let Err(e) = self.compactor.merge_deletions(MERGED_BEFORE_CLOSE)
        {
            tracing::debug!("what was deleted is not merged before the store is closed: {e}");
        }
    }

    /// Returns the unused space of a closed store to the host.
    fn give_all_back(&self) -> Result<()> {
        self.commits.log.return_reserved_zones();
        let (start, manifest) = {
            let manifest = self.engine.versions.manifest()?;
            (manifest.state().start.position, manifest.unused())
        };
        let rest = self.commits.log.unneeded(start);
        Ok(self.engine.zones.give_all_back(rest.into_iter().chain(manifest))?)
    }
}

//! The engine of a [`crate::Kvdb`]: it wires the parts, each of which owns its state. Work of one
//! part is a method of that part; this module has the work that involves several of them. For the
//! order of their locks see `lock_order`.

use env::sync::Mutex;
use env::sync::atomic::Ordering;
use std::sync::Arc;

use env::Env;
use vt_tree::BlockCache;
use zones::Zones;

use super::prefetch::Prefetch;
use super::threads::Threads;
use crate::background::activity::Activity;
use crate::background::{Admission, Background, BackgroundParts, Compactor, Defragmenter, Flusher};
use crate::catalog::{Catalog, CatalogParts};
use crate::commit::feed::Feed;
use crate::commit::recent::RecentCommits;
use crate::commit::{CommitParts, Committer};
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::Writer;
use crate::locks::Locks;
use crate::manifest::{Edit, Manifest};
use crate::options::{OpenOptions, Shares};
use crate::read::ranks::Ranks;
use crate::read::snapshot_set::Snapshots;
use crate::read::version::Version;
use crate::read::version_set::VersionSet;
use crate::scrub::{ScrubParts, Scrubber};
use crate::signals::Signals;
use crate::snapshots::{Snapshotter, SnapshotterParts};
use crate::transactions::{TransactionParts, Transactions};

/// The parts of an open store. They are visible in this room only: it passes each call of a client
/// to its part, and each part holds those of the others that it needs.
pub(super) struct Database {
    pub(super) env: Arc<dyn Env>,
    pub(super) zones: Arc<Zones>,
    pub(super) cache: Arc<BlockCache>,
    pub(super) options: OpenOptions,
    pub(super) health: Arc<Health>,
    pub(super) counters: Arc<Counters>,
    pub(super) signals: Arc<Signals>,

    pub(super) versions: Arc<VersionSet>,
    /// The last commit that the store had when it was opened.
    pub(super) recovered: u64,
    pub(super) commits: Arc<Committer>,
    pub(super) feed: Arc<Feed>,
    pub(super) ranks: Arc<Ranks>,
    pub(super) snapshots: Arc<Snapshots>,
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
    /// The prefetch that [`crate::Kvdb::prefetch`] has started, if any.
    pub(super) prefetch: Mutex<Option<Arc<Prefetch>>>,
}

/// The parts that recovery has found or made, from which a database is built.
pub(super) struct DatabaseParts {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub cache: Arc<BlockCache>,
    pub options: OpenOptions,
    pub health: Arc<Health>,
    pub version: Version,
    pub next_seq: u64,
    pub writer: Writer,
    pub manifest: Option<Manifest>,
    pub snapshots: Snapshots,
}

impl Database {
    pub(super) fn new(parts: DatabaseParts) -> Database {
        let snapshots = Arc::new(parts.snapshots);
        let versions = Arc::new(VersionSet::new(
            parts.cache.clone(),
            parts.health.clone(),
            parts.version,
            parts.next_seq - 1,
            parts.manifest,
            snapshots.clone(),
        ));
        let counters = Arc::<Counters>::default();
        let locks = Arc::new(Locks::new(Shares::of(&parts.options).locks));
        let signals = Arc::<Signals>::default();
        signals.reclaimable.store(true, Ordering::Relaxed);
        signals.deletions.store(versions.load().memtable_bytes() > 0, Ordering::Relaxed);
        let ranks = Arc::new(Ranks::new(Shares::of(&parts.options).ranks));
        let (recent, feed) = (Arc::<RecentCommits>::default(), Arc::<Feed>::default());
        let commits = CommitParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            options: parts.options.clone(),
            health: parts.health.clone(),
            counters: counters.clone(),
            signals: signals.clone(),
            versions: versions.clone(),
            locks: locks.clone(),
            recent: recent.clone(),
            feed: feed.clone(),
            ranks: ranks.clone(),
        };
        let commits = Arc::new(Committer::new(commits, parts.next_seq, parts.writer));
        let inline = is_inline(&*parts.env, &parts.options);
        let background = Background::new(&BackgroundParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            cache: parts.cache.clone(),
            options: parts.options.clone(),
            inline,
            health: parts.health.clone(),
            counters: counters.clone(),
            signals: signals.clone(),
            versions: versions.clone(),
            snapshots: snapshots.clone(),
            commits: commits.clone(),
            recent: recent.clone(),
        });
        let Background { activity, flusher, compactor, defragmenter, admission } = background;
        let snapshotter = Arc::new(Snapshotter::new(SnapshotterParts {
            inline,
            env: parts.env.clone(),
            health: parts.health.clone(),
            signals: signals.clone(),
            versions: versions.clone(),
            snapshots: snapshots.clone(),
            commits: commits.clone(),
            flusher: flusher.clone(),
            compactor: compactor.clone(),
            admission: admission.clone(),
        }));
        let catalog = Arc::new(Catalog::new(CatalogParts {
            health: parts.health.clone(),
            signals: signals.clone(),
            versions: versions.clone(),
            commits: commits.clone(),
            admission: admission.clone(),
            snapshotter: snapshotter.clone(),
        }));
        let scrubber = Scrubber::new(ScrubParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            cache: parts.cache.clone(),
            inline,
            journal: parts.options.journal,
            versions: versions.clone(),
            snapshots: snapshots.clone(),
            commits: commits.clone(),
        });
        let transactions = Transactions::new(TransactionParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            cache: parts.cache.clone(),
            options: parts.options.clone(),
            health: parts.health.clone(),
            counters: counters.clone(),
            versions: versions.clone(),
            commits: commits.clone(),
            recent,
            locks,
            snapshots: snapshots.clone(),
            snapshotter: snapshotter.clone(),
            catalog: catalog.clone(),
            admission: admission.clone(),
        });
        Database {
            threads: Threads::new(parts.env.monotonic()),
            env: parts.env,
            zones: parts.zones,
            cache: parts.cache,
            options: parts.options,
            health: parts.health,
            counters,
            signals,
            versions,
            recovered: parts.next_seq - 1,
            commits,
            feed,
            ranks,
            snapshots,
            snapshotter,
            catalog,
            transactions: Arc::new(transactions),
            activity,
            flusher,
            compactor,
            defragmenter,
            admission,
            scrubber: Arc::new(scrubber),
            prefetch: Mutex::default(),
        }
    }

    /// Returns `true` if the store does no work in the background.
    pub(super) fn inline(&self) -> bool {
        is_inline(&*self.env, &self.options)
    }

    /// Ends background work and makes everything durable. Later writes are refused; views stay
    /// readable.
    pub(super) fn close(&self) -> Result<()> {
        let closed = self.close_store();
        self.prefetch.lock().take().iter().for_each(|prefetch| prefetch.stop());
        // Closed here, since other threads may hold the store for a moment longer.
        self.zones.close_remote();
        closed
    }

    fn close_store(&self) -> Result<()> {
        self.transactions.close();
        self.feed.close();
        self.stop_threads();
        if self.options.read_only || self.health.close() {
            return Ok(());
        }
        // An unfinished compaction is given up, and the space that it has written is free again.
        drop(self.compactor.merge_alone());
        self.health.check()?;
        let flushed = match self.options.flush_on_close {
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
            edits.push(Edit::Streams(self.zones.positions()));
            edits.push(Edit::Closed);
            let mut manifest = self.versions.manifest()?;
            match manifest.commit(edits) {
                Ok(()) => manifest.vouch().map(|()| true),
                // Without this edit, the next open has to find the journal's end.
                Err(Error::NoSpace) => Ok(false),
                Err(e) => Err(e),
            }
        })?;
        if closed && let Err(e) = self.give_all_back() {
            tracing::warn!("space in which nothing lies is not given back: {e}");
        }
        Ok(())
    }

    /// Returns the unused space of a closed store to the host.
    fn give_all_back(&self) -> Result<()> {
        self.commits.log.return_reserved_zones();
        let (start, manifest) = {
            let manifest = self.versions.manifest()?;
            (manifest.state().start.position, manifest.unused())
        };
        let rest = self.commits.log.unneeded(start);
        Ok(self.zones.give_all_back(rest.into_iter().chain(manifest))?)
    }
}

/// Returns `true` if a store with these options does no work in the background.
fn is_inline(env: &dyn Env, options: &OpenOptions) -> bool {
    !options.threads || env.inline()
}

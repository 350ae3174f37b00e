//! The engine has the services and the state that nearly all parts of an open store share. Each
//! part holds a clone of the engine, and pointers to the other parts that it needs.
//!
//! [`Engine::new`] makes the shared state in this order: the snapshots, then the versions above the
//! manifest, then the counters and the signals. After that, `db::database` makes the parts, each of
//! which uses only the engine and earlier parts, in this order:
//!
//! 1. the `Committer`, over its log;
//! 2. the background work: `Activity`, `Flusher`, `Compactor`, `Defragmenter`, `Admission`;
//! 3. the `Snapshotter`, the `Catalog`, and the `Scrubber`;
//! 4. the `Transactions`;
//! 5. the threads, once recovery has replayed the journal.

use env::sync::atomic::Ordering;
use std::sync::Arc;

use env::Env;
use vt_tree::{BlockCache, Seq};
use zones::Zones;

use crate::counters::Counters;
use crate::health::Health;
use crate::manifest::Manifest;
use crate::options::OpenOptions;
use crate::series::SeriesCodecs;
use crate::signals::Signals;
use crate::version::Version;
use crate::version::snapshot_set::Snapshots;
use crate::version::version_set::VersionSet;

/// The shared services and state. Each part holds this set of pointers by value, so it reaches each
/// service through a single pointer, and the options without one.
#[derive(Clone)]
pub(crate) struct Engine {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub cache: Arc<BlockCache>,
    pub options: OpenOptions,
    /// Is `true` if the store has no threads, so that its callers do the background work.
    pub inline: bool,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub signals: Arc<Signals>,
    pub versions: Arc<VersionSet>,
    pub snapshots: Arc<Snapshots>,
    pub series: Arc<SeriesCodecs>,
}

/// The contents of a store that recovery has found or that a creation has made.
pub(crate) struct Contents {
    pub version: Version,
    /// The number of the newest commit that `version` contains.
    pub seq: Seq,
    /// The manifest, or `None` if the store is opened for reading only.
    pub manifest: Option<Manifest>,
    pub snapshots: Snapshots,
}

impl Engine {
    pub(crate) fn new(
        env: Arc<dyn Env>,
        zones: Arc<Zones>,
        cache: Arc<BlockCache>,
        options: OpenOptions,
        health: Arc<Health>,
        contents: Contents,
    ) -> Engine {
        let Contents { version, seq, manifest, snapshots } = contents;
        let snapshots = Arc::new(snapshots);
        let versions = VersionSet::new(
            cache.clone(),
            health.clone(),
            version,
            seq,
            manifest,
            snapshots.clone(),
        );
        let signals = Signals::default();
        // Space that was not reclaimed before the store was opened may be reclaimed now.
        signals.reclaimable.store(true, Ordering::Relaxed);
        signals.deletions.store(versions.load().memtable_bytes() > 0, Ordering::Relaxed);
        Engine {
            inline: !options.threads || env.inline(),
            env,
            zones,
            cache,
            options,
            health,
            counters: Arc::default(),
            signals: Arc::new(signals),
            versions: Arc::new(versions),
            snapshots,
            series: Arc::default(),
        }
    }
}

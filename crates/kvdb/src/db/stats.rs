//! The statistics of a store: its work, and its contents.

use std::collections::HashMap;
use std::sync::Arc;

use vt_tree::RunStats;
use zones::{IoStats, Profile};

use crate::Space;
use crate::background::defragment::DefragProgress;
use crate::db::database::Database;
use crate::dictionary::DictionaryInfo;
use crate::scrub::ScrubProgress;
use crate::version::Version;
use crate::version::generation::Layer;
use crate::version::snapshot_set::Snapshots;
use crate::version::tree::Tree;

/// The statistics of a store. Values are bytes unless said otherwise; counts begin at its opening.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The space of the store.
    pub space: Space,
    /// The kind of device that it was made for.
    pub profile: Profile,
    /// The assumed cost of a seek: bytes that the device reads in the same time.
    pub seek_bytes: u64,
    /// The dictionaries of all branches, except the unchanged ones of clones.
    pub dictionaries: Vec<DictionaryStats>,
    /// The number of the others: dictionaries of clones that have exactly the runs that they have
    /// in the snapshot that the clone was made of, and nothing in memory.
    pub unchanged_dictionaries: u64,
    /// Memory of all memtables.
    pub memtable_bytes: u64,
    /// Memory of the block cache.
    pub cache_bytes: u64,
    /// The memory budget.
    pub memory: u64,
    /// Bytes that the journal takes on the device.
    pub journal_bytes: u64,
    /// Bytes and operations by purpose.
    pub io: IoStats,
    /// Commits.
    pub commits: u64,
    /// Syncs of the journal. Synced commits that share a sync count once.
    pub syncs: u64,
    /// Keys and values as committed.
    pub user_bytes: u64,
    /// The part of `user_bytes` that was written once, directly to its place: large values.
    pub bound_bytes: u64,
    /// Values that were overwritten or deleted before they were placed, and so were never written.
    pub discarded_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Compactions.
    pub compactions: u64,
    /// Compactions that were split into subcompactions for several threads.
    pub split_merges: u64,
    /// Bytes that merges stitched, and so did not copy.
    pub stitched_bytes: u64,
    /// Bytes that flushes and merges wrote.
    pub merged_bytes: u64,
    /// Commits that were slowed down because merges could not keep up.
    pub delays: u64,
    /// The total delay of commits, microseconds.
    pub delayed_micros: u64,
    /// Commits that had to wait for memory.
    pub stops: u64,
    /// Zones of 8 MiB that runs keep.
    pub zones_held: u64,
    /// The part of these zones that would be free if the others were full.
    pub zones_reclaimable: u64,
    /// Bytes in runs that newer versions hide, in percent of the live bytes, by a sample.
    pub dead_percent: u64,
    /// The progress of the defragmentation, or of the last one.
    pub defrag: DefragProgress,
    /// The progress of the scrub, or of the last one.
    pub scrub: ScrubProgress,
    /// Set if the background has no work left until the next commit.
    pub at_rest: bool,
    /// The reason why the store takes no more writes, if it does not.
    pub failed: Option<String>,
}

/// The statistics of a dictionary.
#[derive(Clone, Debug)]
pub struct DictionaryStats {
    /// Its name and options.
    pub info: DictionaryInfo,
    /// Memory of its memtables.
    pub memtable_bytes: u64,
    /// Runs by level, each newest first.
    pub levels: Vec<Vec<RunStats>>,
}

impl Stats {
    /// Returns the bytes written to the device for each byte committed; 0 if nothing was committed.
    pub fn write_amplification(&self) -> f64 {
        if self.user_bytes == 0 {
            0.0
        } else {
            self.io.total().write_bytes as f64 / self.user_bytes as f64
        }
    }
}

/// The snapshots that clones were made of.
struct Origins<'a> {
    snapshots: &'a Snapshots,
    /// Their versions by name, or `None` for those that do not exist.
    known: HashMap<String, Option<Arc<Version>>>,
}

impl Origins<'_> {
    /// Returns whether a dictionary belongs to a clone and equals that of the snapshot from which
    /// the clone was made. A store may have thousands of such dictionaries, which are of no
    /// interest.
    fn have(&mut self, version: &Version, tree: &Tree) -> bool {
        let Some(origin) = version.branches.get(&tree.info().branch) else { return false };
        if !tree.layers.iter().all(Layer::is_empty) {
            return false;
        }
        if !self.known.contains_key(&**origin) {
            let version = self.snapshots.get(origin).map(|snapshot| snapshot.version());
            self.known.insert(origin.to_string(), version);
        }
        let Some(Some(of_snapshot)) = self.known.get(&**origin) else { return false };
        let there = of_snapshot.find("", &tree.info().name);
        let there = there.and_then(|id| of_snapshot.trees.get(&id));
        there.is_some_and(|there| there.entry.runs == tree.entry.runs)
    }
}

impl Database {
    pub(crate) fn space(&self) -> Space {
        let s = self.engine.zones.space();
        let used = s.zones_pinned * zones::ZONE_SIZE;
        let free = s.free_for_user.saturating_sub(self.flusher.unflushed_bytes());
        Space { total: s.capacity.unwrap_or(used.saturating_add(s.free_for_user)), free }
    }

    pub(crate) fn stats(&self) -> Stats {
        let version = self.engine.versions.load_full();
        let c = &self.engine.counters;
        let holes = self.defragmenter.holes();
        let mut origins = Origins { snapshots: &self.engine.snapshots, known: HashMap::new() };
        let changed = |tree: &&Arc<Tree>| !origins.have(&version, tree);
        let dictionaries = version.trees.values().filter(changed).map(|t| DictionaryStats {
            info: t.info().to_info(),
            memtable_bytes: t.memtable_bytes() as u64,
            levels: t
                .levels
                .iter()
                .map(|level| level.iter().map(|p| p.run.stats()).collect())
                .collect(),
        });
        let dictionaries: Vec<DictionaryStats> = dictionaries.collect();
        Stats {
            space: self.space(),
            profile: self.engine.zones.superblock().profile,
            seek_bytes: self.engine.options.seek_bytes,
            unchanged_dictionaries: (version.trees.len() - dictionaries.len()) as u64,
            dictionaries,
            memtable_bytes: version.memtable_bytes() as u64,
            cache_bytes: self.engine.cache.cache_bytes(),
            memory: self.engine.options.memory as u64,
            journal_bytes: self.engine.counters.journal_device.get(),
            io: self.engine.zones.io(),
            commits: c.commits.get(),
            syncs: c.syncs.get(),
            user_bytes: c.user_bytes.get(),
            bound_bytes: c.bound_bytes.get(),
            discarded_bytes: c.discarded_bytes.get(),
            flushes: c.flushes.get(),
            compactions: c.compactions.get(),
            split_merges: c.split_merges.get(),
            stitched_bytes: c.stitched.get(),
            merged_bytes: c.copied.get(),
            delays: c.delays.get(),
            delayed_micros: c.delayed_micros.get(),
            stops: c.stops.get(),
            zones_held: holes.zones,
            zones_reclaimable: holes.reclaimable(),
            dead_percent: c.dead_percent.get(),
            defrag: self.defragmenter.progress(),
            scrub: self.scrubber.progress(),
            at_rest: self.flusher.at_rest()
                && self.compactor.at_rest()
                && self.defragmenter.at_rest(),
            failed: self.engine.health.why(),
        }
    }
}

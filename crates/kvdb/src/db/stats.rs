//! Statistics about the work and the contents of a store.

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

/// The statistics of a store. Sizes are in bytes. Counts begin when the store is opened.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The space of the store.
    pub space: Space,
    /// The kind of device for which the store was made.
    pub profile: Profile,
    /// The assumed cost of a seek: the number of bytes that the device reads in the same time.
    pub seek_bytes: u64,
    /// The dictionaries of all branches, except unchanged dictionaries of clones.
    pub dictionaries: Vec<DictionaryStats>,
    /// The number of unchanged dictionaries of clones. Such a dictionary has exactly the runs that
    /// it has in the snapshot from which the clone was made, and nothing in memory.
    pub unchanged_dictionaries: u64,
    /// The memory of all memtables.
    pub memtable_bytes: u64,
    /// The memory of the block cache.
    pub cache_bytes: u64,
    /// The memory budget.
    pub memory: u64,
    /// The number of bytes that the journal takes on the device.
    pub journal_bytes: u64,
    /// The numbers of bytes and operations of the device, by purpose.
    pub io: IoStats,
    /// The number of commits.
    pub commits: u64,
    /// The number of syncs of the journal. Synced commits that share a sync count once.
    pub syncs: u64,
    /// The size of the keys and values that were committed.
    pub user_bytes: u64,
    /// The part of `user_bytes` that was written once, directly to its place, because the values
    /// are large.
    pub bound_bytes: u64,
    /// The size of the values that were overwritten or deleted before they got a place, and so were
    /// never written.
    pub discarded_bytes: u64,
    /// The number of flushes.
    pub flushes: u64,
    /// The number of compactions.
    pub compactions: u64,
    /// The number of compactions that were split into subcompactions for several threads.
    pub split_merges: u64,
    /// The number of bytes that merges stitched instead of copying them.
    pub stitched_bytes: u64,
    /// The number of bytes that flushes and merges wrote.
    pub merged_bytes: u64,
    /// The number of commits that were slowed down because merges could not keep up.
    pub delays: u64,
    /// The total delay of commits, in microseconds.
    pub delayed_micros: u64,
    /// The number of commits that had to wait for memory.
    pub stops: u64,
    /// The number of 8 MiB zones that runs keep.
    pub zones_held: u64,
    /// The number of these zones that would be free if the live data filled the other zones
    /// completely.
    pub zones_reclaimable: u64,
    /// The estimated number of bytes in runs that newer versions hide, in percent of the live
    /// bytes.
    pub dead_percent: u64,
    /// The progress of the current or the last defragmentation.
    pub defrag: DefragProgress,
    /// The progress of the current or the last scrub.
    pub scrub: ScrubProgress,
    /// Is `true` if the background has no work left until the next commit.
    pub at_rest: bool,
    /// The reason why the store takes no more writes, or `None` if it takes writes.
    pub failed: Option<String>,
}

/// The statistics of a dictionary.
#[derive(Clone, Debug)]
pub struct DictionaryStats {
    /// The name and the options of the dictionary.
    pub info: DictionaryInfo,
    /// The memory of the dictionary's memtables.
    pub memtable_bytes: u64,
    /// The runs by level. The runs of each level are ordered from the newest to the oldest.
    pub levels: Vec<Vec<RunStats>>,
}

impl Stats {
    /// Returns the number of bytes that were written to the device for each committed byte, or 0 if
    /// nothing was committed.
    pub fn write_amplification(&self) -> f64 {
        if self.user_bytes == 0 {
            0.0
        } else {
            self.io.total().write_bytes as f64 / self.user_bytes as f64
        }
    }
}

/// The snapshots from which clones were made.
struct Origins<'a> {
    snapshots: &'a Snapshots,
    /// The versions of snapshots by name, or `None` for a snapshot that does not exist.
    known: HashMap<String, Option<Arc<Version>>>,
}

impl Origins<'_> {
    /// Returns whether a dictionary belongs to a clone and equals the dictionary in the snapshot
    /// from which the clone was made. A store may have thousands of such dictionaries, which the
    /// statistics only count.
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

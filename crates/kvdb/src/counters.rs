//! Counters that the parts of a store update while they work. [`Stats`](crate::Stats) shows the
//! counters.

use env::sync::atomic::{AtomicU64, Ordering};

use vt_tree::MergeStats;

/// A number to which many threads add.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub commits: Counter,
    pub user_bytes: Counter,
    pub bound_bytes: Counter,
    /// The number of bytes of large values whose contents were in the journal, and which flushes
    /// have placed.
    pub flushed_values: Counter,
    pub discarded_bytes: Counter,
    pub syncs: Counter,
    pub flushes: Counter,
    pub compactions: Counter,
    pub split_merges: Counter,
    pub stitched: Counter,
    pub copied: Counter,
    pub delays: Counter,
    pub delayed_micros: Counter,
    pub stops: Counter,
    /// The number of bytes that the journal takes on the device.
    pub journal_device: Counter,
    /// The largest number of runs that any dictionary has at its youngest level.
    pub young_runs: Counter,
    /// The number of bytes of live data in runs, estimated from a sample.
    pub alive_bytes: Counter,
    /// The number of bytes of dead data in runs, in percent of the live data, estimated from the
    /// same sample.
    pub dead_percent: Counter,
}

/// The lower bound of [`Counters::most_held`], in bytes: a generation may hold this many bytes of
/// large values before it is flushed to free the values that it overwrites.
const HELD_AT_LEAST: u64 = 64 << 20;

impl Counters {
    /// Returns the number of bytes of large values that one generation of memtables may hold. The
    /// values that a generation overwrites are not freed before its flush. A generation is
    /// therefore flushed when its values take half as many bytes as the live data, however few keys
    /// it has.
    pub(crate) fn most_held(&self) -> u64 {
        HELD_AT_LEAST.max(self.alive_bytes.get() / 2)
    }

    /// Returns the number of bytes of large values that were placed for the first time.
    pub(crate) fn placed(&self) -> u64 {
        self.bound_bytes.get().saturating_add(self.flushed_values.get())
    }

    pub(crate) fn merged(&self, m: &MergeStats) {
        self.stitched.add(m.stitched);
        self.copied.add(m.written());
    }
}

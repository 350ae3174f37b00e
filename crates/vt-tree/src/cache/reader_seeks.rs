//! Counts how often readers had to wait for a device whose seeks are expensive. Background work
//! that can be deferred observes this count. Each read and write of such work moves the arm of a
//! hard disk away from the data of the readers, and costs the readers two seeks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use zones::Job;

use super::BlockCache;

/// The cost of a seek, in bytes, from which seeks are expensive. Then a read passes over gaps that
/// cost less than a seek, and work that can be deferred gives way to readers.
const DEAR: u64 = 64 << 10;
/// The duration from which a read is assumed to have waited for the arm of a disk.
const SEEK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct ReaderSeeks(AtomicU64);

impl BlockCache {
    /// Returns whether seeks of the device are expensive, as on hard disks, where a seek takes as
    /// long as reading many blocks.
    pub fn seeks_are_dear(&self) -> bool {
        self.seek_bytes() >= DEAR
    }

    /// Returns the number of times that a reader had to wait for a seek. It is always 0 if seeks
    /// are cheap. Merges and other background jobs do not count as readers.
    pub fn reader_seeks(&self) -> u64 {
        self.reader_seeks.0.load(Relaxed)
    }

    /// Records that a reader has found data that was read ahead, for which it would otherwise wait.
    pub(super) fn note_reader_ahead(&self) {
        if self.seeks_are_dear() && is_reader() {
            self.reader_seeks.0.fetch_add(1, Relaxed);
        }
    }

    /// Records that a reader has received the data for which it has waited since `begun`.
    pub(super) fn note_reader(&self, begun: Instant) {
        if self.seeks_are_dear() && begun.elapsed() >= SEEK && is_reader() {
            self.reader_seeks.0.fetch_add(1, Relaxed);
        }
    }
}

/// Returns whether this thread reads for a client.
fn is_reader() -> bool {
    Job::current() == Job::Commits
}

//! Counts how often readers had to wait for a device whose seeks are expensive. Background work
//! that can be put off heeds this count: each of its reads and writes takes the arm of a hard disk
//! away from the readers, and costs them a seek there and one back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use zones::Job;

use super::BlockCache;

/// If a seek costs at least this many bytes, a read passes over gaps that cost less than a seek,
/// and work that can be put off gives way to readers.
const DEAR: u64 = 64 << 10;
/// A read that takes less time did not wait for the arm of a disk.
const SEEK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct ReaderSeeks(AtomicU64);

impl BlockCache {
    /// Returns whether the device takes as long for a seek as for many blocks, as hard disks do.
    pub fn seeks_are_dear(&self) -> bool {
        self.seek_bytes() >= DEAR
    }

    /// Returns how often a reader had to wait for a seek so far; always 0 if seeks are cheap.
    /// Merges and other jobs of the background do not count as readers.
    pub fn reader_seeks(&self) -> u64 {
        self.reader_seeks.0.load(Relaxed)
    }

    /// Notes that a reader has data read ahead, for which it would otherwise wait.
    pub(super) fn note_reader_ahead(&self) {
        if self.seeks_are_dear() && is_reader() {
            self.reader_seeks.0.fetch_add(1, Relaxed);
        }
    }

    /// Notes that a reader has got the data that it waited for since `begun`.
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

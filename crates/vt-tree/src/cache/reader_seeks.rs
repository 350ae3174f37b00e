//! How often readers had to wait for a device whose seeks are dear. Work in the background that may
//! be put off goes by it: each of its reads and writes takes the arm of a hard disk away from them,
//! and brings them a seek there and one back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::BlockCache;

/// From this cost of a seek on, bytes, one read passes over gaps that cost less than a seek, and
/// work that may be put off gives way to readers.
const DEAR: u64 = 64 << 10;
/// What takes less did not wait for an arm.
const SEEK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct ReaderSeeks(AtomicU64);

impl BlockCache {
    /// Whether the device takes as long for a seek as for many blocks, as hard disks do.
    pub fn seeks_are_dear(&self) -> bool {
        self.seek_bytes() >= DEAR
    }

    /// How often a reader had to wait for a seek so far; always 0 where seeks are cheap. Merges are
    /// no readers.
    pub fn reader_seeks(&self) -> u64 {
        self.reader_seeks.0.load(Relaxed)
    }

    /// A reader has what it waited for since `begun`.
    pub(super) fn note_reader(&self, begun: Instant) {
        if self.seeks_are_dear() && begun.elapsed() >= SEEK {
            self.reader_seeks.0.fetch_add(1, Relaxed);
        }
    }
}

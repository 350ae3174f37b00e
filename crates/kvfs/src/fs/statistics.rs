//! Statistics of a file system since it was opened.

use env::sync::atomic::{AtomicU64, Ordering};

use super::Fs;

/// Statistics of an open file system; the counters start when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Inodes in memory.
    pub inodes: u64,
    /// Bytes of data that are not committed yet.
    pub dirty_bytes: u64,
    /// Batches committed to the database.
    pub commits: u64,
    /// Pages put into batches.
    pub pages_written: u64,
    /// The part of `pages_written` that was put as partial pages, with the written bytes only,
    /// since the rest was not in memory.
    pub pages_patched: u64,
    /// Bytes that calls have written.
    pub bytes_written: u64,
    /// Bytes that calls have read.
    pub bytes_read: u64,
    /// Files whose pages were announced to the device, since a reader was expected to read them
    /// next.
    pub files_read_ahead: u64,
    /// The part of `files_read_ahead` that was read afterwards, and the part that was not. The rest
    /// is yet to be read.
    pub read_ahead_used: u64,
    /// See `read_ahead_used`.
    pub read_ahead_wasted: u64,
    /// The next inode number that will be given out.
    pub next_ino: u64,
    /// The value of [`FsOptions::zone_size`] in force; 0 for a view that makes no files.
    pub zone_size: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub pages_written: AtomicU64,
    pub pages_patched: AtomicU64,
    pub bytes_written: AtomicU64,
    pub bytes_read: AtomicU64,
}

impl Fs {
    /// Returns the current statistics.
    pub fn statistics(&self) -> Statistics {
        let c = &self.core.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let ahead = self.core.reading_ahead.plans.counts();
        Statistics {
            inodes: self.core.inode_cache.len() as u64,
            dirty_bytes: self.core.space.dirty_bytes() as u64,
            commits: get(&c.commits),
            pages_written: get(&c.pages_written),
            pages_patched: get(&c.pages_patched),
            bytes_written: get(&c.bytes_written),
            bytes_read: get(&c.bytes_read),
            files_read_ahead: ahead.announced,
            read_ahead_used: ahead.used,
            read_ahead_wasted: ahead.wasted,
            next_ino: self.core.inode_allocator.next(),
            zone_size: self.core.options.zone_size.unwrap_or_default(),
        }
    }
}

//! Statistics of a file system since it was opened.

use env::sync::atomic::{AtomicU64, Ordering};

use super::Fs;

/// Statistics of an open file system. The counters start when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The number of inodes in memory.
    pub inodes: u64,
    /// The number of bytes of data that are not committed yet.
    pub dirty_bytes: u64,
    /// The number of batches committed to the database.
    pub commits: u64,
    /// The number of pages put into batches.
    pub pages_written: u64,
    /// The number of pages among `pages_written` that were put as partial pages, which contain only
    /// the written bytes because the rest was not in memory.
    pub pages_patched: u64,
    /// The number of bytes that calls have written.
    pub bytes_written: u64,
    /// The number of bytes that calls have read.
    pub bytes_read: u64,
    /// The number of files whose pages were announced to the device because a reader was expected
    /// to read them next.
    pub files_read_ahead: u64,
    /// The number of files among `files_read_ahead` that were read afterwards. Files that are
    /// counted neither here nor in `read_ahead_wasted` may still be read.
    pub read_ahead_used: u64,
    /// The number of files among `files_read_ahead` that were not read afterwards.
    pub read_ahead_wasted: u64,
    /// The next inode number that will be allocated.
    pub next_ino: u64,
    /// The value of [`FsOptions::zone_size`] that is in use, or 0 for a view that makes no files.
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

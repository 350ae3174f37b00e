//! Counts operations, bytes and seeks by purpose, written bytes by job, and reads of clients. Each
//! count takes a few relaxed atomic operations, so counting is always on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Device, Reading};
use crate::stats::{IoStats, PurposeStats};
use crate::{Job, Purpose};

/// A device that counts the operations on another device. A seek is an access that does not begin
/// where the previous access ended, as on a disk with one head.
pub struct CountDevice {
    inner: Arc<dyn Device>,
    by_purpose: [Counters; Purpose::ALL.len()],
    written_by_job: [AtomicU64; Job::ALL.len()],
    client_read_ops: AtomicU64,
    head: AtomicU64,
    syncs: AtomicU64,
    discards: AtomicU64,
    discarded_bytes: AtomicU64,
}

#[derive(Default)]
struct Counters {
    read_ops: AtomicU64,
    read_bytes: AtomicU64,
    ahead_ops: AtomicU64,
    ahead_bytes: AtomicU64,
    write_ops: AtomicU64,
    write_bytes: AtomicU64,
    seeks: AtomicU64,
}

impl CountDevice {
    /// Counts the operations on `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        CountDevice {
            inner,
            by_purpose: Default::default(),
            written_by_job: Default::default(),
            client_read_ops: AtomicU64::new(0),
            head: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            discarded_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the statistics since this device was created.
    pub fn stats(&self) -> IoStats {
        let purpose = |p: Purpose| {
            let c = &self.by_purpose[p as usize];
            PurposeStats {
                read_ops: c.read_ops.load(Relaxed),
                read_bytes: c.read_bytes.load(Relaxed),
                ahead_ops: c.ahead_ops.load(Relaxed),
                ahead_bytes: c.ahead_bytes.load(Relaxed),
                write_ops: c.write_ops.load(Relaxed),
                write_bytes: c.write_bytes.load(Relaxed),
                seeks: c.seeks.load(Relaxed),
            }
        };
        IoStats {
            by_purpose: Purpose::ALL.map(purpose),
            written_by_job: Job::ALL.map(|job| self.written_by_job[job as usize].load(Relaxed)),
            client_read_ops: self.client_read_ops.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            discards: self.discards.load(Relaxed),
            discarded_bytes: self.discarded_bytes.load(Relaxed),
        }
    }

    fn wrote(&self, purpose: Purpose, offset: u64, len: usize) {
        let counters = &self.by_purpose[purpose as usize];
        counters.write_ops.fetch_add(1, Relaxed);
        counters.write_bytes.fetch_add(len as u64, Relaxed);
        self.written_by_job[Job::current() as usize].fetch_add(len as u64, Relaxed);
        self.moved(counters, offset, len);
    }

    fn begins_to_read(&self, ops: usize) {
        if Job::current() == Job::Commits {
            self.client_read_ops.fetch_add(ops as u64, Relaxed);
        }
    }

    fn moved(&self, counters: &Counters, offset: u64, len: usize) {
        // Concurrent accesses have no order, so plain loads and stores suffice. An atomic exchange
        // would cost as much as all other counters.
        let head = self.head.load(Relaxed);
        self.head.store(offset.wrapping_add(len as u64), Relaxed);
        if head != offset {
            counters.seeks.fetch_add(1, Relaxed);
        }
    }
}

impl Device for CountDevice {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.begins_to_read(1);
        let counters = &self.by_purpose[purpose as usize];
        counters.read_ops.fetch_add(1, Relaxed);
        counters.read_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.moved(counters, offset, buf.len());
        self.inner.read_at(purpose, offset, buf)
    }

    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        self.begins_to_read(reads.len());
        let counters = &self.by_purpose[purpose as usize];
        counters.read_ops.fetch_add(reads.len() as u64, Relaxed);
        for r in reads.iter() {
            counters.read_bytes.fetch_add(r.buf.len() as u64, Relaxed);
            self.moved(counters, r.offset, r.buf.len());
        }
        self.inner.read_many(purpose, reads)
    }

    fn read_medium(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.begins_to_read(1);
        let counters = &self.by_purpose[purpose as usize];
        counters.read_ops.fetch_add(1, Relaxed);
        counters.read_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.moved(counters, offset, buf.len());
        self.inner.read_medium(purpose, offset, buf)
    }

    fn will_read(&self, purpose: Purpose, offset: u64, len: u64) {
        let counters = &self.by_purpose[purpose as usize];
        counters.ahead_ops.fetch_add(1, Relaxed);
        counters.ahead_bytes.fetch_add(len, Relaxed);
        self.inner.will_read(purpose, offset, len);
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.wrote(purpose, offset, buf.len());
        self.inner.write_at(purpose, offset, buf)
    }

    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        self.wrote(purpose, offset, buf.len());
        self.inner.write_behind(purpose, offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.discards.fetch_add(1, Relaxed);
        self.discarded_bytes.fetch_add(len, Relaxed);
        self.inner.discard(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.inner.grow(new_len)
    }

    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        self.inner.lengthen(new_len)
    }

    fn host_file(&self) -> Option<&std::fs::File> {
        self.inner.host_file()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }

    fn can_grow(&self) -> bool {
        self.inner.can_grow()
    }

    fn host_memory(&self) -> Option<u64> {
        self.inner.host_memory()
    }

    fn host_free(&self) -> Option<u64> {
        self.inner.host_free()
    }
}

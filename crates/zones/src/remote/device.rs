//! The device of a store whose zones lie in object storage. It is the local file, and fetches
//! missing parts before they are read. A zone has the same address in both, and the host keeps the
//! file sparse, so no address is translated.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use env::sync::{Condvar, Mutex, RwLockReadGuard};
use env::thread;

use super::fetch::Remote;
use super::record::write_parts;
use crate::device::{Device, Reading};
use crate::{Purpose, ZoneId};

/// The largest number of threads that fetch announced ranges.
const FETCHERS: usize = 32;
/// The largest number of waiting announcements. Further ones are dropped, because a read fetches
/// the parts that it needs.
const MOST_WAITING: usize = 512;
/// The longest time for which a close waits for a request that reads ahead.
const PATIENCE: Duration = Duration::from_secs(3);
/// The number of announced bytes that one thread fetches at a time.
const ANNOUNCED: u64 = 1 << 20;

pub(crate) struct RemoteDevice {
    cache: Arc<dyn Device>,
    remote: Arc<Remote>,
    ahead: Arc<Ahead>,
}

/// Announced reads, and the threads that perform them.
struct Ahead {
    cache: Arc<dyn Device>,
    remote: Arc<Remote>,
    queue: Mutex<Queue>,
    /// The condition that is signalled when a thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Purpose, u64, u64)>,
    fetchers: usize,
}

impl RemoteDevice {
    pub(crate) fn new(cache: Arc<dyn Device>, remote: Arc<Remote>) -> RemoteDevice {
        let ahead = Arc::new(Ahead {
            cache: cache.clone(),
            remote: remote.clone(),
            queue: Mutex::default(),
            ended: Condvar::new(),
        });
        RemoteDevice { cache, remote, ahead }
    }

    /// Calls `read` when all of these ranges are in the local file. Their zones are not evicted
    /// during the call.
    fn with<T>(
        &self,
        purpose: Purpose,
        ranges: &[(u64, u64)],
        mut read: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            {
                let _steady = self.steady(ranges);
                if ranges.iter().all(|&(addr, len)| self.remote.has(addr, len)) {
                    return read();
                }
            }
            self.remote.waits(purpose);
            self.remote.fetch(&*self.cache, purpose, ranges)?;
        }
    }

    /// Fetches ahead of a sequential reader.
    fn keep_ahead(&self, purpose: Purpose, addr: u64, len: u64) {
        if let Some((addr, len)) = self.remote.goes_on(purpose, addr, len) {
            self.will_read(purpose, addr, len);
        }
    }

    /// Returns whether the zone lies in object storage, and no more parts of the zone are fetched
    /// into the file.
    fn is_missing_for_good(&self, addr: u64) -> bool {
        self.remote.is_closed() && self.remote.layout().parts.is_remote(ZoneId::of(addr))
    }

    /// Records which parts are in the file, for the next opening. Later reads of other parts do not
    /// store the data that they fetch. Drops announced reads. If a request is not answered for a
    /// long time, nothing is recorded, so that the record is never wrong.
    pub(crate) fn close(&self) {
        if self.remote.close() {
            return;
        }
        let mut queue = self.ahead.queue.lock();
        queue.waiting.clear();
        while queue.fetchers > 0 {
            if self.ahead.ended.wait_for(&mut queue, PATIENCE).timed_out() {
                tracing::warn!("a request is not answered; what is cached is fetched again");
                return;
            }
        }
        drop(queue);
        self.remote.settle();
        if let Err(e) = write_parts(&*self.cache, &self.remote.layout().parts) {
            tracing::warn!("what is cached was not noted, and is fetched again: {e}");
        }
    }

    /// Locks all zones of these ranges for reading, each lock once. Taking a lock twice could
    /// deadlock with a writer that waits for the first one.
    fn steady(&self, ranges: &[(u64, u64)]) -> Vec<RwLockReadGuard<'_, ()>> {
        let mut zones: Vec<&_> = ranges
            .iter()
            .filter(|(_, len)| *len > 0)
            .flat_map(|&(addr, len)| [ZoneId::of(addr), ZoneId::of(addr.saturating_add(len - 1))])
            .map(|zone| self.remote.lock_of(zone))
            .collect();
        zones.sort_unstable_by_key(|lock| std::ptr::from_ref(*lock));
        zones.dedup_by_key(|lock| std::ptr::from_ref(*lock));
        zones.into_iter().map(|lock| lock.read()).collect()
    }
}

impl Ahead {
    /// Queues an announcement, and starts a thread if there are few threads.
    fn announce(self: &Arc<Self>, purpose: Purpose, addr: u64, len: u64) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= MOST_WAITING || self.remote.is_closed() {
            return;
        }
        match queue.waiting.back_mut() {
            // Join neighbouring announcements into one request.
            Some((last, at, before))
                if *last == purpose
                    && *at + *before == addr
                    && *at / ANNOUNCED == addr / ANNOUNCED =>
            {
                *before += len;
            }
            _ => queue.waiting.push_back((purpose, addr, len)),
        }
        if queue.fetchers >= FETCHERS {
            return;
        }
        // Use a weak reference, because a thread must not keep the store open.
        let ahead: Weak<Ahead> = Arc::downgrade(self);
        let started = thread::Builder::new().name("kvfs-fetch".into()).spawn(move || {
            while let Some(ahead) = ahead.upgrade() {
                let next = {
                    let mut queue = ahead.queue.lock();
                    let next = queue.waiting.pop_front();
                    if next.is_none() {
                        queue.fetchers -= 1;
                        ahead.ended.notify_all();
                    }
                    next
                };
                let Some((purpose, addr, len)) = next else { return };
                ahead.remote.fetch_ahead(&*ahead.cache, purpose, addr, len);
            }
        });
        match started {
            Ok(_) => queue.fetchers += 1,
            Err(e) => tracing::debug!("no thread to read ahead: {e}"),
        }
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.close();
    }
}

impl Device for RemoteDevice {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.remote.read_first(offset, buf) {
            return Ok(());
        }
        self.keep_ahead(purpose, offset, buf.len() as u64);
        let range = [(offset, buf.len() as u64)];
        match self.with(purpose, &range, || self.cache.read_at(purpose, offset, buf)) {
            Err(_) if self.is_missing_for_good(offset) => {
                self.remote.read_there(&self.remote.layout().table, purpose, offset, buf)
            }
            read => read,
        }
    }

    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        if reads.iter().all(|r| self.remote.has_first(r.offset, r.buf.len() as u64)) {
            return reads.iter_mut().try_for_each(|r| self.read_at(purpose, r.offset, r.buf));
        }
        let ranges: Vec<_> = reads.iter().map(|r| (r.offset, r.buf.len() as u64)).collect();
        ranges.iter().for_each(|&(addr, len)| self.keep_ahead(purpose, addr, len));
        match self.with(purpose, &ranges, || self.cache.read_many(purpose, reads)) {
            Err(_) if self.remote.is_closed() => {
                reads.iter_mut().try_for_each(|r| self.read_at(purpose, r.offset, r.buf))
            }
            read => read,
        }
    }

    fn read_medium(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = [(offset, buf.len() as u64)];
        self.with(purpose, &range, || self.cache.read_medium(purpose, offset, buf))
    }

    fn will_read(&self, purpose: Purpose, offset: u64, len: u64) {
        if self.remote.has(offset, len) {
            return self.cache.will_read(purpose, offset, len);
        }
        if self.remote.has_first(offset, len) {
            return;
        }
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            // Pieces end at the same addresses, whichever caller announces them.
            let next = end.min((at / ANNOUNCED + 1) * ANNOUNCED);
            self.ahead.announce(purpose, at, next - at);
            at = next;
        }
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.cache.write_at(purpose, offset, buf)
    }

    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        self.cache.write_behind(purpose, offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.cache.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.cache.discard(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.cache.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.cache.grow(new_len)
    }

    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        self.cache.lengthen(new_len)
    }

    // Without a host file, copies are read through this device, which fetches missing parts.
    fn host_file(&self) -> Option<&File> {
        None
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.cache.allocate(offset, len)
    }

    fn can_grow(&self) -> bool {
        self.cache.can_grow()
    }

    fn host_memory(&self) -> Option<u64> {
        self.cache.host_memory()
    }

    fn host_free(&self) -> Option<u64> {
        self.cache.host_free()
    }
}

//! Fetches parts of zones from object storage into the local file. A part is fetched once, even if
//! several readers wait for it. Several parts are fetched at the same time. Requests wait for
//! storage that cannot be reached (`get`).

mod get;

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use env::sync::{ArcSwap, Condvar, Mutex, RwLock};
use objects::Objects;

use super::at_once::at_once;
use super::counters::{Counters, RemoteStats};
use super::first_reads::FirstReads;
use super::follow::Retired;
use super::in_line::InLine;
use super::parts::{OF_INDEX, PART, PARTS, PartRange, Parts, USED};
use super::requests::{AT_ONCE, Requests};
use super::second_get::SecondGets;
use super::table::ZoneTable;
use crate::{Device, Error, Purpose, ZONE_SIZE, ZoneId};

/// The smallest number of bytes that a read of the index or of tuples fetches, aligned to this
/// number. Neighbouring data then costs no further request.
pub const FETCHED: u64 = 256 << 10;
/// The number of parts in [`FETCHED`] bytes.
const OF_TUPLES: u32 = (FETCHED / PART) as u32;
/// The largest number of concurrent requests for the pieces of one range. Bytes that were published
/// little by little lie in several objects.
const PIECES_AT_ONCE: usize = 4;

/// Options of reads from object storage.
#[derive(Clone, Copy, Debug)]
pub struct RemoteOptions {
    /// The number of bytes that parts of zones in object storage may take in the local file. Beyond
    /// that, zones that have not been read for a long time are evicted, and fetched again when they
    /// are read.
    pub cache_bytes: u64,
    /// The time after which a read fails if object storage cannot be reached.
    pub timeout: Duration,
    /// The number of bytes that requests in flight may fetch together. A single request may fetch
    /// more.
    pub memory: u64,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(300);
        RemoteOptions { cache_bytes: u64::MAX, timeout, memory: 64 << 20 }
    }
}

/// The places of zones in object storage, and the parts of these zones that are in the local file.
pub(crate) struct Layout {
    pub table: Arc<ZoneTable>,
    pub parts: Parts,
    /// Bytes that are used instead of the bytes in object storage, unless they were found to be
    /// wrong.
    pub first: FirstReads,
    pub distrusts_first: AtomicBool,
}

impl Layout {
    /// Creates a layout with the first reads, in which no part is in the local file.
    pub fn new(table: Arc<ZoneTable>, first: FirstReads) -> Layout {
        let parts = Parts::new(table.zones());
        Layout { table, parts, first, distrusts_first: AtomicBool::new(false) }
    }

    /// Returns the bytes of a range that the first reads contain.
    pub fn first_read(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let is_used =
            !self.distrusts_first.load(Ordering::Relaxed) && self.parts.is_remote(ZoneId::of(addr));
        is_used.then(|| self.first.find(addr, len)).flatten()
    }
}

/// The zones of a store that lie in object storage, and the parts of these zones that are in the
/// local file.
pub(crate) struct Remote {
    objects: Arc<dyn Objects>,
    /// The current layout. It is replaced when the store follows a newer state, while all locks of
    /// `steady` are held exclusively.
    layout: ArcSwap<Layout>,
    /// The zone tables of earlier states, with the newest last. See [`super::follow`].
    pub(super) retired: Mutex<Vec<Retired>>,
    options: RemoteOptions,
    /// Striped locks of the zones. A lock is held shared from the check that a part is present
    /// until the use of the part ends, and exclusively while the zone is evicted.
    steady: [RwLock<()>; 64],
    /// The parts that are being fetched.
    under_way: Mutex<HashSet<(ZoneId, u32)>>,
    arrival: Condvar,
    requests: Requests,
    second_gets: SecondGets,
    /// The positions of sequential readers: the address after the fetched range, and the length of
    /// the range.
    onward: Mutex<[(u64, u64); 16]>,
    next_onward: AtomicUsize,
    in_line: InLine,
    /// The position in the list of zones at which the search for zones to evict continues.
    hand: Mutex<usize>,
    /// The number of bytes that parts may take now. This is less than the options allow after the
    /// disk was full.
    most_cached: AtomicU64,
    /// `true` while the list of parts is being written, so that the file must not change.
    closing: AtomicBool,
    /// The callback of [`crate::Zones::set_on_wait`].
    on_wait: Mutex<Option<Arc<OnWait>>>,
    pub(super) counters: Counters,
}

/// A callback for reads of the index and of tuples that have to wait for a request.
pub type OnWait = dyn Fn() + Send + Sync;

/// Parts that this thread fetches. When the value is dropped, the parts are no longer marked as
/// being fetched.
struct Claimed<'a> {
    remote: &'a Remote,
    ranges: Vec<PartRange>,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut under_way = self.remote.under_way.lock();
        for range in &self.ranges {
            (range.first..range.end).for_each(|part| {
                under_way.remove(&(range.zone, part));
            });
        }
        self.remote.arrival.notify_all();
    }
}

impl Remote {
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        table: ZoneTable,
        first: FirstReads,
        options: RemoteOptions,
    ) -> Remote {
        Remote {
            objects,
            layout: ArcSwap::from_pointee(Layout::new(Arc::new(table), first)),
            retired: Mutex::default(),
            options,
            steady: std::array::from_fn(|_| RwLock::new(())),
            under_way: Mutex::default(),
            arrival: Condvar::new(),
            requests: Requests::new(options.memory),
            second_gets: SecondGets::default(),
            onward: Mutex::default(),
            next_onward: AtomicUsize::new(0),
            in_line: InLine::new(options.memory),
            hand: Mutex::new(0),
            most_cached: AtomicU64::new(options.cache_bytes),
            closing: AtomicBool::new(false),
            on_wait: Mutex::default(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn layout(&self) -> Arc<Layout> {
        self.layout.load_full()
    }

    /// Fills `buf` if the range is among the first reads.
    pub(super) fn read_first(&self, addr: u64, buf: &mut [u8]) -> bool {
        let layout = self.layout.load();
        let first = layout.first_read(addr, buf.len());
        first.map(|bytes| buf.copy_from_slice(bytes)).is_some()
    }

    /// Returns whether the range is among the first reads.
    pub(crate) fn has_first(&self, addr: u64, len: u64) -> bool {
        let is_first = |len| self.layout.load().first_read(addr, len).is_some();
        usize::try_from(len).is_ok_and(is_first)
    }

    /// Replaces the layout by the result of `change` while no part is read, fetched into the file,
    /// or evicted.
    pub(super) fn replace_layout(
        &self,
        change: impl FnOnce(&Arc<Layout>) -> io::Result<Layout>,
    ) -> io::Result<()> {
        let _alone: Vec<_> = self.steady.iter().map(|lock| lock.write()).collect();
        self.stays()?;
        let next = change(&self.layout.load())?;
        self.layout.store(Arc::new(next));
        Ok(())
    }

    pub(crate) fn set_on_wait(&self, on_wait: Arc<OnWait>) {
        *self.on_wait.lock() = Some(on_wait);
    }

    /// Records a read, and returns the range to fetch ahead of the reader, if there is one.
    pub(super) fn goes_on(&self, purpose: Purpose, addr: u64, len: u64) -> Option<(u64, u64)> {
        let is_there = purpose == Purpose::Pages && self.is_there(ZoneId::of(addr));
        is_there.then(|| self.in_line.read(addr, len)).flatten()
    }

    /// Returns whether a zone lies in object storage.
    fn is_there(&self, zone: ZoneId) -> bool {
        self.layout.load().parts.is_remote(zone)
    }

    /// Records that a read has to wait for a request.
    pub(super) fn waits(&self, purpose: Purpose) {
        self.counters.waited();
        if matches!(purpose, Purpose::Index | Purpose::Tuples) {
            let on_wait = self.on_wait.lock().clone();
            on_wait.iter().for_each(|on_wait| on_wait());
        }
    }

    /// Forbids changes of the file from now on. Returns whether changes were already forbidden.
    pub(super) fn close(&self) -> bool {
        self.closing.swap(true, Ordering::SeqCst)
    }

    /// Waits until all calls that began while the store was open have finished their use of the
    /// file.
    pub(super) fn settle(&self) {
        self.steady.iter().for_each(|lock| drop(lock.write()));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn stays(&self) -> io::Result<()> {
        match self.is_closed() {
            true => Err(io::Error::other("the store is being closed")),
            false => Ok(()),
        }
    }

    /// Returns whether the zones of the store lie in this place.
    pub(crate) fn is_from(&self, place: &Arc<dyn Objects>) -> bool {
        Arc::ptr_eq(&self.objects, place) || self.objects.place() == place.place()
    }

    pub(crate) fn stats(&self) -> RemoteStats {
        let layout = self.layout.load();
        let stats =
            self.counters.stats(layout.parts.valid() * PART, layout.table.zones().count() as u64);
        RemoteStats { second_gets: self.second_gets.second(), ..stats }
    }

    pub(super) fn lock_of(&self, zone: ZoneId) -> &RwLock<()> {
        &self.steady[zone.0 as usize % self.steady.len()]
    }

    /// Returns whether all of these bytes are in the local file. The answer is valid while the
    /// locks of their zones are held.
    pub(crate) fn has(&self, addr: u64, len: u64) -> bool {
        let layout = self.layout.load();
        PartRange::of(addr, len).all(|range| {
            layout.parts.touch(range.zone, USED);
            layout.parts.has(range)
        })
    }

    /// Fetches the missing parts of these ranges of bytes, and returns when all of them were
    /// present at some moment.
    pub(crate) fn fetch(
        &self,
        cache: &dyn Device,
        purpose: Purpose,
        ranges: &[(u64, u64)],
    ) -> io::Result<()> {
        loop {
            let layout = self.layout();
            let wanted: Vec<PartRange> = ranges
                .iter()
                .flat_map(|&(addr, len)| PartRange::of(addr, len))
                .filter(|&range| !layout.parts.has(range))
                .collect();
            if wanted.is_empty() {
                return Ok(());
            }
            self.stays()?;
            let (claimed, others) = self.claim(&layout, purpose, &wanted, true);
            if claimed.ranges.is_empty() {
                // Other threads fetch all of the missing parts.
                self.wait_for(&others);
                continue;
            }
            self.fetch_claimed(cache, &layout, purpose, &claimed.ranges)?;
            drop(claimed);
            self.make_room(cache, &wanted)?;
        }
    }

    /// Fetches these bytes for a later read, unless they are present or being fetched. A failure is
    /// not reported here, because the read fetches the bytes again and reports it.
    pub(super) fn fetch_ahead(&self, cache: &dyn Device, purpose: Purpose, addr: u64, len: u64) {
        let layout = self.layout();
        let wanted: Vec<PartRange> =
            PartRange::of(addr, len).filter(|&range| !layout.parts.has(range)).collect();
        // A caller that announces tuples knows their end from the index, so fetch no more than the
        // announced range.
        let goes_on = !is_of_index(purpose);
        let (claimed, _) = self.claim(&layout, purpose, &wanted, goes_on);
        if let Err(e) = self.fetch_claimed(cache, &layout, purpose, &claimed.ranges) {
            tracing::debug!("reading ahead failed: {e}");
        }
        drop(claimed);
        if let Err(e) = self.make_room(cache, &wanted) {
            tracing::debug!("giving cached zones up failed: {e}");
        }
    }

    /// Claims the parts that are neither present nor being fetched, in ranges of one request each.
    /// Also returns the parts that other threads are fetching. `goes_on` says that the reader may
    /// continue beyond the ranges.
    fn claim(
        &self,
        layout: &Layout,
        purpose: Purpose,
        wanted: &[PartRange],
        goes_on: bool,
    ) -> (Claimed<'_>, Vec<(ZoneId, u32)>) {
        let mut all: Vec<PartRange> =
            wanted.iter().map(|&range| widened(layout, purpose, range)).collect();
        if goes_on {
            all.iter_mut().zip(wanted).for_each(|(range, wanted)| self.grow(range, *wanted));
        }
        all.sort_unstable();
        let (mut ranges, mut others) = (Vec::<PartRange>::new(), Vec::new());
        let mut under_way = self.under_way.lock();
        for range in all {
            for part in range.first..range.end {
                let one = PartRange { zone: range.zone, first: part, end: part + 1 };
                if layout.parts.has(one) {
                    continue;
                }
                if !under_way.insert((range.zone, part)) {
                    let mine = ranges
                        .iter()
                        .any(|r| r.zone == range.zone && (r.first..r.end).contains(&part));
                    if !mine {
                        others.push((range.zone, part));
                    }
                    continue;
                }
                match ranges.last_mut() {
                    Some(last) if last.zone == range.zone && last.end == part => last.end += 1,
                    _ => ranges.push(one),
                }
            }
        }
        (Claimed { remote: self, ranges }, others)
    }

    /// Lengthens the range to fetch to twice the length of the previous one if the wanted range
    /// begins where the previous range ended.
    fn grow(&self, range: &mut PartRange, wanted: PartRange) {
        let start = wanted.zone.start() + u64::from(wanted.first) * PART;
        let len = u64::from(wanted.end - wanted.first) * PART;
        let mut onward = self.onward.lock();
        let known = onward.iter_mut().find(|(end, before)| *before > 0 && *end == start);
        let grown = known
            .as_ref()
            .map_or(0, |(_, before)| (2 * before).min(ZONE_SIZE).min(self.options.memory));
        let grown = grown.max(len);
        range.end = range.end.max(wanted.first + (grown / PART) as u32).min(PARTS);
        let entry = (range.zone.start() + u64::from(range.end) * PART, grown);
        match known {
            Some(known) => *known = entry,
            None => {
                let next = self.next_onward.fetch_add(1, Ordering::Relaxed) % onward.len();
                onward[next] = entry;
            }
        }
    }

    fn wait_for(&self, parts: &[(ZoneId, u32)]) {
        let mut under_way = self.under_way.lock();
        while parts.iter().any(|part| under_way.contains(part)) {
            self.arrival.wait(&mut under_way);
        }
    }

    fn fetch_claimed(
        &self,
        cache: &dyn Device,
        layout: &Layout,
        purpose: Purpose,
        ranges: &[PartRange],
    ) -> io::Result<()> {
        at_once(ranges, AT_ONCE / 2, |&range| self.fetch_range(cache, layout, purpose, range))
    }

    /// Fetches parts of one zone, and records that they are present. No piece covers bytes that
    /// were never written, and nothing refers to such bytes.
    fn fetch_range(
        &self,
        cache: &dyn Device,
        layout: &Layout,
        purpose: Purpose,
        range: PartRange,
    ) -> io::Result<()> {
        let (first, end) = (range.first * PART as u32, range.end * PART as u32);
        let _request = self.requests.begin(u64::from(end - first));
        let fetched = self.read_objects(&layout.table, purpose, range.zone, first..end)?;
        let kept = self.keep(cache, layout, purpose, range, &fetched);
        match kept {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                ) =>
            {
                // The disk is full, but a part of its data can be fetched again.
                let half = layout.parts.valid() * PART / 2;
                self.most_cached.fetch_min(half, Ordering::Relaxed);
                tracing::warn!("the disk is full: {half} bytes of what was fetched are kept");
                self.make_room(cache, &[range])?;
                self.keep(cache, layout, purpose, range, &fetched)
            }
            kept => kept,
        }
    }

    /// Reads bytes of zones from object storage, bypassing the local file.
    pub(super) fn read_there(
        &self,
        table: &ZoneTable,
        purpose: Purpose,
        addr: u64,
        buf: &mut [u8],
    ) -> io::Result<()> {
        buf.fill(0);
        let end = addr + buf.len() as u64;
        for range in PartRange::of(addr, buf.len() as u64) {
            let start = range.zone.start();
            let from = addr.max(start);
            let within = (from - start) as u32..(end.min(range.zone.end()) - start) as u32;
            for (at, bytes) in self.read_objects(table, purpose, range.zone, within)? {
                let at = (at - addr) as usize;
                buf[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Returns the bytes that a zone has in object storage between two offsets, with their
    /// addresses.
    pub(super) fn read_objects(
        &self,
        table: &ZoneTable,
        purpose: Purpose,
        zone: ZoneId,
        within: Range<u32>,
    ) -> io::Result<Vec<(u64, bytes::Bytes)>> {
        let mut wanted = Vec::new();
        for piece in table.pieces_of(zone) {
            let (from, to) = (piece.offset.max(within.start), piece.end().min(within.end));
            if from >= to {
                continue;
            }
            let at = u64::from(piece.at + (from - piece.offset));
            let part = at..at + u64::from(to - from);
            let key = table.object(piece).key().map_err(io_error)?;
            wanted.push((zone.start() + u64::from(from), key, part));
        }
        let fetched = Mutex::new(Vec::with_capacity(wanted.len()));
        at_once(&wanted, PIECES_AT_ONCE, |(addr, key, part)| {
            let bytes = self.get(purpose, key.clone(), part.clone())?;
            fetched.lock().push((*addr, bytes));
            Ok(())
        })?;
        Ok(fetched.into_inner())
    }

    /// Writes fetched bytes into the file, and records that they are present, unless the contents
    /// of the zone have changed by now.
    fn keep(
        &self,
        cache: &dyn Device,
        layout: &Layout,
        purpose: Purpose,
        range: PartRange,
        fetched: &[(u64, bytes::Bytes)],
    ) -> io::Result<()> {
        // Hold the lock, because the zone must not be evicted between the writes and the record.
        let _steady = self.lock_of(range.zone).read();
        self.stays()?;
        let now = self.layout.load();
        if !std::ptr::eq(&raw const **now, layout)
            && now.table.same_until(range.zone, &layout.table) < range.end * PART as u32
        {
            return Ok(());
        }
        for (addr, bytes) in fetched {
            cache.write_at(purpose, *addr, bytes)?;
        }
        now.parts.arrived(range);
        Ok(())
    }

    /// Evicts zones by the clock algorithm until the cached parts fit their limit: a zone is
    /// evicted if it was not read since the hand of the clock passed it. Zones with index nodes or
    /// tuples are evicted last, and the zones of `wanted` are not evicted.
    fn make_room(&self, cache: &dyn Device, wanted: &[PartRange]) -> io::Result<()> {
        let most = self.most_cached.load(Ordering::Relaxed) / PART;
        let layout = self.layout();
        let parts = &layout.parts;
        if parts.valid() <= most {
            return Ok(());
        }
        let Some(mut hand) = self.hand.try_lock() else { return Ok(()) };
        let zones = parts.zones();
        for round in 0..3 * zones.len() {
            if parts.valid() <= most {
                break;
            }
            let zone = zones[*hand % zones.len()];
            *hand = (*hand + 1) % zones.len();
            let how = parts.pass(zone);
            let spared = how & USED != 0 || how & OF_INDEX != 0 && round < 2 * zones.len();
            if spared || !parts.has_any(zone) || wanted.iter().any(|r| r.zone == zone) {
                continue;
            }
            let _alone = self.lock_of(zone).write();
            self.stays()?;
            if !Arc::ptr_eq(&self.layout.load(), &layout) {
                // The next fetch uses the zones of the newer state.
                break;
            }
            parts.forget(zone);
            cache.discard(zone.start(), ZONE_SIZE)?;
            self.counters.gave_up();
        }
        Ok(())
    }
}

/// Returns whether data of this purpose is index nodes or tuples.
fn is_of_index(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Tuples | Purpose::Index)
}

/// Returns the parts to fetch for a wanted range. For the index and for tuples, the range is
/// widened.
fn widened(layout: &Layout, purpose: Purpose, range: PartRange) -> PartRange {
    let PartRange { zone, first, end } = range;
    if !is_of_index(purpose) {
        return range;
    }
    layout.parts.touch(zone, OF_INDEX);
    PartRange { zone, first: first / OF_TUPLES * OF_TUPLES, end: end.next_multiple_of(OF_TUPLES) }
}

/// Wraps an error of this crate in an I/O error, from which a caller extracts it again.
fn io_error(e: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

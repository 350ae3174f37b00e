//! Which zones are free, and why the others are not. All state is in memory, under one lock that is
//! never held during I/O; after opening it is rebuilt from what recovery pins. Every choice takes
//! the lowest zone, so that a seed reproduces a run.
//!
//! A zone is in one of these states:
//!
//! - *pinned*: at least one [`ZonePin`](crate::ZonePin) names it;
//! - *open*: a stream appends to it (it may be pinned at the same time);
//! - free and *written*: had data once. Overwriting costs the host no metadata, so such zones go
//!   first;
//! - free and *fresh*: preallocated, never written;
//! - free and *unknown*: was free when the store was opened; the host may or may not have space
//!   behind it;
//! - free and *punched*: given back to the host.
//!
//! Written and fresh zones are *backed*: writing to them cannot find the host full. The reserve is
//! a number of backed free zones that user data must leave.

use env::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use env::sync::{Mutex, MutexGuard};

use crate::stream::Streams;
use crate::zone_use::ZoneUse;
use crate::{Error, Lifetime, Priority, Purpose, Result, SECTOR, ZONE_SIZE, ZoneId, round_up};

/// Zones by which a file grows at once, if there is room.
const GROWTH: u32 = 8;

pub(crate) struct Allocator {
    state: Mutex<AllocatorState>,
    /// Bytes of data that is not written yet, for which there is to be room. Changed without the
    /// lock.
    promised: Arc<AtomicU64>,
}

pub(crate) struct AllocatorState {
    pub started: bool,
    /// Zones the capacity allows, zone 0 included.
    pub limit: u32,
    pub reserve: u32,
    promised: Arc<AtomicU64>,
    pub zones: Vec<Zone>,
    pub written: BTreeSet<u32>,
    pub fresh: BTreeSet<u32>,
    pub unknown: BTreeSet<u32>,
    pub punched: BTreeSet<u32>,
    pub streams: Streams,
    /// The fewest backed free zones since somebody last asked.
    fewest: usize,
    /// Before the start: the end of the last extent known in a zone, and the largest share a single
    /// pin has in it.
    seen: BTreeMap<u32, Seen>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Zone {
    pub pins: u32,
    /// The sum over all pins, which may count the same bytes more than once.
    pub live: u64,
    pub open: bool,
    pub written: bool,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    end: u64,
    largest_hold: u64,
}

/// What the host must be asked for before a zone can be taken.
#[derive(Debug)]
pub(crate) enum Growth {
    /// Back these free zones; they are nobody's meanwhile.
    Back {
        zones: Vec<u32>,
        unknown: bool,
    },
    /// Make the device this many zones long (a smaller step may be tried).
    Grow {
        from: u32,
        to: u32,
    },
    Full,
}

impl Allocator {
    /// All zones but zone 0 belong to nobody until [`Allocator::start`].
    pub fn new(device_zones: u32, limit: u32, reserve: u32) -> Self {
        let promised = Arc::new(AtomicU64::new(0));
        let state = AllocatorState {
            started: false,
            limit,
            reserve,
            promised: promised.clone(),
            zones: vec![Zone::default(); device_zones.min(limit) as usize],
            written: BTreeSet::new(),
            fresh: BTreeSet::new(),
            unknown: BTreeSet::new(),
            punched: BTreeSet::new(),
            streams: Default::default(),
            fewest: 0,
            seen: BTreeMap::new(),
        };
        Allocator { state: Mutex::new(state), promised }
    }

    pub fn promise(&self, bytes: u64) {
        self.promised.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn release(&self, bytes: u64) {
        let before = self.promised.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes are released, and {before} were promised");
    }

    pub fn lock(&self) -> MutexGuard<'_, AllocatorState> {
        self.state.lock()
    }

    /// Counts one more pin for each zone of `uses`, all or none.
    pub fn pin(&self, uses: &ZoneUse) -> Result<()> {
        let mut state = self.lock();
        for (zone, _) in uses.iter() {
            let known = state.zones.get(zone.0 as usize).filter(|_| zone.0 > 0);
            let Some(known) = known else {
                return Err(Error::corrupt(
                    format!("{zone} is referred to, but is none of the store's"),
                    zone.start(),
                ));
            };
            if state.started && known.pins == 0 && !known.open {
                return Err(Error::corrupt(
                    format!("{zone} is referred to, but is free"),
                    zone.start(),
                ));
            }
        }
        for (zone, bytes) in uses.iter() {
            let known = &mut state.zones[zone.0 as usize];
            known.pins += 1;
            known.live = known.live.saturating_add(bytes);
            known.written = true;
            if !state.started {
                let seen = state.seen.entry(zone.0).or_default();
                seen.largest_hold = seen.largest_hold.max(bytes);
            }
        }
        Ok(())
    }

    /// Releases one pin.
    pub fn unpin(&self, uses: &ZoneUse) {
        if uses.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (zone, bytes) in uses.iter() {
            state.unpin(zone.0, bytes);
        }
    }

    /// Two pins become one: zones that both named are pinned once from here on.
    pub fn join(&self, both: &ZoneUse) {
        let mut state = self.lock();
        for (zone, _) in both.iter() {
            let known = &mut state.zones[zone.0 as usize];
            debug_assert!(known.pins >= 2, "both holds counted");
            known.pins -= 1;
        }
    }

    /// `bytes` more in a zone that a pin already names.
    pub fn charge(&self, zone: ZoneId, bytes: u64) {
        let mut state = self.lock();
        let known = &mut state.zones[zone.0 as usize];
        known.live = known.live.saturating_add(bytes);
    }

    /// Remembers that an extent lies there, so that no stream resumes in front of its end.
    pub fn saw_extent(&self, addr: u64, len: u64) {
        let mut state = self.lock();
        let zone = ZoneId::of(addr);
        if !state.started && zone != ZoneId::NOWHERE {
            let seen = state.seen.entry(zone.0).or_default();
            seen.end = seen.end.max(addr.saturating_add(len));
        }
    }

    /// From here on zones can be taken; those that nobody pinned are free.
    pub fn start(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        if state.started {
            return;
        }
        state.started = true;
        for stream in state.streams.iter_mut() {
            let Some(zone) = stream.zone() else { continue };
            let seen = state.seen.get(&zone).copied().unwrap_or_default();
            stream.skip_to(seen.end);
            // A zone that holds more than lies before the position was somebody else's since; one
            // that holds nothing is free.
            let plausible = state.zones.get(zone as usize).is_some_and(|known| {
                zone > 0
                    && known.pins > 0
                    && !known.open
                    && stream
                        .position()
                        .is_some_and(|p| p - ZoneId(zone).start() >= seen.largest_hold)
            });
            if plausible {
                state.zones[zone as usize].open = true;
            } else {
                tracing::debug!(zone, "a stream does not resume in its zone");
                stream.close();
            }
        }
        for zone in 1..state.zones.len() as u32 {
            let known = &state.zones[zone as usize];
            if known.pins == 0 && !known.open {
                state.unknown.insert(zone);
            }
        }
        // Where they were taken from is not known any more: at worst from where the store is now.
        let depth = state.depth(state.unknown.len() + 1);
        state.streams.iter_mut().for_each(|stream| stream.set_depth(depth));
        state.seen.clear();
    }

    /// New zones at the end of the device, which the host has allocated.
    pub fn grown(&self, to: u32) {
        let mut state = self.lock();
        let to = to.min(state.limit);
        for zone in state.zones.len() as u32..to {
            state.zones.push(Zone::default());
            state.fresh.insert(zone);
        }
    }

    /// Says what to ask the host for so that [`AllocatorState::take`] succeeds. Only one caller at a time
    /// may act on it.
    pub fn plan(&self, priority: Priority) -> Growth {
        let mut state = self.lock();
        let state = &mut *state;
        let wanted = (state.floor(priority) + 1).saturating_sub(state.backed()).max(1);
        // Unknown zones first: most of them have space behind them. Each is asked for once, then it
        // is known.
        for (unknown, free) in [(true, &mut state.unknown), (false, &mut state.punched)] {
            let zones: Vec<u32> = free.iter().copied().take(wanted).collect();
            if !zones.is_empty() {
                zones.iter().for_each(|zone| _ = free.remove(zone));
                return Growth::Back { zones, unknown };
            }
        }
        let from = state.zones.len() as u32;
        let to = from.saturating_add(GROWTH).min(state.limit);
        if to > from { Growth::Grow { from, to } } else { Growth::Full }
    }

    /// Ends [`Growth::Back`]: the host has, or has not, allocated the zone.
    pub fn backed(&self, zone: u32, success: bool) {
        let mut state = self.lock();
        if success { state.make_free(zone) } else { _ = state.punched.insert(zone) }
    }

    /// Free backed zones beyond the first `keep`, `most` of them, the highest; they are nobody's
    /// until [`Allocator::punched`].
    pub fn surplus(&self, keep: usize, most: usize) -> Vec<u32> {
        let mut state = self.lock();
        let state = &mut *state;
        if !state.started {
            return Vec::new();
        }
        let mut free: Vec<u32> = state.written.iter().chain(&state.fresh).copied().collect();
        free.sort_unstable();
        // What is backed for certain fills the stock before what may be.
        free.extend(state.unknown.iter().copied());
        let surplus = free.split_off(keep.max(free.len().saturating_sub(most)).min(free.len()));
        for zone in &surplus {
            for set in [&mut state.written, &mut state.fresh, &mut state.unknown] {
                set.remove(zone);
            }
        }
        surplus
    }

    /// Ends [`Allocator::surplus`] for one zone: it was given back, or the host refused.
    pub fn punched(&self, zone: u32, success: bool) {
        let mut state = self.lock();
        state.zones[zone as usize].written = false;
        let set = if success { &mut state.punched } else { &mut state.unknown };
        set.insert(zone);
    }
}

impl AllocatorState {
    /// Free zones whose space the host has set aside.
    pub fn backed(&self) -> usize {
        self.written.len() + self.fresh.len()
    }

    /// Backed free zones that were never needed since the last call.
    pub fn idle(&mut self) -> usize {
        let now = self.backed();
        std::mem::replace(&mut self.fewest, now).min(now)
    }

    /// Bytes that room was promised for.
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Free zones that must be left over.
    fn floor(&self, priority: Priority) -> usize {
        let promised = u32::try_from(self.promised().div_ceil(ZONE_SIZE)).unwrap_or(u32::MAX);
        priority.floor(self.reserve, promised) as usize
    }

    /// Takes the best free zone and pins it once, if the reserve allows it.
    pub fn take(&mut self, priority: Priority) -> Option<ZoneId> {
        if self.backed() <= self.floor(priority) {
            return None;
        }
        let zone = self.written.pop_first().or_else(|| self.fresh.pop_first())?;
        self.fewest = self.fewest.min(self.backed());
        let known = &mut self.zones[zone as usize];
        debug_assert!(known.pins == 0 && !known.open, "a free zone is nobody's");
        known.pins = 1;
        known.live = 0;
        known.written = true;
        Some(ZoneId(zone))
    }

    fn unpin(&mut self, zone: u32, bytes: u64) {
        let Some(known) = self.zones.get_mut(zone as usize) else { return };
        debug_assert!(known.pins > 0, "every hold was counted");
        known.pins = known.pins.saturating_sub(1);
        known.live = known.live.saturating_sub(bytes);
        if known.pins > 0 {
            return;
        }
        known.live = 0;
        if !known.open {
            if self.started {
                self.make_free(zone);
            }
            return;
        }
        // Nothing in the stream's zone is alive: it begins anew.
        for stream in self.streams.iter_mut() {
            if stream.zone() == Some(zone) {
                stream.rewind();
            }
        }
    }

    fn make_free(&mut self, zone: u32) {
        let set =
            if self.zones[zone as usize].written { &mut self.written } else { &mut self.fresh };
        let new = set.insert(zone);
        debug_assert!(new, "a zone is freed once");
    }

    /// Pins a zone once more for a writer that does not have it yet.
    pub fn pin_for_writer(&mut self, uses: &mut ZoneUse, zone: u32) {
        if !uses.contains(ZoneId(zone)) {
            self.zones[zone as usize].pins += 1;
            uses.add(ZoneId(zone), 0);
        }
    }

    /// Who may take one of so many free zones, and leaves most.
    fn depth(&self, free: usize) -> Priority {
        let may = |priority: &Priority| free > self.floor(*priority);
        [Priority::User, Priority::Promised, Priority::Log, Priority::Merge, Priority::Flush]
            .into_iter()
            .find(may)
            .unwrap_or(Priority::Last)
    }

    /// Reserves between `need` and `want` bytes in the open zone of a stream. A writer that could
    /// not take the zone itself leaves some of it.
    pub fn reserve_in(
        &mut self,
        purpose: Purpose,
        lifetime: Lifetime,
        priority: Priority,
        need: u64,
        want: u64,
        gaps: bool,
    ) -> Option<(u64, u64)> {
        let could_take = self.backed() > self.floor(priority);
        let stream = self.streams.of(purpose, lifetime);
        if !could_take && stream.is_kept_from(priority, want) {
            return None;
        }
        stream.reserve(need, want, gaps)
    }

    /// Reserves more exactly at `addr`, by the same rule.
    pub fn extend_at(
        &mut self,
        purpose: Purpose,
        priority: Priority,
        addr: u64,
        need: u64,
        want: u64,
    ) -> Option<u64> {
        let could_take = self.backed() > self.floor(priority);
        let streams = self.streams.lifetimes(purpose).iter_mut();
        // Only one of them stands there.
        streams
            .filter(|s| could_take || !s.is_kept_from(priority, want))
            .find_map(|stream| stream.extend(addr, need, want))
    }

    /// Lets a stream go on in `zone` (pinned by the caller) after `used` bytes of it, if that
    /// leaves it more room than the zone it has. Else the zone stays the caller's alone; says
    /// which.
    pub fn open_zone(
        &mut self,
        purpose: Purpose,
        lifetime: Lifetime,
        zone: ZoneId,
        used: u64,
    ) -> bool {
        // It is taken already.
        let depth = self.depth(self.backed() + 1);
        let stream = self.streams.of(purpose, lifetime);
        if stream.rest() >= ZONE_SIZE - used {
            return false;
        }
        let before = stream.open(zone.0, round_up(used, SECTOR), depth);
        self.zones[zone.0 as usize].open = true;
        if let Some(before) = before {
            let known = &mut self.zones[before as usize];
            known.open = false;
            if known.pins == 0 {
                self.make_free(before);
            }
        }
        true
    }
}

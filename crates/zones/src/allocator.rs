//! The allocator of zones. It knows which zones are free, and why other zones are in use. All state
//! is in memory, under one lock that is never held during I/O. When a store is opened, the state is
//! rebuilt from the pins that recovery takes. The allocator always takes the lowest suitable zone,
//! so that a seed reproduces a run.
//!
//! A zone is in one of these states:
//!
//! - *pinned*: at least one [`ZonePin`](crate::ZonePin) includes the zone;
//! - *open*: a stream appends to the zone, which may also be pinned;
//! - free and *written*: the zone had data. Overwriting this data costs the host no metadata, so
//!   such zones are taken first;
//! - free and *fresh*: the zone is preallocated and was never written;
//! - free and *unknown*: the zone was free when the store was opened, or was in use when the store
//!   was closed, and the host may or may not have allocated all of its space;
//! - free and *punched*: the zone was given back to the host. A store gives back all free zones
//!   when it is closed.
//!
//! Written and fresh zones are *backed*: writes to them do not fail for lack of space. The reserve
//! is a number of backed free zones that user data must leave.

use env::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use env::sync::{Mutex, MutexGuard};

use crate::stream::Streams;
use crate::zone_info::{ZoneInfo, ZoneState};
use crate::zone_use::ZoneUse;
use crate::{Error, Lifetime, Priority, Purpose, Result, SECTOR, ZONE_SIZE, ZoneId, round_up};

/// The number of zones by which a file grows at once if there is enough space.
const GROWTH: u32 = 8;

pub(crate) struct Allocator {
    state: Mutex<AllocatorState>,
    /// The number of bytes not yet written for which space was promised. It changes without the
    /// lock.
    promised: Arc<AtomicU64>,
}

pub(crate) struct AllocatorState {
    pub started: bool,
    /// `true` if the zones that are free before the start were given back to the host.
    pub given_back: bool,
    /// The number of zones that the capacity allows, including zone 0.
    pub limit: u32,
    pub reserve: u32,
    promised: Arc<AtomicU64>,
    pub zones: Vec<Zone>,
    pub written: BTreeSet<u32>,
    pub fresh: BTreeSet<u32>,
    pub unknown: BTreeSet<u32>,
    pub punched: BTreeSet<u32>,
    pub streams: Streams,
    /// The smallest number of backed free zones since the last call of `idle`.
    fewest: usize,
    /// The number of zones that were taken since the store was opened.
    taken: u64,
    /// The extents that were seen before the start, by zone: the end of the last extent, and the
    /// largest number of bytes that a single pin counts in the zone.
    seen: BTreeMap<u32, SeenExtents>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Zone {
    pub pins: u32,
    /// The number of bytes alive: the sum over all pins, which may count the same bytes more than
    /// once.
    pub live: u64,
    pub open: bool,
    pub written: bool,
    /// `true` if the host may lack space for a part of the zone that was given back.
    pub partial: bool,
    /// The number of zones that had been taken when this zone was taken, including this zone, or 0
    /// if it was not taken since the store was opened.
    taken: u64,
    purpose: Option<Purpose>,
}

#[derive(Clone, Copy, Default)]
struct SeenExtents {
    end: u64,
    largest_pin: u64,
}

/// The request that the host must fulfil before a zone can be taken.
#[derive(Debug)]
pub(crate) enum Growth {
    /// Allocate space for these free zones. They cannot be taken before that.
    Back {
        zones: Vec<u32>,
        unknown: bool,
    },
    /// Make the device this many zones long, or fewer if that fails.
    Grow {
        from: u32,
        to: u32,
    },
    Full,
}

impl Allocator {
    /// Creates an allocator in which no zone can be taken before [`Allocator::start`].
    pub fn new(device_zones: u32, limit: u32, reserve: u32) -> Self {
        let promised = Arc::new(AtomicU64::new(0));
        let state = AllocatorState {
            started: false,
            given_back: false,
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
            taken: 0,
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

    /// Adds a pin to each zone of `uses`, or to none if one does not exist.
    pub fn pin(&self, uses: &ZoneUse) -> Result<()> {
        let mut state = self.lock();
        for (zone, _) in uses.iter() {
            let known = state.zones.get(zone.0 as usize).filter(|_| zone.0 > 0);
            let Some(known) = known else {
                return Err(Error::corrupt(
                    format!("a reference to {zone}, which the store does not have"),
                    zone.start(),
                ));
            };
            if state.started && known.pins == 0 && !known.open {
                return Err(Error::corrupt(
                    format!("a reference to {zone}, which is free"),
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
                seen.largest_pin = seen.largest_pin.max(bytes);
            }
        }
        Ok(())
    }

    /// Adds a pin to each zone of `uses`, whatever the state of the zone here. The zone belongs to
    /// another state of the store, which was not written by this process.
    pub fn follow(&self, uses: &ZoneUse) {
        let mut state = self.lock();
        let state = &mut *state;
        for (zone, bytes) in uses.iter() {
            for new in state.zones.len() as u32..=zone.0 {
                state.zones.push(Zone::default());
                state.punched.insert(new);
            }
            for free in
                [&mut state.written, &mut state.fresh, &mut state.unknown, &mut state.punched]
            {
                free.remove(&zone.0);
            }
            let known = &mut state.zones[zone.0 as usize];
            known.pins += 1;
            known.live = known.live.saturating_add(bytes);
            known.written = true;
        }
    }

    /// Releases a pin of each zone of `uses`.
    pub fn unpin(&self, uses: &ZoneUse) {
        if uses.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (zone, bytes) in uses.iter() {
            state.unpin(zone.0, bytes);
        }
    }

    /// Merges two pins: releases one pin of the zones that both have.
    pub fn join(&self, both: &ZoneUse) {
        let mut state = self.lock();
        for (zone, _) in both.iter() {
            let known = &mut state.zones[zone.0 as usize];
            debug_assert!(known.pins >= 2, "both pins were counted");
            known.pins -= 1;
        }
    }

    /// Adds `bytes` to a pinned zone.
    pub fn charge(&self, zone: ZoneId, bytes: u64) {
        let mut state = self.lock();
        let known = &mut state.zones[zone.0 as usize];
        known.live = known.live.saturating_add(bytes);
    }

    /// Records an extent, so that no stream resumes before its end.
    pub fn saw_extent(&self, addr: u64, len: u64) {
        let mut state = self.lock();
        let zone = ZoneId::of(addr);
        if !state.started && zone != ZoneId::NOWHERE {
            let seen = state.seen.entry(zone.0).or_default();
            seen.end = seen.end.max(addr.saturating_add(len));
        }
    }

    /// Frees all zones without a pin, and allows zones to be taken.
    pub fn start(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        if state.started {
            return;
        }
        state.started = true;
        for (purpose, stream) in state.streams.iter_mut() {
            let Some(zone) = stream.zone() else { continue };
            let seen = state.seen.get(&zone).copied().unwrap_or_default();
            stream.skip_to(seen.end);
            // If a zone has more live bytes than lie before the recorded position, it was reused
            // after the position was recorded. A zone without live bytes is free.
            let plausible = state.zones.get(zone as usize).is_some_and(|known| {
                zone > 0
                    && known.pins > 0
                    && !known.open
                    && stream
                        .position()
                        .is_some_and(|p| p - ZoneId(zone).start() >= seen.largest_pin)
            });
            if plausible {
                let known = &mut state.zones[zone as usize];
                (known.open, known.purpose) = (true, Some(purpose));
            } else {
                tracing::debug!(zone, "a stream does not resume in its zone");
                stream.close();
            }
        }
        for zone in 1..state.zones.len() as u32 {
            let known = &state.zones[zone as usize];
            if known.pins == 0 && !known.open {
                let free = if state.given_back { &mut state.punched } else { &mut state.unknown };
                free.insert(zone);
            }
        }
        // The depth of the reserve at which these zones were taken is not known. It is at most the
        // current depth of the store.
        let depth = state.depth(state.unknown.len() + state.punched.len() + 1);
        state.streams.iter_mut().for_each(|(_, stream)| stream.set_depth(depth));
        state.seen.clear();
    }

    /// Adds the zones that the host has allocated at the end of the device.
    pub fn grown(&self, to: u32) {
        let mut state = self.lock();
        let to = to.min(state.limit);
        for zone in state.zones.len() as u32..to {
            state.zones.push(Zone::default());
            state.fresh.insert(zone);
        }
    }

    /// Returns the request to the host after which [`AllocatorState::take`] can succeed. Only one
    /// caller at a time may perform the request.
    pub fn plan(&self, priority: Priority) -> Growth {
        let mut state = self.lock();
        let state = &mut *state;
        let wanted = (state.floor(priority) + 1).saturating_sub(state.backed()).max(1);
        // Requests unknown zones first: most of them are allocated. After one request the state of
        // a zone is known.
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

    /// Completes [`Growth::Back`] for one zone. `success` says whether the host has allocated the
    /// zone.
    pub fn backed(&self, zone: u32, success: bool) {
        let mut state = self.lock();
        if success { state.make_free(zone) } else { _ = state.punched.insert(zone) }
    }

    /// Removes at most `most` free zones so that `keep` remain, and returns the removed zones.
    /// Unknown zones are removed first, then backed zones in descending order. They cannot be taken
    /// before [`Allocator::punched`].
    pub fn surplus(&self, keep: usize, most: usize) -> Vec<u32> {
        let mut state = self.lock();
        let state = &mut *state;
        if !state.started {
            return Vec::new();
        }
        let mut free: Vec<u32> = state.written.iter().chain(&state.fresh).copied().collect();
        free.sort_unstable();
        // Prefer to keep zones that are certainly backed over unknown ones.
        free.extend(state.unknown.iter().copied());
        let surplus = free.split_off(keep.max(free.len().saturating_sub(most)).min(free.len()));
        for zone in &surplus {
            for set in [&mut state.written, &mut state.fresh, &mut state.unknown] {
                set.remove(zone);
            }
        }
        surplus
    }

    /// Completes [`Allocator::surplus`] for one zone. `success` says whether the zone was given
    /// back to the host.
    pub fn punched(&self, zone: u32, success: bool) {
        let mut state = self.lock();
        state.zones[zone as usize].written = false;
        let set = if success { &mut state.punched } else { &mut state.unknown };
        set.insert(zone);
    }
}

impl AllocatorState {
    /// Returns the number of free zones for which the host has allocated space.
    pub fn backed(&self) -> usize {
        self.written.len() + self.fresh.len()
    }

    /// Returns the number of backed free zones that have been free since the last call.
    pub fn idle(&mut self) -> usize {
        let now = self.backed();
        std::mem::replace(&mut self.fewest, now).min(now)
    }

    /// Returns whether the host has allocated all free zones that the capacity allows.
    pub fn is_all_backed(&self) -> bool {
        self.unknown.is_empty() && self.punched.is_empty() && self.zones.len() as u32 >= self.limit
    }

    /// Returns the number of bytes for which space was promised.
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Returns the number of free zones that an allocation must leave.
    pub fn floor(&self, priority: Priority) -> usize {
        let promised = u32::try_from(self.promised().div_ceil(ZONE_SIZE)).unwrap_or(u32::MAX);
        priority.floor(self.reserve, promised) as usize
    }

    /// Takes the best free zone and pins it, if the reserve allows that.
    pub fn take(&mut self, priority: Priority) -> Option<ZoneId> {
        if self.backed() <= self.floor(priority) {
            return None;
        }
        let zone = self.written.pop_first().or_else(|| self.fresh.pop_first())?;
        self.fewest = self.fewest.min(self.backed());
        self.taken += 1;
        let known = &mut self.zones[zone as usize];
        debug_assert!(known.pins == 0 && !known.open, "a free zone has no pin");
        *known = Zone { pins: 1, written: true, taken: self.taken, ..Zone::default() };
        Some(ZoneId(zone))
    }

    /// Records the purpose for which a zone is taken.
    pub fn used_for(&mut self, zone: ZoneId, purpose: Purpose) {
        if let Some(known) = self.zones.get_mut(zone.0 as usize) {
            known.purpose = Some(purpose);
        }
    }

    /// Returns every zone of the device, in order.
    pub fn map(&self) -> Vec<ZoneInfo> {
        let info = |(number, zone): (usize, &Zone)| {
            let state = match number {
                0 => ZoneState::Superblock,
                _ if zone.open => ZoneState::Open,
                _ if zone.pins > 0 => ZoneState::Held,
                n if self.punched.contains(&(n as u32)) => ZoneState::GivenBack,
                _ => ZoneState::Free,
            };
            let used = matches!(state, ZoneState::Open | ZoneState::Held);
            ZoneInfo {
                state,
                live: if used { zone.live.min(ZONE_SIZE) } else { 0 },
                purpose: zone.purpose.filter(|_| used),
                // A zone that is free again has no age.
                age: (used && zone.taken > 0).then(|| self.taken - zone.taken),
            }
        };
        self.zones.iter().enumerate().map(info).collect()
    }

    fn unpin(&mut self, zone: u32, bytes: u64) {
        let Some(known) = self.zones.get_mut(zone as usize) else { return };
        debug_assert!(known.pins > 0, "every pin was counted");
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
        // No data in the stream's zone is alive, so the stream restarts at the beginning of the
        // zone.
        for (_, stream) in self.streams.iter_mut() {
            if stream.zone() == Some(zone) {
                stream.rewind();
            }
        }
    }

    /// Closes the stream that fills this zone, because the host may lack space for the rest of the
    /// zone.
    pub fn close_stream(&mut self, zone: ZoneId) {
        let streams = self.streams.iter_mut().map(|(_, stream)| stream);
        streams.filter(|s| s.zone() == Some(zone.0)).for_each(|stream| stream.close());
        let Some(known) = self.zones.get_mut(zone.0 as usize) else { return };
        (known.open, known.partial) = (false, true);
        if known.pins == 0 {
            self.make_free(zone.0);
        }
    }

    /// Returns the address ranges without data: free zones, and the unused rests of the zones of
    /// streams. Marks the free zones as given back to the host.
    pub fn take_unused(&mut self) -> Vec<(u64, u64)> {
        let mut unused: Vec<(u64, u64)> =
            self.streams.iter_mut().flat_map(|(_, stream)| stream.unused()).collect();
        for set in [&mut self.written, &mut self.fresh, &mut self.unknown] {
            self.punched.append(set);
        }
        unused.extend(self.punched.iter().map(|&z| (ZoneId(z).start(), ZoneId(z).end())));
        for &zone in &self.punched {
            self.zones[zone as usize].written = false;
        }
        unused
    }

    fn make_free(&mut self, zone: u32) {
        let known = &mut self.zones[zone as usize];
        if std::mem::take(&mut known.partial) {
            self.unknown.insert(zone);
            return;
        }
        let set = if known.written { &mut self.written } else { &mut self.fresh };
        let new = set.insert(zone);
        debug_assert!(new, "a zone is freed once");
    }

    /// Pins a zone for a writer unless the writer has it already.
    pub fn pin_for_writer(&mut self, uses: &mut ZoneUse, zone: u32) {
        if !uses.contains(ZoneId(zone)) {
            self.zones[zone as usize].pins += 1;
            uses.add(ZoneId(zone), 0);
        }
    }

    /// Returns the lowest priority that may take a zone if `free` zones are free.
    fn depth(&self, free: usize) -> Priority {
        let may = |priority: &Priority| free > self.floor(*priority);
        [Priority::User, Priority::Promised, Priority::Log, Priority::Merge, Priority::Flush]
            .into_iter()
            .find(may)
            .unwrap_or(Priority::Last)
    }

    /// Reserves between `need` and `want` bytes in the open zone of a stream. A writer whose
    /// priority could not have taken the zone must leave a part of it.
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

    /// Reserves between `need` and `want` bytes at `addr`, under the same rule as `reserve_in`.
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
        // Only one of the streams has this position.
        streams
            .filter(|s| could_take || !s.is_kept_from(priority, want))
            .find_map(|stream| stream.extend(addr, need, want))
    }

    /// Continues a stream after `used` bytes of `zone`, which the caller has pinned, if `zone` has
    /// more room than the current zone of the stream. Otherwise `zone` belongs to the caller alone.
    /// Returns whether the stream continues in `zone`.
    pub fn open_zone(
        &mut self,
        purpose: Purpose,
        lifetime: Lifetime,
        zone: ZoneId,
        used: u64,
    ) -> bool {
        // Add one because the zone itself is already taken.
        let depth = self.depth(self.backed() + 1);
        self.used_for(zone, purpose);
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

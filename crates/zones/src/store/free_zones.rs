//! Where free zones come from and go to: the host gives space when the store grows, gets back what
//! stays free, and extent writers reserve chunks of zones.

use std::sync::atomic::Ordering;

use super::Zones;
use crate::allocator::Growth;
use crate::{
    Device, Error, Lifetime, Priority, Purpose, Result, Space, ZONE_SIZE, ZoneId, ZonePin, ZoneUse,
};

/// Free zones beyond the reserve that are kept for reuse instead of being given back to the host.
const STOCK: usize = 4;

impl Zones {
    /// Gives free zones beyond a small stock (and the reserve) back to the host. Returns the bytes
    /// given.
    pub fn give_back(&self) -> Result<u64> {
        self.give(STOCK, usize::MAX)
    }

    /// Gives back, of those, what was free all the time since the last call, but no more than
    /// `most` zones: what a store under load does now and then, so that space used for a moment
    /// does not stay with it.
    pub fn give_back_idle(&self, most: usize) -> Result<u64> {
        let idle = {
            let mut state = self.allocator.lock();
            state.idle().saturating_sub(state.reserve as usize + STOCK)
        };
        self.give(STOCK, idle.min(most))
    }

    /// Free zones that [`Zones::give_back`] would give.
    pub fn spare(&self) -> usize {
        let state = self.allocator.lock();
        (state.backed() + state.unknown.len()).saturating_sub(state.reserve as usize + STOCK)
    }

    fn give(&self, stock: usize, most: usize) -> Result<u64> {
        /// Zones that go at once. Whoever needs a new zone waits for so long.
        const AT_ONCE: usize = 2;
        let mut given = 0;
        let mut left = most;
        while left > 0 {
            let _growing = self.growing.lock();
            let keep = stock + self.allocator.lock().reserve as usize;
            let mut surplus = self.allocator.surplus(keep, left.min(AT_ONCE));
            if surplus.is_empty() {
                break;
            }
            left -= surplus.len();
            surplus.sort_unstable();
            let mut failure = None;
            // Neighbours go together.
            for stretch in surplus.chunk_by(|a, b| a + 1 == *b) {
                let len = stretch.len() as u64 * ZONE_SIZE;
                if failure.is_none() {
                    match self.device.discard(ZoneId(stretch[0]).start(), len) {
                        Ok(()) => given += len,
                        Err(e) => failure = Some(e),
                    }
                }
                stretch.iter().for_each(|&zone| self.allocator.punched(zone, failure.is_none()));
            }
            if let Some(e) = failure {
                return Err(Error::io("giving space back to the host", e));
            }
        }
        Ok(given)
    }

    pub fn space(&self) -> Space {
        let capacity = self.superblock.lock().0.capacity;
        let host_zones = self.device.host_free().map_or(u64::MAX, |bytes| bytes / ZONE_SIZE);
        let state = self.allocator.lock();
        let pinned = || state.zones.iter().filter(|zone| zone.pins > 0);
        let backed = (state.backed() + state.unknown.len()) as u64;
        let punched = state.punched.len() as u64;
        let growable = u64::from(state.limit) - state.zones.len() as u64;
        let takeable = backed.saturating_add(host_zones.min(punched + growable));
        let for_user = takeable.saturating_sub(u64::from(state.reserve)).saturating_mul(ZONE_SIZE);
        let promised = state.promised();
        Space {
            capacity,
            device_len: self.device_len.load(Ordering::Acquire),
            zones_total: state.zones.len() as u64,
            zones_free: backed + punched,
            zones_pinned: pinned().count() as u64,
            live_bytes: pinned().map(|zone| zone.live.min(ZONE_SIZE)).sum(),
            reserve: state.reserve,
            free_for_user: for_user.saturating_sub(promised),
            promised,
        }
    }

    /// Every pinned zone with its live bytes (at most a zone's) and the number of its pins, in
    /// ascending order.
    pub fn usage(&self) -> Vec<(ZoneId, u64, u32)> {
        let state = self.allocator.lock();
        let pinned = state.zones.iter().enumerate().filter(|(_, zone)| zone.pins > 0);
        pinned
            .map(|(number, zone)| (ZoneId(number as u32), zone.live.min(ZONE_SIZE), zone.pins))
            .collect()
    }

    /// A pin of nothing that writers can add to.
    pub(crate) fn empty_pin(&self) -> ZonePin {
        ZonePin::counted(&self.allocator, ZoneUse::new())
    }

    /// Reserves between `need` and `want` bytes (multiples of `SECTOR`) in the stream's open zone,
    /// or in a new one, and puts the zone into `pin`; a new one comes from `supply` if that has
    /// any. Address and length.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn reserve_chunk(
        &self,
        purpose: Purpose,
        lifetime: Lifetime,
        priority: Priority,
        need: u64,
        want: u64,
        gaps: bool,
        pin: &mut ZonePin,
        supply: &mut Vec<ZonePin>,
    ) -> Result<(u64, u64)> {
        let from_open_zone = |lifetime: Lifetime, pin: &mut ZonePin| {
            let mut state = self.allocator.lock();
            let chunk = state.reserve_in(purpose, lifetime, priority, need, want, gaps)?;
            state.pin_for_writer(pin.uses_mut(), ZoneId::of(chunk.0).0);
            Some(chunk)
        };
        if !self.allocator.lock().started {
            return Err(Error::NotStarted);
        }
        if let Some(chunk) = from_open_zone(lifetime, pin) {
            return Ok(chunk);
        }
        let taken = match supply.pop() {
            Some(taken) => taken,
            None => match self.acquire(priority) {
                // A full store cannot keep young and old apart.
                Err(Error::NoSpace) => {
                    let chunk = Lifetime::ALL
                        .into_iter()
                        .find_map(|lifetime| from_open_zone(lifetime, pin));
                    return chunk.ok_or(Error::NoSpace);
                }
                taken => taken?,
            },
        };
        // Another writer may have opened a zone meanwhile; then the one taken is free again.
        if let Some(chunk) = from_open_zone(lifetime, pin) {
            return Ok(chunk);
        }
        let Some((zone, _)) = taken.uses().iter().next() else { return Err(Error::NoSpace) };
        pin.merge(taken);
        let used = want.min(ZONE_SIZE);
        let shared = self.allocator.lock().open_zone(purpose, lifetime, zone, used);
        // A zone that the stream does not go on in is this writer's to the end.
        Ok((zone.start(), if shared { used } else { ZONE_SIZE }))
    }

    /// Reserves more right behind a chunk; `None` when somebody else has that.
    pub(crate) fn extend_chunk(
        &self,
        purpose: Purpose,
        priority: Priority,
        end: u64,
        need: u64,
        want: u64,
    ) -> Option<u64> {
        self.allocator.lock().extend_at(purpose, priority, end, need, want)
    }

    /// The range was reserved and holds nothing that counts.
    pub(crate) fn give_chunk_back(&self, purpose: Purpose, start: u64, end: u64) {
        if start < end {
            self.allocator
                .lock()
                .streams
                .lifetimes(purpose)
                .iter_mut()
                .for_each(|stream| stream.give_back(start, end));
        }
    }

    /// Takes a free zone, asking the host for more if there is none; the pin has it with no bytes
    /// yet.
    pub(super) fn acquire(&self, priority: Priority) -> Result<ZonePin> {
        let take = || {
            let mut state = self.allocator.lock();
            if !state.started {
                return Err(Error::NotStarted);
            }
            Ok(state.take(priority))
        };
        let pin = |zone| {
            let mut uses = ZoneUse::new();
            uses.add(zone, 0);
            ZonePin::counted(&self.allocator, uses)
        };
        if let Some(zone) = take()? {
            return Ok(pin(zone));
        }
        let _growing = self.growing.lock();
        loop {
            if let Some(zone) = take()? {
                return Ok(pin(zone));
            }
            if !self.grow(priority)? {
                // A pin may have been dropped while the host was asked.
                return take()?.map(pin).ok_or(Error::NoSpace);
            }
        }
    }

    /// Asks the host for more space once; false when neither it nor the capacity gives any. The
    /// caller holds `growing`.
    fn grow(&self, priority: Priority) -> Result<bool> {
        let full = |e: &std::io::Error| {
            matches!(Error::io("", std::io::Error::from(e.kind())), Error::NoSpace)
        };
        match self.allocator.plan(priority) {
            Growth::Full => Ok(false),
            Growth::Back { zones, unknown } => {
                let (mut success, mut failure) = (false, None);
                for zone in zones {
                    let backed = match failure {
                        None => self.device.allocate(ZoneId(zone).start(), ZONE_SIZE),
                        Some(_) => Err(std::io::ErrorKind::StorageFull.into()),
                    };
                    self.allocator.backed(zone, backed.is_ok());
                    match backed {
                        Ok(()) => success = true,
                        Err(e) if full(&e) => {}
                        Err(e) => failure = Some(e),
                    }
                }
                match failure {
                    Some(e) => Err(Error::io("allocating space in the store", e)),
                    // Those that were unknown are known now, so asking again gets somewhere.
                    None => Ok(success || unknown),
                }
            }
            Growth::Grow { from, to } => {
                let grown = match self.device.grow(ZoneId(to).start()) {
                    Err(e) if full(&e) && to > from + 1 => {
                        self.device.grow(ZoneId(from + 1).start()).map(|()| from + 1)
                    }
                    other => other.map(|()| to),
                };
                match grown {
                    Ok(to) => {
                        self.device_len.fetch_max(ZoneId(to).start(), Ordering::AcqRel);
                        self.allocator.grown(to);
                        Ok(true)
                    }
                    Err(e) if full(&e) => Ok(false),
                    Err(e) => Err(Error::io("growing the store", e)),
                }
            }
        }
    }

    /// Backs the reserve of a new store.
    pub(super) fn fill_reserve(&self) -> Result<()> {
        let _growing = self.growing.lock();
        loop {
            {
                let state = self.allocator.lock();
                if state.backed() >= state.reserve as usize {
                    return Ok(());
                }
            }
            if !self.grow(Priority::User)? {
                return Err(Error::NoSpace);
            }
        }
    }
}

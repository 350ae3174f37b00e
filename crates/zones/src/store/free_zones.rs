//! Management of free zones: requests zones from the host, gives zones back to the host, and
//! reserves ranges of zones for extent writers.

use std::sync::atomic::Ordering;

use super::Zones;
use crate::allocator::Growth;
use crate::superblock;
use crate::{
    Device, Error, Lifetime, Priority, Purpose, Result, Space, ZONE_SIZE, ZoneId, ZoneInfo,
    ZonePin, ZoneUse,
};

/// The number of free zones beyond the reserve that are kept for reuse instead of being given back
/// to the host.
const STOCK: usize = 4;

impl Zones {
    /// Gives free zones beyond the reserve, promised space and a small stock back to the host.
    /// Returns the number of bytes given back.
    pub fn give_back(&self) -> Result<u64> {
        self.give(STOCK, usize::MAX)
    }

    /// Gives back at most `most` zones that have been free since the last call, so that a store
    /// under load does not keep space that it used for a moment. Returns the number of bytes given
    /// back.
    pub fn give_back_idle(&self, most: usize) -> Result<u64> {
        let idle = {
            let mut state = self.allocator.lock();
            state.idle().saturating_sub(state.floor(Priority::User) + STOCK)
        };
        self.give(STOCK, idle.min(most))
    }

    /// Returns the number of zones that [`Zones::give_back`] would give back.
    pub fn spare(&self) -> usize {
        let state = self.allocator.lock();
        (state.backed() + state.unknown.len()).saturating_sub(state.floor(Priority::User) + STOCK)
    }

    fn give(&self, stock: usize, most: usize) -> Result<u64> {
        /// The number of zones that are given back at once, which limits the time for which an
        /// allocation waits.
        const AT_ONCE: usize = 2;
        let mut given = 0;
        let mut left = most;
        while left > 0 {
            let _growing = self.growing.lock();
            let keep = stock + self.allocator.lock().floor(Priority::User);
            let mut surplus = self.allocator.surplus(keep, left.min(AT_ONCE));
            if surplus.is_empty() {
                break;
            }
            left -= surplus.len();
            surplus.sort_unstable();
            let mut failure = None;
            // Give neighbouring zones back together.
            for adjacent in surplus.chunk_by(|a, b| a + 1 == *b) {
                let len = adjacent.len() as u64 * ZONE_SIZE;
                if failure.is_none() {
                    match self.device.discard(ZoneId(adjacent[0]).start(), len) {
                        Ok(()) => given += len,
                        Err(e) => failure = Some(e),
                    }
                }
                adjacent.iter().for_each(|&zone| self.allocator.punched(zone, failure.is_none()));
            }
            if let Some(e) = failure {
                return Err(Error::io("giving space back to the host", e));
            }
        }
        Ok(given)
    }

    /// Gives all unused space of a store that is being closed back to the host. This is the space
    /// of free zones including the reserve, of the rests of zones that streams fill, of zone 0
    /// except for the superblocks, and of `rest`, which are address ranges in zones in use that the
    /// caller no longer needs. Nothing may be written afterwards, and the next opening must call
    /// [`Zones::was_given_back`]. A device whose size is fixed keeps all space.
    pub fn give_all_back(&self, rest: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        if !self.device.can_grow() {
            return Ok(());
        }
        let _growing = self.growing.lock();
        let mut unused: Vec<(u64, u64)> = self.allocator.lock().take_unused();
        // A store with zones in object storage has its records in the rest of zone 0.
        if self.remote.is_none() {
            unused.extend(superblock::unused());
        }
        unused.extend(rest);
        unused.sort_unstable();
        // Give neighbouring ranges back together.
        for adjacent in unused.chunk_by(|a, b| a.1 == b.0) {
            let (Some(first), Some(last)) = (adjacent.first(), adjacent.last()) else { continue };
            self.device
                .discard(first.0, last.1 - first.0)
                .map_err(|e| Error::io("giving space back to the host", e))?;
        }
        Ok(())
    }

    /// Returns the current free and used space.
    pub fn space(&self) -> Space {
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
            capacity: self.capacity,
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

    /// Returns every pinned zone with its live bytes (at most a zone) and the number of its pins,
    /// in ascending order.
    pub fn usage(&self) -> Vec<(ZoneId, u64, u32)> {
        let state = self.allocator.lock();
        let pinned = state.zones.iter().enumerate().filter(|(_, zone)| zone.pins > 0);
        pinned
            .map(|(number, zone)| (ZoneId(number as u32), zone.live.min(ZONE_SIZE), zone.pins))
            .collect()
    }

    /// Returns every zone of the device, in order, with its use and its age.
    pub fn map(&self) -> Vec<ZoneInfo> {
        self.allocator.lock().map()
    }

    /// Returns an empty pin of this store.
    pub(crate) fn empty_pin(&self) -> ZonePin {
        ZonePin::counted(&self.allocator, ZoneUse::new())
    }

    /// Reserves between `need` and `want` bytes (multiples of `SECTOR`) in the open zone of the
    /// stream or in a new zone, and adds the zone to `pin`. The new zone is taken from `supply`
    /// unless `supply` is empty. Returns the address and the length.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn reserve_range(
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
            let range = state.reserve_in(purpose, lifetime, priority, need, want, gaps)?;
            state.pin_for_writer(pin.uses_mut(), ZoneId::of(range.0).0);
            Some(range)
        };
        if !self.allocator.lock().started {
            return Err(Error::NotStarted);
        }
        if let Some(range) = from_open_zone(lifetime, pin) {
            return Ok(range);
        }
        let (taken, supplied) = match supply.pop() {
            Some(taken) => (taken, true),
            None => match self.acquire(priority) {
                // In a full store, data of different lifetimes shares zones.
                Err(Error::NoSpace) => {
                    let range = Lifetime::ALL
                        .into_iter()
                        .find_map(|lifetime| from_open_zone(lifetime, pin));
                    return range.ok_or(Error::NoSpace);
                }
                taken => (taken?, false),
            },
        };
        // Another writer may have opened a zone concurrently. Then the zone that was taken is freed
        // again, or returned to the supply, on which later objects rely.
        if let Some(range) = from_open_zone(lifetime, pin) {
            if supplied {
                supply.push(taken);
            }
            return Ok(range);
        }
        let Some((zone, _)) = taken.uses().iter().next() else { return Err(Error::NoSpace) };
        pin.merge(taken);
        let used = want.min(ZONE_SIZE);
        let shared = self.allocator.lock().open_zone(purpose, lifetime, zone, used);
        // If the stream does not continue in this zone, the whole zone belongs to this writer.
        Ok((zone.start(), if shared { used } else { ZONE_SIZE }))
    }

    /// Reserves between `need` and `want` bytes directly after a range that ends at `end`, and
    /// returns the length. Returns `None` if these bytes belong to another writer.
    pub(crate) fn extend_range(
        &self,
        purpose: Purpose,
        priority: Priority,
        end: u64,
        need: u64,
        want: u64,
    ) -> Option<u64> {
        self.allocator.lock().extend_at(purpose, priority, end, need, want)
    }

    /// Gives back a range that was reserved and has no data.
    pub(crate) fn give_range_back(&self, purpose: Purpose, start: u64, end: u64) {
        if start < end {
            self.allocator
                .lock()
                .streams
                .lifetimes(purpose)
                .iter_mut()
                .for_each(|stream| stream.give_back(start, end));
        }
    }

    /// Takes a free zone, and requests more space from the host if no zone is free. The pin counts
    /// no bytes in the zone.
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
                // A pin may have been dropped since the last attempt.
                return take()?.map(pin).ok_or(Error::NoSpace);
            }
        }
    }

    /// Requests space from the host once. Returns `false` if neither the host nor the capacity
    /// allows more. The caller holds `growing`.
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
                    // The state of the unknown zones is now known, so another attempt makes
                    // progress.
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

    /// Makes the host allocate the space that was promised ([`Zones::promise`]) and the reserve, so
    /// that both are available even if other programs fill the host. Returns [`Error::NoSpace`] if
    /// the host does not have enough space. The capacity of the store is not checked; see
    /// [`Zones::space`].
    pub fn back_promises(&self) -> Result<()> {
        loop {
            // Hold the lock for one request at a time, so that other callers can take zones in
            // between.
            let _growing = self.growing.lock();
            {
                let state = self.allocator.lock();
                if state.backed() >= state.floor(Priority::User) || state.is_all_backed() {
                    return Ok(());
                }
            }
            if !self.grow(Priority::User)? {
                return Err(Error::NoSpace);
            }
        }
    }

    /// Allocates the reserve of a store without one, which is a new store or one that was closed.
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

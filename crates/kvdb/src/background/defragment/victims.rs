//! Selection of the zones to empty: the bytes that the runs of a version have in each zone, and the
//! cheapest zones among them.

use std::collections::{BTreeMap, BTreeSet};

use vt_tree::ZoneWeight;
use zones::{Lifetime, Purpose, ZONE_SIZE, ZoneId, Zones};

use super::Defragmenter;
use crate::background::policy::lifetime;
use crate::error::Result;
use crate::version::Version;

/// Items that are longer than this on average leave gaps at the end of a zone, bytes.
const LONG: u64 = 64 << 10;

/// Zones to empty.
#[derive(Default)]
pub(super) struct Victims {
    pub zones: BTreeSet<ZoneId>,
    pub live: u64,
    /// The part of `live` that fits into open zones and needs no new zone.
    room: u64,
}

/// A zone that may be emptied: its cost, the bytes that are left in it, and its number.
type Candidate = (u64, u64, ZoneId);

impl Victims {
    /// Takes the first of `candidates`, up to `most` bytes of them, but at least one.
    fn cheapest(candidates: &[Candidate], most: u64) -> Victims {
        let mut victims = Victims::default();
        for (_, live, zone) in candidates {
            if victims.live + live > most && !victims.zones.is_empty() {
                break;
            }
            victims.live += live;
            victims.zones.insert(*zone);
        }
        victims
    }

    /// Returns the number of zones gained once the live bytes have been moved.
    pub(super) fn gain(&self) -> u64 {
        let taken = self.live.saturating_sub(self.room).div_ceil(ZONE_SIZE);
        (self.zones.len() as u64).saturating_sub(taken)
    }
}

/// The zones that runs use, and the live bytes in them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holes {
    pub zones: u64,
    pub live: u64,
}

impl Holes {
    /// Sums up the usage of zones by the runs of a version, from totals that the runs carry,
    /// without I/O. Zones in object storage do not count, since they never become free.
    pub(in crate::background) fn of(version: &Version, store: &Zones) -> Holes {
        let mut zones: BTreeMap<ZoneId, u64> = BTreeMap::new();
        for tree in version.trees.values() {
            let own = |(zone, _): &(ZoneId, u64)| !store.is_remote_zone(*zone);
            tree.runs().flat_map(|p| p.run.sectors()).filter(own).for_each(|(zone, bytes)| {
                let sum = zones.entry(zone).or_default();
                *sum = sum.saturating_add(bytes);
            });
        }
        Holes {
            zones: zones.len() as u64,
            live: zones.values().map(|live| (*live).min(ZONE_SIZE)).sum(),
        }
    }

    /// Returns the bytes of these zones that are not live.
    pub(super) fn bytes(&self) -> u64 {
        (self.zones * ZONE_SIZE).saturating_sub(self.live)
    }

    pub(super) fn percent(&self) -> u64 {
        self.bytes() * 100 / (self.zones * ZONE_SIZE).max(1)
    }

    /// Returns the number of zones that would be free if the rest were full.
    pub(crate) fn reclaimable(&self) -> u64 {
        self.zones.saturating_sub(self.live.div_ceil(ZONE_SIZE))
    }
}

impl Defragmenter {
    /// Returns the usage of zones by the runs of the store.
    pub(crate) fn holes(&self) -> Holes {
        Holes::of(&self.engine.versions.load(), &self.engine.zones)
    }

    /// Returns how many of `zones` no run uses any more.
    pub(super) fn emptied(&self, zones: &BTreeSet<ZoneId>) -> u64 {
        let version = self.engine.versions.load();
        let used: BTreeSet<ZoneId> = version
            .trees
            .values()
            .flat_map(|tree| tree.runs())
            .flat_map(|p| p.run.uses().iter())
            .map(|(zone, _)| zone)
            .filter(|zone| zones.contains(zone))
            .collect();
        (zones.len() - used.len()) as u64
    }

    /// Returns the cheapest zones to empty, up to `most` bytes of them, or none if nothing can be
    /// gained.
    pub(super) fn victims(&self, most: u64, fullest_percent: u64) -> Result<Victims> {
        let version = self.engine.versions.load_full();
        let candidates = self.candidates(&version, fullest_percent)?;
        let victims = Victims::cheapest(&candidates, most);
        if victims.gain() > 0 {
            return Ok(victims);
        }
        // Only zones whose data fits into open zones are left. Leave half of that room, so that
        // little is moved compared with the gain.
        let room = self.room_by_purpose().map(|room| room / 2);
        let fitting =
            self.young(&version, &candidates).scan(room, |room, (purpose, zone, live)| {
                let left = &mut room[purpose as usize];
                *left = left.checked_sub(live)?;
                Some((zone, live))
            });
        let (zones, live): (BTreeSet<ZoneId>, Vec<u64>) = fitting.unzip();
        let live = live.iter().sum();
        Ok(Victims { zones, live, room: live })
    }

    /// Returns victims for a store that has run short of space, in which a zone is worth any amount
    /// of moved data.
    pub(super) fn victims_at_any_cost(&self, most: u64, fullest_percent: u64) -> Result<Victims> {
        let version = self.engine.versions.load_full();
        let candidates = self.candidates(&version, fullest_percent)?;
        let mut victims = Victims::cheapest(&candidates, most);
        let mut young = [0; Purpose::ALL.len()];
        for (purpose, zone, live) in self.young(&version, &candidates) {
            young[purpose as usize] += if victims.zones.contains(&zone) { live } else { 0 };
        }
        victims.room = young.iter().zip(self.room_by_purpose()).map(|(a, b)| b.min(*a)).sum();
        if victims.gain() == 0 { Ok(Victims::default()) } else { Ok(victims) }
    }

    /// Returns the room in the open zones of young data, bytes.
    fn room_by_purpose(&self) -> [u64; Purpose::ALL.len()] {
        Purpose::ALL.map(|purpose| self.engine.zones.room(purpose, Lifetime::Young))
    }

    /// Returns the `candidates` whose data would be moved to zones of young data.
    fn young<'a>(
        &self,
        version: &Version,
        candidates: &'a [Candidate],
    ) -> impl Iterator<Item = (Purpose, ZoneId, u64)> + 'a {
        let (map, elsewhere) = (self.engine.zones.map(), self.moved_elsewhere(version));
        let young = candidates.iter().filter(move |(.., zone)| !elsewhere.contains(zone));
        young.filter_map(move |&(_, live, zone)| {
            Some((map.get(zone.0 as usize)?.purpose?, zone, live))
        })
    }

    /// Returns the bytes that the runs of a version have in each zone.
    pub(super) fn weigh(&self, version: &Version) -> Result<BTreeMap<ZoneId, ZoneWeight>> {
        let mut weights = BTreeMap::new();
        for numbered in version.trees.values().flat_map(|t| t.runs()) {
            numbered.run.weigh_zones(&mut weights)?;
        }
        Ok(weights)
    }

    /// Returns the zones that may be emptied, the cheapest first.
    fn candidates(&self, version: &Version, fullest_percent: u64) -> Result<Vec<Candidate>> {
        let weights = self.weigh(version)?;
        // A zone that a snapshot uses is not gained by moving the other data there.
        let kept = self.engine.snapshots.zones();
        let open: BTreeSet<ZoneId> =
            self.engine.zones.positions().iter().map(|(_, addr)| ZoneId::of(*addr)).collect();
        // A zone that is also held by another user, such as a reader of an older version or a flush
        // in progress, would not become free.
        let held: BTreeMap<ZoneId, u64> =
            self.engine.zones.usage().into_iter().map(|(zone, live, _)| (zone, live)).collect();
        let alone = |zone: &ZoneId, bytes: u64| held.get(zone).is_some_and(|live| *live <= bytes);
        let mut candidates: Vec<Candidate> = weights
            .iter()
            .filter(|(zone, w)| {
                w.bytes.saturating_mul(100) < ZONE_SIZE * fullest_percent
                    && !open.contains(zone)
                    && !kept.contains(zone)
                    && !self.engine.zones.is_remote_zone(**zone)
                    && alone(zone, w.bytes)
            })
            .map(|(zone, w)| {
                (
                    w.bytes.saturating_add(w.spans.saturating_mul(self.engine.options.seek_bytes)),
                    w.bytes,
                    *zone,
                )
            })
            .collect();
        candidates.sort_unstable();
        Ok(candidates)
    }

    /// Returns the zones with data that would not be moved to zones of young data, or that is so
    /// long that it may not fit there. In a small store all data goes to young zones; in a large
    /// store one zone more or less is insignificant.
    fn moved_elsewhere(&self, version: &Version) -> BTreeSet<ZoneId> {
        let runs = version.trees.values().flat_map(|t| t.by_level());
        let elsewhere = runs.filter(|(level, numbered)| {
            let stats = numbered.run.stats();
            let long = stats.block_bytes.saturating_add(stats.value_bytes) / LONG > stats.items;
            long || lifetime(&self.engine.zones, [*numbered], *level) != Lifetime::Young
        });
        elsewhere.flat_map(|(_, p)| p.run.uses().iter()).map(|(zone, _)| zone).collect()
    }
}

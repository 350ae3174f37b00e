//! Which zones to empty: what the runs of a version hold, by zone, and the cheapest of them.

use std::collections::{BTreeMap, BTreeSet};

use vt_tree::ZoneWeight;
use zones::{Lifetime, Purpose, ZONE_SIZE, ZoneId, Zones};

use super::Defragmenter;
use crate::background::policy::lifetime;
use crate::error::Result;
use crate::read::version::Version;

/// Items that are longer than this on average leave gaps at the end of a zone, bytes.
const LONG: u64 = 64 << 10;

/// Zones to empty.
#[derive(Default)]
pub(super) struct Victims {
    pub zones: BTreeSet<ZoneId>,
    pub live: u64,
    /// Bytes of it that fit into zones which are open: they take no other zone.
    room: u64,
}

/// A zone that may be emptied: its cost, the bytes that are left in it, and its number.
type Candidate = (u64, u64, ZoneId);

impl Victims {
    /// The first of `candidates`, `most` bytes of them, but at least one.
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

    /// Zones that are free when their live bytes lie elsewhere.
    pub(super) fn gain(&self) -> u64 {
        let taken = self.live.saturating_sub(self.room).div_ceil(ZONE_SIZE);
        (self.zones.len() as u64).saturating_sub(taken)
    }
}

/// What runs keep of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holes {
    pub zones: u64,
    pub live: u64,
}

impl Holes {
    /// What the runs of a version hold, by zone, from the sums that they carry: no I/O. Zones that
    /// lie in object storage do not count, since they are never free.
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

    /// Bytes of these zones in which nothing is alive.
    pub(super) fn bytes(&self) -> u64 {
        (self.zones * ZONE_SIZE).saturating_sub(self.live)
    }

    pub(super) fn percent(&self) -> u64 {
        self.bytes() * 100 / (self.zones * ZONE_SIZE).max(1)
    }

    /// Zones that could be free if the rest were full.
    pub(crate) fn reclaimable(&self) -> u64 {
        self.zones.saturating_sub(self.live.div_ceil(ZONE_SIZE))
    }
}

impl Defragmenter {
    /// What the runs of the store hold.
    pub(crate) fn holes(&self) -> Holes {
        Holes::of(&self.versions.load(), &self.zones)
    }

    /// How many of `zones` no run uses any more.
    pub(super) fn emptied(&self, zones: &BTreeSet<ZoneId>) -> u64 {
        let version = self.versions.load();
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

    /// The cheapest zones to empty, `most` bytes of them; none when nothing is to be gained.
    pub(super) fn victims(&self, most: u64, fullest_percent: u64) -> Result<Victims> {
        let version = self.versions.load_full();
        let candidates = self.candidates(&version, fullest_percent)?;
        let victims = Victims::cheapest(&candidates, most);
        if victims.gain() > 0 {
            return Ok(victims);
        }
        // Only zones that take no other one are left. Half of the room stays, so that little is
        // moved compared with the gain.
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

    /// The same for a store that has run short, where a zone is worth all that is moved for it.
    pub(super) fn victims_at_any_cost(&self, most: u64, fullest_percent: u64) -> Result<Victims> {
        let version = self.versions.load_full();
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
        Purpose::ALL.map(|purpose| self.zones.room(purpose, Lifetime::Young))
    }

    /// Of `candidates` those that are moved to where young data lies.
    fn young<'a>(
        &self,
        version: &Version,
        candidates: &'a [Candidate],
    ) -> impl Iterator<Item = (Purpose, ZoneId, u64)> + 'a {
        let (map, elsewhere) = (self.zones.map(), self.moved_elsewhere(version));
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

    /// The zones that may be emptied, the cheapest first.
    fn candidates(&self, version: &Version, fullest_percent: u64) -> Result<Vec<Candidate>> {
        let weights = self.weigh(version)?;
        // What a snapshot keeps is not gained by moving what others have there.
        let kept = self.snapshots.zones();
        let open: BTreeSet<ZoneId> =
            self.zones.positions().iter().map(|(_, addr)| ZoneId::of(*addr)).collect();
        // What is held elsewhere as well, by a reader of an older version or a flush under way,
        // would not become free.
        let held: BTreeMap<ZoneId, u64> =
            self.zones.usage().into_iter().map(|(zone, live, _)| (zone, live)).collect();
        let alone = |zone: &ZoneId, bytes: u64| held.get(zone).is_some_and(|live| *live <= bytes);
        let mut candidates: Vec<Candidate> = weights
            .iter()
            .filter(|(zone, w)| {
                w.bytes.saturating_mul(100) < ZONE_SIZE * fullest_percent
                    && !open.contains(zone)
                    && !kept.contains(zone)
                    && !self.zones.is_remote_zone(**zone)
                    && alone(zone, w.bytes)
            })
            .map(|(zone, w)| {
                (
                    w.bytes.saturating_add(w.spans.saturating_mul(self.options.seek_bytes)),
                    w.bytes,
                    *zone,
                )
            })
            .collect();
        candidates.sort_unstable();
        Ok(candidates)
    }

    /// Zones of which something does not go to where young data lies, as all does in a small store,
    /// or is so long that it may not fit there. In a large store a zone more or less is nothing.
    fn moved_elsewhere(&self, version: &Version) -> BTreeSet<ZoneId> {
        let runs = version.trees.values().flat_map(|t| t.by_level());
        let elsewhere = runs.filter(|(level, numbered)| {
            let stats = numbered.run.stats();
            let long = stats.block_bytes.saturating_add(stats.value_bytes) / LONG > stats.items;
            long || lifetime(&self.zones, [*numbered], *level) != Lifetime::Young
        });
        elsewhere.flat_map(|(_, p)| p.run.uses().iter()).map(|(zone, _)| zone).collect()
    }
}

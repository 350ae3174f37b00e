//! Which zones to empty: what the runs of a version hold, by zone, and the cheapest of them.

use std::collections::{BTreeMap, BTreeSet};

use vt_tree::ZoneWeight;
use zones::{ZONE_SIZE, ZoneId};

use super::Defragmenter;
use crate::error::Result;
use crate::read::version::Version;

/// Zones to empty.
#[derive(Default)]
pub(super) struct Victims {
    pub zones: BTreeSet<ZoneId>,
    pub live: u64,
}

impl Victims {
    /// Zones that are free when their live bytes lie elsewhere.
    pub(super) fn gain(&self) -> u64 {
        (self.zones.len() as u64).saturating_sub(self.live.div_ceil(ZONE_SIZE))
    }
}

/// What runs keep of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holes {
    pub zones: u64,
    pub live: u64,
}

impl Holes {
    /// What the runs of a version hold, by zone, from the sums that they carry: no I/O.
    pub(in crate::background) fn of(version: &Version) -> Holes {
        let mut zones: BTreeMap<ZoneId, u64> = BTreeMap::new();
        for tree in version.trees.values() {
            tree.runs().flat_map(|p| p.run.sectors()).for_each(|(zone, bytes)| {
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
        Holes::of(&self.versions.load())
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
        let mut weights: BTreeMap<ZoneId, ZoneWeight> = BTreeMap::new();
        for numbered in version.trees.values().flat_map(|t| t.runs()) {
            numbered.run.weigh_zones(&mut weights)?;
        }
        // What a snapshot keeps is not gained by moving what others have there.
        let kept = self.snapshots.zones();
        let open: BTreeSet<ZoneId> =
            self.zones.positions().iter().map(|(_, addr)| ZoneId::of(*addr)).collect();
        // What is held elsewhere as well, by a reader of an older version or a flush under way,
        // would not become free.
        let held: BTreeMap<ZoneId, u64> =
            self.zones.usage().into_iter().map(|(zone, live, _)| (zone, live)).collect();
        let alone = |zone: &ZoneId, bytes: u64| held.get(zone).is_some_and(|live| *live <= bytes);
        let mut candidates: Vec<(u64, u64, ZoneId)> = weights
            .iter()
            .filter(|(zone, w)| {
                w.bytes.saturating_mul(100) < ZONE_SIZE * fullest_percent
                    && !open.contains(zone)
                    && !kept.contains(zone)
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
        let mut victims = Victims::default();
        for (_, live, zone) in candidates {
            if victims.live + live > most && !victims.zones.is_empty() {
                break;
            }
            victims.live += live;
            victims.zones.insert(zone);
        }
        if victims.gain() == 0 { Ok(Victims::default()) } else { Ok(victims) }
    }
}

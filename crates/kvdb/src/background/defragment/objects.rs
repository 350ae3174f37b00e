//! Defragmentation of zones in object storage: objects of which less than half is in use, whose
//! space is freed there when nothing refers to them. They are emptied only on request, since the
//! data left in them has to be fetched.

use std::collections::{BTreeMap, BTreeSet};

use zones::remote::ZoneObject;
use zones::{ZONE_SIZE, ZoneId};

use super::evacuate::OtherMerges;
use super::victims::Victims;
use super::{Defragmenter, PART, ROUND};
use crate::error::Result;

/// The bytes of an object, and an estimate of those in use.
#[derive(Default)]
struct Weight {
    has: u64,
    live: u64,
}

impl Defragmenter {
    /// Empties the zones of objects that are mostly holes, round by round. Each round leaves fewer
    /// of them, since the data is moved to zones of this file. No local zone becomes free by this,
    /// so it ends when there is not enough room for two rounds.
    pub(super) fn empty_objects(&self, rate: Option<u64>) -> Result<()> {
        let all = self.zones_of_holes()?.len() as u64;
        self.update(|p| p.zones_reclaimable += all);
        while !self.is_to_stop() {
            let most = self.round_size().min(ROUND);
            let mut victims = Victims::default();
            for (zone, live) in self.zones_of_holes()? {
                if victims.live + live > most && !victims.zones.is_empty() {
                    break;
                }
                victims.live += live;
                victims.zones.insert(zone);
            }
            let room = self.engine.zones.space().free_for_user;
            if victims.zones.is_empty() || room < 2 * victims.live.max(ZONE_SIZE) {
                return Ok(());
            }
            let part = PART.min(self.compactor.part_size());
            let mut between = |moved| self.between(moved, rate);
            self.evacuate(&victims, part, OtherMerges::Running, &mut between)?;
            let emptied = self.emptied(&victims.zones);
            self.update(|p| {
                p.zones_reclaimed += emptied;
                p.rounds += 1;
            });
            if emptied == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the zones that lie at least partly in objects of which less than half is in use,
    /// each with its bytes in use. Zones with a complete local copy come first, then those with the
    /// fewest bytes.
    fn zones_of_holes(&self) -> Result<Vec<(ZoneId, u64)>> {
        let Some(table) = self.engine.zones.remote_table() else { return Ok(Vec::new()) };
        let version = self.engine.versions.load_full();
        let live = self.weigh(&version)?;
        let kept = self.engine.snapshots.zones();
        let live_in = |zone: ZoneId| match kept.contains(&zone) {
            // A snapshot keeps the zone, whatever is moved.
            true => ZONE_SIZE,
            false => live.get(&zone).map_or(0, |weight| weight.bytes),
        };
        let mut objects: BTreeMap<ZoneObject, Weight> = BTreeMap::new();
        for piece in table.pieces() {
            let has: u64 = table.pieces_of(piece.zone).iter().map(|p| u64::from(p.len)).sum();
            let len = u64::from(piece.len);
            let weight = objects.entry(table.object(piece)).or_default();
            weight.has += len;
            // Assume that the bytes in use are spread evenly over the pieces of a zone.
            weight.live += live_in(piece.zone).min(has) * len / has.max(1);
        }
        let holes: BTreeSet<ZoneId> = table
            .pieces()
            .iter()
            .filter(|piece| {
                objects.get(&table.object(piece)).is_some_and(|w| w.live * 2 < w.has)
                    && !kept.contains(&piece.zone)
                    && live.contains_key(&piece.zone)
            })
            .map(|piece| piece.zone)
            .collect();
        let mut zones: Vec<(bool, u64, ZoneId)> = holes
            .into_iter()
            .map(|zone| (!self.engine.zones.is_here_whole(zone), live_in(zone), zone))
            .collect();
        zones.sort_unstable();
        Ok(zones.into_iter().map(|(_, live, zone)| (zone, live)).collect())
    }
}

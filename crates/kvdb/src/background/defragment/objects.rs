//! Zones in object storage: objects of which less than half is in use, and whose space comes back
//! there when nothing refers to them. They are emptied only when that is asked for, since what is
//! left in them has to be fetched.

use std::collections::{BTreeMap, BTreeSet};

use zones::remote::ZoneObject;
use zones::{ZONE_SIZE, ZoneId};

use super::evacuate::OtherMerges;
use super::victims::Victims;
use super::{Defragmenter, PART, ROUND};
use crate::error::Result;

/// Bytes of an object: those that it has, and an estimate of those that are in use.
#[derive(Default)]
struct Weight {
    has: u64,
    live: u64,
}

impl Defragmenter {
    /// Empties the zones of objects that are mostly holes, round by round. Each round ends with
    /// fewer of them, since what is moved lies in zones of this file. No zone becomes free here for
    /// it, so it ends where there is not room for two rounds.
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
            let room = self.zones.space().free_for_user;
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

    /// Returns the zones that lie, in part at least, in objects of which less than half is in use,
    /// with the bytes that are in use; those that are here come first, then those with the least.
    fn zones_of_holes(&self) -> Result<Vec<(ZoneId, u64)>> {
        let Some(table) = self.zones.remote_table() else { return Ok(Vec::new()) };
        let version = self.versions.load_full();
        let live = self.weigh(&version)?;
        let kept = self.snapshots.zones();
        let live_in = |zone: ZoneId| match kept.contains(&zone) {
            // A snapshot keeps it, whatever is moved.
            true => ZONE_SIZE,
            false => live.get(&zone).map_or(0, |weight| weight.bytes),
        };
        let mut objects: BTreeMap<ZoneObject, Weight> = BTreeMap::new();
        for piece in table.pieces() {
            let has: u64 = table.pieces_of(piece.zone).iter().map(|p| u64::from(p.len)).sum();
            let len = u64::from(piece.len);
            let weight = objects.entry(table.object(piece)).or_default();
            weight.has += len;
            // The bytes in use are taken for spread evenly over the pieces of a zone.
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
            .map(|zone| (!self.zones.is_here_whole(zone), live_in(zone), zone))
            .collect();
        zones.sort_unstable();
        Ok(zones.into_iter().map(|(_, live, zone)| (zone, live)).collect())
    }
}

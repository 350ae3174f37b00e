//! The pieces of zones that already lie in object storage and need not be written again.

use std::collections::HashMap;

use super::table::{Piece, ZoneObject, ZoneTable};
use crate::{Result, ZoneId};

/// The first 16 bytes of the SHA-256 of a piece. A publication compares fingerprints to find out
/// whether a zone still has the bytes that lie in object storage.
pub type Fingerprint = [u8; 16];

/// The pieces of zones that already lie in object storage.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The places of the pieces.
    pub table: ZoneTable,
    /// The fingerprint of each piece of the table.
    pub fingerprints: Vec<Fingerprint>,
}

/// The zones that a publication has read, with the counts that show whether a zone was written
/// since then. The marks are valid for one store while it is open.
#[derive(Clone, Debug, Default)]
pub struct Marks(pub(super) HashMap<ZoneId, u64>);

impl Known {
    /// Returns the pieces of a zone with their fingerprints.
    pub(super) fn pieces_of(&self, zone: ZoneId) -> impl Iterator<Item = (&Piece, Fingerprint)> {
        let first = self.table.pieces().partition_point(|piece| piece.zone < zone);
        let prints = self.fingerprints.get(first..).unwrap_or_default();
        self.table.pieces_of(zone).iter().zip(prints.iter().copied())
    }

    /// Adds a piece after the last one. See [`ZoneTable::add`].
    pub(super) fn add(
        &mut self,
        (zone, offset, len): (ZoneId, u32, u32),
        (object, at): (ZoneObject, u32),
        fingerprint: Fingerprint,
    ) -> Result<()> {
        self.table.add(zone, offset, len, object, at)?;
        self.fingerprints.push(fingerprint);
        Ok(())
    }

    /// Returns, for each zone, the pieces of `self` or, if `self` has none for the zone, the pieces
    /// of `older`.
    pub fn over(&self, older: &Known) -> Result<Known> {
        let mut zones: Vec<_> = self.table.zones().chain(older.table.zones()).collect();
        zones.sort_unstable();
        zones.dedup();
        let mut all = Known::default();
        for zone in zones {
            let from = if self.table.pieces_of(zone).is_empty() { older } else { self };
            for (piece, print) in from.pieces_of(zone) {
                let place = (from.table.object(piece), piece.at);
                all.add((zone, piece.offset, piece.len), place, print)?;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_zone_the_newer_pieces_are_taken_and_none_are_lost() {
        let object = |number| ZoneObject { origin: [1; 16], epoch: 1, number };
        let known = |pieces: &[(u32, u32, u32)]| {
            let mut known = Known::default();
            for &(zone, offset, number) in pieces {
                let print = [number as u8; 16];
                known.add((ZoneId(zone), offset, 10), (object(number), 0), print).unwrap();
            }
            known
        };
        let older = known(&[(1, 0, 1), (2, 0, 2), (2, 10, 3)]);
        let newer = known(&[(2, 0, 4), (5, 0, 5)]);
        let all = newer.over(&older).unwrap();
        let numbers: Vec<_> = [1, 2, 3, 5]
            .iter()
            .flat_map(|&zone| all.pieces_of(ZoneId(zone)))
            .map(|(piece, print)| (all.table.object(piece).number, print[0]))
            .collect();
        assert_eq!(numbers, [(1, 1), (4, 4), (5, 5)]);
    }
}

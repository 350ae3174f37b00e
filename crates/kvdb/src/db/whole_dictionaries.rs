//! Finds the bytes that small dictionaries take in object storage, so that these bytes can be
//! requested all at once. Data is always fetched in whole units of [`FETCHED`] bytes, so the size
//! of a dictionary is measured in units. A unit in which several dictionaries lie counts once.

use std::collections::BTreeSet;
use std::sync::Arc;

use vt_tree::{BlockWalk, Run};
use zones::remote::FETCHED;
use zones::{Purpose, Zones};

use crate::error::Result;

/// A set of units of [`FETCHED`] bytes, identified by their numbers.
#[derive(Default)]
pub(super) struct Units {
    tuples: BTreeSet<u64>,
    /// The units of filters. The units of index nodes are not needed, since these nodes are read to
    /// find the tuples.
    filters: BTreeSet<u64>,
}

impl Units {
    /// Returns the units of the tuples and filters of these runs, which lie in object storage.
    /// Returns `None` if the units take more than `most` bytes, or if `goes_on` returns `false`.
    pub fn of(runs: &[Arc<Run>], most: u64, goes_on: &dyn Fn() -> bool) -> Result<Option<Units>> {
        let mut units = Units::default();
        // Check the size first, so that the index of a large dictionary is not read in vain.
        if runs.iter().map(|run| run.stats().block_bytes).sum::<u64>() > most {
            return Ok(None);
        }
        for run in runs {
            let mut walk = BlockWalk::new(run.clone());
            while let Some(blocks) = walk.next_leaf()? {
                let fits = add(&mut units.tuples, &blocks, most)
                    && add(&mut units.filters, &walk.take_filters(), most);
                if !fits || units.bytes() > most || !goes_on() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(units))
    }

    /// Returns the total number of bytes of the units.
    pub fn bytes(&self) -> u64 {
        (self.tuples.len() + self.filters.len()) as u64 * FETCHED
    }

    /// Adds `more`, and returns the units that are new. If the result would exceed `most` bytes,
    /// returns `None` and adds nothing.
    pub fn add(&mut self, more: &Units, most: u64) -> Option<Units> {
        let new = Units {
            tuples: more.tuples.difference(&self.tuples).copied().collect(),
            filters: more.filters.difference(&self.filters).copied().collect(),
        };
        if self.bytes() + new.bytes() > most {
            return None;
        }
        self.tuples.extend(&new.tuples);
        self.filters.extend(&new.filters);
        Some(new)
    }

    /// Announces reads of the units that are not in the local file. Adjacent units are announced
    /// together.
    pub fn announce(&self, zones: &Zones) {
        for (purpose, units) in [(Purpose::Index, &self.filters), (Purpose::Tuples, &self.tuples)] {
            let missing = |unit: &u64| !zones.is_here(unit * FETCHED, FETCHED);
            let missing: Vec<u64> = units.iter().copied().filter(missing).collect();
            for adjacent in missing.chunk_by(|a, b| a + 1 == *b) {
                let len = adjacent.len() as u64 * FETCHED;
                zones.will_read(purpose, adjacent[0] * FETCHED, len);
            }
        }
    }
}

/// Adds the units in which these places lie. A place is an address and a length. Returns `false` as
/// soon as the units would exceed `most` bytes, since the places in a damaged index may have any
/// length.
fn add(units: &mut BTreeSet<u64>, places: &[(u64, u32)], most: u64) -> bool {
    let most = most / FETCHED;
    places.iter().all(|&(addr, len)| {
        let last = addr.saturating_add(u64::from(len).saturating_sub(1)) / FETCHED;
        let fits = last - addr / FETCHED < most;
        if fits {
            units.extend(addr / FETCHED..=last);
        }
        fits && units.len() as u64 <= most
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(tuples: &[(u64, u32)]) -> Units {
        let mut units = Units::default();
        assert!(add(&mut units.tuples, tuples, 1 << 20));
        units
    }

    #[test]
    fn the_places_in_a_damaged_index_take_no_memory() {
        let mut units = BTreeSet::new();
        let places: Vec<(u64, u32)> = (0..1000).map(|n| (n << 40, u32::MAX)).collect();
        assert!(!add(&mut units, &places, 4 * FETCHED) && units.is_empty());
        let short: Vec<(u64, u32)> = (0..1000).map(|n| (n << 40, 1)).collect();
        assert!(!add(&mut units, &short, 4 * FETCHED));
        assert_eq!(units.len(), 5);
    }

    #[test]
    fn units_are_counted_once_and_only_as_many_as_there_is_room_for() {
        const UNIT: u32 = FETCHED as u32;
        let first = units(&[(0, 1), (10, UNIT), (5 * FETCHED, 0), (u64::MAX, 9)]);
        assert_eq!(first.tuples, BTreeSet::from([0, 1, 5, u64::MAX / FETCHED]));
        let mut all = Units::default();
        assert!(all.add(&first, 4 * FETCHED - 1).is_none());
        assert_eq!(all.bytes(), 0, "there is no part of a dictionary");
        assert_eq!(all.add(&first, 4 * FETCHED).map(|new| new.bytes()), Some(4 * FETCHED));
        let second = units(&[(FETCHED, UNIT), (2 * FETCHED, UNIT)]);
        let new = all.add(&second, 5 * FETCHED).expect("there is room for one more");
        assert_eq!(new.tuples, BTreeSet::from([2]));
        assert_eq!(all.bytes(), 5 * FETCHED);
    }
}

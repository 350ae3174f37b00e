//! The bytes of files that calls have written since the view was switched to another state
//! (`superseded`).
//!
//! The ranges must be exact. If they contained other bytes, a page from before the switch could
//! undo the change in those bytes.

use std::collections::{BTreeMap, HashMap};

use env::sync::Mutex;

use crate::attr::Ino;

#[derive(Default)]
pub(crate) struct Rewritten(Mutex<HashMap<Ino, BTreeMap<u64, u64>>>);

impl Rewritten {
    /// Adds the bytes from `from` to `to`.
    pub fn add(&self, ino: Ino, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        let mut files = self.0.lock();
        let ranges = files.entry(ino).or_default();
        while let Some((&start, &end)) =
            ranges.range(..=to).next_back().filter(|(_, end)| **end >= from)
        {
            ranges.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        ranges.insert(from, to);
    }

    /// Returns the ranges among the bytes from `from` to `to`, in order.
    pub fn within(&self, ino: Ino, from: u64, to: u64) -> Vec<(u64, u64)> {
        let files = self.0.lock();
        let Some(ranges) = files.get(&ino) else { return Vec::new() };
        let first = ranges.range(..=from).next_back().map_or(from, |(&start, _)| start);
        let reach = ranges.range(first..to).map(|(&start, &end)| (start.max(from), end.min(to)));
        reach.filter(|(start, end)| start < end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_become_one_and_others_stay_apart() {
        let rewritten = Rewritten::default();
        for (from, to) in [(10, 20), (30, 40), (20, 25), (41, u64::MAX), (5, 5)] {
            rewritten.add(7, from, to);
        }
        assert_eq!(rewritten.within(7, 0, 100), [(10, 25), (30, 40), (41, 100)]);
        assert_eq!(rewritten.within(7, 15, 35), [(15, 25), (30, 35)]);
        assert_eq!(rewritten.within(7, 25, 30), []);
        assert_eq!(rewritten.within(8, 0, 100), []);
        rewritten.add(7, 0, 50);
        assert_eq!(rewritten.within(7, 0, u64::MAX), [(0, u64::MAX)]);
    }
}

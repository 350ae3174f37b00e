//! The versions of keys written more than once, in one chain for each key, newest first.

use std::cmp::Ordering;

use super::arena::Place;
use crate::item::Seq;

/// The index that means "no version".
const NONE: u32 = u32::MAX;
/// Minimum number of overwrites of a key between two attempts to trim its chain of versions.
const TRIM_EVERY: u32 = 8;

/// The order of writes: by commit and, within one commit, by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    pub seq: Seq,
    pub arrival: u32,
}

/// One version of a key. It takes 32 bytes.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub seq: Seq,
    arrival: u32,
    /// The index in `Versions` of the next older version.
    older: u32,
    /// If this is the newest version: the number of overwrites until its chain is trimmed.
    credit: u32,
    pub value: Place,
}

impl Version {
    /// Creates the only version of a key.
    pub fn new(stamp: Stamp, value: Place) -> Version {
        Version { seq: stamp.seq, arrival: stamp.arrival, older: NONE, credit: TRIM_EVERY, value }
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { seq: self.seq, arrival: self.arrival }
    }
}

/// The places of values kept outside the arena that are no longer referred to.
pub(super) type Released = Vec<Place>;

/// All chains. The record of a key has the index of its newest version. That index never changes.
#[derive(Default)]
pub(super) struct Versions {
    slots: Vec<Version>,
    free: Vec<u32>,
    superseded: usize,
}

impl Versions {
    /// Returns the number of versions that are not the newest of their key.
    pub fn superseded(&self) -> usize {
        self.superseded
    }

    /// Returns the heap bytes in use.
    pub fn heap(&self) -> usize {
        self.slots.capacity() * size_of::<Version>() + self.free.capacity() * 4
    }

    /// Begins a chain, and returns its index.
    pub fn begin(&mut self, version: Version) -> u32 {
        self.store(version)
    }

    fn store(&mut self, version: Version) -> u32 {
        match self.free.pop() {
            Some(i) => {
                self.slots[i as usize] = version;
                i
            }
            None => {
                self.slots.push(version);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Returns the newest version of a chain with a sequence number of at most `at`.
    #[inline]
    pub fn visible(&self, chain: u32, at: Seq) -> Option<Version> {
        let mut v = &self.slots[chain as usize];
        while v.seq > at {
            if v.older == NONE {
                return None;
            }
            v = &self.slots[v.older as usize];
        }
        Some(*v)
    }

    /// Adds `new` to a chain. No reader is below `floor`. The places of forgotten values are added
    /// to `released`.
    pub fn overwrite(&mut self, chain: u32, mut new: Version, floor: Seq, released: &mut Released) {
        let newest = &mut self.slots[chain as usize];
        match new.seq.cmp(&newest.seq) {
            // Within one commit the last write counts. Earlier ones are not visible.
            Ordering::Equal => {
                released.push(newest.value);
                newest.value = new.value;
                newest.arrival = new.arrival;
            }
            Ordering::Greater => {
                let old = *newest;
                new.credit = old.credit.saturating_sub(1);
                new.older = self.store(old);
                self.superseded += 1;
                self.slots[chain as usize] = new;
                if new.credit == 0 {
                    let left = self.trim(new, floor, released);
                    // Trimming takes time proportional to the number of versions, so let as many
                    // overwrites pass before the next attempt.
                    self.slots[chain as usize].credit = left + TRIM_EVERY;
                }
            }
            // The commit pipeline never does this, since its sequence numbers ascend, but the
            // memtable does not rely on that.
            Ordering::Less => {
                let mut behind = chain;
                let mut at = newest.older;
                while at != NONE && self.slots[at as usize].seq > new.seq {
                    behind = at;
                    at = self.slots[at as usize].older;
                }
                if at != NONE && self.slots[at as usize].seq == new.seq {
                    let old = &mut self.slots[at as usize];
                    released.push(old.value);
                    old.value = new.value;
                    old.arrival = new.arrival;
                    return;
                }
                new.older = at;
                let id = self.store(new);
                self.superseded += 1;
                self.slots[behind as usize].older = id;
            }
        }
    }

    /// Forgets the versions older than `newest` that no reader at `floor` or later sees. Returns
    /// the number of older versions that remain.
    fn trim(&mut self, newest: Version, floor: Seq, released: &mut Released) -> u32 {
        let mut left = 0;
        let mut last = NONE;
        let mut at = newest.older;
        let mut seen = newest.seq <= floor;
        while at != NONE && !seen {
            seen = self.slots[at as usize].seq <= floor;
            left += 1;
            last = at;
            at = self.slots[at as usize].older;
        }
        if last == NONE {
            // All readers see the newest version. This happens only if the floor is ahead of the
            // writer. Keep the chain.
            return left;
        }
        self.slots[last as usize].older = NONE;
        while at != NONE {
            let old = self.slots[at as usize];
            released.push(old.value);
            self.free.push(at);
            self.superseded -= 1;
            at = old.older;
        }
        left
    }
}

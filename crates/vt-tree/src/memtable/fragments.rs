//! The range tombstones of a memtable, cut into disjoint fragments. Each fragment has the stamps of
//! all tombstones over it. So one search finds the newest tombstone over a key as of any sequence
//! number, however many tombstones there are.

use super::versions::Stamp;
use crate::Seq;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

pub(super) struct Fragment {
    pub end: Bytes,
    /// The stamps, oldest first, at most one for each sequence number; never empty.
    stamps: Vec<Stamp>,
}

impl Fragment {
    /// Returns the newest tombstone of the fragment that a reader at `at` sees.
    #[inline]
    pub fn visible(&self, at: Seq) -> Option<Stamp> {
        match self.stamps.last() {
            Some(newest) if newest.seq <= at => Some(*newest),
            _ => self.stamps[..self.stamps.partition_point(|s| s.seq <= at)].last().copied(),
        }
    }

    /// Forgets the tombstones that no reader at `floor` or later sees. Returns their number.
    fn forget(&mut self, floor: Seq) -> isize {
        let unseen = self.stamps.partition_point(|s| s.seq <= floor).saturating_sub(1);
        self.stamps.drain(..unseen);
        unseen as isize
    }

    /// Adds `stamp`. Returns the change in the number of stamps.
    fn add(&mut self, stamp: Stamp) -> isize {
        let before = self.stamps.len() as isize;
        let i = self.stamps.partition_point(|s| s.seq < stamp.seq);
        match self.stamps.get_mut(i) {
            Some(same) if same.seq == stamp.seq => *same = stamp,
            _ => self.stamps.insert(i, stamp),
        }
        self.stamps.len() as isize - before
    }
}

#[derive(Default)]
pub(super) struct Fragments {
    /// The fragments, keyed by their start.
    map: BTreeMap<Bytes, Fragment>,
    /// The number of stamps of all fragments.
    stamps: isize,
    key_bytes: usize,
    newest: Seq,
}

impl Fragments {
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the newest sequence number of any tombstone ever added.
    pub fn newest(&self) -> Seq {
        self.newest
    }

    pub fn len(&self) -> usize {
        self.stamps as usize
    }

    /// Returns an estimate of the heap bytes in use: for each fragment an entry in a B-tree node
    /// that is three quarters full, two keys and the stamps, with their allocations.
    pub fn heap(&self) -> usize {
        let entry = (size_of::<Bytes>() + size_of::<Fragment>()) * 4 / 3 + 2 * 40 + 16;
        self.map.len() * entry + self.key_bytes + self.len() * size_of::<Stamp>()
    }

    /// Deletes `[start, end)`, which must not be empty.
    pub fn insert(&mut self, start: &[u8], end: &[u8], stamp: Stamp, floor: Seq) {
        self.newest = self.newest.max(stamp.seq);
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        self.cut(&start);
        self.cut(&end);
        self.thin(&start, &end, floor);
        // No fragment crosses either end any more. Fragments inside get the stamp, and the gaps
        // between them become fragments.
        let mut gaps = Vec::new();
        let mut reached = start.clone();
        for (s, f) in self.map.range_mut::<[u8], _>((Included(&start[..]), Excluded(&end[..]))) {
            if reached < s {
                gaps.push((reached, s.clone()));
            }
            reached = f.end.clone();
            self.stamps += f.add(stamp);
        }
        if reached < end {
            gaps.push((reached, end));
        }
        for (s, e) in gaps {
            self.add(s, Fragment { end: e, stamps: vec![stamp] });
        }
    }

    /// Joins adjacent fragments in `[start, end)` that look the same to all readers at `floor` or
    /// later, so that the fragments under one newer tombstone become one again. This way each
    /// fragment is visited at most twice, however many tombstones overlap.
    fn thin(&mut self, start: &[u8], end: &[u8], floor: Seq) {
        let mut gone = Vec::new();
        let mut before: Option<&mut Fragment> = None;
        for (s, f) in self.map.range_mut::<[u8], _>((Included(start), Excluded(end))) {
            self.stamps -= f.forget(floor);
            match &mut before {
                Some(b) if b.end == s && b.stamps == f.stamps => {
                    self.key_bytes -= b.end.len() + s.len();
                    self.stamps -= f.stamps.len() as isize;
                    b.end = f.end.clone();
                    gone.push(s.clone());
                }
                _ => before = Some(f),
            }
        }
        for s in gone {
            self.map.remove(&s);
        }
    }

    fn add(&mut self, start: Bytes, f: Fragment) {
        self.key_bytes += start.len() + f.end.len();
        self.stamps += f.stamps.len() as isize;
        self.map.insert(start, f);
    }

    /// Cuts the fragment that crosses `key`, if there is one.
    fn cut(&mut self, key: &Bytes) {
        let Some((_, f)) =
            self.map.range_mut::<[u8], _>((Unbounded, Excluded(&key[..]))).next_back()
        else {
            return;
        };
        if f.end > key {
            let right = Fragment {
                end: std::mem::replace(&mut f.end, key.clone()),
                stamps: f.stamps.clone(),
            };
            self.key_bytes = self.key_bytes + key.len() - right.end.len();
            self.add(key.clone(), right);
        }
    }

    /// Returns the fragment that covers `key`.
    #[inline]
    pub fn covering(&self, key: &[u8]) -> Option<(&Bytes, &Fragment)> {
        let (s, f) = self.map.range::<[u8], _>((Unbounded, Included(key))).next_back()?;
        (f.end > key).then_some((s, f))
    }

    /// Returns the fragments that end after `key`, ascending: the fragment that covers it, and all
    /// later ones.
    pub fn from(&self, key: &[u8]) -> impl Iterator<Item = (&Bytes, &Fragment)> {
        self.covering(key).into_iter().chain(
            self.map
                .range::<[u8], _>((Excluded(key), Unbounded))
                .filter(move |(s, _)| &s[..] > key),
        )
    }

    /// Returns the fragments that begin before `key`, descending, or all of them if `key` is
    /// `None`.
    pub fn before(&self, key: Option<&[u8]>) -> impl Iterator<Item = (&Bytes, &Fragment)> {
        self.map.range::<[u8], _>((Unbounded, key.map_or(Unbounded, Excluded))).rev()
    }
}

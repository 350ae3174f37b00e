//! The locks in one dictionary. The locks are stored as disjoint fragments of the key space, each
//! with one set of holders. All locks that overlap a range are found in O(log n + hits). Adjacent
//! fragments with the same holders are joined, so that a scan which locks one key after another
//! leaves a single fragment.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use vt_tree::KeyRange;

use super::range::KeyRangeRef;

#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// The fragments by their start keys. Fragments are disjoint.
    map: BTreeMap<Bytes, Fragment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    /// The end of the fragment, or `None` if the fragment includes the last key.
    pub end: Option<Bytes>,
    pub holders: Holders,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holders {
    Exclusive(u64),
    /// The numbers of the holders, in ascending order. The list is never empty.
    Shared(Vec<u64>),
}

impl Holders {
    pub(super) fn ids(&self) -> &[u64] {
        match self {
            Holders::Exclusive(id) => std::slice::from_ref(id),
            Holders::Shared(ids) => ids,
        }
    }

    /// Returns `true` if `owner` is a holder and, if `exclusive` is set, the exclusive holder.
    pub(super) fn held_by(&self, owner: u64, exclusive: bool) -> bool {
        match self {
            Holders::Exclusive(id) => *id == owner,
            Holders::Shared(ids) => !exclusive && ids.binary_search(&owner).is_ok(),
        }
    }
}

impl Fragments {
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the fragments that overlap `range`, in key order.
    pub(super) fn overlapping<'a>(
        &'a self,
        range: KeyRangeRef<'a>,
    ) -> impl Iterator<Item = (&'a Bytes, &'a Fragment)> {
        // At most one fragment begins before the range and extends into it.
        let before =
            self.map.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(range.start))).next_back();
        let inside = self.map.range::<[u8], _>((Bound::Included(range.start), Bound::Unbounded));
        let overlap = move |&(start, fragment): &(&Bytes, &Fragment)| {
            range.overlaps(start, fragment.end.as_deref())
        };
        before.into_iter().filter(overlap).chain(inside.take_while(overlap))
    }

    /// Returns the holders, other than `owner`, whose locks conflict with a lock of `range` in this
    /// mode. A holder may be returned more than once.
    pub(super) fn in_the_way<'a>(
        &'a self,
        owner: Option<u64>,
        range: KeyRangeRef<'a>,
        exclusive: bool,
    ) -> impl Iterator<Item = u64> + 'a {
        self.overlapping(range)
            .filter(move |(_, f)| exclusive || matches!(f.holders, Holders::Exclusive(_)))
            .flat_map(|(_, f)| f.holders.ids().iter().copied())
            .filter(move |id| Some(*id) != owner)
    }

    /// Returns `true` if `owner` holds all of `range` in the requested mode or a stronger one.
    pub(super) fn covers(&self, owner: u64, range: KeyRangeRef, exclusive: bool) -> bool {
        let mut at: &[u8] = range.start;
        for (start, fragment) in self.overlapping(range) {
            if &start[..] > at || !fragment.holders.held_by(owner, exclusive) {
                return false;
            }
            match &fragment.end {
                Some(end) if range.ends_behind(end) => at = end,
                _ => return true,
            }
        }
        false
    }

    /// Grants `owner` a lock on `range`. The range must not be empty and must have no conflicting
    /// holders.
    pub(super) fn grant(&mut self, owner: u64, range: &KeyRange, exclusive: bool) {
        self.split(&range.start);
        if let Some(end) = &range.end {
            self.split(end);
        }
        let inside: Vec<Bytes> =
            self.overlapping(range.into()).map(|(start, _)| start.clone()).collect();
        if exclusive {
            for start in &inside {
                self.map.remove(start);
            }
            self.map.insert(
                range.start.clone(),
                Fragment { end: range.end.clone(), holders: Holders::Exclusive(owner) },
            );
        } else {
            let mut at = Some(range.start.clone());
            for start in inside {
                if let Some(gap) = at.filter(|at| *at < start) {
                    self.map.insert(
                        gap,
                        Fragment {
                            end: Some(start.clone()),
                            holders: Holders::Shared(vec![owner]),
                        },
                    );
                }
                at = self.map.get_mut(&start).and_then(|fragment| {
                    if let Holders::Shared(ids) = &mut fragment.holders
                        && let Err(place) = ids.binary_search(&owner)
                    {
                        ids.insert(place, owner);
                    }
                    fragment.end.clone()
                });
            }
            if let Some(rest) = at.filter(|at| range.end.as_ref().is_none_or(|end| at < end)) {
                self.map.insert(
                    rest,
                    Fragment { end: range.end.clone(), holders: Holders::Shared(vec![owner]) },
                );
            }
        }
        self.join(range);
    }

    /// Releases all locks of `owner` in `range`. `owner` must hold no lock adjacent to `range`.
    pub(super) fn release(&mut self, owner: u64, range: &KeyRange) {
        let inside: Vec<Bytes> =
            self.overlapping(range.into()).map(|(start, _)| start.clone()).collect();
        for start in inside {
            let Some(fragment) = self.map.get_mut(&start) else { continue };
            let empty = match &mut fragment.holders {
                Holders::Exclusive(id) => *id == owner,
                Holders::Shared(ids) => {
                    ids.retain(|id| *id != owner);
                    ids.is_empty()
                }
            };
            if empty {
                self.map.remove(&start);
            }
        }
        self.join(range);
    }

    /// Splits the fragment that contains `key` at that key.
    fn split(&mut self, key: &Bytes) {
        let Some((_, fragment)) = self
            .map
            .range_mut::<[u8], _>((Bound::Unbounded, Bound::Excluded(&key[..])))
            .next_back()
        else {
            return;
        };
        if fragment.end.as_ref().is_none_or(|end| key < end) {
            let behind = fragment.clone();
            fragment.end = Some(key.clone());
            self.map.insert(key.clone(), behind);
        }
    }

    /// Joins adjacent fragments with the same holders, from the fragment before `range` to the
    /// fragment after `range`.
    fn join(&mut self, range: &KeyRange) {
        let before = self
            .map
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&range.start[..])))
            .next_back();
        let first = before.or_else(|| {
            self.map.range::<[u8], _>((Bound::Included(&range.start[..]), Bound::Unbounded)).next()
        });
        let Some(mut at) = first.map(|(start, _)| start.clone()) else { return };
        loop {
            let mut two = self.map.range::<[u8], _>((Bound::Included(&at[..]), Bound::Unbounded));
            let (Some((_, left)), Some((start, right))) = (two.next(), two.next()) else { return };
            if range.end.as_ref().is_some_and(|end| start > end) {
                return;
            }
            let start = start.clone();
            if left.end.as_ref() != Some(&start) || left.holders != right.holders {
                at = start;
                continue;
            }
            let end = self.map.remove(&start).and_then(|right| right.end);
            if let Some(left) = self.map.get_mut(&at) {
                left.end = end;
            }
        }
    }

    /// Returns all fragments in key order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Fragment)> {
        self.map.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 1;
    const B: u64 = 2;

    fn range(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange { start: start.into(), end: Some(end.into()) }
    }

    /// Formats every fragment as `[start,end)holders`. An exclusive holder is marked with an
    /// exclamation mark.
    fn picture(fragments: &Fragments) -> String {
        let text = |b: &Bytes| String::from_utf8_lossy(b).replace('\0', "·");
        let one = |(start, f): (&Bytes, &Fragment)| {
            let holders = match &f.holders {
                Holders::Exclusive(id) => format!("{id}!"),
                Holders::Shared(ids) => {
                    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
                }
            };
            format!("[{},{}){holders}", text(start), f.end.as_ref().map(text).unwrap_or_default())
        };
        fragments.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn shared_locks_of_two_owners_overlap() {
        let mut f = Fragments::default();
        f.grant(A, &range("b", "f"), false);
        f.grant(B, &range("d", "h"), false);
        assert_eq!(picture(&f), "[b,d)1 [d,f)1,2 [f,h)2");
        f.release(A, &range("b", "f"));
        assert_eq!(picture(&f), "[d,h)2", "what is the same again is joined");
    }

    #[test]
    fn a_shared_lock_fills_the_gaps_between_what_is_there() {
        let mut f = Fragments::default();
        f.grant(A, &range("c", "d"), false);
        f.grant(A, &range("f", "g"), true);
        f.grant(A, &range("a", "z"), false);
        assert_eq!(picture(&f), "[a,f)1 [f,g)1! [g,z)1", "and what is exclusive stays so");
        f.grant(B, &range("a", "b"), false);
        f.grant(A, &KeyRange { start: "y".into(), end: None }, false);
        assert_eq!(picture(&f), "[a,b)1,2 [b,f)1 [f,g)1! [g,)1");
    }

    #[test]
    fn an_upgrade_replaces_the_shared_part() {
        let mut f = Fragments::default();
        f.grant(A, &range("a", "k"), false);
        f.grant(A, &range("c", "e"), true);
        assert_eq!(picture(&f), "[a,c)1 [c,e)1! [e,k)1");
        f.grant(A, &KeyRange::all(), true);
        assert_eq!(picture(&f), "[,)1!");
        f.release(A, &KeyRange::all());
        assert!(f.is_empty());
    }

    #[test]
    fn keys_locked_one_behind_the_other_become_one_range() {
        let mut f = Fragments::default();
        let key = |i: u32| Bytes::copy_from_slice(&i.to_be_bytes());
        f.grant(A, &KeyRange { start: key(0), end: Some(key(1)) }, false);
        for i in 1..1000 {
            f.grant(A, &KeyRange { start: key(i - 1), end: Some(key(i + 1)) }, false);
        }
        assert_eq!(f.iter().count(), 1);
    }

    #[test]
    fn what_is_held_in_one_piece_covers_what_lies_in_it() {
        let mut f = Fragments::default();
        f.grant(A, &range("b", "d"), false);
        f.grant(A, &range("d", "f"), true);
        assert!(f.covers(A, (&range("b", "f")).into(), false));
        assert!(f.covers(A, KeyRangeRef::key(b"e"), true));
        assert!(!f.covers(A, KeyRangeRef::key(b"c"), true), "it is shared there");
        assert!(!f.covers(A, (&range("a", "c")).into(), false));
        assert!(!f.covers(A, (&range("e", "g")).into(), false));
        assert!(!f.covers(A, KeyRangeRef::starting_at(b"b"), false));
        assert!(!f.covers(B, KeyRangeRef::key(b"c"), false));
    }

    #[test]
    fn only_what_excludes_it_stands_in_the_way_of_a_lock() {
        let mut f = Fragments::default();
        f.grant(A, &range("b", "d"), false);
        f.grant(B, &range("f", "h"), true);
        let ways = |owner, range: &KeyRange, exclusive| {
            f.in_the_way(owner, range.into(), exclusive).collect::<Vec<_>>()
        };
        assert_eq!(ways(None, &KeyRange::all(), true), [A, B]);
        assert_eq!(ways(None, &KeyRange::all(), false), [B]);
        assert_eq!(ways(Some(B), &KeyRange::all(), true), [A]);
        assert!(ways(None, &range("d", "f"), true).is_empty());
    }
}

//! Changes of a transaction that the server may not have applied yet. Readers see them in place of
//! the server's values of their keys.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use bytes::Bytes;
use kvdb::{DictionaryId, PageRequest, ServedChange, TuplePage};

use crate::changes::{memory_of_change, size_of_change};

/// The state of a changed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    Put(Bytes),
    Deleted,
    /// Updated from an unknown value: only the server can compute the result.
    Updated,
    /// Put by reference: only the server knows the value, and whether there is any.
    Referred,
}

impl Point {
    /// Returns whether only the server knows the value.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Point::Updated | Point::Referred)
    }
}

/// Changes in their order, and the states of the keys that they changed.
#[derive(Default)]
pub struct Gathered {
    pub changes: Vec<ServedChange>,
    /// For each unit that is applied as a whole, the number of changes up to its end.
    pub ends: Vec<usize>,
    points: BTreeMap<(DictionaryId, Bytes), Point>,
    /// Deleted ranges. The changes in `points` are later than these deletions.
    ranges: Vec<(DictionaryId, Bytes, Bytes)>,
    bytes: usize,
    memory: usize,
}

impl Gathered {
    /// Returns the approximate bytes of the changes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes that the changes take in the memory of a server that gets them as one
    /// unit.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the number of deleted ranges, all of which each lookup checks.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Ends a unit, which consists of the changes since the end of the previous one.
    pub fn end_unit(&mut self) {
        if self.ends.last() != Some(&self.changes.len()) && !self.changes.is_empty() {
            self.ends.push(self.changes.len());
        }
    }

    /// Adds a change. `known` is the current value of its key if the client knows it.
    pub fn add(&mut self, change: ServedChange, known: Option<Option<Bytes>>) {
        self.bytes += size_of_change(&change);
        self.memory += memory_of_change(&change);
        match &change {
            ServedChange::Put(dict, key, value) => {
                self.points.insert((*dict, key.clone()), Point::Put(value.clone()));
            }
            ServedChange::Update(dict, key, update) => {
                let point = match known {
                    Some(value) => Point::Put(update.apply(value.as_deref())),
                    None => Point::Updated,
                };
                self.points.insert((*dict, key.clone()), point);
            }
            ServedChange::Delete(dict, key) => {
                self.points.insert((*dict, key.clone()), Point::Deleted);
            }
            ServedChange::Refer(one) => {
                self.points.insert((one.dict, one.key.clone()), Point::Referred);
            }
            ServedChange::DeleteRange(dict, start, end) => {
                if start < end {
                    let (first, last) = ((*dict, start.clone()), (*dict, end.clone()));
                    let inside: Vec<_> =
                        self.points.range(first..last).map(|(at, _)| at.clone()).collect();
                    inside.iter().for_each(|at| drop(self.points.remove(at)));
                    self.ranges.push((*dict, start.clone(), end.clone()));
                }
            }
        }
        self.changes.push(change);
    }

    /// Appends later changes.
    pub fn follow(&mut self, later: Gathered) {
        for (dict, start, end) in later.ranges {
            let inside = (dict, start.clone())..(dict, end.clone());
            let inside: Vec<_> = self.points.range(inside).map(|(at, _)| at.clone()).collect();
            inside.iter().for_each(|at| drop(self.points.remove(at)));
            self.ranges.push((dict, start, end));
        }
        self.points.extend(later.points);
        let before = self.changes.len();
        self.changes.extend(later.changes);
        self.ends.extend(later.ends.into_iter().map(|end| before + end));
        self.bytes += later.bytes;
        self.memory += later.memory;
    }

    /// Like [`Gathered::compact`], unless the one unit would still take more than `most` bytes in
    /// memory: then the units stay as they are.
    pub fn compact_within(&mut self, most: usize) {
        let before = (self.changes.clone(), self.ends.clone());
        self.compact();
        if self.memory > most {
            (self.changes, self.ends) = before;
            self.bytes = self.changes.iter().map(size_of_change).sum();
            self.memory = self.changes.iter().map(memory_of_change).sum();
        }
    }

    /// Drops the changes whose keys are put or deleted by later ones. The rest becomes one unit:
    /// part of it alone would lack the changes that were dropped.
    pub fn compact(&mut self) {
        let mut settled: HashSet<(DictionaryId, Bytes)> = HashSet::new();
        let mut ranges: Vec<(DictionaryId, Bytes, Bytes)> = Vec::new();
        let mut kept = Vec::new();
        for change in std::mem::take(&mut self.changes).into_iter().rev() {
            let (dict, key, settles) = match &change {
                ServedChange::Put(dict, key, _) | ServedChange::Delete(dict, key) => {
                    (*dict, key, true)
                }
                ServedChange::Update(dict, key, _) => (*dict, key, false),
                // Its source was not changed before in these changes, so none of those that are
                // left out matters to it.
                ServedChange::Refer(one) => (one.dict, &one.key, true),
                ServedChange::DeleteRange(dict, start, end) => {
                    ranges.push((*dict, start.clone(), end.clone()));
                    kept.push(change);
                    continue;
                }
            };
            let is_deleted =
                ranges.iter().any(|(of, start, end)| *of == dict && start <= key && key < end);
            if is_deleted || settled.contains(&(dict, key.clone())) {
                continue;
            }
            if settles {
                settled.insert((dict, key.clone()));
            }
            kept.push(change);
        }
        kept.reverse();
        self.bytes = kept.iter().map(size_of_change).sum();
        self.memory = kept.iter().map(memory_of_change).sum();
        self.changes = kept;
        self.ends.clear();
        self.end_unit();
    }

    /// Returns the state that the changes have given a key, or `None` if they do not touch it.
    pub fn point(&self, dict: DictionaryId, key: &[u8]) -> Option<Point> {
        if let Some(point) = self.points.get(&(dict, Bytes::copy_from_slice(key))) {
            return Some(point.clone());
        }
        self.covers(dict, key).then_some(Point::Deleted)
    }

    fn covers(&self, dict: DictionaryId, key: &[u8]) -> bool {
        self.ranges.iter().any(|(of, start, end)| *of == dict && start <= key && key < &end[..])
    }
}

/// The changed keys and deleted ranges within a range of keys.
#[derive(Default)]
pub struct Overlay {
    points: BTreeMap<Bytes, Point>,
    ranges: Vec<(Bytes, Bytes)>,
}

impl Overlay {
    /// Adds later changes.
    pub fn add(&mut self, gathered: &Gathered, dict: DictionaryId, start: &[u8], end: &[u8]) {
        let overlaps = |(of, first, last): &&(DictionaryId, Bytes, Bytes)| {
            *of == dict && (end.is_empty() || first < end) && last > start
        };
        for (_, first, last) in gathered.ranges.iter().filter(overlaps) {
            self.points.retain(|key, _| key < first || key >= last);
            self.ranges.push((first.clone(), last.clone()));
        }
        let from = Bound::Included((dict, Bytes::copy_from_slice(start)));
        let to = match end {
            [] => dict.0.checked_add(1).map_or(Bound::Unbounded, |next| {
                Bound::Excluded((DictionaryId(next), Bytes::new()))
            }),
            end if end < start => return,
            end => Bound::Excluded((dict, Bytes::copy_from_slice(end))),
        };
        for ((of, key), point) in gathered.points.range((from, to)) {
            if *of == dict {
                self.points.insert(key.clone(), point.clone());
            }
        }
    }

    /// Returns whether the range has values that only the server knows.
    pub fn has_unknown(&self) -> bool {
        self.points.values().any(Point::is_unknown)
    }

    /// Returns whether the range has keys whose existence only the server knows.
    pub fn has_referred(&self) -> bool {
        self.points.values().any(|point| *point == Point::Referred)
    }

    /// Forgets the points of keys whose values only the server knows.
    pub fn forget_unknown(&mut self) {
        self.points.retain(|_, point| !point.is_unknown());
    }

    /// Applies the changes to a page that the server has sent, which may already reflect some of
    /// them. Returns the merged page and its last key on the server, up to and including which it
    /// is complete, or `None` if it reaches the end of the range.
    pub fn merge(&self, request: &PageRequest<'_>, page: TuplePage) -> (TuplePage, Option<Bytes>) {
        let last = page.tuples.last().map(|(key, _)| key.clone()).filter(|_| !page.ended);
        let is_within = |key: &Bytes| match &last {
            None => true,
            Some(last) if request.backward => key >= last,
            Some(last) => key <= last,
        };
        let is_deleted =
            |key: &Bytes| self.ranges.iter().any(|(start, end)| start <= key && key < end);
        let mut merged: BTreeMap<Bytes, Bytes> =
            page.tuples.into_iter().filter(|(key, _)| !is_deleted(key)).collect();
        for (key, point) in self.points.iter().filter(|(key, _)| is_within(key)) {
            match point {
                Point::Deleted => drop(merged.remove(key)),
                Point::Put(_) if request.keys_only => {
                    merged.insert(key.clone(), Bytes::new());
                }
                Point::Put(value) => drop(merged.insert(key.clone(), value.clone())),
                // Only its key is requested.
                Point::Updated | Point::Referred => drop(merged.entry(key.clone()).or_default()),
            }
        }
        let mut tuples: Vec<(Bytes, Bytes)> = merged.into_iter().collect();
        if request.backward {
            tuples.reverse();
        }
        let mut ended = page.ended;
        if tuples.len() > request.tuples as usize {
            tuples.truncate(request.tuples as usize);
            ended = false;
        }
        (TuplePage { tuples, ended }, last)
    }
}

#[cfg(test)]
mod tests {
    use kvdb::Update;
    use proptest::prelude::*;

    use super::*;

    const DICT: DictionaryId = DictionaryId(1);

    fn key() -> impl Strategy<Value = Bytes> {
        (0u8..12).prop_map(|key| Bytes::from(vec![b'a' + key]))
    }

    fn change() -> impl Strategy<Value = ServedChange> {
        let value = || proptest::collection::vec(any::<u8>(), 0..3).prop_map(Bytes::from);
        prop_oneof![
            4 => (key(), value()).prop_map(|(k, v)| ServedChange::Put(DICT, k, v)),
            2 => key().prop_map(|k| ServedChange::Delete(DICT, k)),
            1 => (key(), key()).prop_map(|(a, b)| ServedChange::DeleteRange(DICT, a, b)),
        ]
    }

    type Model = BTreeMap<Bytes, Bytes>;

    fn apply(model: &mut Model, change: &ServedChange) {
        match change {
            ServedChange::Put(_, key, value) => drop(model.insert(key.clone(), value.clone())),
            ServedChange::Delete(_, key) => drop(model.remove(key)),
            ServedChange::DeleteRange(_, start, end) => {
                model.retain(|key, _| key < start || key >= end);
            }
            ServedChange::Update(..) | ServedChange::Refer(..) => {}
        }
    }

    fn page_of(model: &Model, request: &PageRequest<'_>) -> TuplePage {
        let mut all: Vec<_> = model
            .iter()
            .filter(|(key, _)| {
                key >= &request.start && (request.end.is_empty() || key < &request.end)
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if request.backward {
            all.reverse();
        }
        let ended = all.len() <= request.tuples as usize;
        all.truncate(request.tuples as usize);
        TuplePage { tuples: all, ended }
    }

    proptest! {
        #[test]
        fn a_page_is_the_one_that_the_server_would_send_if_it_had_the_changes(
            changes in proptest::collection::vec(change(), 0..20),
            (sent, applied) in (0usize..20, 0usize..20),
            (start, end, backward) in (key(), key(), any::<bool>()),
            tuples in 1u32..6,
        ) {
            // The changes before `sent` have arrived, and the server may also have applied the
            // first of the others.
            let sent = sent.min(changes.len());
            let applied = applied.clamp(sent, changes.len().max(sent)).min(changes.len());
            let mut there = Model::new();
            changes[..applied].iter().for_each(|change| apply(&mut there, change));
            let mut all = there.clone();
            changes[applied..].iter().for_each(|change| apply(&mut all, change));
            let (mut first, mut second) = (Gathered::default(), Gathered::default());
            let middle = (sent + changes.len()) / 2;
            changes[sent..middle].iter().for_each(|change| first.add(change.clone(), None));
            changes[middle..].iter().for_each(|change| second.add(change.clone(), None));
            let (start, end) = (start.clone().min(end.clone()), start.max(end));
            let mut overlay = Overlay::default();
            overlay.add(&first, DICT, &start, &end);
            overlay.add(&second, DICT, &start, &end);
            let request = PageRequest {
                start: &start, end: &end, backward, keys_only: false, tuples, bytes: 1000,
            };
            let (page, to) = overlay.merge(&request, page_of(&there, &request));
            let expected = page_of(&all, &PageRequest { tuples: 100, ..request });
            let expected: Vec<_> = expected.tuples.into_iter().filter(|(key, _)| match &to {
                Some(to) if backward => key >= to,
                Some(to) => key <= to,
                None => true,
            }).collect();
            let taken = expected.len().min(tuples as usize);
            prop_assert_eq!(&page.tuples, &expected[..taken]);
            prop_assert_eq!(page.ended, to.is_none() && taken == expected.len());
            for (key, value) in &all {
                let point = second.point(DICT, key).or_else(|| first.point(DICT, key));
                if let Some(point) = point {
                    prop_assert_eq!(point, Point::Put(value.clone()));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_left_out_makes_no_difference(
            changes in proptest::collection::vec(change(), 0..30),
            middle in 0usize..30,
        ) {
            let middle = middle.min(changes.len());
            let (mut all, mut later) = (Gathered::default(), Gathered::default());
            changes[..middle].iter().for_each(|change| all.add(change.clone(), None));
            changes[middle..].iter().for_each(|change| later.add(change.clone(), None));
            let mut whole = Gathered::default();
            changes.iter().for_each(|change| whole.add(change.clone(), None));
            all.follow(later);
            prop_assert_eq!(&all.changes, &whole.changes);
            prop_assert_eq!((&all.points, all.bytes), (&whole.points, whole.bytes));
            all.compact();
            let (mut expected, mut found) = (Model::new(), Model::new());
            changes.iter().for_each(|change| apply(&mut expected, change));
            all.changes.iter().for_each(|change| apply(&mut found, change));
            prop_assert_eq!(found, expected);
            let mut puts = HashSet::new();
            for change in &all.changes {
                if let ServedChange::Put(_, key, _) | ServedChange::Delete(_, key) = change {
                    prop_assert!(puts.insert(key.clone()), "{:?} comes twice", key);
                }
            }
        }
    }

    #[test]
    fn units_become_one_only_where_it_is_not_too_long() {
        let gathered = |most: usize| {
            let mut gathered = Gathered::default();
            for key in [&b"a"[..], b"b", b"a"] {
                let key = Bytes::from_static(key);
                gathered.add(ServedChange::Put(DICT, key, Bytes::from(vec![7; 100])), None);
                gathered.end_unit();
            }
            let memory = gathered.memory();
            gathered.compact_within(most);
            (gathered.ends, gathered.memory, memory)
        };
        let (ends, after, before) = gathered(usize::MAX);
        assert_eq!((ends, 3 * after), (vec![2], 2 * before));
        assert_eq!(gathered(after), (vec![2], after, before));
        assert_eq!(gathered(after - 1), (vec![1, 2, 3], before, before));
    }

    #[test]
    fn a_reference_stays_until_its_key_is_put_again() {
        let refer = |key: &'static [u8], of: &'static [u8]| {
            let of = (DICT, Bytes::from_static(of));
            ServedChange::Refer(kvdb::Reference { dict: DICT, key: key.into(), of })
        };
        let put = |key: &'static [u8]| ServedChange::Put(DICT, key.into(), "value".into());
        let mut gathered = Gathered::default();
        let changes = [put(b"a"), refer(b"a", b"x"), refer(b"b", b"y"), put(b"x"), put(b"b")];
        changes.iter().for_each(|change| gathered.add(change.clone(), None));
        assert_eq!(gathered.point(DICT, b"a"), Some(Point::Referred));
        assert!(gathered.memory() > 2 * crate::changes::REFERRED, "each counts as a small value");
        gathered.compact();
        assert_eq!(gathered.changes, [refer(b"a", b"x"), put(b"x"), put(b"b")]);
    }

    #[test]
    fn an_update_of_a_value_that_is_not_known_is_left_to_the_server() {
        let mut gathered = Gathered::default();
        let key = Bytes::from_static(b"k");
        gathered.add(ServedChange::Update(DICT, key.clone(), Update::add(1)), None);
        assert_eq!(gathered.point(DICT, &key), Some(Point::Updated));
        let known = Some(Some(Bytes::from_static(b"4")));
        gathered.add(ServedChange::Update(DICT, key.clone(), Update::add(1)), known);
        assert_eq!(gathered.point(DICT, &key), Some(Point::Put(Bytes::from_static(b"5"))));
    }
}

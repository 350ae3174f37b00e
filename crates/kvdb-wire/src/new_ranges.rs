//! Ranges of keys that were empty when the client created their contents, for example the names of
//! a new directory. Only this client puts keys there, so it knows all of them, and does not have to
//! ask the server whether a key is missing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvdb::DictionaryId;

/// Approximate bytes that a key or a range takes in addition to its own.
const ENTRY: usize = 96;

pub struct NewRanges {
    /// Limit of the bytes of all ranges. If they exceed it, all of them are forgotten.
    most: usize,
    bytes: usize,
    ranges: BTreeMap<(DictionaryId, Bytes), NewRange>,
}

struct NewRange {
    end: Bytes,
    /// The keys that were put and have not been deleted since.
    keys: BTreeSet<Bytes>,
}

impl NewRanges {
    pub fn new(most: usize) -> NewRanges {
        NewRanges { most, bytes: 0, ranges: BTreeMap::new() }
    }

    /// Adds a range that is empty and overlaps with no other one.
    pub fn add(&mut self, dict: DictionaryId, start: &[u8], end: &[u8]) {
        let own = Bytes::copy_from_slice;
        let new = NewRange { end: own(end), keys: BTreeSet::new() };
        if self.ranges.insert((dict, own(start)), new).is_none() {
            self.grow(start.len() + end.len());
        }
    }

    fn grow(&mut self, bytes: usize) {
        self.bytes += ENTRY + bytes;
        if self.bytes > self.most {
            self.clear();
        }
    }

    pub fn clear(&mut self) {
        self.bytes = 0;
        self.ranges.clear();
    }

    fn find(&mut self, dict: DictionaryId, key: &Bytes) -> Option<&mut NewRange> {
        let ((of, _), range) = self.ranges.range_mut(..=(dict, key.clone())).next_back()?;
        (*of == dict && *key < range.end).then_some(range)
    }

    /// Records that the client puts a key.
    pub fn put(&mut self, dict: DictionaryId, key: &Bytes) {
        if self.find(dict, key).is_some_and(|range| range.keys.insert(key.clone())) {
            self.grow(key.len());
        }
    }

    /// Records that the client deletes a key.
    pub fn delete(&mut self, dict: DictionaryId, key: &Bytes) {
        if self.find(dict, key).is_some_and(|range| range.keys.remove(key)) {
            self.bytes -= ENTRY + key.len();
        }
    }

    /// Returns whether the key is known to be missing. Returns `false` if it exists, or if that is
    /// not known.
    pub fn lacks(&self, dict: DictionaryId, key: &Bytes) -> bool {
        let at = self.ranges.range(..=(dict, key.clone())).next_back();
        at.is_some_and(|((of, _), range)| {
            *of == dict && *key < range.end && !range.keys.contains(key)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DICT: DictionaryId = DictionaryId(1);

    #[test]
    fn of_a_new_range_it_is_known_what_it_lacks() {
        let mut new = NewRanges::new(1 << 20);
        let key = |key: &'static str| Bytes::from_static(key.as_bytes());
        new.add(DICT, b"b", b"d");
        assert!(new.lacks(DICT, &key("b")) && new.lacks(DICT, &key("c")));
        assert!(!new.lacks(DICT, &key("a")) && !new.lacks(DICT, &key("d")));
        assert!(!new.lacks(DictionaryId(2), &key("c")));
        new.put(DICT, &key("c"));
        new.put(DICT, &key("x"));
        assert!(!new.lacks(DICT, &key("c")) && new.lacks(DICT, &key("ca")));
        new.delete(DICT, &key("c"));
        assert!(new.lacks(DICT, &key("c")));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut new = NewRanges::new(10_000);
        let key = |i: u32| Bytes::from(i.to_be_bytes().to_vec());
        new.add(DICT, b"", &[0xff]);
        for i in 0..50 {
            new.put(DICT, &key(i));
        }
        assert!(!new.lacks(DICT, &key(49)) && new.lacks(DICT, &key(50)));
        for i in 50..1000 {
            new.put(DICT, &key(i));
            assert!(new.bytes <= 10_000);
        }
        assert!(!new.lacks(DICT, &key(5000)), "it is not known any more");
    }
}

//! Decides which keys a view asks for ahead: after a key that it had to ask the server for, and one
//! that lies near it, those around it are likely to be asked for too, as the names of a directory
//! and the nodes and contents of its files. So one request brings a page of them.
//!
//! Keys are near one another if they begin with the same number of eight bytes, as what a file
//! system stores of one directory or file does, or with numbers that differ by little, as those of
//! files that were made one after the other.
//!
//! Reading ahead in vain is bounded by an allowance: each lookup that the server is asked for
//! adds to it, and each that is answered from what is known adds much more.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kvdb::{DictionaryId, PageRequest, TuplePage};

use crate::body::MAX_TUPLES;

/// Bytes of a page that is read ahead: of the first one of a dictionary, and of the longest. Each
/// has twice as many as the one before. A view waits for a page, so it must not be too long.
const BYTES: (u32, u32) = (32 << 10, 128 << 10);
/// The allowance at first, what each request adds to it, and what it has at most.
const ALLOWANCE: (usize, usize, usize) = (1 << 20, 4 << 10, 4 << 20);
/// Added for each byte that did not have to be asked for.
const OF_KNOWN: usize = 8;
/// Bytes that a lookup of a key that is known counts in addition to the value.
const LOOKUP: usize = 64;
/// Numbers that differ by so much are near: directories have ranges of numbers for their files.
const NEAR: u64 = 1024;
/// Where the numbers that are asked for do not rise, those below are read ahead from a multiple of
/// this.
const BELOW: u64 = 64;
/// Keys that are remembered. They are of some more directories than a tree is walked in at once.
const REMEMBERED: usize = 128;

/// The keys that a view has asked for last.
pub struct Ahead {
    asked: VecDeque<(DictionaryId, Bytes)>,
    allowance: usize,
    next: BTreeMap<DictionaryId, Next>,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Keys, the first of which is examined.
    Keys,
    /// A range. It brings what lies near by itself, but for what begins with other numbers.
    Range,
}

/// The next page of a dictionary that is read ahead.
struct Next {
    bytes: u32,
    /// One range is being read. Requests of other calls are then sent by themselves.
    is_under_way: bool,
}

/// A range to be read from its start, as far as its bytes go.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub start: Bytes,
    /// Empty: the end of the dictionary.
    pub end: Bytes,
    pub bytes: u32,
}

impl Plan {
    pub fn request(&self) -> PageRequest<'_> {
        PageRequest {
            start: &self.start,
            end: &self.end,
            backward: false,
            keys_only: false,
            tuples: MAX_TUPLES,
            bytes: self.bytes,
        }
    }
}

/// Returns the number with which a key begins.
fn number_of(key: &[u8]) -> Option<u64> {
    key.first_chunk().copied().map(u64::from_be_bytes)
}

/// Returns the first of these keys, where hardly any others lie among them, so that reading from
/// there on brings most of them. Otherwise they are better asked for one by one, together.
pub fn first_of_dense(keys: &[Bytes]) -> Option<&Bytes> {
    let (first, last) = (keys.iter().min()?, keys.iter().max()?);
    let apart = number_of(last)?.saturating_sub(number_of(first)?);
    (apart <= 2 * keys.len() as u64).then_some(first)
}

impl Ahead {
    pub fn new() -> Ahead {
        Ahead { asked: VecDeque::new(), allowance: ALLOWANCE.0, next: BTreeMap::new() }
    }

    /// The server has to be asked for a key, or for a range from there on. Returns the range to ask
    /// for first, where that is likely to save requests. After a range, [`Ahead::has_read`] must be
    /// called.
    pub fn plan(&mut self, dict: DictionaryId, key: &Bytes, asked: Asked) -> Option<Plan> {
        let number = number_of(key)?;
        self.allow(ALLOWANCE.1);
        let range = self.near(dict, number, key, asked);
        if self.asked.len() >= REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back((dict, Bytes::copy_from_slice(key)));
        let (start, end) = range?;
        let first = Next { bytes: BYTES.0, is_under_way: false };
        let next = self.next.entry(dict).or_insert(first);
        if next.is_under_way {
            return None;
        }
        if self.allowance < next.bytes as usize {
            next.bytes = BYTES.0;
            return None;
        }
        next.is_under_way = true;
        let bytes = next.bytes;
        next.bytes = (bytes * 2).min(BYTES.1);
        Some(Plan { start, end, bytes })
    }

    /// Returns the range around a key that is likely to be asked for with it, if one near it was
    /// asked for before.
    fn near(
        &self,
        dict: DictionaryId,
        number: u64,
        key: &Bytes,
        kind: Asked,
    ) -> Option<(Bytes, Bytes)> {
        let asked = || self.asked.iter().rev().filter(|(of, _)| *of == dict).map(|(_, key)| key);
        let prefix = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        if let Some(last) = asked().find(|last| number_of(last) == Some(number)) {
            if kind == Asked::Range {
                return None;
            }
            let end = number.checked_add(1).map_or(Bytes::new(), prefix);
            // In the order of keys, what came before is not asked for any more.
            let start = if last < key { Bytes::copy_from_slice(key) } else { prefix(number) };
            return Some((start, end));
        }
        let is_near = |last: u64| last.abs_diff(number) <= NEAR;
        let last = asked().find_map(|last| number_of(last).filter(|last| is_near(*last)))?;
        let start = match last < number {
            true => Bytes::copy_from_slice(key),
            false => prefix(number - number % BELOW),
        };
        Some((start, Bytes::new()))
    }

    /// A range was read ahead, or could not be.
    pub fn has_read(&mut self, dict: DictionaryId, bytes: usize) {
        self.allowance = self.allowance.saturating_sub(bytes);
        if let Some(next) = self.next.get_mut(&dict) {
            next.is_under_way = false;
        }
    }

    /// A page was asked for, and all of it is known.
    pub fn looked_at(&mut self, page: &TuplePage) {
        let size = |(key, value): &(Bytes, Bytes)| key.len() + value.len();
        let bytes: usize = page.tuples.iter().map(size).sum();
        self.allow((LOOKUP + bytes).saturating_mul(OF_KNOWN));
    }

    /// These were looked up; of those that are known the server was not asked.
    pub fn looked_up(&mut self, found: &[Option<Option<Bytes>>]) {
        let known = found.iter().flatten();
        let bytes: usize = known.map(|value| LOOKUP + value.as_ref().map_or(0, Bytes::len)).sum();
        self.allow(bytes.saturating_mul(OF_KNOWN));
    }

    fn allow(&mut self, bytes: usize) {
        self.allowance = self.allowance.saturating_add(bytes).min(ALLOWANCE.2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DICT: DictionaryId = DictionaryId(1);

    fn key(number: u64, rest: &str) -> Bytes {
        [&number.to_be_bytes()[..], rest.as_bytes()].concat().into()
    }

    fn range(ahead: &mut Ahead, key: &Bytes) -> Option<(Bytes, Bytes)> {
        let plan = ahead.plan(DICT, key, Asked::Keys)?;
        ahead.has_read(DICT, 0);
        assert!(plan.start <= *key && (plan.end.is_empty() || *key < plan.end));
        Some((plan.start, plan.end))
    }

    #[test]
    fn the_second_key_of_a_directory_or_near_it_brings_those_around_it() {
        let mut ahead = Ahead::new();
        assert_eq!(range(&mut ahead, &key(1000, "b")), None, "the first one");
        assert_eq!(range(&mut ahead, &key(5000, "b")), None, "it is far away");
        assert_eq!(range(&mut ahead, &Bytes::from("short")), None);
        let other = ahead.plan(DictionaryId(2), &key(1000, "c"), Asked::Keys);
        assert_eq!(other, None, "another dictionary");
        let end = key(1001, "");
        assert_eq!(range(&mut ahead, &key(1000, "c")), Some((key(1000, "c"), end.clone())));
        assert_eq!(range(&mut ahead, &key(1000, "a")), Some((key(1000, ""), end)));
        assert_eq!(range(&mut ahead, &key(1003, "")), Some((key(1003, ""), Bytes::new())));
        assert_eq!(range(&mut ahead, &key(990, "x")), Some((key(960, ""), Bytes::new())));
        assert_eq!(range(&mut ahead, &key(u64::MAX, "a")), None);
        let last = (key(u64::MAX, "b"), Bytes::new());
        assert_eq!(range(&mut ahead, &key(u64::MAX, "b")), Some(last));
    }

    #[test]
    fn a_range_brings_those_of_other_numbers_alone() {
        let mut ahead = Ahead::new();
        assert_eq!(ahead.plan(DICT, &key(7, ""), Asked::Range), None);
        assert_eq!(ahead.plan(DICT, &key(7, "b"), Asked::Range), None, "it goes on there");
        let plan = ahead.plan(DICT, &key(9, ""), Asked::Range).unwrap();
        assert_eq!((plan.start, plan.end), (key(9, ""), Bytes::new()));
    }

    #[test]
    fn keys_with_others_among_them_are_not_read_as_a_range() {
        let keys = |numbers: &[u64]| numbers.iter().map(|n| key(*n, "n")).collect::<Vec<_>>();
        assert_eq!(first_of_dense(&keys(&[9, 7, 12])), Some(&key(7, "n")));
        assert_eq!(first_of_dense(&keys(&[9, 7, 900])), None);
        assert_eq!(first_of_dense(&[]), None);
        assert_eq!(first_of_dense(&[Bytes::from("short")]), None);
    }

    #[test]
    fn pages_grow_and_there_is_one_at_a_time() {
        let mut ahead = Ahead::new();
        assert_eq!(ahead.plan(DICT, &key(1, "a"), Asked::Keys), None);
        for bytes in [32, 64, 128, 128] {
            assert_eq!(ahead.plan(DICT, &key(1, "b"), Asked::Keys).unwrap().bytes, bytes << 10);
            assert_eq!(ahead.plan(DICT, &key(1, "c"), Asked::Keys), None, "it is under way");
            ahead.has_read(DICT, 100);
        }
    }

    #[test]
    fn what_is_read_in_vain_is_bounded() {
        let mut ahead = Ahead::new();
        let mut read = 0;
        for asked in 1..10_000usize {
            if let Some(plan) = ahead.plan(DICT, &key(1, &format!("{asked}")), Asked::Keys) {
                read += plan.bytes as usize;
                ahead.has_read(DICT, plan.bytes as usize);
            }
            assert!(read <= ALLOWANCE.0 + asked * ALLOWANCE.1, "{read} after {asked}");
        }
        // Reading of use brings more.
        ahead.looked_up(&[Some(Some(Bytes::from(vec![0; 1 << 20]))), None]);
        assert_eq!(
            ahead.plan(DICT, &key(1, "a"), Asked::Keys).map(|plan| plan.bytes),
            Some(BYTES.0)
        );
        assert!(ahead.allowance <= ALLOWANCE.2);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut ahead = Ahead::new();
        for number in 0..1000 {
            assert_eq!(ahead.plan(DICT, &key(number * 10_000, "a"), Asked::Keys), None);
            assert!(ahead.asked.len() <= REMEMBERED);
        }
        assert_eq!(ahead.plan(DICT, &key(0, "b"), Asked::Keys), None, "it is too long ago");
    }
}

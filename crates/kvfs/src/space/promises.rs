//! The space that `fallocate` has promised to files for bytes that are not written yet. It is set
//! aside as long as the mount lasts, and noted in the store, so that the next mount sets it aside,
//! too. The host allocates it as well, in the file of the store, until the store is closed.
//!
//! The note of a file (`layout::promise_key`) has the ranges as requested, and changes only with
//! requests. The pages tell which of these bytes are written, so a write does not change the note;
//! the last write of the promised bytes removes it. A write takes its space from the promise of its
//! file.
//!
//! The mainline keeps the promises of all its files. The view of a transaction keeps those that
//! were made in it, until its commit. Clones and snapshots keep none: they share the pages, but not
//! the promise.

use std::collections::{BTreeMap, HashMap};

use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use kvdb::{Batch, DictionaryId, PromisedSpace};

use crate::attr::{Attr, Ino};
use crate::error::Result;
use crate::inode::InodeState;
use crate::layout::{self, PAGE, blocks_of};
use crate::space::space_account::cost_of;

/// Limit of the ranges of one file. Beyond it, the closest ranges are joined: promising too much is
/// better than too little.
const MAX_RANGES: usize = 1024;

/// Ranges of bytes that do not touch, each from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(&from, &to)| (from, to))
    }

    pub fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        while let Some((&start, &end)) =
            self.0.range(..=to).next_back().filter(|(_, e)| **e >= from)
        {
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(from, to);
        if self.0.len() > MAX_RANGES {
            self.join_closest();
        }
    }

    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        while let Some((&start, &end)) = self.0.range(..to).next_back().filter(|(_, e)| **e > from)
        {
            self.0.remove(&start);
            if start < from {
                self.0.insert(start, from);
            }
            if end > to {
                self.0.insert(to, end);
            }
        }
        if self.0.len() > MAX_RANGES {
            self.join_closest();
        }
    }

    fn join_closest(&mut self) {
        let pairs = self.iter().zip(self.iter().skip(1));
        let closest = pairs.min_by_key(|((_, end), (start, _))| start - end);
        if let Some(((from, _), (next, to))) = closest {
            self.0.remove(&next);
            self.0.insert(from, to);
        }
    }

    /// Returns the number of pages between `from` and `to` that contain bytes of a range.
    pub fn pages_within(&self, from: u64, to: u64) -> u64 {
        let (mut pages, mut behind) = (0, from / PAGE);
        let first = self.0.range(..from).next_back().map_or(from, |(start, _)| *start);
        for (start, end) in self.0.range(first..to).map(|(&start, &end)| (start, end)) {
            if end <= from {
                continue;
            }
            let last = blocks_of(end.min(to));
            pages += last.saturating_sub(behind.max(start.max(from) / PAGE));
            behind = behind.max(last);
        }
        pages
    }

    pub fn pages(&self) -> u64 {
        self.pages_within(0, u64::MAX)
    }

    pub fn encode(&self) -> Vec<u8> {
        let (mut out, mut before) = (Vec::new(), 0);
        for (from, to) in self.iter() {
            layout::put_varint(&mut out, from - before);
            layout::put_varint(&mut out, to - from);
            before = to;
        }
        out
    }

    /// Decodes ranges, or returns `None` if the value is malformed.
    pub fn decode(mut value: &[u8]) -> Option<Ranges> {
        let (mut ranges, mut before) = (BTreeMap::new(), 0u64);
        while !value.is_empty() {
            let from = before.checked_add(layout::take_varint(&mut value)?)?;
            let to = from.checked_add(layout::take_varint(&mut value)?)?;
            if to == from || !ranges.is_empty() && from == before || ranges.len() == MAX_RANGES {
                return None;
            }
            ranges.insert(from, to);
            before = to;
        }
        i64::try_from(before).is_ok().then_some(Ranges(ranges))
    }
}

/// The promises to the files of a view.
pub(crate) struct Promises {
    files: Mutex<HashMap<Ino, Ranges>>,
    /// The number of files, to be read without the lock.
    count: AtomicUsize,
    space: PromisedSpace,
    /// The dictionary of the notes.
    imap: DictionaryId,
    /// All notes in the store count, since the view is the mainline.
    pub all: AtomicBool,
}

impl Promises {
    /// Returns the promises of a view whose notes are in `imap`. It sets aside `space`.
    pub fn new(space: PromisedSpace, imap: DictionaryId) -> Promises {
        let (files, count) = (Mutex::default(), AtomicUsize::new(0));
        Promises { files, count, space, imap, all: AtomicBool::new(false) }
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Changes the promise of a file.
    pub fn change(&self, ino: Ino, change: impl FnOnce(&mut Ranges)) {
        let mut files = self.files.lock();
        let ranges = files.entry(ino).or_default();
        let before = ranges.pages();
        change(ranges);
        let now = ranges.pages();
        if ranges.is_empty() {
            files.remove(&ino);
        }
        self.space.grow(cost_of(now.saturating_sub(before) * PAGE));
        self.space.shrink(cost_of(before.saturating_sub(now) * PAGE));
        self.count.store(files.len(), Ordering::Relaxed);
    }

    /// Has the host allocate all promised space.
    pub fn back(&self) -> kvdb::Result<()> {
        self.space.back()
    }

    pub fn of(&self, ino: Ino) -> Option<Ranges> {
        if self.is_empty() { None } else { self.files.lock().get(&ino).cloned() }
    }

    pub fn has(&self, ino: Ino) -> bool {
        !self.is_empty() && self.files.lock().contains_key(&ino)
    }

    pub fn pages_within(&self, ino: Ino, from: u64, to: u64) -> u64 {
        match self.is_empty() {
            true => 0,
            false => self.files.lock().get(&ino).map_or(0, |ranges| ranges.pages_within(from, to)),
        }
    }

    /// Returns the files that have promises.
    pub fn files(&self) -> Vec<Ino> {
        self.files.lock().keys().copied().collect()
    }

    /// Forgets the promise of a removed file.
    pub fn forget(&self, ino: Ino) {
        if self.has(ino) {
            self.change(ino, |ranges| *ranges = Ranges::default());
        }
    }

    /// Returns the number of bytes of a write for which no space is promised yet, or `None` if all
    /// are covered by a promise.
    pub fn not_promised(&self, ino: Ino, offset: u64, end: u64) -> Option<u64> {
        let promised = self.pages_within(ino, offset, end);
        match promised == blocks_of(end) - offset / PAGE {
            true => None,
            false => Some((end - offset).saturating_sub(promised * PAGE)),
        }
    }

    /// Promises space to ranges of a file whose inode is locked, and has the host allocate it. The
    /// note is written with the inode's next commit. After an error nothing is promised.
    pub fn make(&self, ino: Ino, state: &mut InodeState, ranges: &Ranges) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let before = self.of(ino);
        self.change(ino, |have| {
            ranges.iter().for_each(|(from, to)| have.add(from, to));
        });
        if let Err(e) = self.back() {
            self.change(ino, |have| *have = before.unwrap_or_default());
            return Err(e.into());
        }
        state.buffer.promise_changed = true;
        Ok(())
    }

    /// Releases the promise for bytes that were written; the account of dirty data covers them now.
    pub fn keep(&self, ino: Ino, state: &mut InodeState, from: u64, to: u64) {
        if self.pages_within(ino, from, to) > 0 {
            self.change(ino, |ranges| ranges.remove(from, to));
            // When no promised bytes are left, the note is removed.
            state.buffer.promise_changed |= !self.has(ino);
        }
    }

    /// Releases the promise for bytes that are cut off or become a hole.
    pub fn release(&self, ino: Ino, state: &mut InodeState, from: u64, to: u64) {
        if self.pages_within(ino, from, to) > 0 {
            self.change(ino, |ranges| ranges.remove(from, to));
            state.buffer.promise_changed = true;
        }
    }

    /// Adds the note of a file's promise to its commit.
    pub fn stage(&self, ino: Ino, links: u32, batch: &mut Batch) {
        let key = layout::promise_key(ino);
        match self.of(ino).filter(|_| links > 0) {
            Some(ranges) => batch.put(self.imap, key, ranges.encode()),
            None => batch.delete(self.imap, key),
        }
    }

    /// Returns the attributes with promised pages counted as taken.
    pub fn shown(&self, attr: Attr) -> Attr {
        match self.pages_within(attr.ino, 0, u64::MAX) {
            0 => attr,
            pages => Attr { blocks: attr.blocks.saturating_add(pages * (PAGE / 512)), ..attr },
        }
    }

    /// Releases all promised space of a view that has ended.
    pub fn give_back(&self) {
        self.files.lock().clear();
        self.count.store(0, Ordering::Relaxed);
        self.space.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_a_set_of_bytes_would_be() {
        let mut random = env::Random::new(3);
        for _ in 0..200 {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 64]);
            for _ in 0..40 {
                let from = random.below(64);
                let to = from + random.below(65 - from);
                let add = random.one_in(2);
                match add {
                    true => ranges.add(from, to),
                    false => ranges.remove(from, to),
                }
                bytes[from as usize..to as usize].fill(add);
                let now: Vec<bool> =
                    (0..64).map(|at| ranges.iter().any(|(a, b)| (a..b).contains(&at))).collect();
                assert_eq!(now, bytes);
                assert_eq!(Ranges::decode(&ranges.encode()), Some(ranges.clone()));
            }
        }
    }

    #[test]
    fn a_page_counts_once_however_many_of_its_bytes_are_promised() {
        let mut ranges = Ranges::default();
        for (from, to) in [(10, 20), (30, 40), (PAGE, PAGE + 1), (3 * PAGE - 1, 4 * PAGE + 1)] {
            ranges.add(from, to);
        }
        assert_eq!(ranges.pages_within(0, u64::MAX), 5);
        assert_eq!(ranges.pages_within(25, PAGE), 1);
        assert_eq!(ranges.pages_within(15, 16), 1);
        assert_eq!(ranges.pages_within(20, 30), 0);
        assert_eq!(ranges.pages_within(PAGE + 1, 3 * PAGE), 1);
        assert_eq!(ranges.pages_within(3 * PAGE + 5, 3 * PAGE + 6), 1);
    }

    #[test]
    fn so_many_ranges_and_no_more_and_none_is_lost() {
        let mut ranges = Ranges::default();
        for n in 0..2 * MAX_RANGES as u64 {
            ranges.add(n * 100, n * 100 + 10);
        }
        assert_eq!(ranges.0.len(), MAX_RANGES);
        let covered = |n: u64| ranges.iter().any(|(a, b)| a <= n * 100 && b >= n * 100 + 10);
        assert!((0..2 * MAX_RANGES as u64).all(covered));
    }

    #[test]
    fn what_is_no_note_is_none() {
        for bad in [&[0][..], &[0, 0], &[5, 1, 0, 1], &[0xff; 12], &[1, 0x80]] {
            assert_eq!(Ranges::decode(bad), None, "{bad:?}");
        }
        let huge = [0u8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(Ranges::decode(&huge), None);
    }
}

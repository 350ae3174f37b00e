//! Inode numbers: one counter for a branch, its mainline and all its transactions, so that no two
//! of them ever give a new inode the same number, and commits need not be checked for it.
//!
//! Nodes, names and pages are stored in the order of these numbers. So that files which lie in one
//! directory lie together on disk, too, a directory reserves numbers in blocks, its zones, and its
//! files get theirs out of these, whatever is made elsewhere in between. A new subdirectory gets a
//! part of what its parent has left, so that small trees lie together as a whole. What a directory
//! has left stands in its node, which every new entry writes anyway. See
//! `docs/decisions/051-zones-of-the-name-space.md`.
//!
//! A transaction reserves blocks of its own, in memory, and remembers all of them: an inode with a
//! number out of them is its own, was never seen outside, and goes without a trace when it is
//! removed. The gaps that blocks leave cost nothing: a number is never reused, and there are 2^48
//! of them.
//!
//! A note in the store says below which bound all numbers lie that were given: a number may be
//! where nothing shows it when the store is opened, in a durable transaction that cannot go on for
//! want of room, say. The note is committed before the first number at or above it is used, and
//! then leaves room for many, so that it costs next to nothing. What is not used of them when the
//! store is closed is a gap.

use env::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use env::sync::Mutex;

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::layout::{Numbers, PAGE};
use crate::reservation::{INO_LIMIT, Reservation};

/// Numbers that one note of the bound is enough for.
const NOTED_TOGETHER: u64 = 1 << 16;
/// Blocks grow from the first to the second of these.
const FIRST_BLOCK: u64 = 64;
const LARGEST_BLOCK: u64 = 1 << 16;

/// Numbers of the largest block that a directory reserves.
const LARGEST_ZONE: u64 = 1 << 20;

/// Where one view of a branch takes its numbers from.
pub(crate) struct InodeAllocator {
    given: Arc<Given>,
    /// Numbers of a directory's first block; 0: directories reserve none.
    zone: u64,
    blocks: Option<Mutex<Blocks>>,
}

/// What all views of a branch have given.
struct Given {
    next: AtomicU64,
    /// The bound that the store's note says.
    noted: AtomicU64,
    /// Numbers below this that a directory has reserved are void.
    first_reserved: AtomicU64,
    /// Held while the note is written, which is a commit.
    noting: Mutex<()>,
}

#[derive(Default)]
struct Blocks {
    /// Every block taken, ascending.
    taken: Vec<Range<Ino>>,
    /// What is left of the last one.
    left: Range<Ino>,
    /// What each directory has left.
    reserved: HashMap<Ino, Reservation>,
}

impl InodeAllocator {
    /// The allocator of a mainline whose largest number in use is below `next`.
    pub fn from(next: Ino, zone_size: u64) -> InodeAllocator {
        let given = Given {
            next: AtomicU64::new(next),
            noted: AtomicU64::new(0),
            first_reserved: AtomicU64::new(next),
            noting: Mutex::new(()),
        };
        let zone = zone_size.div_ceil(PAGE).min(LARGEST_ZONE);
        let zone = if zone == 0 { 0 } else { zone.next_power_of_two() };
        InodeAllocator { given: Arc::new(given), zone, blocks: None }
    }

    /// The allocator of a state in which nothing is made.
    pub fn of_frozen() -> InodeAllocator {
        InodeAllocator::from(INO_LIMIT - 1, 0)
    }

    /// Reservations of numbers below this are void: the numbers may have been given elsewhere.
    pub fn void_below(&self, ino: Ino) {
        self.given.first_reserved.store(ino, Ordering::Relaxed);
    }

    /// All reservations so far are void. The next note says so.
    pub fn void_reservations(&self) {
        self.void_below(self.next());
    }

    /// What a note of `bound` says.
    pub fn numbers(&self, bound: Ino) -> Numbers {
        let first_reserved = self.given.first_reserved.load(Ordering::Relaxed).min(bound);
        Numbers { bound, first_reserved }
    }

    /// The store says that numbers below `bound` may have been given.
    pub fn set_noted_below(&self, bound: Ino) {
        self.given.noted.store(bound, Ordering::Relaxed);
    }

    /// The store has become another one, and its note is not known.
    pub fn clear_noted(&self) {
        self.set_noted_below(0);
    }

    /// The bound that the store's note says, if it is known and directories reserve numbers.
    pub fn noted(&self) -> Option<Ino> {
        let noted = self.given.noted.load(Ordering::Relaxed);
        (noted > 0 && self.zone > 0).then_some(noted)
    }

    /// Whether the store says that all numbers below `end` may have been given.
    pub fn is_noted(&self, end: Ino) -> bool {
        end <= self.given.noted.load(Ordering::Relaxed)
    }

    /// Has `write` note a bound unless all numbers below `end` are noted. They may be used when
    /// this returns.
    pub fn note(&self, end: Ino, write: impl FnOnce(Ino) -> Result<()>) -> Result<()> {
        let _noting = self.given.noting.lock();
        if self.is_noted(end) {
            return Ok(());
        }
        if end > INO_LIMIT {
            return Err(Error::NoSpace);
        }
        let bound = self.next().max(end).saturating_add(NOTED_TOGETHER).min(INO_LIMIT);
        write(bound)?;
        self.set_noted_below(bound);
        Ok(())
    }

    /// The allocator of a transaction of the same branch.
    pub fn for_transaction(&self) -> InodeAllocator {
        let blocks = Some(Mutex::default());
        InodeAllocator { given: self.given.clone(), zone: self.zone, blocks }
    }

    /// Numbers below `ino` are not given any more.
    pub fn raise_next_to(&self, ino: Ino) {
        self.given.next.fetch_max(ino, Ordering::Relaxed);
    }

    pub fn take(&self) -> Ino {
        let Some(blocks) = &self.blocks else {
            return self.given.next.fetch_add(1, Ordering::Relaxed);
        };
        let mut blocks = blocks.lock();
        if blocks.left.is_empty() {
            let size = (FIRST_BLOCK << blocks.taken.len().min(32)).min(LARGEST_BLOCK);
            let start = self.given.next.fetch_add(size, Ordering::Relaxed);
            blocks.left = start..start + size;
            let block = blocks.left.clone();
            blocks.taken.push(block);
        }
        let ino = blocks.left.start;
        blocks.left.start += 1;
        ino
    }

    /// A number for an entry of a directory that has `entries` so far. `reserved` is what its node
    /// says: of a mainline, what is left.
    pub fn take_in(&self, dir: Ino, reserved: &mut Reservation, entries: u64) -> Ino {
        if self.zone == 0 {
            return self.take();
        }
        // As large as the directory, so that it has few of them and wastes at most half.
        let size = entries.min(LARGEST_ZONE).next_power_of_two().max(self.zone);
        let block = || {
            let start = self.given.next.fetch_add(size, Ordering::Relaxed);
            Reservation { next: start, end: (start + size).min(INO_LIMIT).max(start + 1) }
        };
        let Some(blocks) = &self.blocks else {
            if !self.is_valid(reserved) {
                *reserved = block();
            }
            return reserved.take();
        };
        let mut blocks = blocks.lock();
        let Blocks { taken, reserved, .. } = &mut *blocks;
        let reserved = reserved.entry(dir).or_default();
        if reserved.is_empty() {
            *reserved = block();
            taken.push(reserved.next..reserved.end);
        }
        reserved.take()
    }

    /// What a new subdirectory's node says that it has reserved: a part of what `parent` has left.
    pub fn split_for(&self, parent: Ino, reserved: &mut Reservation, dir: Ino) -> Reservation {
        let Some(blocks) = &self.blocks else {
            // It was valid, or was made, when the directory got its number.
            return reserved.split(self.zone);
        };
        let mut blocks = blocks.lock();
        if let Some(parent) = blocks.reserved.get_mut(&parent) {
            let share = parent.split(self.zone);
            blocks.reserved.insert(dir, share);
        }
        Reservation::default()
    }

    fn is_valid(&self, reserved: &Reservation) -> bool {
        !reserved.is_empty()
            && reserved.next >= self.given.first_reserved.load(Ordering::Relaxed)
            && reserved.end <= self.next()
    }

    /// Takes `count` numbers that follow one another.
    pub fn take_together(&self, count: u64) -> Range<Ino> {
        let Some(blocks) = &self.blocks else {
            let start = self.given.next.fetch_add(count, Ordering::Relaxed);
            return start..start + count;
        };
        let mut blocks = blocks.lock();
        let start = self.given.next.fetch_add(count, Ordering::Relaxed);
        blocks.taken.push(start..start + count);
        start..start + count
    }

    /// Whether the number was given here, so that no other view sees the inode before a commit. Of
    /// a mainline: every number.
    pub fn is_own(&self, ino: Ino) -> bool {
        let Some(blocks) = &self.blocks else { return true };
        let blocks = blocks.lock();
        let at = blocks.taken.partition_point(|block| block.start <= ino);
        at > 0 && blocks.taken[at - 1].contains(&ino)
    }

    /// The number that would be next.
    pub fn next(&self) -> Ino {
        self.given.next.load(Ordering::Relaxed)
    }
}

/// Directories whose reservations would give a number a second time, and why: another directory has
/// reserved some of the numbers, or one of `inodes` has one. Void reservations give none.
pub(crate) fn collisions(
    mut reserved: Vec<(Reservation, Ino)>,
    numbers: Option<Numbers>,
    inodes: impl Iterator<Item = Ino>,
) -> Vec<(Ino, String)> {
    let Some(numbers) = numbers else { return Vec::new() };
    reserved.retain(|(r, _)| r.next >= numbers.first_reserved && r.end <= numbers.bound);
    reserved.sort_unstable_by_key(|(r, dir)| (r.next, *dir));
    let mut found = Vec::new();
    // The one that reaches furthest of those so far.
    let mut last: Option<(Reservation, Ino)> = None;
    for &(r, dir) in &reserved {
        if let Some((_, other)) = last.filter(|(before, _)| before.end > r.next) {
            found.push((dir, format!("has reserved numbers that directory {other} has reserved")));
        }
        if last.is_none_or(|(before, _)| before.end < r.end) {
            last = Some((r, dir));
        }
    }
    for ino in inodes {
        let at = reserved.partition_point(|(r, _)| r.next <= ino);
        if let Some((_, dir)) = reserved[..at].last().filter(|(r, _)| ino < r.end) {
            found.push((*dir, format!("has reserved number {ino}, which is in use")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_out_twice_and_each_knows_its_own() {
        let mainline = InodeAllocator::from(2, 0);
        let (a, b) = (mainline.for_transaction(), mainline.for_transaction());
        let mut all = std::collections::BTreeMap::new();
        for i in 0..1000 {
            for (name, numbers) in [("mainline", &mainline), ("a", &a), ("b", &b)] {
                if name != "b" || i % 7 == 0 {
                    assert_eq!(all.insert(numbers.take(), name), None);
                }
            }
        }
        for (name, numbers) in [("mainline", &mainline), ("a", &a), ("b", &b)] {
            let together = numbers.take_together(100);
            assert_eq!(together.end - together.start, 100);
            together.for_each(|ino| assert_eq!(all.insert(ino, name), None));
        }
        for (ino, name) in all {
            assert_eq!(a.is_own(ino), name == "a", "{ino}");
            assert_eq!(b.is_own(ino), name == "b", "{ino}");
            assert!(mainline.is_own(ino));
        }
        assert!(!a.is_own(1) && !a.is_own(mainline.next()));
    }

    #[test]
    fn a_bound_is_noted_before_a_number_above_it_is_used() {
        let numbers = InodeAllocator::from(2, 0);
        // Gives the bound, if one has to be noted.
        let note = |end| {
            let mut noted = None;
            let write = |bound| {
                noted = Some(bound);
                Ok(())
            };
            numbers.note(end, write).unwrap();
            noted
        };
        let ino = numbers.take();
        assert!(numbers.note(ino + 1, |_| Err(Error::NoSpace)).is_err());
        let bound = note(ino + 1).expect("none was noted so far");
        assert!(bound > ino);
        assert_eq!(note(bound), None);
        assert!(note(bound + 1).is_some_and(|next| next > bound));
        numbers.clear_noted();
        assert!(note(ino + 1).is_some());
        numbers.raise_next_to(INO_LIMIT - 1);
        assert_eq!(note(numbers.take() + 1), Some(INO_LIMIT));
        assert!(numbers.note(numbers.take() + 1, |_| Ok(())).is_err(), "there are no more");
    }
}

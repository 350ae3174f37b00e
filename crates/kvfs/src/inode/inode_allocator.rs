//! Allocates inode numbers. One counter serves a store with all its branches and transactions, so
//! that no two of them ever assign the same number to a new inode. Commits therefore do not check
//! for collisions, and inodes with the same number in several branches descend from one inode.
//!
//! Nodes, names and pages are stored in the order of these numbers. To keep the files of a
//! directory adjacent on disk, a directory reserves numbers in blocks, its zones, and takes the
//! numbers of its files from them, even if files are made elsewhere in between. A new subdirectory
//! gets a part of its parent's remaining numbers, so that a small tree is stored together. The
//! remaining numbers of a directory are part of its node, which every new entry writes anyway. See
//! `docs/decisions/051-zones-of-the-name-space.md`.
//!
//! A transaction reserves its own blocks, in memory, and remembers all of them: an inode with a
//! number in these blocks was made by the transaction, was never visible outside, and leaves no
//! trace when it is removed. The gaps between blocks cost nothing: a number is never reused, and
//! there are 2^48 of them.
//!
//! A note in the store contains a bound above all assigned numbers, because a number may not be
//! visible when the store is opened: for example, it may be in a durable transaction that cannot
//! continue for lack of space. The note is committed before the first number at or above it is used
//! or reserved, and then leaves room for many numbers, so that it costs next to nothing. Numbers
//! not used when the store is closed become a gap.
//!
//! The reservations of a directory are part of its node, and so of every snapshot and clone of its
//! branch. The reservations are valid only in that branch, which a mark identifies
//! (`layout::counter`).
//!
//! If a server holds the store, it also holds the counter: a transaction that the server holds for
//! a client takes its numbers from the server, many at a time.

use env::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use env::sync::Mutex;
use kvdb::{DictionaryId, ServedView};

use crate::attr::{Ino, ROOT};
use crate::error::{Error, Result};
use crate::layout::PAGE;
use crate::layout::counter::Reserved;
use crate::layout::reservation::{INO_LIMIT, Reservation};

/// The number of inode numbers that one note of the bound covers.
const NOTED_TOGETHER: u64 = 1 << 16;
/// The size of the first block of a transaction. The blocks grow up to the size of the largest
/// block.
const FIRST_BLOCK: u64 = 64;
const LARGEST_BLOCK: u64 = 1 << 16;
/// The first count of numbers that are taken from a server at once. The count grows up to the
/// largest count.
const FIRST_SERVED: u64 = 1 << 12;
const LARGEST_SERVED: u64 = 1 << 20;

/// The size of the largest block that a directory reserves.
pub(crate) const LARGEST_ZONE: u64 = 1 << 20;

/// The counter of the numbers that all branches of a store have allocated.
pub(crate) struct Counter {
    /// The dictionary of the notes of the counter, or `None` if nothing is noted.
    pub notes: Option<DictionaryId>,
    next: AtomicU64,
    /// Reserved numbers below this bound are void in all branches, because a branch that was
    /// received from another store may have these numbers.
    void: AtomicU64,
    /// The bound in the store's note.
    noted: AtomicU64,
    /// The lock that is held while a note is written and committed.
    noting: Mutex<()>,
    /// The remaining numbers of those that were taken from the server, if a server holds the store.
    served: Option<Served>,
}

struct Served {
    view: Arc<dyn ServedView>,
    left: Mutex<Left>,
}

struct Left {
    numbers: Range<Ino>,
    /// The count of numbers to take next.
    more: u64,
}

/// The notes that must be made before numbers are used.
pub(crate) struct Note {
    /// The bound to note, or `None` if the noted bound is enough.
    pub bound: Option<Ino>,
    /// The reservations to note, or `None` if the branch has its mark.
    pub reserved: Option<Reserved>,
}

impl Counter {
    /// Returns a counter for a store in which all allocated numbers are below `next`.
    pub fn from(notes: Option<DictionaryId>, next: Ino) -> Counter {
        let (next, noting) = (AtomicU64::new(next), Mutex::new(()));
        let (void, noted) = (AtomicU64::new(0), AtomicU64::new(0));
        Counter { notes, next, void, noted, noting, served: None }
    }

    /// Returns a counter that takes numbers from the server. The server notes them before they are
    /// used here.
    fn of_served(view: Arc<dyn ServedView>) -> Counter {
        let left = Mutex::new(Left { numbers: 0..0, more: FIRST_SERVED });
        let noted = AtomicU64::new(INO_LIMIT);
        Counter { noted, served: Some(Served { view, left }), ..Counter::from(None, 0) }
    }

    /// Returns the next number without taking it.
    pub fn next(&self) -> Ino {
        self.next.load(Ordering::Relaxed)
    }

    fn take(&self, count: u64) -> Result<Ino> {
        match &self.served {
            None => Ok(self.next.fetch_add(count, Ordering::Relaxed)),
            Some(served) => served.take(count),
        }
    }

    /// Ensures that numbers below `ino` are not allocated any more.
    pub fn raise_next_to(&self, ino: Ino) {
        self.next.fetch_max(ino, Ordering::Relaxed);
    }

    /// Makes reservations below `ino` void in all branches.
    pub fn void_below(&self, ino: Ino) {
        self.void.fetch_max(ino, Ordering::Relaxed);
    }

    fn void(&self) -> Ino {
        self.void.load(Ordering::Relaxed)
    }

    fn noted(&self) -> Ino {
        self.noted.load(Ordering::Relaxed)
    }

    /// Makes `write` note a bound after [`Counter::raise_next_to`]. The note covers numbers in use,
    /// and leaves no room for new ones.
    pub fn note_raised<T>(&self, write: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let _noting = self.noting.lock();
        let bound = self.next().max(self.noted()).min(INO_LIMIT);
        let written = write(bound)?;
        self.noted.store(bound, Ordering::Relaxed);
        Ok(written)
    }
}

impl Served {
    fn take(&self, count: u64) -> Result<Ino> {
        let mut left = self.left.lock();
        if left.numbers.end - left.numbers.start < count {
            // The rest of the previous numbers becomes a gap.
            left.numbers = self.view.reserve_numbers(left.more.max(count))?;
            left.more = (left.more * 2).min(LARGEST_SERVED);
            let fits = left.numbers.start > ROOT
                && left.numbers.end <= INO_LIMIT
                && left.numbers.start.saturating_add(count) <= left.numbers.end;
            if !fits {
                left.numbers = 0..0;
                let what = "the server has given numbers that no inodes can have".into();
                return Err(Error::Corrupt { ino: 0, what });
            }
        }
        let first = left.numbers.start;
        left.numbers.start += count;
        Ok(first)
    }
}

/// The source of inode numbers for one view of a branch.
pub(crate) struct InodeAllocator {
    counter: Arc<Counter>,
    branch: Arc<Branch>,
    /// The size of a directory's first block, or 0 if directories do not reserve numbers.
    zone: u64,
    blocks: Option<Mutex<Blocks>>,
    /// All inodes count as made by the view, because it is the main branch, which a server lends to
    /// this process.
    is_lent: bool,
}

/// The reservations of a branch's directories.
struct Branch {
    /// Reserved numbers below this bound are void.
    first: AtomicU64,
    /// The noted mark, which no other state of the branch has, or 0 if no mark is noted.
    mark: AtomicU64,
    /// The noted bound of all numbers that are reserved under the mark.
    end: AtomicU64,
}

#[derive(Default)]
struct Blocks {
    /// All blocks that were taken, ascending.
    taken: Vec<Range<Ino>>,
    /// The rest of the last block.
    left: Range<Ino>,
    /// The remaining reservation of each directory.
    reserved: HashMap<Ino, Reservation>,
}

impl InodeAllocator {
    /// Returns the allocator of a branch in which all reservations are void.
    pub fn of_branch(counter: Arc<Counter>, zone_size: u64) -> InodeAllocator {
        let first = AtomicU64::new(counter.next());
        let (mark, end) = (AtomicU64::new(0), AtomicU64::new(0));
        let branch = Arc::new(Branch { first, mark, end });
        let zone = zone_size.div_ceil(PAGE).min(LARGEST_ZONE);
        let zone = if zone == 0 { 0 } else { zone.next_power_of_two() };
        InodeAllocator { counter, branch, zone, blocks: None, is_lent: false }
    }

    /// Returns the allocator of a frozen state, in which no inodes are made.
    pub fn of_frozen() -> InodeAllocator {
        InodeAllocator::of_branch(Arc::new(Counter::from(None, INO_LIMIT - 1)), 0)
    }

    /// Returns the allocator of a transaction that a server holds, or of the main branch that it
    /// lends.
    pub fn of_served(view: Arc<dyn ServedView>, zone_size: u64) -> InodeAllocator {
        let is_lent = view.is_main();
        let counter = Arc::new(Counter::of_served(view));
        let allocator = InodeAllocator::of_branch(counter, zone_size).for_transaction();
        InodeAllocator { is_lent, ..allocator }
    }

    /// Returns the allocator of a transaction of the same branch.
    pub fn for_transaction(&self) -> InodeAllocator {
        let blocks = Some(Mutex::default());
        let (counter, branch) = (self.counter.clone(), self.branch.clone());
        InodeAllocator { counter, branch, zone: self.zone, blocks, is_lent: false }
    }

    pub fn counter(&self) -> &Arc<Counter> {
        &self.counter
    }

    /// Makes only the reservations of numbers below `ino` void.
    pub fn void_below(&self, ino: Ino) {
        self.branch.first.store(ino, Ordering::Relaxed);
    }

    /// Makes all reservations so far void.
    pub fn void_reservations(&self) {
        self.void_below(self.next());
    }

    /// Clears the mark, because the state of the branch is now shared with another branch or was
    /// replaced. The next numbers are allocated under a new mark.
    pub fn clear_mark(&self) {
        self.branch.end.store(0, Ordering::Relaxed);
        self.branch.mark.store(0, Ordering::Relaxed);
    }

    /// Returns whether directories may reserve numbers below `end` while the branch has no mark
    /// that covers them.
    fn lacks_mark(&self, end: Ino) -> bool {
        let reserves = self.zone > 0 && self.blocks.is_none();
        reserves && end > self.branch.end.load(Ordering::Relaxed)
    }

    /// Returns whether the notes in the store allow numbers below `end` to be used.
    pub fn is_noted(&self, end: Ino) -> bool {
        end <= self.counter.noted() && !self.lacks_mark(end)
    }

    /// Makes `write` store the notes that are missing for the numbers below `end`, so that all
    /// these numbers may be used when this method returns.
    pub fn note(&self, end: Ino, write: impl FnOnce(Note) -> Result<()>) -> Result<()> {
        let (counter, branch) = (&self.counter, &self.branch);
        let _noting = counter.noting.lock();
        if self.is_noted(end) {
            return Ok(());
        }
        let mark = || match branch.mark.load(Ordering::Relaxed) {
            0 => counter.take(1),
            mark => Ok(mark),
        };
        let mark = self.lacks_mark(end).then(mark).transpose()?;
        let end = end.max(mark.map_or(0, |mark| mark.saturating_add(1)));
        if end > INO_LIMIT {
            return Err(Error::NoSpace);
        }
        let room = || self.next().max(end).saturating_add(NOTED_TOGETHER).min(INO_LIMIT);
        let bound = (end > counter.noted()).then(room);
        let end = bound.unwrap_or(counter.noted());
        let first = branch.first.load(Ordering::Relaxed);
        let reserved = mark.map(|mark| Reserved { mark, first, end });
        write(Note { bound, reserved })?;
        counter.noted.store(end, Ordering::Relaxed);
        if let Some(mark) = mark {
            branch.mark.store(mark, Ordering::Relaxed);
            branch.end.store(end, Ordering::Relaxed);
        }
        Ok(())
    }

    pub fn take(&self) -> Result<Ino> {
        let Some(blocks) = &self.blocks else {
            return self.counter.take(1);
        };
        let mut blocks = blocks.lock();
        if blocks.left.is_empty() || blocks.left.start < self.counter.void() {
            let size = (FIRST_BLOCK << blocks.taken.len().min(32)).min(LARGEST_BLOCK);
            let start = self.counter.take(size)?;
            blocks.left = start..start + size;
            let block = blocks.left.clone();
            blocks.taken.push(block);
        }
        let ino = blocks.left.start;
        blocks.left.start += 1;
        Ok(ino)
    }

    /// Returns a number for a new entry of a directory that has `entries` entries so far. On a
    /// mainline, `reserved` is the remaining reservation in the directory's node, all of which must
    /// be noted before the node is stored.
    pub fn take_in(&self, dir: Ino, reserved: &mut Reservation, entries: u64) -> Result<Ino> {
        if self.zone == 0 {
            return self.take();
        }
        // The block is as large as the directory, so that a directory has few blocks and wastes at
        // most half of them.
        let size = entries.min(LARGEST_ZONE).next_power_of_two().max(self.zone);
        let block = || -> Result<Reservation> {
            let start = self.counter.take(size)?;
            Ok(Reservation { next: start, end: (start + size).min(INO_LIMIT).max(start + 1) })
        };
        let Some(blocks) = &self.blocks else {
            if !self.is_valid(reserved) {
                *reserved = block()?;
            }
            return Ok(reserved.take());
        };
        let mut blocks = blocks.lock();
        let Blocks { taken, reserved, .. } = &mut *blocks;
        let reserved = reserved.entry(dir).or_default();
        if reserved.is_empty() || reserved.next < self.counter.void() {
            *reserved = block()?;
            taken.push(reserved.next..reserved.end);
        }
        Ok(reserved.take())
    }

    /// Returns the reservation for the node of a new subdirectory, which is a part of the remaining
    /// reservation of `parent`.
    pub fn split_for(&self, parent: Ino, reserved: &mut Reservation, dir: Ino) -> Reservation {
        let Some(blocks) = &self.blocks else {
            // The reservation was validated or made when the directory got its number.
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
            && reserved.next >= self.branch.first.load(Ordering::Relaxed).max(self.counter.void())
            && reserved.end <= self.next()
    }

    /// Takes `count` consecutive numbers.
    pub fn take_together(&self, count: u64) -> Result<Range<Ino>> {
        let Some(blocks) = &self.blocks else {
            let start = self.counter.take(count)?;
            return Ok(start..start + count);
        };
        let mut blocks = blocks.lock();
        let start = self.counter.take(count)?;
        blocks.taken.push(start..start + count);
        Ok(start..start + count)
    }

    /// Takes over the numbers of a transaction that commits into the transaction of this allocator.
    pub fn take_over(&self, from: &InodeAllocator) {
        let (Some(blocks), Some(from)) = (&self.blocks, &from.blocks) else { return };
        let theirs = from.lock().taken.clone();
        let mut blocks = blocks.lock();
        blocks.taken.extend(theirs);
        blocks.taken.sort_unstable_by_key(|block| block.start);
        // A failed commit may have added the same blocks before.
        blocks.taken.dedup();
    }

    /// Returns whether this view has allocated the number, so that no other view sees the inode
    /// before a commit. On a mainline this is true for every number, even if a server lends the
    /// mainline.
    pub fn is_own(&self, ino: Ino) -> bool {
        let Some(blocks) = self.blocks.as_ref().filter(|_| !self.is_lent) else { return true };
        let blocks = blocks.lock();
        let at = blocks.taken.partition_point(|block| block.start <= ino);
        at > 0 && blocks.taken[at - 1].contains(&ino)
    }

    /// Returns the next number without taking it.
    pub fn next(&self) -> Ino {
        self.counter.next()
    }
}

/// Returns directories whose reservations would assign a number a second time, with the reason:
/// another directory has reserved some of the numbers, or one of `inodes` already has one of them.
/// Reservations outside of `valid` are void and assign no numbers.
pub(crate) fn collisions(
    mut reserved: Vec<(Reservation, Ino)>,
    valid: Range<Ino>,
    inodes: impl Iterator<Item = Ino>,
) -> Vec<(Ino, String)> {
    reserved.retain(|(r, _)| r.next >= valid.start && r.end <= valid.end);
    reserved.sort_unstable_by_key(|(r, dir)| (r.next, *dir));
    let mut found = Vec::new();
    // `last` is the reservation with the largest end so far.
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

    fn mainline(zone_size: u64) -> InodeAllocator {
        InodeAllocator::of_branch(Arc::new(Counter::from(None, 2)), zone_size)
    }

    /// Returns the notes that have to be made.
    fn note(numbers: &InodeAllocator, end: Ino) -> (Option<Ino>, Option<Reserved>) {
        let mut noted = (None, None);
        let write = |Note { bound, reserved }| {
            noted = (bound, reserved);
            Ok(())
        };
        numbers.note(end, write).unwrap();
        noted
    }

    #[test]
    fn no_number_is_given_out_twice_and_each_knows_its_own() {
        let mainline = mainline(0);
        let clone = InodeAllocator::of_branch(mainline.counter().clone(), 0);
        let (a, b, c) =
            (mainline.for_transaction(), mainline.for_transaction(), clone.for_transaction());
        let mut all = std::collections::BTreeMap::new();
        let views = [("mainline", &mainline), ("a", &a), ("b", &b), ("clone", &clone), ("c", &c)];
        for i in 0..1000 {
            for (name, numbers) in views {
                if name != "b" || i % 7 == 0 {
                    assert_eq!(all.insert(numbers.take().unwrap(), name), None);
                }
            }
        }
        for (name, numbers) in views {
            let together = numbers.take_together(100).unwrap();
            assert_eq!(together.end - together.start, 100);
            together.for_each(|ino| assert_eq!(all.insert(ino, name), None));
        }
        for (ino, name) in all {
            assert_eq!(a.is_own(ino), name == "a", "{ino}");
            assert_eq!(b.is_own(ino), name == "b", "{ino}");
            assert_eq!(c.is_own(ino), name == "c", "{ino}");
            assert!(mainline.is_own(ino));
        }
        assert!(!a.is_own(1) && !a.is_own(mainline.next()));
    }

    #[test]
    fn a_bound_is_noted_before_a_number_above_it_is_used() {
        let numbers = mainline(0);
        let ino = numbers.take().unwrap();
        assert!(numbers.note(ino + 1, |_| Err(Error::NoSpace)).is_err());
        let bound = note(&numbers, ino + 1).0.expect("none was noted so far");
        assert!(bound > ino);
        assert_eq!(note(&numbers, bound), (None, None));
        assert!(note(&numbers, bound + 1).0.is_some_and(|next| next > bound));
        numbers.counter().raise_next_to(INO_LIMIT - 1);
        assert_eq!(note(&numbers, numbers.take().unwrap() + 1).0, Some(INO_LIMIT));
        assert!(
            numbers.note(numbers.take().unwrap() + 1, |_| Ok(())).is_err(),
            "there are no more"
        );
    }

    #[test]
    fn a_branch_has_a_mark_of_its_own_before_it_gives_what_a_directory_has_reserved() {
        let numbers = mainline(1 << 20);
        let clone = InodeAllocator::of_branch(numbers.counter().clone(), 1 << 20);
        let mark = note(&numbers, 3).1.expect("it has none so far").mark;
        assert_eq!(note(&numbers, 3), (None, None));
        assert_eq!(note(&numbers.for_transaction(), 3), (None, None), "it gives none of these");
        numbers.clear_mark();
        let next = note(&numbers, 3).1.expect("it has none any more").mark;
        let other = note(&clone, 3).1.expect("it has none so far").mark;
        assert!(mark < next && next < other);
        assert!(numbers.take().unwrap() > other, "no inode gets it");
    }
}

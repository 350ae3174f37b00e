//! The current listings of directories, and the names that were added since each listing began.
//!
//! A listing does not return a name that was added after it began. Otherwise a program that renames
//! the files that it lists might never end: it would rename `a` to `a.bak`, find that name, and
//! rename it to `a.bak.bak`. A listing has a number, which is a part of all its positions. For each
//! directory with listings this table holds the hashes of the names that were added, each with the
//! value of a clock at that moment. A listing thus takes only a few bytes and pins no state of the
//! store.
//!
//! A kernel may keep the positions of a listing that has ended for later readers of an unchanged
//! directory, so the listing stays in the table until other listings need its room. A reader whose
//! listing was dropped continues as in a new listing: it misses no name, but may see names that
//! were added earlier.

use std::collections::HashMap;
use std::hash::Hasher;

use env::sync::Mutex;
use env::sync::atomic::{AtomicUsize, Ordering};
use siphasher::sip::SipHasher13;

use crate::attr::Ino;
use crate::inode::Inode;
use crate::inode::listing::position;

/// The maximum number of listings in the table.
const LISTINGS: usize = 256;
/// The number of names that can be held even if the budget is smaller.
const LEAST_NAMES: usize = 1 << 16;
/// The number of bytes of the inode memory budget for each name that can be held.
const BUDGET_OF_NAME: usize = 16;
/// The largest number of a listing. A number has 15 bits, and one value is used by the last
/// position.
const LARGEST: u16 = 0x7ffe;

/// A listing, and the clock when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub number: u16,
    since: u64,
}

struct Held {
    listing: Listed,
    used: u64,
}

#[derive(Default)]
struct Directory {
    listings: Vec<Held>,
    /// The hashes of names, each with the value of the clock when the name was last added.
    added: HashMap<u64, u64>,
    newest: u64,
}

#[derive(Default)]
struct Table {
    clock: u64,
    last: u16,
    directories: HashMap<Ino, Directory>,
    names: usize,
}

pub(crate) struct ListingTable {
    table: Mutex<Table>,
    /// The number of listings, which is read without the lock.
    listings: AtomicUsize,
    most_names: usize,
    /// The key of the hashes of names.
    pub hash_key: [u8; 16],
}

impl ListingTable {
    /// Returns an empty table. `memory` is the budget for inodes in memory.
    pub fn new(memory: usize, hash_key: [u8; 16]) -> ListingTable {
        ListingTable {
            table: Mutex::default(),
            listings: AtomicUsize::new(0),
            most_names: (memory / BUDGET_OF_NAME).max(LEAST_NAMES),
            hash_key,
        }
    }

    /// Begins a listing of `dir`, which excludes names added from now on.
    pub fn begin(&self, dir: Ino) -> Listed {
        let mut table = self.table.lock();
        table.clock += 1;
        table.last = table.last % LARGEST + 1;
        let listing = Listed { number: table.last, since: table.clock };
        let held = Held { listing, used: table.clock };
        table.directories.entry(dir).or_default().listings.push(held);
        if self.listings.fetch_add(1, Ordering::Relaxed) >= LISTINGS {
            self.drop_oldest(&mut table);
        }
        listing
    }

    /// Returns the listing of `dir` with this number, and marks it as used.
    pub fn find(&self, dir: Ino, number: u16) -> Option<Listed> {
        let mut table = self.table.lock();
        table.clock += 1;
        let now = table.clock;
        let held = table.directories.get_mut(&dir)?.listings.iter_mut();
        let held = held.rev().find(|held| held.listing.number == number)?;
        held.used = now;
        Some(held.listing)
    }

    /// Ends a listing. No reader may know a position of this listing.
    pub fn end(&self, dir: Ino, listing: Listed) {
        self.remove(&mut self.table.lock(), dir, listing);
    }

    /// Returns the hash of a name, from which positions are made.
    pub fn name_hash(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(name);
        hasher.finish()
    }

    /// Records that a new name is about to be added to a directory. This is called before the
    /// commit. A name whose entry is replaced need not be recorded.
    pub fn remember_added(&self, dir: Ino, name: &[u8]) {
        self.add(dir, || self.name_hash(name));
    }

    /// Records that a name is removed, so that listings that stopped at the name can find their
    /// position. This is called before the commit that removes the name, so that no listing misses
    /// the removal. If the commit fails, the record does no harm, because the position of a name
    /// never changes.
    pub fn remember_removed(&self, dir: &Inode, name: &[u8]) {
        if let Some(listing) = &mut *dir.listing.lock() {
            listing.push_removed(position(self.name_hash(name)), name);
        }
    }

    /// Records the hash of a new name.
    fn add(&self, dir: Ino, name: impl FnOnce() -> u64) {
        if self.listings.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut table = self.table.lock();
        table.clock += 1;
        let now = table.clock;
        let Some(directory) = table.directories.get_mut(&dir) else { return };
        directory.newest = now;
        if directory.added.insert(name(), now).is_none() {
            table.names += 1;
        }
        while table.names > self.most_names {
            self.drop_largest(&mut table);
        }
    }

    /// Returns whether any name was added to `dir` since the listing began.
    pub fn has_added(&self, dir: Ino, listing: Listed) -> bool {
        let table = self.table.lock();
        table.directories.get(&dir).is_some_and(|directory| directory.newest > listing.since)
    }

    /// Returns whether this name was added to `dir` since the listing began.
    pub fn is_added(&self, dir: Ino, listing: Listed, name: u64) -> bool {
        let table = self.table.lock();
        let added = table.directories.get(&dir).and_then(|directory| directory.added.get(&name));
        added.is_some_and(|added| *added > listing.since)
    }

    fn drop_oldest(&self, table: &mut Table) {
        let all = table.directories.iter().flat_map(|(dir, directory)| {
            directory.listings.iter().map(|held| (held.used, *dir, held.listing))
        });
        if let Some((_, dir, listing)) = all.min_by_key(|(used, ..)| *used) {
            self.remove(table, dir, listing);
        }
    }

    /// Drops the least recently used listing of the directory with the most names.
    fn drop_largest(&self, table: &mut Table) {
        let largest = table.directories.iter().max_by_key(|(_, directory)| directory.added.len());
        let Some((&dir, directory)) = largest else { return };
        if let Some(held) = directory.listings.iter().min_by_key(|held| held.used) {
            let listing = held.listing;
            self.remove(table, dir, listing);
        }
    }

    fn remove(&self, table: &mut Table, dir: Ino, listing: Listed) {
        let Some(directory) = table.directories.get_mut(&dir) else { return };
        let before = (directory.listings.len(), directory.added.len());
        directory.listings.retain(|held| held.listing != listing);
        let left = directory.listings.len();
        match directory.listings.iter().map(|held| held.listing.since).min() {
            Some(oldest) => directory.added.retain(|_, added| *added > oldest),
            None => directory.added.clear(),
        }
        table.names -= before.1 - directory.added.len();
        self.listings.fetch_sub(before.0 - left, Ordering::Relaxed);
        if left == 0 {
            table.directories.remove(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_added_for_the_listings_that_had_begun() {
        let table = ListingTable::new(0, [0; 16]);
        table.add(1, || panic!("no listing wants to know"));
        let first = table.begin(1);
        table.add(1, || 10);
        let second = table.begin(1);
        assert!(table.has_added(1, first) && !table.has_added(1, second));
        table.add(2, || panic!("a directory that has no listing"));
        table.add(1, || 20);
        assert_eq!([10, 20, 30].map(|name| table.is_added(1, first, name)), [true, true, false]);
        assert_eq!([10, 20].map(|name| table.is_added(1, second, name)), [false, true]);
        assert_eq!(table.find(1, first.number), Some(first));
        table.end(1, first);
        assert_eq!(table.find(1, first.number), None);
        assert_eq!(table.table.lock().names, 1, "no listing asks for the first name any more");
        table.end(1, second);
        assert_eq!(table.table.lock().names, 0);
        assert!(table.table.lock().directories.is_empty());
    }

    #[test]
    fn the_table_has_a_bound() {
        let table = ListingTable::new(0, [0; 16]);
        for dir in 1..=1000 {
            table.begin(dir);
        }
        assert_eq!(table.listings.load(Ordering::Relaxed), LISTINGS);
        assert!(table.find(1, 1).is_none() && table.find(1000, 1000).is_some());
        let other = table.find(900, 900).unwrap();
        for name in 0..LEAST_NAMES as u64 {
            table.add(1000, || name);
        }
        assert!(table.find(1000, 1000).is_some());
        table.add(900, || 1);
        assert!(table.find(1000, 1000).is_none(), "it has more names than there may be");
        assert_eq!(table.find(900, 900), Some(other));
        assert_eq!(table.table.lock().names, 1);
    }
}

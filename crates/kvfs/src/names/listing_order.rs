//! The order in which listings have returned the entries of directories, and how far readers have
//! followed it.
//!
//! A program that reads a tree lists a directory, and then opens the listed entries in the same
//! order. So this table contains the numbers of the entries of the directories that were listed
//! last. For each directory it has two positions: after the file that was read last, and after the
//! subdirectory that was listed last. A file counts as read in order if it is among the next few
//! files after the position. A number takes eight bytes for each entry, and the number of entries
//! is limited.

use crate::attr::Ino;

/// The maximum number of listings in the table. The second limit is that of the entries.
const LISTINGS: usize = 16;
const ENTRIES: usize = 1 << 16;
/// The number of files after the position among which the next file is searched, because a reader
/// may leave out files, and several threads of a reader overtake one another. Subdirectories
/// between them do not count, up to a limit.
const LOOK: usize = 16;
const LOOK_ENTRIES: usize = 64;
/// The number of subdirectories that a reader may leave out of the order. The second number is that
/// of the entries after the position among which the next entry is searched.
const LEFT_OUT: usize = 4;
const LOOK_DIRECTORY: usize = 1 << 12;
/// The number of subdirectories that must be listed in order before the next subdirectories are
/// expected, too.
const DIRECTORIES: u32 = 2;

/// An entry of a directory: the number of an inode, and whether the inode is a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    pub fn new(ino: Ino, is_dir: bool) -> Entry {
        // Numbers have 48 bits.
        Entry(ino << 1 | u64::from(is_dir))
    }

    pub fn ino(self) -> Ino {
        self.0 >> 1
    }

    pub fn is_dir(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The listing of a directory.
pub(crate) struct Order {
    pub dir: Ino,
    entries: Vec<Entry>,
    /// The position from which the next call of the listing continues, or `None` if the table did
    /// not have room for all entries.
    end: Option<u64>,
    next_file: usize,
    next_dir: usize,
    /// The number of files that were read in order.
    pub files: u32,
    /// The number of these files that had to wait for the device.
    pub waits: u32,
    /// The number of subdirectories that were listed in order.
    directories: u32,
}

impl Order {
    fn new(dir: Ino) -> Order {
        Order {
            dir,
            entries: Vec::new(),
            end: None,
            next_file: 0,
            next_dir: 0,
            files: 0,
            waits: 0,
            directories: 0,
        }
    }

    /// Returns whether the reader goes from one subdirectory to the next.
    pub fn descends(&self) -> bool {
        self.directories >= DIRECTORIES
    }

    /// Returns the entries after the positions, up to `most` of them.
    pub fn rest(&self, most: usize) -> Vec<Entry> {
        let first = self.next_file.min(self.next_dir);
        let later = |&(at, entry): &(usize, &Entry)| {
            at >= if entry.is_dir() { self.next_dir } else { self.next_file }
        };
        let rest = self.entries.iter().enumerate().skip(first).filter(later);
        rest.take(most).map(|(_, entry)| *entry).collect()
    }

    /// Moves the position after this file if it is among the next files.
    fn follow(&mut self, ino: Ino) -> bool {
        let wanted = Entry::new(ino, false);
        let mut files = 0;
        let next = self.entries.iter().enumerate().skip(self.next_file).take(LOOK_ENTRIES);
        for (at, entry) in next {
            if *entry == wanted {
                self.next_file = at + 1;
                self.files += 1;
                return true;
            }
            files += usize::from(!entry.is_dir());
            if files == LOOK {
                break;
            }
        }
        false
    }

    /// Moves the position after this subdirectory, which was listed, if it is among the remaining
    /// ones.
    fn enter(&mut self, dir: Ino) {
        let wanted = Entry::new(dir, true);
        let left = &self.entries[self.next_dir..];
        let near = &left[..left.len().min(LOOK_DIRECTORY)];
        let Some(at) = near.iter().position(|entry| *entry == wanted) else { return };
        let left_out = left[..at].iter().filter(|entry| entry.is_dir()).count();
        self.directories = if left_out <= LEFT_OUT { self.directories + 1 } else { 1 };
        self.next_dir += at + 1;
    }
}

/// The listings, the least recently used first.
#[derive(Default)]
pub(crate) struct Orders {
    orders: Vec<Order>,
    entries: usize,
}

impl Orders {
    /// Records the entries that a call has listed from position `from` to position `to`. A call
    /// that does not continue a listing in the table is not recorded.
    pub fn listed(&mut self, dir: Ino, (from, to): (u64, u64), entries: &[Entry]) {
        let known = self.orders.iter().position(|order| order.dir == dir);
        let order = match known {
            Some(at) if from > 0 && self.orders[at].end == Some(from) => self.orders.remove(at),
            _ if from > 0 => return,
            known => {
                if let Some(at) = known {
                    self.remove(at);
                }
                self.orders.iter_mut().for_each(|order| order.enter(dir));
                Order::new(dir)
            }
        };
        self.orders.push(order);
        if let Some(order) = self.orders.last_mut() {
            let room = ENTRIES - order.entries.len();
            let kept = &entries[..entries.len().min(room)];
            order.entries.extend_from_slice(kept);
            order.end = (kept.len() == entries.len()).then_some(to);
            self.entries += kept.len();
        }
        while self.orders.len() > LISTINGS || self.entries > ENTRIES {
            self.remove(0);
        }
    }

    fn remove(&mut self, at: usize) {
        self.entries -= self.orders.remove(at).entries.len();
    }

    /// Returns the listing in whose order this file is one of the next files to be read.
    pub fn follow(&mut self, ino: Ino) -> Option<&Order> {
        let at = self.orders.iter_mut().rposition(|order| order.follow(ino))?;
        if at + 1 < self.orders.len() {
            let order = self.orders.remove(at);
            self.orders.push(order);
        }
        self.orders.last()
    }

    /// Records that a file in the listing of this directory had to wait for the device.
    pub fn waited(&mut self, dir: Ino) {
        if let Some(order) = self.orders.iter_mut().rfind(|order| order.dir == dir) {
            order.waits = order.waits.saturating_add(1);
        }
    }

    pub fn of(&self, dir: Ino) -> Option<&Order> {
        self.orders.iter().rfind(|order| order.dir == dir)
    }

    /// Returns the listing in whose order this directory is the last one that was listed.
    pub fn above(&self, dir: Ino) -> Option<&Order> {
        let entry = Entry::new(dir, true);
        let is_last = |order: &&Order| {
            order.next_dir.checked_sub(1).and_then(|last| order.entries.get(last)) == Some(&entry)
        };
        self.orders.iter().rev().find(is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(numbers: std::ops::Range<Ino>) -> Vec<Entry> {
        numbers.map(|ino| Entry::new(ino, false)).collect()
    }

    fn rest(orders: &Orders, dir: Ino) -> Vec<Ino> {
        let order = orders.of(dir).unwrap();
        order.rest(usize::MAX).into_iter().map(Entry::ino).collect()
    }

    #[test]
    fn a_reader_may_leave_out_files_but_not_go_back() {
        let mut orders = Orders::default();
        orders.listed(2, (0, 7), &files(100..150));
        for (ino, is_next) in [(100, true), (103, true), (119, true), (118, false), (136, false)] {
            assert_eq!(orders.follow(ino).is_some(), is_next, "{ino}");
        }
        assert_eq!(rest(&orders, 2), (120..150).collect::<Vec<_>>());
        assert_eq!(orders.of(2).unwrap().files, 3);
    }

    #[test]
    fn calls_that_continue_a_listing_add_to_it_and_a_new_listing_replaces_it() {
        let mut orders = Orders::default();
        orders.listed(2, (0, 7), &files(100..103));
        orders.listed(2, (8, 9), &files(500..600));
        orders.listed(2, (7, 9), &files(103..106));
        assert_eq!(rest(&orders, 2), (100..106).collect::<Vec<_>>());
        assert!(orders.follow(104).is_some());
        orders.listed(2, (0, 7), &files(100..103));
        assert_eq!(rest(&orders, 2), [100, 101, 102]);
        assert_eq!(orders.entries, 3);
    }

    #[test]
    fn subdirectories_have_a_position_of_their_own() {
        let mut orders = Orders::default();
        let top: Vec<Entry> = (10..40).map(|ino| Entry::new(ino, ino % 3 == 0)).collect();
        orders.listed(2, (0, 1), &top);
        orders.listed(12, (0, 1), &files(1000..1010));
        assert!(!orders.of(2).unwrap().descends());
        assert_eq!(orders.above(12).unwrap().dir, 2);
        orders.listed(15, (0, 1), &files(1100..1110));
        assert!(orders.of(2).unwrap().descends());
        assert!(orders.above(12).is_none() && orders.above(15).is_some());
        assert!(orders.follow(22).is_some());
        assert_eq!(rest(&orders, 2)[..4], [18, 21, 23, 24]);
        // A reader that skips many subdirectories does not descend from one to the next.
        orders.listed(36, (0, 1), &[]);
        assert!(!orders.of(2).unwrap().descends());
    }

    #[test]
    fn the_table_has_a_bound() {
        let mut orders = Orders::default();
        for dir in 2..200 {
            orders.listed(dir, (0, 1), &files(1000..1010));
        }
        assert_eq!((orders.orders.len(), orders.entries), (LISTINGS, LISTINGS * 10));
        orders.listed(1, (0, 1), &files(0..ENTRIES as u64 * 2));
        assert_eq!((orders.orders.len(), orders.entries), (1, ENTRIES));
        orders.listed(1, (1, 2), &files(0..10));
        assert_eq!(orders.entries, ENTRIES, "a listing of which entries are missing has ended");
    }
}

//! Cursors of `SCAN`. A cursor is an opaque number that represents the key at which a scan
//! continues.
//!
//! Keys are arbitrary bytes, so a number cannot contain a key; a table maps cursors to keys. The
//! table is bounded. A client that requests the page after a cursor has read the preceding page,
//! so the predecessor of that cursor is dropped. A live scan therefore holds two entries, and a
//! page may be requested twice. If the table is full, the least recently used entries are
//! evicted. Their cursors then cause an error, never a scan that silently misses keys.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use env::sync::Mutex;

pub struct Cursors {
    table: Mutex<Table>,
    capacity: usize,
    /// Limit on the bytes of the keys and names of all entries.
    most: usize,
}

struct Table {
    entries: HashMap<u64, Entry>,
    /// The cursors by their ages, oldest first.
    ages: BTreeMap<u64, u64>,
    /// Total size of the entries, in bytes.
    bytes: usize,
    clock: u64,
    next: u64,
}

struct Entry {
    dictionary: String,
    /// The scan continues at the first key that is not less than this key.
    from: Vec<u8>,
    predecessor: Option<u64>,
    age: u64,
}

impl Entry {
    /// The approximate size of an entry without its key and name.
    const OVERHEAD: usize = 160;

    fn bytes(&self) -> usize {
        self.from.capacity() + self.dictionary.len() + Entry::OVERHEAD
    }
}

impl Table {
    fn forget(&mut self, cursor: u64) {
        if let Some(entry) = self.entries.remove(&cursor) {
            self.ages.remove(&entry.age);
            self.bytes -= entry.bytes();
        }
    }
}

impl Cursors {
    pub fn new(capacity: usize, most: usize) -> Self {
        // Numbers start at a random place, so that a cursor of an earlier server is not mistaken
        // for a cursor of this server. They stay below 2^53, so that every client can represent
        // them.
        let start = (RandomState::new().hash_one(0u8) >> 44) << 32 | 1;
        let table = Table {
            entries: HashMap::new(),
            ages: BTreeMap::new(),
            bytes: 0,
            clock: 0,
            next: start,
        };
        Cursors { table: Mutex::new(table), capacity: capacity.max(2), most }
    }

    /// Returns the key at which the scan of `cursor` continues. Returns `None` if this server has
    /// not issued the cursor, if the cursor was evicted, or if it belongs to another dictionary.
    pub fn resume(&self, cursor: u64, dictionary: &str) -> Option<Vec<u8>> {
        let mut table = self.table.lock();
        let table = &mut *table;
        table.clock += 1;
        let entry = table.entries.get_mut(&cursor).filter(|e| e.dictionary == dictionary)?;
        table.ages.remove(&entry.age);
        entry.age = table.clock;
        table.ages.insert(entry.age, cursor);
        let from = entry.from.clone();
        if let Some(predecessor) = entry.predecessor.take() {
            table.forget(predecessor);
        }
        Some(from)
    }

    /// Issues a cursor for the page after the page that `predecessor` requested.
    pub fn issue(&self, predecessor: Option<u64>, dictionary: &str, from: Vec<u8>) -> u64 {
        let mut table = self.table.lock();
        while (table.entries.len() >= self.capacity
            || table.entries.len() > 1 && table.bytes > self.most)
            && let Some((_, &oldest)) = table.ages.first_key_value()
        {
            table.forget(oldest);
        }
        table.clock += 1;
        let (cursor, age) = (table.next, table.clock);
        table.next += 1;
        table.ages.insert(age, cursor);
        let entry = Entry { dictionary: dictionary.into(), from, predecessor, age };
        table.bytes += entry.bytes();
        table.entries.insert(cursor, entry);
        cursor
    }

    /// Drops `cursor`, whose scan is over.
    pub fn finish(&self, cursor: u64) {
        self.table.lock().forget(cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_scan_outlives_any_number_of_pages_of_others() {
        let cursors = Cursors::new(8, usize::MAX);
        let slow = cursors.issue(None, "0", b"m".to_vec());
        let mut fast = cursors.issue(None, "0", b"a".to_vec());
        for i in 0..1000u32 {
            assert!(cursors.resume(fast, "0").is_some());
            fast = cursors.issue(Some(fast), "0", i.to_be_bytes().to_vec());
        }
        assert_eq!(cursors.resume(slow, "0").as_deref(), Some(b"m".as_slice()));
        assert_eq!(
            cursors.resume(slow, "0").as_deref(),
            Some(b"m".as_slice()),
            "a page may be asked for twice"
        );
        let table = cursors.table.lock();
        assert_eq!(table.entries.len(), table.ages.len());
    }

    #[test]
    fn abandoned_scans_are_forgotten_and_say_so() {
        let cursors = Cursors::new(8, usize::MAX);
        let old = cursors.issue(None, "0", vec![]);
        for _ in 0..100 {
            cursors.issue(None, "0", vec![]);
        }
        assert_eq!(cursors.resume(old, "0"), None);
        assert!(cursors.table.lock().entries.len() <= 8);
    }

    #[test]
    fn cursors_at_long_keys_give_way_sooner() {
        let cursors = Cursors::new(1000, 100_000);
        let mut last = 0;
        for _ in 0..100 {
            last = cursors.issue(None, "0", vec![b'k'; 10_000]);
            assert!(cursors.table.lock().bytes <= 110_500, "{}", cursors.table.lock().bytes);
        }
        assert!(cursors.resume(last, "0").is_some());
        cursors.finish(last);
        let table = cursors.table.lock();
        assert_eq!(table.bytes, table.entries.values().map(Entry::bytes).sum::<usize>());
    }

    #[test]
    fn a_cursor_belongs_to_its_dictionary() {
        let cursors = Cursors::new(8, usize::MAX);
        let cursor = cursors.issue(None, "a", b"k".to_vec());
        assert!(cursor < 1 << 53);
        assert_eq!(cursors.resume(cursor, "b"), None);
        assert_eq!(cursors.resume(0, "a"), None);
        cursors.finish(cursor);
        assert_eq!(cursors.resume(cursor, "a"), None);
    }
}

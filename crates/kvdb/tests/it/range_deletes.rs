//! Tests of range deletes. Each is one tombstone, whatever it covers. A flush does not write data
//! that a later tombstone covers, merges drop whole subtrees unread, and reads skip deleted ranges.
//! A large number of tombstones costs little.

use std::sync::Arc;

use crate::model::{bytes, create, small};
use env::{Random, Simulated};
use kvdb::{Dictionary, Kvdb, OpenOptions};
use zones::{MemoryDevice, Purpose};

fn key(i: u64) -> Vec<u8> {
    i.to_be_bytes().to_vec()
}

fn store(memory: usize) -> (Arc<MemoryDevice>, Kvdb) {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), OpenOptions { memory, ..small() })
        .unwrap();
    (device, db)
}

/// Opens the store again, so that nothing is in the cache.
fn reopened(device: &Arc<MemoryDevice>, db: Kvdb) -> (Kvdb, Dictionary) {
    db.close().unwrap();
    drop(db);
    let db = Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), small()).unwrap().0;
    let d = db.open_dictionary("d").unwrap();
    (db, d)
}

fn tuple_bytes_read(db: &Kvdb) -> u64 {
    db.stats().io.by_purpose[Purpose::Tuples as usize].read_bytes
}

fn fill(d: &Dictionary, range: std::ops::Range<u64>, len: usize) {
    let mut random = Random::new(range.start);
    range.for_each(|i| d.insert(key(i), bytes(&mut random, len)).unwrap());
}

/// A bottom run of `count` tuples of 100 bytes.
fn with_run(count: u64) -> (Arc<MemoryDevice>, Kvdb, Dictionary) {
    let (device, db) = store(1 << 20);
    let d = db.open_dictionary("d").unwrap();
    d.ingest((0..count).map(|i| (key(i), vec![i as u8; 100]))).unwrap();
    d.compact().unwrap();
    (device, db, d)
}

#[test]
fn a_flush_writes_nothing_of_what_a_later_range_delete_in_the_same_memtable_covers() {
    for older_run in [false, true] {
        let (_, db) = store(64 << 20);
        let d = db.open_dictionary("d").unwrap();
        if older_run {
            d.insert(key(0), "old").unwrap();
            db.flush().unwrap();
        }
        fill(&d, 0..40_000, 150);
        d.remove_range(key(0)..key(40_000)).unwrap();
        d.insert(key(5), "alive").unwrap();
        let before = db.stats().merged_bytes;
        db.flush().unwrap();
        let written = db.stats().merged_bytes - before;
        assert!(written < 4096, "{written} bytes for one tuple and two tombstones");
        assert_eq!(d.iter().count(), 1);
    }
}

#[test]
fn a_merge_drops_subtrees_unread() {
    let (device, db, d) = with_run(200_000);
    d.remove_range(key(10)..key(199_990)).unwrap();
    let (db, d) = reopened(&device, db);
    let (read, written) = (tuple_bytes_read(&db), db.stats().merged_bytes);
    d.compact().unwrap();
    let (read, written) = (tuple_bytes_read(&db) - read, db.stats().merged_bytes - written);
    assert!(read < 64 << 10, "{read} bytes read of 20 MB");
    assert!(written < 64 << 10, "{written} bytes written");
    assert_eq!(d.iter().count(), 20);
    assert!(
        db.stats().dictionaries[0].levels.iter().flatten().all(|r| !r.range_tombstones),
        "it has done its work"
    );
}

#[test]
fn reads_pass_over_a_deleted_range_without_reading_it() {
    let (device, db, d) = with_run(200_000);
    d.remove_range(key(10)..key(199_990)).unwrap();
    let (db, d) = reopened(&device, db);
    let found = |back: bool| {
        let iter = d.iter().keys();
        if back { iter.rev().count() } else { iter.count() }
    };
    assert_eq!((found(false), found(true)), (20, 20));
    assert_eq!(d.get(key(100_000)).unwrap(), None);
    assert!(tuple_bytes_read(&db) < 256 << 10, "{} bytes read of 20 MB", tuple_bytes_read(&db));
}

#[test]
fn a_few_range_tombstones_leave_the_filters_at_work() {
    let (device, db, d) = with_run(20_000);
    drop((d, db));
    // A close that flushed would merge the range tombstone away.
    let options = OpenOptions { flush_on_close: false, ..small() };
    let db = Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), options).unwrap().0;
    let d = db.open_dictionary("d").unwrap();
    // A younger run of other keys with a range tombstone among them.
    for i in 0..20_000u64 {
        d.insert([&key(i)[..], b"x"].concat(), vec![1; 100]).unwrap();
    }
    db.flush().unwrap();
    d.remove_range(key(7_000)..key(7_100)).unwrap();
    for i in 0..20_000u64 {
        d.insert([&key(i)[..], b"y"].concat(), vec![1; 100]).unwrap();
    }
    db.flush().unwrap();
    drop((d, db));
    let db = Kvdb::open(device, Arc::new(Simulated::new(2)), small()).unwrap().0;
    let d = db.open_dictionary("d").unwrap();
    let runs: usize = db.stats().dictionaries[0].levels.iter().map(Vec::len).sum();
    assert!(runs >= 2, "the young runs were not merged");
    let mut random = Random::new(3);
    let ops = |db: &Kvdb| db.stats().io.by_purpose[Purpose::Tuples as usize].read_ops;
    let before = ops(&db);
    for _ in 0..300 {
        // The key is in no run, and next to the tombstone.
        let i = random.below(6_000);
        assert_eq!(d.get([&key(i)[..], b"z"].concat()).unwrap(), None);
    }
    let read = ops(&db) - before;
    assert!(read < 60, "{read} blocks read for 300 keys that are nowhere");
    assert_eq!(d.get(key(7_050)).unwrap(), None);
    assert_eq!(d.get([&key(7_050)[..], b"x"].concat()).unwrap(), None);
    assert!(d.get([&key(7_050)[..], b"y"].concat()).unwrap().is_some());
}

#[test]
fn tombstones_that_lie_end_to_end_become_one() {
    let (_, db, d) = with_run(20_000);
    for i in 1_000..19_000 {
        d.remove_range(key(i)..key(i + 1)).unwrap();
    }
    // A key in the middle that stays.
    d.insert(key(7_000), "alive").unwrap();
    db.flush().unwrap();
    let young: u64 =
        db.stats().dictionaries[0].levels.iter().take(15).flatten().map(|r| r.items).sum();
    assert!(young <= 3 * 20, "{young} items: two tombstones and a tuple for each flush");
    assert_eq!(d.iter().count(), 2_001);
    assert_eq!(d.range(..key(7_000)).next_back().unwrap().unwrap().0, key(999));
    assert_eq!(d.range(key(7_001)..).next().unwrap().unwrap().0, key(19_000));
}

#[test]
fn tombstones_over_one_another_cost_no_more_than_their_number() {
    let (_, db) = store(256 << 20);
    let d = db.open_dictionary("d").unwrap();
    fill(&d, 0..10_000, 10);
    let before = db.stats().memtable_bytes;
    let view = db.view();
    let mut random = Random::new(5);
    let mut some = |n: u64| {
        for _ in 0..n {
            let from = random.below(10_000);
            d.remove_range(key(from)..key(from + 1 + random.below(1000))).unwrap();
        }
    };
    some(2_000);
    assert_eq!(view.iter(d.id()).count(), 10_000, "a view sees none of them");
    drop(view);
    // The states in between are not read any more.
    some(20_000);
    let taken = db.stats().memtable_bytes - before;
    assert!(taken < 4 << 20, "{taken} bytes");
    let left = d.iter().count();
    assert!(left < 200, "{left}");
    fill(&d, 5_000..5_010, 10);
    assert_eq!(d.range(key(5_000)..key(5_010)).count(), 10, "what comes later is alive");
    db.flush().unwrap();
    assert_eq!(d.range(key(5_000)..key(5_010)).count(), 10);
    // Deletes the same range repeatedly.
    let before = db.stats().memtable_bytes;
    for _ in 0..20_000 {
        d.remove_prefix(&key(0)[..7]).unwrap();
    }
    let taken = db.stats().memtable_bytes - before;
    assert!(taken < 64 << 10, "{taken} bytes for one range, deleted often");
}

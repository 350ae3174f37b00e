//! Tests of the memory for ranks in a store with many small counted ranges, such as a server with
//! ten thousand leaderboards.

#[path = "bounded/counting.rs"]
mod counting;

use std::time::{Duration, Instant};

use kvdb::{Batch, CreateOptions, DictionaryId, Durability, Kvdb, OpenOptions};
use zones::MemoryDevice;

const MEMORY: usize = 4 << 20;

fn store(memory: usize) -> (Kvdb, DictionaryId) {
    let open = OpenOptions { memory, threads: false, ..OpenOptions::default() };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let device = std::sync::Arc::new(MemoryDevice::new());
    let env = std::sync::Arc::new(env::Simulated::new(7));
    let db = Kvdb::create(device, env, create).expect("a store");
    let d = db.open_dictionary("d").expect("a dictionary").id();
    (db, d)
}

fn key(range: u64, n: u64) -> String {
    format!("{range:06}/{n:02}")
}

/// Asks for a rank in each of this many ranges of ten keys.
fn counted(db: &Kvdb, d: DictionaryId, ranges: u64) {
    for range in 0..ranges {
        let mut batch = Batch::new();
        (0..10).for_each(|n| batch.put(d, key(range, n), ""));
        db.commit(batch, Durability::Buffered).expect("committed");
    }
    for range in 0..ranges {
        let (from, to) = (key(range, 0), key(range + 1, 0));
        let rank = db.rank(&db.view(), d, &from[..]..&to[..], key(range, 5)).expect("a rank");
        assert_eq!(rank, 5);
    }
}

/// Changes one key of each range this many times.
fn change(db: &Kvdb, d: DictionaryId, ranges: u64, times: u64) {
    for range in 0..ranges {
        let mut left = times;
        while left > 0 {
            let now = left.min(500);
            let mut batch = Batch::new();
            (0..now).for_each(|n| batch.put(d, key(range, n % 10), ""));
            db.commit(batch, Durability::Buffered).expect("committed");
            left -= now;
        }
    }
}

#[test]
fn changes_that_wait_for_a_question_take_a_share_of_the_memory_and_no_more() {
    let ranges = 300;
    let took = |asked: bool| {
        let (db, d) = store(MEMORY);
        counted(&db, d, if asked { ranges } else { 0 });
        let before = counting::held();
        change(&db, d, ranges, 4000);
        db.flush().expect("flushed");
        counting::held().saturating_sub(before)
    };
    let (without, with) = (took(false), took(true));
    println!("without ranks {without} bytes, with {ranges} ranges {with} bytes");
    let most = without + MEMORY;
    assert!(with <= most, "{with} bytes are held, {without} without ranks, of {MEMORY}");
}

#[test]
fn a_commit_does_not_cost_more_where_many_other_ranges_are_counted() {
    let took = |ranges: u64| {
        let (db, d) = store(16 * MEMORY);
        counted(&db, d, ranges);
        let put = |n: u64| {
            let begun = Instant::now();
            db.put(d, key(999_999, n % 10).as_bytes(), b"", Durability::Buffered).expect("put");
            begun.elapsed()
        };
        let mut times: Vec<Duration> = (0..201).map(put).collect();
        times.sort();
        times[100]
    };
    let (few, many) = (took(1), took(10_000));
    println!("a put takes {few:?} where 1 range is counted, {many:?} where 10,000 are");
    assert!(many < 3 * few + Duration::from_micros(10), "{few:?} and {many:?}");
}

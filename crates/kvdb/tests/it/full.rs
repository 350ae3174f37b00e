//! Tests of a full store and a full host. Commits are refused before anything is acknowledged, no
//! data is lost, and deleting works and frees space.

use std::sync::Arc;
use std::time::Duration;

use crate::model::*;
use env::{Env, Machine, Random, Simulated};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Kvdb, OpenOptions,
};
use zones::{MemoryDevice, ZONE_SIZE};

const CAPACITY: u64 = 16 * ZONE_SIZE;

fn create(
    device: Arc<MemoryDevice>,
    env: Arc<dyn Env>,
    capacity: Option<u64>,
    open: OpenOptions,
) -> (Kvdb, DictionaryId) {
    let db = Kvdb::create(
        device,
        env,
        CreateOptions { capacity, reserve_zones: 4, open, ..Default::default() },
    )
    .unwrap();
    let d = db
        .create_dictionary("d", DictionaryOptions { stitch_at: 0, ..Default::default() })
        .unwrap();
    (db, d)
}

fn key(i: u64) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// Puts values until the store is full. Returns their number.
fn fill(db: &Kvdb, d: DictionaryId, first: u64, per_batch: u64, len: usize) -> u64 {
    let mut random = Random::new(first);
    let mut i = first;
    loop {
        let mut batch = Batch::new();
        for j in 0..per_batch {
            batch.put(d, key(i + j), bytes(&mut random, len));
        }
        match db.commit(batch, Durability::Buffered) {
            Ok(()) => i += per_batch,
            Err(Error::NoSpace) => return i - first,
            Err(e) => panic!("{e}"),
        }
        assert!(i < 1_000_000, "it never gets full");
    }
}

fn expect(db: &Kvdb, d: DictionaryId, count: u64) {
    let view = db.view();
    let mut cursor = view.cursor(d, b"", b"").unwrap();
    let mut found = 0;
    while let Some(t) = cursor.next().unwrap() {
        t.value().unwrap();
        found += 1;
    }
    assert_eq!(found, count);
}

fn delete(db: &Kvdb, d: DictionaryId, from: u64, to: u64) {
    let mut batch = Batch::new();
    batch.delete_range(d, key(from), key(to));
    db.commit(batch, Durability::Synced).unwrap();
}

/// Fills the store, deletes data and fills it again several times, with reopenings in between.
fn cycle(
    device: Arc<MemoryDevice>,
    env: Arc<dyn Env>,
    capacity: Option<u64>,
    open: OpenOptions,
    per_batch: u64,
    len: usize,
) {
    let (mut db, d) = create(device.clone(), env.clone(), capacity, open.clone());
    let mut most = 0;
    for round in 0..3 {
        let count = fill(&db, d, 0, per_batch, len);
        let held = count * len as u64;
        assert!(held > CAPACITY / 3, "round {round}: full with {held} bytes of {CAPACITY}");
        most = most.max(held);
        assert!(held > most * 3 / 4, "round {round}: only {held} bytes of {most} fit again");
        expect(&db, d, count);
        // A small deletion works in a full store, too.
        delete(&db, d, 3, 4);
        expect(&db, d, count - 1);
        if round % 2 == 1 {
            db.close().unwrap();
            drop(db);
            let report = kvdb::check(device.clone(), &mut |_, _| {});
            assert!(report.is_clean(), "{:?}", report.faults);
            db = Kvdb::open(device.clone(), env.clone(), open.clone()).unwrap().0;
            expect(&db, d, count - 1);
        }
        delete(&db, d, 0, count + 1);
        expect(&db, d, 0);
    }
}

#[test]
fn a_full_store_takes_deletions_and_then_data_again() {
    cycle(
        Arc::new(MemoryDevice::new()),
        Arc::new(Simulated::new(1)),
        Some(CAPACITY),
        small(),
        16,
        4096,
    );
}

#[test]
fn a_full_store_of_small_values_takes_deletions_and_then_data_again() {
    cycle(
        Arc::new(MemoryDevice::new()),
        Arc::new(Simulated::new(1)),
        Some(CAPACITY),
        small(),
        20,
        500,
    );
}

#[test]
fn a_full_host_is_no_different() {
    cycle(
        Arc::new(MemoryDevice::with_limit(CAPACITY)),
        Arc::new(Simulated::new(1)),
        None,
        small(),
        16,
        4096,
    );
}

#[test]
fn with_background_threads_it_is_no_different() {
    let open = OpenOptions {
        threads: true,
        memory: 4 << 20,
        flush_interval: Duration::from_millis(20),
        ..small()
    };
    cycle(
        Arc::new(MemoryDevice::new()),
        Arc::new(Machine::default()),
        Some(CAPACITY),
        open,
        16,
        4096,
    );
}

#[test]
fn a_quarter_of_a_full_store_of_small_values_gives_its_space_back() {
    let env = Arc::new(Simulated::new(1));
    let open = OpenOptions { memory: 16 << 20, ..small() };
    let options = CreateOptions {
        capacity: Some(24 * ZONE_SIZE),
        reserve_zones: 3,
        open,
        ..Default::default()
    };
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), env, options).unwrap();
    let d = db
        .create_dictionary("d", DictionaryOptions { stitch_at: 0, ..Default::default() })
        .unwrap();
    let count = fill(&db, d, 0, 20, 500);
    // Every fourth one is deleted: all others must be rewritten, and there is no space for them in
    // addition to the existing data.
    for i in (0..count).step_by(400) {
        let mut batch = Batch::new();
        (i..count.min(i + 400)).step_by(4).for_each(|i| batch.delete(d, key(i)));
        db.commit(batch, Durability::Buffered).unwrap();
    }
    expect(&db, d, count / 4 * 3);
    let again = fill(&db, d, count, 20, 500);
    assert!(again > count / 6, "{again} values after {count}");
    expect(&db, d, count / 4 * 3 + again);
}

#[test]
fn holes_are_made_whole_when_space_runs_short() {
    let env = Arc::new(Simulated::new(1));
    let (db, d) = create(Arc::new(MemoryDevice::new()), env, Some(CAPACITY), small());
    let count = fill(&db, d, 0, 16, 4096);
    // Deletes nine of ten pages in every place, so that no zone is empty afterwards.
    for tenth in 0..count / 10 {
        let mut batch = Batch::new();
        (1..10).for_each(|i| batch.delete(d, key(tenth * 10 + i)));
        db.commit(batch, Durability::Buffered).unwrap();
    }
    let left = count / 10 + count % 10;
    expect(&db, d, left);
    let again = fill(&db, d, count, 16, 4096);
    assert!(again > count / 2, "{again} pages after {count}");
    expect(&db, d, left + again);
}

/// A program that retries in a full store must not wear out the device, or delay others.
#[test]
fn a_refused_commit_in_a_full_store_writes_nothing() {
    let device = Arc::new(MemoryDevice::new());
    let (db, d) = create(device, Arc::new(Simulated::new(1)), Some(CAPACITY), small());
    let written = || {
        let io = db.stats().io;
        (io.total().write_bytes, io.syncs)
    };
    // Short values, and large ones that are placed before their commit is admitted.
    for (round, len) in [400, 4096].into_iter().enumerate() {
        let count = fill(&db, d, 0, 16, len);
        let refuse = || {
            let mut batch = Batch::new();
            (0..16).for_each(|j| batch.put(d, key(count + j), vec![7u8; len]));
            let refused = db.commit(batch, Durability::Synced);
            assert!(matches!(refused, Err(Error::NoSpace)), "round {round}: {refused:?}");
        };
        // The first ones may still flush, place values and merge in search of space.
        (0..8).for_each(|_| refuse());
        let before = written();
        (0..200).for_each(|_| refuse());
        assert_eq!(written(), before, "round {round}");
        // The next commit finds the space of deleted tuples.
        delete(&db, d, 0, count);
        let again = fill(&db, d, 0, 16, len);
        assert!(again > count * 3 / 4, "round {round}: {again} after {count}");
        delete(&db, d, 0, again);
    }
}

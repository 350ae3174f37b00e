//! Tests of stores at their size limit. Whatever background jobs then try comes to rest and writes
//! a bounded number of bytes, and space that removals free is usable without a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{
    Batch, CreateOptions, DefragOptions, DictionaryId, DictionaryOptions, Durability, Error, Kvdb,
};
use zones::MemoryDevice;

use super::shape::{Lengths, Shape};
use super::{MIB, Store};
use crate::model::seeds;

const CAPACITY: u64 = 160 * MIB;

/// The data that is removed from a full store.
#[derive(Clone, Copy, Debug)]
enum Removal {
    /// Removes three keys of four, one by one, in the whole range.
    Scattered,
    /// The first three quarters of the keys, one by one.
    First,
    /// Removes the same keys as one range.
    Range,
    /// The dictionary.
    Dictionary,
}

const REMOVALS: [Removal; 4] =
    [Removal::Scattered, Removal::First, Removal::Range, Removal::Dictionary];

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:012}").into_bytes()
}

fn value(len: u64, random: &mut Random) -> Vec<u8> {
    let mut value = vec![7; len as usize];
    random.fill(&mut value);
    value
}

/// Puts keys from `first` on until one is refused, or `most` bytes are in. Returns the next key and
/// the bytes that were put.
fn fill(db: &Kvdb, dict: DictionaryId, len: u64, first: u64, most: u64) -> (u64, u64) {
    let mut random = Random::new(first ^ len);
    let (mut next, mut put) = (first, 0);
    while put < most {
        let mut batch = Batch::new();
        let begun = next;
        while batch.bytes() < 200_000 {
            batch.put(dict, key(next), value(len, &mut random));
            next += 1;
        }
        match db.commit(batch, Durability::Buffered) {
            Ok(()) => put += (next - begun) * len,
            Err(Error::NoSpace) => return (begun, put),
            Err(e) => panic!("{e}"),
        }
    }
    (next, put)
}

fn remove(db: &Kvdb, dict: DictionaryId, keys: u64, removal: Removal) {
    let each = |gone: &dyn Fn(u64) -> bool| {
        let gone: Vec<u64> = (0..keys).filter(|number| gone(*number)).collect();
        for some in gone.chunks(500) {
            let mut batch = Batch::new();
            some.iter().for_each(|number| batch.delete(dict, key(*number)));
            db.commit(batch, Durability::Buffered).expect("removals are taken in a full store");
        }
    };
    match removal {
        Removal::Scattered => each(&|number| number % 4 != 3),
        Removal::First => each(&|number| number < keys / 4 * 3),
        Removal::Range => {
            let mut batch = Batch::new();
            batch.delete_range(dict, key(0), key(keys / 4 * 3));
            db.commit(batch, Durability::Buffered).expect("removals are taken in a full store");
        }
        Removal::Dictionary => db.drop_dictionary(dict).expect("dropped"),
    }
}

fn gets_full_and_empty_again(shape: &Shape, len: u64, removal: Removal) {
    let options = CreateOptions {
        open: shape.open(),
        reserve_zones: 8,
        capacity: Some(CAPACITY),
        ..CreateOptions::default()
    };
    let device = Arc::new(MemoryDevice::new());
    let db = Kvdb::create(device, Arc::new(Machine::default()), options).unwrap();
    let dict = db.create_dictionary("d", shape.options.clone()).unwrap();
    let store = Store { shape, db };
    let what = |step: &str| format!("{step} ({removal:?}, values of {len} bytes)");
    let (mut keys, mut put) = (0, 0);
    store.to_rest(&what("filling a store up"), 8 * CAPACITY, |db| {
        (keys, put) = fill(db, dict, len, 0, u64::MAX);
    });
    // The rest is the reserve, the journal, and space that merges will free.
    assert!(put > CAPACITY / 8, "{}: {} MiB were put", what("filling a store up"), put / MIB);
    // Writes that are refused repeatedly cost next to nothing. Writes that find space, since merges
    // have freed some in the meantime, cost as much as in a store that is nearly full.
    let mut accepted = 0;
    let written = store.to_rest(&what("writes to a full store"), u64::MAX, |db| {
        for _ in 0..20 {
            accepted += fill(db, dict, len, keys, 2 * MIB).1;
        }
    });
    assert!(
        written <= CAPACITY / 4 + 8 * accepted,
        "{}: {} MiB were written for {} MiB that were accepted; by jobs: {}; KVFS_SEED={}",
        what("writes to a full store"),
        written / MIB,
        accepted / MIB,
        store.by_job(),
        shape.seed
    );
    store.to_rest(&what("a full store that is left alone"), MIB, |_| {
        std::thread::sleep(Duration::from_millis(300));
    });
    store.to_rest(&what("a defragmentation of a full store"), 2 * CAPACITY, |db| {
        match db.defragment(DefragOptions::default()) {
            Ok(_) | Err(Error::NoSpace) => {}
            Err(e) => panic!("{e}"),
        }
    });
    let full = store.db.space().free;
    store.to_rest(&what("removals in a full store"), 4 * CAPACITY, |db| {
        remove(db, dict, keys, removal);
    });
    // Without a restart, and without anything that asks for it.
    let begun = Instant::now();
    let given_back = || store.db.space().free.saturating_sub(full);
    while given_back() < put / 4 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{}: {} MiB of {} are free again; by jobs: {}; KVFS_SEED={}",
            what("removals in a full store"),
            given_back() / MIB,
            put / MIB,
            store.by_job(),
            shape.seed
        );
        std::thread::sleep(Duration::from_millis(4));
    }
    let dict = store.db.create_dictionary("d", shape.options.clone()).unwrap();
    let mut again = 0;
    store.to_rest(&what("writes after removals"), 4 * CAPACITY, |db| {
        again = fill(db, dict, len, keys, put / 4).1;
    });
    assert!(again >= put / 4, "{}: {} MiB of {}", what("writes after removals"), again, put / 4);
    store.to_rest(&what("the store after that"), MIB, |_| {
        std::thread::sleep(Duration::from_millis(100));
    });
    store.db.close().unwrap();
}

/// Three of four short values outside of blocks are deleted one by one. The gaps between the others
/// must not be taken for alignment.
#[test]
fn a_full_store_gives_back_the_space_between_short_values() {
    let options = DictionaryOptions { separate_at: 512, ..DictionaryOptions::default() };
    let lengths = Lengths::One(550);
    let shape = Shape { lengths, options, memory: 4 << 20, full: true, ..Shape::of_seed(22) };
    gets_full_and_empty_again(&shape, 550, Removal::Scattered);
}

/// Each way to remove, on values of a length that the seed draws.
#[test]
fn a_full_store_comes_to_rest_and_gives_back_what_removals_free() {
    for seed in seeds(2) {
        let mut random = Random::new(seed ^ 0xf011);
        let len = [550, 2100, 4096, 5000, 20_000, 70_000][random.below(6) as usize];
        let shape = Shape { lengths: Lengths::One(len), full: true, ..Shape::of_seed(seed) };
        for removal in REMOVALS {
            gets_full_and_empty_again(&shape, len, removal);
        }
    }
}

//! Counts the bytes written to the device for each committed byte, including journal, index and
//! filters. The counts do not depend on time: each load is put one key at a time, merged until no
//! work is left, and closed.

use std::sync::Arc;

use env::{Machine, Random};
use kvdb::{Batch, Compression, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{MemoryDevice, Purpose};

const KEY: usize = 16;

struct Written {
    /// Bytes written for all purposes, for each byte of keys and values.
    amplification: f64,
    journal: f64,
    index: f64,
    user: u64,
}

/// Puts `count` tuples under the keys that `key` returns.
fn load(
    count: u64,
    value_len: usize,
    options: DictionaryOptions,
    mut key: impl FnMut(u64) -> u64,
) -> Written {
    let device = Arc::new(MemoryDevice::new());
    // The machine's clock, no threads: steps are taken here, so that the outcome is the same each
    // time.
    let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
    let db = Kvdb::create(
        device,
        Arc::new(Machine::default()),
        CreateOptions { open, ..CreateOptions::default() },
    )
    .unwrap();
    let dict = db.create_dictionary("d", options).unwrap();
    let made = db.stats().io.total().write_bytes;
    let mut random = Random::new(5);
    let mut value = vec![0; value_len];
    for i in 0..count {
        random.fill(&mut value[..value_len.min(64)]);
        let key = format!("{:016x}", key(i));
        db.put(dict, key.as_bytes(), &value, Durability::Buffered).unwrap();
        if i % 512 == 0 {
            while db.step().unwrap() {}
        }
    }
    db.flush().unwrap();
    while db.step().unwrap() {}
    db.close().unwrap();
    let stats = db.stats();
    let user = count * (KEY + value_len) as u64;
    assert_eq!(stats.user_bytes, user);
    let of = |purpose| stats.io.of(purpose).write_bytes as f64 / user as f64;
    Written {
        amplification: (stats.io.total().write_bytes - made) as f64 / user as f64,
        journal: of(Purpose::Journal),
        index: of(Purpose::Index),
        user,
    }
}

/// A permutation of numbers below `count`, a power of two.
fn scattered(i: u64, count: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (count - 1)
}

const PAGES: u64 = 1 << 16;

#[test]
fn pages_are_written_once_in_any_order() {
    let sequential = load(PAGES, 4096, DictionaryOptions::default(), |i| i);
    assert!(sequential.amplification < 1.05, "sequential: {}", sequential.amplification);
    let random = load(PAGES, 4096, DictionaryOptions::default(), |i| scattered(i, PAGES));
    assert!(random.amplification < 1.3, "random: {}", random.amplification);
    let at_zero = DictionaryOptions { stitch_at: 0, ..DictionaryOptions::default() };
    let random = load(PAGES, 4096, at_zero, |i| scattered(i, PAGES));
    assert!(random.amplification < 1.3, "random, threshold 0: {}", random.amplification);
    // Puts keys into 256 ranges, in order within each.
    let append = load(PAGES, 4096, DictionaryOptions::default(), |i| {
        scattered(i % 256, 256) << 32 | (i / 256)
    });
    assert!(append.amplification < 1.15, "append: {}", append.amplification);
}

#[test]
fn small_tuples_in_order_are_written_twice_and_the_index_is_a_fraction() {
    let count = 1 << 19;
    let written = load(count, 64, DictionaryOptions::default(), |i| i);
    assert!(written.amplification < 2.2, "sequential: {}", written.amplification);
    assert!(written.journal < 1.1, "journal: {}", written.journal);
    assert!(written.index < 0.06, "index: {} of {} bytes", written.index, written.user);
}

#[test]
fn compressed_pages_are_written_once_and_are_few_bytes() {
    // 64 random bytes and zeros: a unit of 512 bytes on the device.
    for compress_values in [Compression::Lz4, Compression::Zstd] {
        let options = DictionaryOptions { compress_values, ..DictionaryOptions::default() };
        let sequential = load(PAGES / 4, 4096, options.clone(), |i| i);
        assert!(sequential.amplification < 0.2, "sequential: {}", sequential.amplification);
        let random = load(PAGES / 4, 4096, options, |i| scattered(i, PAGES / 4));
        assert!(random.amplification < 0.3, "random: {}", random.amplification);
    }
}

/// Bytes written for each byte that is put and removed before a sync, a mebibyte at a time.
fn removed(mut remove: impl FnMut(&Kvdb, kvdb::DictionaryId, &[Vec<u8>])) -> f64 {
    const ROUNDS: u64 = 1024;
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { threads: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device, Arc::new(Machine::default()), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let made = db.stats().io.total().write_bytes;
    let user = ROUNDS << 20;
    for round in 0..ROUNDS {
        let keys: Vec<Vec<u8>> =
            (0..256u32).map(|i| format!("{round:06}{i:06}").into_bytes()).collect();
        keys.iter().for_each(|k| db.put(dict, k, &[5; 4096], Durability::Buffered).unwrap());
        remove(&db, dict, &keys);
        while db.step().unwrap() {}
    }
    db.sync().unwrap();
    let stats = db.stats();
    assert!(stats.discarded_bytes > user / 1000 * 997, "{} discarded", stats.discarded_bytes);
    assert!(db.view().cursor(dict, b"", b"").unwrap().next().unwrap().is_none());
    (stats.io.total().write_bytes - made) as f64 / user as f64
}

#[test]
fn what_is_removed_before_it_has_a_place_is_never_written() {
    let range = removed(|db, dict, keys| {
        let end = [keys.last().unwrap(), &b"0"[..]].concat();
        let mut batch = Batch::new();
        batch.delete_range(dict, keys[0].clone(), end);
        db.commit(batch, Durability::Buffered).unwrap();
    });
    assert!(range < 0.01, "by ranges: {range}");
    let one_by_one = removed(|db, dict, keys| {
        for key in keys {
            let mut batch = Batch::new();
            batch.delete(dict, key.clone());
            db.commit(batch, Durability::Buffered).unwrap();
        }
    });
    assert!(one_by_one < 0.015, "one by one: {one_by_one}");
}

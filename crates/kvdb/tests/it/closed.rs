//! Tests of the space that a closed store takes from the host. It keeps the space of its data and
//! releases the rest, and reserves that again when it is opened.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::FileDevice;

const MIB: u64 = 1 << 20;

/// Bytes that the host has allocated.
fn on_host(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

fn open() -> OpenOptions {
    OpenOptions { memory: 64 << 20, ..OpenOptions::default() }
}

fn check(path: &Path) {
    let device = std::sync::Arc::new(FileDevice::open(path, true).unwrap());
    let report = kvdb::check(device, &mut |_, _| {});
    assert!(report.is_clean(), "{report:?}");
}

fn value(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 31 + n * 7 + (i >> 8) * n) as u8).collect()
}

#[test]
fn a_closed_store_takes_little_more_than_what_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.kvfs");
    let db =
        Kvdb::create_path(&path, CreateOptions { open: open(), ..Default::default() }).unwrap();
    db.close().unwrap();
    drop(db);
    assert!(on_host(&path) <= 2 * MIB, "an empty store takes {} KiB", on_host(&path) >> 10);
    check(&path);

    // Puts a kilobyte and syncs it, repeatedly.
    for round in 0..3u64 {
        let db = Kvdb::open_path_with(&path, open()).unwrap();
        let dict = db
            .dictionary("d")
            .unwrap_or_else(|| db.create_dictionary("d", DictionaryOptions::default()).unwrap());
        assert!((0..round).all(|n| db.get(dict, &[n as u8]).unwrap().unwrap() == value(n, 1000)));
        db.put(dict, &[round as u8], &value(round, 1000), Durability::Synced).unwrap();
        db.close().unwrap();
        drop(db);
        assert!(on_host(&path) <= 2 * MIB, "round {round}: {} KiB", on_host(&path) >> 10);
        check(&path);
    }

    // From 64 MiB on, the bound is the data, a tenth of it, and 16 MiB.
    let (count, len) = (80, MIB as usize);
    let mut data = 0;
    for round in 0..3u64 {
        let db = Kvdb::open_path_with(&path, open()).unwrap();
        let dict = db.dictionary("d").unwrap();
        for n in 0..count {
            let mut batch = Batch::new();
            batch.put(dict, format!("{round}/{n}").into_bytes(), value(round + n, len));
            db.commit(batch, Durability::Buffered).unwrap();
        }
        data += count * len as u64;
        db.close().unwrap();
        drop(db);
        let taken = on_host(&path);
        assert!(taken <= data / 10 * 11 + 16 * MIB, "{} of {} MiB", taken / MIB, data / MIB);
        check(&path);
    }
    let db = Kvdb::open_path_with(&path, open()).unwrap();
    let dict = db.dictionary("d").unwrap();
    for (round, n) in (0..3).flat_map(|round| (0..count).map(move |n| (round, n))) {
        let read = db.get(dict, format!("{round}/{n}").as_bytes()).unwrap().unwrap();
        assert!(read == value(round + n, len), "{round}/{n}");
    }
    // Deletes all data, which frees its space.
    let mut batch = Batch::new();
    batch.delete_range(dict, b"0".to_vec(), b"9".to_vec());
    db.commit(batch, Durability::Buffered).unwrap();
    db.compact(dict).unwrap();
    db.close().unwrap();
    drop(db);
    assert!(on_host(&path) <= 2 * MIB, "emptied: {} KiB", on_host(&path) >> 10);
    check(&path);
}

#[test]
fn what_was_deleted_right_before_the_close_takes_no_space() {
    let directory = tempfile::tempdir().unwrap();
    for (name, one_by_one, len) in
        [("range", false, 20_000), ("each", true, 20_000), ("short", true, 500)]
    {
        let path = directory.path().join(name);
        let db =
            Kvdb::create_path(&path, CreateOptions { open: open(), ..Default::default() }).unwrap();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let count = 40 * MIB / len;
        for n in 0..count {
            let value = value(n, len as usize);
            db.put(dict, &n.to_be_bytes(), &value, Durability::Buffered).unwrap();
        }
        db.sync().unwrap();
        db.flush().unwrap();
        let mut batch = Batch::new();
        match one_by_one {
            true => (0..count).for_each(|n| batch.delete(dict, n.to_be_bytes().to_vec())),
            false => batch.delete_range(dict, vec![0], vec![1]),
        }
        db.commit(batch, Durability::Buffered).unwrap();
        db.close().unwrap();
        drop(db);
        assert!(on_host(&path) <= 2 * MIB, "{name}: {} KiB", on_host(&path) >> 10);
        check(&path);
        let db = Kvdb::open_path_with(&path, open()).unwrap();
        let dict = db.dictionary("d").unwrap();
        assert!(db.view().scan(dict, b"", b"", 1).unwrap().is_empty());
    }
}

/// After the next opening, commits have the released space again.
#[test]
fn the_journal_has_its_space_again_when_a_store_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.kvfs");
    let db =
        Kvdb::create_path(&path, CreateOptions { open: open(), ..Default::default() }).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    db.put(dict, b"a", b"1", Durability::Synced).unwrap();
    db.close().unwrap();
    drop(db);
    let closed = on_host(&path);
    let db = Kvdb::open_path_with(&path, open()).unwrap();
    let opened = on_host(&path);
    // A segment of the journal, and what user data leaves for flushes and merges.
    assert!(opened >= closed + 9 * (8 << 20) / 2, "{} MiB", opened / MIB);
    // Hundreds of synced commits fit into the allocated space, so the file does not grow.
    for n in 0..300u64 {
        db.put(dict, &n.to_be_bytes(), b"small", Durability::Synced).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let db = Kvdb::open_path_with(&path, open()).unwrap();
    assert!((0..300u64).all(|n| db.get(dict, &n.to_be_bytes()).unwrap().unwrap() == "small"));
    db.close().unwrap();
}

/// Prints how long synced puts take after a store was created and after it was opened again; run
/// with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement: make measurements"]
fn synced_puts_after_an_opening() {
    let directory = tempfile::tempdir_in(".").unwrap();
    let path = directory.path().join("s.kvfs");
    let db = Kvdb::create_path(&path, CreateOptions::default()).unwrap();
    db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut db = Some(db);
    for round in 0..6 {
        let begun = std::time::Instant::now();
        let db = db.take().unwrap_or_else(|| Kvdb::open_path(&path).unwrap());
        let opened = begun.elapsed();
        let dict = db.dictionary("d").unwrap();
        let mut times: Vec<u128> = (0..1000u64)
            .map(|n| {
                let begun = std::time::Instant::now();
                db.put(dict, &n.to_be_bytes(), &[7; 100], Durability::Synced).unwrap();
                begun.elapsed().as_nanos() / 1000
            })
            .collect();
        let first = times.remove(0);
        times.sort_unstable();
        println!(
            "opening {round}: {opened:?}, first {first} us, median {} us, p99 {} us, most {} us",
            times[500], times[990], times[998]
        );
        db.close().unwrap();
    }
}

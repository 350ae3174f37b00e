//! Tests of scrubs of a store that is in use. A scrub reports all damaged data and no sound data,
//! and ends when it is told to stop.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use env::{Machine, Simulated};
use kvdb::{
    Batch, CreateOptions, DictionaryOptions, Durability, Error, Kvdb, OpenOptions, ScrubOptions,
};
use zones::{Device, MemoryDevice, Purpose};

fn value(i: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (i.wrapping_mul(2_654_435_761).wrapping_add(n * 7919) >> 5) as u8)
        .collect()
}

/// Everything that frees zones runs while one scrub follows the other. The device discards freed
/// zones, so a scrub that read freed data would find it changed.
#[test]
fn beside_writers_merges_snapshots_and_rollbacks_nothing_is_found() {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions {
        memory: 4 << 20,
        late_bind_at: 64 << 10,
        flush_interval: Duration::from_millis(20),
        ..OpenOptions::default()
    };
    let options = CreateOptions {
        open,
        capacity: Some(400 << 20),
        reserve_zones: 8,
        ..CreateOptions::default()
    };
    let db = Kvdb::create(device, Arc::new(Machine::default()), options).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let commits = Arc::new(AtomicU64::new(0));
    let full = |done: kvdb::Result<()>| match done {
        Ok(()) | Err(Error::NoSpace | Error::Conflict { .. }) => {}
        Err(e) => panic!("{e}"),
    };
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (db, done, commits) = (db.clone(), done.clone(), commits.clone());
            scope.spawn(move || {
                let mut i = thread;
                while !done.load(SeqCst) {
                    let mut batch = Batch::new();
                    for n in 0..8 {
                        let key = format!("{:04}", (i * 37 + n * 101) % 2000);
                        batch.put(d, key, value(i + n, if n == 0 { 40_000 } else { 900 }));
                    }
                    if i % 50 < 2 {
                        batch.delete_range(
                            d,
                            format!("{:04}", i % 1900),
                            format!("{:04}", i % 1900 + 90),
                        );
                    }
                    full(db.commit(
                        batch,
                        if i % 9 == 0 { Durability::Synced } else { Durability::Buffered },
                    ));
                    commits.fetch_add(1, SeqCst);
                    i += 2;
                }
            });
        }
        let (other, ended) = (db.clone(), done.clone());
        scope.spawn(move || {
            let db = other;
            for round in 0.. {
                if ended.load(SeqCst) {
                    return;
                }
                full(db.snapshot("s"));
                full(if round % 2 == 0 { db.compact(d) } else { db.flush() });
                if round % 3 == 0 {
                    full(db.rollback("s"));
                }
                full(db.drop_snapshot("s"));
                db.reclaim();
            }
        });
        let mut scrubs = 0;
        while scrubs < 6 || commits.load(SeqCst) < 1500 {
            // Some scrubs are so slow that many changes happen during them.
            let rate = [None, Some(200 << 20), Some(40 << 20)][scrubs % 3];
            assert!(db.scrub(ScrubOptions { bytes_per_second: rate }).unwrap());
            db.wait_for_scrub();
            let faults = db.scrub_faults();
            if !faults.is_empty() {
                done.store(true, SeqCst);
            }
            assert_eq!(faults, []);
            assert!(db.scrub_progress().complete && db.scrub_progress().bytes > 0);
            scrubs += 1;
        }
        done.store(true, SeqCst);
    });
    db.close().unwrap();
}

/// A device that records its writes.
struct Writes {
    inner: MemoryDevice,
    written: Mutex<Vec<(Purpose, Range<u64>)>>,
}

impl Device for Writes {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.written.lock().unwrap().push((purpose, offset..offset + buf.len() as u64));
        self.inner.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.inner.grow(new_len)
    }
}

/// Tests a store that is open for writing, with data that it has not merged or flushed yet.
#[test]
fn what_an_open_store_has_written_is_compared() {
    let device = Arc::new(Writes { inner: MemoryDevice::new(), written: Mutex::default() });
    let env = Arc::new(Simulated::new(3));
    let open = OpenOptions {
        threads: false,
        zero_journal: false,
        late_bind_at: 8 << 10,
        ..OpenOptions::default()
    };
    let db = Kvdb::create(device.clone(), env, CreateOptions { open, ..CreateOptions::default() })
        .unwrap();
    let d = db
        .create_dictionary(
            "d",
            DictionaryOptions { separate_at: 1000, ..DictionaryOptions::default() },
        )
        .unwrap();
    let mut batch = Batch::new();
    for i in 0..200 {
        batch.put(d, format!("flushed{i:03}"), value(i, if i % 10 == 0 { 6000 } else { 200 }));
    }
    db.commit(batch, Durability::Synced).unwrap();
    db.flush().unwrap();
    // The data that the flush has left in the journal is dead now.
    device.written.lock().unwrap().retain(|(purpose, _)| *purpose != Purpose::Journal);
    let mut batch = Batch::new();
    batch.put(d, "small", value(1, 300));
    for i in 0..5 {
        batch.put(d, format!("bound{i}"), value(i, 5000));
    }
    db.commit(batch, Durability::Synced).unwrap();
    let scrub = || {
        assert!(db.scrub(ScrubOptions::default()).unwrap());
        db.scrub_faults()
    };
    assert_eq!(scrub(), []);
    let mut seen = std::collections::BTreeMap::<Purpose, u64>::new();
    let mut written = device.written.lock().unwrap().clone();
    // Checked are the bytes of the manifest since its last checkpoint, and both copies of the
    // superblock.
    let last = written.iter().rposition(|(purpose, _)| *purpose == Purpose::Superblock).unwrap();
    written = written.split_off(last - 1);
    for (purpose, range) in written {
        for at in [range.start, range.start + 20, range.start + (range.end - range.start) / 2] {
            device.inner.flip_bit(at, 2);
            let faults = scrub();
            // Between large values there is padding.
            let mut byte = [0];
            device.inner.read_at(purpose, at, &mut byte).unwrap();
            let padding = byte[0] == 1 << 2
                && matches!(purpose, Purpose::Pages | Purpose::Index | Purpose::Tuples);
            assert!(!faults.is_empty() || padding, "{purpose} at {at:#x}, written at {range:?}");
            *seen.entry(purpose).or_default() += u64::from(!faults.is_empty());
            if purpose == Purpose::Pages
                && let Some(fault) = faults.iter().find(|f| f.place == "journal")
            {
                let keys = fault.keys.as_ref().expect("a value is that of a key");
                assert!(keys.dictionary == "d" && keys.start.starts_with(b"bound"), "{fault:?}");
                assert_eq!(keys.end, [&keys.start, &[0][..]].concat());
            }
            device.inner.flip_bit(at, 2);
        }
    }
    for purpose in [
        Purpose::Superblock,
        Purpose::Manifest,
        Purpose::Journal,
        Purpose::Tuples,
        Purpose::Index,
        Purpose::Pages,
    ] {
        assert!(seen.get(&purpose).is_some_and(|n| *n > 0), "{purpose}: {seen:?}");
    }
    assert_eq!(scrub(), []);
}

/// Data that was deleted after a snapshot lies in runs that only the snapshot has.
#[test]
fn what_only_a_snapshot_has_is_compared() {
    let device = Arc::new(Writes { inner: MemoryDevice::new(), written: Mutex::default() });
    let open = OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(3)), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut batch = Batch::new();
    (0..200).for_each(|i| batch.put(d, format!("key{i:03}"), value(i, 200)));
    db.commit(batch, Durability::Synced).unwrap();
    db.snapshot("s").unwrap();
    db.flush().unwrap();
    let written = device.written.lock().unwrap().clone();
    let (_, blocks) =
        written.into_iter().rfind(|(purpose, _)| *purpose == Purpose::Tuples).unwrap();
    let mut batch = Batch::new();
    batch.delete_range(d, "", "l");
    db.commit(batch, Durability::Synced).unwrap();
    db.flush().unwrap();
    db.compact(d).unwrap();
    let scrub = || {
        assert!(db.scrub(ScrubOptions::default()).unwrap());
        db.scrub_faults()
    };
    assert_eq!(scrub(), []);
    device.inner.flip_bit(blocks.start + 100, 2);
    let faults = scrub();
    assert!(faults.iter().any(|fault| fault.place.starts_with("snapshot s, ")), "{faults:?}");
}

#[test]
fn a_scrub_ends_with_the_store_and_when_it_is_told_to() {
    let open = OpenOptions { memory: 4 << 20, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db =
        Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), options).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    db.put(d, b"a", &value(1, 2000), Durability::Synced).unwrap();
    db.flush().unwrap();
    let slow = ScrubOptions { bytes_per_second: Some(1) };
    assert!(db.scrub(slow).unwrap());
    assert!(!db.scrub(slow).unwrap(), "one is under way");
    db.stop_scrub();
    db.wait_for_scrub();
    let progress = db.scrub_progress();
    assert!(!progress.running && !progress.complete && progress.completed == 0, "{progress:?}");
    assert!(db.scrub(ScrubOptions::default()).unwrap());
    db.wait_for_scrub();
    assert_eq!((db.scrub_progress().complete, db.scrub_progress().completed), (true, 1));
    assert!(db.scrub(slow).unwrap());
    // A day at this rate, were it waited for.
    db.close().unwrap();
    assert!(!db.scrub_progress().running && !db.scrub_progress().complete);
}

/// The block cache is left as it is.
#[test]
fn a_scrub_puts_nothing_into_the_cache() {
    let db = Kvdb::in_memory();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    for i in 0..3000u64 {
        db.put(d, &i.to_be_bytes(), &value(i, 300), Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    let before = db.stats().cache_bytes;
    db.scrub(ScrubOptions::default()).unwrap();
    assert!(db.scrub_progress().bytes > 900_000, "{:?}", db.scrub_progress());
    assert_eq!(db.stats().cache_bytes, before);
}

//! Tests of a store with its background threads: commits share syncs, readers work next to writers,
//! and memory stays bounded.

use crate::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{Device, FileDevice, MemoryDevice, Purpose, SlowSyncDevice};

/// The duration of a sync, as on a disk.
const SYNC: Duration = Duration::from_millis(3);

fn open(memory: usize) -> OpenOptions {
    OpenOptions {
        memory,
        flush_interval: Duration::from_millis(50),
        zero_journal: false,
        ..OpenOptions::default()
    }
}

fn create(device: Arc<dyn Device>, memory: usize) -> Kvdb {
    let options = CreateOptions { open: open(memory), ..CreateOptions::default() };
    Kvdb::create(device, Arc::new(Machine::default()), options).unwrap()
}

#[test]
fn commits_that_wait_for_the_same_disk_share_its_syncs() {
    let db = create(Arc::new(SlowSyncDevice::new(Arc::new(MemoryDevice::new()), SYNC)), 16 << 20);
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let db = &db;
            scope.spawn(move || {
                for i in 0..50u64 {
                    let mut batch = Batch::new();
                    batch.put(d, (thread << 32 | i).to_be_bytes().to_vec(), "value");
                    db.commit(batch, Durability::Synced).unwrap();
                }
            });
        }
    });
    let stats = db.stats();
    assert_eq!(stats.commits, 800);
    assert!(stats.syncs <= 300, "{} syncs for 800 commits of 16 threads", stats.syncs);
    assert_eq!(db.view().scan(d, b"", b"", usize::MAX).unwrap().len(), 800);
}

#[test]
fn a_buffered_commit_is_on_disk_after_the_interval() {
    let device = Arc::new(zones::CrashDevice::new());
    let db = create(device.clone(), 16 << 20);
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(d, "k", "v");
    db.commit(batch, Durability::Buffered).unwrap();
    let begun = Instant::now();
    loop {
        let image = Arc::new(device.durable());
        let (again, _) = Kvdb::open(
            image,
            Arc::new(Machine::default()),
            OpenOptions { read_only: true, ..open(1 << 20) },
        )
        .unwrap();
        if again.get(d, b"k").unwrap().is_some() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "not on disk after twenty seconds");
        std::thread::yield_now();
    }
}

/// Writers, readers, flushes and merges at once, on a file; readers check that each view is one
/// commit boundary.
#[test]
fn readers_see_whole_commits_while_everything_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.kvfs");
    let memory = 4 << 20;
    let db = create(Arc::new(FileDevice::create(&path).unwrap()), memory);
    let a = db.create_dictionary("a", DictionaryOptions::default()).unwrap();
    let b = db
        .create_dictionary("b", DictionaryOptions { separate_at: 1024, ..Default::default() })
        .unwrap();
    let (stop, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let commits = 6000u64;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (db, most) = (&db, &most);
                scope.spawn(move || {
                    let mut random = Random::new(writer);
                    for i in 0..commits {
                        // The same number is stored under the same key in both dictionaries, in `b`
                        // followed by a page.
                        let key = (writer << 32 | random.below(3000)).to_be_bytes().to_vec();
                        let mut batch = Batch::new();
                        batch.put(a, key.clone(), i.to_be_bytes().to_vec());
                        let mut value = i.to_be_bytes().to_vec();
                        value.resize(8 + random.below(3000) as usize, 1);
                        batch.put(b, key, value);
                        let durability =
                            if i % 512 == 0 { Durability::Synced } else { Durability::Buffered };
                        db.commit(batch, durability).unwrap();
                        if i % 64 == 0 {
                            most.fetch_max(db.stats().memtable_bytes, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for reader in 0..2u64 {
            let (db, stop) = (&db, &stop);
            scope.spawn(move || {
                let mut random = Random::new(100 + reader);
                while !stop.load(Ordering::Relaxed) {
                    let view = db.view();
                    for _ in 0..20 {
                        let key = (random.below(2) << 32 | random.below(3000)).to_be_bytes();
                        let (x, y) = (view.get(a, &key).unwrap(), view.get(b, &key).unwrap());
                        assert_eq!(
                            x.as_deref(),
                            y.as_deref().map(|y| &y[..8]),
                            "one commit, two dictionaries"
                        );
                    }
                    let from = (random.below(2) << 32 | random.below(3000)).to_be_bytes();
                    let (x, y) = (
                        view.scan(a, &from, b"", 50).unwrap(),
                        view.scan(b, &from, b"", 50).unwrap(),
                    );
                    assert!(
                        x.iter().map(|t| (&t.0, &t.1[..])).eq(y.iter().map(|t| (&t.0, &t.1[..8])))
                    );
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = db.stats();
    assert!(stats.flushes > 3, "{} flushes", stats.flushes);
    assert!(most.load(Ordering::Relaxed) <= memory as u64 * 5 / 8, "memtables of {most:?} bytes");
    let all = model::contents(&db).unwrap();
    db.close().unwrap();
    drop(db);
    let report = kvdb::check(Arc::new(FileDevice::open(&path, true).unwrap()), &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
    let (db, recovery) = Kvdb::open(
        Arc::new(FileDevice::open(&path, false).unwrap()),
        Arc::new(Machine::default()),
        open(memory),
    )
    .unwrap();
    assert!(recovery.clean, "{recovery}");
    assert_eq!(model::contents(&db).unwrap(), all);
}

#[test]
fn an_idle_store_gives_the_space_of_deleted_data_back() {
    let device = Arc::new(MemoryDevice::new());
    let options = OpenOptions { idle_flush: Duration::from_millis(100), ..open(8 << 20) };
    let create = CreateOptions { open: options, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut random = Random::new(1);
    for i in 0..600u64 {
        let mut batch = Batch::new();
        for j in 0..64u64 {
            batch.put(d, (i << 8 | j).to_be_bytes().to_vec(), model::bytes(&mut random, 4096));
        }
        db.commit(batch, Durability::Buffered).unwrap();
    }
    let full = device.allocated();
    assert!(full > 150 << 20);
    let mut batch = Batch::new();
    batch.delete_range(d, vec![0; 8], vec![0xff; 8]);
    db.commit(batch, Durability::Buffered).unwrap();
    let begun = Instant::now();
    while device.allocated() > 17 * zones::ZONE_SIZE {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{} MiB of {} MiB are still taken",
            device.allocated() >> 20,
            full >> 20
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(db.view().scan(d, b"", b"", 1).unwrap().is_empty());
}

#[test]
fn a_device_that_takes_no_more_runs_stops_the_store_and_nobody_waits_for_ever() {
    for purpose in [Purpose::Tuples, Purpose::Index, Purpose::Manifest, Purpose::Journal] {
        let device = Arc::new(zones::FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let db = create(device.clone(), 2 << 20);
        let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        device.inject(
            zones::Fault::always(zones::Operation::Write, zones::FaultKind::Error).of(purpose),
        );
        let failed = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4u64)
                .map(|writer| {
                    let db = &db;
                    scope.spawn(move || {
                        for i in 0..100_000u64 {
                            let mut batch = Batch::new();
                            batch.put(d, (writer << 32 | i).to_be_bytes().to_vec(), vec![7; 500]);
                            if let Err(e) = db.commit(batch, Durability::Buffered) {
                                return Some(e);
                            }
                        }
                        None
                    })
                })
                .collect();
            writers.into_iter().map(|w| w.join().unwrap()).collect::<Vec<_>>()
        });
        for e in failed {
            // A write fails with one of two errors, depending on the moment at which the store
            // stopped.
            let told = matches!(e, Some(kvdb::Error::ReadOnly(_) | kvdb::Error::NotSynced(_)));
            assert!(told, "{purpose}: {e:?}");
        }
        assert!(db.stats().failed.is_some());
        assert!(!model::contents(&db).unwrap()[&d].is_empty(), "reading goes on");
        assert!(db.close().is_err());
    }
}

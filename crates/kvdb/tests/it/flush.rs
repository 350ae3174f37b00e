//! Tests of work that is done while a flush is in progress. Zones that the flush still needs, or
//! that the manifest still names, are not reallocated.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::held::HeldSync;
use env::{Machine, Random, Simulated, schedule};
use kvdb::{CreateOptions, DictionaryOptions, Durability, Isolation, Kvdb, OpenOptions};
use zones::{
    CrashDevice, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose, ZONE_SIZE,
};

fn options(memory: usize) -> OpenOptions {
    OpenOptions {
        memory,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..OpenOptions::default()
    }
}

fn value(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.number() as u8).collect()
}

/// The segments of the journal that a flush makes superfluous are free when the manifest says so on
/// the device. Until then a power cut needs them, whatever else is written.
#[test]
fn a_power_cut_within_the_sync_of_a_flush_finds_the_journal_as_it_was() {
    let device = Arc::new(HeldSync::over(CrashDevice::new()));
    let create = CreateOptions { open: options(96 << 20), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
    let (d, bound) =
        (db.open_dictionary("d").unwrap().id(), db.open_dictionary("bound").unwrap().id());
    let mut random = Random::new(1);
    // Short values are stored in the journal itself and fill several of its segments.
    let tuples: Vec<(String, Vec<u8>)> =
        (0..14_000).map(|i| (format!("key{i:06}"), value(&mut random, 1500))).collect();
    assert!(tuples.iter().map(|(_, v)| v.len() as u64).sum::<u64>() > 2 * ZONE_SIZE);
    for (key, value) in &tuples {
        db.put(d, key.as_bytes(), value, Durability::Buffered).unwrap();
    }
    db.sync().unwrap();
    // Enough data to reach every free zone, written before it is committed.
    let t = db.begin(Isolation::Snapshot).unwrap();
    device.hold_behind(Purpose::Manifest);
    let images: Vec<MemoryDevice> = std::thread::scope(|scope| {
        let flush = scope.spawn(|| db.flush().unwrap());
        device.wait_until_held();
        let mut bulk = t.bulk(bound, &t.view().unwrap()).unwrap();
        for i in 0..5000 {
            bulk.push(format!("key{i:06}").as_bytes(), &value(&mut random, 8000)).unwrap();
        }
        let images = (0..8).map(|seed| device.memory.crash(seed)).collect();
        device.release();
        flush.join().unwrap();
        images
    });
    for (seed, image) in images.into_iter().enumerate() {
        let (db, _) = Kvdb::open(Arc::new(image), Arc::new(Simulated::new(2)), options(96 << 20))
            .unwrap_or_else(|e| panic!("outcome {seed} of the power cut: {e}"));
        let found = db.view().scan(d, b"", b"", usize::MAX).unwrap();
        assert_eq!(found.len(), tuples.len(), "outcome {seed} of the power cut");
        assert!(
            found
                .iter()
                .zip(&tuples)
                .all(|((k, v), (key, value))| k == key.as_bytes() && v == value),
            "outcome {seed}"
        );
    }
}

/// Values that the journal has bound stay where they are in the runs of a flush; a dictionary that
/// is dropped while they are made takes the memtables that held them with it.
#[test]
#[cfg(debug_assertions)]
fn a_dictionary_that_is_dropped_while_it_is_flushed_hinders_nothing() {
    for seed in 0..40 {
        let done = schedule::run(seed, move || {
            let device = Arc::new(MemoryDevice::new());
            let open = OpenOptions { late_bind_at: 16 << 10, ..options(32 << 20) };
            let create = CreateOptions { open: open.clone(), ..CreateOptions::default() };
            let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
            let paged = DictionaryOptions { separate_at: 512, ..DictionaryOptions::default() };
            let (gone, kept) = (
                db.create_dictionary("gone", paged.clone()).unwrap(),
                db.create_dictionary("kept", paged).unwrap(),
            );
            db.put(kept, b"k", b"kept", Durability::Buffered).unwrap();
            db.flush().unwrap();
            // The journal has placed these values. They fill more than a zone, and are all values
            // of their generation.
            let large = vec![7; 3 << 20];
            (0..4).for_each(|i| db.put(gone, &[i], &large, Durability::Buffered).unwrap());
            let other = db.clone();
            let drops = env::thread::spawn(move || other.drop_dictionary(gone).unwrap());
            db.flush().unwrap();
            drops.join().unwrap();
            db.put(kept, b"l", &large, Durability::Buffered).unwrap();
            db.flush().unwrap();
            let image = Arc::new(MemoryDevice::clone(&device));
            let (again, _) = Kvdb::open(image, Arc::new(Simulated::new(2)), open).unwrap();
            for (db, when) in [(&db, "in memory"), (&again, "after a crash")] {
                assert_eq!(db.get(kept, b"k").unwrap().unwrap(), "kept", "{when}");
                assert!(db.get(kept, b"l").unwrap().unwrap() == large, "{when}");
            }
        });
        done.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A caller of a flush waits only for earlier commits, however fast others commit.
#[test]
fn a_flush_ends_although_others_go_on_committing() {
    let device = Arc::new(HeldSync::over(MemoryDevice::new()));
    let create = CreateOptions { open: options(32 << 20), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "before").unwrap();
    device.hold_behind(Purpose::Tuples);
    let (done, flushed) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(db.flush()).unwrap());
        device.wait_until_held();
        // Another generation is closed during the flush of the first one, as writers do.
        d.insert("k", "during").unwrap();
        db.snapshot_of("", "closes", Durability::Buffered).unwrap();
        device.release_and_hold_behind(Purpose::Tuples);
        let flushed = flushed.recv_timeout(Duration::from_secs(20));
        device.release();
        flushed.expect("it waits for what was committed since").unwrap();
    });
    db.flush().unwrap();
    assert_eq!(d.get("k").unwrap().unwrap(), "during");
}

/// A full store is full for as long as it takes; then a flush may still fail as often as any other.
#[test]
fn a_flush_that_found_no_space_for_long_may_fail_once_more() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let open = OpenOptions { threads: true, ..options(32 << 20) };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "v").unwrap();
    let wait_for = |struck: u64| {
        let begun = Instant::now();
        while device.struck() < struck {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{} of {struck}: the flush is not tried again",
                device.struck()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    device.inject(Fault::always(Operation::Write, FaultKind::NoSpace).of(Purpose::Tuples));
    // Closes the generation.
    db.snapshot_of("", "closes", Durability::Buffered).unwrap();
    wait_for(5);
    device.clear();
    let struck = device.struck();
    device.inject(Fault::once(Operation::Write, FaultKind::Error).of(Purpose::Tuples));
    wait_for(struck + 1);
    d.insert("k", "w").expect("the store takes writes");
    db.flush().expect("it is tried again");
    assert_eq!(d.get("k").unwrap().unwrap(), "w");
}

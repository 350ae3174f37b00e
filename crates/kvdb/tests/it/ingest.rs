//! Tests of bulk ingest. Data is written once and becomes visible as a whole or not at all. It is
//! newer than everything that existed when the ingest ended, and merging it afterwards is cheap.

use std::sync::Arc;

use crate::model::{create, small};
use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{Dictionary, DictionaryOptions, Error, Kvdb, OpenOptions};
use zones::{CrashDevice, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, ZONE_SIZE};

fn store() -> (Arc<MemoryDevice>, Kvdb) {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    (device, db)
}

fn key(i: u64) -> Bytes {
    Bytes::copy_from_slice(&i.to_be_bytes())
}

/// `count` tuples from `from` on, values of `len` bytes that do not compress.
fn tuples(from: u64, count: u64, len: usize) -> impl Iterator<Item = (Bytes, Bytes)> {
    (from..from + count).map(move |i| {
        let mut value = vec![0; len];
        Random::new(i).fill(&mut value);
        (key(i), Bytes::from(value))
    })
}

fn written(db: &Kvdb) -> u64 {
    db.stats().io.total().write_bytes
}

fn contents(d: &Dictionary) -> Vec<(Bytes, Bytes)> {
    d.iter().collect::<kvdb::Result<_>>().unwrap()
}

#[test]
fn each_byte_is_written_once_and_merges_of_disjoint_ingests_write_index_bytes_only() {
    for len in [64, 4096] {
        let (_, db) = store();
        let d = db.open_dictionary("d").unwrap();
        let count = (8 << 20) / len as u64;
        let mut before = written(&db);
        for part in 0..6 {
            let stats = d.ingest(tuples(part * count, count, len)).unwrap();
            assert_eq!((stats.tuples, stats.user_bytes), (count, count * (len as u64 + 8)));
            let device = written(&db) - before;
            before += device;
            assert!(
                device as f64 <= 1.04 * stats.user_bytes as f64,
                "{len}: {device} of {}",
                stats.user_bytes
            );
            assert!(stats.written_bytes <= device);
        }
        let user = 6 * count * (len as u64 + 8);
        while db.step().unwrap() {}
        d.compact().unwrap();
        let merges = written(&db) - before;
        assert!(merges < user / 100, "{len}: merging {user} bytes wrote {merges}");
        assert_eq!(db.stats().dictionaries[0].levels.iter().flatten().count(), 1);
        assert!(contents(&d).into_iter().eq(tuples(0, 6 * count, len)), "{len}");
    }
}

#[test]
fn it_wins_over_what_was_committed_before_and_loses_to_what_comes_after() {
    let (device, db) = store();
    let d = db.open_dictionary("d").unwrap();
    d.insert(key(1), "old, in a run").unwrap();
    db.flush().unwrap();
    d.insert(key(2), "old, in memory").unwrap();
    let view = db.view();
    let mut ingest = d.begin_ingest().unwrap();
    for i in 1..=4 {
        ingest.push(key(i), "ingested").unwrap();
    }
    d.insert(key(3), "committed before the end").unwrap();
    assert_eq!(d.iter().count(), 3, "nothing is seen before the end");
    ingest.finish().unwrap();
    d.insert(key(4), "new").unwrap();
    let expected =
        [(key(1), "ingested"), (key(2), "ingested"), (key(3), "ingested"), (key(4), "new")];
    let expected = expected.map(|(k, v)| (k, Bytes::from(v)));
    assert_eq!(contents(&d), expected);
    assert_eq!(view.iter(d.id()).count(), 2, "a view does not change");
    drop(view);
    db.sync().unwrap();
    let id = d.id();
    let image = MemoryDevice::clone(&device);
    let (again, _) = Kvdb::open(Arc::new(image), Arc::new(Simulated::new(2)), small()).unwrap();
    let found: Vec<_> = again.view().iter(id).collect::<kvdb::Result<_>>().unwrap();
    assert_eq!(found, expected, "after a crash");
    db.flush().unwrap();
    d.compact().unwrap();
    assert_eq!(contents(&d), expected);
}

#[test]
fn unsorted_and_repeated_keys_are_refused_with_their_place_and_leave_nothing() {
    let (device, db) = store();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "v").unwrap();
    db.flush().unwrap();
    let allocated = device.allocated();
    let refused = |extra: u64| {
        let outcome = d.ingest(tuples(10, 3000, 3000).chain([(key(extra), Bytes::new())]));
        let Err(Error::Invalid(why)) = outcome else { panic!("{outcome:?}") };
        why
    };
    let twice = refused(3009);
    // One zone of pages stays open for what comes next.
    let free = db.space().free;
    assert!(twice.contains("key 3000") && twice.contains("twice"), "{twice}");
    assert!(refused(5).contains("after a larger one"));
    let too_long = d.ingest([(vec![0; kvdb::MAX_KEY + 1], "v")]);
    assert!(matches!(too_long, Err(Error::Invalid(_))), "{too_long:?}");
    let too_large = d.ingest([("k", vec![0; kvdb::MAX_VALUE + 1])]);
    assert!(matches!(too_large, Err(Error::Invalid(_))), "{too_large:?}");
    assert_eq!(contents(&d), [("k".into(), "v".into())]);
    assert_eq!(db.space().free, free, "what it placed is free again");
    // A source that fails, tuple by tuple.
    let mut ingest = d.begin_ingest().unwrap();
    tuples(0, 5000, 3000).for_each(|(k, v)| ingest.push(k, v).unwrap());
    drop(ingest);
    assert_eq!(db.space().free, free);
    assert!(device.allocated() <= allocated + 4 * ZONE_SIZE, "zones are used again");
    assert_eq!(d.ingest(Vec::<(Bytes, Bytes)>::new()).unwrap(), kvdb::IngestStats::default());
    assert_eq!(contents(&d), [("k".into(), "v".into())]);
}

#[test]
fn a_full_store_refuses_it_whole_and_deleted_space_is_used_for_it() {
    let device = Arc::new(MemoryDevice::with_limit(24 * ZONE_SIZE));
    let db = create(device, Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "v").unwrap();
    let outcome = d.ingest(tuples(0, 100_000, 4096));
    assert!(matches!(outcome, Err(Error::NoSpace)), "{outcome:?}");
    assert_eq!(contents(&d), [("k".into(), "v".into())]);
    let fits = 15_000;
    d.ingest(tuples(0, fits, 4096)).unwrap();
    d.remove_prefix("").unwrap();
    d.ingest(tuples(0, fits, 4096)).unwrap();
    assert_eq!(d.iter().keys().count() as u64, fits);
}

#[test]
fn a_device_that_fails_in_the_middle_leaves_what_was_there() {
    let image = {
        let (device, db) = store();
        let d = db.open_dictionary("d").unwrap();
        d.insert("k", "v").unwrap();
        db.close().unwrap();
        MemoryDevice::clone(&device)
    };
    for failing in 0..12 {
        let inner = Arc::new(MemoryDevice::clone(&image));
        let device = Arc::new(FaultDevice::new(inner.clone(), 1));
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), small()).unwrap();
        let d = db.open_dictionary("d").unwrap();
        let mut ingest = d.begin_ingest().unwrap();
        device.inject(Fault::once(Operation::Write, FaultKind::Error).after(failing));
        let outcome = tuples(0, 2000, 4096)
            .try_for_each(|(k, v)| ingest.push(k, v))
            .and_then(|()| ingest.finish());
        assert_eq!(outcome.is_err(), device.struck() > 0, "write {failing}: {outcome:?}");
        assert!(matches!(contents(&d).len(), 1 | 2001), "all or nothing");
        drop((d, db));
        let (db, _) = Kvdb::open(inner, Arc::new(Simulated::new(3)), small()).unwrap();
        let d = db.open_dictionary("d").unwrap();
        assert!(matches!(contents(&d).len(), 1 | 2001), "all or nothing, write {failing}");
    }
}

#[test]
fn a_power_cut_leaves_all_of_it_or_nothing() {
    let (mut all, mut none) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let env = Arc::new(Simulated::new(seed));
        let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
        let options = OpenOptions { flush_on_close: random.one_in(2), ..small() };
        let db = create(device.clone(), env.clone(), options).unwrap();
        let d = db
            .open_dictionary_with("d", DictionaryOptions { stitch_at: 0, ..Default::default() })
            .unwrap();
        d.insert(key(3), "old").unwrap();
        d.insert(key(9_999), "old").unwrap();
        db.sync().unwrap();
        device.cut_power_after(random.below(40));
        let count = 500 + random.below(2000);
        let acknowledged = d.ingest(tuples(0, count, 1500)).is_ok();
        let flushed = acknowledged
            && random.one_in(2)
            && d.insert(key(3), "new").and_then(|()| db.flush()).is_ok();
        let image = device.crash(seed);
        drop((d, db));
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
        let (db, _) = Kvdb::open(Arc::new(image), env, small()).unwrap();
        let d = db.open_dictionary("d").unwrap();
        let found = contents(&d);
        match found.len() {
            2 => {
                assert!(!acknowledged, "seed {seed}: what was acknowledged is gone");
                none += 1;
            }
            n => {
                assert_eq!(n as u64, count + 1, "seed {seed}");
                let at_3 = &found[3].1;
                assert!(at_3.len() == 1500 || (at_3 == "new" && acknowledged), "seed {seed}");
                assert!(!flushed || at_3 == "new", "seed {seed}");
                all += 1;
            }
        }
        assert_eq!(d.get(key(9_999)).unwrap().unwrap(), "old");
    }
    assert!(all > 5 && none > 5, "both happen: {all}, {none}");
}

#[test]
fn commits_and_flushes_of_others_go_on_meanwhile() {
    let device = Arc::new(MemoryDevice::new());
    let options = OpenOptions { memory: 2 << 20, zero_journal: false, ..OpenOptions::default() };
    let options = kvdb::CreateOptions { open: options, ..Default::default() };
    let db = Kvdb::create(device, Arc::new(env::Machine::default()), options).unwrap();
    let d = db.open_dictionary("d").unwrap();
    // Two writers of keys that the ingests do not have, and one that overwrites what each ingest
    // has just brought.
    std::thread::scope(|scope| {
        for t in 0..2u64 {
            let d = d.clone();
            scope.spawn(move || {
                for i in 0..6000u64 {
                    d.insert(key((1 << 40) + t * 100_000 + i), vec![t as u8; 200]).unwrap();
                }
            });
        }
        for round in 0..10 {
            d.ingest(tuples(0, 300, 1000 + round)).unwrap();
            assert_eq!(
                d.get(key(7)).unwrap().unwrap().len(),
                1000 + round,
                "newer than the ingest before"
            );
            d.insert(key(5), format!("round {round}")).unwrap();
            assert_eq!(d.get(key(5)).unwrap().unwrap(), format!("round {round}"));
        }
    });
    db.flush().unwrap();
    d.compact().unwrap();
    assert_eq!(d.iter().count(), 300 + 12_000);
    assert_eq!(d.get(key(5)).unwrap().unwrap(), "round 9");
    assert_eq!(d.get(key(6)).unwrap().unwrap().len(), 1009);
}

#[test]
fn a_transaction_that_began_before_it_finds_a_conflict_and_one_that_begins_after_it_does_not() {
    use kvdb::{Durability, Isolation};
    let (_, db) = store();
    let d = db.open_dictionary("d").unwrap();
    let begin = || db.begin(Isolation::Snapshot).unwrap();
    let (same, other_key, range) = (begin(), begin(), begin());
    same.put(d.id(), key(5), "mine").unwrap();
    other_key.put(d.id(), key(1000), "mine").unwrap();
    range.delete_range(d.id(), key(0), key(3)).unwrap();
    d.ingest(tuples(0, 10, 64)).unwrap();
    let after = begin();
    after.put(d.id(), key(6), "mine").unwrap();
    let conflicts = |result: kvdb::Result<()>| {
        assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}")
    };
    conflicts(same.commit(Durability::Buffered));
    conflicts(range.commit(Durability::Buffered));
    other_key.commit(Durability::Buffered).unwrap();
    after.commit(Durability::Buffered).unwrap();
    let expected =
        tuples(0, 10, 64).map(|(k, v)| if k == key(6) { (k, Bytes::from("mine")) } else { (k, v) });
    assert_eq!(
        contents(&d),
        expected.chain([(key(1000), Bytes::from("mine"))]).collect::<Vec<_>>()
    );
}

/// An ingest lies above everything that was committed before it, whatever the replay of the journal
/// has flushed, and also when the store is opened again.
#[test]
fn an_ingest_after_a_replay_that_has_flushed_lasts() {
    for len in (40_000..280_000).step_by(8_000) {
        let device = Arc::new(MemoryDevice::new());
        let options = OpenOptions { flush_on_close: false, ..small() };
        let db = create(
            device.clone(),
            Arc::new(Simulated::new(1)),
            OpenOptions { memory: 16 << 20, ..options.clone() },
        )
        .unwrap();
        let d = db
            .open_dictionary_with(
                "d",
                DictionaryOptions { separate_at: u32::MAX, ..Default::default() },
            )
            .unwrap();
        // The replay has less memory than those who committed: it flushes, and with some of these
        // lengths the last record does it.
        for i in 0..4 {
            d.insert(key(i), vec![1; len]).unwrap();
        }
        db.sync().unwrap();
        drop((d, db));
        let (db, recovery) =
            Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), options.clone()).unwrap();
        assert!(recovery.records >= 4);
        let d = db.open_dictionary("d").unwrap();
        d.ingest((0..4).map(|i| (key(i), "ingested"))).unwrap();
        db.close().unwrap();
        drop((d, db));
        let (db, _) = Kvdb::open(device, Arc::new(Simulated::new(3)), options).unwrap();
        let d = db.open_dictionary("d").unwrap();
        let expected: Vec<_> = (0..4).map(|i| (key(i), Bytes::from("ingested"))).collect();
        assert!(contents(&d) == expected, "records of {len} bytes");
    }
}

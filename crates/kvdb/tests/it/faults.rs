//! Tests of failing devices. A read returns an error and never a wrong answer, and acknowledged
//! data survives.

use std::sync::Arc;
use std::time::Duration;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{
    Batch, CreateOptions, Cursor, DictionaryId, Durability, Error, Kvdb, OpenOptions,
    TransactionOptions,
};
use zones::{CrashDevice, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose, SECTOR};

/// A used store with runs, merged runs, late-bound values and a journal.
fn lived(seed: u64, close: bool) -> (MemoryDevice, Model) {
    let mut random = Random::new(seed);
    let device = Arc::new(MemoryDevice::new());
    let env = Arc::new(Simulated::new(seed));
    let db = create(
        device.clone(),
        env.clone(),
        kvdb::OpenOptions { flush_on_close: random.one_in(2), ..small() },
    )
    .unwrap();
    let dicts = dictionaries(&db).unwrap();
    let mut model = with_all(Model::new(), &dicts);
    for i in 0..300 {
        let changes = changes(&mut random, &dicts);
        apply(&mut model, &changes);
        db.commit(batch(&changes), Durability::Buffered).unwrap();
        if i % 60 == 59 {
            db.flush().unwrap();
        }
        if random.one_in(4) {
            db.step().unwrap();
        }
    }
    if close {
        db.close().unwrap();
    } else {
        db.sync().unwrap();
        // The timer would do this: it writes a mark which records that everything was synced.
        env.advance(Duration::from_secs(1));
        while db.step().unwrap() {}
        env.advance(Duration::from_secs(1));
        db.step().unwrap();
    }
    let image = MemoryDevice::clone(&device);
    (image, model)
}

fn open(device: Arc<dyn zones::Device>) -> kvdb::Result<Kvdb> {
    Kvdb::open(device, Arc::new(Simulated::new(1)), small()).map(|(db, _)| db)
}

/// Reads everything, key by key and by scan: each answer is an error or right.
fn never_wrong(db: &Kvdb, model: &Model) -> bool {
    let mut failed = false;
    let view = db.view();
    for (&d, tuples) in model {
        for i in 0..300 {
            let key = format!("key{i:03}").into_bytes();
            match view.get(d, &key) {
                Ok(found) => {
                    assert_eq!(found.as_deref(), tuples.get(&key).map(|v| &v[..]), "{d:?} {i}")
                }
                Err(_) => failed = true,
            }
        }
        match view.scan(d, b"", b"", usize::MAX) {
            Ok(all) => assert!(
                all.iter()
                    .map(|(k, v)| (&k[..], &v[..]))
                    .eq(tuples.iter().map(|(k, v)| (&k[..], &v[..])))
            ),
            Err(_) => failed = true,
        }
    }
    failed
}

fn flips(count: u64) -> u64 {
    std::env::var("KVFS_FLIPS").ok().and_then(|v| v.parse().ok()).unwrap_or(count)
}

/// Every flipped bit in a live structure is found by `check`; none is ever part of an answer.
fn flip(close: bool, count: u64) {
    let (mut found, mut dead) = (0, 0);
    let mut stores: Vec<(MemoryDevice, Model)> = Vec::new();
    for seed in 0..4 {
        stores.push(lived(seed, close));
        let report = kvdb::check(Arc::new(stores[seed as usize].0.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "{:?}", report.faults);
    }
    let mut random = Random::new(7);
    for n in 0..count {
        let (image, model) = &stores[(n % 4) as usize];
        let device = Arc::new(image.clone());
        // The place must have been written: most of a device is holes.
        let (addr, sector) = loop {
            let len = zones::Device::len(&*device).unwrap();
            let addr = random.below(len);
            let mut sector = vec![0; SECTOR as usize];
            zones::Device::read_at(
                &*device,
                Purpose::Superblock,
                addr / SECTOR * SECTOR,
                &mut sector,
            )
            .unwrap();
            if sector.iter().any(|&b| b != 0) {
                break (addr, sector);
            }
        };
        drop(sector);
        device.flip_bit(addr, random.below(8) as u8);
        let clean = kvdb::check(device.clone(), &mut |_, _| {}).is_clean();
        match clean {
            false => found += 1,
            true => dead += 1,
        }
        if n % 4 == 0 || clean {
            match open(device) {
                Ok(db) => {
                    let failed = never_wrong(&db, model);
                    assert!(
                        !(failed && clean),
                        "flip {n} at {addr:#x}: not found by check, but met by a reader"
                    );
                }
                Err(_) => assert!(
                    !clean,
                    "flip {n} at {addr:#x}: not found by check, but the store does not open"
                ),
            }
        }
    }
    assert!(found > dead / 8, "{found} flips found, {dead} hit nothing that is alive");
}

#[test]
fn a_flipped_bit_of_a_closed_store_is_found_and_never_an_answer() {
    flip(true, flips(400));
}

#[test]
fn a_flipped_bit_of_a_store_that_was_killed_is_found_and_never_an_answer() {
    flip(false, flips(400));
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_and_reading_goes_on() {
    for seed in 0..20 {
        let crash = Arc::new(CrashDevice::new());
        let faulty = Arc::new(FaultDevice::new(crash.clone(), seed));
        let env = Arc::new(Simulated::new(seed));
        let db = create(faulty.clone(), env, small()).unwrap();
        let dicts = dictionaries(&db).unwrap();
        let mut random = Random::new(seed);
        let mut model = with_all(Model::new(), &dicts);
        faulty.inject(Fault::once(Operation::Sync, FaultKind::Error).after(random.below(40)));
        let mut possible = Vec::new();
        loop {
            let changes = changes(&mut random, &dicts);
            let synced = random.one_in(3);
            let durability = if synced { Durability::Synced } else { Durability::Buffered };
            let result = db.commit(batch(&changes), durability);
            if synced && result.is_ok() {
                possible.clear();
            } else {
                possible.push(model.clone());
            }
            apply(&mut model, &changes);
            if result.is_err() || random.one_in(8) && db.flush().is_err() {
                break;
            }
        }
        possible.push(model);
        assert_eq!(faulty.struck(), 1, "one failure, no retry");
        for _ in 0..3 {
            let changes = changes(&mut random, &dicts);
            assert!(matches!(
                db.commit(batch(&changes), Durability::Buffered),
                Err(Error::ReadOnly(_))
            ));
            assert!(matches!(db.sync(), Err(Error::ReadOnly(_))));
            assert!(db.flush().is_err());
            assert!(db.create_dictionary("more", Default::default()).is_err());
        }
        assert!(db.stats().failed.is_some());
        contents(&db).unwrap();
        let image = crash.crash(seed);
        drop(db);
        let found = contents(&open(Arc::new(image)).unwrap()).unwrap();
        assert!(possible.contains(&found), "seed {seed}");
    }
}

#[test]
fn failing_writes_lose_nothing_acknowledged() {
    for seed in 0..60 {
        let crash = Arc::new(CrashDevice::new());
        let faulty = Arc::new(FaultDevice::new(crash.clone(), seed));
        let env = Arc::new(Simulated::new(seed));
        let db = create(faulty.clone(), env, small()).unwrap();
        let dicts = dictionaries(&db).unwrap();
        let mut random = Random::new(seed);
        let mut model = with_all(Model::new(), &dicts);
        let mut possible = vec![model.clone()];
        let purposes =
            [Purpose::Journal, Purpose::Manifest, Purpose::Tuples, Purpose::Index, Purpose::Pages];
        let purpose = purposes[random.below(5) as usize];
        let kind = if random.one_in(3) { FaultKind::NoSpace } else { FaultKind::Error };
        faulty.inject(
            Fault::always(Operation::Write, kind).of(purpose).after(random.below(6)).one_in(2),
        );
        for _ in 0..150 {
            let changes = changes(&mut random, &dicts);
            let synced = random.one_in(4);
            let durability = if synced { Durability::Synced } else { Durability::Buffered };
            match db.commit(batch(&changes), durability) {
                Ok(()) => {
                    apply(&mut model, &changes);
                    if synced {
                        possible.clear();
                    }
                    possible.push(model.clone());
                    assert_eq!(
                        contents(&db).unwrap(),
                        model,
                        "seed {seed}: what was acknowledged is seen"
                    );
                }
                // May or may not have been committed when the store stopped.
                Err(Error::ReadOnly(_) | Error::NotSynced(_)) => {
                    let mut maybe = model.clone();
                    apply(&mut maybe, &changes);
                    possible.push(maybe);
                    break;
                }
                // Refused before anything happened.
                Err(_) => assert_eq!(
                    contents(&db).unwrap(),
                    model,
                    "seed {seed}: a refused commit leaves no trace"
                ),
            }
            if random.one_in(10) {
                let _ = db.flush();
            }
            if random.one_in(3) {
                let _ = db.step();
            }
        }
        let image = crash.crash(seed);
        drop(db);
        let found = contents(&open(Arc::new(image)).unwrap()).unwrap();
        assert!(possible.contains(&found), "seed {seed}: {purpose} {kind:?}");
    }
}

#[test]
fn failing_reads_are_errors_and_pass() {
    let (image, model) = lived(3, true);
    for kind in [FaultKind::Error, FaultKind::ShortRead, FaultKind::FlipBit] {
        let faulty = Arc::new(FaultDevice::new(Arc::new(image.clone()), 5));
        let db = open(faulty.clone()).unwrap();
        faulty.inject(Fault::always(Operation::Read, kind).one_in(3));
        assert!(never_wrong(&db, &model), "{kind:?} was met");
        faulty.clear();
        assert!(!never_wrong(&db, &model), "{kind:?} was not remembered");
    }
}

#[test]
fn a_hole_in_the_middle_of_the_journal_is_corruption_and_not_its_end() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    let dicts = dictionaries(&db).unwrap();
    let mut random = Random::new(1);
    for _ in 0..20 {
        let changes = [Change::Put(dicts[0], bytes(&mut random, 20), bytes(&mut random, 100))];
        db.commit(batch(&changes), Durability::Synced).unwrap();
    }
    let image = MemoryDevice::clone(&device);
    // The journal's chunks are found by their magic; each commit has a sector of its own.
    let mut chunks = Vec::new();
    for addr in (0..zones::Device::len(&image).unwrap()).step_by(SECTOR as usize) {
        let mut magic = [0; 4];
        zones::Device::read_at(&image, Purpose::Journal, addr, &mut magic).unwrap();
        if &magic == b"KVJC" {
            chunks.push(addr);
        }
    }
    assert_eq!(chunks.len(), 20);
    for (n, &addr) in chunks.iter().enumerate() {
        let broken = Arc::new(image.clone());
        broken.flip_bit(addr + 60, 3);
        let opened = open(broken);
        if n < 19 {
            assert!(
                matches!(opened, Err(Error::Corrupt(_))),
                "chunk {n} is gone, and later ones tell that it was synced"
            );
        } else {
            assert_eq!(
                contents(&opened.unwrap()).unwrap()[&dicts[0]].len(),
                19,
                "the last one could be a torn write"
            );
        }
    }
}

/// After a failed sync the content of the device is unknown. Even if the device accepts all later
/// writes, the store refuses commits.
#[test]
fn a_failed_sync_is_never_forgotten() {
    for kind in [FaultKind::Error, FaultKind::NoSpace] {
        let (memory, model) = lived(3, true);
        let inner = Arc::new(memory);
        let device = Arc::new(FaultDevice::new(inner.clone(), 1));
        let db = open(device.clone()).unwrap();
        let d = *model.keys().next().unwrap();
        db.put(d, b"synced", b"1", Durability::Synced).unwrap();
        device.inject(Fault::once(Operation::Sync, kind));
        let put = |key: &str, durability| db.put(d, key.as_bytes(), b"1", durability);
        let failed = put("lost?", Durability::Synced);
        assert!(matches!(failed, Err(Error::NotSynced(_))), "{failed:?}");
        assert_eq!(device.struck(), 1);
        for durability in [Durability::Buffered, Durability::Synced] {
            let outcome = put("later", durability);
            assert!(matches!(outcome, Err(Error::ReadOnly(_))), "{kind:?}: {outcome:?}");
        }
        for outcome in
            [db.sync(), db.flush(), db.snapshot("later"), db.step().map(|_| ()), db.close()]
        {
            assert!(matches!(outcome, Err(Error::ReadOnly(_))), "{kind:?}: {outcome:?}");
        }
        assert_eq!(db.get(d, b"synced").unwrap().unwrap(), "1", "reading goes on");
        drop(db);
        let again = open(inner).unwrap();
        assert_eq!(again.get(d, b"synced").unwrap().unwrap(), "1");
        assert_eq!(again.get(d, b"later").unwrap(), None);
        assert!(again.snapshots().is_empty());
    }
}

/// A failed sync undoes nothing. The commit is visible to readers and to transactions that wait for
/// its locks, and the error says so.
#[test]
fn a_commit_whose_sync_fails_says_that_it_is_made() {
    for isolation in [kvdb::Isolation::Snapshot, kvdb::Isolation::Serializable] {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
        let d = dictionaries(&db).unwrap()[0];
        // The journal has its segment.
        db.put(d, b"k", b"old", Durability::Synced).unwrap();
        let transaction = db.begin(isolation).unwrap();
        transaction.put(d, "k", "new").unwrap();
        device.inject(Fault::always(Operation::Sync, FaultKind::Error));
        let done = transaction.commit(Durability::Synced);
        let Err(Error::NotSynced(why)) = done else { panic!("{done:?}") };
        assert!(why.contains("open it again"), "{why}");
        assert_eq!(db.get(d, b"k").unwrap().unwrap(), "new");
        assert!(db.transactions().is_empty() && !db.is_locked(d, b"k"));
        // The next one is refused before it has changed anything.
        assert!(matches!(db.begin(isolation), Err(Error::ReadOnly(_))));
    }
}

/// The commit of a transaction within a durable one syncs the changes that the outer one has now.
/// If that sync fails, the outer one has them all the same, and the error says so.
#[test]
fn a_nested_commit_whose_sync_fails_says_that_it_is_made() {
    for kind in [FaultKind::Error, FaultKind::NoSpace] {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
        let d = dictionaries(&db).unwrap()[0];
        let durable = TransactionOptions { durable: true, ..Default::default() };
        let outer = db.begin_with(durable).unwrap();
        outer.put(d, "outer", "1").unwrap();
        outer.sync().unwrap();
        let within = TransactionOptions { within: Some(outer.id()), ..Default::default() };
        let inner = db.begin_with(within).unwrap();
        inner.put(d, "inner", "1").unwrap();
        device.inject(Fault::always(Operation::Sync, kind));
        let done = inner.commit(Durability::Synced);
        assert!(matches!(done, Err(Error::NotSynced(_))), "{kind:?}: {done:?}");
        assert_eq!(outer.get(d, b"inner").unwrap().unwrap(), "1", "{kind:?}");
        assert_eq!(db.get(d, b"inner").unwrap(), None, "{kind:?}");
    }
}

/// After an error a cursor does not know the positions in its runs. It returns the error until it
/// is moved, and never returns an item that a newer, unreadable run may hide.
#[test]
fn a_cursor_gives_nothing_after_an_error_until_it_is_moved() {
    let memory = Arc::new(MemoryDevice::new());
    let open = OpenOptions { memory: 32 << 20, threads: false, ..OpenOptions::default() };
    let create = CreateOptions { open: open.clone(), ..CreateOptions::default() };
    let db = Kvdb::create(memory.clone(), Arc::new(Simulated::new(1)), create).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let key = |i: u32| i.to_be_bytes().to_vec();
    (0..3000).for_each(|i| d.insert(key(i), vec![b'o'; 100]).unwrap());
    db.flush().unwrap();
    (0..3000).for_each(|i| match i % 2 {
        0 => d.insert(key(i), vec![b'n'; 100]).unwrap(),
        _ => d.remove(key(i)).unwrap(),
    });
    db.flush().unwrap();
    let id = d.id();
    db.close().unwrap();
    drop((d, db));
    for forward in [true, false] {
        // Nothing is cached.
        let device = Arc::new(FaultDevice::new(memory.clone(), 1));
        let (db, _) =
            Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), open.clone()).unwrap();
        for after in 0..8 {
            let mut cursor = db.view().cursor(id, b"", b"").unwrap();
            if !forward {
                cursor.seek_to_end().unwrap();
            }
            let step = |cursor: &mut Cursor| match forward {
                true => cursor.next(),
                false => cursor.prev(),
            };
            device.inject(Fault::once(Operation::Read, FaultKind::Error).after(after));
            let mut last = None;
            let failed = loop {
                match step(&mut cursor) {
                    Ok(Some(tuple)) => last = Some(tuple.key),
                    Ok(None) => break false,
                    Err(_) => break true,
                }
            };
            device.clear();
            if !failed {
                // All data is cached by now.
                assert!(after > 0);
                break;
            }
            for _ in 0..3 {
                let outcome = step(&mut cursor);
                assert!(outcome.is_err(), "{forward}, {after}: {outcome:?} behind {last:?}");
            }
            match (&last, forward) {
                (Some(last), true) => cursor.seek(&[&last[..], &[0]].concat()).unwrap(),
                (Some(last), false) => cursor.seek(last).unwrap(),
                (None, true) => cursor.seek(b"").unwrap(),
                (None, false) => cursor.seek_to_end().unwrap(),
            }
            let mut rest = Vec::new();
            while let Some(tuple) = step(&mut cursor).unwrap() {
                assert_eq!(tuple.value().unwrap()[0], b'n');
                rest.push(tuple.key.to_vec());
            }
            if !forward {
                rest.reverse();
            }
            let expected: Vec<Vec<u8>> = (0..3000)
                .step_by(2)
                .map(key)
                .filter(|k| {
                    last.as_ref().is_none_or(|last| match forward {
                        true => k[..] > last[..],
                        false => k[..] < last[..],
                    })
                })
                .collect();
            assert_eq!(rest, expected, "{forward}, {after}");
        }
    }
}

/// A synced commit is visible to all before its sync has ended. If the sync fails, the commit is
/// not refused, and the answer is that it may not be on disk.
#[test]
fn a_synced_commit_whose_sync_fails_is_said_to_be_committed() {
    type Commit = fn(&Kvdb, DictionaryId) -> kvdb::Result<()>;
    let commits: [Commit; 2] = [
        |db, d| db.put(d, b"k", b"v", Durability::Synced),
        |db, d| {
            let mut batch = Batch::new();
            batch.put(d, "k", "v");
            batch.put(d, "l", "v");
            db.commit(batch, Durability::Synced)
        },
    ];
    for commit in commits {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
        let d = db.create_dictionary("d", Default::default()).unwrap();
        // The journal has its segment.
        db.put(d, b"first", b"v", Durability::Synced).unwrap();
        device.inject(Fault::always(Operation::Sync, FaultKind::Error));
        let failed = commit(&db, d);
        assert!(matches!(failed, Err(Error::NotSynced(_))), "{failed:?}");
        assert!(db.get(d, b"k").unwrap().is_some(), "all see it");
        let refused = commit(&db, d);
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
    }
}

//! Tests of running out of space at any moment. The host refuses to grow the store in the middle of
//! a flush, a merge, a checkpoint of the manifest or a new segment of the journal, or the power
//! fails in a full store. Only commits are refused. Acknowledged data is kept, deleting works, and
//! when space returns everything works again without reopening the store.
//!
//! `KVFS_SEEDS=n` runs n / 20 seeds (each takes a second or two) instead of the usual few;
//! `KVFS_SEED=n` runs one.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Kvdb, OpenOptions,
};
use zones::{
    CrashDevice, Device, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose, ZONE_SIZE,
};

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVFS_SEEDS").map_or(usual, |n| n.div_ceil(20)),
    }
}

/// Returns `true` if the change was made, and `false` if there was no space.
fn done(what: &str, result: kvdb::Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::NoSpace) => false,
        Err(e) => panic!("{what}: {e}"),
    }
}

/// A file on a host that refuses space on demand. The file keeps its allocated space unless it
/// releases it.
struct Host {
    memory: Arc<MemoryDevice>,
    state: Mutex<HostState>,
}

struct HostState {
    /// Zones that the host has set aside for the file.
    backed: BTreeSet<u64>,
    /// Refuses once in this many times; 0 means never.
    refuses: u64,
    struck: u64,
    random: Random,
}

impl Host {
    fn new(memory: Arc<MemoryDevice>, seed: u64) -> Host {
        let state =
            HostState { backed: BTreeSet::new(), refuses: 0, struck: 0, random: Random::new(seed) };
        Host { memory, state: Mutex::new(state) }
    }
    fn refuse(&self, once_in: u64) {
        self.state.lock().unwrap().refuses = once_in;
    }
    fn struck(&self) -> u64 {
        self.state.lock().unwrap().struck
    }
    fn give(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let zones: Vec<u64> = (offset / ZONE_SIZE..(offset + len).div_ceil(ZONE_SIZE)).collect();
        let refuses = state.refuses;
        if zones.iter().any(|z| !state.backed.contains(z))
            && refuses > 0
            && state.random.one_in(refuses)
        {
            state.struck += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.backed.extend(zones);
        Ok(())
    }
}

impl Device for Host {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        assert!(
            self.state.lock().unwrap().backed.contains(&(offset / ZONE_SIZE)),
            "a write where the host may have no space"
        );
        self.memory.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.state
            .lock()
            .unwrap()
            .backed
            .retain(|z| z * ZONE_SIZE < offset || z * ZONE_SIZE >= offset + len);
        self.memory.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        let len = self.memory.len()?;
        self.give(len, new_len - len)?;
        self.memory.grow(new_len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.give(offset, len)
    }
}

/// Returns how often the host has refused.
fn host_refuses(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let memory = Arc::new(MemoryDevice::new());
    let device = Arc::new(Host::new(memory.clone(), seed));
    let open = || OpenOptions { late_bind_at: 8 << 10, ..small() };
    let mut db = create(device.clone(), env.clone(), open()).unwrap();
    let dicts = dictionaries(&db).unwrap();
    let mut model = with_all(Model::new(), &dicts);
    for round in 0..12 {
        let refusing = round % 2 == 0;
        device.refuse(0);
        if refusing {
            device.refuse(1 + random.below(3));
        }
        for step in 0..150 {
            let what = format!("seed {seed}, round {round}, step {step}");
            let mut changes = changes(&mut random, &dicts);
            if random.one_in(3) {
                // Enough data that zones are needed.
                let first = random.below(1500);
                let dict = dicts[random.below(3) as usize];
                changes = (0..24)
                    .map(|i| {
                        Change::Put(
                            dict,
                            format!("volume{:04}", first + i).into_bytes(),
                            bytes(&mut random, 40_000),
                        )
                    })
                    .collect();
            }
            let durability =
                if random.one_in(6) { Durability::Synced } else { Durability::Buffered };
            if done(&what, db.commit(batch(&changes), durability)) {
                apply(&mut model, &changes);
            }
            match random.below(30) {
                0..=4 => _ = done(&what, db.step().map(|_| ())),
                5 => _ = done(&what, db.flush()),
                6 => _ = done(&what, db.compact(dicts[random.below(3) as usize])),
                7 => done(&what, db.sync()).then_some(()).expect("a sync needs no space"),
                _ => env.advance(Duration::from_millis(random.below(30))),
            }
        }
        assert_eq!(contents(&db).unwrap(), model, "seed {seed}, round {round}");
        if random.one_in(3) {
            // Closing works even while the host refuses space.
            db.close().unwrap_or_else(|e| panic!("seed {seed}, round {round}: closing: {e}"));
            drop(db);
            let report = kvdb::check(memory.clone(), &mut |_, _| {});
            assert!(report.is_clean(), "seed {seed}, round {round}: {:?}", report.faults);
            db = Kvdb::open(device.clone(), env.clone(), open())
                .unwrap_or_else(|e| panic!("seed {seed}, round {round}: opening: {e}"))
                .0;
            assert_eq!(contents(&db).unwrap(), model, "seed {seed}, round {round}: after opening");
        }
        if !refusing {
            let mut batch = Batch::new();
            batch.put(dicts[0], "after", format!("{round}"));
            db.commit(batch, Durability::Synced).unwrap_or_else(|e| {
                panic!("seed {seed}, round {round}: the space is back, but: {e}")
            });
            db.flush().unwrap();
            model
                .get_mut(&dicts[0])
                .unwrap()
                .insert(b"after".to_vec(), format!("{round}").into_bytes());
        }
    }
    assert_eq!(db.stats().failed, None);
    device.struck()
}

#[test]
fn a_host_that_refuses_space_at_any_moment_loses_nothing_and_stops_nothing() {
    let refused: u64 = seeds(5).map(host_refuses).sum();
    assert!(refused > 0, "the host refused nothing");
}

/// A host without preallocation runs out of space in the middle of a write of the manifest. The
/// written part may be a valid edit. The edit is refused, so it must not be valid at the next
/// opening, when its zones have been reused.
#[test]
fn a_manifest_that_the_host_has_no_space_for_is_refused_and_leaves_nothing_behind() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let env = Arc::new(Simulated::new(seed));
        let memory = Arc::new(MemoryDevice::new());
        let device = Arc::new(FaultDevice::new(memory.clone(), seed));
        let db = create(device.clone(), env.clone(), small()).unwrap();
        let dicts = dictionaries(&db).unwrap();
        let mut model = with_all(Model::new(), &dicts);
        for step in 0..60 {
            let what = format!("seed {seed}, step {step}");
            let changes = changes(&mut random, &dicts);
            assert!(
                done(&what, db.commit(batch(&changes), Durability::Buffered)),
                "{what}: there is space"
            );
            apply(&mut model, &changes);
            if random.one_in(4) {
                device.inject(
                    Fault::once(Operation::Write, FaultKind::NoSpace).of(Purpose::Manifest),
                );
                let dict = dicts[random.below(3) as usize];
                refused += u64::from(!done(
                    &what,
                    if random.one_in(2) { db.flush() } else { db.compact(dict) },
                ));
                device.clear();
            }
            if random.one_in(8) {
                db.sync().unwrap();
                // The device as a kill would leave it.
                let image = Arc::new((*memory).clone());
                let report = kvdb::check(image.clone(), &mut |_, _| {});
                assert!(report.is_clean(), "{what}: {:?}", report.faults);
                let (again, _) = Kvdb::open(image, env.clone(), small())
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(contents(&again).unwrap(), model, "{what}");
            }
        }
        assert_eq!(db.stats().failed, None, "seed {seed}");
        assert_eq!(contents(&db).unwrap(), model, "seed {seed}");
    }
    assert!(refused > 100, "only {refused} edits were refused");
}

fn key(i: u64) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// Puts values until the store is full. Returns their number.
fn fill(db: &Kvdb, d: DictionaryId, first: u64, per_batch: u64, len: usize) -> u64 {
    let mut random = Random::new(first);
    for i in (first..).step_by(per_batch as usize) {
        let mut batch = Batch::new();
        (0..per_batch).for_each(|j| batch.put(d, key(i + j), bytes(&mut random, len)));
        if !done("filling", db.commit(batch, Durability::Buffered)) {
            return i - first;
        }
    }
    unreachable!("it never gets full")
}

fn count(db: &Kvdb, d: DictionaryId) -> u64 {
    let mut cursor = db.view().cursor(d, b"", b"").unwrap();
    let mut found = 0;
    while let Some(t) = cursor.next().unwrap() {
        t.value().unwrap();
        found += 1;
    }
    found
}

/// The store is full, and keys are deleted one by one. The power fails repeatedly, and each time
/// the store opens with all acknowledged data.
fn power_fails_when_full(seed: u64, limit: Option<u64>) {
    const CAPACITY: u64 = 20 * ZONE_SIZE;
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let options = CreateOptions {
        capacity: limit.is_none().then_some(CAPACITY),
        reserve_zones: 4,
        open: small(),
        ..CreateOptions::default()
    };
    let mut image = limit.map_or_else(MemoryDevice::new, MemoryDevice::with_limit);
    let len = [300, 3000, 20_000][random.below(3) as usize];
    let d;
    let mut there;
    {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
        d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        there = fill(&db, d, 0, 8, len);
        assert!(
            there * len as u64 > CAPACITY / 3,
            "seed {seed}: full with {there} values of {len}"
        );
        db.sync().unwrap();
        image = device.crash(seed);
    }
    let mut lowest = 0;
    for life in 0..12 {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), small()).unwrap_or_else(|e| {
            panic!("seed {seed}, life {life}: a full store does not open: {e}")
        });
        assert_eq!(count(&db, d), there, "seed {seed}, life {life}");
        device.cut_power_after(20 + random.below(300));
        // The states that the next life may find if the last deletions were not acknowledged.
        let mut possible = there;
        for _ in 0..200 {
            if there < 40 {
                break;
            }
            let many = 1 + random.below(20);
            let mut batch = Batch::new();
            (0..many).for_each(|i| batch.delete(d, key(lowest + i)));
            match db.commit(batch, Durability::Synced) {
                Ok(()) => (there, lowest, possible) = (there - many, lowest + many, there - many),
                Err(e) => {
                    assert!(device.is_dead(), "seed {seed}, life {life}: a deletion: {e}");
                    possible = there - many;
                    break;
                }
            }
            if random.one_in(4)
                && let Err(e) = db.step()
            {
                assert!(
                    device.is_dead() || matches!(e, Error::NoSpace),
                    "seed {seed}, life {life}: {e}"
                );
            }
        }
        image = device.crash(seed ^ life);
        drop(db);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);
        let (db, _) = Kvdb::open(Arc::new(image.clone()), env.clone(), small()).unwrap();
        let found = count(&db, d);
        assert!(
            found == there || found == possible,
            "seed {seed}, life {life}: {found}, not {there} or {possible}"
        );
        lowest += there - found;
        there = found;
    }
    // Deleting half of what is left makes room for nearly as much.
    let (db, _) = Kvdb::open(Arc::new(image), env, small()).unwrap();
    let mut batch = Batch::new();
    batch.delete_range(d, key(0), key(lowest + there / 2));
    db.commit(batch, Durability::Synced).unwrap();
    let again = fill(&db, d, 1 << 24, 8, len);
    assert!(again > there / 3, "seed {seed}: {again} values of {len} after {there}");
    assert_eq!(count(&db, d), again + there - there / 2);
}

#[test]
fn power_cuts_in_a_full_store_lose_nothing_and_it_opens_again() {
    for seed in seeds(4) {
        power_fails_when_full(seed, None);
    }
}

#[test]
fn power_cuts_on_a_full_host_lose_nothing_and_it_opens_again() {
    for seed in seeds(4) {
        power_fails_when_full(seed, Some(20 * ZONE_SIZE));
    }
}

/// Fills the store, deletes part of it key by key, here and there, and fills again, several times.
fn cycles(len: usize, per_batch: u64, reserve_zones: u32) {
    const CAPACITY: u64 = 48 * ZONE_SIZE;
    let env = Arc::new(Simulated::new(1));
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { memory: 4 << 20, ..small() };
    let db = Kvdb::create(
        device.clone(),
        env,
        CreateOptions { capacity: Some(CAPACITY), reserve_zones, open, ..Default::default() },
    )
    .unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut random = Random::new(len as u64);
    let mut alive = std::collections::BTreeSet::new();
    let mut next = 0;
    let rounds = if std::env::var_os("KVFS_SEEDS").is_some() { 8 } else { 3 };
    for round in 0..rounds {
        let added = fill(&db, d, next, per_batch, len);
        alive.extend(next..next + added);
        next += added;
        let held = alive.len() as u64 * (8 + len as u64);
        let usable = CAPACITY - u64::from(reserve_zones) * ZONE_SIZE;
        assert!(
            held * 4 > usable * 3,
            "values of {len}, round {round}: full with {held} bytes of {usable}"
        );
        assert_eq!(count(&db, d), alive.len() as u64);
        // Deletes every second key.
        let victims: Vec<u64> = alive.iter().copied().filter(|_| random.one_in(2)).collect();
        for part in victims.chunks(500) {
            let mut batch = Batch::new();
            part.iter().for_each(|&i| batch.delete(d, key(i)));
            db.commit(batch, Durability::Buffered)
                .unwrap_or_else(|e| panic!("values of {len}, round {round}: deleting: {e}"));
        }
        victims.iter().for_each(|i| _ = alive.remove(i));
        assert_eq!(count(&db, d), alive.len() as u64);
    }
    let mut batch = Batch::new();
    batch.delete_range(d, key(0), key(next));
    db.commit(batch, Durability::Synced).unwrap();
    db.compact(d).unwrap();
    while db.step().unwrap() {}
    assert_eq!(count(&db, d), 0);
    db.close().unwrap();
    assert!(device.allocated() < CAPACITY);
    let report = kvdb::check(device, &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[test]
fn deleting_here_and_there_makes_room_again_for_large_values() {
    cycles(20_000, 16, 8);
}

#[test]
fn deleting_here_and_there_makes_room_again_for_pages() {
    cycles(4096, 16, 8);
}

#[test]
fn deleting_here_and_there_makes_room_again_for_small_values() {
    cycles(300, 100, 8);
}

/// Snapshots and views keep the zones of a full store, so that merges gain little, whatever they
/// write. The merges continue nevertheless, and must not use up the part of the reserve that
/// flushes need. Without a flush no snapshot can be dropped, and no key deleted once the journal is
/// full.
fn full_for_long(seed: u64) {
    const CAPACITY: u64 = 20 * ZONE_SIZE;
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let open = OpenOptions {
        memory: (1 << 20) << random.below(3),
        late_bind_at: [4 << 10, 16 << 10, u64::MAX][random.below(3) as usize],
        merge_part: (16 << 10) << random.below(4),
        ..small()
    };
    let options = CreateOptions {
        capacity: Some(CAPACITY),
        reserve_zones: 8,
        open,
        ..CreateOptions::default()
    };
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), env.clone(), options).unwrap();
    let separate_at = [512, 2048, u32::MAX][random.below(3) as usize];
    let d =
        db.create_dictionary("d", DictionaryOptions { separate_at, ..Default::default() }).unwrap();
    let mut views = Vec::new();
    for round in 0..30 {
        let mut value = vec![0; [300, 5000, 60_000][random.below(3) as usize]];
        // The shortest values of all keys are less than the store takes: then it is full only as
        // long as a snapshot or view keeps the replaced values.
        for _ in 0..CAPACITY / value.len() as u64 / 8 {
            random.fill(&mut value);
            let mut batch = Batch::new();
            (0..8).for_each(|_| batch.put(d, key(random.below(20_000)), value.clone()));
            if !done("filling", db.commit(batch, Durability::Buffered)) {
                break;
            }
        }
        match random.below(4) {
            0 => _ = done("a snapshot", db.snapshot(&format!("s{round}"))),
            1 => views.push(db.view()),
            2 if views.len() > 3 => drop(views.remove(0)),
            _ => {}
        }
        let what = format!("seed {seed}, round {round}");
        if random.one_in(4)
            && let Some(oldest) = db.snapshots().first()
        {
            db.drop_snapshot(&oldest.name)
                .unwrap_or_else(|e| panic!("{what}: dropping a snapshot: {e}"));
        }
        for _ in 0..20 {
            let from = random.below(20_000);
            let mut batch = Batch::new();
            batch.delete_range(d, key(from), key(from + random.below(20)));
            let durability =
                if random.one_in(3) { Durability::Synced } else { Durability::Buffered };
            db.commit(batch, durability).unwrap_or_else(|e| panic!("{what}: a deletion: {e}"));
            match random.below(6) {
                0 => _ = done("a step", db.step().map(drop)),
                1 => _ = done("a flush", db.flush()),
                2 => _ = done("a compaction", db.compact(d)),
                _ => env.advance(Duration::from_millis(random.below(60))),
            }
        }
    }
}

#[test]
fn a_store_that_is_full_for_long_goes_on_removing() {
    // The first cases are those that found the bug.
    for seed in [7, 10].into_iter().chain(seeds(0)) {
        full_for_long(seed);
    }
}

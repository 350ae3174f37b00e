//! Tests that values which are overwritten or deleted before the next sync are never written, if
//! the store holds values until then (`OpenOptions::hold_values`). The tests count the bytes that
//! reach the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::{Machine, Random, Simulated};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Isolation, Kvdb,
    OpenOptions,
};
use zones::{CrashDevice, Device, MemoryDevice, ZONE_SIZE};

use crate::model::seeds;

fn held(memory: usize) -> OpenOptions {
    OpenOptions {
        memory,
        hold_values: usize::MAX,
        threads: false,
        zero_journal: false,
        ..OpenOptions::default()
    }
}

fn create(device: Arc<dyn Device>, open: OpenOptions) -> (Kvdb, DictionaryId) {
    let options = CreateOptions { open, reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    (db, dict)
}

fn store(memory: usize) -> (Kvdb, DictionaryId) {
    create(Arc::new(MemoryDevice::new()), held(memory))
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn put(db: &Kvdb, dict: DictionaryId, i: u32, value: &[u8]) {
    db.put(dict, &key(i), value, Durability::Buffered).unwrap();
}

fn get(db: &Kvdb, dict: DictionaryId, i: u32) -> Option<Vec<u8>> {
    db.get(dict, &key(i)).unwrap().map(|value| value.to_vec())
}

fn written(db: &Kvdb) -> u64 {
    db.stats().io.total().write_bytes
}

/// Sets 300 keys twenty times. Returns the bytes written for each byte that was put.
fn overwritten(open: OpenOptions, len: usize) -> f64 {
    let (db, dict) = create(Arc::new(MemoryDevice::new()), open);
    let before = written(&db);
    for round in 0..20u8 {
        (0..300).for_each(|i| put(&db, dict, i, &vec![round; len]));
    }
    db.sync_at_interval().unwrap();
    for i in 0..300 {
        assert_eq!(get(&db, dict, i), Some(vec![19; len]));
    }
    (written(&db) - before) as f64 / (20 * 300 * len) as f64
}

#[test]
fn keys_that_are_set_again_and_again_are_written_once() {
    for len in [3000, 64 << 10] {
        let share = overwritten(held(128 << 20), len);
        assert!(share < 0.1, "{len} bytes: {share}");
    }
    let open = OpenOptions { hold_values: 0, ..held(128 << 20) };
    let share = overwritten(open, 64 << 10);
    assert!(share > 0.9, "without the option: {share}");
}

#[test]
fn what_is_deleted_before_a_sync_is_not_written() {
    const PAGE: usize = 4096;
    let (db, dict) = store(512 << 20);
    let before = written(&db);
    for at in (0..16_000).step_by(2000) {
        let mut batch = Batch::new();
        (at..at + 2000).for_each(|i| batch.put(dict, key(i).to_vec(), vec![i as u8; PAGE]));
        db.commit(batch, Durability::Buffered).unwrap();
    }
    let mut batch = Batch::new();
    batch.delete_range(dict, key(0).to_vec(), key(15_990).to_vec());
    db.commit(batch, Durability::Buffered).unwrap();
    (15_990..15_995).for_each(|i| {
        let mut batch = Batch::new();
        batch.delete(dict, key(i).to_vec());
        db.commit(batch, Durability::Buffered).unwrap();
    });
    assert!(written(&db) - before < 1 << 20, "something was written too early");
    db.sync_at_interval().unwrap();
    let share = (written(&db) - before) as f64 / (16_000 * PAGE) as f64;
    assert!(share < 0.03, "{share}");
    assert_eq!(db.stats().discarded_bytes, 15_995 * PAGE as u64);
    assert_eq!(get(&db, dict, 15_994), None);
    assert_eq!(get(&db, dict, 15_995), Some(vec![15_995u32 as u8; PAGE]));
}

#[test]
fn a_view_and_a_transaction_keep_what_they_see() {
    let (db, dict) = store(64 << 20);
    put(&db, dict, 1, &[1; 100_000]);
    put(&db, dict, 2, &[1; 100_000]);
    let view = db.view();
    let transaction = db.begin(Isolation::Snapshot).unwrap();
    assert!(transaction.get(dict, &key(2)).unwrap().is_some());
    put(&db, dict, 1, &[2; 100_000]);
    let mut batch = Batch::new();
    batch.delete_range(dict, key(2).to_vec(), key(3).to_vec());
    db.commit(batch, Durability::Buffered).unwrap();
    put(&db, dict, 1, &[3; 100_000]);
    db.sync_at_interval().unwrap();
    assert_eq!(db.stats().discarded_bytes, 100_000, "only what neither of them sees");
    for i in [1, 2] {
        assert_eq!(view.get(dict, &key(i)).unwrap().as_deref(), Some(&[1; 100_000][..]));
        assert_eq!(transaction.get(dict, &key(i)).unwrap().as_deref(), Some(&[1; 100_000][..]));
    }
    assert_eq!(get(&db, dict, 1), Some(vec![3; 100_000]));
    assert_eq!(get(&db, dict, 2), None);
}

#[test]
fn a_cursor_walks_over_what_is_overwritten() {
    let (db, dict) = store(64 << 20);
    (0..50).for_each(|i| put(&db, dict, i, &[1; 100_000]));
    let mut cursor = db.view().cursor(dict, b"", b"").unwrap();
    let mut seen = 0;
    while let Some(tuple) = cursor.next().unwrap() {
        assert_eq!(tuple.key[..], key(seen));
        assert_eq!(tuple.value().unwrap(), [1; 100_000][..]);
        (0..50).for_each(|i| put(&db, dict, i, &[2; 100_000]));
        if seen % 10 == 0 {
            db.sync_at_interval().unwrap();
        }
        seen += 1;
    }
    assert_eq!(seen, 50);
}

#[test]
fn a_snapshot_has_what_was_held_when_it_was_made() {
    let device = Arc::new(CrashDevice::new());
    let (db, dict) = create(device.clone(), held(64 << 20));
    put(&db, dict, 1, &[1; 100_000]);
    db.snapshot("s").unwrap();
    put(&db, dict, 1, &[2; 100_000]);
    db.sync_at_interval().unwrap();
    assert_eq!(db.stats().discarded_bytes, 0);
    drop(db);
    let env = Arc::new(Simulated::new(2));
    let (db, _) = Kvdb::open(Arc::new(device.durable()), env, held(64 << 20)).unwrap();
    let view = db.open_snapshot("s").unwrap();
    assert_eq!(view.get(dict, &key(1)).unwrap().as_deref(), Some(&[1; 100_000][..]));
    assert_eq!(get(&db, dict, 1), Some(vec![2; 100_000]));
}

#[test]
fn transactions_that_commit_one_after_the_other_are_written_once() {
    let (db, dict) = store(64 << 20);
    let before = written(&db);
    for round in 0..50u8 {
        let transaction = db.begin(Isolation::Snapshot).unwrap();
        transaction.put(dict, key(1), vec![round; 200_000]).unwrap();
        transaction.put(dict, key(2), vec![round; 3000]).unwrap();
        transaction.commit(Durability::Buffered).unwrap();
    }
    db.sync_at_interval().unwrap();
    let share = (written(&db) - before) as f64 / (50 * 203_000) as f64;
    assert!(share < 0.1, "{share}");
    assert_eq!(get(&db, dict, 1), Some(vec![49; 200_000]));
    assert_eq!(get(&db, dict, 2), Some(vec![49; 3000]));
}

#[test]
fn a_sync_writes_what_is_held_once() {
    let device = Arc::new(CrashDevice::new());
    let (db, dict) = create(device.clone(), held(64 << 20));
    let before = written(&db);
    (0..100).for_each(|i| put(&db, dict, i, &vec![i as u8; 100_000]));
    assert!(written(&db) - before < 1 << 20, "it waits for the sync");
    db.sync().unwrap();
    let share = (written(&db) - before) as f64 / (100 * 100_000) as f64;
    assert!((0.99..1.05).contains(&share), "{share}");
    drop(db);
    let env = Arc::new(Simulated::new(2));
    let (db, _) = Kvdb::open(Arc::new(device.durable()), env, held(64 << 20)).unwrap();
    (0..100).for_each(|i| assert_eq!(get(&db, dict, i), Some(vec![i as u8; 100_000])));
}

/// A bulk load is written once, and no commit has to write all that is held.
#[test]
fn at_the_bound_the_oldest_values_are_written_in_parts() {
    const LEN: usize = 64 << 10;
    // So few that no generation is sealed, which writes all that is held.
    const COUNT: u32 = 1200;
    let (db, dict) = store(128 << 20);
    let made = written(&db);
    let (mut most, mut first) = (0, None);
    for i in 0..COUNT {
        let before = written(&db);
        put(&db, dict, i, &vec![i as u8; LEN]);
        let wrote = written(&db) - before;
        most = most.max(wrote);
        if wrote > LEN as u64 && first.is_none() {
            first = Some(i);
        }
    }
    let first = first.expect("less is held than was put") as usize * LEN;
    assert!((24 << 20..40 << 20).contains(&first), "the first write came at {first}");
    assert!(most < 20 << 20, "one commit wrote {most}");
    db.sync_at_interval().unwrap();
    let share = (written(&db) - made) as f64 / (COUNT as usize * LEN) as f64;
    assert!(share < 1.05, "{share}");
    (0..COUNT).for_each(|i| assert_eq!(get(&db, dict, i), Some(vec![i as u8; LEN])));
}

/// Values that are longer than those which are held are placed before they commit, in the order of
/// the commits.
#[test]
fn long_values_are_not_held() {
    let (db, dict) = store(64 << 20);
    let before = written(&db);
    put(&db, dict, 1, &[1; 500_000]);
    assert!(written(&db) - before < 100_000, "it is held");
    put(&db, dict, 2, &[2; 2 << 20]);
    assert!(written(&db) - before >= 2 << 20, "it is too long");
    db.sync_at_interval().unwrap();
    assert_eq!(get(&db, dict, 1), Some(vec![1; 500_000]));
    assert_eq!(get(&db, dict, 2), Some(vec![2; 2 << 20]));
}

#[test]
fn a_store_without_a_journal_holds_values_until_its_flush() {
    let device = Arc::new(CrashDevice::new());
    let open = OpenOptions { journal: false, ..held(64 << 20) };
    let (db, dict) = create(device.clone(), open.clone());
    let before = written(&db);
    for round in [1, 2] {
        (0..100).for_each(|i| put(&db, dict, i, &vec![round; 100_000]));
    }
    db.sync().unwrap();
    let share = (written(&db) - before) as f64 / (2 * 100 * 100_000) as f64;
    assert!(share < 0.6, "{share}");
    drop(db);
    let env = Arc::new(Simulated::new(2));
    let (db, _) = Kvdb::open(Arc::new(device.durable()), env, open).unwrap();
    (0..100).for_each(|i| assert_eq!(get(&db, dict, i), Some(vec![2; 100_000])));
}

/// Bytes written by commits that are synced, next to larger ones that are not.
fn with_syncs(hold_values: usize) -> u64 {
    let open = OpenOptions { hold_values, ..held(64 << 20) };
    let (db, dict) = create(Arc::new(MemoryDevice::new()), open);
    db.put(dict, b"first", b"", Durability::Synced).unwrap();
    let before = written(&db);
    for i in 0..300 {
        put(&db, dict, i % 20, &vec![i as u8; 3000]);
        put(&db, dict, 100 + i % 20, &vec![i as u8; 100_000]);
        db.put(dict, &key(1000 + i), &[i as u8; 100], Durability::Synced).unwrap();
    }
    written(&db) - before
}

#[test]
fn loads_with_syncs_are_as_without_the_option() {
    let (without, with) = (with_syncs(0), with_syncs(usize::MAX));
    assert!(with.abs_diff(without) < without / 100, "{with} bytes, {without} without the option");
}

/// The state after each commit.
type States = Vec<BTreeMap<u32, (u8, usize)>>;

/// The key whose value is the number of the commit.
const NUMBER: u32 = u32::MAX;

/// Commits until the power is cut. Returns the states, and the number of commits that are durable
/// for sure.
fn until_the_power_is_cut(
    (db, dict): (&Kvdb, DictionaryId),
    env: &Simulated,
    random: &mut Random,
    syncs: bool,
) -> (States, usize) {
    let mut states: States = vec![BTreeMap::new()];
    let mut certain = 0;
    loop {
        let mut state = states[states.len() - 1].clone();
        let mut batch = Batch::new();
        for _ in 0..1 + random.below(3) {
            let i = random.below(40) as u32;
            match random.below(12) {
                0 => {
                    batch.delete(dict, key(i).to_vec());
                    state.remove(&i);
                }
                1 => {
                    batch.delete_range(dict, key(i).to_vec(), key(i + 5).to_vec());
                    state.retain(|at, _| !(i..i + 5).contains(at));
                }
                _ => {
                    let (fill, len) = (random.below(256) as u8, 1 + random.below(40_000) as usize);
                    batch.put(dict, key(i).to_vec(), vec![fill; len]);
                    state.insert(i, (fill, len));
                }
            }
        }
        let count = states.len() as u32;
        batch.put(dict, key(NUMBER).to_vec(), count.to_be_bytes().to_vec());
        states.push(state);
        let durability =
            if syncs && random.one_in(60) { Durability::Synced } else { Durability::Buffered };
        let committed = db.commit(batch, durability);
        if committed.is_ok() && durability == Durability::Synced {
            certain = states.len() - 1;
        }
        let done = committed.and_then(|()| match random.below(60) {
            0 => db.sync_at_interval().map(|()| certain = states.len() - 1),
            1 => db.write_out(),
            2 => db.flush(),
            3..8 => {
                env.advance(Duration::from_millis(700));
                db.step().map(drop)
            }
            _ => Ok(()),
        });
        if done.is_err() {
            return (states, certain);
        }
    }
}

#[test]
fn a_power_cut_at_any_moment_leaves_the_state_after_some_commit() {
    let (mut earlier, mut last) = (0, 0);
    for seed in seeds(150) {
        let mut random = Random::new(seed);
        let image = {
            let device = Arc::new(CrashDevice::new());
            create(device.clone(), held(1 << 20)).0.close().unwrap();
            device.durable()
        };
        let device = Arc::new(CrashDevice::over(image));
        let env = Arc::new(Simulated::new(seed));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), held(1 << 20)).unwrap();
        let dict = db.open_dictionary("d").unwrap().id();
        device.cut_power_after(1 + random.below(250));
        let (states, certain) =
            until_the_power_is_cut((&db, dict), &env, &mut random, seed.is_multiple_of(3));
        assert!(device.is_dead(), "seed {seed}: a commit failed before the power did");
        let image = device.crash(seed);
        drop(db);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
        let (db, _) = Kvdb::open(Arc::new(image), env, held(1 << 20)).unwrap();
        let count = get(&db, dict, NUMBER)
            .map_or(0, |count| u32::from_be_bytes(count[..].try_into().unwrap()) as usize);
        assert!(count >= certain, "seed {seed}: {count} commits, {certain} were synced");
        for i in 0..45 {
            let expected = states[count].get(&i).map(|&(fill, len)| vec![fill; len]);
            assert!(get(&db, dict, i) == expected, "seed {seed}: key {i} after {count} commits");
        }
        earlier += u32::from(count + 1 < states.len());
        last += u32::from(count + 1 >= states.len());
    }
    println!("{earlier} times some commits were lost, {last} times none");
}

#[test]
fn a_full_store_refuses_a_commit_and_keeps_all_before() {
    let device = Arc::new(MemoryDevice::with_limit(24 * ZONE_SIZE));
    let (db, dict) = create(device.clone(), held(64 << 20));
    let mut count = 0;
    let refused = loop {
        match db.put(dict, &key(count), &vec![count as u8; 64 << 10], Durability::Buffered) {
            Ok(()) => count += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!(count > 500, "{count} values");
    db.sync_at_interval().unwrap();
    (0..count).for_each(|i| assert_eq!(get(&db, dict, i), Some(vec![i as u8; 64 << 10])));
    let mut batch = Batch::new();
    batch.delete_range(dict, key(0).to_vec(), key(count - 1).to_vec());
    db.commit(batch, Durability::Buffered).unwrap();
    db.flush().unwrap();
    while db.step().unwrap() {}
    for i in 0..count / 2 {
        put(&db, dict, i, &vec![7; 64 << 10]);
    }
    db.close().unwrap();
    drop(db);
    let image = Arc::new(MemoryDevice::clone(&device));
    let (db, _) = Kvdb::open(image, Arc::new(Simulated::new(2)), held(64 << 20)).unwrap();
    (0..count / 2).for_each(|i| assert_eq!(get(&db, dict, i), Some(vec![7; 64 << 10])));
    assert_eq!(get(&db, dict, count - 1), Some(vec![(count - 1) as u8; 64 << 10]));
    assert_eq!(get(&db, dict, count - 2), None);
}

/// Returns the number of values of 64 KiB that a small store takes, after a search for space has
/// found nothing.
fn taken_by_a_small_store(hold_values: usize) -> u32 {
    let open = OpenOptions { hold_values, ..held(512 << 20) };
    let (db, dict) = create(Arc::new(MemoryDevice::with_limit(24 * ZONE_SIZE)), open);
    db.flush().unwrap();
    (0..3).for_each(|_| db.reclaim());
    let mut count = 0;
    let refused = loop {
        match db.put(dict, &key(count), &vec![count as u8; 64 << 10], Durability::Buffered) {
            Ok(()) => count += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    db.sync_at_interval().unwrap();
    (0..count).for_each(|i| assert_eq!(get(&db, dict, i), Some(vec![i as u8; 64 << 10])));
    count
}

/// Zones are reserved for values that are held, so these must not count as data that needs space
/// once more. The last zone of a store is filled, too.
#[test]
fn a_small_store_takes_as_much_when_it_holds_values() {
    let (without, with) = (taken_by_a_small_store(0), taken_by_a_small_store(usize::MAX));
    assert!(with >= without / 4 * 3, "{with} values, {without} without the option");
}

/// Threads write, sync and flush while several callers load values and set others again.
#[test]
fn loads_and_overwrites_run_next_to_the_threads() {
    let open = OpenOptions { threads: true, ..held(16 << 20) };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let env = Arc::new(Machine::default());
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), env, options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..3u32 {
            let db = &db;
            scope.spawn(move || {
                for i in 0..1500 {
                    let at = caller * 10_000 + if caller == 0 { i % 50 } else { i };
                    put(db, dict, at, &vec![i as u8; 20_000]);
                    if i % 500 == 499 {
                        db.sync_at_interval().unwrap();
                    }
                }
            });
        }
    });
    db.sync().unwrap();
    (1450..1500).for_each(|i| assert_eq!(get(&db, dict, i % 50), Some(vec![i as u8; 20_000])));
    for caller in 1..3 {
        for i in 0..1500 {
            assert_eq!(get(&db, dict, caller * 10_000 + i), Some(vec![i as u8; 20_000]));
        }
    }
    db.close().unwrap();
}

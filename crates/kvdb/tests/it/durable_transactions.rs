//! Tests of durable transactions. A crash or a restart does not end them, and only their commit or
//! abort ends them permanently.

use std::sync::Arc;
use std::time::Duration;

use env::{Machine, Simulated};
use kvdb::{
    Batch, CreateOptions, DictionaryId, Durability, Error, Isolation, Kvdb, OpenOptions,
    Transaction, TransactionId, TransactionOptions,
};
use zones::{CrashDevice, Device, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose};

fn options() -> OpenOptions {
    OpenOptions {
        memory: 4 << 20,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..Default::default()
    }
}

struct World {
    db: Kvdb,
    d: DictionaryId,
    device: Arc<MemoryDevice>,
}

impl World {
    fn new() -> World {
        let device = Arc::new(MemoryDevice::new());
        let create = CreateOptions { open: options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
        let d = db.open_dictionary("d").unwrap().id();
        World { db, d, device }
    }

    fn begin(&self) -> Transaction {
        let (durable, in_place) = (true, true);
        let options = TransactionOptions {
            durable,
            in_place,
            label: "long work".into(),
            ..Default::default()
        };
        self.db.begin_with(options).unwrap()
    }

    fn put(&self, key: &str, value: &str) {
        self.db.put(self.d, key.as_bytes(), value.as_bytes(), Durability::Buffered).unwrap();
    }

    fn get(&self, key: &str) -> Option<String> {
        self.db.get(self.d, key.as_bytes()).unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap())
    }

    /// Returns the store as after a crash at this moment, with all synced data.
    fn crash(&self) -> World {
        self.db.sync().unwrap();
        let device = Arc::new((*self.device).clone());
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), options()).unwrap();
        World { db, d: self.d, device }
    }

    fn joined(&self, id: TransactionId) -> Transaction {
        self.db.transaction(id).unwrap()
    }

    /// No data of ended transactions is left.
    fn is_swept(&self) {
        let left =
            || self.db.stats().dictionaries.iter().filter(|d| !d.info.branch.is_empty()).count();
        while left() > 0 {
            self.db.step().unwrap();
            std::thread::yield_now();
        }
    }
}

fn value(t: &Transaction, d: DictionaryId, key: &str) -> Option<String> {
    t.get(d, key.as_bytes()).unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap())
}

#[test]
fn it_goes_on_after_a_crash_as_if_nothing_had_been() {
    let world = World::new();
    world.put("a", "0");
    world.put("b", "0");
    let t = world.begin();
    t.put(world.d, "a", "t").unwrap();
    world.put("b", "1");
    let mark = t.savepoint().unwrap();
    t.delete_range(world.d, "a", "z").unwrap();
    t.rollback_to(&mark).unwrap();
    t.put(world.d, "c", "t").unwrap();
    (0..5000).for_each(|i| t.put(world.d, format!("many{i:05}"), [7; 300]).unwrap());
    let world = world.crash();
    let list = world.db.transactions();
    assert_eq!(
        (list.len(), list[0].id, list[0].durable, list[0].label.as_str()),
        (1, t.id(), true, "long work")
    );
    let again = world.joined(t.id());
    assert!(again.is_in_place());
    assert_eq!(value(&again, world.d, "a").as_deref(), Some("t"));
    assert_eq!(
        value(&again, world.d, "b").as_deref(),
        Some("0"),
        "it reads what was there when it began"
    );
    assert_eq!(value(&again, world.d, "c").as_deref(), Some("t"));
    assert_eq!(again.view().unwrap().prefix(world.d, "many").count(), 5000);
    assert_eq!(
        (world.get("a").as_deref(), world.get("b").as_deref(), world.get("c")),
        (Some("0"), Some("1"), None)
    );
    again.put(world.d, "d", "later").unwrap();
    // The store crashes once more.
    let world = world.crash();
    let again = world.joined(t.id());
    assert_eq!(value(&again, world.d, "d").as_deref(), Some("later"));
    again.commit(Durability::Synced).unwrap();
    assert_eq!((world.get("a").as_deref(), world.get("d").as_deref()), (Some("t"), Some("later")));
    assert_eq!(world.db.view().prefix(world.d, "many").count(), 5000);
    let world = world.crash();
    assert!(world.db.transactions().is_empty(), "it has ended");
    assert_eq!(world.get("d").as_deref(), Some("later"));
    world.is_swept();
}

#[test]
fn it_goes_on_after_the_store_was_closed() {
    let world = World::new();
    let t = world.begin();
    t.put(world.d, "a", "t").unwrap();
    let other = world.db.begin(Isolation::Snapshot).unwrap();
    world.db.close().unwrap();
    assert!(matches!(t.get(world.d, b"a"), Err(Error::Locked(_))));
    let (id, gone, World { db, d, device }) = (t.id(), other.id(), world);
    drop((db, t, other));
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), options()).unwrap();
    let world = World { db, d, device };
    assert!(world.db.transaction(gone).is_err());
    assert!(world.db.begin(Isolation::Snapshot).unwrap().id() > id, "no number is given twice");
    assert_eq!(value(&world.joined(id), world.d, "a").as_deref(), Some("t"));
}

#[test]
fn an_abort_is_for_good() {
    let world = World::new();
    let (t, u) = (world.begin(), world.begin());
    t.put(world.d, "a", "t").unwrap();
    u.put(world.d, "a", "u").unwrap();
    t.commit(Durability::Buffered).unwrap();
    // The second transaction has a conflict, and the third one is aborted.
    assert!(matches!(u.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    let v = world.begin();
    v.put(world.d, "b", "v").unwrap();
    v.abort();
    let world = world.crash();
    assert!(world.db.transactions().is_empty());
    assert_eq!((world.get("a").as_deref(), world.get("b")), (Some("t"), None));
    world.is_swept();
}

#[test]
fn what_others_changed_before_the_crash_is_a_conflict_after_it() {
    let world = World::new();
    world.put("a", "0");
    world.put("m", "0");
    let ts = [world.begin(), world.begin(), world.begin(), world.begin()];
    ts[0].put(world.d, "a", "t").unwrap();
    ts[1].delete_range(world.d, "k", "n").unwrap();
    ts[2].put(world.d, "b", "fine").unwrap();
    ts[3].put(world.d, "x", "late").unwrap();
    world.put("a", "1");
    let mut batch = Batch::new();
    batch.delete(world.d, "m");
    world.db.commit(batch, Durability::Buffered).unwrap();
    let world = world.crash();
    let commit = |i: usize| world.joined(ts[i].id()).commit(Durability::Buffered);
    assert!(matches!(commit(0), Err(Error::Conflict { .. })));
    assert!(matches!(commit(1), Err(Error::Conflict { .. })));
    commit(2).unwrap();
    world.put("x", "1");
    assert!(matches!(commit(3), Err(Error::Conflict { .. })), "and what they change after it");
    assert_eq!(world.get("b").as_deref(), Some("fine"));
}

#[test]
fn a_serializable_one_cannot_be_durable() {
    let world = World::new();
    let options = TransactionOptions {
        durable: true,
        isolation: Isolation::Serializable,
        ..Default::default()
    };
    assert!(matches!(world.db.begin_with(options), Err(Error::Invalid(_))));
    assert!(world.db.transactions().is_empty());
}

#[test]
fn a_deletion_of_what_others_have_put_since_conflicts_after_a_crash_as_before_it() {
    type Change = fn(&Transaction, DictionaryId);
    let changes: [(&str, Change); 4] = [
        ("deleted", |t, d| t.delete(d, "k").unwrap()),
        ("range", |t, d| t.delete_range(d, "j", "l").unwrap()),
        ("put and deleted", |t, d| {
            t.put(d, "k", "t").unwrap();
            t.delete(d, "k").unwrap();
        }),
        ("put and range", |t, d| {
            t.put(d, "k", "t").unwrap();
            t.delete_range(d, "j", "l").unwrap();
        }),
    ];
    for (what, change) in changes {
        // The bits choose a crash before the actions of others, a crash after them, and an existing
        // key.
        for way in 0..8 {
            let mut world = World::new();
            if way & 4 != 0 {
                world.put("k", "0");
            }
            let id = {
                let t = world.begin();
                change(&t, world.d);
                t.put(world.d, "other", "t").unwrap();
                t.sync().unwrap();
                t.id()
            };
            if way & 1 != 0 {
                world = world.crash();
            }
            world.put("k", "others");
            if way & 2 != 0 {
                world = world.crash();
            }
            let committed = world.joined(id).commit(Durability::Synced);
            assert!(
                matches!(committed, Err(Error::Conflict { .. })),
                "{what}, way {way}: {committed:?}, and then {:?}",
                world.get("k")
            );
            assert_eq!(world.get("k").as_deref(), Some("others"), "{what}, way {way}");
        }
    }
}

#[test]
fn one_that_begins_is_not_taken_for_one_that_has_ended() {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { flush_interval: std::time::Duration::ZERO, ..options() };
    let db = Kvdb::create(
        device,
        Arc::new(Machine::default()),
        CreateOptions { open, ..Default::default() },
    )
    .unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Every step sweeps.
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                db.step().unwrap();
            }
        });
        for i in 0..50 {
            let options = TransactionOptions { durable: true, ..Default::default() };
            let t = db.begin_with(options).unwrap();
            let wrote = t.put(d, format!("{i}"), "t").and_then(|()| t.commit(Durability::Buffered));
            done.store(wrote.is_err() || i == 49, std::sync::atomic::Ordering::Relaxed);
            wrote.unwrap();
        }
    });
    assert_eq!(db.view().iter(d).count(), 50);
}

#[test]
fn what_it_reads_is_kept_by_nothing_that_others_see_or_drop() {
    let world = World::new();
    world.put("a", "0");
    let t = world.begin();
    assert!(world.db.snapshots().is_empty() && world.db.branches().is_empty());
    let name = format!(".transaction-{}", t.id());
    let gone = |result: kvdb::Result<()>| {
        assert!(matches!(result, Err(Error::NoSnapshot(_))), "{result:?}")
    };
    gone(world.db.drop_snapshot(&name));
    gone(world.db.rollback(&name));
    gone(world.db.clone_snapshot(&name, "branch"));
    gone(world.db.open_snapshot(&name).map(drop));
    world.put("a", "1");
    let world = world.crash();
    let again = world.joined(t.id());
    assert_eq!(value(&again, world.d, "a").as_deref(), Some("0"));
    again.abort();
    world.is_swept();
}

/// A full store has no space, when it is opened, for a run of the changes of a transaction.
/// Transactions that fit into memory stay open.
#[test]
fn a_full_store_takes_up_what_a_transaction_may_have_in_memory() {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { memory: 64 << 20, ..options() };
    let capacity = Some(24 * zones::ZONE_SIZE);
    let create =
        CreateOptions { capacity, reserve_zones: 4, open: open.clone(), ..Default::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    let w = World { db, d, device };
    let t = w.begin();
    // Together they are more than is written out as a run, but nothing comes after them.
    let mut changes = Batch::new();
    (0..3000u32).for_each(|i| changes.put(d, i.to_be_bytes().to_vec(), vec![7; 1000]));
    t.apply(changes).unwrap();
    let mut i = 0u32;
    for len in [100_000, 1000] {
        let full = loop {
            let mut batch = Batch::new();
            batch.put(d, [&b"fill"[..], &i.to_be_bytes()].concat(), vec![i as u8; len]);
            match w.db.commit(batch, Durability::Buffered) {
                Ok(()) => i += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full}");
    }
    let device = Arc::new(MemoryDevice::new());
    w.db.checkpoint_to(device.clone()).unwrap();
    let (db, _) = Kvdb::open(device, Arc::new(Machine::default()), open).unwrap();
    let info = db.transactions().into_iter().find(|info| info.id == t.id()).expect("it goes on");
    assert_eq!((info.changes, info.run_bytes), (3000, 0));
}

/// Damages every place of the device that has `bytes`.
fn damage(device: &MemoryDevice, bytes: &[u8]) {
    let mut all = vec![0; device.len().unwrap() as usize];
    device.read_at(Purpose::Pages, 0, &mut all).unwrap();
    let places: Vec<usize> =
        (0..all.len() - bytes.len()).filter(|&at| all[at..].starts_with(bytes)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| device.write_at(Purpose::Pages, at as u64, b"\0").unwrap());
}

/// This loses one transaction and not the store.
#[test]
fn a_log_that_cannot_be_read_does_not_keep_the_store_from_being_opened() {
    let world = World::new();
    world.put("a", "0");
    let t = world.begin();
    t.put(world.d, "a", "t").unwrap();
    world.db.flush().unwrap();
    damage(&world.device, b"long work");
    let again = world.crash();
    assert!(again.db.transactions().is_empty(), "how it began is lost");
    assert_eq!(again.get("a").as_deref(), Some("0"));
    let begun = again.begin();
    assert!(begun.id() > t.id(), "its number is not given again");
    begun.put(again.d, "a", "1").unwrap();
    begun.commit(Durability::Synced).unwrap();
    again.is_swept();
    assert_eq!(again.get("a").as_deref(), Some("1"));
}

/// A failed attempt to roll back loses nothing.
#[test]
fn savepoints_stay_when_the_transaction_cannot_go_back() {
    let world = World::new();
    let t = world.begin();
    let first = t.savepoint().unwrap();
    t.put(world.d, "a", "1").unwrap();
    let second = t.savepoint().unwrap();
    world.db.halt("the disk is gone");
    let outcome = t.rollback_to(&first);
    assert!(matches!(outcome, Err(Error::ReadOnly(_))), "{outcome:?}");
    let outcome = t.rollback_to(&second);
    assert!(matches!(outcome, Err(Error::ReadOnly(_))), "{outcome:?}");
}

/// Commits are on disk within the interval, even if other work at the same time fails.
#[test]
fn commits_are_synced_at_the_interval_though_a_log_cannot_be_read() {
    let world = World::new();
    world.begin().put(world.d, "a", "t").unwrap();
    world.db.flush().unwrap();
    world.db.sync().unwrap();
    let memory = Arc::new((*world.device).clone());
    let device = Arc::new(FaultDevice::new(memory.clone(), 1));
    device.inject(Fault::always(Operation::Read, FaultKind::Error).of(Purpose::Tuples));
    let env = Arc::new(Simulated::new(1));
    let (db, _) = Kvdb::open(device.clone(), env.clone(), options()).unwrap();
    assert!(db.transactions().is_empty(), "it cannot go on now");
    db.put(world.d, b"k", b"v", Durability::Buffered).unwrap();
    env.advance(Duration::from_secs(2));
    // The step may fail.
    let _ = db.step();
    let image = Arc::new((*memory).clone());
    let (again, _) = Kvdb::open(image, env, options()).unwrap();
    assert_eq!(again.get(world.d, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(again.transactions().len(), 1, "it goes on when its log can be read");
}

/// The owner's note of a rollback says that it was done, so a crash must not come between them.
#[test]
fn a_rollback_and_the_batch_that_is_applied_with_it_survive_a_crash_together() {
    let (mut neither, mut both) = (0, 0);
    let note = |text: &str| text.repeat(8 << 10);
    for operations in 0.. {
        let device = Arc::new(CrashDevice::new());
        let create = CreateOptions { open: options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
        let d = db.open_dictionary("d").unwrap().id();
        let options = || TransactionOptions { durable: true, ..Default::default() };
        let t = db.begin_with(options()).unwrap();
        let savepoint = t.savepoint().unwrap();
        t.put(d, "a", "1").unwrap();
        t.put(d, "note", note("1")).unwrap();
        t.sync().unwrap();
        device.cut_power_after(operations);
        let mut batch = Batch::new();
        batch.put(d, "note", note("2"));
        let done = t.rollback_and_apply(&savepoint, batch).and_then(|()| t.sync());
        let is_over = !device.is_dead();
        for seed in 0..20 {
            let image = Arc::new(device.crash(seed));
            let (again, _) =
                Kvdb::open(image, Arc::new(Machine::default()), self::options()).unwrap();
            let t = again.transaction(t.id()).unwrap();
            match (value(&t, d, "a").as_deref(), value(&t, d, "note").unwrap()) {
                (Some("1"), noted) if noted == note("1") => neither += 1,
                (None, noted) if noted == note("2") => both += 1,
                (a, noted) => panic!("after {operations} operations: {a:?}, {}", &noted[..1]),
            }
        }
        if is_over {
            done.unwrap();
            break;
        }
    }
    assert!(neither > 0 && both >= 20, "{neither} {both}");
}

//! Tests of snapshots, branches and rollbacks across flushes, merges, reopenings and crashes.
//! Snapshots keep their state, branches diverge, and a rollback restores an old state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{Batch, DictionaryOptions, Durability, Error, Kvdb, OpenOptions, View};
use zones::{CrashDevice, MemoryDevice, Purpose, ZONE_SIZE};

type Tuples = BTreeMap<Vec<u8>, Vec<u8>>;

/// The content of a state of a store, by the names of its dictionaries.
type ManifestState = BTreeMap<String, Tuples>;

fn of_view(view: &View) -> ManifestState {
    let tuples = |id| {
        view.scan(id, b"", b"", usize::MAX)
            .unwrap()
            .into_iter()
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect()
    };
    view.dictionaries().into_iter().map(|d| (d.name, tuples(d.id))).collect()
}

fn of_branch(db: &Kvdb, branch: &str) -> ManifestState {
    let view = db.view();
    let tuples = |id| {
        view.scan(id, b"", b"", usize::MAX)
            .unwrap()
            .into_iter()
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect()
    };
    db.dictionaries_in(branch).into_iter().map(|d| (d.name, tuples(d.id))).collect()
}

fn of_snapshot(db: &Kvdb, name: &str) -> ManifestState {
    of_view(&db.open_snapshot(name).unwrap())
}

fn store() -> Kvdb {
    create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), small()).unwrap()
}

fn reopen(db: Kvdb, device: &Arc<MemoryDevice>) -> Kvdb {
    // Each world has another seed, since random numbers must not repeat.
    let seed = db.stats().io.total().write_bytes;
    drop(db);
    Kvdb::open(device.clone(), Arc::new(Simulated::new(seed)), small()).unwrap().0
}

fn names(db: &Kvdb) -> Vec<String> {
    let mut names: Vec<_> = db.snapshots().into_iter().map(|s| s.name).collect();
    names.sort();
    names
}

#[test]
fn a_snapshot_is_read_at_once_and_for_ever() {
    let device = Arc::new(MemoryDevice::new());
    let mut db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    db.put(d, b"k", b"1", Durability::Buffered).unwrap();
    db.snapshot("one").unwrap();
    db.put(d, b"k", b"2", Durability::Buffered).unwrap();
    db.put(d, b"l", b"2", Durability::Buffered).unwrap();
    let read = |db: &Kvdb| {
        let view = db.open_snapshot("one").unwrap();
        let found = (view.get(d, b"k").unwrap(), view.get(d, b"l").unwrap());
        assert_eq!((found.0.as_deref(), found.1), (Some(&b"1"[..]), None));
    };
    read(&db);
    db.flush().unwrap();
    read(&db);
    db.compact(d).unwrap();
    read(&db);
    for _ in 0..3 {
        db = reopen(db, &device);
        read(&db);
        assert_eq!(db.get(d, b"k").unwrap().unwrap(), "2");
    }
    let held = db.open_snapshot("one").unwrap();
    db.drop_snapshot("one").unwrap();
    assert!(matches!(db.open_snapshot("one"), Err(Error::NoSnapshot(_))));
    assert_eq!(held.get(d, b"k").unwrap().unwrap(), "1", "a view outlives the snapshot");
    drop(held);
    db = reopen(db, &device);
    assert!(db.snapshots().is_empty());
}

#[test]
fn names_are_checked_and_unique() {
    let db = store();
    let long = ["x".repeat(256), ["x"; 86].join("/")];
    let parts = ["/a", "a/", "a//b", "a/../b", "a/.b", "/"];
    let whole = ["", ".", "..", ".hidden", "a\nb", "a/b\0", &long[0], &long[1]];
    for bad in whole.into_iter().chain(parts) {
        assert!(matches!(db.snapshot(bad), Err(Error::Invalid(_))), "{bad:?}");
        assert!(matches!(db.create_branch(bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    db.snapshot("größe 1").unwrap();
    db.snapshot(&["x"; 64].join("/")).unwrap();
    db.create_branch("a/b").unwrap();
    assert!(db.has_branch("a/b") && !db.has_branch("a"));
    assert!(matches!(db.snapshot("größe 1"), Err(Error::Exists(_))));
    assert!(matches!(
        db.snapshot_of("nowhere", "x", Durability::Buffered),
        Err(Error::NoBranch(_))
    ));
    assert!(matches!(db.drop_snapshot("x"), Err(Error::NoSnapshot(_))));
    assert!(matches!(db.rollback("x"), Err(Error::NoSnapshot(_))));
    assert!(matches!(db.clone_snapshot("x", "y"), Err(Error::NoSnapshot(_))));
    assert!(matches!(db.drop_branch("y"), Err(Error::NoBranch(_))));
    db.clone_snapshot("größe 1", "y").unwrap();
    assert!(matches!(db.clone_snapshot("größe 1", "y"), Err(Error::Exists(_))));
    assert!(matches!(db.create_branch("y"), Err(Error::Exists(_))));
    assert!(matches!(
        db.create_dictionary_in("z", "d", DictionaryOptions::default()),
        Err(Error::NoBranch(_))
    ));
}

#[test]
fn the_list_is_in_the_order_of_creation_while_the_clock_stands_still() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    let made = ["third letter", "b", "a"];
    made.iter().for_each(|name| db.snapshot(name).unwrap());
    let listed = |db: &Kvdb| db.snapshots().into_iter().map(|s| s.name).collect::<Vec<_>>();
    assert_eq!(listed(&db), made);
    db.sync().unwrap();
    assert_eq!(listed(&reopen(db, &device)), made);
}

#[test]
fn a_branch_shares_everything_and_goes_its_own_way() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    let main = db.open_dictionary("d").unwrap();
    for i in 0..3000u32 {
        main.insert(i.to_be_bytes().to_vec(), vec![1; 300]).unwrap();
    }
    db.snapshot("s").unwrap();
    db.flush().unwrap();
    let before = db.stats().zones_held;
    for i in 0..20 {
        db.clone_snapshot("s", &format!("b{i}")).unwrap();
    }
    assert_eq!(db.stats().zones_held, before, "nothing was copied");
    let branch = db.open_dictionary_in("b7", "d").unwrap();
    assert_ne!(branch.id(), main.id());
    branch.remove_range(100u32.to_be_bytes()..).unwrap();
    branch.insert("new", "here").unwrap();
    db.open_dictionary_in("b7", "other").unwrap().insert("k", "v").unwrap();
    main.insert("new", "there").unwrap();
    assert_eq!((branch.iter().count(), main.iter().count()), (101, 3001));
    assert_eq!((db.dictionaries().len(), db.dictionaries_in("b7").len()), (1, 2));
    db.snapshot_of("b7", "t", Durability::Buffered).unwrap();
    branch.insert("newer", "here").unwrap();
    db.compact(branch.id()).unwrap();
    db.drop_snapshot("s").unwrap();
    let db = reopen(db, &device);
    let of = |branch: &str| db.branches().into_iter().find(|b| b.name == branch).unwrap().snapshot;
    assert_eq!((db.branches().len(), of("b7").as_deref()), (20, Some("s")));
    assert_eq!(of_branch(&db, "b7")["d"].len(), 102);
    assert_eq!(of_branch(&db, "b8")["d"].len(), 3000);
    assert_eq!(of_snapshot(&db, "t")["d"].len(), 101);
    assert_eq!(of_snapshot(&db, "t")["other"].len(), 1);
    for b in db.branches() {
        db.drop_branch(&b.name).unwrap();
    }
    assert!(db.dictionaries_in("b7").is_empty());
    let db = reopen(db, &device);
    assert!(db.branches().is_empty());
    assert_eq!(of_snapshot(&db, "t")["d"].len(), 101, "a snapshot outlives its branch");
    db.rollback("t").unwrap();
    assert_eq!(of_branch(&db, "b7")["d"].len(), 101, "and brings it back");
    drop(db);
    let report = kvdb::check(device, &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!(report.snapshots, 1);
}

#[test]
fn a_rollback_undoes_everything_since_and_nothing_else() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    let (a, b) = (db.open_dictionary("a").unwrap(), db.open_dictionary("b").unwrap());
    a.insert("k", "1").unwrap();
    b.insert("k", "1").unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "other").unwrap();
    let other = db.open_dictionary_in("other", "a").unwrap();
    let old = db.view();
    a.insert("k", "2").unwrap();
    a.insert("large", vec![7; 100_000]).unwrap();
    other.insert("k", "3").unwrap();
    db.drop_dictionary(b.id()).unwrap();
    db.open_dictionary("c").unwrap().insert("k", "2").unwrap();
    // Partly in runs, partly in the journal alone.
    db.flush().unwrap();
    a.insert("k", "4").unwrap();
    db.sync().unwrap();
    db.rollback("s").unwrap();
    let now = |db: &Kvdb| {
        assert_eq!(of_branch(db, ""), of_snapshot(db, "s"));
        assert_eq!(of_branch(db, "other")["a"][&b"k"[..]], b"3");
        assert_eq!((db.dictionary("c"), db.dictionary("b")), (None, Some(b.id())));
    };
    now(&db);
    assert_eq!(old.get(a.id(), b"k").unwrap().unwrap(), "1");
    // Later changes count, even if they are replayed together with void ones.
    a.insert("l", "5").unwrap();
    db.sync().unwrap();
    let db = {
        let image = device.as_ref().clone();
        drop(db);
        Kvdb::open(Arc::new(image), Arc::new(Simulated::new(3)), small()).unwrap().0
    };
    assert_eq!(
        of_branch(&db, "")["a"],
        Tuples::from([(b"k".to_vec(), b"1".to_vec()), (b"l".to_vec(), b"5".to_vec())])
    );
    db.rollback("s").unwrap();
    now(&db);
}

#[test]
fn a_transaction_that_began_before_a_rollback_cannot_commit_over_it() {
    let db = store();
    let (d, e) = (db.open_dictionary("d").unwrap(), db.open_dictionary("e").unwrap());
    d.insert("k", "1").unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "b").unwrap();
    let other = db.dictionary_in("b", "e").unwrap();
    let [hit, spared] = [(); 2].map(|()| db.begin(kvdb::Isolation::Snapshot).unwrap());
    hit.put(e.id(), "x", "1").unwrap();
    spared.put(other, "x", "1").unwrap();
    db.rollback("s").unwrap();
    assert!(matches!(hit.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    spared.commit(Durability::Buffered).unwrap();
    let later = db.begin(kvdb::Isolation::Snapshot).unwrap();
    later.put(e.id(), "y", "1").unwrap();
    later.commit(Durability::Buffered).unwrap();
    assert_eq!(
        (db.get(e.id(), b"x").unwrap(), db.get(e.id(), b"y").unwrap().is_some()),
        (None, true)
    );
    assert!(db.get(other, b"x").unwrap().is_some());
}

#[test]
fn a_checkpoint_has_snapshots_and_branches_too() {
    let db = store();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "1").unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "b").unwrap();
    db.open_dictionary_in("b", "d").unwrap().insert("k", "2").unwrap();
    db.snapshot_of("b", "t", Durability::Buffered).unwrap();
    d.insert("k", "3").unwrap();
    let device = Arc::new(MemoryDevice::new());
    db.checkpoint_to(device.clone()).unwrap();
    let report = kvdb::check(device.clone(), &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
    let (copy, _) = Kvdb::open(device, Arc::new(Simulated::new(2)), small()).unwrap();
    assert_eq!(names(&copy), ["s", "t"]);
    let value = |state: ManifestState| state["d"][&b"k"[..]].clone();
    assert_eq!(["s", "t"].map(|s| value(of_snapshot(&copy, s))), [b"1", b"2"]);
    assert_eq!(["", "b"].map(|b| value(of_branch(&copy, b))), [b"3", b"2"]);
}

#[test]
fn the_list_tells_what_dropping_gives_back() {
    let device = Arc::new(MemoryDevice::with_limit(20 << 23));
    let db = create(device, Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    for i in 0..3000u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![1; 4096]).unwrap();
    }
    db.snapshot("first").unwrap();
    db.flush().unwrap();
    d.remove_range(0u32.to_be_bytes()..).unwrap();
    db.compact(d.id()).unwrap();
    db.snapshot("second").unwrap();
    let all = db.snapshots();
    let bytes = |name: &str| {
        all.iter()
            .find(|s| s.name == name)
            .map(|s| (s.bytes > 3000 * 4096, s.unique_bytes >= 8 << 20))
            .unwrap()
    };
    assert_eq!((bytes("first"), bytes("second")), ((true, true), (false, false)));
    let free = db.space().free;
    db.drop_snapshot("first").unwrap();
    assert!(db.space().free >= free + zones::ZONE_SIZE);
    assert!(db.snapshots().iter().all(|s| s.unique_bytes == 0));
}

#[test]
fn a_view_tells_of_one_dictionary_what_its_list_tells() {
    let db = store();
    db.open_dictionary("d").unwrap().insert("k", "1").unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "b").unwrap();
    let e = db.create_dictionary_in("b", "e", DictionaryOptions::default()).unwrap();
    db.snapshot_of("b", "t", Durability::Buffered).unwrap();
    let [s, t] = ["s", "t"].map(|name| db.open_snapshot(name).unwrap());
    for (view, count) in [(&db.view(), 3), (&s, 1), (&t, 2)] {
        let all = view.dictionaries();
        assert_eq!(all.len(), count);
        for info in all {
            assert_eq!(view.dictionary_info(info.id), Some(info));
        }
    }
    assert_eq!(s.dictionary_info(e), None);
    assert_eq!(t.dictionary_info(e).unwrap().branch, "", "as of the main branch");
}

/// A store of many clones would list the same repeatedly.
#[test]
fn the_statistics_leave_out_the_dictionaries_of_clones_that_have_not_changed() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    for name in ["d", "e"] {
        db.open_dictionary(name).unwrap().insert("k", "1").unwrap();
    }
    db.snapshot("s").unwrap();
    (0..3).for_each(|n| db.clone_snapshot("s", &format!("b{n}")).unwrap());
    let check = |db: &Kvdb, of_clones: &[(&str, &str)], unchanged: u64, when: &str| {
        let stats = db.stats();
        let all = stats.dictionaries.iter().map(|d| (&*d.info.branch, &*d.info.name));
        let all: Vec<(&str, &str)> = all.collect();
        let expected = [&[("", "d"), ("", "e")][..], of_clones].concat();
        assert_eq!((all, stats.unchanged_dictionaries), (expected, unchanged), "{when}");
    };
    check(&db, &[], 6, "cloned");
    let d = db.dictionary_in("b1", "d").unwrap();
    db.put(d, b"k", b"2", Durability::Buffered).unwrap();
    check(&db, &[("b1", "d")], 5, "one has something in memory");
    db.flush().unwrap();
    check(&db, &[("b1", "d")], 5, "it has a run of its own");
    db.create_dictionary_in("b2", "f", DictionaryOptions::default()).unwrap();
    check(&db, &[("b1", "d"), ("b2", "f")], 5, "the snapshot has none of this name");
    let db = reopen(db, &device);
    check(&db, &[("b1", "d"), ("b2", "f")], 5, "opened again");
}

/// Long before a merge shows which zones only a snapshot keeps.
#[test]
fn the_list_tells_what_a_snapshot_holds_before_any_merge() {
    let options = OpenOptions { memory: 64 << 20, ..small() };
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), options).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let value = |fill: u8| vec![fill; 16 << 10];
    let key = |i: u32| i.to_be_bytes().to_vec();
    let alone = |name: &str| {
        let all = db.snapshots();
        all.iter().find(|s| s.name == name).unwrap().unique_bytes
    };
    let whole = 3200 * (16 << 10);
    (0..3200).for_each(|i| d.insert(key(i), value(1)).unwrap());
    db.flush().unwrap();
    db.snapshot("first").unwrap();
    assert_eq!(alone("first"), 0, "the store has all of it");
    // Half of it is deleted at once, a quarter is overwritten.
    d.remove_range(key(0)..key(1600)).unwrap();
    (1600..2400).for_each(|i| d.insert(key(i), value(2)).unwrap());
    let about = |bytes: u64| bytes / 10 * 9..bytes / 10 * 11;
    assert!(about(whole / 4 * 3).contains(&alone("first")), "{}", alone("first"));
    db.flush().unwrap();
    assert!(about(whole / 4 * 3).contains(&alone("first")), "flushed: {}", alone("first"));
    // Dropping one snapshot does not free data that both have; dropping the second frees its own.
    db.snapshot("second").unwrap();
    d.remove_range(key(2400)..).unwrap();
    assert!(about(whole / 4 * 3).contains(&alone("first")), "{}", alone("first"));
    assert!(alone("second") < whole / 10, "{}", alone("second"));
    // A clone of the clone has everything that the first one has.
    db.clone_snapshot("first", "clone").unwrap();
    assert_eq!(alone("first"), 0);
}

/// A merge between the snapshot and the deletion has moved the values by reference: the runs of the
/// snapshot are its own, but their zones are still shared.
#[test]
fn the_list_tells_what_a_snapshot_holds_after_a_merge_has_moved_it() {
    let options = OpenOptions { memory: 64 << 20, ..small() };
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), options).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let key = |i: u32| i.to_be_bytes().to_vec();
    let alone = || db.snapshots()[0].unique_bytes;
    let put = |numbers: std::ops::Range<u32>, fill: u8| {
        numbers.for_each(|i| d.insert(key(i), vec![fill; 256 << 10]).unwrap());
        db.flush().unwrap();
    };
    let whole = 200 * (256 << 10);
    let about = |bytes: u64| bytes / 10 * 8..bytes / 10 * 12;
    put(0..100, 1);
    put(100..200, 1);
    db.snapshot("first").unwrap();
    let moved = db.stats().merged_bytes;
    db.compact(d.id()).unwrap();
    assert!(db.stats().merged_bytes - moved < whole / 10, "the values stay where they are");
    assert!(alone() < whole / 10, "the store has all of it: {}", alone());
    // Half of it is deleted one by one, a quarter at once.
    (0..100).for_each(|i| d.remove(key(i)).unwrap());
    assert!(about(whole / 2).contains(&alone()), "deleted: {}", alone());
    d.remove_range(key(100)..key(150)).unwrap();
    assert!(about(whole / 4 * 3).contains(&alone()), "deleted at once: {}", alone());
    db.flush().unwrap();
    assert!(about(whole / 4 * 3).contains(&alone()), "flushed: {}", alone());
    db.compact(d.id()).unwrap();
    assert!(about(whole / 4 * 3).contains(&alone()), "merged again: {}", alone());
}

/// A merge between the two snapshots has moved the values by reference.
#[test]
fn of_two_snapshots_neither_holds_alone_what_they_have_in_different_runs() {
    let options = OpenOptions { memory: 64 << 20, ..small() };
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), options).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let key = |i: u32| i.to_be_bytes().to_vec();
    let whole = 200 * (256 << 10);
    for numbers in [0..100, 100..200] {
        numbers.for_each(|i| d.insert(key(i), vec![1; 256 << 10]).unwrap());
        db.flush().unwrap();
    }
    db.snapshot("first").unwrap();
    db.compact(d.id()).unwrap();
    db.snapshot("second").unwrap();
    d.remove_range(key(0)..).unwrap();
    let alone = || db.snapshots().iter().map(|s| s.unique_bytes).collect::<Vec<u64>>();
    assert!(alone().iter().all(|bytes| *bytes < whole / 5), "{:?}", alone());
    db.drop_snapshot("first").unwrap();
    assert!(alone()[0] > whole / 2, "{:?}", alone());
}

/// A model of a store with branches and snapshots.
#[derive(Clone, Default)]
struct World {
    branches: BTreeMap<String, ManifestState>,
    snapshots: BTreeMap<String, (String, ManifestState)>,
}

fn found(db: &Kvdb) -> World {
    let mut world = World::default();
    for name in std::iter::once(String::new()).chain(db.branches().into_iter().map(|b| b.name)) {
        let state = of_branch(db, &name);
        world.branches.insert(name, state);
    }
    for s in db.snapshots() {
        let state = of_snapshot(db, &s.name);
        world.snapshots.insert(s.name, (s.branch, state));
    }
    world
}

fn same(a: &World, b: &World) -> bool {
    a.branches == b.branches && a.snapshots == b.snapshots
}

/// One random step on the store and the model; the steps that must be durable when they return say
/// so.
fn step(db: &Kvdb, world: &mut World, random: &mut Random, count: &mut u32) -> kvdb::Result<bool> {
    let pick = |random: &mut Random, names: Vec<String>| {
        let n = names.len() as u64;
        (n > 0).then(|| names[random.below(n) as usize].clone())
    };
    let branch = pick(random, world.branches.keys().cloned().collect()).unwrap_or_default();
    let snapshot = pick(random, world.snapshots.keys().cloned().collect());
    *count += 1;
    let what = random.below(40);
    if what >= 28 {
        // Such steps are durable by themselves, and must not be so without the commits before them.
        db.sync()?;
    }
    match what {
        0..=24 => {
            let mut batch = Batch::new();
            let dicts = db.dictionaries_in(&branch);
            let state = world.branches.get_mut(&branch).unwrap();
            for _ in 0..1 + random.below(20) {
                let Some(d) = pick(random, dicts.iter().map(|d| d.name.clone()).collect()) else {
                    break;
                };
                let (id, tuples) =
                    (db.dictionary_in(&branch, &d).unwrap(), state.get_mut(&d).unwrap());
                let key = format!("key{:03}", random.below(400)).into_bytes();
                match random.below(8) {
                    0 => {
                        tuples.remove(&key);
                        batch.delete(id, key);
                    }
                    1 if random.one_in(4) => {
                        let end = format!("key{:03}", random.below(400)).into_bytes();
                        tuples.retain(|k, _| *k < key || *k >= end);
                        batch.delete_range(id, key, end);
                    }
                    n => {
                        let len = if n == 7 { random.below(9000) } else { random.below(300) };
                        let value = bytes(random, len as usize);
                        tuples.insert(key.clone(), value.clone());
                        batch.put(id, key, value);
                    }
                }
            }
            db.commit(batch, Durability::Buffered)?;
            Ok(false)
        }
        25..=27 => db.step().map(|_| false),
        28 => db.flush().map(|()| true),
        29 => {
            for d in db.dictionaries_in(&branch) {
                db.compact(d.id)?;
            }
            Ok(true)
        }
        30 => {
            let name = format!("d{}", random.below(4));
            world.branches.get_mut(&branch).unwrap().entry(name.clone()).or_default();
            db.create_dictionary_in(&branch, &name, DictionaryOptions::default())?;
            Ok(true)
        }
        31 => {
            let Some(d) = pick(random, world.branches[&branch].keys().cloned().collect()) else {
                return Ok(false);
            };
            world.branches.get_mut(&branch).unwrap().remove(&d);
            db.drop_dictionary(db.dictionary_in(&branch, &d).unwrap())?;
            Ok(true)
        }
        32..=34 => {
            let name = format!("s{count}");
            let state = world.branches[&branch].clone();
            world.snapshots.insert(name.clone(), (branch.clone(), state));
            let durability =
                if random.one_in(2) { Durability::Synced } else { Durability::Buffered };
            db.snapshot_of(&branch, &name, durability)?;
            Ok(durability == Durability::Synced)
        }
        35 => {
            let Some(s) = snapshot else { return Ok(false) };
            world.snapshots.remove(&s);
            db.drop_snapshot(&s)?;
            Ok(true)
        }
        36 if world.branches.len() < 4 => {
            let Some(s) = snapshot else { return Ok(false) };
            let name = format!("b{count}");
            world.branches.insert(name.clone(), world.snapshots[&s].1.clone());
            db.clone_snapshot(&s, &name)?;
            Ok(true)
        }
        37 => {
            let Some(s) = snapshot else { return Ok(false) };
            let (of, state) = world.snapshots[&s].clone();
            world.branches.insert(of, state);
            db.rollback(&s)?;
            Ok(true)
        }
        38 if !branch.is_empty() && random.one_in(2) => {
            world.branches.remove(&branch);
            db.drop_branch(&branch)?;
            Ok(true)
        }
        _ => db.sync().map(|()| true),
    }
}

fn options(random: &mut Random) -> OpenOptions {
    OpenOptions {
        memory: (1 << 20) << random.below(2),
        flush_on_close: random.one_in(2),
        merge_part: 16 << 10 << random.below(4),
        ..small()
    }
}

#[test]
fn random_histories_match_the_model() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(seed)));
        let mut db = create(device.clone(), env.clone(), options(&mut random)).unwrap();
        let mut world = World::default();
        world.branches.insert(String::new(), ManifestState::new());
        let mut count = 0;
        for _ in 0..6 {
            for _ in 0..120 {
                step(&db, &mut world, &mut random, &mut count)
                    .unwrap_or_else(|e| panic!("seed {seed}, step {count}: {e}"));
                if random.one_in(40) {
                    assert!(same(&found(&db), &world), "seed {seed}, step {count}");
                }
            }
            assert!(same(&found(&db), &world), "seed {seed}, step {count}");
            drop(db);
            let report = kvdb::check(device.clone(), &mut |_, _| {});
            assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
            db = Kvdb::open(device.clone(), env.clone(), options(&mut random)).unwrap().0;
            assert!(same(&found(&db), &world), "seed {seed}, step {count}, opened again");
        }
    }
}

/// `KVFS_SEEDS=n` runs n seeds instead of the usual few.
#[test]
fn power_cuts_leave_some_state_between_two_steps() {
    let seeds = std::env::var("KVFS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let env = Arc::new(Simulated::new(seed));
        let mut image = {
            let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
            drop(create(device.clone(), env.clone(), options(&mut random)).unwrap());
            device.crash(seed)
        };
        let mut world = World::default();
        world.branches.insert(String::new(), ManifestState::new());
        // The states that may be found. The first one is certain.
        let mut possible = vec![world];
        let mut count = 0;
        for life in 0..5u64 {
            let device = Arc::new(CrashDevice::over(image.clone()));
            let within = if random.one_in(8) { 8 } else { 500 };
            device.cut_power_after(random.below(within));
            match Kvdb::open(device.clone(), env.clone(), options(&mut random)) {
                Err(e) => {
                    assert!(device.is_dead(), "seed {seed}, life {life}: opening failed: {e}")
                }
                Ok((db, _)) => {
                    let is = found(&db);
                    let at = possible.iter().rposition(|w| same(w, &is));
                    let at = at.unwrap_or_else(|| {
                        panic!(
                            "seed {seed}, life {life}: none of {} possible states",
                            possible.len()
                        )
                    });
                    possible = vec![possible.swap_remove(at)];
                    for _ in 0..1 + random.below(150) {
                        let mut next = possible[possible.len() - 1].clone();
                        let done = step(&db, &mut next, &mut random, &mut count);
                        possible.push(next);
                        match done {
                            Ok(true) => drop(possible.drain(..possible.len() - 1)),
                            Ok(false) => {}
                            Err(e) => {
                                assert!(
                                    device.is_dead(),
                                    "seed {seed}, life {life}, step {count}: {e}"
                                );
                                break;
                            }
                        }
                    }
                }
            }
            image = device.crash(seed ^ (life << 32));
            let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
            assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);
        }
        let (db, _) = Kvdb::open(Arc::new(image), env, small()).unwrap();
        let is = found(&db);
        assert!(
            possible.iter().any(|w| same(w, &is)),
            "seed {seed}: none of {} possible states",
            possible.len()
        );
    }
}

#[test]
fn what_is_committed_after_a_rollback_and_a_crash_is_not_taken_for_what_the_rollback_undid() {
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let options = OpenOptions { flush_on_close: false, ..small() };
    let db = create(device.clone(), Arc::new(Simulated::new(1)), options.clone()).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    db.put(d, b"k", b"before", Durability::Synced).unwrap();
    db.snapshot("s").unwrap();
    // The rollback is on disk, and the commits before it never were.
    (0..5u8).for_each(|i| db.put(d, &[i], b"undone", Durability::Buffered).unwrap());
    db.rollback("s").unwrap();
    let mut image = device.durable();
    drop(db);
    for life in 0..3u64 {
        let device = Arc::new(CrashDevice::over(image));
        let (db, _) =
            Kvdb::open(device.clone(), Arc::new(Simulated::new(2 + life)), options.clone())
                .unwrap();
        assert_eq!(
            db.view().scan(d, b"", b"", usize::MAX).unwrap().len() as u64,
            1 + life,
            "life {life}"
        );
        db.put(d, format!("new{life}").as_bytes(), b"after", Durability::Synced).unwrap();
        image = device.durable();
    }
}

#[test]
fn opening_a_store_reads_a_list_of_its_snapshots_and_nothing_that_is_in_them() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), OpenOptions::default()).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    for i in 0..2000u32 {
        db.put(d, &i.to_be_bytes(), &[1; 100], Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    for round in 0..1000u32 {
        for i in 0..10u32 {
            db.put(
                d,
                &(round * 7 + i * 200).rem_euclid(2000).to_be_bytes(),
                &round.to_be_bytes(),
                Durability::Buffered,
            )
            .unwrap();
        }
        db.snapshot(&format!("{round}")).unwrap();
        while round % 10 == 0 && db.step().unwrap() {}
    }
    let before = of_snapshot(&db, "500");
    db.close().unwrap();
    // Once as the log of edits was left, and once from the checkpoint that this opening made of it.
    for _ in 0..2 {
        let (db, recovery) =
            Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), OpenOptions::default())
                .unwrap();
        let io = db.stats().io;
        assert_eq!(
            [Purpose::Tuples, Purpose::Index, Purpose::Pages].map(|p| io.of(p).read_ops),
            [0; 3]
        );
        // Opening reads the list of snapshots and the rest of its zone once. Of the empty journal
        // it reads the rest of the current segment and the next one, where a later write would
        // reveal a hole.
        let [list, journal] = [Purpose::Manifest, Purpose::Journal].map(|p| io.of(p).read_bytes);
        assert!(list < 12 << 20, "{list} bytes of the manifest read");
        assert!(journal < 2 * ZONE_SIZE + (1 << 20), "{journal} bytes of the journal read");
        assert!(recovery.runs < 1500, "{} runs", recovery.runs);
        assert_eq!((db.snapshots().len(), of_snapshot(&db, "500")), (1000, before.clone()));
        db.close().unwrap();
    }
}

#[test]
fn a_clone_is_never_said_to_be_of_another_snapshot_that_has_the_name_of_its_own() {
    let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(1)));
    let db = create(device.clone(), env.clone(), small()).unwrap();
    let origin = |db: &Kvdb| db.branches().pop().expect("there").snapshot;
    db.open_dictionary("d").unwrap().insert("k", "v").unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "clone").unwrap();
    db.drop_snapshot("s").unwrap();
    assert_eq!(origin(&db).as_deref(), Some("s"), "as it was called");
    db.snapshot("s").unwrap();
    db.flush().unwrap();
    assert_eq!(origin(&db), None, "that is another one");
    db.close().unwrap();
    drop(db);
    let (db, _) = Kvdb::open(device, env, small()).unwrap();
    assert_eq!(origin(&db), None);
    db.clone_snapshot("s", "later").unwrap();
    assert_eq!(origin(&db).as_deref(), Some("s"));
}

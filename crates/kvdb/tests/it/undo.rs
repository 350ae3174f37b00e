//! Tests of commits that can be undone: which data is kept for an undo, for how long, and the
//! effect of undoing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use env::{Env, Machine, Simulated};
use kvdb::{
    CreateOptions, DictionaryId, DictionaryOptions, Durability, Isolation, Join, Kvdb, OpenOptions,
    Transaction, TransactionOptions, Update,
};
use zones::MemoryDevice;

fn options(threads: bool) -> OpenOptions {
    OpenOptions { memory: 4 << 20, threads, zero_journal: false, ..Default::default() }
}

fn create(device: Arc<MemoryDevice>, env: Arc<dyn Env>, threads: bool) -> (Kvdb, DictionaryId) {
    let create = CreateOptions { open: options(threads), ..Default::default() };
    let db = Kvdb::create(device, env, create).expect("a store");
    let d = db.open_dictionary("d").expect("a dictionary").id();
    (db, d)
}

fn store() -> (Kvdb, DictionaryId) {
    create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), false)
}

fn begin(db: &Kvdb, label: &str) -> Transaction {
    let options = TransactionOptions { undoable: true, label: label.into(), ..Default::default() };
    db.begin_with(options).expect("begun")
}

fn put(db: &Kvdb, d: DictionaryId, key: &str, value: &str) {
    db.put(d, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put");
}

fn get(db: &Kvdb, d: DictionaryId, key: &str) -> Option<String> {
    let value = db.get(d, key.as_bytes()).expect("read");
    value.map(|value| String::from_utf8(value.to_vec()).expect("text"))
}

/// Commits a put that can be undone. Returns the number of the commit.
fn commit(db: &Kvdb, d: DictionaryId, key: &str, value: &str) -> u64 {
    let t = begin(db, "a change");
    t.put(d, key, value).expect("put");
    t.commit(Durability::Buffered).expect("committed");
    db.undoable_commits().last().expect("it was kept").number
}

/// Undoes the commit. Returns the keys that conflict; if there are none, the commit is undone.
fn undo(db: &Kvdb, number: u64) -> Vec<String> {
    let (before, after) = db.states_around(number).expect("it is kept");
    let t = begin(db, "undo");
    let all: Vec<DictionaryId> = after.dictionaries().iter().map(|d| d.id).collect();
    let changed = t.change_back(&all, &before, &after).expect("changed back");
    if changed.is_empty() {
        t.commit(Durability::Buffered).expect("undone");
    }
    changed.into_iter().map(|(_, key)| String::from_utf8_lossy(&key).into_owned()).collect()
}

#[test]
fn what_a_commit_has_made_changed_and_deleted_is_as_it_was() {
    let (db, d) = store();
    let long = "long ".repeat(10_000);
    put(&db, d, "changed", "before");
    put(&db, d, "deleted", &long);
    put(&db, d, "in a range", "1");
    put(&db, d, "other", "stays");
    let t = begin(&db, "work");
    t.put(d, "made", "new").expect("put");
    t.update(d, "changed", Update::append(b" and after").expect("short")).expect("updated");
    t.delete(d, "deleted").expect("deleted");
    t.delete_range(d, "in", "io").expect("deleted");
    t.commit(Durability::Buffered).expect("committed");
    put(&db, d, "other", "was changed since");

    let commits = db.undoable_commits();
    assert_eq!((commits.len(), commits[0].label.as_str()), (1, "work"));
    assert_eq!(undo(&db, commits[0].number), [] as [&str; 0]);
    assert_eq!(get(&db, d, "made"), None);
    assert_eq!(get(&db, d, "changed").as_deref(), Some("before"));
    assert_eq!(get(&db, d, "deleted"), Some(long));
    assert_eq!(get(&db, d, "in a range").as_deref(), Some("1"));
    assert_eq!(get(&db, d, "other").as_deref(), Some("was changed since"));
}

#[test]
fn undone_twice_it_is_there_again() {
    let (db, d) = store();
    put(&db, d, "k", "1");
    let first = commit(&db, d, "k", "2");
    assert!(undo(&db, first).is_empty());
    let second = db.undoable_commits().last().expect("the undoing").number;
    assert!(second > first);
    assert!(undo(&db, second).is_empty());
    assert_eq!(get(&db, d, "k").as_deref(), Some("2"));
}

#[test]
fn what_was_changed_since_is_named_and_what_was_undone_already_is_not() {
    let (db, d) = store();
    for key in ["a", "b", "c"] {
        put(&db, d, key, "before");
    }
    let t = begin(&db, "");
    ["a", "b", "c"].iter().for_each(|key| t.put(d, key, "after").expect("put"));
    t.commit(Durability::Buffered).expect("committed");
    let number = db.undoable_commits()[0].number;
    put(&db, d, "a", "since");
    put(&db, d, "b", "before");
    assert_eq!(undo(&db, number), ["a"]);
    assert_eq!(get(&db, d, "c").as_deref(), Some("after"), "all of it, or nothing");
    put(&db, d, "a", "after");
    assert!(undo(&db, number).is_empty());
    assert_eq!(get(&db, d, "c").as_deref(), Some("before"));
}

#[test]
fn what_can_be_joined_is_joined_with_what_came_since() {
    let (db, _) = store();
    let join = DictionaryOptions { join: Join::Add, ..Default::default() };
    let d = db.create_dictionary("sums", join).expect("a dictionary");
    put(&db, d, "n", "10");
    let number = commit(&db, d, "n", "15");
    put(&db, d, "n", "17");
    assert!(undo(&db, number).is_empty());
    assert_eq!(get(&db, d, "n").as_deref(), Some("12"));
}

#[test]
fn a_commit_that_others_make_between_begin_and_commit_of_the_undoing_is_a_conflict() {
    let (db, d) = store();
    let number = commit(&db, d, "k", "1");
    let (before, after) = db.states_around(number).expect("kept");
    let t = begin(&db, "undo");
    assert!(t.change_back(&[d], &before, &after).expect("changed back").is_empty());
    put(&db, d, "k", "others");
    assert!(matches!(t.commit(Durability::Buffered), Err(kvdb::Error::Conflict { .. })));
    assert_eq!(get(&db, d, "k").as_deref(), Some("others"));
}

/// Others commit all the time. The two states differ only in the changes of the transaction.
#[test]
fn the_states_around_a_commit_differ_in_that_commit_alone() {
    let (db, d) = create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (db, stop) = (&db, &stop);
            scope.spawn(move || {
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    put(db, d, &format!("other {thread} {}", n % 100), &n.to_string());
                }
            });
        }
        for round in 0..30 {
            let value = round.to_string();
            let number = commit(&db, d, "mine", &value);
            let (before, after) = db.states_around(number).expect("kept");
            let changes = before.difference(d, &after, d).expect("compared");
            let keys: Vec<_> = changes.map(|change| change.expect("read").key).collect();
            assert_eq!(keys, ["mine"], "round {round}");
            let mine = after.get(d, b"mine").expect("read");
            assert_eq!(mine.as_deref(), Some(value.as_bytes()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    db.close().expect("closed");
}

#[test]
fn they_survive_a_restart_with_and_without_a_crash() {
    let device = Arc::new(MemoryDevice::new());
    let (db, d) = create(device.clone(), Arc::new(Machine::default()), false);
    put(&db, d, "k", "before");
    let number = commit(&db, d, "k", "after");
    db.sync().expect("synced");
    let crashed = Arc::new((*device).clone());
    db.close().expect("closed");
    drop(db);
    for device in [device, crashed] {
        let (db, _) =
            Kvdb::open(device, Arc::new(Machine::default()), options(false)).expect("opened");
        assert_eq!(db.undoable_commits()[0].number, number);
        assert!(undo(&db, number).is_empty());
        assert_eq!(get(&db, d, "k").as_deref(), Some("before"));
    }
}

#[test]
fn the_newest_are_kept_and_none_for_longer_than_a_day() {
    let env = Arc::new(Simulated::new(1));
    let (db, d) = create(Arc::new(MemoryDevice::new()), env.clone(), false);
    let all: Vec<u64> = (0..20).map(|n| commit(&db, d, "k", &n.to_string())).collect();
    let tick = |later: Duration| {
        env.advance(later);
        while db.step().expect("background work") {}
        db.undoable_commits().iter().map(|commit| commit.number).collect::<Vec<_>>()
    };
    assert_eq!(tick(Duration::from_secs(60)), all[4..]);
    assert!(db.states_around(all[0]).is_err());
    assert!(tick(Duration::from_secs(24 * 3600)).is_empty());
    assert_eq!(db.snapshots(), []);
}

#[test]
fn a_large_commit_and_one_that_changes_nothing() {
    let (db, d) = store();
    let t = begin(&db, "large");
    for n in 0..20_000 {
        t.put(d, format!("k{n:05}"), [7; 300]).expect("put");
    }
    t.commit(Durability::Buffered).expect("committed");
    begin(&db, "nothing").commit(Durability::Buffered).expect("committed");
    let commits = db.undoable_commits();
    assert_eq!(commits.len(), 1, "{commits:?}");
    assert!(undo(&db, commits[0].number).is_empty());
    assert_eq!(db.view().scan(d, b"", b"", 1).expect("read"), []);
}

#[test]
fn a_serializable_and_a_durable_transaction_can_be_undone_as_well() {
    let (db, d) = store();
    for (isolation, durable) in [(Isolation::Serializable, false), (Isolation::Snapshot, true)] {
        let options =
            TransactionOptions { isolation, durable, undoable: true, ..Default::default() };
        let t = db.begin_with(options).expect("begun");
        t.put(d, "k", "v").expect("put");
        t.commit(Durability::Synced).expect("committed");
        let number = db.undoable_commits().last().expect("kept").number;
        assert!(undo(&db, number).is_empty());
        assert_eq!(get(&db, d, "k"), None);
    }
}

#[test]
fn followers_are_told_of_them_key_by_key() {
    let (db, d) = store();
    let from = db.follow_commits(1 << 20);
    let number = commit(&db, d, "k", "v");
    let recent = db.commits_since(from, 10).expect("nothing is lost");
    assert_eq!(recent.commits.len(), 1);
    assert_eq!(recent.commits[0].number, number);
    assert_eq!(recent.commits[0].changes.len(), 1);
}

#[test]
fn a_full_store_lets_go_of_them_and_takes_what_was_deleted() {
    let device = Arc::new(MemoryDevice::with_limit(320 << 20));
    let (db, d) = create(device.clone(), Arc::new(Machine::default()), false);
    let value = vec![7; 1 << 20];
    let keys: Vec<String> = (0..150).map(|n| format!("k{n:03}")).collect();
    for key in &keys {
        db.put(d, key.as_bytes(), &value, Durability::Buffered).expect("room");
    }
    let t = begin(&db, "delete");
    t.delete_range(d, "k", "l").expect("deleted");
    t.commit(Durability::Synced).expect("committed");
    assert_eq!(db.undoable_commits().len(), 1);
    for round in 0..3 {
        for key in &keys {
            let put = db.put(d, key.as_bytes(), &value, Durability::Buffered);
            put.unwrap_or_else(|e| panic!("round {round}, {key}: {e}"));
        }
    }
    assert_eq!(db.undoable_commits(), []);
}

#[test]
fn what_is_dropped_or_unknown_cannot_be_undone() {
    let (db, d) = store();
    put(&db, d, "k", "before");
    let number = commit(&db, d, "k", "v");
    let wrong = db.states_around(number + 1).err().expect("there is none").to_string();
    assert!(wrong.contains("cannot be undone"), "{wrong}");
    db.drop_dictionary(d).expect("dropped");
    let (before, after) = db.states_around(number).expect("kept");
    let t = begin(&db, "undo");
    let changed = t.change_back(&[d], &before, &after).expect("compared");
    assert_eq!(changed, [(d, "k".into())], "what was dropped is changed");
}

#[test]
fn a_label_of_any_length_is_cut_and_read_again() {
    let (db, d) = store();
    for label in ["", "a-b-c", &"ä".repeat(200), "line\nfeed / slash"] {
        let t = begin(&db, label);
        t.put(d, "k", label).expect("put");
        t.commit(Durability::Buffered).expect("committed");
        let kept = db.undoable_commits().pop().expect("kept").label;
        assert!(label.starts_with(&kept) && kept.len() <= 100, "{kept}");
        assert_eq!(kept.len(), label.len().min(100));
    }
}

/// Prints the cost: commits of one small change on a file, with and without undo, in turn.
#[test]
#[ignore = "a measurement: make measurements"]
fn what_a_commit_that_can_be_undone_costs_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let device = zones::FileDevice::create(directory.path().join("s")).expect("a file");
    let create = CreateOptions { open: options(true), ..Default::default() };
    let db = Kvdb::create(Arc::new(device), Arc::new(Machine::default()), create).expect("a store");
    let d = db.open_dictionary("d").expect("a dictionary").id();
    (0..10_000).for_each(|n| put(&db, d, &format!("k{n}"), &"v".repeat(100)));
    let mut took = [Vec::new(), Vec::new()];
    for round in 0..200 {
        for (undoable, took) in [false, true].into_iter().zip(&mut took) {
            let options = TransactionOptions { undoable, ..Default::default() };
            let t = db.begin_with(options).expect("begun");
            t.put(d, format!("k{round}"), "changed").expect("put");
            let begun = std::time::Instant::now();
            t.commit(Durability::Synced).expect("committed");
            took.push(begun.elapsed());
        }
    }
    took.iter_mut().for_each(|took| took.sort());
    println!("median without {:?}, with {:?}", took[0][100], took[1][100]);
    db.close().expect("closed");
}

//! Tests of transactions of branches. They follow the same rules in a clone as in the main branch,
//! and nothing of either branch reaches the other.

use std::sync::Arc;

use env::Simulated;
use kvdb::{
    CreateOptions, DictionaryId, Durability, Error, Isolation, Kvdb, OpenOptions, Transaction,
    TransactionOptions,
};
use zones::MemoryDevice;

/// A store with a key `k` in the dictionary `d`, and a clone `c` of it; both dictionaries.
fn store() -> (Kvdb, DictionaryId, DictionaryId) {
    let db = Kvdb::in_memory();
    let (main, of_clone) = fill(&db);
    (db, main, of_clone)
}

fn fill(db: &Kvdb) -> (DictionaryId, DictionaryId) {
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "base").unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "c").unwrap();
    (d.id(), db.dictionary_in("c", "d").unwrap())
}

fn of_clone() -> TransactionOptions {
    TransactionOptions { branch: "c".into(), ..Default::default() }
}

fn get(db: &Kvdb, dict: DictionaryId) -> String {
    String::from_utf8(db.get(dict, b"k").unwrap().unwrap().to_vec()).unwrap()
}

fn seen(t: &Transaction, dict: DictionaryId) -> String {
    String::from_utf8(t.get(dict, b"k").unwrap().unwrap().to_vec()).unwrap()
}

#[test]
fn it_sees_its_branch_as_it_was_and_changes_nothing_else() {
    let (db, main, dict) = store();
    let t = db.begin_with(of_clone()).unwrap();
    assert_eq!((t.branch(), &*db.transactions()[0].branch), ("c", "c"));
    db.put(dict, b"other", b"1", Durability::Buffered).unwrap();
    t.put(dict, "k", "changed").unwrap();
    assert_eq!((t.get(dict, b"other").unwrap(), get(&db, dict)), (None, "base".into()));
    t.commit(Durability::Buffered).unwrap();
    assert_eq!((get(&db, dict), get(&db, main)), ("changed".into(), "base".into()));
}

#[test]
fn of_two_of_one_branch_the_first_to_commit_wins() {
    let (db, main, dict) = store();
    let all = [of_clone(), of_clone(), TransactionOptions::default()];
    let [a, b, elsewhere] = all.map(|options| db.begin_with(options).unwrap());
    a.put(dict, "k", "a").unwrap();
    b.put(dict, "k", "b").unwrap();
    elsewhere.put(main, "k", "elsewhere").unwrap();
    a.commit(Durability::Buffered).unwrap();
    elsewhere.commit(Durability::Buffered).unwrap();
    let refused = b.commit(Durability::Buffered);
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert_eq!((get(&db, dict), get(&db, main)), ("a".into(), "elsewhere".into()));
}

#[test]
fn none_begins_in_a_branch_that_is_not_there() {
    let (db, ..) = store();
    for durable in [false, true] {
        let options = TransactionOptions { branch: "gone".into(), durable, ..Default::default() };
        let refused = db.begin_with(options);
        assert!(matches!(&refused, Err(Error::NoBranch(name)) if name == "gone"));
    }
    assert!(db.transactions().is_empty());
}

#[test]
fn a_branch_that_is_dropped_takes_its_transactions_and_their_undoing_with_it() {
    let (db, main, dict) = store();
    let undoable = |branch: &str, dict| {
        let options = TransactionOptions { undoable: true, branch: branch.into(), ..of_clone() };
        let t = db.begin_with(options).unwrap();
        t.put(dict, "k", "changed").unwrap();
        t.commit(Durability::Buffered).unwrap();
    };
    undoable("", main);
    undoable("c", dict);
    let open = db.begin_with(of_clone()).unwrap();
    let of_main = db.begin(Isolation::Snapshot).unwrap();
    db.drop_branch("c").unwrap();
    assert!(open.put(dict, "k", "late").is_err_and(|e| e.to_string().contains("was dropped")));
    of_main.put(main, "other", "1").unwrap();
    of_main.commit(Durability::Buffered).unwrap();
    let left: Vec<String> = db.undoable_commits().into_iter().map(|c| c.branch).collect();
    assert_eq!(left, [""]);
}

#[test]
fn a_commit_to_a_branch_is_undone_there() {
    let (db, main, dict) = store();
    db.put(main, b"k", b"main", Durability::Buffered).unwrap();
    let t = db.begin_with(TransactionOptions { undoable: true, ..of_clone() }).unwrap();
    t.put(dict, "k", "changed").unwrap();
    t.commit(Durability::Buffered).unwrap();
    let commit = db.undoable_commits().pop().unwrap();
    assert_eq!(commit.branch, "c");
    let (before, after) = db.states_around(commit.number).unwrap();
    let undo = db.begin_with(of_clone()).unwrap();
    assert_eq!(undo.change_back(&[dict], &before, &after).unwrap(), []);
    undo.commit(Durability::Buffered).unwrap();
    assert_eq!((get(&db, dict), get(&db, main)), ("base".into(), "main".into()));
}

#[test]
fn a_rollback_of_one_branch_leaves_what_can_be_undone_in_the_others() {
    let (db, main, dict) = store();
    db.snapshot_of("c", "of c", Durability::Synced).unwrap();
    for (branch, dict) in [("", main), ("c", dict)] {
        let options = TransactionOptions { undoable: true, branch: branch.into(), ..of_clone() };
        let t = db.begin_with(options).unwrap();
        t.put(dict, "k", "changed").unwrap();
        t.commit(Durability::Buffered).unwrap();
    }
    let branches = || -> Vec<String> {
        db.undoable_commits().into_iter().map(|commit| commit.branch).collect()
    };
    assert_eq!(branches(), ["", "c"]);
    db.rollback("of c").unwrap();
    assert_eq!(branches(), [""]);
    assert_eq!((get(&db, dict), get(&db, main)), ("base".into(), "changed".into()));
    db.rollback("s").unwrap();
    assert_eq!(branches(), [""; 0]);
}

/// The options that a store is opened with repeatedly.
fn open() -> OpenOptions {
    OpenOptions { memory: 4 << 20, threads: false, zero_journal: false, ..Default::default() }
}

#[test]
fn a_durable_one_goes_on_in_its_branch_after_a_restart() {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let create = CreateOptions { open: open(), ..Default::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).unwrap();
    let (main, dict) = fill(&db);
    db.put(dict, b"k", b"of the clone", Durability::Buffered).unwrap();
    let t = db.begin_with(TransactionOptions { durable: true, ..of_clone() }).unwrap();
    let (id, other) = (t.id(), db.begin_with(of_clone()).unwrap());
    t.put(dict, "new", "1").unwrap();
    db.put(dict, b"k", b"later", Durability::Synced).unwrap();
    drop((other, t));
    db.close().unwrap();

    let (db, _) = Kvdb::open(device.clone(), env.clone(), open()).unwrap();
    let t = db.transaction(id).unwrap();
    assert_eq!((t.branch(), db.transactions().len()), ("c", 1));
    assert_eq!((seen(&t, dict), get(&db, dict)), ("of the clone".into(), "later".into()));
    t.commit(Durability::Synced).unwrap();
    assert_eq!(db.get(dict, b"new").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(main, b"new").unwrap(), None);
    // A transaction whose branch was dropped does not return.
    let t = db.begin_with(TransactionOptions { durable: true, ..of_clone() }).unwrap();
    t.put(dict, "k", "lost").unwrap();
    drop(t);
    db.drop_branch("c").unwrap();
    db.close().unwrap();
    let (db, _) = Kvdb::open(device, env, open()).unwrap();
    assert!(db.transactions().is_empty());
}

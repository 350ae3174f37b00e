//! Tests of a transaction within another one. It reads the state in which it found the outer one.
//! Its commit becomes a part of the outer transaction, and is visible to others when that one
//! commits.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Machine, Simulated};
use kvdb::{
    Batch, CommitOptions, CreateOptions, DictionaryId, Durability, Error, Isolation, Kvdb,
    MAX_NESTED, MergeRoutine, Merged, OpenOptions, Transaction, TransactionOptions, Update,
};
use zones::{CrashDevice, MemoryDevice};

struct World {
    db: Kvdb,
    d: DictionaryId,
    device: Arc<MemoryDevice>,
}

fn options() -> OpenOptions {
    OpenOptions {
        memory: 4 << 20,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..Default::default()
    }
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
        self.db.begin(Isolation::Snapshot).unwrap()
    }

    fn within(&self, parent: &Transaction) -> Transaction {
        self.db.begin_with(within(parent)).unwrap()
    }

    fn put(&self, key: &str, value: &str) {
        self.db.put(self.d, key.as_bytes(), value.as_bytes(), Durability::Buffered).unwrap();
    }

    fn get(&self, key: &str) -> Option<String> {
        self.db.get(self.d, key.as_bytes()).unwrap().map(text)
    }

    /// Returns the tuples that a transaction sees, by a scan and by single reads.
    fn seen(&self, t: &Transaction) -> Vec<(String, String)> {
        let all = t.scan(self.d, b"", b"", usize::MAX).unwrap();
        for (key, value) in &all {
            assert_eq!(t.get(self.d, key).unwrap().as_ref(), Some(value));
        }
        all.into_iter().map(|(key, value)| (text(key), text(value))).collect()
    }

    /// Returns the store as after a crash at this moment, with all synced data.
    fn crash(&self) -> World {
        self.db.sync().unwrap();
        let device = Arc::new((*self.device).clone());
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), options()).unwrap();
        World { db, d: self.d, device }
    }
}

fn within(parent: &Transaction) -> TransactionOptions {
    TransactionOptions { within: Some(parent.id()), ..Default::default() }
}

fn text(bytes: Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn commit(t: &Transaction) {
    t.commit(Durability::Buffered).unwrap();
}

#[track_caller]
fn conflicts(t: &Transaction, keys: &[&str]) {
    match t.commit(Durability::Buffered) {
        Err(Error::Conflict { keys: found }) => {
            let found: Vec<String> = found.into_iter().map(|(_, key)| text(key)).collect();
            assert_eq!(found, keys);
        }
        other => panic!("{other:?}"),
    }
}

/// The transaction has ended, and its calls return the reason.
#[track_caller]
fn was_aborted(t: &Transaction, why: &str) {
    match t.get(DictionaryId(u32::MAX), b"a") {
        Err(Error::Locked(text)) => assert!(text.contains(why), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_sees_the_state_that_it_began_in_and_its_own_changes() {
    let w = World::new();
    w.put("a", "store");
    w.put("b", "store");
    let parent = w.begin();
    parent.put(w.d, "b", "parent").unwrap();
    parent.put(w.d, "c", "parent").unwrap();
    let child = w.within(&parent);
    assert_eq!(w.seen(&child), pairs(&[("a", "store"), ("b", "parent"), ("c", "parent")]));
    // Later changes of the store and of the parent are not seen.
    w.put("a", "later");
    parent.put(w.d, "d", "later").unwrap();
    parent.delete(w.d, "c").unwrap();
    child.put(w.d, "b", "child").unwrap();
    child.delete(w.d, "a").unwrap();
    child.put(w.d, "e", "child").unwrap();
    assert_eq!(w.seen(&child), pairs(&[("b", "child"), ("c", "parent"), ("e", "child")]));
    let beneath = child.view().unwrap().beneath();
    let beneath: Vec<_> = beneath.iter(w.d).map(|t| text(t.unwrap().0)).collect();
    assert_eq!(beneath, ["a", "b", "c"], "what its own changes lie above");
    assert_eq!(w.seen(&parent), pairs(&[("a", "store"), ("b", "parent"), ("d", "later")]));
    assert_eq!((child.within(), parent.nested().unwrap()), (Some(parent.id()), vec![child.id()]));
    let listed = w.db.transactions().into_iter().map(|info| (info.id, info.within));
    assert_eq!(listed.collect::<Vec<_>>(), [(parent.id(), None), (child.id(), Some(parent.id()))]);
}

#[test]
fn its_commit_makes_its_changes_a_part_of_the_one_around_it() {
    let w = World::new();
    w.put("gone", "store");
    let parent = w.begin();
    parent.put(w.d, "a", "parent").unwrap();
    let before = parent.revision().unwrap();
    let child = w.within(&parent);
    child.put(w.d, "b", "child").unwrap();
    child.delete(w.d, "gone").unwrap();
    assert_eq!(parent.revision().unwrap(), before);
    commit(&child);
    assert_ne!(parent.revision().unwrap(), before, "it has changed by that");
    assert_eq!(w.seen(&parent), pairs(&[("a", "parent"), ("b", "child")]));
    assert_eq!(w.get("b"), None, "no other reader sees it");
    assert!(matches!(child.get(w.d, b"b"), Err(Error::NoTransaction(_))));
    parent.put(w.d, "b", "after").unwrap();
    commit(&parent);
    assert_eq!((w.get("b").as_deref(), w.get("gone")), (Some("after"), None));
    assert!(w.db.transactions().is_empty());
}

#[test]
fn its_abort_leaves_nothing_and_the_abort_around_it_takes_all() {
    let w = World::new();
    let parent = w.begin();
    let child = w.within(&parent);
    child.put(w.d, "a", "1").unwrap();
    child.abort();
    let dropped = w.within(&parent);
    dropped.put(w.d, "b", "1").unwrap();
    drop(dropped);
    assert_eq!(w.seen(&parent), pairs(&[]));
    assert!(parent.nested().unwrap().is_empty());
    let (done, open) = (w.within(&parent), w.within(&parent));
    done.put(w.d, "c", "1").unwrap();
    commit(&done);
    open.put(w.d, "d", "1").unwrap();
    let deep = w.within(&open);
    let id = parent.id();
    parent.abort();
    was_aborted(&open, &format!("transaction {id}, within which it was begun, has ended"));
    was_aborted(&deep, "within which it was begun, has ended");
    assert_eq!(w.get("c"), None);
    assert!(w.db.transactions().is_empty());
}

#[test]
fn of_two_siblings_that_change_the_same_the_first_commit_wins() {
    let w = World::new();
    let parent = w.begin();
    let [a, b, c] = [(); 3].map(|()| w.within(&parent));
    a.put(w.d, "shared", "a").unwrap();
    a.put(w.d, "a", "a").unwrap();
    b.put(w.d, "shared", "b").unwrap();
    b.put(w.d, "b", "b").unwrap();
    c.put(w.d, "c", "c").unwrap();
    assert!(!b.is_outdated().unwrap());
    commit(&a);
    assert!(b.is_outdated().unwrap() && !c.is_outdated().unwrap());
    let stays = CommitOptions { stays: true, ..Default::default() };
    assert!(matches!(b.commit_with(stays), Err(Error::Conflict { .. })));
    assert_eq!(b.get(w.d, b"shared").unwrap().as_deref(), Some(&b"b"[..]), "it can be looked at");
    conflicts(&b, &["shared"]);
    assert!(matches!(b.get(w.d, b"b"), Err(Error::NoTransaction(_))));
    commit(&c);
    commit(&parent);
    assert_eq!(w.get("shared").as_deref(), Some("a"));
    assert_eq!((w.get("b"), w.get("c").as_deref()), (None, Some("c")));
}

#[test]
fn what_the_one_around_it_has_changed_since_is_a_conflict_and_what_it_had_before_is_none() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "before", "parent").unwrap();
    for (change, conflict) in [("before", false), ("since", true)] {
        let child = w.within(&parent);
        child.put(w.d, change, "child").unwrap();
        if conflict {
            parent.put(w.d, "since", "parent").unwrap();
            conflicts(&child, &["since"]);
        } else {
            commit(&child);
        }
    }
    // A range against a key, on either side.
    let child = w.within(&parent);
    child.delete_range(w.d, "r", "s").unwrap();
    parent.put(w.d, "r1", "parent").unwrap();
    conflicts(&child, &["r"]);
    let child = w.within(&parent);
    child.put(w.d, "q1", "child").unwrap();
    parent.delete_range(w.d, "q", "r").unwrap();
    assert!(matches!(child.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    assert_eq!(
        w.seen(&parent),
        pairs(&[("before", "child"), ("r1", "parent"), ("since", "parent")])
    );
}

#[test]
fn what_others_commit_to_the_store_is_a_conflict_of_the_outermost_one() {
    let w = World::new();
    let parent = w.begin();
    let child = w.within(&parent);
    child.put(w.d, "a", "child").unwrap();
    w.put("a", "theirs");
    commit(&child);
    conflicts(&parent, &["a"]);
    assert_eq!(w.get("a").as_deref(), Some("theirs"));
}

#[test]
fn what_it_depends_on_is_compared_with_the_one_around_it_and_then_with_the_store() {
    let w = World::new();
    w.put("read", "0");
    let parent = w.begin();
    let child = w.within(&parent);
    child.read_conflict_key(w.d, b"read").unwrap();
    child.put(w.d, "a", "child").unwrap();
    parent.put(w.d, "read", "1").unwrap();
    assert!(child.is_outdated().unwrap());
    conflicts(&child, &["read"]);

    let parent = w.begin();
    let child = w.within(&parent);
    child.read_conflict_key(w.d, b"read").unwrap();
    child.put(w.d, "a", "child").unwrap();
    commit(&child);
    w.put("read", "2");
    conflicts(&parent, &["read"]);

    let parent = w.begin();
    let watch = w.begin();
    watch.read_conflict_key(w.d, b"read").unwrap();
    let child = w.within(&parent);
    child.depend_on(&watch).unwrap();
    child.put(w.d, "a", "child").unwrap();
    commit(&child);
    w.put("read", "3");
    conflicts(&parent, &["read"]);
    // The reads of a nested transaction are reported to no others.
    let (parent, other) = (w.begin(), w.begin());
    let child = w.within(&parent);
    child.read_conflict_key(w.d, b"read").unwrap();
    assert!(matches!(other.depend_on(&child), Err(Error::Invalid(_))));
}

#[test]
fn updates_that_commute_and_keys_that_a_routine_joins_are_no_conflict() {
    /// Lists of words, joined word by word.
    struct Words;
    impl MergeRoutine for Words {
        fn merge(
            &self,
            _: &[u8],
            base: Option<&[u8]>,
            mine: Option<&[u8]>,
            theirs: Option<&[u8]>,
        ) -> Merged {
            let base = base.unwrap_or_default().len();
            let (mine, theirs) = (mine.unwrap_or_default(), theirs.unwrap_or_default());
            Merged::Put([theirs, &mine[base..]].concat().into())
        }
    }
    let w = World::new();
    let words = w.db.open_dictionary("words").unwrap().id();
    w.db.set_merge(words, Arc::new(Words));
    w.db.put(words, b"k", b"store", Durability::Buffered).unwrap();
    w.put("n", "1");
    let parent = w.begin();
    parent.put(words, b"k", b"store parent").unwrap();
    parent.update(w.d, "n", Update::add(10)).unwrap();
    let children = [1, 2, 3].map(|n| {
        let child = w.within(&parent);
        child.update(w.d, "n", Update::add(n * 100)).unwrap();
        let before = text(child.get(words, b"k").unwrap().unwrap());
        child.put(words, b"k", format!("{before} {n}")).unwrap();
        child
    });
    assert_eq!(children[2].get(w.d, b"n").unwrap().as_deref(), Some(&b"311"[..]));
    children.iter().for_each(commit);
    w.db.open_dictionary("d").unwrap().update("n", Update::add(1000)).unwrap();
    w.db.put(words, b"k", b"store others", Durability::Buffered).unwrap();
    commit(&parent);
    assert_eq!(w.get("n").as_deref(), Some("1611"), "updates apply to what is there");
    let joined = w.db.get(words, b"k").unwrap().map(text);
    assert_eq!(joined.as_deref(), Some("store others parent 1 2 3"));
}

#[test]
fn one_that_looks_for_no_conflicts_wins_over_the_one_around_it() {
    let w = World::new();
    let parent = w.begin();
    let unchecked = TransactionOptions { check_conflicts: false, ..within(&parent) };
    let child = w.db.begin_with(unchecked).unwrap();
    child.put(w.d, "a", "child").unwrap();
    parent.put(w.d, "a", "parent").unwrap();
    commit(&child);
    assert_eq!(w.seen(&parent), pairs(&[("a", "child")]));
}

#[test]
fn a_savepoint_from_before_it_began_takes_it_and_a_later_one_what_it_has_committed() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "a", "0").unwrap();
    let early = parent.savepoint().unwrap();
    parent.put(w.d, "a", "1").unwrap();
    let (open, done) = (w.within(&parent), w.within(&parent));
    let late = parent.savepoint().unwrap();
    parent.put(w.d, "b", "parent").unwrap();
    done.put(w.d, "c", "child").unwrap();
    commit(&done);
    open.put(w.d, "d", "child").unwrap();
    parent.rollback_to(&late).unwrap();
    assert_eq!(w.seen(&parent), pairs(&[("a", "1")]), "with what was committed since");
    assert_eq!(w.seen(&open), pairs(&[("a", "1"), ("d", "child")]), "it is open as before");
    // Keys that have their earlier values again are not a conflict.
    open.put(w.d, "b", "child").unwrap();
    let deep = w.within(&open);
    commit(&deep);
    let second = w.within(&parent);
    parent.rollback_to(&early).unwrap();
    let why = format!("transaction {}, within which it was begun, went back", parent.id());
    was_aborted(&open, &why);
    was_aborted(&second, &why);
    assert_eq!(w.seen(&parent), pairs(&[("a", "0")]));
    let third = w.within(&parent);
    third.put(w.d, "e", "child").unwrap();
    parent.rollback_to(&early).unwrap();
    was_aborted(&third, &why);
    commit(&parent);
    assert_eq!((w.get("a").as_deref(), w.get("e")), (Some("0"), None));
}

#[test]
fn one_that_is_still_open_after_the_other_went_back_can_commit() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "a", "1").unwrap();
    let child = w.within(&parent);
    let late = parent.savepoint().unwrap();
    (0..40).for_each(|i| parent.put(w.d, format!("many{i}"), [7; 100_000]).unwrap());
    parent.rollback_to(&late).unwrap();
    child.put(w.d, "many7", "child").unwrap();
    commit(&child);
    assert_eq!(w.seen(&parent), pairs(&[("a", "1"), ("many7", "child")]));
}

#[test]
fn it_goes_back_to_savepoints_of_its_own() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "a", "parent").unwrap();
    let child = w.within(&parent);
    child.put(w.d, "a", "1").unwrap();
    let mark = child.savepoint().unwrap();
    child.delete_range(w.d, "a", "z").unwrap();
    child.put(w.d, "b", "2").unwrap();
    child.rollback_to(&mark).unwrap();
    child.put(w.d, "c", "3").unwrap();
    commit(&child);
    assert_eq!(w.seen(&parent), pairs(&[("a", "1"), ("c", "3")]));
}

#[test]
fn a_commit_waits_for_those_within_unless_it_is_to_abort_them() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "a", "parent").unwrap();
    let (child, other) = (w.within(&parent), w.within(&parent));
    child.put(w.d, "b", "child").unwrap();
    match parent.commit(Durability::Buffered) {
        Err(error @ Error::Nested { .. }) => assert_eq!(
            error.to_string(),
            format!(
                "transaction {} is not committed while others are open within it ({}, {}): commit \
                 or abort these first",
                parent.id(),
                child.id(),
                other.id()
            )
        ),
        other => panic!("{other:?}"),
    }
    assert_eq!(w.get("a"), None);
    assert_eq!(w.seen(&child).len(), 2, "all of them are open");
    other.abort();
    // A conflict does not abort them either, where the transaction stays.
    w.put("a", "theirs");
    let all = CommitOptions { aborts_nested: true, stays: true, ..Default::default() };
    assert!(matches!(parent.commit_with(all), Err(Error::Conflict { .. })));
    assert_eq!(w.seen(&child).len(), 2);
    let parent = w.begin();
    parent.put(w.d, "c", "parent").unwrap();
    let child = w.within(&parent);
    child.put(w.d, "d", "child").unwrap();
    parent.commit_with(all).unwrap();
    was_aborted(&child, "within which it was begun, has ended");
    assert_eq!((w.get("c").as_deref(), w.get("d")), (Some("parent"), None));
}

#[test]
fn they_may_be_within_one_another_to_a_depth() {
    let w = World::new();
    w.put("base", "store");
    let mut all = vec![w.begin()];
    while all.len() < MAX_NESTED {
        let depth = all.len() - 1;
        all[depth].put(w.d, format!("{depth:02}"), "x").unwrap();
        all.push(w.within(&all[depth]));
    }
    let deepest = &all[MAX_NESTED - 1];
    deepest.put(w.d, "99", "x").unwrap();
    assert_eq!(w.seen(deepest).len(), MAX_NESTED + 1);
    match w.db.begin_with(within(deepest)) {
        Err(Error::Limit(text)) => assert!(text.contains("16 transactions are within"), "{text}"),
        other => panic!("{:?}", other.map(|t| t.id())),
    }
    while let Some(t) = all.pop() {
        commit(&t);
    }
    assert_eq!(w.db.view().iter(w.d).count(), MAX_NESTED + 1);
}

#[test]
fn what_cannot_be_within_another_one_is_refused_in_a_sentence() {
    let w = World::new();
    let (parent, ser) = (w.begin(), w.db.begin(Isolation::Serializable).unwrap());
    let refused = |options: TransactionOptions, why: &str| match w.db.begin_with(options) {
        Err(Error::Invalid(text)) => assert!(text.contains(why), "{text}"),
        other => panic!("{:?}", other.map(|t| t.id())),
    };
    let serializable = Isolation::Serializable;
    refused(TransactionOptions { isolation: serializable, ..within(&parent) }, "serializable");
    refused(within(&ser), "within a serializable one");
    refused(TransactionOptions { durable: true, ..within(&parent) }, "durable");
    refused(TransactionOptions { undoable: true, ..within(&parent) }, "could be undone");
    assert!(parent.nested().unwrap().is_empty());
    let ended = within(&parent);
    let private = TransactionOptions { private: true, ..Default::default() };
    let private = w.db.begin_with(private).unwrap();
    parent.abort();
    for options in [ended, within(&private)] {
        assert!(matches!(w.db.begin_with(options), Err(Error::NoTransaction(_))));
    }
}

/// Large nested transactions hand over the runs that they have written, without rewriting them.
#[test]
fn one_that_is_larger_than_memory_comes_in_by_reference() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "00100", "parent").unwrap();
    let child = w.within(&parent);
    let value = |i: u32| vec![i as u8; 5000];
    (0..3000u32).for_each(|i| child.put(w.d, format!("{i:05}"), value(i)).unwrap());
    child.delete_range(w.d, "00200", "00300").unwrap();
    let written = |db: &Kvdb| db.stats().bound_bytes;
    let (before, runs) = (written(&w.db), child.info().run_bytes);
    assert!(runs > 8 << 20, "it has outgrown memory");
    commit(&child);
    let more = written(&w.db) - before;
    assert!(more < 4 << 20, "{more} bytes were written");
    assert!(parent.info().run_bytes >= runs);
    assert!(w.db.transactions()[0].memory < 4 << 20);
    let check = |get: &dyn Fn(&[u8]) -> Option<Bytes>| {
        for i in 0..3000u32 {
            let found = get(format!("{i:05}").as_bytes());
            let gone = (200..300).contains(&i);
            assert_eq!(found.as_deref(), (!gone).then(|| value(i)).as_deref(), "{i}");
        }
    };
    check(&|key| parent.get(w.d, key).unwrap());
    commit(&parent);
    check(&|key| w.db.get(w.d, key).unwrap());
}

#[test]
fn many_small_ones_one_after_the_other_leave_few_runs_and_little_memory() {
    let w = World::new();
    let parent = w.begin();
    for i in 0..3000u32 {
        let child = w.within(&parent);
        child.put(w.d, i.to_be_bytes(), [7; 2000]).unwrap();
        if i % 3 == 0 {
            child.abort();
        } else {
            commit(&child);
        }
    }
    let info = parent.info();
    assert!(info.memory < 1 << 20, "{} bytes in memory", info.memory);
    assert_eq!(parent.scan(w.d, b"", b"", usize::MAX).unwrap().len(), 2000);
    commit(&parent);
    assert_eq!(w.db.view().iter(w.d).count(), 2000);
}

#[test]
fn runs_bulk_loads_and_stored_values_come_in_too() {
    let w = World::new();
    let large = vec![5; 200_000];
    w.db.put(w.d, b"large", &large, Durability::Buffered).unwrap();
    w.db.flush().unwrap();
    let parent = w.begin();
    let child = w.within(&parent);
    let view = child.view().unwrap();
    let mut bulk = child.bulk(w.d, &view).unwrap();
    (0..100u8).for_each(|i| bulk.push(&[b'b', i], &[i; 100]).unwrap());
    child.adopt(bulk.finish().unwrap()).unwrap();
    let mut batch = Batch::new();
    batch.put_stored(w.d, "copy", view.stored(w.d, b"large").unwrap().unwrap());
    child.apply(batch).unwrap();
    drop(view);
    commit(&child);
    let small = w.within(&parent);
    let view = small.view().unwrap();
    let mut batch = Batch::new();
    batch.put_stored(w.d, "again", view.stored(w.d, b"copy").unwrap().unwrap());
    small.apply(batch).unwrap();
    commit(&small);
    drop((view, small, child));
    // Its place is kept by the parent alone.
    w.db.open_dictionary("d").unwrap().remove("large").unwrap();
    w.db.flush().unwrap();
    w.db.compact(w.d).unwrap();
    commit(&parent);
    w.db.flush().unwrap();
    for key in ["copy", "again"] {
        assert!(w.db.get(w.d, key.as_bytes()).unwrap().unwrap() == large, "{key}");
    }
    assert_eq!(w.db.view().prefix(w.d, "b").count(), 100);
    assert!(kvdb::check(w.device.clone(), &mut |_, _| {}).is_clean());
}

#[test]
fn dictionaries_that_are_made_later_and_nested_batches_work_in_it() {
    let w = World::new();
    let parent = w.begin();
    let later = w.db.open_dictionary("later").unwrap().id();
    parent.put(later, "a", "parent").unwrap();
    let child = w.within(&parent);
    assert_eq!(child.get(later, b"a").unwrap().as_deref(), Some(&b"parent"[..]));
    assert_eq!(child.get(later, b"b").unwrap(), None);
    assert_eq!(child.scan(later, b"", b"", 9).unwrap().len(), 1);
    assert!(matches!(child.get(DictionaryId(999), b"a"), Err(Error::NoDictionary(_))));
    let mut nested = child.nested_batch().unwrap();
    let mut batch = Batch::new();
    batch.put(later, "b", "child");
    nested.apply(batch).unwrap();
    assert_eq!(nested.view().unwrap().iter(later).count(), 2);
    assert_eq!(child.get(later, b"b").unwrap(), None);
    nested.finish().unwrap();
    commit(&child);
    commit(&parent);
    assert_eq!(w.db.view().iter(later).count(), 2);
}

#[test]
fn views_and_cursors_of_it_outlive_its_commit() {
    let w = World::new();
    let parent = w.begin();
    parent.put(w.d, "a", "parent").unwrap();
    let child = w.within(&parent);
    child.put(w.d, "b", "child").unwrap();
    let (of_child, of_parent) = (child.view().unwrap(), parent.view().unwrap());
    commit(&child);
    parent.put(w.d, "b", "after").unwrap();
    parent.put(w.d, "c", "after").unwrap();
    let all = |view: &kvdb::View| -> Vec<(String, String)> {
        view.iter(w.d).map(|t| t.unwrap()).map(|(k, v)| (text(k), text(v))).collect()
    };
    assert_eq!(all(&of_child), pairs(&[("a", "parent"), ("b", "child")]));
    assert_eq!(all(&of_parent), pairs(&[("a", "parent")]));
    let change = of_parent.difference(w.d, &of_child, w.d).unwrap().next().unwrap().unwrap();
    assert_eq!(text(change.key), "b");
}

#[test]
fn idle_ones_end_and_those_in_use_keep_the_one_around_them_in_use() {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let create = CreateOptions { open: options(), ..Default::default() };
    let db = Kvdb::create(device, env.clone(), create).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    let idle = TransactionOptions {
        idle_limit: Some(Duration::from_secs(10)),
        detached: true,
        ..Default::default()
    };
    let parent = db.begin_with(idle.clone()).unwrap();
    let short = Some(Duration::from_secs(5));
    let quiet = TransactionOptions { idle_limit: short, ..within(&parent) };
    let quiet = db.begin_with(quiet).unwrap();
    let busy = db.begin_with(within(&parent)).unwrap();
    let pass = || {
        env.advance(Duration::from_secs(6));
        db.step().unwrap();
    };
    for _ in 0..4 {
        busy.put(d, "a", "1").unwrap();
        pass();
    }
    was_aborted(&quiet, "idle");
    assert_eq!(db.transactions().len(), 2);
    pass();
    pass();
    assert!(db.transactions().is_empty());
    was_aborted(&busy, "within which it was begun, has ended");
}

#[test]
fn one_in_use_and_those_around_it_do_not_end_by_their_idle_limits() {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let create = CreateOptions { open: options(), ..Default::default() };
    let db = Kvdb::create(device, env.clone(), create).unwrap();
    let idle = TransactionOptions {
        idle_limit: Some(Duration::from_secs(10)),
        detached: true,
        ..Default::default()
    };
    let parent = db.begin_with(idle.clone()).unwrap();
    let child = TransactionOptions { idle_limit: idle.idle_limit, ..within(&parent) };
    let child = db.begin_with(child).unwrap();
    let other = db.begin_with(idle).unwrap();
    let pass = |seconds| {
        env.advance(Duration::from_secs(seconds));
        db.step().unwrap();
    };
    child.in_use(|| {
        pass(60);
        assert_eq!(db.transactions().len(), 2);
    });
    was_aborted(&other, "idle");
    // Their time begins with the end of the use.
    pass(8);
    assert_eq!(db.transactions().len(), 2);
    pass(8);
    assert!(db.transactions().is_empty());
}

#[test]
fn one_within_a_durable_one_is_kept_from_its_commit_on() {
    let w = World::new();
    w.put("a", "0");
    let durable = TransactionOptions { durable: true, ..Default::default() };
    let parent = w.db.begin_with(durable).unwrap();
    parent.put(w.d, "a", "parent").unwrap();
    let (small, large, open) = (w.within(&parent), w.within(&parent), w.within(&parent));
    assert!(matches!(small.read_conflict_key(w.d, b"a"), Err(Error::Invalid(_))));
    small.put(w.d, "b", "small").unwrap();
    small.update(w.d, "n", Update::add(3)).unwrap();
    small.commit(Durability::Synced).unwrap();
    (0..2000).for_each(|i| large.put(w.d, format!("many{i:05}"), [7; 3000]).unwrap());
    let mark = parent.savepoint().unwrap();
    commit(&large);
    open.put(w.d, "open", "lost").unwrap();
    let again = w.crash();
    assert_eq!(again.db.transactions().len(), 1, "what was open within it is gone");
    let parent_again = again.db.transaction(parent.id()).unwrap();
    assert_eq!(parent_again.view().unwrap().prefix(w.d, "many").count(), 2000);
    assert_eq!(parent_again.get(w.d, b"b").unwrap().as_deref(), Some(&b"small"[..]));
    assert_eq!(parent_again.get(w.d, b"n").unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(parent_again.get(w.d, b"open").unwrap(), None);
    // A transaction that begins after that works as before.
    let later = again.within(&parent_again);
    later.delete_range(w.d, "many", "manz").unwrap();
    commit(&later);
    commit(&parent_again);
    assert_eq!(again.db.view().iter(w.d).count(), 3);
    // Rolling back to a savepoint also removes it from the log.
    parent.rollback_to(&mark).unwrap();
    let again = w.crash();
    let parent = again.db.transaction(parent.id()).unwrap();
    assert_eq!(parent.view().unwrap().prefix(w.d, "many").count(), 0);
    assert_eq!(parent.get(w.d, b"b").unwrap().as_deref(), Some(&b"small"[..]));
}

/// The power fails at every kind of moment of commits into a durable transaction.
#[test]
fn a_commit_into_a_durable_one_survives_a_power_cut_whole_or_not_at_all() {
    let (mut cuts, mut some, mut none) = (0, 0, 0);
    for seed in 0..60u64 {
        let env = Arc::new(Simulated::new(seed));
        let device = Arc::new(CrashDevice::new());
        let create = CreateOptions { open: options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), create).unwrap();
        let d = db.open_dictionary("d").unwrap().id();
        let durable = TransactionOptions { durable: true, ..Default::default() };
        let parent = db.begin_with(durable).unwrap();
        parent.put(d, "parent", "1").unwrap();
        parent.sync().unwrap();
        let child = db.begin_with(within(&parent)).unwrap();
        let (count, len) = if seed % 2 == 0 { (20, 10) } else { (600, 5000) };
        for i in 0..count {
            child.put(d, format!("child{i:04}"), vec![i as u8; len]).unwrap();
        }
        device.cut_power_after(seed / 2);
        let committed = child.commit(Durability::Synced);
        cuts += u32::from(device.is_dead());
        let image = device.crash(seed);
        let (db, _) = Kvdb::open(Arc::new(image), env, options()).unwrap();
        let parent = db.transaction(parent.id()).unwrap();
        assert_eq!(parent.get(d, b"parent").unwrap().as_deref(), Some(&b"1"[..]));
        let found = parent.view().unwrap().prefix(d, "child").count();
        assert!(found == 0 || found == count, "seed {seed}: {found} of {count}");
        assert!(committed.is_err() || found == count, "seed {seed}: it was synced");
        *(if found == 0 { &mut none } else { &mut some }) += 1;
    }
    assert!(cuts > 10 && some > 5 && none > 5, "{cuts} cuts, {some} whole, {none} not at all");
}

#[test]
fn threads_that_work_in_siblings_and_around_them_do_not_wait_for_ever() {
    let w = World::new();
    let parent = w.begin();
    let (mut won, mut lost) = (0, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u8)
            .map(|thread| {
                let (w, parent) = (&w, &parent);
                scope.spawn(move || {
                    let (mut won, mut lost) = (0, 0);
                    for i in 0..50u8 {
                        let child = w.within(parent);
                        child.put(w.d, [b'o', thread, i], [i; 3000]).unwrap();
                        child.put(w.d, [b's', i % 4], [thread]).unwrap();
                        parent.put(w.d, [b'p', thread, i], [i; 100]).unwrap();
                        match child.commit(Durability::Buffered) {
                            Ok(()) => won += 1,
                            Err(Error::Conflict { .. }) => lost += 1,
                            Err(e) => panic!("{e}"),
                        }
                    }
                    (won, lost)
                })
            })
            .collect();
        for thread in threads {
            let (a, b) = thread.join().unwrap();
            (won, lost) = (won + a, lost + b);
        }
    });
    assert_eq!(won + lost, 200);
    commit(&parent);
    assert_eq!(w.db.view().prefix(w.d, "o").count(), won);
    assert_eq!(w.db.view().prefix(w.d, "p").count(), 200);
    assert!(w.db.transactions().is_empty());
}

//! Tests of transactions under snapshot isolation. A transaction sees a frozen store and its own
//! changes. No other reader sees these before it commits, and then all readers see all of them.

use std::sync::Arc;

use bytes::Bytes;
use env::Machine;
use kvdb::{
    Batch, Changed, CreateOptions, DictionaryId, Durability, Error, Isolation, Kvdb, MergeRoutine,
    Merged, OpenOptions, TransactionOptions,
};
use zones::MemoryDevice;

fn store() -> (Kvdb, DictionaryId) {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap().id();
    (db, d)
}

/// A store of little memory, so that transactions soon outgrow it, and its device.
fn small() -> (Kvdb, DictionaryId, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions {
        memory: 4 << 20,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..Default::default()
    };
    let db = Kvdb::create(
        device.clone(),
        Arc::new(Machine::default()),
        CreateOptions { open, ..Default::default() },
    )
    .unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    (db, d, device)
}

fn put(db: &Kvdb, d: DictionaryId, key: &str, value: &str) {
    db.put(d, key.as_bytes(), value.as_bytes(), Durability::Buffered).unwrap();
}

fn get(db: &Kvdb, d: DictionaryId, key: &str) -> Option<String> {
    db.get(d, key.as_bytes()).unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap())
}

fn all(view: &kvdb::View, d: DictionaryId) -> Vec<(String, String)> {
    let text = |b: Bytes| String::from_utf8(b.to_vec()).unwrap();
    view.iter(d).map(|t| t.unwrap()).map(|(k, v)| (text(k), text(v))).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

#[test]
fn it_sees_the_store_as_it_was_and_its_own_changes() {
    let (db, d) = store();
    put(&db, d, "a", "1");
    put(&db, d, "b", "1");
    let t = db.begin(Isolation::Snapshot).unwrap();
    put(&db, d, "a", "2");
    put(&db, d, "c", "2");
    t.put(d, "b", "mine").unwrap();
    t.delete(d, "a").unwrap();
    t.put(d, "d", "mine").unwrap();
    assert_eq!(t.get(d, b"a").unwrap(), None);
    assert_eq!(t.get(d, b"b").unwrap().as_deref(), Some(&b"mine"[..]));
    assert_eq!(t.get(d, b"c").unwrap(), None);
    assert_eq!(all(&t.view().unwrap(), d), pairs(&[("b", "mine"), ("d", "mine")]));
    assert_eq!(t.scan(d, b"", b"", 1).unwrap(), [("b".into(), "mine".into())]);
    assert_eq!(
        t.view().unwrap().multi_get(d, &["d", "a", "b"]).unwrap(),
        [Some("mine".into()), None, Some("mine".into())]
    );
    let mut cursor = t.cursor(d, b"", b"").unwrap();
    cursor.seek_to_end().unwrap();
    assert_eq!(cursor.prev().unwrap().unwrap().key, "d");
    // No other reader sees any of it.
    assert_eq!(all(&db.view(), d), pairs(&[("a", "2"), ("b", "1"), ("c", "2")]));
}

#[test]
fn a_commit_shows_everything_at_once_and_an_abort_nothing() {
    let (db, d) = store();
    let e = db.open_dictionary("e").unwrap().id();
    put(&db, d, "x", "1");
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.delete_range(d, "a", "z").unwrap();
    t.put(d, "y", "1").unwrap();
    t.put(e, "y", "1").unwrap();
    t.commit(Durability::Synced).unwrap();
    assert_eq!(all(&db.view(), d), pairs(&[("y", "1")]));
    assert_eq!(get(&db, e, "y").as_deref(), Some("1"));

    let t = db.begin(Isolation::Snapshot).unwrap();
    t.put(d, "z", "1").unwrap();
    t.abort();
    let dropped = db.begin(Isolation::Snapshot).unwrap();
    dropped.put(d, "z", "1").unwrap();
    drop(dropped);
    assert_eq!(get(&db, d, "z"), None);
    assert!(db.transactions().is_empty());
}

#[test]
fn after_its_end_every_call_says_so() {
    let (db, d) = store();
    let t = db.begin(Isolation::Snapshot).unwrap();
    let other = t.clone();
    t.put(d, "a", "1").unwrap();
    t.commit(Durability::Buffered).unwrap();
    assert!(matches!(other.get(d, b"a"), Err(Error::NoTransaction(id)) if id == t.id()));
    assert!(matches!(other.put(d, "a", "2"), Err(Error::NoTransaction(_))));
    assert!(matches!(other.commit(Durability::Buffered), Err(Error::NoTransaction(_))));
    assert!(matches!(db.transaction(t.id()), Err(Error::NoTransaction(_))));
}

#[test]
fn a_detached_one_waits_to_be_joined() {
    let (db, d) = store();
    let id = db
        .begin_with(TransactionOptions {
            detached: true,
            label: "build".into(),
            ..Default::default()
        })
        .unwrap()
        .id();
    let list = db.transactions();
    assert_eq!((list.len(), list[0].id, list[0].label.as_str()), (1, id, "build"));
    db.transaction(id).unwrap().put(d, "a", "1").unwrap();
    assert_eq!(db.transaction(id).unwrap().get(d, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.transactions()[0].changes, 1);
    db.transaction(id).unwrap().commit(Durability::Buffered).unwrap();
    assert_eq!(get(&db, d, "a").as_deref(), Some("1"));
}

#[test]
fn of_two_that_change_a_key_the_first_to_commit_wins() {
    let (db, d) = store();
    put(&db, d, "a", "0");
    let (t, u) = (db.begin(Isolation::Snapshot).unwrap(), db.begin(Isolation::Snapshot).unwrap());
    t.put(d, "a", "t").unwrap();
    u.put(d, "a", "u").unwrap();
    u.put(d, "b", "u").unwrap();
    t.commit(Durability::Buffered).unwrap();
    match u.commit(Durability::Buffered) {
        Err(e @ Error::Conflict { .. }) => {
            assert!(e.is_retryable());
            assert!(e.to_string().contains("key \"a\""), "{e}");
            let Error::Conflict { keys } = e else { unreachable!() };
            assert_eq!(keys, [(d, Bytes::from("a"))]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(all(&db.view(), d), pairs(&[("a", "t")]));
}

#[test]
fn a_plain_write_counts_as_a_commit_of_its_own() {
    let (db, d) = store();
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.put(d, "a", "t").unwrap();
    put(&db, d, "a", "plain");
    assert!(matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    // Data that was written before the beginning is not a conflict, wherever it lies.
    for flush in [false, true] {
        put(&db, d, "a", "before");
        if flush {
            db.flush().unwrap();
        }
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.put(d, "a", "t").unwrap();
        t.commit(Durability::Buffered).unwrap();
        assert_eq!(get(&db, d, "a").as_deref(), Some("t"));
    }
}

#[test]
fn conflicts_are_found_in_runs_and_after_merges() {
    let (db, d) = store();
    put(&db, d, "k", "0");
    db.flush().unwrap();
    for delete in [false, true] {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.put(d, "k", "t").unwrap();
        if delete {
            let mut batch = Batch::new();
            batch.delete(d, "k");
            db.commit(batch, Durability::Buffered).unwrap();
        } else {
            put(&db, d, "k", "1");
        }
        db.compact(d).unwrap();
        assert!(
            matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })),
            "delete: {delete}"
        );
        // A transaction that begins now sees the change, and has no conflict.
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.put(d, "k", "t").unwrap();
        db.compact(d).unwrap();
        t.commit(Durability::Buffered).unwrap();
    }
}

#[test]
fn ranges_conflict_with_what_lies_in_them() {
    let (db, d) = store();
    put(&db, d, "m", "0");
    // This transaction deletes a range, and the other one puts a key in it.
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.delete_range(d, "a", "z").unwrap();
    put(&db, d, "n", "1");
    assert!(matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    // The same with the roles exchanged, also with the key in a run.
    for flush in [false, true] {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.put(d, "m", "t").unwrap();
        let mut batch = Batch::new();
        batch.delete_range(d, "a", "z");
        db.commit(batch, Durability::Buffered).unwrap();
        if flush {
            db.flush().unwrap();
        }
        assert!(
            matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })),
            "flush: {flush}"
        );
    }
    // On keys next to each other they do not.
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.delete_range(d, "a", "c").unwrap();
    put(&db, d, "c", "1");
    t.commit(Durability::Buffered).unwrap();
}

/// The conflict is found from either side, since the search walks the side with fewer items.
#[test]
fn a_range_that_another_deletes_conflicts_with_the_keys_in_it() {
    for mine in [1, 2, 50] {
        for flushed in [false, true] {
            for (start, end, hit) in
                [("k", "l", true), ("k00", "k000", true), ("l", "z", false), ("a", "k00", false)]
            {
                let (db, d) = store();
                put(&db, d, "k00", "old");
                put(&db, d, "z", "old");
                let t = db.begin(Isolation::Snapshot).unwrap();
                (0..mine).for_each(|i| t.put(d, format!("k{i:02}"), "mine").unwrap());
                let mut batch = Batch::new();
                batch.delete_range(d, start, end);
                db.commit(batch, Durability::Buffered).unwrap();
                if flushed {
                    db.flush().unwrap();
                }
                assert_eq!(t.is_outdated().unwrap(), hit);
                let outcome = t.commit(Durability::Buffered);
                let what = format!(
                    "{mine} keys, [{start}, {end}) deleted, flushed: {flushed}: {outcome:?}"
                );
                match hit {
                    true => assert!(matches!(outcome, Err(Error::Conflict { .. })), "{what}"),
                    false => assert!(outcome.is_ok(), "{what}"),
                }
            }
        }
    }
}

#[test]
fn without_checks_the_last_one_wins() {
    let (db, d) = store();
    let t =
        db.begin_with(TransactionOptions { check_conflicts: false, ..Default::default() }).unwrap();
    t.put(d, "a", "t").unwrap();
    put(&db, d, "a", "plain");
    t.commit(Durability::Buffered).unwrap();
    assert_eq!(get(&db, d, "a").as_deref(), Some("t"));
}

/// Numbers in text: both sides' differences count.
struct Sum;

impl MergeRoutine for Sum {
    fn merge(
        &self,
        _key: &[u8],
        base: Option<&[u8]>,
        mine: Option<&[u8]>,
        theirs: Option<&[u8]>,
    ) -> Merged {
        let number = |v: Option<&[u8]>| {
            v.map_or(0, |v| std::str::from_utf8(v).unwrap().parse::<i64>().unwrap())
        };
        match (mine, theirs) {
            (Some(_), Some(_)) => {
                Merged::Put((number(theirs) + number(mine) - number(base)).to_string().into())
            }
            _ => Merged::Conflict,
        }
    }
}

#[test]
fn a_merge_routine_joins_what_two_have_changed() {
    let (db, d) = store();
    let e = db.open_dictionary("e").unwrap().id();
    db.set_merge(d, Arc::new(Sum));
    put(&db, d, "n", "10");
    let ts: Vec<_> = (0..5).map(|_| db.begin(Isolation::Snapshot).unwrap()).collect();
    for (i, t) in ts.iter().enumerate() {
        t.put(d, "n", format!("{}", 10 + i + 1)).unwrap();
        t.put(e, format!("{i}"), "there").unwrap();
    }
    for (i, t) in ts.iter().enumerate() {
        if i == 2 {
            db.flush().unwrap();
        }
        t.commit(Durability::Buffered).unwrap();
    }
    assert_eq!(get(&db, d, "n").as_deref(), Some("25"));
    assert_eq!(db.view().iter(e).count(), 5);
    // Values that the rule cannot join are a conflict.
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.delete(d, "n").unwrap();
    put(&db, d, "n", "1");
    assert!(matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })));
}

#[test]
fn savepoints_bring_back_the_state_they_marked() {
    for spill in [false, true] {
        let (db, d, _) = small();
        let t = db.begin(Isolation::Snapshot).unwrap();
        let much = |from: u32| {
            if spill {
                (0..2000u32)
                    .for_each(|i| t.put(d, format!("fill{:06}", from + i), vec![7; 500]).unwrap());
            }
        };
        t.put(d, "a", "1").unwrap();
        much(0);
        let first = t.savepoint().unwrap();
        t.put(d, "a", "2").unwrap();
        t.put(d, "b", "2").unwrap();
        much(1000);
        let second = t.savepoint().unwrap();
        t.delete_range(d, "a", "z").unwrap();
        much(3000);
        t.rollback_to(&second).unwrap();
        assert_eq!(t.get(d, b"a").unwrap().as_deref(), Some(&b"2"[..]), "spill: {spill}");
        t.put(d, "c", "3").unwrap();
        t.rollback_to(&second).unwrap();
        assert_eq!(t.get(d, b"c").unwrap(), None);
        t.rollback_to(&first).unwrap();
        assert!(t.rollback_to(&second).is_err(), "it is gone");
        assert_eq!(t.get(d, b"a").unwrap().as_deref(), Some(&b"1"[..]));
        t.put(d, "d", "4").unwrap();
        t.commit(Durability::Buffered).unwrap();
        let small = |(k, _): &(String, String)| !k.starts_with("fill");
        assert_eq!(
            all(&db.view(), d).into_iter().filter(small).collect::<Vec<_>>(),
            pairs(&[("a", "1"), ("d", "4")])
        );
        assert_eq!(db.view().prefix(d, "fill").count(), if spill { 2000 } else { 0 });
    }
}

/// Runs of [`kvdb::Transaction::bulk`] are merged during the load, and the newest tuple counts,
/// before the commit and after it.
#[test]
fn of_many_runs_the_newest_counts() {
    let (db, d, _) = small();
    let t = db.begin(Isolation::Snapshot).unwrap();
    let mut kept = None;
    for n in 0..200u32 {
        let mut bulk = t.bulk(d, &db.view()).unwrap();
        let (own, large) = (format!("{n:03}"), vec![n as u8; 5000]);
        bulk.push(own.as_bytes(), &large).unwrap();
        bulk.push(b"same", own.as_bytes()).unwrap();
        t.adopt(bulk.finish().unwrap()).unwrap();
        match n {
            100 => kept = Some(t.savepoint().unwrap()),
            150 => t.rollback_to(kept.as_ref().unwrap()).unwrap(),
            _ => {}
        }
        if n % 3 == 0 {
            t.delete(d, &own).unwrap();
        }
    }
    let check = |view: &kvdb::View| {
        for n in 0..200u32 {
            let there = n % 3 != 0 && !(101..=150).contains(&n);
            let expected = there.then(|| vec![n as u8; 5000]);
            assert_eq!(
                view.get(d, format!("{n:03}").as_bytes()).unwrap(),
                expected.map(Into::into)
            );
        }
        assert_eq!(view.get(d, b"same").unwrap().unwrap(), "199");
    };
    check(&t.view().unwrap());
    t.commit(Durability::Synced).unwrap();
    check(&db.view());
}

/// Tuples of [`kvdb::Transaction::bulk`] are kept and undone as those of puts are, wherever the
/// savepoints stand.
#[test]
fn a_savepoint_keeps_the_runs_that_were_there_and_undoes_those_that_came() {
    let (db, d, _) = small();
    let adopt = |t: &kvdb::Transaction, keys: &[&str]| {
        let mut bulk = t.bulk(d, &db.view()).unwrap();
        keys.iter().for_each(|key| bulk.push(key.as_bytes(), b"bulk").unwrap());
        t.adopt(bulk.finish().unwrap()).unwrap();
    };
    let names = |t: &kvdb::Transaction| {
        all(&t.view().unwrap(), d).into_iter().map(|(k, _)| k).collect::<Vec<_>>().join(" ")
    };
    // The operations before, between and after two savepoints: p stands for a put, b for a bulk
    // load.
    for before in ["", "p", "b", "pb", "bp"] {
        for between in ["", "p", "b", "pb", "bp", "bb"] {
            for behind in ["p", "b", "pb", "bp"] {
                let t = db.begin(Isolation::Snapshot).unwrap();
                let mut count = 0;
                let mut make = |steps: &str| {
                    for step in steps.chars() {
                        count += 1;
                        let key = format!("{count}{step}");
                        match step {
                            'p' => t.put(d, &key, "put").unwrap(),
                            _ => adopt(&t, &[&key]),
                        }
                    }
                };
                make(before);
                let (first, at_first) = (t.savepoint().unwrap(), names(&t));
                make(between);
                let (second, at_second) = (t.savepoint().unwrap(), names(&t));
                make(behind);
                let what = format!("{before}, {between}, {behind}");
                t.rollback_to(&second).unwrap();
                assert_eq!(names(&t), at_second, "{what}: the second savepoint");
                t.put(d, "x", "put").unwrap();
                t.rollback_to(&second).unwrap();
                assert_eq!(names(&t), at_second, "{what}: the second savepoint again");
                t.rollback_to(&first).unwrap();
                assert_eq!(names(&t), at_first, "{what}: the first savepoint");
                t.abort();
            }
        }
    }
}

#[test]
fn one_larger_than_memory_is_committed_whole_and_its_data_stays_where_it_is() {
    let (db, d, device) = small();
    put(&db, d, "key000003", "old");
    put(&db, d, "other", "old");
    let t = db.begin(Isolation::Snapshot).unwrap();
    let value = |i: u32| vec![i as u8; if i.is_multiple_of(7) { 5000 } else { 300 }];
    const N: u32 = 30_000;
    let written = db.stats().merged_bytes;
    for i in 0..N {
        t.put(d, format!("key{:06}", i * 7919 % N), value(i * 7919 % N)).unwrap();
    }
    t.delete_range(d, "key000100", "key000200").unwrap();
    assert!(t.info().memory < 1 << 20, "{:?}", t.info());
    assert_eq!(t.get(d, b"key012345").unwrap().unwrap(), value(12345));
    put(&db, d, "between", "new");
    assert_eq!(get(&db, d, "key000003").as_deref(), Some("old"));
    let before = db.stats().merged_bytes;
    let bytes: u64 = (0..N).map(|i| 9 + value(i).len() as u64).sum();
    assert!(before - written < bytes * 9 / 4, "{} bytes written for {bytes}", before - written);
    t.commit(Durability::Synced).unwrap();
    let moved = db.stats().merged_bytes - before;
    assert!(moved < 2 << 20, "the commit wrote {moved} bytes");
    put(&db, d, "key000004", "later");
    let look = |db: &Kvdb| {
        assert_eq!(db.get(d, b"key000003").unwrap().unwrap(), value(3));
        assert_eq!(get(db, d, "key000004").as_deref(), Some("later"));
        assert_eq!(get(db, d, "key000150"), None);
        assert_eq!(get(db, d, "other").as_deref(), Some("old"));
        assert_eq!(get(db, d, "between").as_deref(), Some("new"));
        let mut n = 0;
        for tuple in db.view().prefix(d, "key") {
            let (key, v) = tuple.unwrap();
            let i: u32 = std::str::from_utf8(&key[3..]).unwrap().parse().unwrap();
            assert!(i == 4 || v == value(i));
            n += 1;
        }
        assert_eq!(n, N - 100);
    };
    look(&db);
    // The device as a crash leaves it: the journal binds the runs again.
    let crashed = Arc::new((*device).clone());
    let options = OpenOptions { memory: 4 << 20, threads: false, ..Default::default() };
    let (again, recovery) =
        Kvdb::open(crashed.clone(), Arc::new(Machine::default()), options.clone()).unwrap();
    assert!(!recovery.clean);
    // The last put was not synced.
    again.put(d, b"key000004", b"later", Durability::Synced).unwrap();
    look(&again);
    again.compact(d).unwrap();
    look(&again);
    drop(again);
    assert!(kvdb::check(crashed, &mut |_, _| {}).is_clean());
    db.flush().unwrap();
    look(&db);
}

#[test]
fn what_a_large_commit_changed_conflicts_with_others() {
    let (db, d, _) = small();
    let late = db.begin(Isolation::Snapshot).unwrap();
    late.put(d, "key000500", "late").unwrap();
    let disjoint = db.begin(Isolation::Snapshot).unwrap();
    disjoint.put(d, "disjoint", "fine").unwrap();
    let t = db.begin(Isolation::Snapshot).unwrap();
    for i in 0..10_000 {
        t.put(d, format!("key{i:06}"), vec![1; 300]).unwrap();
    }
    let u = db.begin(Isolation::Snapshot).unwrap();
    for i in 5000..15_000 {
        u.put(d, format!("key{i:06}"), vec![2; 300]).unwrap();
    }
    t.commit(Durability::Buffered).unwrap();
    db.compact(d).unwrap();
    assert!(matches!(late.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    assert!(matches!(u.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    disjoint.commit(Durability::Buffered).unwrap();
    assert_eq!(db.get(d, b"key007000").unwrap().unwrap(), vec![1; 300]);
    assert_eq!(get(&db, d, "disjoint").as_deref(), Some("fine"));
}

#[test]
fn its_changes_can_be_listed() {
    let (db, d, _) = small();
    let e = db.open_dictionary("e").unwrap().id();
    for many in [false, true] {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.put(d, "b", "12").unwrap();
        t.put(d, "b", "123").unwrap();
        t.delete(d, "a").unwrap();
        t.delete_range(e, "a", "c").unwrap();
        t.savepoint().unwrap();
        t.put(d, "c", "1").unwrap();
        if many {
            (0..10_000).for_each(|i| t.put(e, format!("x{i:05}"), vec![0; 200]).unwrap());
        }
        let list: Vec<_> = t.changes().unwrap().map(|c| c.unwrap()).collect();
        assert_eq!(list.len(), if many { 10_004 } else { 4 });
        assert_eq!(list[0], (d, Changed::Delete { key: "a".into() }));
        assert_eq!(list[1], (d, Changed::Put { key: "b".into(), len: 3 }));
        assert_eq!(list[2], (d, Changed::Put { key: "c".into(), len: 1 }));
        assert_eq!(list[3], (e, Changed::DeleteRange { start: "a".into(), end: "c".into() }));
    }
}

#[test]
fn a_view_is_renewed_with_what_others_commit_and_keeps_the_changes_that_it_had() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (db, d) = store();
        put(&db, d, "theirs", "1");
        let t = db.begin(isolation).unwrap();
        t.put(d, "mine", "1").unwrap();
        let view = t.view().unwrap();
        t.put(d, "mine", "2").unwrap();
        t.delete_range(d, "a", "m").unwrap();
        put(&db, d, "theirs", "2");
        let renewed = t.renew(&view).unwrap();
        let value = |key: &[u8]| renewed.get(d, key).unwrap().map(|v| v.to_vec());
        let committed = if isolation == Isolation::Serializable { "2" } else { "1" };
        assert_eq!(value(b"theirs"), Some(committed.into()), "{isolation:?}");
        assert_eq!(value(b"mine"), Some(b"1".to_vec()), "{isolation:?}");
        let listed: Vec<_> = t.changes_in(&view, &[d]).unwrap().map(|c| c.unwrap()).collect();
        assert_eq!(listed, [(d, Changed::Put { key: "mine".into(), len: 1 })]);
        assert!(matches!(t.changes_in(&db.view(), &[d]), Err(Error::Invalid(_))));
        t.abort();
        assert!(t.renew(&view).is_err(), "it has ended");
    }
}

#[test]
fn an_idle_one_is_aborted_when_its_time_is_over() {
    let (db, d) = store();
    let options = TransactionOptions {
        detached: true,
        idle_limit: Some(std::time::Duration::ZERO),
        ..Default::default()
    };
    let t = db.begin_with(options).unwrap();
    t.put(d, "a", "1").unwrap();
    while !db.transactions().is_empty() {
        db.step().unwrap();
        std::thread::yield_now();
    }
    let e = t.get(d, b"a").unwrap_err();
    assert!(e.to_string().contains("idle"), "{e}");
    assert_eq!(get(&db, d, "a"), None);
}

#[test]
fn a_dictionary_made_since_it_began_can_be_written_and_read() {
    let (db, _) = store();
    let t = db.begin(Isolation::Snapshot).unwrap();
    let late = db.create_dictionary("late", Default::default()).unwrap();
    assert_eq!(t.get(late, b"a").unwrap(), None);
    t.put(late, "a", "1").unwrap();
    assert_eq!(all(&t.view().unwrap(), late), pairs(&[("a", "1")]));
    assert_eq!(t.view().unwrap().multi_get(late, &["a", "b"]).unwrap(), [Some("1".into()), None]);
    t.commit(Durability::Buffered).unwrap();
    assert_eq!(get(&db, late, "a").as_deref(), Some("1"));
}

#[test]
fn it_tells_before_its_commit_whether_others_were_there() {
    let (db, d) = store();
    put(&db, d, "a", "0");
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.delete(d, "a").unwrap();
    assert!(!t.is_outdated().unwrap());
    put(&db, d, "b", "1");
    assert!(!t.is_outdated().unwrap());
    put(&db, d, "a", "0");
    assert!(t.is_outdated().unwrap(), "the same value again is a change");
}

/// A commit that is refused for now, because another transaction has a lock on `held`.
fn refused_for_now(db: &Kvdb, d: DictionaryId, t: &kvdb::Transaction) {
    let other = db.begin(Isolation::Serializable).unwrap();
    other.lock_key(d, b"held", true).unwrap();
    let refused = kvdb::without_lock_waits(|| t.commit(Durability::Buffered));
    assert!(matches!(refused, Err(Error::Locked(_))), "{refused:?}");
}

#[test]
fn what_it_changes_after_a_commit_that_was_refused_for_now_is_compared_with_all_since_it_began() {
    let (db, d) = store();
    let t = db.begin(Isolation::Snapshot).unwrap();
    put(&db, d, "a", "theirs");
    t.put(d, "held", "mine").unwrap();
    refused_for_now(&db, d, &t);
    t.put(d, "a", "mine").unwrap();
    let result = t.commit(Durability::Buffered);
    assert!(
        matches!(&result, Err(Error::Conflict { keys }) if keys[..] == [(d, "a".into())]),
        "{result:?}"
    );
    assert_eq!((get(&db, d, "a").as_deref(), get(&db, d, "held")), (Some("theirs"), None));
}

#[test]
fn what_a_commit_has_joined_that_was_refused_for_now_is_joined_anew() {
    let (db, d) = store();
    db.set_merge(d, Arc::new(Sum));
    put(&db, d, "count", "10");
    let t = db.begin(Isolation::Snapshot).unwrap();
    let mark = t.savepoint().unwrap();
    t.put(d, "count", "11").unwrap();
    t.put(d, "held", "1").unwrap();
    put(&db, d, "count", "15");
    refused_for_now(&db, d, &t);
    assert_eq!(
        t.get(d, b"count").unwrap().as_deref(),
        Some(&b"11"[..]),
        "it still sees its own state alone"
    );
    t.rollback_to(&mark).unwrap();
    assert_eq!(t.get(d, b"count").unwrap().as_deref(), Some(&b"10"[..]));
    t.put(d, "count", "12").unwrap();
    t.put(d, "held", "1").unwrap();
    refused_for_now(&db, d, &t);
    t.commit(Durability::Buffered).unwrap();
    assert_eq!(get(&db, d, "count").as_deref(), Some("17"));
}

//! Tests of conditional commits. A commit takes effect if none of the data that it is based on has
//! changed, and otherwise changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvdb::{
    Batch, CreateOptions, DictionaryId, Durability, Error, Isolation, Kvdb, OpenOptions, Reads,
    Update, View,
};

const BUFFERED: Durability = Durability::Buffered;

fn store() -> (Kvdb, DictionaryId) {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap().id();
    for key in ["a", "b", "c", "n"] {
        db.put(d, key.as_bytes(), b"0", BUFFERED).unwrap();
    }
    (db, d)
}

fn key(d: DictionaryId, key: &str) -> Reads {
    let mut reads = Reads::default();
    reads.key(d, key.as_bytes());
    reads
}

fn range(d: DictionaryId, start: &str, end: &str) -> Reads {
    let mut reads = Reads::default();
    reads.range(d, start.as_bytes(), end.as_bytes());
    reads
}

fn put(d: DictionaryId, key: &str) -> Batch {
    let mut batch = Batch::new();
    batch.put(d, key.to_owned(), "mine");
    batch
}

fn add(d: DictionaryId) -> Batch {
    let mut batch = Batch::new();
    batch.update(d, "n", Update::add(1));
    batch
}

type Way = (&'static str, fn(&Kvdb, DictionaryId));

/// Ways in which others may change `b`, and nothing else.
fn ways() -> Vec<Way> {
    vec![
        ("put", |db, d| db.put(d, b"b", b"1", BUFFERED).unwrap()),
        ("the same again", |db, d| db.put(d, b"b", b"0", BUFFERED).unwrap()),
        ("delete", |db, d| {
            let mut batch = Batch::new();
            batch.delete(d, "b");
            db.commit(batch, BUFFERED).unwrap();
        }),
        ("range", |db, d| {
            let mut batch = Batch::new();
            batch.delete_range(d, "b", "bb");
            db.commit(batch, BUFFERED).unwrap();
        }),
        ("update", |db, d| {
            let mut batch = Batch::new();
            batch.update(d, "b", Update::add(1));
            db.commit(batch, BUFFERED).unwrap();
        }),
        ("transaction", |db, d| {
            let t = db.begin(Isolation::Snapshot).unwrap();
            t.put(d, "b", "1").unwrap();
            t.commit(BUFFERED).unwrap();
        }),
        ("conditional", |db, d| {
            assert!(db.commit_if_unchanged(put(d, "b"), db.view(), Reads::default()).unwrap());
        }),
        ("flushed", |db, d| {
            db.put(d, b"b", b"1", BUFFERED).unwrap();
            db.flush().unwrap();
        }),
        ("ingest", |db, _| {
            let dictionary = db.open_dictionary("d").unwrap();
            assert_eq!(dictionary.ingest([("b", "1")]).unwrap().tuples, 1);
        }),
    ]
}

#[test]
fn it_is_made_when_nothing_that_it_was_made_of_has_changed() {
    let (db, d) = store();
    for (reads, what) in [
        (Reads::default(), "nothing"),
        (key(d, "a"), "a key"),
        (key(d, "missing"), "a key that is not there"),
        (range(d, "a", "b"), "a range"),
        (range(d, "bb", "c"), "a range of nothing"),
        (range(d, "c", ""), "all from a key on"),
    ] {
        let state = db.view();
        db.put(d, b"b", b"1", BUFFERED).unwrap();
        assert!(db.commit_if_unchanged(put(d, "mine"), state, reads).unwrap(), "{what}");
        assert_eq!(db.get(d, b"mine").unwrap().as_deref(), Some(&b"mine"[..]));
    }
}

#[test]
fn what_was_read_and_changed_by_others_is_a_conflict() {
    for (way, change) in ways() {
        for reads in [0, 1, 2, 3] {
            let (db, d) = store();
            let state = db.view();
            let reads = match reads {
                0 => key(d, "b"),
                1 => range(d, "aa", "bb"),
                2 => range(d, "b", ""),
                _ => range(d, "", "c"),
            };
            change(&db, d);
            assert!(
                !db.commit_if_unchanged(put(d, "mine"), state, reads.clone()).unwrap(),
                "{way}"
            );
            assert_eq!(db.get(d, b"mine").unwrap(), None, "{way}: nothing has changed");
            // The commit succeeds if it is based on the current state.
            assert!(db.commit_if_unchanged(put(d, "mine"), db.view(), reads).unwrap(), "{way}");
        }
    }
}

#[test]
fn what_it_writes_and_others_have_changed_is_a_conflict() {
    type Fill = fn(DictionaryId) -> Batch;
    let fills: [(&str, Fill); 4] = [
        ("put", |d| put(d, "b")),
        ("delete", |d| {
            let mut batch = put(d, "mine");
            batch.delete(d, "b");
            batch
        }),
        ("range", |d| {
            let mut batch = put(d, "mine");
            batch.delete_range(d, "a", "bb");
            batch
        }),
        ("update that does not commute", |d| {
            let mut batch = put(d, "mine");
            batch.update(d, "b", Update::append(b"x").unwrap());
            batch
        }),
    ];
    for (way, change) in ways() {
        for (fill, batch) in fills {
            let (db, d) = store();
            let state = db.view();
            change(&db, d);
            let before = db.get(d, b"b").unwrap();
            let done = db.commit_if_unchanged(batch(d), state, Reads::default()).unwrap();
            assert!(!done, "{way}, {fill}");
            assert_eq!(db.get(d, b"b").unwrap(), before, "{way}, {fill}: nothing has changed");
        }
    }
}

#[test]
fn updates_that_commute_conflict_only_where_the_value_was_read() {
    let (db, d) = store();
    let (state, other) = (db.view(), db.view());
    assert!(db.commit_if_unchanged(add(d), state, Reads::default()).unwrap());
    assert!(db.commit_if_unchanged(add(d), other.clone(), Reads::default()).unwrap());
    assert!(!db.commit_if_unchanged(add(d), other, key(d, "n")).unwrap());
    assert_eq!(db.get(d, b"n").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn another_version_of_the_store_is_not_searched() {
    let (db, d) = store();
    let state = db.view();
    db.flush().unwrap();
    assert!(!db.commit_if_unchanged(put(d, "mine"), state, Reads::default()).unwrap());
    assert!(db.commit_if_unchanged(put(d, "mine"), db.view(), Reads::default()).unwrap());
}

#[test]
fn a_long_range_is_searched_only_where_something_was_committed() {
    let (db, d) = store();
    for i in 0..2000u32 {
        db.put(d, format!("long{i:05}").as_bytes(), b"", BUFFERED).unwrap();
    }
    let (quiet, state) = (db.view(), db.view());
    assert!(db.commit_if_unchanged(put(d, "a"), quiet, range(d, "long", "m")).unwrap());
    assert!(!db.commit_if_unchanged(put(d, "mine"), state, range(d, "long", "m")).unwrap());
}

#[test]
fn a_state_that_is_not_the_stores_own_is_refused() {
    let (db, d) = store();
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.put(d, "mine", "1").unwrap();
    let refused = |state: View| !db.commit_if_unchanged(put(d, "a"), state, key(d, "b")).unwrap();
    assert!(refused(t.view().unwrap()), "that of a transaction");
    db.snapshot("s").unwrap();
    db.put(d, b"b", b"1", BUFFERED).unwrap();
    assert!(refused(db.open_snapshot("s").unwrap()), "that of a snapshot");
}

#[test]
fn it_waits_for_a_lock_and_then_looks() {
    let (db, d) = store();
    for ends_with_commit in [true, false] {
        let t = db.begin(Isolation::Serializable).unwrap();
        t.put(d, "b", "theirs").unwrap();
        let state = db.view();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let done = db.commit_if_unchanged(put(d, "b"), state, Reads::default()).unwrap();
                assert!(ended.load(Ordering::SeqCst), "it did not wait");
                done
            });
            ended.store(true, Ordering::SeqCst);
            match ends_with_commit {
                true => t.commit(BUFFERED).unwrap(),
                false => t.abort(),
            }
            assert_eq!(waiting.join().unwrap(), !ends_with_commit);
        });
    }
}

#[test]
fn a_store_that_takes_no_writes_says_so() {
    let (db, d) = store();
    let state = db.view();
    db.close().unwrap();
    let refused = db.commit_if_unchanged(put(d, "a"), state, Reads::default());
    assert!(refused.is_err(), "{refused:?}");
    let (db, _) = store();
    let missing = put(DictionaryId(77), "a");
    let refused = db.commit_if_unchanged(missing, db.view(), Reads::default());
    assert!(matches!(refused, Err(Error::NoDictionary(_))), "{refused:?}");
}

/// Counters that are read and put, by conditional commits and by transactions, while memtables are
/// flushed: no addition is lost.
#[test]
fn no_update_is_lost_between_threads() {
    const TIMES: u64 = 2000;
    let open = OpenOptions { memory: 1 << 20, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let device = Arc::new(zones::MemoryDevice::new());
    let db = Kvdb::create(device, Arc::new(env::Machine::default()), options).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    let number = |value: Option<bytes::Bytes>| -> u64 {
        value.map_or(0, |v| {
            std::str::from_utf8(&v[..v.len().min(20)]).unwrap().trim().parse().unwrap()
        })
    };
    // Long enough for memtables to fill up.
    let text = |n: u64| format!("{n:<400}");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let db = &db;
            scope.spawn(move || {
                for i in 0..TIMES {
                    let counter = format!("counter{}", (i + thread) % 3);
                    loop {
                        let counter = counter.as_bytes();
                        if thread == 0 {
                            let t = db.begin(Isolation::Snapshot).unwrap();
                            let n = number(t.get(d, counter).unwrap());
                            t.put(d, counter, text(n + 1)).unwrap();
                            match t.commit(BUFFERED) {
                                Ok(()) => break,
                                Err(Error::Conflict { .. }) => continue,
                                Err(e) => panic!("{e}"),
                            }
                        }
                        let state = db.view();
                        let n = number(state.get(d, counter).unwrap());
                        let mut batch = Batch::new();
                        batch.put(d, counter.to_vec(), text(n + 1));
                        if db.commit_if_unchanged(batch, state, Reads::default()).unwrap() {
                            break;
                        }
                    }
                    if thread == 1 && i % 500 == 0 {
                        db.flush().unwrap();
                    }
                }
            });
        }
    });
    let sum: u64 =
        (0..3).map(|i| number(db.get(d, format!("counter{i}").as_bytes()).unwrap())).sum();
    assert_eq!(sum, 4 * TIMES);
}

/// A batch without changes checks that what was read still holds, such as a lease.
#[test]
fn an_empty_batch_fails_when_what_was_read_has_changed() {
    let (db, d) = store();
    let lease = || key(d, "a");
    let state = db.view();
    assert!(db.commit_if_unchanged(Batch::new(), state.clone(), lease()).unwrap());
    db.put(d, b"b", b"1", BUFFERED).unwrap();
    assert!(db.commit_if_unchanged(Batch::new(), state.clone(), lease()).unwrap(), "another key");
    db.put(d, b"a", b"1", BUFFERED).unwrap();
    assert!(!db.commit_if_unchanged(Batch::new(), state.clone(), lease()).unwrap());
    assert!(db.commit_if_unchanged(Batch::new(), state, Reads::default()).unwrap(), "of nothing");
    let state = db.view();
    db.drop_dictionary(d).unwrap();
    assert!(!db.commit_if_unchanged(Batch::new(), state, lease()).unwrap(), "all of it is gone");
}

//! Tests of serializable transactions. Each has the result that it would have alone, whatever
//! others read and write at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvdb::{
    Batch, DictionaryId, DictionaryOptions, Durability, Error, Isolation, Kvdb, ReceiveOptions,
    Transaction, TransactionOptions,
};

fn store() -> (Kvdb, DictionaryId) {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap().id();
    (db, d)
}

fn begin(db: &Kvdb) -> Transaction {
    db.begin(Isolation::Serializable).unwrap()
}

/// A transaction that does not wait.
fn hasty(db: &Kvdb) -> Transaction {
    let options = TransactionOptions {
        lock_timeout: Duration::ZERO,
        isolation: Isolation::Serializable,
        ..Default::default()
    };
    db.begin_with(options).unwrap()
}

fn text(db: &Kvdb, d: DictionaryId, key: &str) -> String {
    String::from_utf8(db.get(d, key.as_bytes()).unwrap().unwrap().to_vec()).unwrap()
}

#[test]
fn what_it_has_read_stays_as_it_was_until_it_ends() {
    let (db, d) = store();
    db.put(d, b"a", b"1", Durability::Buffered).unwrap();
    let t = begin(&db);
    assert_eq!(t.get(d, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(t.scan(d, b"k", b"m", 10).unwrap(), []);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = |key: &'static [u8]| {
            let (db, ended) = (db.clone(), &ended);
            move || {
                db.put(d, key, b"2", Durability::Buffered).unwrap();
                assert!(ended.load(Ordering::SeqCst), "{key:?} was written while it was locked");
            }
        };
        scope.spawn(write(b"a"));
        scope.spawn(write(b"l"));
        // Keys without a lock are free, for plain writes and for other transactions.
        db.put(d, b"m", b"2", Durability::Buffered).unwrap();
        let s = db.begin(Isolation::Snapshot).unwrap();
        s.put(d, "n", "2").unwrap();
        s.commit(Durability::Buffered).unwrap();
        assert_eq!(t.get(d, b"a").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(t.scan(d, b"k", b"m", 10).unwrap(), []);
        t.put(d, "z", "1").unwrap();
        ended.store(true, Ordering::SeqCst);
        t.commit(Durability::Buffered).unwrap();
    });
    assert_eq!(
        (text(&db, d, "a"), text(&db, d, "l"), text(&db, d, "z")),
        ("2".into(), "2".into(), "1".into())
    );
}

#[test]
fn it_reads_what_is_committed_now() {
    let (db, d) = store();
    let t = begin(&db);
    db.put(d, b"a", b"1", Durability::Buffered).unwrap();
    assert_eq!(t.get(d, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    t.put(d, "a", "2").unwrap();
    t.commit(Durability::Buffered).unwrap();
    assert_eq!(text(&db, d, "a"), "2");
}

#[test]
fn the_older_goes_first_and_the_younger_begins_again() {
    let (db, d) = store();
    let (older, younger) = (begin(&db), begin(&db));
    younger.put(d, "a", "younger").unwrap();
    older.put(d, "a", "older").unwrap();
    let e = younger.get(d, b"b").unwrap_err();
    assert!(
        matches!(e, Error::Locked(_))
            && e.is_retryable()
            && e.to_string().contains("older transaction"),
        "{e}"
    );
    assert!(matches!(younger.commit(Durability::Buffered), Err(Error::Locked(_))));
    // When it is restarted it keeps its age, and precedes all that began since.
    let newcomer = begin(&db);
    newcomer.put(d, "b", "newcomer").unwrap();
    let again = TransactionOptions {
        isolation: Isolation::Serializable,
        retry_of: Some(younger.id()),
        ..Default::default()
    };
    let again = db.begin_with(again).unwrap();
    again.put(d, "b", "again").unwrap();
    assert!(newcomer.commit(Durability::Buffered).is_err());
    again.commit(Durability::Buffered).unwrap();
    older.commit(Durability::Buffered).unwrap();
    assert_eq!((text(&db, d, "a"), text(&db, d, "b")), ("older".into(), "again".into()));
}

#[test]
fn a_younger_one_waits_only_as_long_as_it_wants_to() {
    let (db, d) = store();
    let older = begin(&db);
    older.lock_range(d, b"a", b"c", true).unwrap();
    let younger = hasty(&db);
    let e = younger.get(d, b"b").unwrap_err();
    assert!(
        matches!(e, Error::Locked(_))
            && e.to_string().contains(&format!("transaction {}", older.id())),
        "{e}"
    );
    younger.get(d, b"c").unwrap();
    older.abort();
    assert_eq!(younger.get(d, b"b").unwrap(), None);
    younger.put(d, "b", "1").unwrap();
    younger.commit(Durability::Buffered).unwrap();
}

#[test]
fn a_snapshot_transaction_commits_around_locks() {
    let (db, d) = store();
    for large in [false, true] {
        let s = db.begin(Isolation::Snapshot).unwrap();
        s.put(d, "a", "s").unwrap();
        if large {
            (0..20_000).for_each(|i| s.put(d, format!("key{i}"), vec![1; 100]).unwrap());
        }
        let t = begin(&db);
        assert!(t.get(d, b"a").unwrap().is_none_or(|v| v == "t"));
        t.put(d, "b", "t").unwrap();
        std::thread::scope(|scope| {
            let committed = scope.spawn(|| s.commit(Durability::Buffered));
            assert!(t.get(d, b"a").unwrap().is_none_or(|v| v == "t"));
            t.put(d, "a", "t").unwrap();
            t.commit(Durability::Buffered).unwrap();
            // The transaction was the first to commit.
            assert!(
                matches!(committed.join().unwrap(), Err(Error::Conflict { .. })),
                "large: {large}"
            );
        });
        assert_eq!(text(&db, d, "a"), "t");
        let mut batch = Batch::new();
        batch.delete_range(d, "key", "kez");
        db.commit(batch, Durability::Buffered).unwrap();
    }
}

#[test]
fn two_that_read_both_and_write_one_cannot_both_commit() {
    let (db, d) = store();
    db.put(d, b"a", b"1", Durability::Buffered).unwrap();
    db.put(d, b"b", b"1", Durability::Buffered).unwrap();
    let (t, u) = (begin(&db), hasty(&db));
    for x in [&t, &u] {
        x.get(d, b"a").unwrap();
        x.get(d, b"b").unwrap();
    }
    assert!(u.put(d, "b", "0").is_err(), "the older one has read it");
    t.put(d, "a", "0").unwrap();
    t.commit(Durability::Buffered).unwrap();
    assert!(u.commit(Durability::Buffered).is_err(), "the older one wrote what it had read");
    assert_eq!((text(&db, d, "a"), text(&db, d, "b")), ("0".into(), "1".into()));
}

/// A drop changes everything in a dictionary: a transaction that has read or changed something
/// there is aborted, and does not read another state than before.
#[test]
fn a_drop_ends_transactions_that_have_read_or_changed_what_is_dropped() {
    type Way = fn(&Kvdb, DictionaryId);
    let ways: [(&str, Way); 2] =
        [("", |db, d| db.drop_dictionary(d).unwrap()), ("b", |db, _| db.drop_branch("b").unwrap())];
    for (branch, drop) in ways {
        for writes in [false, true] {
            let db = Kvdb::in_memory();
            db.create_branch("b").unwrap();
            let make = |branch: &str, name: &str| {
                db.create_dictionary_in(branch, name, DictionaryOptions::default()).unwrap()
            };
            let (d, other) = (make(branch, "d"), make("", "other"));
            db.put(d, b"k", b"1", Durability::Buffered).unwrap();
            let t = db.begin(Isolation::Serializable).unwrap();
            let bystander = db.begin(Isolation::Serializable).unwrap();
            assert_eq!(bystander.get(other, b"k").unwrap(), None);
            match writes {
                true => t.put(d, "k", "2").unwrap(),
                false => assert!(t.get(d, b"k").unwrap().is_some()),
            }
            drop(&db, d);
            assert!(matches!(t.get(d, b"k"), Err(Error::NoTransaction(_) | Error::Locked(_))));
            assert!(t.put(other, "k", "from t").is_err());
            assert!(t.commit(Durability::Buffered).is_err());
            assert_eq!(db.get(other, b"k").unwrap(), None);
            bystander.put(other, "k", "1").unwrap();
            bystander.commit(Durability::Buffered).unwrap();
        }
    }
}

/// Every kind of read of a dropped dictionary returns an error, and never the answer of an empty
/// dictionary.
#[test]
fn every_read_of_a_dictionary_that_is_gone_says_so() {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "v").unwrap();
    let before = db.view();
    let old = db.begin(Isolation::Snapshot).unwrap();
    db.drop_dictionary(d.id()).unwrap();
    fn gone<T: std::fmt::Debug>(answer: kvdb::Result<T>) {
        assert!(matches!(answer, Err(Error::NoDictionary(_))), "{answer:?}");
    }
    gone(d.get("k"));
    gone(d.contains("k"));
    gone(d.iter().collect::<kvdb::Result<Vec<_>>>());
    gone(db.multi_get(d.id(), &["k"]));
    let view = db.view();
    gone(view.get(d.id(), b"k"));
    gone(view.stored(d.id(), b"k").map(|found| found.is_some()));
    gone(view.value_len(d.id(), b"k"));
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let t = db.begin(isolation).unwrap();
        gone(t.get(d.id(), b"k"));
        gone(t.scan(d.id(), b"", b"", 10));
        gone(t.cursor(d.id(), b"", b"").map(|_| ()));
    }
    assert!(before.get(d.id(), b"k").unwrap().is_some(), "a view keeps what it has");
    assert!(old.get(d.id(), b"k").unwrap().is_some(), "and so does what a transaction reads");
    // A dictionary that was made later exists, and is empty, for a transaction that began before.
    let made = db.open_dictionary("made").unwrap();
    made.insert("k", "v").unwrap();
    assert_eq!(old.get(made.id(), b"k").unwrap(), None);
    assert!(old.scan(made.id(), b"", b"", 10).unwrap().is_empty());
}

#[test]
fn a_handle_from_before_a_receive_says_that_its_dictionary_is_gone() {
    let (db, replica) = (Kvdb::in_memory(), Kvdb::in_memory());
    let receive = |snapshot: &str, base: Option<&str>| {
        let mut stream = Vec::new();
        db.send(snapshot, base, &mut stream, None).unwrap();
        replica.receive(&stream[..], &ReceiveOptions::default()).unwrap();
    };
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "1").unwrap();
    db.snapshot("one").unwrap();
    d.insert("k", "2").unwrap();
    db.snapshot("two").unwrap();
    receive("one", None);
    let before = replica.open_dictionary("d").unwrap();
    assert_eq!(before.get("k").unwrap().unwrap(), "1");
    receive("two", Some("one"));
    for _ in 0..2 {
        let answer = before.get("k");
        assert!(matches!(answer, Err(Error::NoDictionary(_))), "{answer:?}");
    }
    assert_eq!(replica.open_dictionary("d").unwrap().get("k").unwrap().unwrap(), "2");
}

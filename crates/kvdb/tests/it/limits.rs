//! Tests of the limits of transactions. A change that exceeds a limit is refused in that
//! transaction and in no other place.

use std::sync::Arc;

use env::Machine;
use kvdb::{
    Batch, CreateOptions, Durability, Error, Isolation, Kvdb, OpenOptions, Transaction,
    TransactionId, TransactionOptions,
};
use zones::MemoryDevice;

const LIMIT: u64 = 4 << 20;

fn limited(db: &Kvdb, limit: u64, within: Option<TransactionId>) -> Transaction {
    let limit = Some(limit);
    let options = TransactionOptions { limit, within, ..TransactionOptions::default() };
    db.begin_with(options).expect("begun")
}

fn value(byte: u8) -> Vec<u8> {
    vec![byte; 10_000]
}

/// Puts values until one is refused. Returns the number of accepted ones.
fn fill(t: &Transaction, dict: kvdb::DictionaryId, prefix: &str) -> usize {
    for n in 0..10_000 {
        match t.put(dict, format!("{prefix}{n:05}"), value(n as u8)) {
            Ok(()) => {}
            Err(Error::OverLimit { limit, .. }) => {
                assert_eq!(limit, LIMIT);
                return n;
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no limit");
}

#[test]
fn what_would_take_more_is_refused_there_and_the_rest_commits() {
    let db = Kvdb::in_memory();
    let dict = db.open_dictionary("d").expect("made");
    let t = limited(&db, LIMIT, None);
    let taken = fill(&t, dict.id(), "k");
    // Memory takes a little more than keys and values.
    assert!((300..=(LIMIT / 10_000) as usize).contains(&taken), "{taken}");
    assert_eq!(t.info().limit, Some(LIMIT));
    assert!(t.room().is_some_and(|room| room < 20_000), "{:?}", t.room());
    // A batch is taken whole or not at all.
    let mut batch = Batch::new();
    batch.put(dict.id(), "small", "1");
    batch.put(dict.id(), "large", value(1).repeat(3));
    assert!(matches!(t.apply(batch), Err(Error::OverLimit { .. })));
    assert_eq!(t.get(dict.id(), b"small").expect("read"), None);
    // Other transactions can write.
    dict.insert("outside", value(1).repeat(600)).expect("written");
    t.commit(Durability::Buffered).expect("committed");
    assert_eq!(
        dict.get(format!("k{:05}", taken - 1)).expect("read").map(|v| v.len()),
        Some(10_000)
    );
    assert_eq!(dict.get(format!("k{taken:05}")).expect("read"), None);
}

#[test]
fn what_is_deleted_or_overwritten_gives_room_back() {
    let db = Kvdb::in_memory();
    let dict = db.open_dictionary("d").expect("made").id();
    let t = limited(&db, LIMIT, None);
    let taken = fill(&t, dict, "a");
    t.delete_range(dict, "a", "b").expect("deletions are taken");
    let again = fill(&t, dict, "b");
    assert!(again + 20 > taken, "{again} after {taken}");
    // Overwriting the same keys repeatedly takes no more space than once, if there is room for some
    // of them.
    t.delete_range(dict, format!("b{:05}", again / 2), "c").expect("deletions are taken");
    for round in 0..40u8 {
        for n in 0..again / 2 {
            t.put(dict, format!("b{n:05}"), value(round)).expect("it replaces what is there");
        }
    }
    t.commit(Durability::Buffered).expect("committed");
}

#[test]
fn what_is_committed_into_a_transaction_counts_there() {
    let db = Kvdb::in_memory();
    let dict = db.open_dictionary("d").expect("made").id();
    let outer = limited(&db, LIMIT, None);
    outer.put(dict, "own", value(1).repeat(100)).expect("put");
    let begin = || {
        let within = TransactionOptions { within: Some(outer.id()), ..Default::default() };
        db.begin_with(within).expect("begun")
    };
    // A nested transaction may use what is left, and not more.
    let one = begin();
    let taken = fill(&one, dict, "one");
    assert!((200..320).contains(&taken), "{taken}");
    let two = begin();
    two.put(dict, "two", value(1).repeat(200)).expect("it has room for itself");
    one.commit(Durability::Buffered).expect("committed");
    let refused = two.commit(Durability::Buffered);
    assert!(matches!(refused, Err(Error::OverLimit { .. })), "{refused:?}");
    two.abort();
    // If the nested one has a limit of its own, the smaller one applies.
    outer.delete_range(dict, "one", "onf").expect("deletions are taken");
    outer.make_room().expect("merged");
    let small = limited(&db, 100_000, Some(outer.id()));
    assert!(matches!(
        small.put(dict, "x", value(1).repeat(20)),
        Err(Error::OverLimit { limit: 100_000, .. })
    ));
    drop(small);
    outer.commit(Durability::Buffered).expect("committed");
}

#[test]
fn runs_that_are_written_in_bulk_count_one_by_one() {
    let db = Kvdb::in_memory();
    let dict = db.open_dictionary("d").expect("made").id();
    let t = limited(&db, LIMIT, None);
    let view = db.view();
    let adopt = |n: u8| {
        let mut bulk = t.bulk(dict, &view).expect("begun");
        for i in 0..100u8 {
            bulk.push(&[n, i], &value(i)).expect("pushed");
        }
        t.adopt(bulk.finish().expect("written"))
    };
    let adopted = (0..10).take_while(|n| adopt(*n).is_ok()).count();
    assert!((3..=4).contains(&adopted), "{adopted} runs of a megabyte");
    t.commit(Durability::Buffered).expect("committed");
}

#[test]
fn a_durable_one_has_its_limit_after_a_restart() {
    let device = Arc::new(MemoryDevice::new());
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), CreateOptions::default());
    let db = db.expect("made");
    let dict = db.open_dictionary("d").expect("made").id();
    let options = TransactionOptions {
        durable: true,
        limit: Some(LIMIT),
        limit_of_files: Some(300),
        user: Some(7),
        ..TransactionOptions::default()
    };
    let t = db.begin_with(options).expect("begun");
    let (id, taken) = (t.id(), fill(&t, dict, "k"));
    drop(t);
    db.close().expect("closed");
    let opened = Kvdb::open(device, Arc::new(Machine::default()), OpenOptions::default());
    let (db, _) = opened.expect("opened");
    let t = db.transaction(id).expect("it goes on");
    assert_eq!((t.info().limit, t.user()), (Some(LIMIT), Some(7)));
    assert_eq!(t.info().limit_of_files, Some(300));
    assert!(matches!(t.put(dict, "more", value(1).repeat(10)), Err(Error::OverLimit { .. })));
    assert!(t.get(dict, format!("k{:05}", taken - 1).as_bytes()).expect("read").is_some());
    t.commit(Durability::Synced).expect("committed");
}

#[test]
fn others_have_none() {
    let db = Kvdb::in_memory();
    let t = db.begin(Isolation::Snapshot).expect("begun");
    assert_eq!(
        (t.room(), t.make_room().expect("nothing to do"), t.info().limit),
        (None, None, None)
    );
}

//! Tests of the data that open transactions may accumulate, relative to the store's memory: their
//! changes, the transactions themselves, savepoints, nested batches and recorded reads. Each has a
//! limit, and reaching it is an error that changes nothing.

use std::sync::Arc;

use env::Machine;
use kvdb::{
    Batch, CreateOptions, Durability, Error, Isolation, Kvdb, MAX_SAVEPOINTS, OpenOptions,
    Transaction, TransactionOptions,
};
use zones::MemoryDevice;

const MEMORY: usize = 16 << 20;

fn store() -> Kvdb {
    let open = OpenOptions { memory: MEMORY, threads: false, ..OpenOptions::default() };
    Kvdb::create(
        Arc::new(MemoryDevice::new()),
        Arc::new(Machine::default()),
        CreateOptions { open, ..CreateOptions::default() },
    )
    .expect("made")
}

fn held(db: &Kvdb) -> u64 {
    db.transactions().iter().map(|t| t.memory).sum()
}

fn detached(db: &Kvdb) -> kvdb::Result<Transaction> {
    db.begin_with(TransactionOptions { detached: true, ..TransactionOptions::default() })
}

#[test]
fn idle_transactions_are_written_out() {
    let db = store();
    let dict = db.open_dictionary("d").expect("made");
    let all: Vec<Transaction> =
        (0..200).map(|_| db.begin(Isolation::Snapshot).expect("begun")).collect();
    // Each one when the others are idle: one after the other, then all in turn.
    for round in 0..3 {
        for (i, t) in all.iter().enumerate() {
            for j in 0..if round == 0 { 50 } else { 2 } {
                t.put(dict.id(), format!("{i:03}/{round}/{j:02}"), vec![i as u8; 1000])
                    .expect("put");
            }
            if round == 0 && i % 7 == 0 {
                t.savepoint().expect("marked");
            }
            // Their part of the budget is a sixteenth; what is too little to be a run of its own
            // comes on top.
            let most = MEMORY / 16 + all.len() * (8 << 10) + (64 << 10);
            assert!(
                held(&db) <= most as u64,
                "round {round}, after {i}: {} bytes in memory",
                held(&db)
            );
        }
    }
    let spilled = db.transactions().iter().filter(|t| t.run_bytes > 0).count();
    assert!(spilled > 150, "{spilled} were written out");
    for (i, t) in all.iter().enumerate() {
        assert_eq!(t.scan(dict.id(), b"", b"", 1000).expect("read").len(), 54, "{i}");
        t.commit(Durability::Buffered).expect("committed");
    }
    assert_eq!(held(&db), 0);
    assert_eq!(dict.iter().count(), 200 * 54);
    assert!(dict.iter().all(|tuple| {
        tuple.is_ok_and(|(key, value)| key[..3] == *format!("{:03}", value[0]).as_bytes())
    }));
}

#[test]
fn there_are_so_many_open_transactions_and_no_more() {
    let db = store();
    let mut all = Vec::new();
    let refused = loop {
        match detached(&db) {
            Ok(t) => all.push(t),
            Err(e) => break e,
        }
        assert!(all.len() < 100_000, "no limit");
    };
    assert!(matches!(refused, Error::Limit(_)), "{refused}");
    assert_eq!(all.len(), MEMORY / (64 << 10));
    // A transaction that the program holds and ends itself is not refused in favour of those.
    let dict = db.open_dictionary("d").expect("made").id();
    let t = db.begin(Isolation::Serializable).expect("begun");
    t.put(dict, "k", "1").expect("put");
    t.commit(Durability::Buffered).expect("committed");
    let durable = TransactionOptions { durable: true, ..TransactionOptions::default() };
    assert!(matches!(db.begin_with(durable), Err(Error::Limit(_))));
    all.pop().expect("one").abort();
    let again = detached(&db).expect("there is room for one again");
    assert!(matches!(detached(&db), Err(Error::Limit(_))));
    again.commit(Durability::Buffered).expect("committed");
    detached(&db).expect("there is room for one again");
}

#[test]
fn savepoints_have_a_limit() {
    let db = store();
    let dict = db.open_dictionary("d").expect("made").id();
    let t = db.begin(Isolation::Snapshot).expect("begun");
    let mut first = None;
    for i in 0..MAX_SAVEPOINTS {
        t.put(dict, format!("{i:04}"), "1").expect("put");
        first.get_or_insert(t.savepoint().expect("marked"));
    }
    t.put(dict, "behind", "1").expect("put");
    assert!(matches!(t.savepoint(), Err(Error::Limit(_))));
    assert!(t.info().memory < 2 << 20, "{:?}", t.info());
    assert_eq!(t.scan(dict, b"", b"", 10_000).expect("read").len(), MAX_SAVEPOINTS + 1);
    t.rollback_to(&first.expect("one")).expect("back");
    t.savepoint().expect("there is room again");
    assert_eq!(t.scan(dict, b"", b"", 10).expect("read").len(), 1);
}

#[test]
fn nested_batches_have_a_limit_all_together() {
    let db = store();
    let dict = db.open_dictionary("d").expect("made").id();
    let batch = |n: usize| {
        let mut batch = Batch::new();
        (0..n).for_each(|i| batch.put(dict, format!("{i:06}"), vec![0; 10_000]));
        batch
    };
    let t = db.begin(Isolation::Snapshot).expect("begun");
    let (mut one, mut two) = (t.nested_batch().expect("begun"), t.nested_batch().expect("begun"));
    one.apply(batch(100)).expect("applied");
    two.apply(batch(90)).expect("applied");
    assert!(matches!(two.apply(batch(50)), Err(Error::Limit(_))), "together they are too much");
    drop(one);
    two.apply(batch(100)).expect("there is room again");
    two.finish().expect("made");
    let mut three = t.nested_batch().expect("begun");
    assert!(matches!(three.apply(batch(1000)), Err(Error::Limit(_))));
    three.apply(batch(150)).expect("applied");
    three.finish().expect("made");
    t.commit(Durability::Buffered).expect("committed");
    assert_eq!(db.view().iter(dict).count(), 150);
}

#[test]
fn what_a_commit_depends_on_has_a_limit() {
    let db = store();
    let dict = db.open_dictionary("d").expect("made").id();
    let t = db.begin(Isolation::Snapshot).expect("begun");
    let refused = (0..u64::MAX).find_map(|i| {
        let key = [&i.to_be_bytes()[..], &[0; 30_000]].concat();
        t.read_conflict_key(dict, &key).err()
    });
    assert!(matches!(refused, Some(Error::Limit(_))));
    t.put(dict, "k", "1").expect("put");
    t.commit(Durability::Buffered).expect("nothing has changed");
}

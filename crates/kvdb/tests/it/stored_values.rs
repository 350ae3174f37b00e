//! Tests of values that several keys share. They are put by reference, not copied, and stay for as
//! long as one key refers to them.

use std::sync::Arc;

use env::Machine;
use kvdb::{
    Batch, CreateOptions, DictionaryId, Durability, Isolation, Kvdb, OpenOptions, Reference, Scope,
};
use zones::MemoryDevice;

const LEN: usize = 1 << 20;

fn store() -> (Kvdb, DictionaryId, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions {
        memory: 8 << 20,
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

fn value(i: u8) -> Vec<u8> {
    vec![i; LEN]
}

fn written(db: &Kvdb) -> u64 {
    db.stats().io.total().write_bytes
}

/// Puts the values of `from*` under `to*` by reference, in a transaction or without one.
fn share(db: &Kvdb, d: DictionaryId, to: &str, in_transaction: bool) {
    let mut batch = Batch::new();
    for (key, value) in db.view().scan_stored(d, b"from", b"from\xff", 100).unwrap() {
        assert_eq!(value.len(), LEN);
        let key = [to.as_bytes(), &key[4..]].concat();
        batch.put_stored(d, key, value);
    }
    match in_transaction {
        false => db.commit(batch, Durability::Synced).unwrap(),
        true => {
            let t = db.begin(Isolation::Snapshot).unwrap();
            t.apply(batch).unwrap();
            assert_eq!(
                t.get(d, [to.as_bytes(), &[3]].concat().as_slice()).unwrap().unwrap(),
                value(3)
            );
            t.commit(Durability::Synced).unwrap();
        }
    }
}

#[test]
fn what_is_shared_is_written_once_and_lives_as_long_as_one_key_has_it() {
    for in_transaction in [false, true] {
        let (db, d, device) = store();
        for i in 0..10u8 {
            db.put(d, &[b"from", &[i][..]].concat(), &value(i), Durability::Buffered).unwrap();
        }
        db.sync().unwrap();
        let before = written(&db);
        for copy in 0..20 {
            share(&db, d, &format!("to{copy:02}/"), in_transaction);
        }
        assert!(
            written(&db) - before < 2 * LEN as u64,
            "{} bytes for copies of {}",
            written(&db) - before,
            10 * LEN
        );
        let mut batch = Batch::new();
        batch.delete_prefix(d, "from");
        db.commit(batch, Durability::Synced).unwrap();
        let look = |db: &Kvdb| {
            for copy in 0..20 {
                for (i, tuple) in db.view().prefix(d, format!("to{copy:02}/")).enumerate() {
                    assert_eq!(tuple.unwrap().1, value(i as u8));
                }
            }
            assert_eq!(db.view().iter(d).count(), 200);
        };
        let crashed = Arc::new((*device).clone());
        let (again, _) =
            Kvdb::open(crashed.clone(), Arc::new(Machine::default()), OpenOptions::default())
                .unwrap();
        look(&again);
        drop(again);
        let report = kvdb::check(crashed, &mut |_, _| {});
        assert!(report.is_clean(), "{:?}", report.faults);
        db.compact(d).unwrap();
        look(&db);
        // Zones are used again, but not those.
        for i in 0..40u8 {
            db.put(d, &[b"more", &[i][..]].concat(), &value(i), Durability::Buffered).unwrap();
        }
        let mut batch = Batch::new();
        batch.delete_prefix(d, "more");
        db.commit(batch, Durability::Synced).unwrap();
        db.compact(d).unwrap();
        look(&db);
        let mut batch = Batch::new();
        batch.delete_prefix(d, "to");
        db.commit(batch, Durability::Synced).unwrap();
        db.compact(d).unwrap();
        db.reclaim();
        assert!(db.stats().zones_held < 8, "{} zones are held by nothing", db.stats().zones_held);
    }
}

#[test]
fn a_value_is_there_for_whoever_holds_it() {
    let (db, d, _) = store();
    db.put(d, b"a", &value(1), Durability::Synced).unwrap();
    let held = db.view().stored(d, b"a").unwrap().unwrap();
    assert!(db.view().stored(d, b"b").unwrap().is_none());
    let mut batch = Batch::new();
    batch.delete(d, "a");
    db.commit(batch, Durability::Synced).unwrap();
    for i in 0..30u8 {
        db.put(d, &[i], &value(i), Durability::Buffered).unwrap();
        db.compact(d).unwrap();
    }
    let mut batch = Batch::new();
    batch.put_stored(d, "b", held);
    db.commit(batch, Durability::Buffered).unwrap();
    db.compact(d).unwrap();
    assert_eq!(db.get(d, b"b").unwrap().unwrap(), value(1));
}

fn reference(d: DictionaryId, key: &'static str, of: &'static str) -> Reference {
    Reference { dict: d, key: key.into(), of: (d, of.into()) }
}

#[test]
fn a_reference_puts_the_value_that_its_key_had_before_the_batch() {
    let (db, d, _) = store();
    db.put(d, b"from", &value(1), Durability::Synced).unwrap();
    db.put(d, b"to-none", &value(2), Durability::Synced).unwrap();
    let before = written(&db);
    let refers = |scope: &Scope| {
        let mut batch = Batch::new();
        batch.put(d, "from", "newer");
        batch.put(d, "to", "is replaced");
        let references = vec![reference(d, "to", "from"), reference(d, "to-none", "none")];
        scope.apply_with(batch, references, Durability::Buffered).unwrap();
        assert_eq!(scope.get(d, b"to").unwrap().unwrap(), value(1));
        assert_eq!(scope.get(d, b"to-none").unwrap(), None);
        assert_eq!(scope.get(d, b"from").unwrap().as_deref(), Some(&b"newer"[..]));
        let back = vec![reference(d, "from", "to")];
        scope.apply_with(Batch::new(), back, Durability::Buffered).unwrap();
        assert_eq!(scope.get(d, b"from").unwrap().unwrap(), value(1));
    };
    refers(&Scope::Mainline(db.clone()));
    let transaction = db.begin(Isolation::Serializable).unwrap();
    refers(&Scope::Transaction(transaction.clone()));
    transaction.commit(Durability::Synced).unwrap();
    assert!(written(&db) - before < LEN as u64, "the value is not copied");
    assert_eq!(db.get(d, b"to").unwrap().unwrap(), value(1));
    assert!(matches!(
        Scope::Frozen(db.view()).apply_with(Batch::new(), Vec::new(), Durability::Buffered),
        Err(kvdb::Error::ReadOnly(_))
    ));
}

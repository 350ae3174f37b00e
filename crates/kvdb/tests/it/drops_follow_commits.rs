//! An edit of the manifest that drops, replaces or makes something reaches the disk by itself, but
//! never without the commits before it. So tuples that were copied elsewhere before their
//! dictionary was dropped are in at least one of the two places, whenever the power fails.

use std::sync::Arc;

use env::Simulated;
use kvdb::{
    CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions, ReceiveOptions,
    TransactionOptions,
};
use zones::{CrashDevice, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose};

const KEYS: u32 = 20;

fn options() -> OpenOptions {
    OpenOptions { memory: 16 << 20, threads: false, ..OpenOptions::default() }
}

fn put_all(db: &Kvdb, branch: &str, dict: &str) {
    let d = match branch {
        "" => db.open_dictionary(dict),
        branch => db.open_dictionary_in(branch, dict),
    };
    let d = d.expect("made");
    for i in 0..KEYS {
        // Some values wait for a place outside of the journal's record.
        d.insert(format!("{i:03}"), vec![7; if i % 3 == 0 { 5000 } else { 10 }]).expect("put");
    }
}

fn has_all(db: &Kvdb, dict: &str) -> bool {
    let Some(d) = db.dictionary(dict) else { return false };
    let keys = |i| db.get(d, format!("{i:03}").as_bytes()).expect("read").is_some();
    (0..KEYS).all(keys)
}

/// `before` is on disk. Then everything is copied to "new" without a sync, and `drop` runs. The
/// power fails during it or right after it.
fn survives(before: impl Fn(&Kvdb), drop: impl Fn(&Kvdb)) {
    for seed in 0..40 {
        let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
        let env = Arc::new(Simulated::new(seed));
        let create = CreateOptions { open: options(), ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), env.clone(), create).expect("made");
        db.open_dictionary("new").expect("made");
        before(&db);
        db.sync().expect("synced");
        put_all(&db, "", "new");
        drop(&db);
        let image = device.crash(seed);
        let (again, _) = Kvdb::open(Arc::new(image), env, options()).expect("opened");
        assert!(has_all(&again, "new"), "seed {seed}: dropped, and the copies are lost");
    }
}

#[test]
fn tuples_copied_before_their_dictionary_was_dropped() {
    survives(
        |db| put_all(db, "", "old"),
        |db| db.drop_dictionary(db.dictionary("old").expect("there")).expect("dropped"),
    );
}

#[test]
fn tuples_copied_before_their_branch_was_dropped() {
    survives(
        |db| {
            db.create_branch("b").expect("made");
            put_all(db, "b", "old");
        },
        |db| db.drop_branch("b").expect("dropped"),
    );
}

#[test]
fn tuples_restored_before_their_snapshot_was_dropped() {
    survives(
        |db| {
            put_all(db, "", "old");
            db.snapshot("s").expect("made");
        },
        |db| db.drop_snapshot("s").expect("dropped"),
    );
}

#[test]
fn tuples_copied_before_their_branch_was_rolled_back() {
    survives(
        |db| {
            db.create_branch("b").expect("made");
            db.snapshot_of("b", "empty", Durability::Synced).expect("made");
            put_all(db, "b", "old");
        },
        |db| db.rollback("empty").expect("rolled back"),
    );
}

#[test]
fn tuples_copied_before_their_branch_was_replaced_by_what_was_received() {
    let other = Kvdb::in_memory();
    other.snapshot("s").expect("made");
    let mut stream = Vec::new();
    other.send("s", None, &mut stream, None).expect("sent");
    let options = ReceiveOptions { branch: "b".into(), replace: true, ..ReceiveOptions::default() };
    survives(
        |db| {
            db.create_branch("b").expect("made");
            put_all(db, "b", "old");
        },
        |db| drop(db.receive(&stream[..], &options).expect("received")),
    );
}

#[test]
fn what_was_committed_before_a_dictionary_was_made_or_changed() {
    survives(|_| (), |db| drop(db.open_dictionary("made").expect("made")));
    survives(
        |_| (),
        |db| {
            let new = db.dictionary("new").expect("there");
            db.set_dictionary_options(new, DictionaryOptions::default()).expect("changed");
        },
    );
    survives(
        |_| (),
        |db| db.set_stitch_at(db.dictionary("new").expect("there"), 0).expect("changed"),
    );
    survives(|_| (), |db| db.create_branch("b").expect("made"));
    survives(|db| db.snapshot("s").expect("made"), |db| db.clone_snapshot("s", "b").expect("made"));
}

#[test]
fn what_was_committed_before_an_ingest_or_a_large_transaction() {
    survives(
        |db| put_all(db, "", "other"),
        |db| {
            let other = db.dictionary("other").expect("there");
            assert_eq!(db.ingest(other, [("a", "b")]).expect("ingested").tuples, 1);
        },
    );
    survives(
        |db| put_all(db, "", "other"),
        |db| {
            let other = db.dictionary("other").expect("there");
            let t = db.begin_with(TransactionOptions::default()).expect("begun");
            let mut bulk = t.bulk(other, &db.view()).expect("begun");
            bulk.push(b"a", b"b").expect("pushed");
            t.adopt(bulk.finish().expect("written")).expect("adopted");
            t.commit(Durability::Synced).expect("committed");
        },
    );
}

/// Nothing is dropped if earlier commits cannot be made durable.
#[test]
fn a_drop_fails_when_the_journal_cannot_be_synced() {
    let memory = Arc::new(MemoryDevice::new());
    let device = Arc::new(FaultDevice::new(memory.clone(), 1));
    let env = Arc::new(Simulated::new(1));
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("made");
    put_all(&db, "", "old");
    db.sync().expect("synced");
    put_all(&db, "", "other");
    let (old, other) = (db.dictionary("old"), db.dictionary("other"));
    let new = db.open_dictionary("new").expect("made");
    new.insert("k", "v").expect("put");
    device.inject(Fault::always(Operation::Write, FaultKind::Error).of(Purpose::Journal));
    assert!(db.drop_dictionary(old.expect("there")).is_err());
    assert!(has_all(&db, "old"));
    assert!(db.drop_dictionary(other.expect("there")).is_err(), "the store has stopped");
    let image = Arc::new(MemoryDevice::clone(&memory));
    let (again, _) = Kvdb::open(image, env, options()).expect("opened");
    assert!(has_all(&again, "old"));
}

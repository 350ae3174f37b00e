//! Tests of a commit that a sync follows: the bytes that the sync has to write, and the places of
//! the values.

use std::sync::Arc;

use env::Simulated;
use kvdb::{Batch, CreateOptions, DictionaryId, Durability, Kvdb, OpenOptions};
use zones::{CrashDevice, Device, Purpose};

fn options() -> OpenOptions {
    OpenOptions {
        memory: 64 << 20,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..OpenOptions::default()
    }
}

fn store() -> (Kvdb, DictionaryId, Arc<CrashDevice>) {
    let device = Arc::new(CrashDevice::new());
    let options = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), options).expect("a store");
    let d = db.open_dictionary("d").expect("a dictionary").id();
    // The journal has a segment then.
    db.put(d, b"first", b"", Durability::Synced).expect("synced");
    (db, d, device)
}

/// Writes of (journal, pages) and syncs so far.
fn written(db: &Kvdb) -> (u64, u64, u64) {
    let io = db.stats().io;
    (io.of(Purpose::Journal).write_ops, io.of(Purpose::Pages).write_ops, io.syncs)
}

fn commit(db: &Kvdb, d: DictionaryId, values: &[(u8, usize)], sync_follows: bool) {
    let mut batch = Batch::new();
    for &(key, len) in values {
        batch.put(d, vec![key], vec![key; len]);
    }
    if sync_follows {
        batch.sync_follows();
    }
    db.commit(batch, Durability::Buffered).expect("committed");
}

#[test]
fn a_few_large_values_of_several_commits_are_one_write_and_one_sync() {
    let (db, d, _) = store();
    let (journal, pages, syncs) = written(&db);
    for key in 0..8 {
        commit(&db, d, &[(key, 4096)], true);
    }
    assert_eq!(written(&db), (journal, pages, syncs), "it is buffered");
    db.sync().expect("synced");
    assert_eq!(written(&db), (journal + 1, pages, syncs + 1));
    // Without the hint they are written to their places first.
    commit(&db, d, &[(9, 4096)], false);
    db.sync().expect("synced");
    assert_eq!(written(&db), (journal + 2, pages + 1, syncs + 2));
}

#[test]
fn many_of_them_are_placed_by_their_commit() {
    let (db, d, _) = store();
    let (_, pages, _) = written(&db);
    let before = db.stats().io.of(Purpose::Journal).write_bytes;
    commit(&db, d, &(0..32).map(|key| (key, 4096)).collect::<Vec<_>>(), true);
    db.sync().expect("synced");
    assert!(written(&db).1 > pages);
    let logged = db.stats().io.of(Purpose::Journal).write_bytes - before;
    assert!(logged <= 4096, "{logged} bytes of journal: their places");
}

#[test]
fn they_survive_a_power_cut_and_get_their_places_by_a_flush() {
    let (db, d, device) = store();
    commit(&db, d, &[(1, 4096), (2, 9000)], true);
    commit(&db, d, &[(2, 5000)], true);
    db.sync().expect("synced");
    let expected = |db: &Kvdb| {
        assert_eq!(db.get(d, &[1]).expect("read").expect("there"), vec![1; 4096]);
        assert_eq!(db.get(d, &[2]).expect("read").expect("there"), vec![2; 5000]);
    };
    expected(&db);
    // The sync covers all of it, so recovery must not need anything that was written later.
    let image = Arc::new(device.durable());
    let (again, _) =
        Kvdb::open(image.clone(), Arc::new(Simulated::new(1)), options()).expect("it opens");
    expected(&again);
    let (_, pages, _) = written(&again);
    again.flush().expect("flushed");
    assert_eq!(written(&again).1, pages + 1, "the values go to their places, together");
    expected(&again);
    again.close().expect("closed");
    drop(again);
    assert!(image.len().expect("a length") > 0);
    let (again, recovery) =
        Kvdb::open(image, Arc::new(Simulated::new(1)), options()).expect("it opens");
    assert_eq!(recovery.records, 0, "the journal is not needed any more");
    expected(&again);
    drop((db, again));
}

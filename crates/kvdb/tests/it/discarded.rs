//! Tests that values which are overwritten or deleted before they have a place on the device are
//! never written. No reader and no recovery may find such a value.

use std::sync::Arc;

use bytes::Bytes;
use env::{Machine, Simulated};
use kvdb::{Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use vt_tree::Update;
use zones::{CrashDevice, MemoryDevice};

fn open_options() -> OpenOptions {
    OpenOptions { threads: false, ..OpenOptions::default() }
}

fn create(device: Arc<dyn zones::Device>) -> (Kvdb, DictionaryId) {
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    (db, dict)
}

fn put(db: &Kvdb, dict: DictionaryId, key: &str, value: &[u8]) {
    db.put(dict, key.as_bytes(), value, Durability::Buffered).unwrap();
}

fn commit(db: &Kvdb, change: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    change(&mut batch);
    db.commit(batch, Durability::Buffered).unwrap();
}

fn get(db: &Kvdb, dict: DictionaryId, key: &str) -> Option<Bytes> {
    db.get(dict, key.as_bytes()).unwrap()
}

const OLD: [u8; 5000] = [1; 5000];
const NEW: [u8; 5000] = [2; 5000];

#[test]
fn a_view_still_reads_what_was_overwritten_and_deleted() {
    let (db, dict) = create(Arc::new(MemoryDevice::new()));
    put(&db, dict, "overwritten", &OLD);
    put(&db, dict, "deleted", &OLD);
    let view = db.view();
    put(&db, dict, "overwritten", &NEW);
    commit(&db, |b| b.delete_range(dict, "d", "e"));
    put(&db, dict, "passing", &OLD);
    put(&db, dict, "passing", &NEW);
    db.sync().unwrap();
    assert_eq!(db.stats().discarded_bytes, 5000, "only what the view does not read");
    for key in ["overwritten", "deleted"] {
        assert_eq!(view.get(dict, key.as_bytes()).unwrap().as_deref(), Some(&OLD[..]));
    }
    assert_eq!(get(&db, dict, "overwritten").as_deref(), Some(&NEW[..]));
    assert_eq!(get(&db, dict, "deleted"), None);
    assert_eq!(get(&db, dict, "passing").as_deref(), Some(&NEW[..]));
}

#[test]
fn a_snapshot_has_what_was_overwritten_behind_it() {
    let (db, dict) = create(Arc::new(MemoryDevice::new()));
    put(&db, dict, "k", &OLD);
    db.snapshot("s").unwrap();
    put(&db, dict, "k", &NEW);
    commit(&db, |b| b.delete(dict, "k"));
    db.sync().unwrap();
    assert_eq!(db.stats().discarded_bytes, 5000);
    let view = db.open_snapshot("s").unwrap();
    assert_eq!(view.get(dict, b"k").unwrap().as_deref(), Some(&OLD[..]));
}

/// An update in the journal is applied to the value before it when the journal is read again.
#[test]
fn an_update_finds_its_value_after_a_crash() {
    let device = Arc::new(CrashDevice::new());
    let (db, dict) = create(device.clone());
    put(&db, dict, "k", &OLD);
    commit(&db, |b| b.update(dict, "k", Update::append(b"x").unwrap()));
    put(&db, dict, "l", &OLD);
    commit(&db, |b| b.update(dict, "l", Update::append(b"x").unwrap()));
    put(&db, dict, "l", &NEW);
    db.sync().unwrap();
    let check = kvdb::check(Arc::new(device.durable()), &mut |_, _| {});
    assert!(check.is_clean(), "{:?}", check.faults);
    let (db, _) =
        Kvdb::open(Arc::new(device.durable()), Arc::new(Machine::default()), open_options())
            .unwrap();
    assert_eq!(get(&db, dict, "k").unwrap(), [&OLD[..], b"x"].concat());
    assert_eq!(get(&db, dict, "l").as_deref(), Some(&NEW[..]));
}

/// A write of several chunks, of which a crash leaves some: the journal never ends between the put
/// of a discarded value and the change that hides it.
#[test]
fn a_torn_journal_ends_before_a_value_that_it_does_not_hide() {
    const PUT: u32 = 500;
    const DELETE: u32 = 3200;
    const END: u32 = 3600;
    let device = Arc::new(CrashDevice::new());
    let (db, dict) = create(device.clone());
    put(&db, dict, "k", &OLD);
    // Discarded values let the rest wait, so that it is written together.
    put(&db, dict, "first", &OLD);
    // After a sync that a caller waits for, it would be written early.
    db.sync_at_interval().unwrap();
    commit(&db, |b| b.delete(dict, "first"));
    put(&db, dict, "again", &OLD);
    commit(&db, |b| b.delete(dict, "again"));
    for i in 0..END {
        put(&db, dict, &format!("small {i:05}"), &[7; 700]);
        match i + 1 {
            PUT => put(&db, dict, "k", &NEW),
            DELETE => commit(&db, |b| b.delete(dict, "k")),
            _ => {}
        }
    }
    let before = db.stats().discarded_bytes;
    device.cut_power_after(2);
    let _ = db.sync();
    assert!(db.stats().discarded_bytes > before, "not before it is written");
    let (mut whole, mut torn) = (0, 0);
    for seed in 0..200 {
        let image = device.crash(seed);
        let (db, report) =
            Kvdb::open(Arc::new(image), Arc::new(Machine::default()), open_options()).unwrap();
        let found: Vec<bool> =
            (0..END).map(|i| get(&db, dict, &format!("small {i:05}")).is_some()).collect();
        let count = found.iter().take_while(|found| **found).count() as u32;
        assert!(found[count as usize..].iter().all(|found| !found), "seed {seed}: no prefix");
        match get(&db, dict, "k") {
            Some(value) if value == OLD[..] => assert!(count <= PUT, "seed {seed}: {count}"),
            None => assert!(count >= DELETE, "seed {seed}: {count}"),
            Some(_) => panic!("seed {seed}: the discarded value"),
        }
        whole += u32::from(count == END);
        torn += u32::from(count < END && report.torn_bytes > 0);
    }
    assert!(whole > 5 && torn > 5, "{whole} whole, {torn} torn");
}

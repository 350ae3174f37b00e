//! Tests of repairs where several branches share a damaged run: the main branch, a snapshot, and a
//! clone of the snapshot.

use std::sync::Arc;

use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Error, Kvdb, OpenOptions};
use zones::{Device, MemoryDevice, Purpose};

fn options() -> OpenOptions {
    OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() }
}

fn value(i: u64) -> Vec<u8> {
    let mut value = vec![0; 400];
    Random::new(i).fill(&mut value);
    value
}

/// A store with a run that three branches share, and above it a run of the main branch alone.
fn made() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut batch = Batch::new();
    for i in 0..300u64 {
        batch.put(d, format!("key{i:03}"), value(i));
    }
    db.commit(batch, Durability::Synced).unwrap();
    db.flush().unwrap();
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "c").unwrap();
    let mut batch = Batch::new();
    for i in 0..300u64 {
        if i % 3 == 0 {
            batch.put(d, format!("key{i:03}"), value(i + 1000));
        }
    }
    db.commit(batch, Durability::Synced).unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    device
}

/// Flips a bit in the value of that key, which lies in a block.
fn damage(device: &MemoryDevice, of: &[u8]) {
    let mut bytes = vec![0; device.len().unwrap() as usize];
    device.read_at(Purpose::Tuples, 0, &mut bytes).unwrap();
    let needle = &of[..32];
    let places: Vec<usize> =
        bytes.windows(32).enumerate().filter(|(_, w)| *w == needle).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| device.flip_bit(at as u64, 1));
}

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Kvdb {
    Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), OpenOptions { read_only, ..options() })
        .unwrap()
        .0
}

#[test]
fn all_that_have_a_damaged_run_have_the_repaired_one_at_once() {
    let device = made();
    damage(&device, &value(100));
    assert!(!kvdb::check(device.clone(), &mut |_, _| {}).is_clean());
    let db = open(&device, false);
    let report = db.repair(|_| {}, |_, _| Ok::<_, Error>(Batch::new())).unwrap();
    assert_eq!((report.runs, report.removed.len()), (1, 1), "{report:?}");
    let keys = report.removed[0].keys.clone().expect("keys");
    assert!(keys.start[..] <= b"key100"[..] && keys.end[..] > b"key100"[..], "{keys:?}");
    // The store continues with it, and freeing data damages nothing else.
    let d = db.dictionary("d").unwrap();
    db.put(d, b"new", b"value", Durability::Synced).unwrap();
    db.compact(d).unwrap();
    db.close().unwrap();
    drop(db);

    assert_eq!(kvdb::check(device.clone(), &mut |_, _| {}).faults, []);
    let db = open(&device, true);
    let in_clone = db.dictionary_in("c", "d").unwrap();
    let (main, snapshot) = (db.view(), db.open_snapshot("s").unwrap());
    let of_snapshot = snapshot.dictionary("d").unwrap();
    let mut lost = 0;
    for i in 0..300u64 {
        let key = format!("key{i:03}").into_bytes();
        let gone = keys.start[..] <= key[..] && key[..] < keys.end[..];
        lost += u64::from(gone);
        let old = (!gone).then(|| value(i));
        assert_eq!(
            snapshot.get(of_snapshot, &key).unwrap().map(|v| v.to_vec()),
            old,
            "{i} in the snapshot"
        );
        assert_eq!(main.get(in_clone, &key).unwrap().map(|v| v.to_vec()), old, "{i} in the clone");
        // Versions above the damage are kept.
        let new = if i % 3 == 0 { Some(value(i + 1000)) } else { old };
        assert_eq!(main.get(d, &key).unwrap().map(|v| v.to_vec()), new, "{i}");
    }
    assert!(lost > 0 && lost < 60, "{lost} keys of one block");
    assert_eq!(main.get(d, b"new").unwrap().as_deref(), Some(&b"value"[..]));
}

/// All states that had a lost block get its replacement tuples, and newer tuples hide them.
/// Replacements that are not among the lost keys, or not in ascending order, are left out.
#[test]
fn stand_ins_for_a_lost_block_are_in_all_states_that_had_it() {
    let device = made();
    damage(&device, &value(100));
    let db = open(&device, false);
    let instead = |i: u64| Bytes::from(format!("instead of {i}"));
    let stand_in = |deletion: &mut kvdb::Deletion<'_>| {
        assert_eq!(deletion.states.len(), 3, "the main branch, the clone and the snapshot");
        for state in deletion.states {
            let d = state.dictionary("d").expect("its dictionary");
            assert_eq!(state.view.get(d, b"key299").unwrap().as_deref(), Some(&value(299)[..]));
        }
        for i in (0..300).filter(|i| i % 2 == 0) {
            deletion.put(format!("key{i:03}").as_bytes(), instead(i));
        }
        deletion.put(b"key100", "too late");
    };
    let report = db.repair(stand_in, |_, _| Ok::<_, Error>(Batch::new())).unwrap();
    assert_eq!(report.removed.len(), 1, "{report:?}");
    let keys = report.removed[0].keys.clone().expect("keys");
    db.close().unwrap();
    drop(db);

    assert_eq!(kvdb::check(device.clone(), &mut |_, _| {}).faults, []);
    let db = open(&device, true);
    let (main, snapshot) = (db.view(), db.open_snapshot("s").unwrap());
    let dictionaries = [db.dictionary("d"), db.dictionary_in("c", "d"), snapshot.dictionary("d")];
    let [d, in_clone, of_snapshot] = dictionaries.map(|found| found.expect("a dictionary"));
    for i in 0..300u64 {
        let key = format!("key{i:03}").into_bytes();
        let gone = keys.start[..] <= key[..] && key[..] < keys.end[..];
        let old = match gone {
            true => (i % 2 == 0).then(|| instead(i)),
            false => Some(Bytes::from(value(i))),
        };
        assert_eq!(snapshot.get(of_snapshot, &key).unwrap(), old, "{i} in the snapshot");
        assert_eq!(main.get(in_clone, &key).unwrap(), old, "{i} in the clone");
        let new = if i % 3 == 0 { Some(Bytes::from(value(i + 1000))) } else { old };
        assert_eq!(main.get(d, &key).unwrap(), new, "{i}");
    }
}

/// A version that was lost in a newer run is not replaced by an older one.
#[test]
fn an_older_value_does_not_come_back() {
    let device = made();
    damage(&device, &value(1003));
    let db = open(&device, false);
    let report = db.repair(|_| {}, |_, _| Ok::<_, Error>(Batch::new())).unwrap();
    assert_eq!(report.removed.len(), 1, "{report:?}");
    let d = db.dictionary("d").unwrap();
    assert_eq!(db.get(d, b"key003").unwrap(), None);
    db.close().unwrap();
    assert!(kvdb::check(device.clone(), &mut |_, _| {}).is_clean());
}

#[test]
fn what_the_caller_refuses_changes_nothing() {
    let device = made();
    damage(&device, &value(100));
    let db = open(&device, false);
    let refused = db.repair(|_| {}, |_, _| Err(Error::Invalid("no".into())));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    db.close().unwrap();
    assert!(!kvdb::check(device.clone(), &mut |_, _| {}).is_clean(), "as it was");
}

/// The replacements are not in memory all at once, since there may be one for each lost page.
#[test]
fn changes_of_the_caller_take_effect_in_their_order_however_many_they_are() {
    let device = made();
    let db = open(&device, false);
    let d = db.dictionary("d").unwrap();
    let mend = |_: &kvdb::View, _: &[kvdb::ScrubFault]| {
        let large = Bytes::from(vec![7; 50_000]);
        let mut batch = Batch::new();
        batch.put(d, "first", "old");
        batch.put(d, "gone", "old");
        for i in 0..1000u64 {
            batch.put(d, format!("many{i:04}"), large.clone());
        }
        batch.put(d, "first", "new");
        batch.delete(d, "gone");
        batch.delete_range(d, "many0500", "many0510");
        Ok::<_, Error>(batch)
    };
    let report = db.repair(|_| {}, mend).unwrap();
    assert_eq!((report.runs, report.changes), (0, 1005));
    db.close().unwrap();
    drop(db);
    assert_eq!(kvdb::check(device.clone(), &mut |_, _| {}).faults, []);
    let db = open(&device, true);
    assert_eq!(db.get(d, b"first").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(db.get(d, b"gone").unwrap(), None);
    let many = db.view().scan(d, b"many", b"manz", usize::MAX).unwrap();
    assert!(many.len() == 990 && many.iter().all(|(_, v)| v.len() == 50_000));
    assert_eq!(db.get(d, b"many0505").unwrap(), None);
}

//! A store that is opened with the mirror of a killed process has every commit that returned,
//! including data that was on its way to the device and data that had not left the process.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use env::{Env, Simulated};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Isolation, Kvdb, Mirror,
    Note, OpenOptions, TransactionOptions,
};
use zones::MemoryDevice;

/// A mirror in a file, of which copies can be made.
struct Place(File);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempfile().expect("a file"))
    }

    fn mirror(&self) -> Arc<Mirror> {
        Arc::new(Mirror::new(self.0.try_clone().expect("a descriptor")).expect("it is a mirror"))
    }

    fn copy(&self) -> Place {
        let copy = Place::new();
        let mut bytes = vec![0; self.0.metadata().expect("attributes").len() as usize];
        self.0.read_exact_at(&mut bytes, 0).expect("read");
        copy.0.write_all_at(&bytes, 0).expect("written");
        copy
    }
}

fn options(place: &Place) -> OpenOptions {
    OpenOptions {
        memory: 4 << 20,
        threads: false,
        mirror: Some(place.mirror()),
        ..OpenOptions::default()
    }
}

struct Used {
    device: Arc<MemoryDevice>,
    place: Place,
    db: Kvdb,
    dict: DictionaryId,
}

fn open(device: &Arc<MemoryDevice>, place: &Place) -> (Kvdb, u64) {
    let env = Arc::new(Simulated::new(1));
    let (db, recovery) = Kvdb::open(device.clone(), env, options(place)).expect("it opens");
    (db, recovery.mirrored)
}

fn used() -> Used {
    let device = Arc::new(MemoryDevice::new());
    let create = OpenOptions { threads: false, ..OpenOptions::default() };
    let options = CreateOptions { open: create, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), options).expect("made");
    let dict = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
    db.close().expect("closed");
    let place = Place::new();
    let (db, _) = open(&device, &place);
    Used { device, place, db, dict }
}

impl Used {
    /// Returns the store that the next process finds if this one is killed now, and the number of
    /// commits that only the mirror had.
    fn killed(&self) -> (Kvdb, u64, Place) {
        let place = self.place.copy();
        let (db, mirrored) = open(&Arc::new(MemoryDevice::clone(&self.device)), &place);
        (db, mirrored, place)
    }
}

fn all(db: &Kvdb, dict: DictionaryId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let tuples = db.view().scan(dict, b"", b"\xff", usize::MAX).expect("it can be read");
    tuples.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

#[test]
fn what_no_device_has_is_in_the_mirror() {
    let u = used();
    u.db.put(u.dict, b"k", b"1", Durability::Buffered).expect("put");
    let (db, mirrored, place) = u.killed();
    assert_eq!((db.get(u.dict, b"k").expect("read").as_deref(), mirrored), (Some(&b"1"[..]), 1));
    // The commit is on the device now, and no longer in the mirror.
    db.put(u.dict, b"k", b"2", Durability::Synced).expect("put");
    assert!(place.copy().mirror().notes().expect("read").is_empty());
    // Without the mirror the commit is lost, as after a power cut.
    let device = Arc::new(MemoryDevice::clone(&u.device));
    let (db, mirrored) = open(&device, &Place::new());
    assert_eq!((db.get(u.dict, b"k").expect("read"), mirrored), (None, 0));
}

#[test]
fn whatever_is_committed_is_there_after_each_commit() {
    let u = used();
    let (mut model, mut only_mirrored) = (BTreeMap::new(), 0);
    let env = Simulated::new(7);
    for round in 0..400u64 {
        let n = env.random();
        let key = format!("{:03}", n % 40).into_bytes();
        let value = |len: usize| vec![round as u8; len];
        let durability = if n >> 8 & 15 == 0 { Durability::Synced } else { Durability::Buffered };
        match n >> 16 & 15 {
            0..5 => {
                u.db.put(u.dict, &key, &value(10), durability).expect("put");
                model.insert(key, value(10));
            }
            5..8 => {
                // Large enough to lie outside of its block.
                u.db.put(u.dict, &key, &value(20_000), durability).expect("put");
                model.insert(key, value(20_000));
            }
            8..10 => {
                // Placed before it commits.
                u.db.put(u.dict, &key, &value(300_000), durability).expect("put");
                model.insert(key, value(300_000));
            }
            10..12 => {
                let mut batch = Batch::new();
                batch.delete(u.dict, key.clone());
                batch.put(u.dict, [&key[..], b"+"].concat(), value(5000));
                u.db.commit(batch, durability).expect("committed");
                model.remove(&key);
                model.insert([&key[..], b"+"].concat(), value(5000));
            }
            12 => {
                let stored = u.db.view().stored(u.dict, &key).expect("read");
                if let Some(stored) = stored {
                    let mut batch = Batch::new();
                    batch.put_stored(u.dict, "copy", stored);
                    u.db.commit(batch, durability).expect("committed");
                    model.insert(b"copy".to_vec(), model[&key].clone());
                }
            }
            13 => {
                let undoable =
                    TransactionOptions { undoable: n >> 32 & 1 == 0, ..Default::default() };
                let t = u.db.begin_with(undoable).expect("begun");
                for i in 0..20u8 {
                    t.put(u.dict, vec![b't', i], value(30_000)).expect("put");
                    model.insert(vec![b't', i], value(30_000));
                }
                t.commit(durability).expect("committed");
            }
            14 => {
                u.db.snapshot(&format!("s{round}")).expect("made");
            }
            _ => {
                let other = u.db.create_dictionary(&format!("o{round}"), Default::default());
                let other = other.expect("made");
                u.db.put(other, b"k", b"v", Durability::Buffered).expect("put");
                u.db.drop_dictionary(other).expect("dropped");
            }
        }
        while n >> 40 & 3 == 0 && u.db.step().expect("a step") {}
        let (db, mirrored, _) = u.killed();
        assert_eq!(all(&db, u.dict), model, "round {round}");
        only_mirrored += u64::from(mirrored > 0);
    }
    assert!(only_mirrored > 100, "{only_mirrored}");
}

#[test]
fn processes_that_are_killed_one_after_the_other_lose_nothing() {
    let Used { device, place, db, dict } = used();
    drop(db);
    for round in 0..50u8 {
        let (db, _) = open(&device, &place);
        for i in 0..round {
            assert_eq!(db.get(dict, &[i]).expect("read").as_deref(), Some(&[i; 3000][..]), "{i}");
        }
        db.put(dict, &[round], &[round; 3000], Durability::Buffered).expect("put");
        // The process is killed, and closes nothing.
        std::mem::forget(db);
    }
}

#[test]
fn a_note_is_there_with_its_commit_and_stays() {
    let u = used();
    let commit = |db: &Kvdb, slot: u32, request: u64| {
        let mut batch = Batch::new();
        batch.put(u.dict, request.to_string(), "done");
        batch.note(Note { slot, request, value: request + 1000 });
        db.commit(batch, Durability::Buffered).expect("committed");
    };
    commit(&u.db, 0, 1);
    commit(&u.db, 1, 2);
    commit(&u.db, 0, 3);
    // Its commit is on the device, and cut.
    u.db.sync().expect("synced");
    commit(&u.db, 2, 4);
    let (db, mirrored, place) = u.killed();
    let notes = place.mirror().notes().expect("read");
    assert_eq!(mirrored, 1);
    let all = [(2, 1002), (3, 1003), (4, 1004)];
    assert_eq!(notes, all.into_iter().collect(), "the slot of the first was used again");
    // Earlier notes stay when the next process uses their slots again.
    commit(&db, 2, 5);
    let notes = place.copy().mirror().notes().expect("read");
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert_eq!(notes[&4], 1004);
}

#[test]
fn commits_of_several_threads_are_all_there() {
    let u = used();
    let done = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (u, done) = (&u, &done);
            scope.spawn(move || {
                for i in 0..200u8 {
                    let durability =
                        if i % 50 == 7 { Durability::Synced } else { Durability::Buffered };
                    u.db.put(u.dict, &[thread, i], &[i; 100], durability).expect("put");
                    done.lock().expect("no panic").push([thread, i]);
                }
            });
        }
        for _ in 0..20 {
            // The order matters: data that the mirror drops in that time is on the device.
            let known = done.lock().expect("no panic").clone();
            let place = u.place.copy();
            let (db, _) = open(&Arc::new(MemoryDevice::clone(&u.device)), &place);
            for key in known {
                assert_eq!(
                    db.get(u.dict, &key).expect("read").as_deref(),
                    Some(&[key[1]; 100][..])
                );
            }
        }
    });
}

/// Others may still know a transaction by its number.
#[test]
fn no_transaction_has_the_number_of_one_of_a_process_before() {
    let u = used();
    let before = u.db.begin(Isolation::Snapshot).expect("begun").id();
    let (db, _, place) = u.killed();
    let then = db.begin(Isolation::Snapshot).expect("begun").id();
    let (db, _) = open(&Arc::new(MemoryDevice::clone(&u.device)), &place);
    let now = db.begin(Isolation::Snapshot).expect("begun").id();
    assert!(before < then && then < now, "{before}, {then}, {now}");
}

#[test]
fn a_conflict_is_found_with_what_the_mirror_had() {
    let u = used();
    u.db.put(u.dict, b"k", b"1", Durability::Buffered).expect("put");
    let (db, ..) = u.killed();
    let t = db.begin(Isolation::Snapshot).expect("begun");
    t.put(u.dict, "k", "2").expect("put");
    db.put(u.dict, b"k", b"3", Durability::Buffered).expect("put");
    assert!(t.commit(Durability::Buffered).is_err());
}

#[test]
fn a_mirror_of_something_else_is_refused() {
    let u = used();
    u.db.put(u.dict, b"k", b"1", Durability::Buffered).expect("put");
    u.db.put(u.dict, b"k", b"2", Durability::Buffered).expect("put");
    let device = Arc::new(MemoryDevice::new());
    let create = OpenOptions { threads: false, ..OpenOptions::default() };
    let made = CreateOptions { open: create, ..CreateOptions::default() };
    let env = Arc::new(Simulated::new(2));
    drop(Kvdb::create(device.clone(), env.clone(), made).expect("made"));
    assert!(Kvdb::open(device, env, options(&u.place.copy())).is_err());
    let other = Place::new();
    other.0.write_all_at(b"something else that is no mirror at all", 0).expect("written");
    assert!(Mirror::new(other.0).is_err());
}

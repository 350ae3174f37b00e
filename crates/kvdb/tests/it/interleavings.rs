//! Tests of the actions of other threads while a rollback or an ingest becomes durable and then
//! visible. The device holds the sync of its edit in the manifest, so that each of these orders of
//! events happens in every run. Seeded schedules try the moments around it.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use crate::held::HeldSync;
use crate::model::{create, small};
use env::{Simulated, schedule};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Isolation, Kvdb,
    OpenOptions,
};
use zones::Purpose;

const BUFFERED: Durability = Durability::Buffered;

fn store() -> (Arc<HeldSync>, Kvdb, DictionaryId) {
    let device = Arc::new(HeldSync::default());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap().id();
    (device, db, d)
}

fn text(value: Option<bytes::Bytes>) -> Option<String> {
    value.map(|v| String::from_utf8(v.to_vec()).unwrap())
}

fn get(db: &Kvdb, d: DictionaryId, key: &str) -> Option<String> {
    text(db.get(d, key.as_bytes()).unwrap())
}

/// Does `during` while the sync of the manifest's edit of `step` is in progress, which must be its
/// first edit.
fn while_synced<T>(device: &HeldSync, step: impl FnOnce() + Send, during: impl FnOnce() -> T) -> T {
    /// Releases the sync even if the test fails.
    struct Release<'a>(&'a HeldSync);
    impl Drop for Release<'_> {
        fn drop(&mut self) {
            self.0.release();
        }
    }
    device.hold_behind(Purpose::Manifest);
    std::thread::scope(|scope| {
        let step = scope.spawn(step);
        let held = Release(device);
        device.wait_until_held();
        let outcome = during();
        drop(held);
        step.join().unwrap();
        outcome
    })
}

/// A snapshot that waits for no flush any more, so that going back to it is one edit.
fn snapshot(db: &Kvdb, name: &str) {
    db.snapshot(name).unwrap();
    db.flush().unwrap();
}

fn conflicts(result: kvdb::Result<()>) {
    assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
}

#[test]
fn a_transaction_that_begins_while_a_rollback_is_synced_does_not_undo_it() {
    let (device, db, d) = store();
    db.put(d, b"counter", b"1", BUFFERED).unwrap();
    snapshot(&db, "one");
    db.put(d, b"counter", b"7", BUFFERED).unwrap();
    let increment = while_synced(
        &device,
        || db.rollback("one").unwrap(),
        || {
            let t = db.begin(Isolation::Snapshot).unwrap();
            let now: u32 = text(t.get(d, b"counter").unwrap()).unwrap().parse().unwrap();
            t.put(d, "counter", (now + 1).to_string()).unwrap();
            (now, t)
        },
    );
    let (read, t) = increment;
    let outcome = t.commit(BUFFERED);
    assert_eq!(
        get(&db, d, "counter").as_deref(),
        Some("1"),
        "it had read {read}, and its commit said {outcome:?}"
    );
    conflicts(outcome);
    // A transaction that begins now has the state of the snapshot.
    let t = db.begin(Isolation::Snapshot).unwrap();
    assert_eq!(text(t.get(d, b"counter").unwrap()).as_deref(), Some("1"));
    t.put(d, "counter", "2").unwrap();
    t.commit(BUFFERED).unwrap();
}

#[test]
fn a_transaction_that_begins_while_an_ingest_is_synced_does_not_overwrite_it() {
    let (device, db, d) = store();
    db.put(d, b"k", b"old", BUFFERED).unwrap();
    // After this the ingest has nothing to flush, which would be an edit of its own.
    db.flush().unwrap();
    let t = while_synced(
        &device,
        || _ = db.ingest(d, [("k", "ingested"), ("l", "ingested")]).unwrap(),
        || {
            let t = db.begin(Isolation::Snapshot).unwrap();
            let before = text(t.get(d, b"k").unwrap()).unwrap();
            t.put(d, "k", format!("{before}, and mine")).unwrap();
            t
        },
    );
    let outcome = t.commit(BUFFERED);
    assert_eq!(get(&db, d, "k").as_deref(), Some("ingested"), "{outcome:?}");
    conflicts(outcome);
}

/// A view has a commit whole or not at all, also one over what is rolled back and what is not.
#[test]
fn a_view_made_while_a_rollback_is_synced_has_what_was_before_it() {
    let (device, db, d) = store();
    db.create_branch("other").unwrap();
    let other = db.open_dictionary_in("other", "d").unwrap().id();
    snapshot(&db, "empty");
    let both = |value: &str| {
        let mut batch = Batch::new();
        batch.put(d, "k", value.to_owned());
        batch.put(other, "k", value.to_owned());
        batch
    };
    db.commit(both("1"), BUFFERED).unwrap();
    let view = while_synced(&device, || db.rollback("empty").unwrap(), || db.view());
    db.commit(both("2"), BUFFERED).unwrap();
    let seen = [d, other].map(|dict| text(view.get(dict, b"k").unwrap()));
    assert_eq!(seen, [Some("1".into()), Some("1".into())]);
    let now = db.view();
    assert_eq!(
        [d, other].map(|dict| text(now.get(dict, b"k").unwrap())),
        [Some("2".into()), Some("2".into())]
    );
}

#[test]
fn a_plain_commit_comes_before_a_rollback_or_behind_it() {
    let (device, db, d) = store();
    db.put(d, b"k", b"1", BUFFERED).unwrap();
    snapshot(&db, "one");
    db.put(d, b"k", b"7", BUFFERED).unwrap();
    let (done, when) = mpsc::channel();
    std::thread::scope(|scope| {
        let db = &db;
        while_synced(
            &device,
            || db.rollback("one").unwrap(),
            || {
                scope.spawn(move || {
                    db.put(d, b"l", b"behind", BUFFERED).unwrap();
                    done.send(()).unwrap();
                });
                assert!(
                    when.recv_timeout(Duration::from_millis(20)).is_err(),
                    "it cannot know yet what it changes"
                );
            },
        );
        when.recv_timeout(Duration::from_secs(60)).unwrap();
    });
    assert_eq!(
        (get(&db, d, "k").as_deref(), get(&db, d, "l").as_deref()),
        (Some("1"), Some("behind"))
    );
}

#[test]
fn a_serializable_transaction_does_not_outlive_a_rollback_of_what_it_has_read() {
    let (_, db, d) = store();
    let second = db.open_dictionary_in("", "second").unwrap().id();
    db.put(d, b"k", b"1", BUFFERED).unwrap();
    snapshot(&db, "one");
    db.create_branch("other").unwrap();
    let other = db.open_dictionary_in("other", "d").unwrap().id();
    db.put(d, b"k", b"7", BUFFERED).unwrap();
    let begin = || db.begin(Isolation::Serializable).unwrap();
    let (reader, writer, idle, elsewhere) = (begin(), begin(), begin(), begin());
    assert_eq!(text(reader.get(d, b"k").unwrap()).as_deref(), Some("7"));
    writer.put(second, "k", "mine").unwrap();
    elsewhere.put(other, "k", "mine").unwrap();
    db.rollback("one").unwrap();
    let again = reader.get(d, b"k").map(text);
    assert!(matches!(&again, Err(Error::Locked(why)) if why.contains("rolled back")), "{again:?}");
    for t in [reader, writer] {
        let outcome = t.commit(BUFFERED);
        assert!(matches!(outcome, Err(Error::Locked(_))), "{outcome:?}");
    }
    assert_eq!(get(&db, second, "k"), None);
    // A transaction that had not read, and one in another branch, continue.
    assert_eq!(text(idle.get(d, b"k").unwrap()).as_deref(), Some("1"));
    idle.commit(BUFFERED).unwrap();
    elsewhere.commit(BUFFERED).unwrap();
    assert_eq!(get(&db, other, "k").as_deref(), Some("mine"));
}

#[test]
fn what_a_serializable_transaction_reads_during_a_rollback_is_what_that_leaves() {
    let (device, db, d) = store();
    db.put(d, b"k", b"1", BUFFERED).unwrap();
    snapshot(&db, "one");
    db.put(d, b"k", b"7", BUFFERED).unwrap();
    let t = db.begin(Isolation::Serializable).unwrap();
    let (read, reads) = mpsc::channel();
    std::thread::scope(|scope| {
        let t = &t;
        while_synced(
            &device,
            || db.rollback("one").unwrap(),
            || {
                scope.spawn(move || read.send(text(t.get(d, b"k").unwrap())).unwrap());
                // The transaction waits. Otherwise it would read data that is about to be removed.
                let early = reads.recv_timeout(Duration::from_millis(20));
                assert!(early.is_err(), "{early:?}");
            },
        );
        assert_eq!(reads.recv_timeout(Duration::from_secs(60)).unwrap().as_deref(), Some("1"));
    });
    assert_eq!(text(t.get(d, b"k").unwrap()).as_deref(), Some("1"));
    t.commit(BUFFERED).unwrap();
}

/// Three ways in which a commit installs a version of its own instead of using the memtables.
#[derive(Clone, Copy, Debug)]
enum Step {
    Rollback,
    Ingest,
    Bind,
}

/// A transaction reads a key and writes it, while a step writes it as well. Whichever comes first,
/// the other one detects it.
#[cfg(debug_assertions)]
fn read_and_written_beside(step: Step, isolation: Isolation, seed: u64) -> &'static str {
    let done = schedule::run(seed, move || {
        let open = OpenOptions {
            threads: false,
            zero_journal: false,
            flush_on_close: false,
            memory: 8 << 20,
            ..Default::default()
        };
        let device = Arc::new(zones::MemoryDevice::new());
        let options = CreateOptions { open, ..Default::default() };
        let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
        let d = db.open_dictionary("d").unwrap().id();
        db.put(d, b"k", b"step", BUFFERED).unwrap();
        snapshot(&db, "one");
        db.put(d, b"k", b"old", BUFFERED).unwrap();
        db.flush().unwrap();
        let other = db.clone();
        let steps = env::thread::spawn(move || match step {
            Step::Rollback => other.rollback("one"),
            Step::Ingest => other.ingest(d, [("k", "step")]).map(|_| ()),
            Step::Bind => {
                let t = other.begin(Isolation::Snapshot)?;
                let mut bulk = t.bulk(d, &other.view())?;
                bulk.push(b"k", b"step")?;
                t.adopt(bulk.finish()?)?;
                t.commit(BUFFERED)
            }
        });
        let t = db.begin(isolation).unwrap();
        let transact = || {
            let read = text(t.get(d, b"k")?).unwrap();
            t.put(d, "k", "mine")?;
            t.commit(BUFFERED)?;
            Ok::<_, Error>(read)
        };
        let transacted = transact();
        let stepped = steps.join().unwrap();
        let left = get(&db, d, "k").unwrap();
        // A failed one has no visible effect.
        match (&transacted, &stepped) {
            (Ok(read), Ok(())) if read == "old" => assert_eq!(left, "step", "the step came behind"),
            (Ok(read), Ok(())) => {
                assert_eq!((&read[..], &left[..]), ("step", "mine"), "the step came before")
            }
            (Ok(_), Err(Error::Conflict { .. } | Error::Locked(_))) => assert_eq!(left, "mine"),
            (Err(Error::Conflict { .. } | Error::Locked(_)), Ok(())) => assert_eq!(left, "step"),
            (Err(Error::Locked(_)), Err(Error::Locked(_))) => assert_eq!(left, "old"),
            other => panic!("{other:?}"),
        }
        match transacted {
            Ok(read) if read == "old" => "before",
            Ok(_) => "behind",
            Err(_) => "neither",
        }
    });
    done.unwrap_or_else(|e| panic!("seed {seed}, {step:?}: {e}")).value
}

#[test]
#[cfg(debug_assertions)]
fn no_schedule_loses_an_update_beside_a_rollback_an_ingest_or_a_bound_commit() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        for step in [Step::Rollback, Step::Ingest, Step::Bind] {
            let mut seen = std::collections::BTreeMap::new();
            for seed in 0..400 {
                *seen.entry(read_and_written_beside(step, isolation, seed)).or_insert(0) += 1;
            }
            assert!(seen.len() > 1, "the schedules differ: {isolation:?}, {step:?}: {seen:?}");
        }
    }
}

/// A commit that runs at the same time as the drop of one of its dictionaries takes effect before
/// the drop, or returns an error and changes nothing.
#[test]
#[cfg(debug_assertions)]
fn a_commit_to_a_dictionary_that_is_dropped_meanwhile_is_made_whole_or_refused() {
    let mut refused = 0;
    for seed in 0..600 {
        let done = schedule::run(seed, move || {
            let device = Arc::new(zones::MemoryDevice::new());
            let open = OpenOptions {
                threads: false,
                zero_journal: false,
                memory: 8 << 20,
                ..Default::default()
            };
            let options = CreateOptions { open: open.clone(), ..Default::default() };
            let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), options).unwrap();
            let paged = DictionaryOptions { separate_at: 512, ..Default::default() };
            let (gone, kept) = (
                db.create_dictionary("gone", paged.clone()).unwrap(),
                db.create_dictionary("kept", paged).unwrap(),
            );
            // Large values wait for their places, which their records are notified of.
            let value = move |n: u8| vec![n; if seed % 2 == 0 { 3000 } else { 30 }];
            db.put(kept, b"k", &value(1), BUFFERED).unwrap();
            let other = db.clone();
            let drops = env::thread::spawn(move || other.drop_dictionary(gone).unwrap());
            let mut batch = Batch::new();
            batch.put(gone, "k", value(2));
            batch.put(kept, "k", value(3));
            let outcome = db.commit(batch, BUFFERED);
            drops.join().unwrap();
            let expected = match &outcome {
                Ok(()) => value(3),
                // The commit may have waited for the locks of the drop until its timeout.
                Err(Error::NoDictionary(_) | Error::Locked(_)) => value(1),
                other => panic!("{other:?}"),
            };
            db.put(kept, b"l", &value(4), BUFFERED).unwrap();
            db.sync().unwrap();
            let image = Arc::new(zones::MemoryDevice::clone(&device));
            let (again, _) = Kvdb::open(image, Arc::new(Simulated::new(2)), open).unwrap();
            for (db, when) in [(&db, "in memory"), (&again, "after a crash")] {
                let found = |key| db.get(kept, key).unwrap().unwrap().to_vec();
                assert_eq!((found(b"k")[0], found(b"l")[0]), (expected[0], 4), "{when}");
                assert!(found(b"k") == expected && found(b"l") == value(4), "{when}");
            }
            outcome.is_err()
        });
        refused += u32::from(done.unwrap_or_else(|e| panic!("seed {seed}: {e}")).value);
    }
    assert!((10..590).contains(&refused), "both happen: {refused} were refused");
}

/// The changes of a transaction do not reach a dropped dictionary, however it is committed.
#[test]
fn a_transaction_does_not_commit_to_a_dictionary_that_is_gone() {
    for count in [1, 20_000] {
        let (_, db, d) = store();
        let gone = db.open_dictionary("gone").unwrap().id();
        let t = db.begin(Isolation::Snapshot).unwrap();
        (0..count).for_each(|i| t.put(gone, format!("k{i}"), vec![7; 100]).unwrap());
        t.put(d, "k", "mine").unwrap();
        db.drop_dictionary(gone).unwrap();
        let outcome = t.commit(BUFFERED);
        assert!(matches!(outcome, Err(Error::NoDictionary(_))), "{count}: {outcome:?}");
        assert_eq!(get(&db, d, "k"), None);
        t.abort();
    }
}

//! Tests of the commit pipeline from inside: windows between its steps, and its journal in a full
//! store.

use std::cell::Cell;
use std::sync::Arc;

use env::Simulated;
use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Priority, Purpose, ZONE_SIZE};

use super::batch::{Batch, Durability};
use super::memtables::Grown;
use crate::commit::order::Changed;
use crate::manifest::{Edit, ManifestState};
use crate::version::version_set::VersionEdit;
use crate::{CreateOptions, DictionaryOptions, Error, Kvdb, OpenOptions};

/// A transaction that began between the two steps would read the state before the commit and find
/// no conflict with it.
#[test]
fn no_transaction_begins_between_the_note_of_a_commit_and_its_visibility() {
    let db = Kvdb::in_memory();
    let inner = db.pipeline();
    let entered = inner.enter_in_order(Priority::Log).expect("entered");
    let asked = Cell::new(false);
    let between = || {
        asked.set(true);
        assert!(!inner.recent.may_begin(), "the commit is noted and not visible yet");
    };
    let plan =
        |_: &ManifestState| Ok(VersionEdit::of([Edit::Streams(inner.engine.zones.positions())]));
    inner
        .install_commit_with(entered, Changed::Unlisted([String::new()].into()), plan, between)
        .expect("installed");
    assert!(asked.get());
    assert!(inner.recent.may_begin(), "it is visible");
}

/// A commit looks for conflicts in memtables, which other commits write before their changes are
/// visible.
#[test]
fn after_a_conflict_the_next_transaction_sees_what_it_was_in_conflict_with() {
    let db = Kvdb::in_memory();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
    // The first commit makes the memtable.
    db.put(dict, b"other", b"", Durability::Buffered).expect("put");
    let lost = db.begin(crate::Isolation::Snapshot).expect("begun");
    lost.put(dict, "k", "mine").expect("put");
    let commits = db.pipeline();
    // Another commit is in progress.
    let mut pipeline = commits.log.pipeline.lock();
    let version = commits.engine.versions.load();
    let layer = version.active(version.tree(dict).expect("there")).expect("a memtable");
    layer.memtable.writer().put_slice(b"k", pipeline.next_seq, b"theirs");
    let (told, tells) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let refused = lost.commit(Durability::Buffered);
            let next = db.begin(crate::Isolation::Snapshot).expect("begun");
            told.send((refused, next.get(dict, b"k").expect("read"))).expect("received");
        });
        let early = tells.recv_timeout(std::time::Duration::from_millis(100));
        assert!(early.is_err(), "it waits: {early:?}");
        commits.publish(&mut pipeline, &version, 1, Grown::default());
        drop(pipeline);
        let (refused, seen) = tells.recv().expect("told");
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        assert_eq!(seen.as_deref(), Some(&b"theirs"[..]));
    });
}

/// The journal's only segment is full, and other writers have taken all zones that the journal may
/// take. A deletion then takes its segment from the zones that are left for flushes.
#[test]
fn a_deletion_has_a_journal_segment_when_puts_have_none() {
    let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
    let (capacity, reserve_zones) = (Some(20 * ZONE_SIZE), 8);
    let device = Arc::new(MemoryDevice::new());
    let options = CreateOptions { capacity, reserve_zones, open, ..CreateOptions::default() };
    let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let commits = db.pipeline();
    let put = || db.put(dict, b"a key", &[7; 4000], Durability::Synced);
    let room = || commits.log.writer.lock().room();
    // The flush of many versions of one key takes no zone while the streams have zones.
    put().unwrap();
    db.flush().unwrap();
    put().unwrap();
    while room() > 24_000 {
        put().unwrap();
    }
    let mut taken = Vec::new();
    while let Ok(zone) = commits.engine.zones.take_zone(Purpose::Journal, Priority::Log) {
        taken.push(zone);
    }
    let refused = (0..8).any(|_| matches!(put(), Err(Error::NoSpace)));
    assert!(refused, "a put has taken a zone that is left for flushes");
    for i in 0..100u8 {
        let mut batch = Batch::new();
        batch.delete(dict, [&[b'k'; 200][..], &[i]].concat());
        db.commit(batch, Durability::Synced).unwrap();
    }
}

/// If two threads each prepared a segment because one is missing, they would waste a zone of a
/// nearly full store.
#[test]
fn a_segment_that_is_being_prepared_is_not_prepared_twice() {
    let db = Kvdb::in_memory();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let commits = db.pipeline();
    let pinned = || commits.engine.zones.space().zones_pinned;
    // Act like a thread that has announced a segment and has not added it yet.
    let coming = commits.log.writer.lock().announce(commits.log.stock(), usize::MAX);
    let before = pinned();
    commits.log.prepare_segment().unwrap();
    assert_eq!(pinned(), before, "a segment was taken though one is being prepared");
    // A flush that frees a zone of the journal returns it, and does not make it a segment.
    let room = || commits.log.writer.lock().room();
    db.put(dict, b"a key", &[7; 4000], Durability::Synced).unwrap();
    while room() > 24_000 {
        db.put(dict, b"a key", &[7; 4000], Durability::Synced).unwrap();
    }
    let bytes = |_| db.put(dict, b"another", &[7; 20_000], Durability::Synced).unwrap();
    (0..2).for_each(bytes);
    db.flush().unwrap();
    assert!(room() < ZONE_SIZE as usize, "a freed zone became a segment too many");
    commits.log.writer.lock().arrived(coming);
    commits.log.prepare_segment().unwrap();
    assert!(room() > ZONE_SIZE as usize);
}

/// A flush is repeated while a transaction looks for conflicts. Only the runs of the last attempt
/// may be kept: those of the others take space that a full store lacks.
#[test]
fn the_runs_of_a_flush_that_failed_are_not_remembered() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let transaction = db.begin(crate::Isolation::Snapshot).unwrap();
    db.put(dict, b"k", b"theirs", Durability::Buffered).unwrap();
    transaction.put(dict, "k", "mine").unwrap();
    let recent = &db.pipeline().recent;
    for _ in 0..3 {
        let fault = Fault::once(Operation::Write, FaultKind::NoSpace);
        device.inject(fault.of(Purpose::Manifest));
        assert!(matches!(db.flush(), Err(Error::NoSpace)));
        device.clear();
        assert_eq!(recent.len(), 0);
    }
    db.flush().unwrap();
    assert_eq!(recent.len(), 1);
    let conflict = transaction.commit(Durability::Buffered);
    assert!(matches!(conflict, Err(Error::Conflict { .. })), "{conflict:?}");
    assert_eq!(recent.len(), 0);
}

//! Tests that no inode number is assigned twice, whichever of the assigned numbers still exist when
//! the store is opened.

use std::sync::Arc;

use env::Simulated;
use kvdb::{Batch, CreateOptions, Durability, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, ViewId, Views};
use zones::{MemoryDevice, ZONE_SIZE};

/// More than there is room for in a full store.
const FILES: usize = 20_000;

fn options(memory: usize) -> OpenOptions {
    OpenOptions { memory, threads: false, zero_journal: false, ..OpenOptions::default() }
}

fn files(db: &Kvdb) -> (Fs, Views) {
    let fs = Fs::open(db.clone(), Arc::new(Simulated::new(7)), FsOptions::default()).unwrap();
    (fs.clone(), Views::new(db.clone(), fs))
}

fn create(device: &Arc<MemoryDevice>, capacity: Option<u64>) -> (Kvdb, Fs, Views) {
    // These options leave a transaction only its log on disk.
    let create = CreateOptions {
        open: options(256 << 20),
        capacity,
        reserve_zones: 8,
        ..CreateOptions::default()
    };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(7)), create).unwrap();
    let (fs, views) = files(&db);
    (db, fs, views)
}

fn open(device: &Arc<MemoryDevice>, memory: usize) -> (Kvdb, Fs, Views) {
    let db = Kvdb::open(device.clone(), Arc::new(Simulated::new(7)), options(memory)).unwrap().0;
    let (fs, views) = files(&db);
    (db, fs, views)
}

/// Returns the device as it is after a kill.
fn crash(device: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    Arc::new((**device).clone())
}

fn file(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let ino =
        fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data, Default::default()).unwrap() as usize, data.len());
    ino
}

fn content(fs: &Fs, path: &str) -> Vec<u8> {
    let attr = fs.resolve(path.as_bytes()).unwrap();
    fs.read(attr.ino, 0, attr.size as u32).unwrap().to_vec()
}

fn is_clean(db: &Kvdb) {
    let report = kvfs::verify(db).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A durable transaction that fits neither in memory nor on disk when the store is opened continues
/// only at the next opening. Until then it is not known which numbers it has assigned.
#[test]
fn numbers_of_a_transaction_that_cannot_go_on_now_are_not_given_again() {
    let device = Arc::new(MemoryDevice::new());
    let (db, fs, views) = create(&device, Some(20 * ZONE_SIZE));
    let rows = db.open_dictionary("rows").unwrap().id();
    let id = views.begin(TransactionOptions { durable: true, ..Default::default() }).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let mine: Vec<Ino> =
        (0..FILES).map(|i| file(&inside, &format!("mine{i}"), &[i as u8; 500])).collect();
    inside.sync_all().unwrap();
    // No space is reserved for files any more.
    drop((fs, views, inside));
    let full = (0..10_000).find_map(|n| {
        let mut batch = Batch::new();
        batch.put(rows, format!("{n:06}"), vec![n as u8; 100_000]);
        db.commit(batch, Durability::Synced).err()
    });
    assert!(matches!(full, Some(kvdb::Error::NoSpace)), "{full:?}");

    let device = crash(&device);
    let (db, fs, _) = open(&device, 1 << 20);
    assert_eq!(db.transactions(), [], "there is no room for it");
    let mut batch = Batch::new();
    batch.delete_range(rows, "", "9");
    db.commit(batch, Durability::Synced).unwrap();
    db.reclaim();
    let theirs: Vec<Ino> =
        (0..10).map(|i| file(&fs, &format!("theirs{i}"), &[1; 20_000])).collect();
    assert!(
        theirs.iter().all(|ino| !mine.contains(ino)),
        "{theirs:?} are among {:?}",
        mine[0]..=mine[FILES - 1]
    );
    fs.sync_all().unwrap();

    let (db, fs, views) = open(&crash(&device), 256 << 20);
    views.commit(id, Durability::Synced).unwrap();
    (0..FILES).for_each(|i| assert_eq!(content(&fs, &format!("/mine{i}")), [i as u8; 500]));
    (0..10).for_each(|i| assert_eq!(content(&fs, &format!("/theirs{i}")), [1; 20_000]));
    is_clean(&db);
}

/// The numbers of removed files are not assigned again either, so a handle that a client (such as
/// NFS) has kept never refers to a later file.
#[test]
fn numbers_of_files_that_are_gone_are_not_given_again() {
    let device = Arc::new(MemoryDevice::new());
    let (db, fs, _) = create(&device, None);
    let gone = file(&fs, "gone", b"gone");
    fs.unlink(ROOT, b"gone").unwrap();
    fs.forget(gone, 1);
    db.sync().unwrap();
    let device = crash(&device);
    let (db, fs, views) = open(&device, 16 << 20);
    let new = file(&fs, "new", b"new");
    assert!(new > gone, "{new} was {gone}");
    // The same holds after a rollback, which restores the store's earlier record of the numbers.
    views.snapshot(&ViewId::Mainline, "s", Durability::Synced).unwrap();
    let mut last = new;
    for i in 0..70_000 {
        last = fs.tmpfile(ROOT, 0o600, Caller::default()).unwrap().ino;
        fs.forget(last, 1);
        assert!(i > 0 || last > new);
    }
    views.rollback("s").unwrap();
    let id = views.begin(TransactionOptions { durable: true, ..Default::default() }).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let behind = file(&inside, "behind", b"behind");
    assert!(behind > last, "{behind} was given before {last}");
    views.abort(id).unwrap();
    db.sync().unwrap();
    let (db, fs, _) = open(&crash(&device), 16 << 20);
    let newest = file(&fs, "newest", b"newest");
    assert!(newest > behind, "{newest} was given before {behind}");
    fs.sync_all().unwrap();
    is_clean(&db);
}

/// A store that has lost the note continues after the largest existing number, and writes a note
/// when it is opened.
#[test]
fn a_store_without_a_note_of_its_numbers_goes_on_behind_the_largest_that_is_there() {
    let device = Arc::new(MemoryDevice::new());
    let (db, fs, _) = create(&device, None);
    let old = file(&fs, "old", b"old");
    fs.sync_all().unwrap();
    let notes = db.dictionary_in(kvdb::STORE_BRANCH, "numbers").unwrap();
    let bound = |db: &Kvdb| db.get(notes, b"n").unwrap();
    assert!(bound(&db).is_some());
    let mut batch = Batch::new();
    batch.delete(notes, b"n".as_slice());
    db.commit(batch, Durability::Synced).unwrap();
    let (db, fs, _) = open(&crash(&device), 16 << 20);
    assert!(bound(&db).is_some());
    assert!(file(&fs, "new", b"new") > old);
    is_clean(&db);
    // A note with an impossible number is not a bound.
    for wrong in [&b""[..], &[0xff; 8], &[1; 9], &[0; 8]] {
        let mut batch = Batch::new();
        batch.put(notes, b"n".as_slice(), wrong);
        db.commit(batch, Durability::Synced).unwrap();
        let fs = Fs::open(db.clone(), Arc::new(Simulated::new(7)), FsOptions::default()).unwrap();
        let known = fs.resolve(b"/new").unwrap().ino;
        assert!(file(&fs, &format!("{wrong:?}"), b"") > known);
        is_clean(&db);
    }
}

/// A check finds notes with impossible numbers in a branch, and they are ignored.
#[test]
fn malformed_notes_of_a_branch_are_found() {
    let device = Arc::new(MemoryDevice::new());
    let (db, fs, _) = create(&device, None);
    file(&fs, "old", b"old");
    fs.sync_all().unwrap();
    let imap = db.dictionary("imap").unwrap();
    for key in [b"n", b"r"] {
        for wrong in [&b""[..], &[0xff; 16], &[1; 9]] {
            let mut batch = Batch::new();
            batch.put(imap, [&[0; 8][..], key].concat(), wrong);
            db.commit(batch, Durability::Synced).unwrap();
            let report = kvfs::verify(&db).unwrap();
            assert!(!report.is_clean(), "{key:?} {wrong:?}");
            let fs = Fs::open(db.clone(), Arc::new(Simulated::new(7)), FsOptions::default());
            assert!(fs.is_ok(), "{key:?} {wrong:?}");
        }
        let mut batch = Batch::new();
        batch.delete(imap, [&[0; 8][..], key].concat());
        db.commit(batch, Durability::Synced).unwrap();
        is_clean(&db);
    }
}

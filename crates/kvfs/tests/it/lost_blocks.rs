//! Tests of repairs after the loss of a tuple block that referred to pages of several files. The
//! main branch, snapshots, clones and copies of these all lose the same data.

use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions};
use kvfs::{
    Caller, Earlier, Error, FileKind, Fs, FsOptions, Ino, Losses, ROOT, ViewId, Views, WriteHints,
};
use zones::{Device, MemoryDevice, Purpose};

const PAGE: u64 = 4096;
/// The last page of each file is so small that it lies in the block of tuples.
const TAIL: u64 = 200;
const SIZE: u64 = 2 * PAGE + TAIL;
const FILES: [&[u8]; 3] = [b"a", b"b", b"c"];

fn content(n: u64) -> Vec<u8> {
    let mut content = vec![0; SIZE as usize];
    env::Random::new(n + 1).fill(&mut content);
    content
}

fn options() -> OpenOptions {
    OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() }
}

fn open(device: &Arc<MemoryDevice>) -> (Kvdb, Views) {
    let env = Arc::new(Simulated::new(2));
    let db = Kvdb::open(device.clone(), env.clone(), options()).expect("it opens").0;
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
    let views = Views::new(db.clone(), fs);
    (db, views)
}

fn close(db: Kvdb, views: Views) {
    views.shutdown().expect("synced");
    drop(views);
    db.close().expect("closed");
}

fn views_of_all() -> [ViewId; 3] {
    [ViewId::Mainline, ViewId::Snapshot("s".into()), ViewId::Clone("c".into())]
}

fn write(fs: &Fs, file: Ino, offset: u64, data: &[u8]) {
    fs.write(file, offset, data, WriteHints::default()).expect("written");
}

/// A store with three files, another one that is `gone` from the main branch, and a sparse one, all
/// of which a snapshot and a clone of that have. The main branch has written a page of `b` again.
/// The block of tuples that leads to all pages is damaged.
fn damaged() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    let env = Arc::new(Simulated::new(1));
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("a store");
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
    let make = |name: &[u8]| {
        let made = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default());
        made.expect("a file").ino
    };
    for (n, name) in (0..).zip(FILES) {
        write(&fs, make(name), 0, &content(n));
    }
    write(&fs, make(b"gone"), 0, &content(3));
    let sparse = make(b"sparse");
    write(&fs, sparse, 0, &[5; 100]);
    write(&fs, sparse, 6 * PAGE, &[6; 100]);
    fs.sync_all().expect("synced");
    db.flush().expect("flushed");

    let b = fs.resolve(b"b").expect("the file").ino;
    let views = Views::new(db.clone(), fs);
    views.snapshot(&ViewId::Mainline, "s", Durability::Synced).expect("a snapshot");
    views.clone_snapshot("s", "c").expect("a clone");
    let fs = views.fs(&ViewId::Mainline).expect("the mainline");
    write(&fs, b, PAGE, &[7; PAGE as usize]);
    fs.unlink(ROOT, b"gone").expect("removed");
    fs.sync_all().expect("synced");
    drop(fs);
    views.shutdown().expect("synced");
    drop(views);
    db.flush().expect("flushed");
    db.close().expect("closed");
    drop(db);

    let mut bytes = vec![0; device.len().expect("a length") as usize];
    device.read_at(Purpose::Tuples, 0, &mut bytes).expect("the store");
    let tail = content(1)[2 * PAGE as usize..].to_vec();
    let places = bytes.windows(tail.len()).enumerate().filter(|(_, window)| **window == tail[..]);
    let places: Vec<u64> = places.map(|(at, _)| at as u64).collect();
    assert!(!places.is_empty(), "the last page lies in a block as it is");
    places.into_iter().for_each(|at| device.flip_bit(at, 1));
    device
}

/// Repairs the store, of which a block with the pages of several files was lost.
fn repair(device: &Arc<MemoryDevice>, losses: Losses) {
    let env = Arc::new(Simulated::new(3));
    let db = Kvdb::open(device.clone(), env.clone(), options()).expect("it opens").0;
    let repaired = kvfs::repair(&db, &*env, losses).expect("repaired");
    let ino = |key: &[u8]| u64::from_be_bytes(*key.first_chunk().expect("a number"));
    let of_several = |fault: &kvdb::ScrubFault| {
        fault.keys.as_ref().is_some_and(|keys| ino(&keys.start) + 2 <= ino(&keys.end))
    };
    assert!(repaired.store.removed.iter().any(of_several), "{repaired:?}");
    assert!(kvfs::verify(&db).expect("readable").is_clean());
    let again = kvfs::repair(&db, &*env, losses).expect("again");
    assert!(again.store.removed.is_empty() && again.mended.is_empty(), "{again:?}");
    db.close().expect("closed");
    drop(db);
    assert!(kvdb::check(device.clone(), &mut |_, _| {}).is_clean());
}

/// Reading any page of a file fails.
fn is_lost(fs: &Fs, name: &[u8]) {
    let file = fs.resolve(name).expect("the file");
    for at in (0..file.size).step_by(PAGE as usize) {
        let read = fs.read(file.ino, at, 100);
        let shown = name.escape_ascii();
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{shown} at {at}: {read:?}");
    }
}

#[test]
fn files_of_a_lost_block_are_lost_in_snapshots_and_clones_and_in_copies_of_them() {
    let device = damaged();
    repair(&device, Losses::Keep);
    let (db, views) = open(&device);
    for view in views_of_all() {
        let fs = views.fs(&view).expect("a view");
        for name in [&b"a"[..], b"c", b"sparse"] {
            is_lost(&fs, name);
        }
        if view == ViewId::Mainline {
            let b = fs.resolve(b"b").expect("the file").ino;
            assert!(matches!(fs.read(b, 0, 100), Err(Error::Corrupt { .. })));
            assert!(fs.read(b, PAGE, 100).expect("written since")[..] == [7; 100]);
            assert!(fs.resolve(b"gone").is_err());
            assert!(fs.resolve(b"lost+found").is_err(), "a removed file does not come back");
        } else {
            is_lost(&fs, b"b");
            is_lost(&fs, b"gone");
        }
        if !matches!(view, ViewId::Snapshot(_)) {
            let report = fs.verify().expect("readable");
            assert!(report.is_clean() && report.lost_pages > 0, "{view:?}: {report:?}");
        }
    }

    // A copy from the snapshot has lost the same data.
    let snapshot = Earlier::Snapshot("s".into());
    views.clone_earlier(&ViewId::Mainline, &snapshot, b"gone", b"again").expect("copied");
    let fs = views.fs(&ViewId::Mainline).expect("the mainline");
    is_lost(&fs, b"again");
    drop(fs);

    let mut stream = Vec::new();
    db.send("s", None, &mut stream, None).expect("sent");
    let env = Arc::new(Simulated::new(4));
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let copy = Kvdb::create(Arc::new(MemoryDevice::new()), env.clone(), create).expect("a store");
    copy.receive(&stream[..], &Default::default()).expect("received");
    let report = kvfs::verify(&copy).expect("readable");
    assert!(report.is_clean() && report.lost_pages > 0, "{report:?}");
    let fs = Fs::open(copy.clone(), env, FsOptions::default()).expect("a file system");
    for name in [&b"a"[..], b"b", b"c", b"gone", b"sparse"] {
        is_lost(&fs, name);
    }
    fs.shutdown().expect("synced");
    drop(fs);
    copy.close().expect("closed");
    close(db, views);
}

#[test]
fn files_of_a_lost_block_are_listed_until_they_are_accepted() {
    let device = damaged();
    repair(&device, Losses::Keep);
    let listed = || {
        let (db, views) = open(&device);
        let losses = kvfs::losses(&db).expect("readable");
        close(db, views);
        losses.into_iter().map(|loss| loss.what).collect::<Vec<_>>()
    };
    let kept = listed();
    assert!(kept.iter().any(|what| what.starts_with("data of files")), "{kept:?}");
    assert!(!kept.iter().any(|what| what.contains("zeros")), "all have marks: {kept:?}");
    assert_eq!(listed(), kept);

    let env = Arc::new(Simulated::new(5));
    let db = Kvdb::open(device.clone(), env.clone(), options()).expect("it opens").0;
    kvfs::repair(&db, &*env, Losses::Accept).expect("repaired");
    db.close().expect("closed");
    drop(db);
    assert_eq!(listed(), Vec::<String>::new());
    let (db, views) = open(&device);
    for view in [ViewId::Mainline, ViewId::Clone("c".into())] {
        read_as_zeros(&views.fs(&view).expect("a view"));
    }
    // A snapshot does not change.
    is_lost(&views.fs(&ViewId::Snapshot("s".into())).expect("a view"), b"a");
    close(db, views);
}

/// The files that were not written since read as zeros up to their size.
fn read_as_zeros(fs: &Fs) {
    for name in [b"a", b"c"] {
        let file = fs.resolve(name).expect("the file");
        assert_eq!(file.size, SIZE);
        let read = fs.read(file.ino, 0, SIZE as u32).expect("readable");
        assert!(read.len() as u64 == SIZE && read.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_lost_block_that_is_accepted_at_once_reads_as_zeros_everywhere() {
    let device = damaged();
    repair(&device, Losses::Accept);
    let (db, views) = open(&device);
    assert!(kvfs::losses(&db).expect("readable").is_empty());
    for view in views_of_all() {
        read_as_zeros(&views.fs(&view).expect("a view"));
    }
    close(db, views);
}

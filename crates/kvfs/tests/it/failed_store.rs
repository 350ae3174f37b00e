//! Tests of a store that has failed. Files report the error at once, and hold no data that can
//! never be written.

use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{
    Allocate, AllocateMode, Caller, FileKind, Fs, FsOptions, Ino, ROOT, SetAttr, ViewId, Views,
    XattrFlags,
};
use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };

fn open(device: Arc<dyn zones::Device>) -> (Kvdb, Fs) {
    let env = Arc::new(Simulated::new(7));
    let options =
        OpenOptions { memory: 16 << 20, threads: false, zero_journal: false, ..Default::default() };
    let db =
        Kvdb::create(device, env.clone(), CreateOptions { open: options, ..Default::default() })
            .unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    (db, fs)
}

fn file(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data, Default::default()).unwrap() as usize, data.len());
    ino
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: kvfs::Result<T>, errno: i32) {
    match result {
        Err(e) => assert_eq!(e.errno(), errno, "{e}"),
        Ok(v) => panic!("succeeded with {v:?}, expected errno {errno}"),
    }
}

/// Every call that changes something.
fn refuses_every_change(fs: &Fs, ino: Ino) {
    fails(fs.write(ino, 0, b"new", Default::default()), libc::EROFS);
    fails(fs.write(ino, 1 << 20, &[1; 1 << 20], Default::default()), libc::EROFS);
    fails(fs.setattr(ino, &SetAttr { size: Some(0), ..Default::default() }, USER), libc::EROFS);
    fails(fs.setattr(ino, &SetAttr { mode: Some(0o600), ..Default::default() }, USER), libc::EROFS);
    let keep_size = true;
    for mode in [AllocateMode::Allocate, AllocateMode::Punch, AllocateMode::Zero] {
        fails(fs.fallocate(ino, Allocate { mode, keep_size }, 0, 4096), libc::EROFS);
    }
    fails(fs.copy_file_range(ino, 0, ino, 1 << 20, 4096), libc::EROFS);
    fails(fs.setxattr(ino, b"user.a", b"1", XattrFlags::Any), libc::EROFS);
    fails(fs.removexattr(ino, b"user.a"), libc::EROFS);
    fails(fs.mknod(ROOT, b"new", FileKind::File, 0o644, 0, USER), libc::EROFS);
    fails(fs.mkdir(ROOT, b"new", 0o755, USER), libc::EROFS);
    fails(fs.symlink(ROOT, b"new", b"target", USER), libc::EROFS);
    fails(fs.tmpfile(ROOT, 0o600, USER), libc::EROFS);
    fails(fs.link(ino, ROOT, b"new"), libc::EROFS);
    fails(fs.rename(ROOT, b"f", ROOT, b"new", Default::default()), libc::EROFS);
    fails(fs.unlink(ROOT, b"f"), libc::EROFS);
    fails(fs.rmdir(ROOT, b"d"), libc::EROFS);
}

#[test]
fn after_a_failed_sync_nothing_is_taken_and_what_was_taken_is_said_to_be_lost() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let (db, fs) = open(device.clone());
    let views = Views::new(db.clone(), fs.clone());
    let f = file(&fs, "f", &[7; 20_000]);
    let open_elsewhere = file(&fs, "g", b"g");
    fs.mkdir(ROOT, b"d", 0o755, USER).unwrap();
    fs.sync_all().unwrap();
    let id = views.begin(Default::default()).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    fs.write(f, 0, b"not to be lost", Default::default()).unwrap();
    fs.write(open_elsewhere, 0, b"G", Default::default()).unwrap();

    device.inject(Fault::always(Operation::Sync, FaultKind::Error));
    // The first caller gets the error, and so do all others that rely on the written data.
    fails(fs.fsync(f, false), libc::EIO);
    fails(fs.fsync(open_elsewhere, true), libc::EIO);
    fails(fs.sync_all(), libc::EIO);
    device.clear();

    let before = fs.statistics().dirty_bytes;
    refuses_every_change(&fs, f);
    refuses_every_change(&inside, f);
    assert_eq!(
        (fs.statistics().dirty_bytes, inside.statistics().dirty_bytes),
        (before, 0),
        "nothing gathers in memory"
    );
    // Existing data can still be read.
    assert_eq!(&fs.read(f, 0, 14).unwrap()[..], b"not to be lost");
    fails(fs.fsync(f, false), libc::EIO);
}

#[test]
fn what_finds_no_space_at_a_sync_stays_in_its_place_and_is_written_later() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let (_, fs) = open(device.clone());
    let log = file(&fs, "log", b"");
    let mut expected = Vec::new();
    let mut refused = 0;
    for round in 0..60u32 {
        // The host is full, then has space, and then is full again.
        match round % 20 {
            5 => [Operation::Grow, Operation::Write]
                .map(|on| device.inject(Fault::always(on, FaultKind::NoSpace)))
                .to_vec(),
            15 => vec![device.clear()],
            _ => vec![],
        };
        let line = [round as u8 + 1; 300_000];
        if fs.write(log, expected.len() as u64, &line, Default::default()).is_ok() {
            expected.extend_from_slice(&line);
        }
        match fs.fsync(log, true) {
            Ok(()) => {}
            Err(e) if e.errno() == libc::ENOSPC => refused += 1,
            Err(e) => panic!("round {round}: {e}"),
        }
        let held = fs.read(log, 0, (expected.len() + 1) as u32).unwrap();
        assert!(held == expected, "round {round}: no hole, and nothing lost, in what was accepted");
    }
    device.clear();
    fs.fsync(log, true).unwrap();
    assert!(refused > 0, "it was full at a sync");
    assert!(fs.read(log, 0, expected.len() as u32).unwrap() == expected);
}

/// Files are committed in groups. One of them whose node cannot be read at that moment is not in
/// the group, and no part of it: not even that it has lost its capability, whose value lies next to
/// the node.
#[test]
fn of_a_file_that_cannot_be_staged_no_part_is_committed_with_others() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let env = Arc::new(Simulated::new(7));
    let options =
        OpenOptions { memory: 1 << 20, threads: false, zero_journal: false, ..Default::default() };
    let db = Kvdb::create(
        device.clone(),
        env.clone(),
        CreateOptions { open: options, ..Default::default() },
    )
    .unwrap();
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
    let program = file(&fs, "program", b"code");
    let (name, capability) = (b"security.capability", [1; 1000]);
    fs.setxattr(program, name, &capability, XattrFlags::Any).unwrap();
    // So many that not all fit into memory.
    let mut random = env::Random::new(1);
    let others: Vec<Ino> = (0..6000)
        .map(|i| {
            file(
                &fs,
                &format!("other{i}"),
                &(0..400).map(|_| random.number() as u8).collect::<Vec<_>>(),
            )
        })
        .collect();
    fs.sync_all().unwrap();
    db.flush().unwrap();

    fs.setattr(program, &SetAttr { uid: Some(2000), ..Default::default() }, USER).unwrap();
    fails(fs.getxattr(program, name), libc::ENODATA);
    let later = file(&fs, "later", b"committed in one group with it");
    for &other in &others {
        fs.read(other, 0, 400).unwrap();
    }
    device.inject(Fault::always(Operation::Read, FaultKind::Error));
    fails(fs.sync_all(), libc::EIO);
    device.clear();
    // Another file system is opened over the committed data, as after a kill.
    let again = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    assert_eq!(again.verify().unwrap().findings, []);
    assert_eq!(&again.read(later, 0, 100).unwrap()[..], b"committed in one group with it");
    assert_eq!(
        (again.getattr(program).unwrap().uid, &again.getxattr(program, name).unwrap()[..]),
        (USER.uid, &capability[..])
    );
    // Data that could not be read before can be read now.
    fs.sync_all().unwrap();
    let again = Fs::open(db, Arc::new(Simulated::new(8)), FsOptions::default()).unwrap();
    assert_eq!(again.verify().unwrap().findings, []);
    assert_eq!(again.getattr(program).unwrap().uid, 2000);
    fails(again.getxattr(program, name), libc::ENODATA);
}

/// A truncation counts what it leaves and reads the page that the new end is in. If any of these
/// fails, the file is not truncated.
#[test]
fn a_truncation_that_cannot_read_changes_nothing() {
    const PAGE: u64 = 4096;
    const PAGES: u64 = 12_000;
    // Data that cannot be compressed lies outside of the block with its key.
    let content = |page: u64| {
        let mut random = env::Random::new(page);
        (0..PAGE / 8).flat_map(|_| random.number().to_le_bytes()).collect::<Vec<u8>>()
    };
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let (db, fs) = open(device.clone());
    let f = file(&fs, "f", b"");
    // Every other page is a hole, so that they have to be counted.
    for page in 0..PAGES {
        fs.write(f, 2 * page * PAGE, &content(page), Default::default()).unwrap();
    }
    fs.shutdown().unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    drop((fs, db));
    let kept = PAGES / 2 - 100;
    let size = 2 * kept * PAGE + 100;
    for after in 0.. {
        // The store is opened with nothing in memory.
        let options = OpenOptions {
            memory: 16 << 20,
            threads: false,
            zero_journal: false,
            ..Default::default()
        };
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Simulated::new(7)), options).unwrap();
        let fs = Fs::open(db, Arc::new(Simulated::new(7)), FsOptions::default()).unwrap();
        let f = fs.resolve(b"f").unwrap();
        device.inject(Fault::once(Operation::Read, FaultKind::Error).after(after));
        let cut = fs.setattr(f.ino, &SetAttr { size: Some(size), ..Default::default() }, USER);
        device.clear();
        let last = fs.read(f.ino, 2 * kept * PAGE, PAGE as u32).unwrap();
        if cut.is_ok() {
            assert!(
                after > 2,
                "pages are counted in more than one block: {after} reads could fail"
            );
            assert_eq!((fs.getattr(f.ino).unwrap().size, &last[..]), (size, &content(kept)[..100]));
            break;
        }
        fails(cut, libc::EIO);
        assert_eq!(fs.getattr(f.ino).unwrap().size, f.size, "read {after} failed");
        assert!(
            last[..] == content(kept),
            "read {after} failed, and the page that the new end would be in was cut"
        );
    }
}

/// The blocks of a file are counted when it is looked up, which reads the store. The caller gets no
/// reference with an error; kept, it would keep the file forever after its last name is gone.
#[test]
fn a_lookup_that_fails_adds_no_reference() {
    let memory = Arc::new(MemoryDevice::new());
    let (db, fs) = open(memory.clone());
    let ino = file(&fs, "f", &vec![1; 32 << 20]);
    fs.write(ino, 33 << 20, &[1; 4096], Default::default()).unwrap();
    fs.sync_all().unwrap();
    fs.forget(ino, 1);
    fs.shutdown().unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    drop((fs, db));
    let device = Arc::new(FaultDevice::new(memory, 1));
    let env = Arc::new(Simulated::new(8));
    let options = OpenOptions { memory: 1 << 20, threads: false, ..Default::default() };
    let db = Kvdb::open(device.clone(), env.clone(), options).unwrap().0;
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    assert_eq!(fs.lookup(ROOT, b"f").unwrap().ino, ino);
    // In a file with holes it is not known yet whether the block was one.
    fs.write(ino, 16 << 20, &[2; 4096], Default::default()).unwrap();
    device.inject(Fault::always(Operation::Read, FaultKind::Error));
    fails(fs.lookup(ROOT, b"f"), libc::EIO);
    assert!(device.struck() > 0);
    device.clear();
    fs.forget(ino, 1);
    fs.unlink(ROOT, b"f").unwrap();
    fails(fs.getattr(ino), libc::ESTALE);
}

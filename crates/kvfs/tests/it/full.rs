//! Tests of a full store. Writes fail early with ENOSPC, acknowledged data is kept, and removing
//! works and frees space.

use std::sync::Arc;

use crate::world::fails;
use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT, RenameFlags, SetAttr};
use zones::MemoryDevice;

const ZONE: u64 = 8 << 20;
const USER: Caller = Caller { uid: 1, gid: 1, pid: 1 };

/// A store of this many zones, without threads.
fn small(zones: u64) -> (Kvdb, Fs) {
    let open =
        OpenOptions { memory: 8 << 20, threads: false, zero_journal: false, ..Default::default() };
    let options = CreateOptions {
        capacity: Some(zones * ZONE),
        reserve_zones: 4,
        open,
        ..CreateOptions::default()
    };
    let env = Arc::new(Simulated::new(1));
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), env.clone(), options).unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions { write_buffer: 4 << 20, ..Default::default() })
        .unwrap();
    (db, fs)
}

fn content(n: u64, size: usize) -> Vec<u8> {
    (0..size).map(|i| (i as u64 * 7 + n * 13) as u8).collect()
}

/// Writes files of this size until the store is full. Returns them with their content.
fn fill(fs: &Fs, size: usize) -> Vec<(u64, String, Vec<u8>)> {
    let mut files = Vec::new();
    for n in 0.. {
        let name = format!("f{n}");
        let ino = match fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER) {
            Ok(attr) => attr.ino,
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                break;
            }
        };
        let data = content(n, size);
        match fs.write(ino, 0, &data, Default::default()) {
            Ok(_) => files.push((ino, name, data)),
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                files.push((ino, name, Vec::new()));
                break;
            }
        }
        assert!(n < 1_000_000, "a store of a few MiB never filled up");
    }
    files
}

#[test]
fn what_was_acknowledged_before_the_store_was_full_is_there() {
    for size in [300usize, 5000, 200_000] {
        let (db, fs) = small(14);
        let files = fill(&fs, size);
        let stored: usize = files.iter().map(|f| f.2.len()).sum();
        assert!(stored > 8 << 20, "only {stored} bytes of {size} fitted");
        fs.sync_all().unwrap();
        assert_eq!(fs.statistics().dirty_bytes, 0, "all that was accepted was committed");
        for (ino, name, data) in &files {
            assert!(fs.read(*ino, 0, 1 << 20).unwrap() == data[..], "{name} of {size} bytes");
        }
        let report = kvfs::verify(&db).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

#[test]
fn removing_works_in_a_full_store_and_gives_space_back() {
    for size in [300usize, 200_000] {
        let (db, fs) = small(14);
        for round in 0..3 {
            let files = fill(&fs, size);
            assert!(
                files.len() as u64 > if size == 300 { 10_000 } else { 100 },
                "round {round}: only {} files",
                files.len()
            );
            for (ino, name, _) in &files {
                fs.unlink(ROOT, name.as_bytes())
                    .unwrap_or_else(|e| panic!("round {round}: removing {name}: {e}"));
                fs.forget(*ino, 1);
            }
            fs.sync_all().unwrap();
        }
        let report = kvfs::verify(&db).unwrap();
        assert!(report.is_clean() && report.files == 0, "{:?}", report.findings);
    }
}

#[test]
fn a_file_can_be_cut_in_a_full_store() {
    let (_, fs) = small(14);
    let files = fill(&fs, 4 << 20);
    let cut = SetAttr { size: Some(10), ..Default::default() };
    for (ino, _, data) in files.iter().filter(|f| !f.2.is_empty()) {
        fs.setattr(*ino, &cut, USER).unwrap();
        fs.fsync(*ino, false).unwrap();
        assert_eq!(fs.read(*ino, 0, 100).unwrap(), data[..10]);
    }
    assert!(fill_after(&fs) > 10 << 20);
}

#[test]
fn a_whiteout_is_refused_in_a_full_store_and_a_new_name_is_not() {
    let (db, fs) = small(14);
    let files = fill(&fs, 300);
    let rename =
        |from: &str, to: &str, flags| fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), flags);
    let whiteout = RenameFlags { whiteout: true, ..RenameFlags::default() };
    // Repeated renames with a whiteout would use up the space that is reserved for removals.
    for (_, name, _) in &files[..100] {
        fails(rename(name, &format!("to-{name}"), whiteout), libc::ENOSPC);
        rename(name, &format!("to-{name}"), RenameFlags::default()).unwrap();
    }
    for (_, name, _) in &files[100..200] {
        fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    let report = kvfs::verify(&db).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn fill_after(fs: &Fs) -> usize {
    let ino = fs.mknod(ROOT, b"after", FileKind::File, 0o644, 0, USER).unwrap().ino;
    let mut at = 0;
    while fs.write(ino, at as u64, &[1; 100_000], Default::default()).is_ok() {
        at += 100_000;
    }
    fs.fsync(ino, false).unwrap();
    at
}

#[test]
fn more_than_there_is_cannot_be_allocated() {
    let (_, fs) = small(14);
    let ino = fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, USER).unwrap().ino;
    let how = kvfs::Allocate { mode: kvfs::AllocateMode::Allocate, keep_size: false };
    fails(fs.fallocate(ino, how, 0, 14 * ZONE), libc::ENOSPC);
    fs.fallocate(ino, how, 0, ZONE).unwrap();
    let space = fs.statfs().unwrap();
    assert!(space.free > 0 && space.free < space.blocks);
}

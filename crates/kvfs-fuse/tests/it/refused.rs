//! Tests of data that the kernel has accepted from a program and the store refuses. The program
//! gets an error, and no later data is stored after a hole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::real::{BOTH, Mapping, Real, policy};
use env::Machine;
use kvdb::{CreateOptions, Isolation, Kvdb, OpenOptions};
use kvfs::{Fs, FsOptions};
use zones::MemoryDevice;

/// A store for about 80 MiB of files.
fn small(device: &Arc<MemoryDevice>) -> Kvdb {
    let open = OpenOptions { memory: 16 << 20, ..OpenOptions::default() };
    let options =
        CreateOptions { capacity: Some(20 * zones::ZONE_SIZE), open, ..CreateOptions::default() };
    Kvdb::create(device.clone(), Arc::new(Machine::default()), options).expect("a store")
}

/// A file that takes all the space there is.
fn fill(m: &Real) {
    let mut file = File::create(m.path("fill")).expect("create");
    let full = (0..1000)
        .find_map(|_| file.write_all(&[7; 256 << 10]).and_then(|()| file.sync_data()).err());
    assert_eq!(full.expect("it gets full").raw_os_error(), Some(libc::ENOSPC));
}

/// Appends a line and syncs it. Returns whether that succeeded.
fn append(log: &mut File, line: &[u8]) -> bool {
    match log.write_all(line).and_then(|()| log.sync_data()) {
        Ok(()) => true,
        Err(e) => {
            assert!(matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EIO)), "{e}");
            false
        }
    }
}

/// Waits until something holds, for half a minute.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::yield_now();
    }
}

#[test]
fn no_line_of_a_log_stands_behind_a_hole_of_one_that_was_refused() {
    // Several requests, the last one of which is short: there may be space for it, and not for
    // those before.
    const LINE: usize = (2 << 20) + 100;
    for write_back in BOTH {
        let device = Arc::new(MemoryDevice::new());
        let Some(m) = Real::with(small(&device), FsOptions::default(), &policy(write_back)) else {
            return;
        };
        let mut log =
            File::options().append(true).create(true).open(m.path("log")).expect("create");
        let line = |i: u8| vec![i; LINE + usize::from(i)];
        let mut kept: Vec<u8> = Vec::new();
        let mut refused = 0;
        for i in 1..=20 {
            match i {
                5 => fill(&m),
                12 => std::fs::remove_file(m.path("fill")).expect("removed"),
                // A program that knows the end of its log continues there as soon as the space of
                // the removed file is available.
                16 => until("there is space again", || {
                    log.set_len(kept.len() as u64).expect("the size is set");
                    append(&mut log, &line(i))
                }),
                _ => {}
            }
            if i == 16 || append(&mut log, &line(i)) {
                kept.extend(line(i));
            } else {
                refused += 1;
            }
            assert!(
                (5..16).contains(&i) || kept.ends_with(&line(i)),
                "line {i} has space, write-back {write_back}"
            );
        }
        assert!(refused > 0, "it was full");
        drop(log);
        drop(m);
        let (db, _) = Kvdb::open(device, Arc::new(Machine::default()), OpenOptions::default())
            .expect("it opens");
        let fs = Fs::open(db, Arc::new(Machine::default()), FsOptions::default())
            .expect("a file system");
        let attr = fs.resolve(b"/log").expect("there");
        let seen = fs.read(attr.ino, 0, attr.size as u32).expect("read");
        let lines: Vec<(u8, usize)> =
            seen.chunk_by(|a, b| a == b).map(|line| (line[0], line.len())).collect();
        assert!(
            seen == kept,
            "write-back {write_back}: {} bytes were synced, there are {lines:?}",
            kept.len()
        );
    }
}

#[test]
fn what_was_refused_is_said_at_every_sync_until_the_size_is_set() {
    let device = Arc::new(MemoryDevice::new());
    let Some(m) = Real::with(small(&device), FsOptions::default(), &policy(true)) else { return };
    let mut log = File::options().append(true).create(true).open(m.path("log")).expect("create");
    assert!(append(&mut log, &[1; 10_000]));
    fill(&m);
    assert!(!append(&mut log, &[2; 4 << 20]), "it is full");
    std::fs::remove_file(m.path("fill")).expect("removed");
    let said = |mut log: &File| {
        log.write_all(&[3; 100])
            .and_then(|()| log.sync_data())
            .map_err(|e: io::Error| e.raw_os_error())
    };
    for _ in 0..3 {
        assert_eq!(said(&log), Err(Some(libc::EIO)));
    }
    // Another program does not write after it either.
    let other = File::options().append(true).open(m.path("log")).expect("open");
    assert_eq!(said(&other), Err(Some(libc::EIO)));
    assert_eq!(
        log.sync_data().map_err(|e| e.raw_os_error()),
        Err(Some(libc::EIO)),
        "each who has it open is told"
    );
    log.set_len(10_000).expect("the size is set");
    assert_eq!(said(&log), Ok(()));
    assert_eq!(std::fs::read(m.path("log")).expect("read"), [&[1; 10_000][..], &[3; 100]].concat());
}

/// The write of a page is repeated for ten seconds while a transaction has the file locked, and is
/// then refused with EDEADLK. The kernel keeps the error of a page for the next syncfs(2), even of
/// a descriptor that is opened afterwards. So a caller that begins more than ten seconds after the
/// kernel has sent the page meets the refusal before anything looks for locks. With the patience of
/// a usual mount, which is longer, each page that stays locked ends like this.
#[test]
fn who_begins_after_a_page_was_refused_for_a_lock_is_told_once() {
    let Some(m) = Real::new(false) else { return };
    let file = File::create_new(m.path("f")).expect("create");
    file.set_len(8192).expect("truncate");
    let mapping = Mapping::of(&file, 8192);
    mapping.put(0, b"old");
    file.sync_all().expect("synced");
    let options =
        kvdb::TransactionOptions { isolation: Isolation::Serializable, ..Default::default() };
    let locking = m.views.begin(options).expect("begun");
    let path = m.path(&format!(".kvfs/txn/{locking}/f"));
    assert_eq!(&fs::read(path).expect("read")[..3], b"old");
    mapping.put(0, b"new");
    // The sync waits until the page has been answered. It takes the error of the file, not the one
    // of the file system.
    let synced = file.sync_all().map_err(|e| e.raw_os_error());
    assert_eq!(synced, Err(Some(libc::EDEADLK)), "who wrote the page is told");
    match m.views.begin(Default::default()) {
        Err(kvfs::Error::NotHandedOver(said)) => {
            assert!(said.contains("locked by a transaction has been refused"), "{said}");
        }
        other => panic!("a transaction begins without a page: {other:?}"),
    }
    let next = m.views.begin(Default::default()).expect("begun, since no page is left");
    m.views.abort(next).expect("aborted");
    m.views.abort(locking).expect("aborted");
    // The program that got the error writes the page again.
    mapping.put(0, b"new");
    let (_, inside) = m.begin();
    assert_eq!(&fs::read(inside.join("f")).expect("read")[..3], b"new");
}

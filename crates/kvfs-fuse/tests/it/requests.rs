//! Counts the requests that the kernel sends for each operation, which are the main cost of a FUSE
//! file system. A file system in memory answers them.

use crate::way;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::memory::Memory;
use kvfs_fuse::counters::Request;
use kvfs_fuse::{Counters, MountOptions, Mounted, NodeId, Policy, mount};

/// A mount in a directory of its own, gone when dropped.
struct Mount {
    // Fields drop in order, so the mount is dropped before its directory.
    mounted: Mounted,
    dir: tempfile::TempDir,
}

impl Mount {
    /// `None`, with the reason printed, where this process may not mount.
    fn new(policy: Policy) -> Option<Mount> {
        if let Err(e) = fs::File::open("/dev/fuse") {
            eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        match mount(Arc::new(Memory::default()), dir.path(), &MountOptions::default(), &policy) {
            Ok(mounted) => Some(Mount { mounted, dir }),
            Err(e) => {
                assert!(!rustix::process::geteuid().is_root(), "root can mount: {e}");
                eprintln!("SKIPPED: may not mount: {e}");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn counters(&self) -> Arc<Counters> {
        self.mounted.counters()
    }
}

/// Requests made by `work`, by kind.
fn requests(counters: &Counters, work: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let before = counters.seen();
    work();
    let earlier = |name| before.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count);
    counters
        .seen()
        .into_iter()
        .map(|(name, n)| (name, n - earlier(name)))
        .filter(|&(name, n)| n > 0 && !name.ends_with("FORGET"))
        .collect()
}

fn write_file(path: &Path, data: &[u8]) {
    let mut file = fs::File::create_new(path).expect("create");
    file.write_all(data).expect("write");
}

/// The cheapest way of creating a file, writing 4 KiB and closing it. The times of a new file are
/// of the kernel's coarse clock: if the write that follows at once falls into the same tick, the
/// kernel has no newer time to send (SETATTR). On a busy machine a tick often ends in between, so
/// this tries until it does not.
fn create_with_4_kib(policy: Policy) -> Option<Vec<(&'static str, u64)>> {
    let m = Mount::new(policy)?;
    // After the first request of each kind the kernel knows that it need not send it (OPEN, CREATE,
    // FLUSH).
    write_file(&m.path("first"), &[7; 4096]);
    let mut rounds = (0..2_000)
        .map(|i| requests(&m.counters(), || write_file(&m.path(&format!("f{i}")), &[7; 4096])));
    let without_times = rounds.find(|seen| !seen.iter().any(|(name, _)| *name == "SETATTR"));
    Some(without_times.expect("a clock whose ticks are longer than a write"))
}

#[test]
fn creating_a_file_with_4_kib_costs_five_requests_and_four_without_xattrs() {
    // GETATTR is for the directory, whose times the last creation changed.
    for write_back in [false, true] {
        let policy = way::policy(write_back);
        let Some(seen) = create_with_4_kib(policy.clone()) else { return };
        assert_eq!(
            seen,
            [("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1), ("WRITE", 1), ("GETXATTR", 1)]
        );
        let Some(seen) = create_with_4_kib(Policy { xattrs: false, ..policy }) else { return };
        assert_eq!(seen, [("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1), ("WRITE", 1)]);
    }
}

#[test]
fn what_was_seen_once_is_not_asked_again() {
    (0..2).for_each(|write_back| seen_once(write_back == 1));
}

fn seen_once(write_back: bool) {
    let Some(m) = Mount::new(way::policy(write_back)) else { return };
    write_file(&m.path("a"), b"hello");
    assert_eq!(fs::read(m.path("a")).expect("read"), b"hello");
    let counters = m.counters();
    let seen = requests(&counters, || {
        for _ in 0..10 {
            let mut content = [0; 9];
            let n = fs::File::open(m.path("a")).expect("open").read(&mut content).expect("read");
            assert_eq!(&content[..n], b"hello");
        }
    });
    assert_eq!(seen, [], "open, read and close of a cached file ask nothing");
    // After a write, and after a close where writes are gathered, the kernel doubts the size and
    // the space of the file. So the first stat asks, unless the read has done so, and the others do
    // not.
    let seen = requests(&counters, || {
        for _ in 0..10 {
            assert_eq!(fs::metadata(m.path("a")).expect("stat").len(), 5);
        }
    });
    assert_eq!(seen, [("GETATTR", 1)]);
    assert!(fs::metadata(m.path("missing")).is_err());
    let seen = requests(&counters, || assert!(fs::metadata(m.path("missing")).is_err()));
    assert_eq!(seen, [], "a missing name is remembered");
}

#[test]
fn open_and_close_are_asked_once() {
    let Some(m) = Mount::new(way::policy(false)) else { return };
    for i in 0..20 {
        write_file(&m.path(&format!("f{i}")), b"x");
        fs::read_dir(m.dir.path()).expect("readdir").count();
    }
    let c = m.counters();
    for kind in [Request::Open, Request::Create, Request::Flush, Request::OpenDir] {
        assert!(c.get(kind) <= 1, "{kind:?}: {}", c.get(kind));
    }
    assert_eq!((c.get(Request::Release), c.get(Request::ReleaseDir)), (0, 0));
}

#[test]
fn a_rewrite_asks_for_capabilities_once_a_file_not_once_a_write() {
    for write_back in [false, true] {
        let Some(m) = Mount::new(way::policy(write_back)) else { return };
        let mut file = fs::File::create_new(m.path("a")).expect("create");
        for _ in 0..100 {
            file.write_all(b"0123456789").expect("write");
        }
        drop(file);
        assert!(m.counters().get(Request::GetXattr) <= 1, "{}", m.counters());
        let writes = m.counters().get(Request::Write);
        if write_back {
            assert!(writes <= 2, "they are gathered: {}", m.counters());
        } else {
            assert_eq!(writes, 100, "each goes through at once: {}", m.counters());
        }
    }
}

#[test]
fn listing_with_attributes_needs_no_lookups() {
    let Some(m) = Mount::new(Policy { entry_ttl: std::time::Duration::ZERO, ..way::policy(false) })
    else {
        return;
    };
    for i in 0..300 {
        fs::create_dir(m.path(&format!("d{i}"))).expect("mkdir");
    }
    let seen = requests(&m.counters(), || {
        let n = fs::read_dir(m.dir.path())
            .expect("readdir")
            .filter(|e| e.as_ref().expect("entry").metadata().is_ok())
            .count();
        assert_eq!(n, 300);
    });
    let total: u64 = seen.iter().map(|(_, n)| n).sum();
    eprintln!("readdir + stat of 300: {seen:?}");
    assert!(total < 310, "{seen:?}");
}

#[test]
fn the_kernel_forgets_what_it_is_told_to_forget() {
    let Some(m) = Mount::new(way::policy(false)) else { return };
    write_file(&m.path("a"), b"hello");
    fs::metadata(m.path("a")).expect("stat");
    let ino = std::os::unix::fs::MetadataExt::ino(&fs::metadata(m.path("a")).expect("stat"));
    let invalidator = m.mounted.invalidator().expect("mounted");
    let counters = m.counters();
    invalidator.expire_name(NodeId(1), b"a").expect("invalidate the name");
    let seen = requests(&counters, || assert!(fs::metadata(m.path("a")).is_ok()));
    assert!(seen.contains(&("LOOKUP", 1)), "{seen:?}");
    invalidator.invalidate_inode(NodeId(ino)).expect("invalidate the inode");
    let seen = requests(&counters, || assert_eq!(fs::read(m.path("a")).expect("read"), b"hello"));
    assert!(seen.iter().any(|(name, _)| *name == "READ"), "{seen:?}");
}

#[test]
fn a_busy_mount_refuses_to_go_and_a_dropped_one_goes() {
    let Some(mut m) = Mount::new(way::policy(false)) else { return };
    write_file(&m.path("a"), b"hello");
    let open = fs::File::open(m.path("a")).expect("open");
    assert!(m.mounted.unmount().is_err(), "a file is open");
    assert_eq!(fs::read(m.path("a")).expect("still mounted"), b"hello");
    drop(open);
    m.mounted.unmount().expect("it is not in use");
    assert!(!m.path("a").exists());
    assert!(kvfs_fuse::mounts::mount_at(m.dir.path()).expect("mountinfo").is_none());
}

#[test]
fn sharing_without_permission_checks_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options =
        MountOptions { allow_other: true, default_permissions: false, ..Default::default() };
    let refused = mount(Arc::new(Memory::default()), dir.path(), &options, &Policy::default());
    assert!(matches!(refused.err(), Some(kvfs_fuse::Error::Unguarded)));
}

#[test]
fn no_time_ends_the_daemon() {
    let Some(m) = Mount::new(way::policy(false)) else { return };
    write_file(&m.path("a"), b"hello");
    for secs in [-1, i64::MIN, i64::MIN + 1, i64::MAX, -9_000_000_000_000_000_000] {
        for nanos in [0, 1, 999_999_999] {
            let time = rustix::fs::Timespec { tv_sec: secs, tv_nsec: nanos };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(
                rustix::fs::CWD,
                m.path("a"),
                &times,
                rustix::fs::AtFlags::empty(),
            )
            .expect("set the time");
            let seen = rustix::fs::stat(m.path("a")).expect("stat");
            // The kernel's last second has no parts.
            let nanos = if [i64::MIN, i64::MAX].contains(&secs) { 0 } else { nanos };
            assert_eq!((seen.st_mtime as i64, seen.st_mtime_nsec as i64), (secs, nanos));
            assert_eq!((seen.st_atime as i64, seen.st_atime_nsec as i64), (secs, nanos));
        }
    }
}

#[test]
fn a_defect_in_one_request_is_an_error_of_that_request_alone() {
    let Some(m) = Mount::new(Policy { threads: 1, ..way::policy(false) }) else { return };
    for _ in 0..3 {
        let error = fs::metadata(m.path("a defect")).expect_err("it panics");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    write_file(&m.path("a"), b"hello");
    assert_eq!(fs::read(m.path("a")).expect("others are served"), b"hello");
}

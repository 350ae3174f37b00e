//! Tests of the files that a killed daemon leaves. Files have the content that they were given, and
//! write requests are applied as a whole.

use crate::real;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::real::{BOTH, Mapping, policy};
use env::Machine;
use kvdb::Kvdb;
use kvfs::{Fs, FsOptions, Views};
use kvfs_fuse::{FuseAdapter, KernelNotifier, MountOptions, Unmount, mount, unmount};

/// The variables with the store of the daemon of a test, and with its mount point.
const STORE: &str = "KVFS_TEST_STORE";
const DIRECTORY: &str = "KVFS_TEST_DIRECTORY";
const WRITE_BACK: &str = "KVFS_TEST_WRITE_BACK";
const SAVES: &str = "KVFS_TEST_SAVES";

/// The daemon. This is not a test, but the program that the tests run in a process of its own.
#[test]
#[ignore = "the daemon that the other tests run and kill"]
fn serve() {
    let (Some(store), Some(directory)) = (std::env::var_os(STORE), std::env::var_os(DIRECTORY))
    else {
        return;
    };
    let db = Kvdb::open_path(&store).expect("a store");
    let fs = Fs::open(db.clone(), Arc::new(Machine::default()), FsOptions::default())
        .expect("a file system");
    let views = Views::new(db, fs);
    let adapter = Arc::new(FuseAdapter::new(views.clone()));
    let policy = policy(std::env::var_os(WRITE_BACK).is_some());
    let mut mounted =
        mount(adapter.clone(), Path::new(&directory), &MountOptions::default(), &policy)
            .expect("a mount");
    let _herald = KernelNotifier::start(&views, &adapter, &mounted).expect("a notifier");
    say_ready(Path::new(&directory));
    if std::env::var_os(SAVES).is_some() {
        // Syncs as programs do by the socket (SAVE), and as every beginning of a transaction does.
        let fs = views.mainline().clone();
        std::thread::spawn(move || while fs.sync_all().is_ok() {});
    }
    mounted.wait().expect("served");
}

/// Reports that the daemon of a mount has started completely.
fn say_ready(directory: &Path) {
    fs::write(directory.with_extension("ready"), b"").expect("word of it");
}

/// A daemon in another process, killed when dropped.
struct Daemon {
    process: Child,
    directory: PathBuf,
}

impl Daemon {
    fn start(dir: &Path, write_back: bool) -> Daemon {
        Daemon::start_with(dir, if write_back { &[WRITE_BACK] } else { &[] })
    }

    fn start_with(dir: &Path, switches: &[&str]) -> Daemon {
        let directory = dir.join("mount");
        fs::create_dir_all(&directory).expect("a directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "survives::serve", "--ignored", "--nocapture"]);
        command
            .env(STORE, dir.join("store"))
            .env(DIRECTORY, &directory)
            .stdout(Stdio::null())
            .process_group(0);
        command.envs(switches.iter().map(|name| (name, "1")));
        let daemon = Daemon { process: command.spawn().expect("a daemon"), directory };
        let begun = Instant::now();
        while !daemon.directory.with_extension("ready").exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "mounting takes too long");
            std::thread::sleep(Duration::from_millis(2));
        }
        daemon
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = unmount(&self.directory, Unmount::Forced);
    }
}

/// Returns the content that the store has for a file, or `None` if there is no such file.
fn content(dir: &Path, name: &str) -> Option<Vec<u8>> {
    let db = Kvdb::open_path(dir.join("store")).expect("a store that opens");
    let fs =
        Fs::open(db, Arc::new(Machine::default()), FsOptions::default()).expect("a file system");
    let report = fs.verify().expect("checked");
    assert!(report.is_clean(), "{report:?}");
    let attr = fs.resolve(name.as_bytes()).ok()?;
    Some(fs.read(attr.ino, 0, attr.size as u32).expect("read").to_vec())
}

const OLD: usize = 300_000;
const NEW: usize = 200_000;

/// Ways in which a program makes new content that it renames over the old, the file still open.
fn write(path: &Path, data: &[u8], mapped: bool) -> (File, Option<Mapping>) {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .expect("create");
    if !mapped {
        file.write_all(data).expect("write");
        return (file, None);
    }
    file.set_len(data.len() as u64).expect("truncate");
    let mapping = Mapping::of(&file, data.len());
    mapping.put(0, data);
    (file, Some(mapping))
}

#[test]
fn a_rename_leaves_the_old_or_the_new_content_whole() {
    if !real::may_mount() {
        return;
    }
    for write_back in BOTH {
        for mapped in [false, true] {
            let (mut old, mut new) = (0, 0);
            for round in 0..8 {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let daemon = Daemon::start(dir.path(), write_back);
                let config = daemon.path("config");
                File::create(&config)
                    .and_then(|mut f| f.write_all(&[b'o'; OLD]).and_then(|()| f.sync_all()))
                    .expect("write");
                let held = write(&daemon.path("config.new"), &[b'n'; NEW], mapped);
                fs::rename(daemon.path("config.new"), &config).expect("rename");
                std::thread::sleep(Duration::from_millis(round * 150));
                drop(daemon);
                drop(held);
                let seen = content(dir.path(), "/config").expect("it was never without a file");
                match seen.first() {
                    Some(b'o') => old += 1,
                    _ => new += 1,
                }
                let whole = seen == [b'o'; OLD] || seen == [b'n'; NEW];
                assert!(
                    whole,
                    "round {round}, write-back {write_back}, mapped {mapped}: {} bytes, {} new",
                    seen.len(),
                    seen.iter().filter(|b| **b == b'n').count()
                );
            }
            assert!(new > 0, "the new content is there after a while");
            eprintln!("write-back {write_back}, mapped {mapped}: old {old}, new {new}");
        }
    }
}

#[test]
fn a_file_gets_its_first_name_with_its_content() {
    if !real::may_mount() {
        return;
    }
    for write_back in BOTH {
        for mapped in [false, true] {
            for round in 0..5 {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let daemon = Daemon::start(dir.path(), write_back);
                let file = File::options()
                    .read(true)
                    .write(true)
                    .custom_flags(libc::O_TMPFILE)
                    .open(&daemon.directory);
                let mut file = file.expect("a file without a name");
                let mut mapping = None;
                if mapped {
                    file.set_len(NEW as u64).expect("truncate");
                    mapping.insert(Mapping::of(&file, NEW)).put(0, &[b'n'; NEW]);
                } else {
                    file.write_all(&[b'n'; NEW]).expect("write");
                }
                let from = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(
                    rustix::fs::CWD,
                    from,
                    rustix::fs::CWD,
                    daemon.path("named"),
                    follow,
                )
                .expect("linked");
                std::thread::sleep(Duration::from_millis(round * 250));
                drop(daemon);
                drop((mapping, file));
                match content(dir.path(), "/named") {
                    None => assert!(round < 4, "it is there after a while"),
                    Some(seen) => {
                        assert_eq!(
                            seen.iter().filter(|b| **b == b'n').count(),
                            NEW,
                            "write-back {write_back}, mapped {mapped}"
                        )
                    }
                }
            }
        }
    }
}

#[test]
fn a_write_request_is_whole_or_not_there() {
    const MIB: usize = 1 << 20;
    const PIECES: u64 = 6;
    if !real::may_mount() {
        return;
    }
    for round in 0..8_u64 {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let daemon = Daemon::start(dir.path(), false);
        let open = |name| {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(daemon.path(name))
                .expect("open")
        };
        let (large, small) = (open("large"), open("small"));
        let killed = AtomicBool::new(false);
        let written = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut data = vec![0; MIB];
                for i in 1.. {
                    data.fill((i % 250) as u8 + 1);
                    // 1,000 bytes that lie within a page, not at its start.
                    let at = (i % 7) * 4096 + 1234;
                    let done = large
                        .write_all_at(&data, i % PIECES * MIB as u64)
                        .and_then(|()| small.write_all_at(&data[..1000], at));
                    if done.is_err() {
                        assert!(killed.load(Ordering::SeqCst));
                        break;
                    }
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
            scope.spawn(|| while large.sync_all().is_ok() && small.sync_all().is_ok() {});
            std::thread::sleep(Duration::from_millis(100 + round * 37));
            while written.load(Ordering::SeqCst) < 8 {
                std::thread::yield_now();
            }
            killed.store(true, Ordering::SeqCst);
            drop(daemon);
        });
        drop((large, small));
        for (name, piece, skip, length) in [("/large", MIB, 0, MIB), ("/small", 4096, 1234, 1000)] {
            let seen = content(dir.path(), name).unwrap_or_default();
            for (i, piece) in seen.chunks(piece).enumerate() {
                let Some(written) = piece.get(skip..) else { continue };
                let written = &written[..written.len().min(length)];
                assert!(
                    written.iter().all(|b| *b == written[0]),
                    "round {round}: piece {i} of {name} is torn"
                );
                assert!(
                    written.is_empty() || written.len() == length || written[0] == 0,
                    "round {round}: piece {i} of {name} is short"
                );
            }
        }
    }
}

/// Returns the offsets at which the kernel ends the requests of one long write at `offset`: the end
/// of the first page if it begins within one, then each MiB.
fn ends_of_requests(offset: usize, length: usize) -> Vec<usize> {
    const MIB: usize = 1 << 20;
    let first = if offset.is_multiple_of(4096) { offset } else { offset.next_multiple_of(4096) };
    (0..)
        .map(|i| first + i * MIB)
        .skip_while(|end| *end == offset)
        .take_while(|end| *end < offset + length)
        .collect()
}

#[test]
fn a_long_write_that_is_cut_has_its_first_requests_and_not_the_rest() {
    const LENGTH: usize = 20 << 20;
    if !real::may_mount() {
        return;
    }
    assert_eq!(ends_of_requests(0, 3 << 20), [1 << 20, 2 << 20]);
    assert_eq!(ends_of_requests(5000, (1 << 20) + 5000), [8192, 8192 + (1 << 20)]);
    // Through the kernel's cache, from the start of a page and within one, and around the cache.
    for (offset, direct) in [(0, false), (1234, false), (4096, true)] {
        let mut cut = 0;
        for round in 0..40 {
            let dir = tempfile::tempdir().expect("a temporary directory");
            // All accepted data is synced repeatedly, at any moment.
            let daemon = Daemon::start_with(dir.path(), &[SAVES]);
            let path = daemon.path("f");
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let writing = options
                .custom_flags(if direct { libc::O_DIRECT } else { 0 })
                .open(&path)
                .expect("open");
            let (killed, returned) =
                (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Direct writes want whole pages of memory.
                    let mut room = vec![0; LENGTH + 4096];
                    let skip = room.as_ptr().align_offset(4096);
                    let data = &mut room[skip..skip + LENGTH];
                    for i in 1.. {
                        data.fill((i % 250) as u8 + 1);
                        if writing.write_all_at(data, offset as u64).is_err() {
                            assert!(killed.load(Ordering::SeqCst));
                            break;
                        }
                        returned.store(i, Ordering::SeqCst);
                    }
                });
                while returned.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_micros(round * 3700));
                killed.store(true, Ordering::SeqCst);
                drop(daemon);
            });
            drop(writing);
            let seen = content(dir.path(), "/f").expect("there");
            let at = format!("offset {offset}, direct {direct}, round {round}");
            assert!(seen.len() <= offset + LENGTH, "{at}: {} bytes", seen.len());
            let seen = &seen[offset.min(seen.len())..];
            let parts: Vec<(usize, usize)> =
                seen.chunk_by(|a, b| a == b).map(|run| (usize::from(run[0]), run.len())).collect();
            let ends = ends_of_requests(offset, LENGTH);
            let is_end = |length: usize| ends.contains(&(offset + length));
            match parts[..] {
                // Either all of one write, or the first requests of the very first one.
                [] => {}
                [(_, LENGTH)] => {}
                [(1 | 2, length)] => assert!(is_end(length), "{at}: {length} bytes"),
                // The first requests of a write over what the one before has left.
                [(new, length), (old, _)] => {
                    assert!(is_end(length) && seen.len() == LENGTH, "{at}: {parts:?}");
                    assert_eq!(new, old % 250 + 1, "{at}: of two writes in a row");
                    cut += 1;
                }
                _ => panic!("{at}: more than two writes, or not the first requests: {parts:?}"),
            }
            if cut == 4 {
                break;
            }
        }
        assert!(
            cut > 0,
            "offset {offset}, direct {direct}: no kill fell between two requests of a write, so nothing was tested"
        );
    }
}

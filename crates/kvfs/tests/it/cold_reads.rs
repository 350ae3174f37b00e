//! Counts the reads of the device while a tree is read of which nothing is in memory.
//!
//! `KVFS_MEASURE=1 cargo test -p kvfs --test it cold_reads:: -- --nocapture` prints the figures.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions, Profile};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT};
use zones::{Purpose, Watch, WatchedDevice};

const PAGE: u64 = 4096;

/// A device with a host's cache, which keeps the data that was read and prefetches announced data.
/// Cached data costs nothing, and all other reads wait. The store is larger than the host's memory,
/// so nothing is read around what is asked for.
type Host = WatchedDevice<Cache>;

#[derive(Default)]
struct Cache {
    cached: Mutex<HashSet<u64>>,
    /// Reading is counted.
    counting: AtomicBool,
    reads: AtomicU64,
    bytes: AtomicU64,
    opened: AtomicU64,
}

impl Cache {
    /// Each opening has another seed, since numbers that a store takes for unique must be unique.
    fn env(&self) -> Arc<Simulated> {
        Arc::new(Simulated::new(self.opened.fetch_add(1, Relaxed)))
    }

    /// Fetches the missing parts of a range from the device, each gap by one read. Returns whether
    /// there were any.
    fn fetch(&self, offset: u64, len: u64) -> bool {
        let mut cached = self.cached.lock().unwrap();
        let (mut fetched, mut inside) = (0, false);
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            let new = cached.insert(page);
            self.reads.fetch_add(u64::from(new && !inside), Relaxed);
            fetched += u64::from(new);
            inside = new;
        }
        self.bytes.fetch_add(fetched * PAGE, Relaxed);
        fetched > 0
    }
}

impl Watch for Cache {
    fn reads(&self, _: Purpose, offset: u64, len: u64) -> io::Result<()> {
        if self.counting.load(Relaxed) && self.fetch(offset, len) {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_nanos(30_000 + len / 2) {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
    fn announced(&self, _: Purpose, offset: u64, len: u64) {
        if self.counting.load(Relaxed) {
            self.fetch(offset, len);
        }
    }
}

fn options() -> OpenOptions {
    let memory = 64 << 20;
    OpenOptions { memory, threads: false, zero_journal: false, ..OpenOptions::default() }
}

struct Tree {
    host: Arc<Host>,
    profile: Profile,
    directories: Vec<(String, usize)>,
}

impl Tree {
    /// Directories with this many files of this many bytes each, made in turn, with a sync from
    /// time to time.
    fn make(profile: Profile, directories: &[usize], size: usize) -> Tree {
        let host = Arc::new(Host::default());
        let create = CreateOptions { profile, open: options(), ..CreateOptions::default() };
        let db = Kvdb::create(host.clone(), host.env(), create).unwrap();
        let fs = Fs::open(db.clone(), host.env(), FsOptions::default()).unwrap();
        let names: Vec<(String, usize)> = directories
            .iter()
            .enumerate()
            .map(|(at, files)| (format!("d{at:02}"), *files))
            .collect();
        let dirs: Vec<Ino> = names
            .iter()
            .map(|(name, _)| fs.mkdir(ROOT, name.as_bytes(), 0o755, Caller::default()).unwrap().ino)
            .collect();
        let most = *directories.iter().max().unwrap();
        let mut made = 0;
        for turn in 0..most {
            for (dir, (_, files)) in dirs.iter().zip(&names) {
                // The samples are spread over the whole sequence of files.
                if turn * files / most == (turn + 1) * files / most {
                    continue;
                }
                let name = format!("file{:06}", turn * files / most);
                let kind = FileKind::File;
                let made_now = fs.mknod(*dir, name.as_bytes(), kind, 0o644, 0, Caller::default());
                let ino = made_now.unwrap().ino;
                if size > 0 {
                    fs.write(ino, 0, &content(ino, size), Default::default()).unwrap();
                }
                fs.forget(ino, 1);
                made += 1;
                if made % 2000 == 0 {
                    fs.sync_all().unwrap();
                }
            }
        }
        fs.shutdown().unwrap();
        drop(fs);
        db.close().unwrap();
        Tree { host, profile, directories: names }
    }

    /// Returns the reads of the device that `work` causes in a store that was just opened.
    fn cold(&self, what: &str, work: impl FnOnce(&Fs)) -> (u64, u64) {
        let db = Kvdb::open(self.host.clone(), self.host.env(), options()).unwrap().0;
        assert_eq!(db.stats().profile, self.profile);
        let fs = Fs::open(db.clone(), self.host.env(), FsOptions::default()).unwrap();
        self.host.cached.lock().unwrap().clear();
        self.host.reads.store(0, Relaxed);
        self.host.bytes.store(0, Relaxed);
        self.host.counting.store(true, Relaxed);
        work(&fs);
        self.host.counting.store(false, Relaxed);
        drop(fs);
        db.close().unwrap();
        let cost = (self.host.reads.load(Relaxed), self.host.bytes.load(Relaxed));
        if std::env::var_os("KVFS_MEASURE").is_some() {
            println!("{:?} {what:30} {:6} reads {:9} KiB", self.profile, cost.0, cost.1 >> 10);
        }
        cost
    }

    /// Each directory in turn.
    fn each(&self, fs: &Fs, mut visit: impl FnMut(Ino, usize)) {
        for (name, files) in &self.directories {
            visit(fs.resolve(name.as_bytes()).unwrap().ino, *files);
        }
    }
}

fn content(ino: Ino, size: usize) -> Vec<u8> {
    let mut state = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..size).map(|_| next()).collect()
}

/// Lists a directory as the kernel does: a number of entries with each call.
fn list(fs: &Fs, dir: Ino, plus: bool) -> Vec<Ino> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let mut room = 200;
        let before = cookie;
        fs.readdir(dir, cookie, plus, &mut |entry| {
            if room == 0 {
                return false;
            }
            room -= 1;
            cookie = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
                assert_eq!(entry.attr.is_some(), plus);
                all.push(entry.ino);
            }
            true
        })
        .unwrap();
        if cookie == before {
            return all;
        }
    }
}

const PROFILES: [Profile; 2] = [Profile::SolidState, Profile::HardDisk];

#[test]
fn a_large_directory_is_listed_in_few_reads() {
    for profile in PROFILES {
        let tree = Tree::make(profile, &[20_000, 2_000, 2_000, 2_000, 2_000], 0);
        let (reads, _) = tree.cold("ls -l of 20,000", |fs| {
            let dir = fs.resolve(b"d00").unwrap().ino;
            assert_eq!(list(fs, dir, true).len(), 20_000);
        });
        assert!(reads <= 10, "{profile:?}: {reads} reads");
    }
}

#[test]
fn a_tree_is_walked_and_read_in_few_large_reads() {
    for profile in PROFILES {
        let tree = Tree::make(profile, &[100; 50], 4096);
        let (reads, _) = tree.cold("find", |fs| {
            tree.each(fs, |dir, files| assert_eq!(list(fs, dir, false).len(), files));
        });
        assert!(reads <= 30, "{profile:?}: {reads} reads");
        let (reads, _) = tree.cold("ls -lR", |fs| {
            tree.each(fs, |dir, files| assert_eq!(list(fs, dir, true).len(), files));
        });
        assert!(reads <= 60, "{profile:?}: {reads} reads");
        let (reads, _) = tree.cold("grep -r", |fs| {
            tree.each(fs, |dir, _| {
                for ino in list(fs, dir, true) {
                    assert_eq!(fs.read(ino, 0, 4096).unwrap(), content(ino, 4096));
                    fs.forget(ino, 1);
                }
            });
        });
        assert!(reads <= 250, "{profile:?}: {reads} reads");
    }
}

#[test]
fn a_file_that_was_overwritten_is_read_in_order_in_few_reads() {
    const PIECE: u64 = 256 << 10;
    const SIZE: u64 = 64 << 20;
    let tree = Tree::make(Profile::HardDisk, &[1], 0);
    let db = Kvdb::open(tree.host.clone(), tree.host.env(), options()).unwrap().0;
    let fs = Fs::open(db.clone(), tree.host.env(), FsOptions::default()).unwrap();
    let ino = fs.resolve(b"d00/file000000").unwrap().ino;
    for at in (0..SIZE).step_by(PIECE as usize) {
        fs.write(ino, at, &content(at, PIECE as usize), Default::default()).unwrap();
    }
    fs.fsync(ino, false).unwrap();
    // Reads a page of each piece, in no order.
    let pieces = SIZE / PIECE;
    for i in 0..pieces {
        let at = i * 101 % pieces * PIECE + i * 13 % 64 * PAGE;
        fs.write(ino, at, &content(1, PAGE as usize), Default::default()).unwrap();
    }
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    // The requests of a reader in order. Several threads answer them, sometimes the second before
    // the first.
    let (reads, bytes) = tree.cold("in order what was overwritten", |fs| {
        for i in 0..pieces {
            let at = if i / 2 % 3 == 0 { i ^ 1 } else { i };
            let read = fs.read(ino, at * PIECE, PIECE as u32).unwrap();
            assert_eq!(read.len() as u64, PIECE);
        }
    });
    assert!(reads <= 130, "{reads} reads");
    assert!(bytes <= SIZE * 9 / 8, "{bytes} bytes");
}

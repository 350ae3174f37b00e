//! A tree whose files are stored in no order is read in the order of their places, in a store that
//! does not fit into the host's memory.
//!
//! `KVFS_MEASURE=1 cargo test -p kvfs --test it read_by_place:: -- --nocapture` prints the figures.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, Statistics};
use zones::{Purpose, Watch, WatchedDevice};

const FOLDERS: usize = 40;
const EACH: usize = 100;
const FILES: usize = FOLDERS * EACH;
const SIZE: usize = 4096;
/// A disk passes over a gap like this in less time than a seek takes.
const GAP: u64 = 64 << 10;

/// A disk with one head and a host's cache, which keeps data that was read or announced. Unless the
/// host reports its memory, only requested data is read.
type Disk = WatchedDevice<Head>;

#[derive(Default)]
struct Head {
    host_memory: Mutex<Option<u64>>,
    cached: Mutex<HashSet<u64>>,
    counting: AtomicBool,
    head: AtomicU64,
    seeks: AtomicU64,
    waits: AtomicU64,
    bytes: AtomicU64,
    opened: AtomicU64,
}

impl Head {
    /// Returns an environment of another seed each time, since the numbers that a store takes for
    /// unique must be.
    fn env(&self) -> Arc<Simulated> {
        Arc::new(Simulated::new(self.opened.fetch_add(1, Relaxed)))
    }

    /// Moves the head over the part that the host has not cached. Returns whether there was any.
    fn fetch(&self, offset: u64, len: u64) -> bool {
        let mut cached = self.cached.lock().unwrap();
        let mut any = false;
        for page in offset / 4096..(offset + len).div_ceil(4096) {
            if !cached.insert(page) {
                continue;
            }
            any = true;
            let (start, head) = (page * 4096, self.head.load(Relaxed));
            self.seeks.fetch_add(u64::from(start < head || start > head + GAP), Relaxed);
            self.head.store(start + 4096, Relaxed);
            self.bytes.fetch_add(4096, Relaxed);
        }
        any
    }
}

impl Watch for Head {
    fn reads(&self, _: Purpose, offset: u64, len: u64) -> io::Result<()> {
        if self.counting.load(Relaxed) && self.fetch(offset, len) {
            self.waits.fetch_add(1, Relaxed);
            let begun = Instant::now();
            // A read that takes longer than memory would has come from the device.
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
    fn memory_of_host(&self) -> Option<u64> {
        *self.host_memory.lock().unwrap()
    }
}

fn options() -> OpenOptions {
    let memory = 64 << 20;
    OpenOptions { memory, threads: false, zero_journal: false, ..OpenOptions::default() }
}

fn folder(at: usize) -> String {
    format!("folder{at:02}")
}

fn name(at: usize) -> String {
    format!("file{at:03}")
}

/// Content that does not compress.
fn content(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

/// Writes a file, durably as a careful program does, so that files lie in the order of the calls.
fn save(fs: &Fs, parent: Ino, name: &str, seed: u64) -> Ino {
    let made = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default());
    let ino = made.unwrap().ino;
    fs.write(ino, 0, &content(seed), Default::default()).unwrap();
    fs.fsync(ino, false).unwrap();
    fs.forget(ino, 1);
    ino
}

/// The number of a folder and of a file in it, for each file once, in no order.
fn shuffled() -> Vec<(usize, usize)> {
    let mut all: Vec<_> = (0..FILES).map(|n| (n / EACH, n % EACH)).collect();
    let mut state = 1_u64;
    for i in (1..FILES).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        all.swap(i, (state >> 33) as usize % (i + 1));
    }
    all
}

/// A tree of folders as `age` leaves it, which gets the numbers of the folders.
fn tree(age: impl FnOnce(&Fs, &[Ino])) -> Arc<Disk> {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), disk.env(), create).unwrap();
    let fs = Fs::open(db.clone(), disk.env(), FsOptions::default()).unwrap();
    let make = |at| fs.mkdir(ROOT, folder(at).as_bytes(), 0o755, Caller::default()).unwrap().ino;
    let folders: Vec<Ino> = (0..FOLDERS).map(make).collect();
    age(&fs, &folders);
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    disk
}

/// Replaces each file by a new one, through a temporary name next to it, in no order.
fn saved_by_rename(fs: &Fs, folders: &[Ino]) {
    for n in 0..FILES {
        let (at, file) = (n / EACH, n % EACH);
        save(fs, folders[at], &name(file), n as u64);
    }
    for (n, (at, file)) in shuffled().into_iter().enumerate() {
        save(fs, folders[at], "new", n as u64);
        let name = name(file);
        fs.rename(folders[at], b"new", folders[at], name.as_bytes(), Default::default()).unwrap();
    }
}

/// Makes each file elsewhere and moves it into its folder, in no order.
fn moved(fs: &Fs, folders: &[Ino]) {
    let other = fs.mkdir(ROOT, b"zzz", 0o755, Caller::default()).unwrap().ino;
    for (n, (at, file)) in shuffled().into_iter().enumerate() {
        save(fs, other, "new", n as u64);
        let name = name(file);
        fs.rename(other, b"new", folders[at], name.as_bytes(), Default::default()).unwrap();
    }
}

/// The cost of a reader on the disk, and the plans that were made for it.
#[derive(Debug)]
struct Took {
    seeks: u64,
    waits: u64,
    bytes: u64,
    plans: Statistics,
}

/// Runs `read` in a store of which nothing is in memory.
fn cold(disk: &Arc<Disk>, what: &str, read: impl FnOnce(&Fs)) -> Took {
    let db = Kvdb::open(disk.clone(), disk.env(), options()).unwrap().0;
    let fs = Fs::open(db.clone(), disk.env(), FsOptions::default()).unwrap();
    disk.cached.lock().unwrap().clear();
    for counter in [&disk.seeks, &disk.waits, &disk.bytes] {
        counter.store(0, Relaxed);
    }
    disk.counting.store(true, Relaxed);
    read(&fs);
    disk.counting.store(false, Relaxed);
    let plans = fs.statistics();
    drop(fs);
    db.close().unwrap();
    let counted = [&disk.seeks, &disk.waits, &disk.bytes].map(|counter| counter.load(Relaxed));
    let [seeks, waits, bytes] = counted;
    let took = Took { seeks, waits, bytes, plans };
    if std::env::var_os("KVFS_MEASURE").is_some() {
        let a_file = |n: u64| n as f64 / FILES as f64;
        println!(
            "{what:40} {:.3} seeks and {:.3} waits a file, {} KiB; {} files ahead, {} used",
            a_file(seeks),
            a_file(waits),
            bytes >> 10,
            plans.files_read_ahead,
            plans.read_ahead_used
        );
    }
    took
}

/// Lists a directory as the kernel does for `grep -r`: so many entries a call.
fn list(fs: &Fs, dir: Ino) -> Vec<Ino> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let (mut room, before) = (60, cookie);
        fs.readdir(dir, cookie, true, &mut |entry| {
            if room == 0 {
                return false;
            }
            room -= 1;
            cookie = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
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

/// Reads the first `most` files of each folder.
fn read_tree(fs: &Fs, most: usize) {
    for dir in list(fs, ROOT).into_iter().take(FOLDERS) {
        let files = list(fs, dir);
        assert_eq!(files.len(), EACH);
        for ino in files.into_iter().take(most) {
            assert_eq!(fs.read(ino, 0, 1 << 17).unwrap().len(), SIZE);
        }
    }
}

fn assert_read_by_place(took: &Took) {
    assert!(took.seeks * 10 <= FILES as u64, "{took:?}: a tenth of a seek a file");
    assert!(took.waits * 20 <= FILES as u64, "{took:?}");
    assert!(took.bytes <= (FILES * SIZE) as u64 * 2, "{took:?}: little else is read");
    assert!(took.plans.read_ahead_used * 10 >= FILES as u64 * 9, "{took:?}");
    assert!(took.plans.read_ahead_wasted * 10 <= took.plans.read_ahead_used, "{took:?}");
}

#[test]
fn a_tree_of_files_saved_by_rename_is_read_by_place() {
    let disk = tree(saved_by_rename);
    assert_read_by_place(&cold(&disk, "saved by rename", |fs| read_tree(fs, EACH)));
}

#[test]
fn a_tree_of_files_moved_into_it_is_read_by_place() {
    let disk = tree(moved);
    assert_read_by_place(&cold(&disk, "moved", |fs| read_tree(fs, EACH)));
}

#[test]
fn a_store_that_fits_into_memory_is_fetched_in_large_pieces() {
    let disk = tree(moved);
    *disk.host_memory.lock().unwrap() = Some(16 << 30);
    let took = cold(&disk, "moved, in a store that fits", |fs| read_tree(fs, EACH));
    assert!(took.seeks * 10 <= FILES as u64 && took.waits * 20 <= FILES as u64, "{took:?}");
    assert!(took.plans.files_read_ahead > 0, "{took:?}: the first files are planned");
}

#[test]
fn a_reader_of_one_file_in_each_folder_pays_nothing() {
    let disk = tree(moved);
    let took = cold(&disk, "one file a folder", |fs| read_tree(fs, 1));
    assert_eq!(took.plans.files_read_ahead, 0, "{took:?}");
}

#[test]
fn nothing_is_read_ahead_for_long_if_less_than_half_of_it_is_used() {
    let disk = tree(moved);
    let took = cold(&disk, "four files a folder", |fs| read_tree(fs, 4));
    let plans = took.plans;
    assert!(plans.files_read_ahead <= 200, "{took:?}: three attempts at most");
    assert!(plans.read_ahead_used + plans.read_ahead_wasted <= plans.files_read_ahead, "{took:?}");
}

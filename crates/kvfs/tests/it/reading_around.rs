//! Tests of the data that is fetched from the device around the page that was asked for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions, Profile};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, WriteHints};
use zones::{Purpose, Watch, WatchedDevice};

/// A device on which every read waits, of a host whose memory has room for all of it. It counts the
/// announced bytes of pages.
type Waiting = WatchedDevice<Host>;

#[derive(Default)]
struct Host {
    announced: AtomicU64,
}

impl Watch for Host {
    fn reads(&self, _: Purpose, _: u64, len: u64) -> io::Result<()> {
        let begun = Instant::now();
        // A read that takes longer than one from memory would have come from the device.
        while begun.elapsed() < Duration::from_nanos(20_000 + len) {
            std::hint::spin_loop();
        }
        Ok(())
    }
    fn announced(&self, purpose: Purpose, _: u64, len: u64) {
        if purpose == Purpose::Pages {
            self.announced.fetch_add(len, Ordering::Relaxed);
        }
    }
    fn memory_of_host(&self) -> Option<u64> {
        Some(64 << 30)
    }
}

const PAGE: u64 = 4096;
const FILES: u64 = 64;
const SMALL: u64 = 3 * PAGE;
const LARGE: u64 = 16 << 20;

fn root() -> Caller {
    Caller { uid: 0, gid: 0, pid: 1 }
}

fn options() -> OpenOptions {
    OpenOptions { memory: 64 << 20, threads: false, zero_journal: false, ..Default::default() }
}

/// Small files `s0`, `s1`, ... and a large one, `l`, on a device from which nothing was read yet.
fn stored() -> (Arc<Waiting>, Fs) {
    stored_on(Profile::SolidState)
}

fn stored_on(profile: Profile) -> (Arc<Waiting>, Fs) {
    let device = Arc::new(Waiting::default());
    let env = Arc::new(Simulated::new(7));
    let create = CreateOptions { profile, open: options(), ..Default::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("it is made");
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("it opens");
    let write = |name: &str, bytes: u64| {
        let ino =
            fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, root()).expect("made").ino;
        // Every page differs.
        for page in 0..bytes / PAGE {
            let content = vec![page as u8; PAGE as usize];
            fs.write(ino, page * PAGE, &content, WriteHints::default()).expect("written");
        }
    };
    (0..FILES).for_each(|i| write(&format!("s{i}"), SMALL));
    write("l", LARGE);
    fs.shutdown().expect("committed");
    drop(fs);
    db.close().expect("closed");
    let (db, _) = Kvdb::open(device.clone(), env.clone(), options()).expect("it opens");
    let fs = Fs::open(db, env, FsOptions::default()).expect("it opens");
    device.announced.store(0, Ordering::Relaxed);
    (device, fs)
}

fn find(fs: &Fs, name: &str) -> Ino {
    fs.lookup(ROOT, name.as_bytes()).expect("it is there").ino
}

fn page(fs: &Fs, ino: Ino, at: u64) {
    assert_eq!(fs.read(ino, at * PAGE, PAGE as u32).expect("read"), vec![at as u8; PAGE as usize]);
}

#[test]
fn pages_of_a_large_file_that_are_asked_for_in_no_order_are_read_alone() {
    let (device, fs) = stored();
    let large = find(&fs, "l");
    // Backwards in strides: no page comes behind the one before.
    (1..500).for_each(|i| page(&fs, large, (LARGE / PAGE - i * 7) % (LARGE / PAGE)));
    assert_eq!(device.announced.load(Ordering::Relaxed), 0);
    // A write into a page reads what it keeps of it.
    fs.write(large, 1000 * PAGE + 10, b"four", WriteHints::default()).expect("written");
    assert_eq!(device.announced.load(Ordering::Relaxed), 0);
}

#[test]
fn pieces_of_a_large_file_in_no_order_are_no_sequence_where_seeks_are_dear() {
    // Each read is within the cost of a seek from others, as the pages of a database are.
    let (device, fs) = stored_on(Profile::HardDisk);
    let large = find(&fs, "l");
    let piece = |at: u64| {
        let read = fs.read(large, at * PAGE, 4 * PAGE as u32).expect("read");
        let expected = (at..at + 4).flat_map(|page| vec![page as u8; PAGE as usize]);
        assert!(read.iter().copied().eq(expected));
    };
    (0..500).for_each(|i| piece(i * 619 % (LARGE / PAGE / 4) * 4));
    assert_eq!(device.announced.load(Ordering::Relaxed), 0);
    // Pages that are read in order are read ahead.
    (0..100).for_each(|i| piece(i * 4));
    let announced = device.announced.load(Ordering::Relaxed);
    assert!(announced >= 1 << 20, "{announced} bytes were announced");
}

#[test]
fn pages_that_are_asked_for_in_order_bring_what_comes_next() {
    let (device, fs) = stored();
    let large = find(&fs, "l");
    (0..200).for_each(|i| page(&fs, large, i));
    let announced = device.announced.load(Ordering::Relaxed);
    assert!(announced >= 200 * PAGE, "{announced} bytes were announced");
}

#[test]
fn a_small_file_brings_those_beside_it() {
    let (device, fs) = stored();
    page(&fs, find(&fs, "s7"), 1);
    assert!(device.announced.load(Ordering::Relaxed) > 0);
}

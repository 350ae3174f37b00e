//! `fallocate` keeps its promise to a file although others fill the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::world::fails;
use env::{Random, Simulated};
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{
    Allocate, AllocateMode, Caller, FileKind, Fs, FsOptions, Ino, ROOT, SetAttr, ViewId, Views,
};
use zones::{Device, MemoryDevice, Purpose};

const ZONE: u64 = 8 << 20;
const MIB: u64 = 1 << 20;
const USER: Caller = Caller { uid: 1, gid: 1, pid: 1 };
const ALLOCATE: Allocate = Allocate { mode: AllocateMode::Allocate, keep_size: false };
const KEEP_SIZE: Allocate = Allocate { mode: AllocateMode::Allocate, keep_size: true };
const PUNCH: Allocate = Allocate { mode: AllocateMode::Punch, keep_size: true };

struct Store {
    device: Arc<MemoryDevice>,
    db: Kvdb,
    fs: Fs,
}

fn open_options() -> OpenOptions {
    OpenOptions { memory: 8 << 20, threads: false, zero_journal: false, ..Default::default() }
}

fn fs_options() -> FsOptions {
    FsOptions { write_buffer: 4 << 20, ..Default::default() }
}

impl Store {
    fn new(zones: u64) -> Store {
        let options = CreateOptions {
            capacity: Some(zones * ZONE),
            reserve_zones: 4,
            open: open_options(),
            ..CreateOptions::default()
        };
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
        let fs = Fs::open(db.clone(), env, fs_options()).unwrap();
        Store { device, db, fs }
    }

    fn remount(self) -> Store {
        self.fs.shutdown().unwrap();
        self.db.close().unwrap();
        let Store { device, db, fs } = self;
        drop((fs, db));
        Store::open(device)
    }

    /// Ends the store as a kill would, when everything was committed.
    fn crash(self) -> Store {
        self.fs.sync_all().unwrap();
        let Store { device, db, fs } = self;
        drop((fs, db));
        Store::open(device)
    }

    fn open(device: Arc<MemoryDevice>) -> Store {
        let env = Arc::new(Simulated::new(1));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), open_options()).unwrap();
        let fs = Fs::open(db.clone(), env, fs_options()).unwrap();
        Store { device, db, fs }
    }

    fn file(&self, name: &str) -> Ino {
        self.fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino
    }

    /// Bytes that any file may use.
    fn free(&self) -> u64 {
        let space = self.fs.statfs().unwrap();
        space.free * u64::from(space.block_size)
    }

    fn blocks(&self, ino: Ino) -> u64 {
        self.fs.getattr(ino).unwrap().blocks
    }

    /// Writes another file until nothing more fits.
    fn fill(&self) {
        let (ino, mut at) = (self.file("other"), 0);
        let mut step = 1 << 20;
        while step > 100 {
            match self.fs.write(ino, at, &noise(at, step), Default::default()) {
                Ok(n) => at += u64::from(n),
                Err(e) => {
                    assert_eq!(e.errno(), libc::ENOSPC, "{e}");
                    step /= 2;
                }
            }
        }
        self.fs.fsync(ino, false).unwrap();
    }

    #[track_caller]
    fn write_all(&self, ino: Ino, from: u64, to: u64, step: u64) {
        let mut at = from;
        while at < to {
            let n = step.min(to - at);
            let written = self.fs.write(ino, at, &noise(at, n as usize), Default::default());
            assert!(written.is_ok(), "at {at}: {}", written.unwrap_err());
            at += n;
        }
        self.fs.fsync(ino, false).unwrap();
    }

    #[track_caller]
    fn holds(&self, ino: Ino, from: u64, to: u64, step: u64) {
        let mut at = from;
        while at < to {
            let n = step.min(to - at);
            let read = self.fs.read(ino, at, n as u32).unwrap();
            assert!(read[..] == noise(at, n as usize)[..], "at {at}");
            at += n;
        }
        let report = kvfs::verify(&self.db).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

/// Returns bytes that do not compress, determined by their place.
fn noise(at: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(at);
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.number().to_le_bytes())
        .take(len / 8 + 1)
        .flatten()
        .collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn what_was_allocated_can_be_written_when_others_have_filled_the_store() {
    for (step, how) in [(128 << 10, ALLOCATE), (1000, ALLOCATE), (5000, KEEP_SIZE)] {
        let store = Store::new(24);
        let ino = store.file("f");
        let more = store.file("more");
        store.fs.fallocate(ino, how, 0, 20 * MIB).unwrap();
        store.fill();
        fails(store.fs.write(more, 0, &[1; 9000], Default::default()), libc::ENOSPC);
        store.write_all(ino, 0, 20 * MIB, step);
        store.holds(ino, 0, 20 * MIB, step);
    }
}

#[test]
fn a_promise_is_kept_by_the_next_mount_and_after_a_crash() {
    for end in [Store::remount as fn(Store) -> Store, Store::crash] {
        let store = Store::new(24);
        let ino = store.file("f");
        store.fs.fallocate(ino, ALLOCATE, 0, 20 * MIB).unwrap();
        // A part of it is written, and ends within a page.
        store.write_all(ino, 0, 5 * MIB + 100, 64 << 10);
        let (free, blocks) = (store.free(), store.blocks(ino));
        let store = end(store);
        assert_eq!(store.blocks(ino), blocks);
        assert!(store.free() < free + 2 * ZONE, "{} and {free} before", store.free());
        store.fill();
        store.write_all(ino, 5 * MIB + 100, 20 * MIB, 64 << 10);
        let store = end(store);
        store.holds(ino, 0, 5 * MIB + 100, 64 << 10);
        store.holds(ino, 5 * MIB + 100, 20 * MIB, 64 << 10);
        assert_eq!(store.blocks(ino), 20 * MIB / 512);
    }
}

/// A device on a host that others fill: from then on the host allocates nothing more.
struct Host {
    device: MemoryDevice,
    is_full: AtomicBool,
}

impl Host {
    fn has_room(&self) -> std::io::Result<()> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(std::io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl Device for Host {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.device.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.device.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.device.discard(offset, len)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.device.len()
    }
    fn grow(&self, new_len: u64) -> std::io::Result<()> {
        if new_len > self.len()? {
            self.has_room()?;
        }
        self.device.grow(new_len)
    }
    fn allocate(&self, _offset: u64, _len: u64) -> std::io::Result<()> {
        self.has_room()
    }
}

#[test]
fn what_was_allocated_can_be_written_when_others_have_filled_the_host() {
    let host = Arc::new(Host { device: MemoryDevice::new(), is_full: AtomicBool::new(false) });
    let env = Arc::new(Simulated::new(1));
    let options = CreateOptions {
        capacity: Some(64 * ZONE),
        reserve_zones: 4,
        open: open_options(),
        ..CreateOptions::default()
    };
    let db = Kvdb::create(host.clone(), env.clone(), options).unwrap();
    let fs = Fs::open(db.clone(), env.clone(), fs_options()).unwrap();
    let file = |name: &[u8]| fs.mknod(ROOT, name, FileKind::File, 0o644, 0, USER).unwrap().ino;
    let (ino, late) = (file(b"f"), file(b"late"));
    fs.fallocate(ino, ALLOCATE, 0, 40 * MIB).unwrap();
    // Free zones are not given back while they are promised.
    while db.step().unwrap() {}
    host.is_full.store(true, Ordering::Relaxed);
    let free = || {
        let space = fs.statfs().unwrap();
        space.free * u64::from(space.block_size)
    };
    let before = free();
    fails(fs.fallocate(late, ALLOCATE, 0, 200 * MIB), libc::ENOSPC);
    assert!(free() + 2 * ZONE > before, "{} and {before} before", free());
    let attr = fs.getattr(late).unwrap();
    assert_eq!((attr.size, attr.blocks), (0, 0));
    let mut at = 0;
    while at < 40 * MIB {
        let written = fs.write(ino, at, &noise(at, 128 << 10), Default::default());
        assert!(written.is_ok(), "at {at}: {}", written.unwrap_err());
        at += 128 << 10;
    }
    fs.fsync(ino, false).unwrap();
    let report = kvfs::verify(&db).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(fs.getattr(ino).unwrap().blocks, 40 * MIB / 512);
}

#[test]
fn what_is_written_again_takes_nothing_from_the_rest() {
    let store = Store::new(24);
    let ino = store.file("f");
    store.fs.fallocate(ino, ALLOCATE, 0, 16 * MIB).unwrap();
    store.write_all(ino, 0, 4 * MIB, 64 << 10);
    for _ in 0..3 {
        store.write_all(ino, MIB, 2 * MIB, 64 << 10);
    }
    store.fill();
    let mut again = 0;
    while again < 64 && store.fs.write(ino, 0, &noise(0, 64 << 10), Default::default()).is_ok() {
        again += 1;
        store.fs.fsync(ino, false).unwrap();
    }
    store.write_all(ino, 4 * MIB, 16 * MIB, 64 << 10);
    store.holds(ino, 0, 16 * MIB, 64 << 10);
}

#[test]
fn a_promise_counts_as_taken_until_it_is_given_back() {
    let store = Store::new(24);
    let fs = &store.fs;
    let ino = store.file("f");
    let before = store.free();
    let taken = |expected: u64| {
        let taken = before - store.free();
        assert!(taken.abs_diff(expected + expected / 8) < MIB, "{taken}, {expected} expected");
        assert_eq!(store.blocks(ino), expected / 512);
    };
    fs.fallocate(ino, ALLOCATE, 0, 16 * MIB).unwrap();
    taken(16 * MIB);
    // The same once more is the same promise.
    fs.fallocate(ino, ALLOCATE, 4 * MIB, 8 * MIB).unwrap();
    taken(16 * MIB);
    fs.fallocate(ino, KEEP_SIZE, 15 * MIB, 5 * MIB).unwrap();
    taken(20 * MIB);
    fs.fallocate(ino, PUNCH, 2 * MIB, 2 * MIB).unwrap();
    taken(18 * MIB);
    let size = |size| SetAttr { size: Some(size), ..Default::default() };
    fs.setattr(ino, &size(16 * MIB), USER).unwrap();
    taken(14 * MIB);
    fs.setattr(ino, &size(MIB), USER).unwrap();
    taken(MIB);
    fs.setattr(ino, &size(40 * MIB), USER).unwrap();
    taken(MIB);
    fs.unlink(ROOT, b"f").unwrap();
    taken(MIB);
    fs.forget(ino, 1);
    assert!(before - store.free() < MIB);
    // Then no promise is left, and the store has as much space as one without promises.
    let plain = Store::new(24);
    let ino = plain.file("f");
    plain.fs.unlink(ROOT, b"f").unwrap();
    plain.fs.forget(ino, 1);
    let (store, plain) = (store.remount(), plain.remount());
    let (free, expected) = (store.free(), plain.free());
    assert!(free.abs_diff(expected) < MIB, "{free}, {expected} expected");
}

#[test]
fn more_is_not_promised_than_there_is() {
    let store = Store::new(24);
    let free = store.free() / 9 * 8;
    let [a, b] = ["a", "b"].map(|name| store.file(name));
    fails(store.fs.fallocate(a, ALLOCATE, 0, free + ZONE), libc::ENOSPC);
    assert_eq!((store.blocks(a), store.fs.getattr(a).unwrap().size), (0, 0));
    store.fs.fallocate(a, ALLOCATE, 0, free / 2).unwrap();
    fails(store.fs.fallocate(b, ALLOCATE, 0, free / 2 + ZONE), libc::ENOSPC);
    store.fs.unlink(ROOT, b"a").unwrap();
    store.fs.forget(a, 1);
    store.fs.fallocate(b, ALLOCATE, 0, free / 2 + ZONE).unwrap();
}

#[test]
fn a_snapshot_or_a_clone_promises_nothing_again() {
    // Returns the space that they take, and the space that a rollback takes, with a promise or
    // without.
    let taken = |promised: bool| {
        let store = Store::new(24);
        let views = Views::new(store.db.clone(), store.fs.clone());
        let [ino, other] = ["f", "other"].map(|name| store.file(name));
        if promised {
            store.fs.fallocate(ino, ALLOCATE, 0, 16 * MIB).unwrap();
        }
        let before = store.free();
        views.snapshot(&ViewId::Mainline, "s", Durability::Synced).unwrap();
        views.clone_snapshot("s", "c").unwrap();
        let clone = views.fs(&ViewId::Clone("c".into())).unwrap();
        assert_eq!(clone.lookup(ROOT, b"f").unwrap().size, u64::from(promised) * 16 * MIB);
        let with_clone = store.free();
        // The promise of the state that is back is there after a rollback, and no other.
        store.fs.fallocate(other, ALLOCATE, 0, 8 * MIB).unwrap();
        let cut = SetAttr { size: Some(0), ..Default::default() };
        store.fs.setattr(ino, &cut, USER).unwrap();
        views.rollback("s").unwrap();
        assert_eq!(store.blocks(ino), u64::from(promised) * 16 * MIB / 512);
        assert_eq!(store.blocks(other), 0);
        [with_clone, store.free()].map(|free| before.saturating_sub(free))
    };
    for (with, without) in taken(true).into_iter().zip(taken(false)) {
        assert!(with.abs_diff(without) < MIB, "{with} and {without}");
    }
}

#[test]
fn a_transaction_brings_its_promises_with_it_or_none() {
    let store = Store::new(24);
    let views = Views::new(store.db.clone(), store.fs.clone());
    let (old, before) = (store.file("old"), store.free());
    store.fs.fallocate(old, ALLOCATE, 0, 4 * MIB).unwrap();
    let with_old = store.free();
    for commit in [false, true] {
        let id = views.begin(TransactionOptions::default()).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        let made = inside.mknod(ROOT, b"new", FileKind::File, 0o644, 0, USER).unwrap().ino;
        inside.fallocate(made, ALLOCATE, 0, 8 * MIB).unwrap();
        assert!(with_old - store.free() >= 9 * MIB - MIB / 2, "it is promised at once");
        inside.write(old, 0, &noise(0, MIB as usize), Default::default()).unwrap();
        match commit {
            true => views.commit(id, Durability::Buffered).unwrap(),
            false => views.abort(id).unwrap(),
        }
        if !commit {
            // The two differ by at most a zone that the written data has taken.
            assert!(with_old.abs_diff(store.free()) <= ZONE, "and given back");
            assert_eq!(store.blocks(old), 4 * MIB / 512);
        }
    }
    let made = store.fs.lookup(ROOT, b"new").unwrap();
    assert_eq!(made.blocks, 8 * MIB / 512);
    assert_eq!(store.blocks(old), 4 * MIB / 512);
    let promised = 11 * MIB + 11 * MIB / 8;
    assert!(before - store.free() >= promised, "{before}, {}", store.free());
    store.fill();
    store.write_all(made.ino, 0, 8 * MIB, 64 << 10);
    store.write_all(old, MIB, 4 * MIB, 64 << 10);
    store.holds(made.ino, 0, 8 * MIB, 64 << 10);
}

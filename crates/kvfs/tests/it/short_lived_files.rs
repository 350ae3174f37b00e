//! Files that are removed or replaced before the next sync are not written to the device, if the
//! store holds values (`OpenOptions::hold_values`).

use std::sync::Arc;
use std::time::Duration;

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, WriteHints};
use zones::CrashDevice;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const MIB: usize = 1 << 20;

struct Store {
    device: Arc<CrashDevice>,
    env: Arc<Simulated>,
    db: Kvdb,
    fs: Fs,
}

fn open_options(hold_values: usize) -> OpenOptions {
    OpenOptions {
        memory: 1 << 30,
        hold_values,
        threads: false,
        zero_journal: false,
        ..OpenOptions::default()
    }
}

impl Store {
    fn new(hold_values: usize) -> Store {
        let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(3)));
        let options = CreateOptions { open: open_options(hold_values), ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), options).expect("it is made");
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("it opens");
        // Values are held when no sync was asked for within some intervals.
        for _ in 0..12 {
            env.advance(Duration::from_secs(1));
            while db.step().expect("a step") {}
        }
        Store { device, env, db, fs }
    }

    fn written(&self) -> u64 {
        self.db.stats().io.total().write_bytes
    }

    fn make(&self, name: &str) -> Ino {
        let made = self.fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, CALLER);
        made.expect("made").ino
    }

    fn fill(&self, ino: Ino, mib: usize) {
        for i in 0..mib {
            let data = vec![i as u8 | 1; MIB];
            let written = self.fs.write(ino, (i * MIB) as u64, &data, WriteHints::default());
            assert_eq!(written.expect("written") as usize, MIB);
        }
    }

    /// Writes and removes a file of 128 MiB. Returns the bytes written for each of its bytes.
    fn removed(&self) -> f64 {
        let before = self.written();
        let ino = self.make("file");
        self.fill(ino, 128);
        self.fs.unlink(ROOT, b"file").expect("removed");
        self.fs.forget(ino, 1);
        self.fs.tick().expect("synced");
        assert_eq!(self.fs.verify().expect("checked").findings, []);
        (self.written() - before) as f64 / (128 * MIB) as f64
    }

    /// Opens the store again after a power cut.
    fn after_a_power_cut(&mut self) {
        self.device.cut_power();
        self.db.halt("the power is gone");
        self.device = Arc::new(CrashDevice::over(self.device.durable()));
        let opened = Kvdb::open(self.device.clone(), self.env.clone(), open_options(usize::MAX));
        self.db = opened.expect("it opens").0;
        self.fs =
            Fs::open(self.db.clone(), self.env.clone(), FsOptions::default()).expect("it opens");
        assert_eq!(self.fs.verify().expect("checked").findings, []);
    }
}

#[test]
fn a_file_that_is_written_and_removed_is_not_written() {
    let share = Store::new(usize::MAX).removed();
    assert!(share < 0.1, "{share}");
    let share = Store::new(0).removed();
    assert!(share > 0.5, "without the option: {share}");
}

#[test]
fn a_file_that_stays_is_written_once_and_survives_a_power_cut() {
    let mut store = Store::new(usize::MAX);
    let before = store.written();
    let ino = store.make("stays");
    store.fill(ino, 32);
    let gone = store.make("gone");
    store.fill(gone, 32);
    store.fs.unlink(ROOT, b"gone").expect("removed");
    store.fs.forget(gone, 1);
    store.fs.fsync(ino, false).expect("synced");
    let share = (store.written() - before) as f64 / (32 * MIB) as f64;
    assert!((0.99..1.2).contains(&share), "{share}");
    store.after_a_power_cut();
    let ino = store.fs.lookup(ROOT, b"stays").expect("there").ino;
    let mut data = vec![0; 32 * MIB];
    store.fs.read_into(ino, 0, &mut data).expect("read");
    for (i, part) in data.chunks(MIB).enumerate() {
        assert!(part.iter().all(|byte| *byte == i as u8 | 1), "MiB {i}");
    }
    assert!(store.fs.lookup(ROOT, b"gone").is_err());
}

/// A copy by reference has the place of the pages, so they are placed for it.
#[test]
fn a_copy_of_a_new_file_shares_its_pages() {
    let store = Store::new(usize::MAX);
    let before = store.written();
    let (from, to) = (store.make("from"), store.make("to"));
    store.fill(from, 16);
    let len = 16 * MIB as u64;
    let mut at = 0;
    while at < len {
        let copied = store.fs.copy_file_range(from, at, to, at, len - at).expect("copied");
        assert!(copied > 0);
        at += copied;
    }
    store.fs.sync_all().expect("synced");
    let share = (store.written() - before) as f64 / len as f64;
    assert!(share < 1.2, "{share}: both files have pages of their own");
    let (mut one, mut other) = (vec![0; 16 * MIB], vec![1; 16 * MIB]);
    store.fs.read_into(from, 0, &mut one).expect("read");
    store.fs.read_into(to, 0, &mut other).expect("read");
    assert!(one == other);
}

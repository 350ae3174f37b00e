//! An fsync of a small file waits for no other file's data (KEVIN, §5.1). Next to bulk writes that
//! are not synced, it writes only its own data. Commits keep their order, so the journal records of
//! earlier commits must become durable with it, but most of them were written early.

use std::sync::Arc;
use std::time::Duration;

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, WriteHints};
use zones::CrashDevice;

const SMALL: usize = 4096;
/// The bytes that an fsync may write in addition to the file's own.
const MORE: u64 = 16 << 10;

struct Store {
    device: Arc<CrashDevice>,
    env: Arc<Simulated>,
    db: Kvdb,
    fs: Fs,
}

fn open_options() -> OpenOptions {
    OpenOptions { memory: 64 << 20, threads: false, zero_journal: false, ..Default::default() }
}

impl Store {
    fn new() -> Store {
        let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(3)));
        let options = CreateOptions { open: open_options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), options).expect("it is made");
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("it opens");
        Store { device, env, db, fs }
    }

    fn make(&self, name: &str) -> Ino {
        let caller = Caller { uid: 0, gid: 0, pid: 1 };
        let made = self.fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, caller);
        made.expect("made").ino
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        let written = self.fs.write(ino, offset, data, WriteHints::default()).expect("written");
        assert_eq!(written as usize, data.len());
    }

    /// Bytes that an fsync of a small file, newly written, makes the store write.
    fn fsync_of_a_small_file(&self, name: &str) -> u64 {
        let ino = self.make(name);
        self.write(ino, 0, &[7; SMALL]);
        let before = self.db.stats().io.total().write_bytes;
        self.fs.fsync(ino, false).expect("synced");
        self.db.stats().io.total().write_bytes - before
    }

    /// Returns the content of a file after a power cut, or `None` if there is no such file.
    fn after_a_power_cut(&mut self, name: &str) -> Option<Vec<u8>> {
        self.device.cut_power();
        self.db.halt("the power is gone");
        self.device = Arc::new(CrashDevice::over(self.device.durable()));
        let opened = Kvdb::open(self.device.clone(), self.env.clone(), open_options());
        self.db = opened.expect("it opens").0;
        self.fs =
            Fs::open(self.db.clone(), self.env.clone(), FsOptions::default()).expect("it opens");
        assert_eq!(self.fs.verify().expect("checked").findings, []);
        let ino = self.fs.lookup(ROOT, name.as_bytes()).ok()?.ino;
        let mut data = vec![0; self.fs.getattr(ino).expect("there").size as usize];
        self.fs.read_into(ino, 0, &mut data).expect("read");
        Some(data)
    }
}

/// The data that other files get.
#[derive(Clone, Copy, Debug)]
enum Bulk {
    Stream { mib: u64 },
    Scattered { pages: u64 },
    SmallFiles { files: u64 },
}

fn bulk(store: &Store, bulk: Bulk) {
    match bulk {
        Bulk::Stream { mib } => {
            let ino = store.make("stream");
            for i in 0..mib {
                store.write(ino, i << 20, &vec![i as u8; 1 << 20]);
            }
        }
        Bulk::Scattered { pages } => {
            let ino = store.make("scattered");
            for i in 0..pages {
                store.write(ino, (i * 7919 % 65_536) * 4096, &[i as u8; 4096]);
            }
        }
        Bulk::SmallFiles { files } => {
            for i in 0..files {
                let ino = store.make(&format!("file{i:05}"));
                store.env.advance(Duration::from_micros(50));
                store.write(ino, 0, &[i as u8; 2000]);
            }
        }
    }
}

#[test]
fn an_fsync_writes_no_data_of_other_files() {
    for kind in [
        Bulk::Stream { mib: 4 },
        Bulk::Stream { mib: 100 },
        Bulk::Scattered { pages: 500 },
        Bulk::Scattered { pages: 5000 },
        Bulk::SmallFiles { files: 100 },
        Bulk::SmallFiles { files: 2000 },
    ] {
        let mut store = Store::new();
        store.fsync_of_a_small_file("first");
        bulk(&store, kind);
        let written = store.fsync_of_a_small_file("small");
        println!("{kind:?}: an fsync of {SMALL} bytes wrote {written}");
        assert!(written <= SMALL as u64 + MORE, "{kind:?}: {written} bytes");
        assert_eq!(store.after_a_power_cut("small").as_deref(), Some(&[7; SMALL][..]), "{kind:?}");
    }
}

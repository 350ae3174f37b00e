//! A store on a device whose power can be cut, and the operations that the tests run on it.

use std::cell::Cell;
use std::sync::Arc;

use env::Simulated;
use kvdb::{Batch, CreateOptions, Durability, Kvdb, OpenOptions};
use kvfs::{FileKind, Fs, FsOptions, Ino, ROOT, Result, Views};
use zones::CrashDevice;

pub struct Store {
    device: Arc<CrashDevice>,
    options: FsOptions,
    pub db: Kvdb,
    pub fs: Fs,
    pub views: Views,
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(7) };
}

/// Environments of this thread are made from here on, one after the other.
pub fn environments_from(seed: u64) {
    NEXT.set(seed);
}

/// Each opening has its own seed. Two stores, or two lives of one store, that draw the same numbers
/// would take each other's snapshots for their own.
pub fn environment() -> Arc<Simulated> {
    NEXT.set(NEXT.get() + 1);
    Arc::new(Simulated::new(NEXT.get()))
}

fn open_options() -> OpenOptions {
    OpenOptions { memory: 16 << 20, threads: false, zero_journal: false, ..Default::default() }
}

impl Store {
    pub fn new() -> Store {
        Store::with(FsOptions::default())
    }

    pub fn with(options: FsOptions) -> Store {
        let device = Arc::new(CrashDevice::new());
        let create = CreateOptions { open: open_options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), environment(), create).expect("made");
        let (fs, views) = mounted(&db, &options);
        Store { device, options, db, fs, views }
    }

    /// Returns the store as it is after a power cut now.
    pub fn after_power_cut(&self, seed: u64) -> Store {
        let device = Arc::new(CrashDevice::over(self.device.crash(seed)));
        Store::on(device, self.options.clone())
    }

    fn on(device: Arc<CrashDevice>, options: FsOptions) -> Store {
        let db = Kvdb::open(device.clone(), environment(), open_options()).expect("it opens").0;
        let (fs, views) = mounted(&db, &options);
        Store { device, options, db, fs, views }
    }

    /// Ends the process right after a sync, so that file data in memory is lost.
    pub fn kill(&mut self) {
        self.db.sync().expect("synced");
        let device = Arc::new(CrashDevice::over(self.device.current()));
        *self = Store::on(device, self.options.clone());
    }

    /// The power fails, and any part of the unsynced data may survive.
    pub fn power_cut(&mut self, seed: u64) {
        *self = self.after_power_cut(seed);
    }

    pub fn remount(&mut self) {
        self.unmounted(|_| ());
    }

    /// Does something with the database while no files are open.
    pub fn unmounted(&mut self, what: impl FnOnce(&Kvdb)) {
        self.views.shutdown().expect("synced");
        self.fs.shutdown().expect("synced");
        // Open transactions end with the process.
        for info in self.db.transactions().into_iter().filter(|info| !info.durable) {
            self.views.abort(info.id).expect("aborted");
        }
        what(&self.db);
        (self.fs, self.views) = mounted(&self.db, &self.options);
    }
}

fn mounted(db: &Kvdb, options: &FsOptions) -> (Fs, Views) {
    let fs = Fs::open(db.clone(), environment(), options.clone()).expect("it opens");
    (fs.clone(), Views::new(db.clone(), fs))
}

/// Makes a file, which nothing holds open.
pub fn file(fs: &Fs, dir: Ino, name: &str) -> Result<Ino> {
    let made = fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, Default::default())?;
    fs.forget(made.ino, 1);
    Ok(made.ino)
}

pub fn make(fs: &Fs, dir: Ino, name: &str) -> Ino {
    file(fs, dir, name).expect("made")
}

pub fn files(fs: &Fs, dir: Ino, prefix: &str, count: usize) -> Vec<Ino> {
    (0..count).map(|n| make(fs, dir, &format!("{prefix}{n}"))).collect()
}

/// Returns a random path below the root.
pub struct Found {
    pub name: String,
    pub ino: Ino,
    pub parent: Ino,
    pub is_dir: bool,
}

pub fn walk(fs: &Fs) -> Vec<Found> {
    let mut found = Vec::new();
    let mut dirs = vec![ROOT];
    while let Some(parent) = dirs.pop() {
        fs.readdir(parent, 0, false, &mut |e| {
            if e.name != b"." && e.name != b".." {
                let (name, is_dir) =
                    (String::from_utf8_lossy(e.name).into(), e.kind == FileKind::Dir);
                found.push(Found { name, ino: e.ino, parent, is_dir });
                if is_dir {
                    dirs.push(e.ino);
                }
            }
            true
        })
        .unwrap_or_else(|e| panic!("directory {parent} cannot be listed: {e}"));
    }
    found
}

pub fn numbers(fs: &Fs) -> Vec<Ino> {
    walk(fs).into_iter().map(|found| found.ino).collect()
}

/// Changes a store that is not mounted to what version 5 has left: a counter for each branch, of
/// which one has noted a bound.
pub fn make_older(db: &Kvdb, (branch, bound): (&str, Ino)) {
    let key = |name: &[u8]| [&[0; 8][..], name].concat();
    let mut batch = Batch::new();
    let branches = db.branches().into_iter().map(|info| info.name).chain([String::new()]);
    for name in branches {
        let imap = db.dictionary_in(&name, "imap").expect("there");
        let mut record = db.get(imap, &key(b"s")).expect("read").expect("there").to_vec();
        record[4] -= 2;
        batch.put(imap, key(b"s"), record);
        batch.delete(imap, key(b"r"));
        if *name == *branch {
            let note = [bound.to_le_bytes(), bound.to_le_bytes()].concat();
            batch.put(imap, key(b"n"), note);
        }
    }
    let notes = db.dictionary_in(kvdb::STORE_BRANCH, "numbers").expect("there");
    // Records of an earlier program of this version may not be believed.
    batch.put(notes, b"n".to_vec(), 2u64.to_le_bytes().to_vec());
    db.commit(batch, Durability::Synced).expect("committed");
}

//! A store, and a fork of it, each with a file system in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use env::{Env, Machine, Simulated};
use kvdb::{CreateOptions, Durability, ForkOptions, Kvdb, OpenOptions, RemoteStore, RemoteZones};
use kvfs::{Choice, Fs, FsOptions, MergeConflict, MergeForkOptions, Merged, Views};
use objects::{MemoryObjects, Objects};
use zones::MemoryDevice;

use crate::world::World;

/// An open store with files.
pub struct Store {
    pub w: World,
    pub views: Views,
    device: Arc<MemoryDevice>,
}

/// A clock and random numbers that differ from those of any other store.
fn fresh() -> Arc<dyn Env> {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    Arc::new(Simulated::new(NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A place that stores are published in.
pub struct Bucket(pub Arc<dyn Objects>);

impl Bucket {
    pub fn new() -> Bucket {
        Bucket(Arc::new(MemoryObjects::new()))
    }

    /// Publishes a store under a name and makes a fork of it.
    pub fn fork(&self, of: &Store, name: &str) -> Store {
        let device = Arc::new(MemoryDevice::new());
        let options = ForkOptions::default();
        self.publish(of, name).fork_to(device.clone(), fresh(), &options).expect("a fork");
        self.open(device, of.w.env.clone())
    }

    /// Publishes a store, and opens the published state as a reader does.
    pub fn read(&self, of: &Store, name: &str) -> Kvdb {
        let device = Arc::new(MemoryDevice::new());
        self.publish(of, name).copy_to(device.clone(), fresh()).expect("a copy");
        self.database(device, true)
    }

    /// Publishes a store, and opens the published state as a mount does, by requests to `objects`.
    pub fn read_by(&self, of: &Store, name: &str, objects: Arc<dyn Objects>) -> Kvdb {
        let device = Arc::new(MemoryDevice::new());
        self.publish(of, name).copy_to(device.clone(), fresh()).expect("a copy");
        let remote = Some(RemoteZones::new(objects));
        let options =
            OpenOptions { remote, read_only: true, memory: 64 << 20, ..Default::default() };
        Kvdb::open(device, Arc::new(Machine::default()), options).expect("opened").0
    }

    pub fn publish(&self, store: &Store, name: &str) -> RemoteStore {
        store.views.sync_all().expect("synced");
        let to = RemoteStore::new(self.0.clone(), name).expect("a name");
        let mut publisher = store.w.db.publisher(&to).expect("no request");
        publisher.rehearse(Box::new(kvfs::rehearse));
        publisher.publish(&mut |_| Ok(())).expect("published");
        to
    }

    fn database(&self, device: Arc<MemoryDevice>, read_only: bool) -> Kvdb {
        let remote = Some(RemoteZones::new(self.0.clone()));
        let options = OpenOptions {
            remote,
            read_only,
            threads: false,
            memory: 64 << 20,
            ..Default::default()
        };
        Kvdb::open(device, fresh(), options).expect("opened").0
    }

    fn open(&self, device: Arc<MemoryDevice>, env: Arc<Simulated>) -> Store {
        Store::of(self.database(device.clone(), false), env, device)
    }
}

/// Options of a merge that can be undone, with one choice for everything, or none.
pub fn options(choice: Option<Choice>) -> MergeForkOptions {
    let choices = choice.into_iter().map(|choice| (Vec::new(), choice)).collect();
    let transaction = kvdb::TransactionOptions { undoable: true, ..Default::default() };
    MergeForkOptions { name: "mine".into(), choices, transaction, ..Default::default() }
}

impl Store {
    pub fn new() -> Store {
        let device = Arc::new(MemoryDevice::new());
        let open = OpenOptions { threads: false, memory: 64 << 20, ..Default::default() };
        let create = CreateOptions { open, ..Default::default() };
        let db = Kvdb::create(device.clone(), fresh(), create).expect("memory does not fail");
        Store::of(db, Arc::new(Simulated::new(1)), device)
    }

    fn of(db: Kvdb, env: Arc<Simulated>, device: Arc<MemoryDevice>) -> Store {
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("opened");
        let views = Views::new(db.clone(), fs.clone());
        Store { w: World { db, env, fs }, views, device }
    }

    /// Opens a copy of the store's file, which `new` made.
    pub fn copy(&self) -> Store {
        self.w.fs.sync_all().expect("synced");
        let device = MemoryDevice::clone(&self.device);
        let options = OpenOptions { threads: false, memory: 64 << 20, ..Default::default() };
        let db = Kvdb::open(Arc::new(device), fresh(), options).expect("opened").0;
        Store::of(db, self.w.env.clone(), self.device.clone())
    }

    pub fn begin(&self, fork: &Kvdb, options: &MergeForkOptions) -> Merged {
        self.w.second();
        self.views.merge_fork(fork, options, &|_, _| kvdb::Settled::Conflict).expect("merged")
    }

    /// Merges a fork that is open here. Returns the conflicts; without any it is committed.
    pub fn merge(&self, fork: &Store, options: &MergeForkOptions) -> Vec<MergeConflict> {
        fork.w.fs.sync_all().expect("synced");
        let merged = self.begin(&fork.w.db, options);
        match merged.conflicts.is_empty() {
            true => self.views.commit(merged.transaction, Durability::Buffered).expect("committed"),
            false => self.views.abort(merged.transaction).expect("aborted"),
        }
        self.check();
        fork.check();
        merged.conflicts
    }

    /// Undoes the newest commit that can be undone.
    pub fn undo(&self) {
        let commit = self.w.db.undoable_commits().pop().expect("kept").number;
        let undo = kvdb::TransactionOptions { undoable: true, ..Default::default() };
        let (id, against) = self.views.undo(commit, undo).expect("begun");
        assert_eq!(against, []);
        self.views.commit(id, Durability::Buffered).expect("undone");
        self.check();
    }

    pub fn check(&self) {
        let report = self.w.fs.verify().expect("verified");
        assert_eq!(report.findings, [], "{report:?}");
    }
}

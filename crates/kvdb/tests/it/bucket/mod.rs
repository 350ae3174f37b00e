//! Stores in a bucket in memory. A test can inject faults, count requests, and compare the content
//! of a store with a copy that is read elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{ForkOptions, Kvdb, OpenOptions, RemoteStore, RemoteZones};
use objects::{
    Condition, CountObjects, FaultyObjects, Key, MemoryObjects, Object, Objects, Page, Part, Rates,
    Tag,
};
use zones::{Device, MemoryDevice};

use crate::model::*;

/// A bucket that counts requests and can inject faults.
pub struct Bucket {
    pub memory: Arc<MemoryObjects>,
    pub faults: Arc<FaultyObjects>,
    pub counts: Arc<CountObjects>,
}

impl Bucket {
    pub fn new() -> Bucket {
        let memory = Arc::new(MemoryObjects::new());
        let faults = Arc::new(FaultyObjects::new(memory.clone(), 7, Rates::default()));
        let counts = Arc::new(CountObjects::new(faults.clone()));
        Bucket { memory, faults, counts }
    }

    pub fn store(&self, name: &str) -> RemoteStore {
        RemoteStore::new(self.counts.clone(), name).unwrap()
    }

    pub fn gets(&self) -> u64 {
        self.counts.counts().get.requests
    }

    pub fn puts(&self) -> u64 {
        self.counts.counts().put.requests
    }

    pub fn keys(&self, prefix: &str) -> Vec<Key> {
        let (mut keys, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.memory.list(prefix, &after).unwrap();
            keys.extend(page.entries.into_iter().map(|entry| entry.key));
            match keys.last() {
                Some(last) if page.more => after = last.to_string(),
                _ => return keys,
            }
        }
    }

    pub fn zones(&self) -> RemoteZones {
        RemoteZones::new(self.counts.clone())
    }
}

pub fn source(seed: u64) -> (Kvdb, Random) {
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(seed)), small());
    (db.unwrap(), Random::new(seed))
}

pub fn change(db: &Kvdb, random: &mut Random, times: u64) {
    let dicts = dictionaries(db).unwrap();
    for _ in 0..times {
        let changes = changes(random, &dicts);
        db.commit(batch(&changes), kvdb::Durability::Buffered).unwrap();
    }
}

pub fn push(db: &Kvdb, to: &RemoteStore) -> kvdb::PushStats {
    db.push(to, &mut |_| Ok(())).unwrap()
}

/// A local file of the newest state.
pub fn copied(from: &RemoteStore, seed: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    from.copy_to(device.clone(), Arc::new(Simulated::new(seed))).unwrap();
    device
}

/// A fork of the newest state.
pub fn forked(from: &RemoteStore, seed: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    from.fork_to(device.clone(), Arc::new(Simulated::new(seed)), &ForkOptions::default()).unwrap();
    device
}

pub fn open_with(
    device: Arc<dyn Device>,
    zones: RemoteZones,
    options: OpenOptions,
) -> kvdb::Result<Kvdb> {
    let options = OpenOptions { remote: Some(zones), ..options };
    // Each world has another seed, since random numbers must not repeat.
    static OPENED: AtomicU64 = AtomicU64::new(1000);
    let seed = OPENED.fetch_add(1, Ordering::Relaxed);
    Ok(Kvdb::open(device, Arc::new(Simulated::new(seed)), options)?.0)
}

pub fn reader(device: &Arc<MemoryDevice>, bucket: &Bucket) -> Kvdb {
    let options = OpenOptions { read_only: true, ..small() };
    open_with(device.clone(), bucket.zones(), options).unwrap()
}

/// The contents of the branches and snapshots of a store, by their names.
pub fn all(db: &Kvdb) -> BTreeMap<String, Model> {
    let of = |view: kvdb::View, dictionaries: Vec<kvdb::DictionaryInfo>| -> Model {
        let tuples = |id| view.scan(id, b"", b"", usize::MAX).unwrap().into_iter();
        let tuples = |id| tuples(id).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        dictionaries.into_iter().map(|d| (d.id, tuples(d.id))).collect()
    };
    let mut all = BTreeMap::from([("main".to_string(), contents(db).unwrap())]);
    for branch in db.branches() {
        let name = format!("branch {}", branch.name);
        all.insert(name, of(db.view(), db.dictionaries_in(&branch.name)));
    }
    for snapshot in db.snapshots() {
        let view = db.open_snapshot(&snapshot.name).unwrap();
        let dictionaries = view.dictionaries();
        all.insert(format!("snapshot {}", snapshot.name), of(view, dictionaries));
    }
    all
}

/// A place that holds its user before a chosen request until the test releases it.
#[derive(Debug)]
pub struct Gate {
    objects: Arc<dyn Objects>,
    /// The number of requests that may still pass.
    stop: AtomicU64,
    state: std::sync::Mutex<(u64, bool)>,
    changed: std::sync::Condvar,
}

impl Gate {
    /// Holds the user before the request after this number.
    pub fn new(objects: Arc<dyn Objects>, stop: u64) -> Gate {
        let (state, changed) = (std::sync::Mutex::new((0, false)), std::sync::Condvar::new());
        Gate { objects, stop: AtomicU64::new(stop), state, changed }
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        while state.0 > self.stop.load(Ordering::SeqCst) && !state.1 {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Holds the user before the next request.
    pub fn stop_now(&self) {
        let state = self.state.lock().unwrap();
        self.stop.store(state.0, Ordering::SeqCst);
    }

    /// Waits until the user is held.
    pub fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        while state.0 <= self.stop.load(Ordering::SeqCst) && !state.1 {
            state = self.changed.wait(state).unwrap();
        }
    }

    pub fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    /// Returns whether the user ended before that request.
    pub fn was_passed(&self) -> bool {
        self.state.lock().unwrap().0 <= self.stop.load(Ordering::SeqCst)
    }
}

impl Objects for Gate {
    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.pass();
        self.objects.get(key, part)
    }
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        self.pass();
        self.objects.put(key, bytes, condition)
    }
    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.pass();
        self.objects.delete(key)
    }
    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.pass();
        self.objects.list(prefix, after)
    }
    fn place(&self) -> String {
        self.objects.place()
    }
}

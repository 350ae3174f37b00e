//! Tests of the base of a fork. A fork keeps the state in which it began, and the store that it
//! comes from can take over its changes, value by value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use env::Simulated;
use kvdb::{
    Batch, CreateOptions, Durability, ForkOptions, Isolation, Kvdb, OpenOptions, RemoteStore,
    RemoteZones, Settled, StoredValue,
};
use objects::{MemoryObjects, Objects};
use zones::MemoryDevice;

fn fresh() -> Arc<Simulated> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Arc::new(Simulated::new(NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn create() -> Kvdb {
    let device = Arc::new(MemoryDevice::new());
    Kvdb::create(device, fresh(), CreateOptions::default()).expect("a store")
}

fn push(db: &Kvdb, objects: &Arc<dyn Objects>, name: &str) -> RemoteStore {
    let to = RemoteStore::new(objects.clone(), name).expect("a name");
    db.push(&to, &mut |_| Ok(())).expect("published");
    to
}

fn open(device: Arc<MemoryDevice>, objects: &Arc<dyn Objects>) -> Kvdb {
    let remote = Some(RemoteZones::new(objects.clone()));
    let options = OpenOptions { remote, ..OpenOptions::default() };
    Kvdb::open(device, fresh(), options).expect("opened").0
}

fn fork(of: &RemoteStore, objects: &Arc<dyn Objects>, options: &ForkOptions) -> Kvdb {
    let device = Arc::new(MemoryDevice::new());
    of.fork_to(device.clone(), fresh(), options).expect("a fork");
    open(device, objects)
}

#[test]
fn a_fork_of_a_fork_knows_what_all_of_them_began_as() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let db = create();
    let fruit = db.open_dictionary("fruit").expect("made");
    fruit.insert("apple", "green").expect("put");
    let one = fork(&push(&db, &objects, "one"), &objects, &ForkOptions::default());
    assert_eq!((db.fork_origins(), one.fork_origins()), (vec![], vec![db.store_id()]));
    one.open_dictionary("fruit").expect("there").insert("apple", "red").expect("put");
    let two = fork(&push(&one, &objects, "two"), &objects, &ForkOptions::default());
    two.open_dictionary("fruit").expect("there").insert("apple", "rotten").expect("put");
    assert_eq!(two.fork_origins(), [db.store_id(), one.store_id()]);
    let apple = |store: &Kvdb| {
        let base = two.fork_base(&store.store_id())?.state;
        base.get(base.dictionary("fruit")?, b"apple").expect("read")
    };
    assert_eq!(apple(&db), Some("green".into()));
    assert_eq!(apple(&one), Some("red".into()));
    assert_eq!(apple(&two), None, "it is no fork of itself");
    assert_eq!(two.snapshot_labels().len(), 0, "they are nobody's snapshots");
}

#[test]
fn a_fork_that_goes_back_to_a_snapshot_began_as_that() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let db = create();
    let fruit = db.open_dictionary("fruit").expect("made");
    fruit.insert("apple", "green").expect("put");
    db.snapshot("monday").expect("made");
    fruit.insert("apple", "red").expect("put");
    let options = ForkOptions { snapshot: Some("monday".into()), ..ForkOptions::default() };
    let fork = fork(&push(&db, &objects, "fruit"), &objects, &options);
    fork.rollback("monday").expect("rolled back");
    let base = fork.fork_base(&db.store_id()).expect("a base").state;
    let (was, is) = (base.dictionary("fruit"), fork.view().dictionary("fruit"));
    let (was, is) = (was.expect("there"), is.expect("there"));
    assert_eq!(base.difference(was, &fork.view(), is).expect("compared").count(), 0);
}

#[test]
fn what_a_fork_has_changed_is_taken_over_by_value() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let db = create();
    let fruit = db.open_dictionary("fruit").expect("made");
    for n in 0..50u8 {
        fruit.insert(vec![n], vec![n; 10_000]).expect("put");
    }
    let fork = fork(&push(&db, &objects, "fruit"), &objects, &ForkOptions::default());
    let theirs = fork.open_dictionary("fruit").expect("there");
    for n in 40..60u8 {
        theirs.insert(vec![n], vec![n + 100; 3_000_000]).expect("put");
    }
    theirs.remove(vec![0]).expect("removed");
    theirs.insert(vec![1], vec![9; 10_000]).expect("put");
    for n in [1u8, 2, 61] {
        fruit.insert(vec![n], vec![8; 10_000]).expect("put");
    }
    let (base, now) = (fork.fork_base(&db.store_id()).expect("a base").state, fork.view());
    let (was, is) = (base.dictionary("fruit").expect("there"), theirs.id());
    let t = db.begin(Isolation::Snapshot).expect("begun");
    let none = &mut |_: kvdb::Clash<'_>| Settled::Conflict;
    let clashes = t.carry((&base, was), (&now, is), fruit.id(), none).expect("carried");
    assert_eq!(clashes, [[1u8].as_slice()], "both have changed it");
    t.abort();
    let t = db.begin(Isolation::Snapshot).expect("begun");
    let taken = &mut |_: kvdb::Clash<'_>| Settled::Taken;
    t.carry((&base, was), (&now, is), fruit.id(), taken).expect("carried");
    t.commit(Durability::Synced).expect("committed");
    drop((base, now));
    fork.close().expect("closed");
    for n in 0..62u8 {
        let expected = match n {
            0 | 60 => None,
            1 => Some(vec![9; 10_000]),
            2 | 61 => Some(vec![8; 10_000]),
            40..60 => Some(vec![n + 100; 3_000_000]),
            _ => Some(vec![n; 10_000]),
        };
        let found = fruit.get([n]).expect("read");
        assert!(found.as_deref() == expected.as_deref(), "key {n}");
    }
}

#[test]
fn states_of_two_stores_are_compared_by_what_is_in_them() {
    let (a, b) = (create(), create());
    for db in [&a, &b] {
        let fruit = db.open_dictionary("fruit").expect("made");
        fruit.insert("same", vec![1; 20_000]).expect("put");
        fruit
            .insert("equally long", vec![u8::from(db.store_id() == a.store_id()); 20_000])
            .expect("put");
        // Both lie at one place, each in its own store.
        db.snapshot("s").expect("made");
    }
    a.open_dictionary("fruit").expect("there").insert("one", "1").expect("put");
    b.open_dictionary("fruit").expect("there").insert("other", "2").expect("put");
    let id = |db: &Kvdb| db.view().dictionary("fruit").expect("there");
    let changes = a.view().difference(id(&a), &b.view(), id(&b)).expect("compared");
    let keys: Vec<_> = changes.map(|change| change.expect("read").key).collect();
    assert_eq!(keys, ["equally long", "one", "other"]);
    let within = (&b"one"[..], &b"other"[..]);
    let some = a.view().difference_between(id(&a), &b.view(), id(&b), within);
    assert_eq!(some.expect("compared").count(), 1);

    let view = Arc::new(b.view());
    let mut cursor = view.cursor(id(&b), b"equally long", b"").expect("a cursor");
    let tuple = cursor.next().expect("read").expect("there");
    let mut batch = Batch::new();
    batch.put_stored(id(&a), "copied", StoredValue::of(&tuple, &view).expect("stored"));
    a.commit(batch, Durability::Buffered).expect("committed");
    let copied = a.open_dictionary("fruit").expect("there").get("copied").expect("read");
    assert!(copied.as_deref() == Some(&[0; 20_000][..]));
}

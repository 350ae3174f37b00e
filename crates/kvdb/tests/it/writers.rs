//! Tests of a store in object storage that is written at its address by one machine after another.
//! It stays the same store, one file of it is open at a time, and no published commit is lost. A
//! file that was displaced keeps its content and reports that it was displaced.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::bucket::*;
use crate::model::*;
use crate::seeded;
use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{Error, Kvdb, LocalCopy, Publisher, RemoteStore, WriterOptions};
use objects::{Condition, Key, Object, Objects, ObjectsError, Page, Part, Rates, Tag};
use zones::MemoryDevice;

/// A local file by which a store is written, and the store, while it is open.
struct Machine {
    label: String,
    device: Arc<MemoryDevice>,
    open: Option<(Kvdb, Publisher)>,
}

impl Machine {
    fn new(label: &str) -> Machine {
        Machine { label: label.into(), device: Arc::new(MemoryDevice::new()), open: None }
    }

    fn try_open(&mut self, bucket: &Bucket, take: bool) -> kvdb::Result<LocalCopy> {
        let store = bucket.store("fruit");
        let options = WriterOptions { label: self.label.clone(), take };
        // Each world has another seed, since random numbers must not repeat.
        static WORLDS: AtomicU64 = AtomicU64::new(1);
        let world = WORLDS.fetch_add(1, Ordering::Relaxed);
        let env = Arc::new(Simulated::new(world << 20));
        let copy = store.writer_to(self.device.clone(), env, &options)?;
        let db = open_with(self.device.clone(), bucket.zones(), small())?;
        let mut publisher = db.publisher(&store)?;
        assert!(publisher.is_writer());
        publisher.stay_open(&self.label);
        self.open = Some((db, publisher));
        Ok(copy)
    }

    #[track_caller]
    fn open(&mut self, bucket: &Bucket) {
        self.try_open(bucket, false).unwrap();
    }

    fn db(&self) -> &Kvdb {
        &self.open.as_ref().unwrap().0
    }

    fn publish(&mut self) -> kvdb::Result<()> {
        let (_, publisher) = self.open.as_mut().unwrap();
        publisher.publish(&mut |_| Ok(())).map(drop)
    }

    /// Closes the store as an unmount does.
    fn close(&mut self) -> kvdb::Result<()> {
        self.publish()?;
        let (db, mut publisher) = self.open.take().unwrap();
        let closed = publisher.close();
        drop(publisher);
        db.close().unwrap();
        closed
    }

    /// The device keeps its bytes, and the state of the process is lost.
    fn crash(&mut self) {
        let device = Arc::new(MemoryDevice::clone(&self.device));
        self.open = None;
        self.device = device;
    }
}

fn insert(db: &Kvdb, key: &str) {
    db.open_dictionary("words").unwrap().insert(key.to_owned(), "there").unwrap();
    db.sync().unwrap();
}

fn keys(db: &Kvdb) -> BTreeSet<String> {
    let Some(words) = db.dictionaries().into_iter().find(|info| info.name == "words") else {
        return BTreeSet::new();
    };
    let all = db.view().scan(words.id, b"", b"", usize::MAX).unwrap();
    all.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

fn keys_there(bucket: &Bucket) -> BTreeSet<String> {
    keys(&reader(&copied(&bucket.store("fruit"), 99), bucket))
}

fn published(seed: u64) -> (Bucket, Kvdb) {
    let bucket = Bucket::new();
    let (db, mut random) = source(seed);
    change(&db, &mut random, 100);
    push(&db, &bucket.store("fruit"));
    (bucket, db)
}

#[test]
fn the_store_goes_on_at_its_address_with_all_that_it_has() {
    let (bucket, source) = published(1);
    source.snapshot("monday").unwrap();
    push(&source, &bucket.store("fruit"));
    let (mut here, mut there) = (Machine::new("here"), Machine::new("there"));
    here.open(&bucket);
    assert_eq!(all(here.db()), all(&source));
    insert(here.db(), "from here");
    here.close().unwrap();
    there.open(&bucket);
    assert!(keys(there.db()).contains("from here"));
    assert!(there.db().snapshot_label("monday").is_some());
    insert(there.db(), "from there");
    there.close().unwrap();
    // The file had everything that was published, so it may continue with the current published
    // state.
    here.open(&bucket);
    assert!(keys(here.db()).contains("from there"));
    let head = bucket.store("fruit").head().unwrap().unwrap();
    assert!(head.owner.open && head.owner.label == "here", "{head:?}");
    here.close().unwrap();
    assert!(!bucket.store("fruit").head().unwrap().unwrap().owner.open);
}

#[test]
fn little_is_written_of_a_large_store_that_goes_on() {
    let bucket = Bucket::new();
    let (source, mut random) = source(2);
    let words = source.open_dictionary("words").unwrap();
    for i in 0..60 {
        words.insert(format!("{i:08}"), bytes(&mut random, 1 << 20)).unwrap();
    }
    push(&source, &bucket.store("fruit"));
    let before = bucket.counts.counts().put.bytes;
    let mut here = Machine::new("here");
    here.open(&bucket);
    for round in 0..3 {
        insert(here.db(), &format!("round {round}"));
        here.close().unwrap();
        here.open(&bucket);
    }
    let written = bucket.counts.counts().put.bytes - before;
    assert!(written < 4 << 20, "{written} bytes");
    assert!(keys_there(&bucket).contains("round 2"));
}

#[test]
fn one_file_is_open_at_a_time_and_one_that_is_displaced_keeps_what_it_has() {
    let (bucket, _source) = published(3);
    let (mut here, mut there) = (Machine::new("here"), Machine::new("there"));
    here.open(&bucket);
    insert(here.db(), "published");
    here.publish().unwrap();
    insert(here.db(), "only here");
    let refused = there.try_open(&bucket, false).unwrap_err();
    assert!(matches!(refused, Error::OpenElsewhere { .. }), "{refused}");
    assert!(refused.to_string().contains("open for writing by here"), "{refused}");

    there.try_open(&bucket, true).unwrap();
    assert!(keys(there.db()).contains("published") && !keys(there.db()).contains("only here"));
    insert(there.db(), "from there");
    there.publish().unwrap();

    // The first one finds that out when it publishes. Nothing is committed from then on.
    let overtaken = here.publish().unwrap_err();
    assert!(matches!(overtaken, Error::Overtaken(_)), "{overtaken}");
    let words = here.db().open_dictionary("words").unwrap();
    let stopped = words.insert("more", "of it").unwrap_err().to_string();
    assert!(stopped.contains("another file"), "{stopped}");
    assert!(keys(here.db()).contains("only here"), "reads go on");
    here.open.as_mut().unwrap().1.take();
    assert!(here.publish().is_err(), "a publisher does not take it back");
    here.crash();
    for take in [false, true] {
        let kept = here.try_open(&bucket, take).unwrap_err();
        assert!(matches!(kept, Error::Unpublished(_)), "{kept}");
    }
    // Published under another name, it has all of its content.
    let rescued = open_with(here.device.clone(), bucket.zones(), small()).unwrap();
    assert!(keys(&rescued).contains("only here"));
    push(&rescued, &bucket.store("rescued"));
    drop(rescued);
    let copy = reader(&copied(&bucket.store("rescued"), 5), &bucket);
    assert!(keys(&copy).is_superset(&["only here".into(), "published".into()].into()));
    assert_eq!(keys_there(&bucket), keys(there.db()));
}

#[test]
fn a_file_goes_on_after_a_crash_and_publishes_what_it_has() {
    let (bucket, _source) = published(4);
    let mut here = Machine::new("here");
    here.open(&bucket);
    insert(here.db(), "first");
    here.crash();
    here.open(&bucket);
    insert(here.db(), "second");
    here.publish().unwrap();
    insert(here.db(), "third");
    here.crash();
    here.open(&bucket);
    assert!(keys(here.db()).is_superset(&["first".into(), "second".into(), "third".into()].into()));
    here.close().unwrap();
    assert!(keys_there(&bucket).contains("third"));
}

#[test]
fn a_file_that_was_closed_and_then_written_by_itself_does_not_lose_that() {
    let (bucket, _source) = published(5);
    let (mut here, mut there) = (Machine::new("here"), Machine::new("there"));
    here.open(&bucket);
    here.close().unwrap();
    // It is a store like any other: without its address it is opened, too.
    let db = open_with(here.device.clone(), bucket.zones(), small()).unwrap();
    insert(&db, "by itself");
    db.close().unwrap();
    drop(db);
    there.open(&bucket);
    insert(there.db(), "from there");
    there.close().unwrap();
    let kept = here.try_open(&bucket, false).unwrap_err();
    assert!(matches!(kept, Error::Unpublished(_)), "{kept}");
}

#[test]
fn the_file_that_was_published_first_does_not_take_back_what_came_after_it() {
    let (bucket, source) = published(6);
    let mut here = Machine::new("here");
    let mut publisher = source.publisher(&bucket.store("fruit")).unwrap();
    here.open(&bucket);
    insert(&source, "in the first file");
    let refused = publisher.publish(&mut |_| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::OpenElsewhere { .. }), "{refused}");
    insert(here.db(), "from here");
    here.close().unwrap();
    publisher.take();
    let refused = publisher.publish(&mut |_| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::WrittenElsewhere(_)), "{refused}");
    assert!(matches!(publisher.check(), Err(Error::WrittenElsewhere(_))));
    assert!(source.push(&bucket.store("fruit"), &mut |_| Ok(())).is_err());
    insert(&source, "commits go on");
    publisher.take_from_writer();
    publisher.publish(&mut |_| Ok(())).unwrap();
    assert!(keys_there(&bucket).contains("commits go on"));
    assert!(!keys_there(&bucket).contains("from here"));
    // All data of the other file was published, so it may begin again.
    here.open(&bucket);
    assert!(keys(here.db()).contains("commits go on"));
}

#[test]
fn an_older_copy_of_the_file_does_not_take_back_what_was_published_since() {
    let (bucket, _source) = published(12);
    let mut here = Machine::new("here");
    here.open(&bucket);
    insert(here.db(), "first");
    here.publish().unwrap();
    // A machine is restored, or its disk was cloned while it ran.
    let older = Arc::new(MemoryDevice::clone(&here.device));
    insert(here.db(), "second");
    here.publish().unwrap();
    let mut restored = Machine { device: older, ..Machine::new("restored") };
    for take in [false, true] {
        let refused = restored.try_open(&bucket, take).unwrap_err();
        assert!(matches!(refused, Error::Unpublished(_)), "{refused}");
    }
    let db = open_with(restored.device.clone(), bucket.zones(), small()).unwrap();
    let refused = db.push(&bucket.store("fruit"), &mut |_| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::Overtaken(_)), "{refused}");
    here.close().unwrap();
    assert!(keys_there(&bucket).contains("second"));
}

#[test]
fn a_mount_that_publishes_is_not_displaced_unless_that_is_asked_for() {
    let (bucket, source) = published(13);
    let mut publisher = source.publisher(&bucket.store("fruit")).unwrap();
    publisher.stay_open("the first machine");
    insert(&source, "first");
    publisher.publish(&mut |_| Ok(())).unwrap();
    let mut here = Machine::new("here");
    let refused = here.try_open(&bucket, false).unwrap_err().to_string();
    assert!(refused.contains("open for writing by the first machine"), "{refused}");
    insert(&source, "second");
    assert!(publisher.close().is_err(), "it has changes that are not published");
    publisher.publish(&mut |_| Ok(())).unwrap();
    publisher.close().unwrap();
    here.open(&bucket);
    assert!(keys(here.db()).contains("second"));
}

#[test]
fn a_damaged_note_of_the_right_is_no_right() {
    let (bucket, _source) = published(7);
    let mut here = Machine::new("here");
    here.open(&bucket);
    here.close().unwrap();
    let claim_at = (4 << 20) - 4096;
    here.device.flip_bit(claim_at + 16, 0);
    let kept = here.try_open(&bucket, true).unwrap_err();
    assert!(matches!(kept, Error::Unpublished(_)), "{kept}");
}

#[test]
fn a_store_that_is_not_there_and_another_one_of_its_name_are_refused() {
    let (bucket, _source) = published(8);
    let mut here = Machine::new("here");
    let store = |name: &str| RemoteStore::new(bucket.counts.clone(), name).unwrap();
    let env = || Arc::new(Simulated::new(1 << 40));
    let options = WriterOptions::default();
    let none = store("none").writer_to(here.device.clone(), env(), &options).unwrap_err();
    assert!(matches!(none, Error::NoStore(_)), "{none}");
    let label = "x".repeat(257);
    let long = WriterOptions { label, take: false };
    assert!(store("fruit").writer_to(here.device.clone(), env(), &long).is_err());
    here.open(&bucket);
    insert(here.db(), "only here");
    here.crash();
    // Another store has the name by now.
    store("fruit").unpublish(&*env()).unwrap();
    let (other, _) = source(9);
    push(&other, &store("fruit"));
    for take in [false, true] {
        let kept = here.try_open(&bucket, take).unwrap_err();
        assert!(matches!(kept, Error::Unpublished(_)), "{kept}");
    }
    let db = open_with(here.device.clone(), bucket.zones(), small()).unwrap();
    assert!(keys(&db).contains("only here"));
}

#[test]
fn a_store_that_the_file_holds_is_not_written_over() {
    let (bucket, _source) = published(10);
    let local = Arc::new(MemoryDevice::new());
    drop(create(local.clone(), Arc::new(Simulated::new(1)), small()).unwrap());
    let fork = forked(&bucket.store("fruit"), 1);
    for device in [local, fork] {
        let mut here = Machine { device, ..Machine::new("here") };
        let refused = here.try_open(&bucket, true).unwrap_err().to_string();
        assert!(refused.contains("holds another store"), "{refused}");
    }
    // A cache has no data that is missing in the place.
    let cache = copied(&bucket.store("fruit"), 2);
    let mut here = Machine { device: cache, ..Machine::new("here") };
    here.open(&bucket);
    insert(here.db(), "only here");
    here.crash();
    // The same holds for a file whose content is not known.
    here.device.flip_bit(4096 + 20, 0);
    let refused = here.try_open(&bucket, true).unwrap_err();
    assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
}

/// Applies the next put of a head, and is not to be reached from then on.
#[derive(Debug)]
struct CutOff {
    inner: Arc<dyn Objects>,
    is_cut: AtomicBool,
}

impl CutOff {
    fn reached(&self) -> objects::Result<()> {
        match self.is_cut.load(Ordering::Relaxed) {
            true => Err(ObjectsError::Invalid("cut off".into())),
            false => Ok(()),
        }
    }
}

impl Objects for CutOff {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.reached()?;
        self.inner.get(key, part)
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        self.reached()?;
        let put = self.inner.put(key, bytes, condition);
        self.is_cut.store(true, Ordering::Relaxed);
        put.and_then(|tag| self.reached().map(|()| tag))
    }

    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.reached()?;
        self.inner.delete(key)
    }

    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.reached()?;
        self.inner.list(prefix, after)
    }
}

/// Has another machine publish before each put of the head, as often as `times` says.
struct PublishedAmid {
    inner: Arc<dyn Objects>,
    other: Mutex<Machine>,
    times: AtomicU64,
}

impl std::fmt::Debug for PublishedAmid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublishedAmid({:?})", self.times)
    }
}

impl Objects for PublishedAmid {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.inner.get(key, part)
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        let left = self.times.load(Ordering::Relaxed);
        if key.as_str().ends_with("/head") && left > 0 {
            self.times.store(left - 1, Ordering::Relaxed);
            let mut other = self.other.lock().unwrap();
            insert(other.db(), &format!("amid {left}"));
            other.publish().unwrap();
        }
        self.inner.put(key, bytes, condition)
    }

    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.inner.delete(key)
    }

    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.inner.list(prefix, after)
    }
}

#[test]
fn a_store_is_taken_from_a_machine_that_publishes_all_the_while() {
    let (bucket, _source) = published(13);
    let mut there = Machine::new("there");
    there.open(&bucket);
    there.publish().unwrap();
    let amid = Arc::new(PublishedAmid {
        inner: bucket.counts.clone(),
        other: Mutex::new(there),
        times: AtomicU64::new(1000),
    });
    let store = RemoteStore::new(amid.clone(), "fruit").unwrap();
    let here = Machine::new("here");
    let options = WriterOptions { label: "here".into(), take: true };
    let take = |world: u64| {
        store.writer_to(here.device.clone(), Arc::new(Simulated::new(world)), &options)
    };
    // The attempt ends in any case, and takes nothing then.
    assert!(matches!(take(1 << 42), Err(Error::Limit(_))));
    amid.other.lock().unwrap().publish().unwrap();

    amid.times.store(5, Ordering::Relaxed);
    take(1 << 43).unwrap();
    assert!(matches!(amid.other.lock().unwrap().publish(), Err(Error::Overtaken(_))));
    let there = keys_there(&bucket);
    assert!((1..=5).all(|left| there.contains(&format!("amid {left}"))), "{there:?}");
}

#[test]
fn a_crash_after_a_claim_whose_answer_was_lost_takes_nothing_from_the_file() {
    let (bucket, _source) = published(11);
    let mut here = Machine::new("here");
    here.open(&bucket);
    insert(here.db(), "only here");
    here.crash();
    let cut = CutOff { inner: bucket.counts.clone(), is_cut: AtomicBool::new(false) };
    let store = RemoteStore::new(Arc::new(cut), "fruit").unwrap();
    let epoch = || bucket.store("fruit").head().unwrap().unwrap().epoch;
    let before = epoch();
    let env = Arc::new(Simulated::new(1 << 41));
    let options = WriterOptions { label: "here".into(), take: false };
    assert!(store.writer_to(here.device.clone(), env, &options).is_err());
    assert_eq!(epoch(), before + 1, "it was claimed");
    here.open(&bucket);
    assert!(keys(here.db()).contains("only here"));
    here.close().unwrap();
    assert!(keys_there(&bucket).contains("only here"));
}

/// Machines that open, commit, publish, close, crash and take the store from each other, while
/// requests and answers are lost: what was published stays, unless it is taken back on purpose.
fn take_turns(seed: u64) -> BTreeSet<&'static str> {
    let mut reached = BTreeSet::new();
    let (bucket, source) = published(seed);
    let mut random = Random::new(seed);
    let mut machines: Vec<Machine> = (0..3).map(|i| Machine::new(&format!("{i}"))).collect();
    // The content of each file, and of everything that was published.
    let mut has: Vec<BTreeSet<String>> = vec![BTreeSet::new(); machines.len()];
    let mut there = keys(&source);
    let mut may_be_there: Vec<BTreeSet<String>> = vec![];
    for step in 0..60 {
        let i = random.below(3) as usize;
        let machine = &mut machines[i];
        let what = format!("seed {seed}, step {step}, machine {i}");
        let faulty = random.one_in(4);
        if faulty {
            let rates = Rates { lost_request: 6, lost_answer: 6, ..Rates::default() };
            bucket.faults.set_rates(rates);
        }
        if machine.open.is_none() {
            let take = random.one_in(3);
            let opened = machine.try_open(&bucket, take);
            bucket.faults.set_rates(Rates::default());
            match opened {
                Ok(_) => {
                    let now = keys(machine.db());
                    let is_own = now == has[i];
                    let newest = keys_there(&bucket);
                    assert!(is_own || now == newest, "{what}");
                    assert!(now.is_superset(&newest), "{what}: it lacks what is published");
                    reached.insert(if is_own { "went on" } else { "began anew" });
                    has[i] = now;
                }
                Err(Error::OpenElsewhere { .. }) if !take => {
                    reached.insert("was refused");
                }
                Err(Error::Unpublished(_)) => {
                    let newest = keys_there(&bucket);
                    reached.insert(if has[i].is_subset(&newest) { "was careful" } else { "kept" });
                    *machine = Machine::new(&machine.label);
                    has[i].clear();
                }
                // The opening may have begun, but the store is not open.
                Err(_) if faulty => machine.crash(),
                Err(e) => panic!("{what}: {e}"),
            }
            continue;
        }
        let before = keys_there(&bucket);
        match random.below(8) {
            0..=2 => {
                let key = format!("{seed}.{step}");
                let words = machine.db().open_dictionary("words");
                match words.and_then(|words| words.insert(key.clone(), "there")) {
                    Ok(_) => {
                        machine.db().sync().unwrap();
                        has[i].insert(key);
                    }
                    Err(e) => {
                        assert!(e.to_string().contains("another file"), "{what}: {e}");
                        reached.insert("was stopped");
                    }
                }
            }
            3..=4 => match machine.publish() {
                Ok(()) => {
                    assert!(has[i].is_superset(&there), "{what}: a published commit is lost");
                    there = has[i].clone();
                    reached.insert("published");
                }
                Err(Error::Overtaken(_) | Error::OpenElsewhere { .. }) => {
                    reached.insert("was overtaken");
                }
                Err(_) if faulty => may_be_there.push(has[i].clone()),
                Err(e) => panic!("{what}: {e}"),
            },
            5 => match machine.close() {
                Ok(()) => {
                    assert!(has[i].is_superset(&there), "{what}: a published commit is lost");
                    there = has[i].clone();
                    reached.insert("closed");
                }
                Err(Error::Overtaken(_) | Error::OpenElsewhere { .. }) => machine.crash(),
                Err(_) if faulty => {
                    may_be_there.push(has[i].clone());
                    machine.crash();
                }
                Err(e) => panic!("{what}: {e}"),
            },
            _ => machine.crash(),
        }
        bucket.faults.set_rates(Rates::default());
        let now = keys_there(&bucket);
        assert!(now.is_superset(&before), "{what}: what was published is gone");
        let is_known = now == there || may_be_there.contains(&now);
        assert!(is_known, "{what}: it was published by none");
        there = now;
    }
    reached
}

#[test]
fn machines_that_take_turns_lose_nothing_that_was_published() {
    let reached = Mutex::new(BTreeSet::new());
    let is_usual = seeded::each("machines take turns", 8, |seed| {
        let mut of_one = take_turns(seed);
        reached.lock().unwrap().append(&mut of_one);
    });
    let reached = reached.into_inner().unwrap();
    let all = ["went on", "began anew", "was refused", "kept", "was stopped", "published"];
    for what in all.into_iter().chain(["was overtaken", "closed"]) {
        assert!(!is_usual || reached.contains(what), "no machine {what}: {reached:?}");
    }
}

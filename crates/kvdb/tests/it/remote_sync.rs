//! Tests of syncs that return when the commits are also in object storage. No synced data is lost
//! with a machine, whichever machine takes over the store, and a machine that sleeps and wakes gets
//! no false acknowledgement.

use crate::bucket;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::bucket::*;
use crate::model::*;
use crate::seeded;
use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{
    Batch, CollectOptions, DictionaryOptions, Durability, Error, Isolation, Kvdb, OpenOptions,
    Publisher, RemotePlace, RemoteZones, Update, WriterOptions,
};
use objects::{Condition, Key, Object, Objects, ObjectsError, Page, Part, Rates, Tag};
use zones::MemoryDevice;

/// A clock and random numbers that differ from those of any other machine.
fn fresh() -> Arc<Simulated> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Arc::new(Simulated::new(NEXT.fetch_add(1, Ordering::Relaxed) << 20))
}

/// A machine with a local file by which the store is written.
struct Machine {
    device: Arc<MemoryDevice>,
    open: Option<(Kvdb, Arc<Mutex<Publisher>>)>,
}

/// Has syncs of the store wait for the place.
fn sync_there(db: &Kvdb, publisher: Publisher) -> Arc<Mutex<Publisher>> {
    let publisher = Arc::new(Mutex::new(publisher));
    let weak: Weak<Mutex<Publisher>> = Arc::downgrade(&publisher);
    let publish = move || {
        let publisher = weak.upgrade().ok_or(Error::Invalid("it is closed".into()))?;
        publisher.lock().unwrap().publish(&mut |_| Ok(())).map(drop)
    };
    publisher.lock().unwrap().sync_remotely(Box::new(publish)).unwrap();
    let _ = db;
    publisher
}

impl Machine {
    fn new() -> Machine {
        Machine { device: Arc::new(MemoryDevice::new()), open: None }
    }

    fn try_open(&mut self, bucket: &Bucket, take: bool) -> kvdb::Result<()> {
        let store = bucket.store("fruit");
        let options = WriterOptions { label: "a machine".into(), take };
        store.writer_to(self.device.clone(), fresh(), &options)?;
        // One of two machines holds values until a sync.
        let open = OpenOptions { hold_values: if take { usize::MAX } else { 0 }, ..small() };
        let db = open_with(self.device.clone(), bucket.zones(), open)?;
        let mut publisher = db.publisher(&store)?;
        publisher.stay_open("a machine");
        self.open = Some((db.clone(), sync_there(&db, publisher)));
        Ok(())
    }

    #[track_caller]
    fn opened(bucket: &Bucket, take: bool) -> Machine {
        let mut machine = Machine::new();
        machine.try_open(bucket, take).unwrap();
        machine
    }

    fn db(&self) -> &Kvdb {
        &self.open.as_ref().unwrap().0
    }

    fn publish(&self) -> kvdb::Result<()> {
        let (_, publisher) = self.open.as_ref().unwrap();
        publisher.lock().unwrap().publish(&mut |_| Ok(())).map(drop)
    }

    /// The device keeps its bytes, and the state of the process is lost.
    fn crash(&mut self) {
        let device = Arc::new(MemoryDevice::clone(&self.device));
        self.open = None;
        self.device = device;
    }

    /// Closes the store as an unmount does.
    fn close(&mut self) -> kvdb::Result<()> {
        self.publish()?;
        let (db, publisher) = self.open.take().unwrap();
        let closed = publisher.lock().unwrap().close();
        drop(publisher);
        db.close().unwrap();
        closed
    }
}

fn published() -> (Bucket, Kvdb) {
    let bucket = Bucket::new();
    let (db, mut random) = source(1);
    change(&db, &mut random, 60);
    push(&db, &bucket.store("fruit"));
    (bucket, db)
}

fn insert(db: &Kvdb, key: &str) -> kvdb::Result<()> {
    let words = db.open_dictionary("words")?;
    db.put(words.id(), key.as_bytes(), b"there", Durability::Synced)
}

/// Returns whether a commit has happened here alone, since another machine has the store.
fn is_displaced(error: &Error) -> bool {
    matches!(error, Error::NotSynced(why) if why.contains("was written at its address"))
}

fn keys(db: &Kvdb) -> BTreeSet<String> {
    let Some(words) = db.dictionaries().into_iter().find(|info| info.name == "words") else {
        return BTreeSet::new();
    };
    let all = db.view().scan(words.id, b"", b"", usize::MAX).unwrap();
    all.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

/// A state that is published while others commit has the commits up to its number, and the journal
/// continues after that number, so each commit is in one of them.
#[test]
fn commits_during_a_publication_are_in_its_state_or_in_the_journal_after_it() {
    let (bucket, _) = published();
    let mut machine = Machine::opened(&bucket, false);
    for round in 0..10 {
        let (stop, db) = (AtomicBool::new(false), machine.db().clone());
        let synced = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut synced = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let n = synced.len();
                    if n % 40 == 0 {
                        // Commits that are edits of the manifest.
                        let other = db.open_dictionary(&format!("r{round} {n}")).unwrap();
                        other.insert("key", "value").unwrap();
                        db.drop_dictionary(other.id()).unwrap();
                    }
                    let key = format!("r{round} {n}");
                    insert(&db, &key).unwrap();
                    synced.push(key);
                }
                synced
            });
            for _ in 0..5 {
                machine.publish().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        drop(db);
        machine.crash();
        machine = Machine::opened(&bucket, true);
        let found = keys(machine.db());
        let lost: Vec<_> = synced.iter().filter(|key| !found.contains(*key)).collect();
        assert!(lost.is_empty(), "round {round}: of {} {lost:?} are lost", synced.len());
    }
}

#[test]
fn what_was_synced_is_there_when_the_machine_is_lost() {
    let (bucket, _) = published();
    let mut lost = Machine::opened(&bucket, false);
    let db = lost.db().clone();
    insert(&db, "first").unwrap();
    let puts = bucket.puts();
    for n in 0..10 {
        insert(&db, &format!("k{n}")).unwrap();
    }
    assert_eq!(bucket.puts() - puts, 10, "one object for each sync");
    let puts = bucket.puts();
    db.sync().unwrap();
    assert_eq!(bucket.puts() - puts, 0, "nothing is sent where nothing was committed");
    // All kinds of changes, synced at the end.
    let mut random = Random::new(3);
    change(&db, &mut random, 80);
    let words = db.dictionary("words").unwrap();
    let mut batch = Batch::new();
    batch.update(words, "count", Update::add(3));
    batch.update(words, "count", Update::add(4));
    batch.put(words, "large", bytes(&mut random, 300_000));
    batch.delete_range(words, "k2", "k5");
    db.commit(batch, Durability::Buffered).unwrap();
    let generation = bucket.store("fruit").head().unwrap().unwrap().generation;
    db.sync().unwrap();
    let head = bucket.store("fruit").head().unwrap().unwrap();
    assert_eq!(head.generation, generation, "nothing was published for it");
    let expected = all(&db);
    // The commit was not synced, so it may be lost.
    db.put(words, b"late", b"", Durability::Buffered).unwrap();
    drop(db);
    lost.open = None;

    let here = Machine::opened(&bucket, true);
    assert!(all(here.db()) == expected);
    // The machine is also lost before it has published anything.
    drop(here);
    let mut third = Machine::opened(&bucket, true);
    assert!(all(third.db()) == expected);
    insert(third.db(), "from the third").unwrap();
    third.close().unwrap();
    assert!(bucket.store("fruit").head().unwrap().unwrap().journal.is_none());
    let fourth = Machine::opened(&bucket, false);
    assert!(keys(fourth.db()).contains("from the third"));
}

#[test]
fn what_is_no_commit_to_a_dictionary_is_published() {
    let (bucket, _) = published();
    let mut machine = Machine::opened(&bucket, false);
    let mut random = Random::new(9);
    type Deed<'a> = &'a dyn Fn(&Kvdb, &mut Random);
    let changes: [(&str, Deed<'_>); 9] = [
        ("a dictionary is made", &|db, _| {
            db.create_dictionary("new", DictionaryOptions::default()).unwrap();
        }),
        ("it gets other options", &|db, _| {
            let options = DictionaryOptions { false_positives: 0, ..Default::default() };
            db.set_dictionary_options(db.dictionary("new").unwrap(), options).unwrap();
        }),
        ("a snapshot is made", &|db, _| db.snapshot("monday").unwrap()),
        ("a branch is made", &|db, _| db.clone_snapshot("monday", "branch").unwrap()),
        ("a branch is written", &|db, random| {
            let dict = db.dictionary_in("branch", "plain").unwrap();
            db.put(dict, b"in the branch", &bytes(random, 5000), Durability::Buffered).unwrap();
        }),
        ("a large transaction", &|db, random| {
            let t = db.begin(Isolation::Snapshot).unwrap();
            let dict = db.dictionary("plain").unwrap();
            let mut bulk = t.bulk(dict, &db.view()).unwrap();
            (0..500).for_each(|n| {
                bulk.push(format!("t{n:05}").as_bytes(), &bytes(random, 700)).unwrap();
            });
            t.adopt(bulk.finish().unwrap()).unwrap();
            t.commit(Durability::Buffered).unwrap();
        }),
        ("a rollback", &|db, _| db.rollback("monday").unwrap()),
        ("a dictionary is dropped", &|db, _| {
            db.drop_dictionary(db.dictionary("whole").unwrap()).unwrap();
        }),
        ("a snapshot is dropped", &|db, _| db.drop_snapshot("monday").unwrap()),
    ];
    for (what, change) in changes {
        let db = machine.db().clone();
        insert(&db, &format!("before {what}")).unwrap();
        change(&db, &mut random);
        insert(&db, &format!("after {what}")).unwrap();
        db.sync().unwrap();
        let expected = all(&db);
        drop(db);
        machine.crash();
        let next = Machine::opened(&bucket, true);
        assert!(all(next.db()) == expected, "{what}");
        machine = next;
    }
}

#[test]
fn a_machine_that_sleeps_while_the_store_is_taken_is_told_nothing_that_is_not_so() {
    let (bucket, _) = published();
    let sleeper = Machine::opened(&bucket, false);
    insert(sleeper.db(), "before").unwrap();
    let mut taker = Machine::opened(&bucket, true);
    assert!(keys(taker.db()).contains("before"));
    let error = insert(sleeper.db(), "asleep").expect_err("it was taken");
    assert!(is_displaced(&error), "{error}");
    // This holds however long it sleeps, and whatever was published and collected since.
    insert(taker.db(), "there").unwrap();
    taker.close().unwrap();
    let place = RemotePlace::new(bucket.counts.clone());
    for _ in 0..3 {
        let options = CollectOptions { grace: std::time::Duration::ZERO, dry_run: false };
        place.collect(&*fresh(), options, &mut |_| Ok(())).unwrap();
    }
    assert_eq!(bucket.keys("j/").len(), 1, "the seal stays, and nothing else");
    assert!(sleeper.db().sync().is_err());
    assert!(insert(sleeper.db(), "later").is_err());
    let last = Machine::opened(&bucket, true);
    let there = keys(last.db());
    assert!(there.contains("there") && !there.contains("later"), "{there:?}");
    let survey = place.survey(&*fresh()).unwrap();
    assert_eq!((survey.missing.len(), survey.unknown.objects), (0, 0));
}

#[test]
fn a_taken_store_has_what_arrives_before_the_seal_and_nothing_after_it() {
    // Another machine takes the store while a sync is in progress, after each of its requests.
    for stop in 0..40 {
        let (bucket, _) = published();
        let mut old = Machine::opened(&bucket, false);
        // The first of them is published, and the others are in the journal.
        let before = ["first", "second", "third"];
        before.iter().for_each(|key| insert(old.db(), key).unwrap());
        let gate = Arc::new(bucket::Gate::new(bucket.counts.clone(), stop));
        let store = kvdb::RemoteStore::new(gate.clone(), "fruit").unwrap();
        let taken = std::thread::scope(|scope| {
            let options = WriterOptions { label: "taker".into(), take: true };
            let device = Arc::new(MemoryDevice::new());
            let (own, at_end) = (device.clone(), gate.clone());
            let taker = scope.spawn(move || {
                let taken = store.writer_to(own, fresh(), &options).map(drop);
                at_end.open();
                taken
            });
            gate.wait();
            // The machine that takes over is stopped between two of its requests.
            let told = insert(old.db(), "meanwhile");
            let crashed = Arc::new(MemoryDevice::clone(&device));
            gate.open();
            taker.join().unwrap().unwrap();
            (device, crashed, told)
        });
        let (device, crashed, told) = taken;
        old.crash();
        let db = open_with(device, bucket.zones(), small()).unwrap();
        let there = keys(&db);
        assert!(before.iter().all(|key| there.contains(*key)), "{stop}: {there:?}");
        assert!(told.is_err() || there.contains("meanwhile"), "{stop}: an answer was wrong");
        // The machine had crashed there, and is started again.
        drop(db);
        let mut again = Machine { device: crashed, open: None };
        again.try_open(&bucket, true).unwrap();
        assert_eq!(keys(again.db()), there, "{stop}");
        if gate.was_passed() {
            assert!(stop > 3, "the taker makes requests");
            return;
        }
    }
    panic!("a taker that makes forty requests");
}

#[test]
fn callers_that_wait_at_the_same_time_share_an_object() {
    const THREADS: usize = 16;
    let (bucket, _) = published();
    let gate = Arc::new(Gate::new(bucket.counts.clone(), u64::MAX));
    let store = kvdb::RemoteStore::new(gate.clone(), "fruit").unwrap();
    let device = Arc::new(MemoryDevice::new());
    store.writer_to(device.clone(), fresh(), &WriterOptions::default()).unwrap();
    let zones = RemoteZones::new(gate.clone());
    let db = open_with(device, zones, small()).unwrap();
    let _publisher = sync_there(&db, db.publisher(&store).unwrap());
    insert(&db, "first").unwrap();
    let puts = bucket.puts();
    gate.stop_now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            scope.spawn(move || insert(db, &format!("k{thread}")).unwrap());
        }
        // The first of them is on its way, and all others have committed and wait.
        while keys(&db).len() <= THREADS {
            std::thread::yield_now();
        }
        gate.open();
    });
    let puts = bucket.puts() - puts;
    assert!((1..=3).contains(&puts), "{puts} objects for {THREADS} commits");
    let expected = keys(&db);
    assert_eq!(keys(Machine::opened(&bucket, true).db()), expected);
}

/// Returns how many syncs have returned, how many times a machine has opened the store, and how
/// many syncs have failed since another machine had it.
fn crash_and_take(seed: u64) -> [u64; 3] {
    let (mut told, mut replayed, mut displaced) = (0, 0, 0);
    let (bucket, _) = published();
    let mut random = Random::new(seed);
    let mut machines: Vec<Machine> = (0..3).map(|_| Machine::new()).collect();
    let mut synced: BTreeSet<String> = BTreeSet::new();
    for step in 0..80 {
        let i = random.below(3) as usize;
        let machine = &mut machines[i];
        let what = format!("seed {seed}, step {step}, machine {i}");
        if random.one_in(4) {
            let rates = Rates { lost_request: 5, lost_answer: 5, ..Rates::default() };
            bucket.faults.set_rates(rates);
        }
        if machine.open.is_none() {
            match machine.try_open(&bucket, random.one_in(2)) {
                Ok(()) => {
                    replayed += 1;
                    let there = keys(machine.db());
                    let lacks: Vec<_> = synced.difference(&there).collect();
                    assert!(lacks.is_empty(), "{what}: {lacks:?} are lost");
                }
                Err(Error::Unpublished(_)) => *machine = Machine::new(),
                Err(_) => {}
            }
            bucket.faults.set_rates(Rates::default());
            continue;
        }
        match random.below(10) {
            0 => machine.crash(),
            1 if machine.publish().is_ok() => {
                if machine.close().is_err() {
                    machine.open = None;
                }
            }
            2 => drop(machine.publish()),
            3 => drop(machine.db().snapshot(&format!("s{step}"))),
            _ => {
                let key = format!("{seed}-{step}");
                match insert(machine.db(), &key) {
                    Ok(()) => {
                        told += 1;
                        synced.insert(key);
                    }
                    Err(e) if is_displaced(&e) => {
                        displaced += 1;
                        machine.open = None;
                    }
                    Err(_) => {}
                }
            }
        }
        bucket.faults.set_rates(Rates::default());
    }
    machines.clear();
    let there = keys(Machine::opened(&bucket, true).db());
    let lacks: Vec<_> = synced.difference(&there).collect();
    assert!(lacks.is_empty(), "seed {seed}: {lacks:?} are lost");
    let survey = RemotePlace::new(bucket.counts.clone()).survey(&*fresh()).unwrap();
    assert_eq!((survey.missing.len(), survey.unknown.objects), (0, 0), "seed {seed}");
    [told, replayed, displaced]
}

#[test]
fn no_sync_is_lost_among_machines_that_crash_and_take_the_store_from_each_other() {
    let counts = [const { AtomicU64::new(0) }; 3];
    let is_usual = seeded::each("no sync is lost", 12, |seed| {
        for (sum, of_one) in counts.iter().zip(crash_and_take(seed)) {
            sum.fetch_add(of_one, Ordering::Relaxed);
        }
    });
    let [told, replayed, displaced] = counts.map(AtomicU64::into_inner);
    println!("{told} syncs, {replayed} openings, {displaced} displaced");
    let has_all = told > 120 && replayed > 60 && displaced > 5;
    assert!(!is_usual || has_all, "{told}, {replayed}, {displaced}");
}

#[test]
fn a_local_store_that_is_published_syncs_there_too() {
    let bucket = Bucket::new();
    let (db, mut random) = source(5);
    let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
    publisher.stay_open("here");
    let _publisher = sync_there(&db, publisher);
    change(&db, &mut random, 50);
    db.sync().unwrap();
    insert(&db, "word").unwrap();
    change(&db, &mut random, 50);
    db.sync().unwrap();
    let expected = all(&db);
    let taken = Machine::opened(&bucket, true);
    assert!(all(taken.db()) == expected);
    assert!(insert(&db, "later").is_err(), "it was taken");
}

#[test]
fn a_missing_or_damaged_object_of_the_journal_is_an_error_that_names_it() {
    let (bucket, _) = published();
    let mut lost = Machine::opened(&bucket, false);
    (0..4).for_each(|n| insert(lost.db(), &format!("k{n}")).unwrap());
    lost.crash();
    let mut journal = bucket.keys("j/");
    journal.sort();
    let [_, second, ..] = &journal[..] else { panic!("objects, not {journal:?}") };
    let whole = bucket.memory.get(second, objects::Part::Whole).unwrap().bytes;
    for at in [0, 13, 30, whole.len() / 2, whole.len() - 1] {
        let mut bad = whole.to_vec();
        bad[at] ^= 4;
        bucket.memory.put(second, bad.into(), objects::Condition::Always).unwrap();
        let error = Machine::new().try_open(&bucket, true).expect_err("it is damaged").to_string();
        assert!(error.contains(second.as_str()), "{at}: {error}");
    }
    bucket.memory.put(second, whole, objects::Condition::Always).unwrap();
    let next = Machine::opened(&bucket, true);
    assert!(keys(next.db()).contains("k3"));
}

#[test]
fn a_collector_keeps_the_commits_that_no_state_has() {
    let (bucket, _) = published();
    let mut lost = Machine::opened(&bucket, false);
    (0..4).for_each(|n| insert(lost.db(), &format!("k{n}")).unwrap());
    let collect = |wanted: usize| {
        for _ in 0..3 {
            let place = RemotePlace::new(bucket.counts.clone());
            let options = CollectOptions { grace: std::time::Duration::ZERO, dry_run: false };
            place.collect(&*fresh(), options, &mut |_| Ok(())).unwrap();
        }
        assert_eq!(bucket.keys("j/").len(), wanted);
    };
    // The first sync has published the store.
    collect(3);
    lost.crash();
    let next = Machine::opened(&bucket, true);
    let all: Vec<String> = (0..4).map(|n| format!("k{n}")).collect();
    assert!(all.iter().all(|key| keys(next.db()).contains(key)));
    collect(4);
    next.publish().unwrap();
    collect(1);
}

#[test]
fn more_than_the_tap_holds_is_published() {
    let (bucket, _) = published();
    let machine = Machine::opened(&bucket, false);
    let db = machine.db();
    insert(db, "first").unwrap();
    let words = db.dictionary("words").unwrap();
    let generation = || bucket.store("fruit").head().unwrap().unwrap().generation;
    let before = generation();
    // Small values, which lie in the journal.
    for n in 0..80 {
        let mut batch = Batch::new();
        (0..1000).for_each(|i| batch.put(words, format!("{n}-{i}"), vec![7; 500]));
        db.commit(batch, Durability::Buffered).unwrap();
    }
    insert(db, "last").unwrap();
    assert_eq!(generation(), before + 1, "it was published");
    insert(db, "after").unwrap();
    assert_eq!(generation(), before + 1, "and the journal goes on");
    let expected = keys(db);
    drop(machine);
    assert!(keys(Machine::opened(&bucket, true).db()) == expected);
}

#[test]
fn dictionaries_that_others_make_meanwhile_are_there_for_their_commits() {
    let (bucket, _) = published();
    let machine = Machine::opened(&bucket, false);
    insert(machine.db(), "first").unwrap();
    // Each one is a publication of all of them.
    const MADE: usize = 40;
    std::thread::scope(|scope| {
        let db = machine.db();
        let others = scope.spawn(move || {
            for n in 0..MADE {
                let new = db.create_dictionary(&format!("n{n}"), DictionaryOptions::default());
                db.put(new.unwrap(), b"key", b"value", Durability::Buffered).unwrap();
            }
        });
        for n in 0.. {
            insert(db, &format!("k{n}")).unwrap();
            if others.is_finished() {
                break;
            }
        }
    });
    insert(machine.db(), "last").unwrap();
    let expected = keys(machine.db());
    drop(machine);
    let taken = Machine::opened(&bucket, true);
    assert_eq!(keys(taken.db()), expected);
}

/// A place that loses a request to replace the head, once, without an answer.
#[derive(Debug)]
struct Lost {
    inner: Arc<dyn Objects>,
    /// Replacements of the head until that one; 0: none is lost.
    after: AtomicU64,
}

impl Objects for Lost {
    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.inner.get(key, part)
    }
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        let counts = |left: u64| left.checked_sub(1);
        if key.as_str().starts_with("m/")
            && self.after.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counts) == Ok(1)
        {
            let why = "no answer".into();
            return Err(ObjectsError::Unsure { key: key.to_string(), why });
        }
        self.inner.put(key, bytes, condition)
    }
    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.inner.delete(key)
    }
    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.inner.list(prefix, after)
    }
    fn place(&self) -> String {
        self.inner.place()
    }
}

// If nothing was changed, a head has the same state as the one before. When the request for the new
// head was lost, the old one was mistaken for it, so no head recorded where the journal of this
// machine is.
#[test]
fn a_lost_request_to_publish_what_is_published_already_is_made_again() {
    let (mut bucket, db) = published();
    insert(&db, "base").unwrap();
    push(&db, &bucket.store("fruit"));
    let lost = Lost { inner: bucket.memory.clone(), after: AtomicU64::new(0) };
    let lost = Arc::new(lost);
    bucket.counts = Arc::new(objects::CountObjects::new(lost.clone()));

    // The first publisher is done. From now on syncs wait for the place.
    let before = bucket.store("fruit").head().unwrap().unwrap();
    let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
    publisher.stay_open("a machine");
    let publisher = sync_there(&db, publisher);
    // The claim, and then the publication.
    lost.after.store(2, Ordering::Relaxed);
    publisher.lock().unwrap().publish(&mut |_| Ok(())).unwrap();
    assert_eq!(lost.after.load(Ordering::Relaxed), 0, "it was lost");
    let now = bucket.store("fruit").head().unwrap().unwrap();
    assert_eq!(now.state, before.state, "nothing was changed");
    insert(&db, "told").unwrap();
    let taken = Machine::opened(&bucket, true);
    assert_eq!(keys(taken.db()), BTreeSet::from(["base".into(), "told".into()]));
    assert!(now.generation > before.generation && now.journal.is_some(), "{now:?}");
}

#[test]
fn an_older_copy_of_the_file_does_not_go_on_without_what_the_journal_has() {
    let (bucket, _) = published();
    let machine = Machine::opened(&bucket, false);
    insert(machine.db(), "base").unwrap();
    machine.publish().unwrap();
    let older = Arc::new(MemoryDevice::clone(&machine.device));
    insert(machine.db(), "told").unwrap();
    drop(machine);
    // This is a virtual machine that is restored to yesterday's state.
    let mut back = Machine { device: older, open: None };
    let opened = back.try_open(&bucket, false);
    if opened.is_ok() && insert(back.db(), "later").is_ok() {
        back.publish().unwrap();
    }
    drop(back);
    let taken = Machine::opened(&bucket, true);
    assert!(keys(taken.db()).contains("told"), "{:?}", keys(taken.db()));
}

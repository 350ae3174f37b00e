//! Tests of first reads. A published state carries the bytes that are read first, as a rehearsal
//! has found them, so a store that is opened from it needs no request for them. Tuples that are
//! needed everywhere are fetched ahead of reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bucket::*;
use crate::model::*;
use bytes::Bytes;
use env::{Machine, Random, Simulated};
use kvdb::{Batch, Durability, Kvdb, OpenOptions, Publisher, RemoteZones};
use objects::{Condition, Key, Object, Objects, Page, Part, Rates, RoundObjects, Tag};
use zones::{MemoryDevice, Purpose};

const KEYS: u64 = 40_000;

/// Requests that are sent together arrive within this time, even on a machine with much to do.
const QUIET: Duration = Duration::from_millis(300);

fn key(n: u64) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

/// A store with many keys, and a publisher of it to the bucket that rehearses reads of a few.
fn rehearsed(bucket: &Bucket) -> (Kvdb, Publisher) {
    let (db, mut random) = source(1);
    let words = db.open_dictionary("words").unwrap();
    for n in 0..KEYS {
        words.insert(key(n), bytes(&mut random, 300)).unwrap();
    }
    let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
    publisher.rehearse(Box::new(read_some));
    (db, publisher)
}

fn publish(publisher: &mut Publisher) {
    publisher.publish(&mut |_| Ok(())).unwrap();
}

/// Reads a few keys far from each other, and the first ones.
fn read_some(db: &Kvdb) {
    let words = db.open_dictionary("words").unwrap();
    for n in [0, KEYS / 2, KEYS - 1] {
        assert!(words.get(key(n)).unwrap().is_some());
    }
    assert!(words.get("absent").unwrap().is_none());
    assert_eq!(db.view().scan(words.id(), b"", b"", 20).unwrap().len(), 20);
}

/// The requests for zones that `work` makes on a store in a new local file.
fn asked(bucket: &Bucket, work: impl FnOnce(&Kvdb)) -> u64 {
    let db = reader(&copied(&bucket.store("fruit"), 5), bucket);
    let before = bucket.gets();
    work(&db);
    bucket.gets() - before
}

#[test]
fn what_was_rehearsed_is_read_without_a_request() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    publish(&mut publisher);
    let before = bucket.gets();
    let device = copied(&bucket.store("fruit"), 5);
    let reader_of = || reader(&device, &bucket);
    read_some(&reader_of());
    assert_eq!(bucket.gets() - before, 2, "the head and the state");
    // Another opening of the same state fetches nothing either.
    read_some(&reader_of());
    assert_eq!(bucket.gets() - before, 2);
    assert!(asked(&bucket, |db| drop(contents(db).unwrap())) > 0);
    assert_eq!(all(&reader_of()), all(&db));

    // Without a rehearsal it takes requests.
    push(&db, &bucket.store("fruit"));
    assert!(asked(&bucket, read_some) > 2);
}

/// Reads keys from the whole range, and returns the requests for zones, by purpose.
fn read_all_over(bucket: &Bucket) -> [u64; Purpose::ALL.len()] {
    let db = reader(&copied(&bucket.store("fruit"), 5), bucket);
    let words = db.open_dictionary("words").unwrap();
    for n in (0..KEYS).step_by(1999) {
        assert!(words.get(key(n)).unwrap().is_some());
    }
    db.remote_stats().unwrap().gets
}

#[test]
fn a_small_index_is_read_without_a_request() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    db.compact(db.open_dictionary("words").unwrap().id()).unwrap();
    // Without a rehearsal.
    push(&db, &bucket.store("fruit"));
    assert!(read_all_over(&bucket)[Purpose::Index as usize] > 0);
    publisher.rehearse(Box::new(|_| {}));
    publish(&mut publisher);
    let gets = read_all_over(&bucket);
    assert_eq!(gets[Purpose::Index as usize], 0);
    assert!(gets[Purpose::Tuples as usize] > 0);
    assert_eq!(all(&reader(&copied(&bucket.store("fruit"), 6), &bucket)), all(&db));
}

#[test]
fn an_index_that_is_too_large_takes_no_room_from_other_first_reads() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    let words = db.open_dictionary("words").unwrap();
    let (mut random, mut word) = (Random::new(2), [0; 1500]);
    for first in (0..4 * KEYS).step_by(1000) {
        let mut some = Batch::new();
        for n in first..first + 1000 {
            random.fill(&mut word);
            some.put(words.id(), key(n), word.to_vec());
        }
        db.commit(some, Durability::Buffered).unwrap();
    }
    db.compact(words.id()).unwrap();
    publish(&mut publisher);
    let state = bucket.store("fruit").head().unwrap().unwrap().state.unwrap();
    assert!(state.object.is_none_or(|object| object.len < 384 << 10), "it has the index");
    assert_eq!(asked(&bucket, read_some), 0);
    assert!(read_all_over(&bucket)[Purpose::Index as usize] > 0);

    // The nodes above the leaf index nodes of such an index came with the state.
    let waits = || {
        let there = reader(&copied(&bucket.store("fruit"), 5), &bucket);
        assert!(there.open_dictionary("words").unwrap().get(key(KEYS)).unwrap().is_some());
        there.remote_stats().unwrap().waits
    };
    publisher.rehearse(Box::new(|_| {}));
    publish(&mut publisher);
    let with = waits();
    push(&db, &bucket.store("fruit"));
    let without = waits();
    assert!(with < without, "a point read waits {with} times where it waited {without} times");
}

#[test]
fn a_rehearsal_takes_no_more_along_than_there_is_room_for() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    publisher.rehearse(Box::new(|db| assert!(contents(db).is_err(), "there is no room for all")));
    publish(&mut publisher);
    let head = bucket.store("fruit").head().unwrap().unwrap();
    let len = head.state.unwrap().object.unwrap().len;
    assert!((64 << 10..600 << 10).contains(&len), "{len}");
    assert_eq!(all(&reader(&copied(&bucket.store("fruit"), 6), &bucket)), all(&db));
}

#[test]
fn a_rehearsal_changes_nothing() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    publisher.rehearse(Box::new(|db| {
        let words = db.open_dictionary("words").unwrap();
        db.put(words.id(), b"key", b"value", Durability::Synced).unwrap();
        words.remove_range(key(0)..key(KEYS / 2)).unwrap();
        db.open_dictionary("others").unwrap().insert("key", vec![7; 5 << 20]).unwrap();
        db.snapshot("rehearsed").unwrap();
        db.compact(words.id()).unwrap();
    }));
    publish(&mut publisher);
    assert_eq!(db.dictionaries().len(), 1);
    assert_eq!(contents(&db).unwrap()[&db.dictionaries()[0].id].len() as u64, KEYS);
    assert_eq!(all(&reader(&copied(&bucket.store("fruit"), 6), &bucket)), all(&db));
}

#[test]
fn a_follower_has_the_first_reads_of_the_state_that_it_shows() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    publish(&mut publisher);
    let device = copied(&bucket.store("fruit"), 5);
    let follows = reader(&device, &bucket);
    read_some(&follows);
    let mut follower = follows.follower(&bucket.store("fruit")).unwrap();
    let words = db.open_dictionary("words").unwrap();
    for round in 0..8 {
        let view = follows.view();
        let state = contents(&follows).unwrap();
        for n in [0, KEYS / 2, KEYS - 1] {
            words.insert(key(n), format!("round {round}")).unwrap();
        }
        db.compact(words.id()).unwrap();
        publish(&mut publisher);
        assert!(follower.follow().unwrap());
        let before = bucket.gets();
        read_some(&follows);
        assert_eq!(bucket.gets(), before, "round {round}");
        let first = follows.view().get(words.id(), &key(0)).unwrap();
        assert_eq!(first, Some(format!("round {round}").into()));
        // An older state reads its own bytes, whatever its addresses contain now.
        for (key, value) in &state[&words.id()] {
            let read = view.get(words.id(), key).unwrap();
            assert_eq!(read.as_deref(), Some(&value[..]), "round {round}");
        }
    }
    drop((follower, follows));
    assert_eq!(all(&reader(&device, &bucket)), all(&db));
}

#[test]
fn forks_and_readers_have_them_over_bad_networks() {
    let bucket = Bucket::new();
    let (db, mut publisher) = rehearsed(&bucket);
    let rates = Rates { lost_request: 5, lost_answer: 5, slow_down: 5, ..Rates::default() };
    bucket.faults.set_rates(rates);
    // An attempt may fail permanently.
    while publisher.publish(&mut |_| Ok(())).is_err() {}
    bucket.faults.set_rates(Rates::default());
    let device = forked(&bucket.store("fruit"), 9);
    let before = bucket.gets();
    let options = OpenOptions { remote: Some(bucket.zones()), ..small() };
    let (fork, found) = Kvdb::open(device.clone(), Arc::new(Simulated::new(91)), options).unwrap();
    assert!(found.clean, "there is nothing to recover: {found:?}");
    read_some(&fork);
    assert_eq!(bucket.gets(), before);
    let words = fork.open_dictionary("words").unwrap();
    words.insert(key(0), "of the fork").unwrap();
    fork.compact(words.id()).unwrap();
    assert_eq!(words.get(key(0)).unwrap().unwrap(), "of the fork");
    fork.close().unwrap();
    drop((words, fork));
    let again = open_with(device, bucket.zones(), small()).unwrap();
    let words = again.open_dictionary("words").unwrap();
    assert_eq!(words.get(key(0)).unwrap().unwrap(), "of the fork");
    assert_eq!(words.get(key(1)).unwrap(), db.view().get(words.id(), &key(1)).unwrap());
}

fn options_of_reader(bucket: &Bucket) -> OpenOptions {
    let remote = Some(RemoteZones::new(bucket.counts.clone() as Arc<dyn Objects>));
    OpenOptions { remote, read_only: true, memory: 16 << 20, ..OpenOptions::default() }
}

fn reader_with_threads(bucket: &Bucket) -> Kvdb {
    let device: Arc<MemoryDevice> = copied(&bucket.store("fruit"), 8);
    Kvdb::open(device, Arc::new(Machine::default()), options_of_reader(bucket)).unwrap().0
}

/// Opens a copy of that many keys with threads, and reads some all over, one after the other.
/// Returns the number of reads that waited, and of requests.
fn waits(bucket: &Bucket, keys: u64, prefetches: bool) -> (u64, u64) {
    let db = reader_with_threads(bucket);
    let words = db.open_dictionary("words").unwrap();
    if prefetches {
        db.prefetch(&[words.id()]);
    }
    for n in 0..KEYS {
        assert!(words.get(key(n * 7919 % keys)).unwrap().is_some());
    }
    let stats = db.remote_stats().unwrap();
    (stats.waits, stats.gets.iter().sum())
}

/// Makes each request take some milliseconds.
fn slow(bucket: &Bucket) {
    let longest_delay = Duration::from_millis(4);
    bucket.faults.set_rates(Rates { delay: 1, longest_delay, ..Rates::default() });
}

#[test]
fn a_small_dictionary_comes_as_a_whole_with_the_first_read_that_waits() {
    let bucket = Bucket::new();
    let (_db, mut publisher) = rehearsed(&bucket);
    publish(&mut publisher);
    slow(&bucket);
    let ((without, _), (with, gets)) = (waits(&bucket, KEYS, false), waits(&bucket, KEYS, true));
    assert!(2 * with <= without, "{with} waits where {without} were without it");
    assert!(gets <= 80, "{gets} requests");
}

#[test]
fn the_more_reads_have_waited_the_more_is_there_before_the_next() {
    let bucket = Bucket::new();
    let (source, mut random) = source(1);
    let words = source.open_dictionary("words").unwrap();
    // These are more than are fetched as a whole.
    (0..3 * KEYS).for_each(|n| words.insert(key(n), bytes(&mut random, 300)).unwrap());
    source.compact(words.id()).unwrap();
    push(&source, &bucket.store("fruit"));
    slow(&bucket);
    let (without, _) = waits(&bucket, 3 * KEYS, false);
    let (with, _) = waits(&bucket, 3 * KEYS, true);
    assert!(2 * with <= without, "{with} waits where {without} were without it");
}

#[test]
fn small_dictionaries_come_in_one_round_and_those_that_are_read_seldom_too() {
    let bucket = Bucket::new();
    let (source, mut random) = source(1);
    let often = source.open_dictionary("often").unwrap();
    let seldom = source.open_dictionary("seldom").unwrap();
    for n in 0..KEYS / 4 {
        often.insert(key(n), bytes(&mut random, 300)).unwrap();
        seldom.insert(key(n), bytes(&mut random, 100)).unwrap();
    }
    source.compact(often.id()).unwrap();
    source.compact(seldom.id()).unwrap();
    let mut publisher = source.publisher(&bucket.store("fruit")).unwrap();
    // The index comes with the state.
    publisher.rehearse(Box::new(|_| {}));
    publish(&mut publisher);
    let rounds_of = || {
        let device: Arc<MemoryDevice> = copied(&bucket.store("fruit"), 8);
        let rounds = Arc::new(RoundObjects::new(bucket.memory.clone(), QUIET));
        let remote = Some(RemoteZones::new(rounds.clone() as Arc<dyn Objects>));
        // Requests in flight have room for a quarter of the memory.
        let options = OpenOptions { remote, memory: 64 << 20, ..options_of_reader(&bucket) };
        let db = Kvdb::open(device, Arc::new(Machine::default()), options).unwrap().0;
        db.warm(&[often.id()], &[seldom.id()]);
        for dict in [often.id(), seldom.id()] {
            for n in (0..KEYS / 4).step_by(997) {
                assert!(db.get(dict, &key(n)).unwrap().is_some());
            }
        }
        rounds.rounds()
    };
    assert_eq!(rounds_of(), 1);
}

#[test]
fn a_follower_fetches_ahead_of_the_state_that_it_shows() {
    let bucket = Bucket::new();
    let (source, mut publisher) = rehearsed(&bucket);
    publish(&mut publisher);
    let db = reader_with_threads(&bucket);
    let words = db.open_dictionary("words").unwrap();
    db.prefetch(&[words.id()]);
    let mut follower = db.follower(&bucket.store("fruit")).unwrap();
    let mut random = env::Random::new(5);
    let all = source.open_dictionary("words").unwrap();
    (0..KEYS).for_each(|n| all.insert(key(n), bytes(&mut random, 300)).unwrap());
    source.compact(all.id()).unwrap();
    publish(&mut publisher);
    assert!(follower.follow().unwrap());
    let stats = || db.remote_stats().unwrap();
    // A few reads that wait let all of the newer state come.
    let (before, begun) = (stats().waits, std::time::Instant::now());
    for n in (0..KEYS).take_while(|_| stats().waits < before + 6) {
        assert!(words.get(key(n * 7919 % KEYS)).unwrap().is_some());
    }
    while stats().cached_bytes < KEYS * 300 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", stats());
        std::thread::yield_now();
    }
}

/// A place that delays prefetches and counts those in flight.
#[derive(Debug)]
struct SlowAhead(Arc<dyn Objects>, AtomicU64);

impl Objects for SlowAhead {
    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        if std::thread::current().name() != Some("kvdb-prefetch") {
            return self.0.get(key, part);
        }
        self.1.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        let got = self.0.get(key, part);
        self.1.fetch_sub(1, Ordering::SeqCst);
        got
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        self.0.put(key, bytes, condition)
    }

    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.0.list(prefix, after)
    }

    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.0.delete(key)
    }

    fn place(&self) -> String {
        self.0.place()
    }
}

#[test]
fn a_store_that_was_closed_is_free_whatever_was_fetched_ahead() {
    let bucket = Bucket::new();
    let (source, mut random) = source(1);
    let words = source.open_dictionary("words").unwrap();
    (0..3 * KEYS).for_each(|n| words.insert(key(n), bytes(&mut random, 300)).unwrap());
    source.compact(words.id()).unwrap();
    push(&source, &bucket.store("fruit"));
    let (mut rounds, mut closed_within_one) = (0, 0);
    while closed_within_one < 3 && rounds < 30 {
        rounds += 1;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy.kvfs");
        bucket.store("fruit").copy_to_path(&path).unwrap();
        let slow = Arc::new(SlowAhead(bucket.counts.clone(), AtomicU64::new(0)));
        let remote = Some(RemoteZones::new(slow.clone() as Arc<dyn Objects>));
        let options = OpenOptions { remote, memory: 4 << 20, ..options_of_reader(&bucket) };
        let db = Kvdb::open_path_with(&path, options.clone()).unwrap();
        let words = db.open_dictionary("words").unwrap();
        db.prefetch(&[words.id()]);
        for n in [3 * KEYS - 10, KEYS + 1000 * rounds] {
            assert!(words.get(key(n)).unwrap().is_some());
        }
        drop(words);
        closed_within_one += u32::from(slow.1.load(Ordering::SeqCst) > 0);
        db.close().unwrap();
        drop(db);
        Kvdb::open_path_with(&path, options).unwrap();
    }
    assert_eq!(closed_within_one, 3, "no request was under way");
}

#[test]
fn a_reader_that_follows_publishes_one_state_or_says_so() {
    let bucket = Bucket::new();
    let (source, mut publisher) = rehearsed(&bucket);
    publish(&mut publisher);
    let db = reader(&copied(&bucket.store("fruit"), 5), &bucket);
    let before = all(&db);
    let mut follower = db.follower(&bucket.store("fruit")).unwrap();
    let words = source.open_dictionary("words").unwrap();
    words.insert(key(0), "changed").unwrap();
    source.compact(words.id()).unwrap();
    publish(&mut publisher);
    let mut copies = db.publisher(&bucket.store("copy")).unwrap();
    let mut followed = false;
    let published = copies.publish(&mut |_| {
        followed |= follower.follow().unwrap();
        Ok(())
    });
    assert!(followed && published.unwrap_err().to_string().contains("newer state"));
    assert!(bucket.store("copy").head().unwrap().is_none_or(|head| head.state.is_none()));
    copies.publish(&mut |_| Ok(())).unwrap();
    let copy = all(&reader(&copied(&bucket.store("copy"), 6), &bucket));
    assert!(copy == all(&source) && copy != before);
}

//! Tests of a read-only store that follows what is published. It shows each published state as a
//! whole, as one commit, and views of earlier states stay valid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::bucket::*;
use crate::model::*;
use crate::seeded;
use env::{Random, Simulated};
use kvdb::{CommittedKey, Durability, Error, Follower, Kvdb, OpenOptions, RemoteZones, View};
use objects::Rates;
use zones::MemoryDevice;

/// The tuples of a view, by dictionary.
fn of_view(view: &View) -> Model {
    let tuples = |id| view.scan(id, b"", b"", usize::MAX).unwrap().into_iter();
    let tuples = |id| tuples(id).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    view.dictionaries().iter().map(|d| (d.id, tuples(d.id))).collect()
}

/// Publishes the store with first reads.
fn push(db: &Kvdb, to: &kvdb::RemoteStore) -> kvdb::PushStats {
    let mut publisher = db.publisher(to).unwrap();
    publisher.rehearse(Box::new(|db| {
        let view = db.view();
        for info in view.dictionaries() {
            // The cache may be full.
            let some = view.scan(info.id, b"", b"", 3).unwrap_or_default();
            some.iter().for_each(|(key, _)| drop(view.get(info.id, key)));
        }
    }));
    publisher.publish(&mut |_| Ok(())).unwrap()
}

fn follower(db: &Kvdb, bucket: &Bucket) -> Follower {
    db.follower(&bucket.store("fruit")).unwrap()
}

/// A reader in a file of its own, with room for this many bytes of zones.
fn reader_with(device: &Arc<MemoryDevice>, bucket: &Bucket, cache_bytes: u64) -> Kvdb {
    let options = OpenOptions { read_only: true, ..small() };
    let zones = RemoteZones { cache_bytes, ..bucket.zones() };
    open_with(device.clone(), zones, options).unwrap()
}

/// Changes other than commits to a dictionary: snapshots and branches are made and dropped.
fn change_states(db: &Kvdb, random: &mut Random) {
    let (snapshots, step) = (db.snapshots(), random.number());
    match random.below(6) {
        0 => db.snapshot(&format!("s{step}")).unwrap(),
        1 => {
            if let Some(s) = snapshots.get(random.below(4) as usize) {
                let name = s.name.clone();
                db.drop_snapshot(&name).unwrap();
                // The same name now refers to a different object.
                db.snapshot(&name).unwrap();
            }
        }
        2 => snapshots.first().iter().for_each(|s| db.drop_snapshot(&s.name).unwrap()),
        3 => {
            if let Some(s) = snapshots.last() {
                db.clone_snapshot(&s.name, &format!("b{step}")).unwrap();
            }
        }
        4 => db.branches().first().iter().for_each(|b| db.drop_branch(&b.name).unwrap()),
        _ => {
            let extra = db.open_dictionary(&format!("d{}", random.below(4))).unwrap();
            extra.insert("key", bytes(random, 3000)).unwrap();
            if random.one_in(3) {
                db.drop_dictionary(extra.id()).unwrap();
            }
        }
    }
}

/// Returns how many views of older states were read, and how many requests it took to read a file
/// again and one with nothing.
fn follow_states(seed: u64) -> [u64; 3] {
    let (mut crossed, mut reused, mut fresh) = (0, 0, 0);
    let bucket = Bucket::new();
    let (source, mut random) = source(seed);
    change(&source, &mut random, 60);
    push(&source, &bucket.store("fruit"));
    let mut device = copied(&bucket.store("fruit"), 50 + seed);
    let cache_bytes = if seed.is_multiple_of(3) { 64 << 10 } else { u64::MAX };
    let mut db = reader_with(&device, &bucket, cache_bytes);
    let mut follows = follower(&db, &bucket);
    let mut views: Vec<(View, Model, u64)> = Vec::new();
    for step in 0..30 {
        let times = 1 + random.below(60);
        change(&source, &mut random, times);
        (0..random.below(3)).for_each(|_| change_states(&source, &mut random));
        if random.one_in(4) {
            dictionaries(&source).unwrap().iter().for_each(|d| source.compact(*d).unwrap());
        }
        if random.one_in(2) {
            views.push((db.view(), of_view(&db.view()), step));
            for snapshot in db.snapshots().iter().take(1) {
                let view = db.open_snapshot(&snapshot.name).unwrap();
                views.push((view.clone(), of_view(&view), step));
            }
        }
        let stats = push(&source, &bucket.store("fruit"));
        assert!(follows.follow().unwrap(), "seed {seed}, step {step}");
        assert!(!follows.follow().unwrap(), "there is nothing newer");
        assert_eq!(follows.copy().generation, stats.generation);
        assert!(all(&db) == all(&source), "seed {seed}, step {step}");
        for (view, then, at) in &views {
            assert!(of_view(view) == *then, "seed {seed}, of step {at} in step {step}");
            crossed += 1;
        }
        if views.len() > 4 {
            views.remove(random.below(views.len() as u64) as usize);
        }
        if random.one_in(6) {
            // The file is closed and opened again with the same state, and has the fetched data.
            views.clear();
            let before = all(&db);
            drop((follows, db));
            if random.one_in(2) {
                device = Arc::new(MemoryDevice::clone(&device));
            }
            let asked = bucket.gets();
            let world = Arc::new(Simulated::new(random.number()));
            bucket.store("fruit").refresh(device.clone(), world).unwrap();
            assert_eq!(bucket.gets() - asked, 1, "the head alone: the file is of this state");
            db = reader_with(&device, &bucket, cache_bytes);
            assert!(all(&db) == before, "seed {seed}, step {step}");
            if cache_bytes == u64::MAX {
                // Blocks in memory outlive the last part of a zone that has grown.
                reused += bucket.gets() - asked - 1;
                let asked = bucket.gets();
                all(&reader(&copied(&bucket.store("fruit"), 70), &bucket));
                fresh += bucket.gets() - asked - 2;
            }
            follows = follower(&db, &bucket);
        }
    }
    [crossed, reused, fresh]
}

#[test]
fn each_state_is_shown_whole_and_views_of_the_ones_before_stay() {
    let counts = [const { AtomicU64::new(0) }; 3];
    let is_usual = seeded::each("each state is shown whole", 6, |seed| {
        for (sum, of_one) in counts.iter().zip(follow_states(seed)) {
            sum.fetch_add(of_one, Ordering::Relaxed);
        }
    });
    let [crossed, reused, fresh] = counts.map(AtomicU64::into_inner);
    assert!(!is_usual || crossed > 200, "{crossed} views of states before were read");
    let is_less = reused * 5 < fresh;
    assert!(!is_usual || is_less, "{reused} requests, and {fresh} of files with nothing");
}

#[test]
fn asking_costs_one_request_and_no_bytes_while_nothing_is_published() {
    let bucket = Bucket::new();
    let (db, mut random) = source(8);
    change(&db, &mut random, 50);
    let to = bucket.store("fruit");
    let mut publisher = db.publisher(&to).unwrap();
    publisher.publish(&mut |_| Ok(())).unwrap();
    let reader = reader(&copied(&to, 9), &bucket);
    let mut follows = follower(&reader, &bucket);
    assert!(!follows.follow().unwrap());
    for _ in 0..3 {
        let before = bucket.counts.counts().get;
        assert!(!follows.follow().unwrap());
        let after = bucket.counts.counts().get;
        assert_eq!((after.requests - before.requests, after.bytes - before.bytes), (1, 0));
    }
    change(&db, &mut random, 5);
    publisher.publish(&mut |_| Ok(())).unwrap();
    // A state that was fetched but not shown still counts as new.
    assert!(follows.look().unwrap().is_some());
    assert!(follows.follow().unwrap());
    assert!(all(&reader) == all(&db));
    assert!(!follows.follow().unwrap());
}

#[test]
fn readers_of_the_feed_are_told_which_keys_have_changed() {
    let bucket = Bucket::new();
    let (source, _) = source(1);
    let fruit = source.open_dictionary("fruit").unwrap();
    fruit.insert("apple", "red").unwrap();
    fruit.insert("pear", "green").unwrap();
    push(&source, &bucket.store("fruit"));
    let db = reader(&copied(&bucket.store("fruit"), 2), &bucket);
    let mut follows = follower(&db, &bucket);
    let start = db.follow_commits(1 << 20);
    fruit.insert("apple", "rotten").unwrap();
    fruit.insert("fig", "blue").unwrap();
    fruit.remove("pear").unwrap();
    push(&source, &bucket.store("fruit"));
    assert!(follows.follow().unwrap());
    let recent = db.commits_since(start, 100).expect("it is followed since");
    let [commit] = &recent.commits[..] else { panic!("one commit, not {:?}", recent.commits) };
    let key = |change: CommittedKey| (fruit.id(), change);
    let expected = [
        CommittedKey::Put("apple".into()),
        CommittedKey::Put("fig".into()),
        CommittedKey::Delete("pear".into()),
    ];
    assert_eq!(commit.changes, expected.map(key));
    // Merges change no key.
    dictionaries(&source).unwrap().iter().for_each(|d| source.compact(*d).unwrap());
    push(&source, &bucket.store("fruit"));
    assert!(follows.follow().unwrap());
    assert!(db.commits_since(recent.up_to, 100).expect("followed").commits.is_empty());
    // A very long list of changes is not returned, and the caller learns that.
    for n in 0..70_000 {
        source.put(fruit.id(), format!("k{n}").as_bytes(), b"", Durability::Buffered).unwrap();
    }
    push(&source, &bucket.store("fruit"));
    assert!(follows.follow().unwrap());
    assert!(db.commits_since(recent.up_to, 100).is_none());
    assert!(all(&db) == all(&source));
}

#[test]
fn a_feed_that_began_during_a_look_lacks_nothing() {
    let bucket = Bucket::new();
    let (source, _) = source(1);
    let fruit = source.open_dictionary("fruit").unwrap();
    push(&source, &bucket.store("fruit"));
    let db = reader(&copied(&bucket.store("fruit"), 2), &bucket);
    let mut follows = follower(&db, &bucket);
    fruit.insert("apple", "red").unwrap();
    push(&source, &bucket.store("fruit"));
    let mut newer = follows.look().unwrap().expect("a newer state");
    let start = db.follow_commits(1 << 20);
    newer.show().unwrap();
    follows.keep(newer).unwrap();
    let told = db.commits_since(start, 100);
    assert!(told.is_none_or(|recent| !recent.commits.is_empty()), "a change is missed");
}

#[test]
fn what_cannot_follow_says_so() {
    let bucket = Bucket::new();
    let store = bucket.store("fruit");
    let (source, mut random) = source(3);
    change(&source, &mut random, 50);
    push(&source, &store);
    let refused = |db: &Kvdb| {
        let error = db.follower(&store).err().expect("it cannot follow");
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    };
    refused(&source);
    refused(&open_with(forked(&store, 4), bucket.zones(), small()).unwrap());
    // A copy of another store, and a file that is open for writing, are refused as well.
    push(&source_of("other"), &bucket.store("other"));
    refused(&reader(&copied(&bucket.store("other"), 5), &bucket));
    let device = copied(&store, 6);
    refused(&open_with(device, bucket.zones(), small()).unwrap());

    let db = reader(&copied(&store, 7), &bucket);
    let mut follows = follower(&db, &bucket);
    let before = all(&db);
    store.unpublish(&Simulated::new(9)).unwrap();
    assert!(matches!(follows.follow(), Err(Error::NoStore(_))));
    push(&source_of("fruit"), &store);
    assert!(matches!(follows.follow(), Err(Error::Invalid(_))), "another store by now");
    assert!(all(&db) == before, "what is shown stays");
}

fn source_of(key: &str) -> Kvdb {
    let (db, _) = source(key.len() as u64 + 100);
    db.open_dictionary("d").unwrap().insert(key.to_owned(), "there").unwrap();
    db
}

#[test]
fn a_store_that_went_back_is_not_followed() {
    let bucket = Bucket::new();
    let store = bucket.store("fruit");
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(Simulated::new(1)), small()).unwrap();
    db.open_dictionary("d").unwrap().insert("a", "1").unwrap();
    push(&db, &store);
    db.close().unwrap();
    drop(db);
    let older = Arc::new(MemoryDevice::clone(&device));
    let open = |device: &Arc<MemoryDevice>, world| {
        Kvdb::open(device.clone(), Arc::new(Simulated::new(world)), small()).unwrap().0
    };
    let db = open(&device, 2);
    db.open_dictionary("d").unwrap().insert("b", "2").unwrap();
    push(&db, &store);
    let reader = reader(&copied(&store, 3), &bucket);
    let mut follows = follower(&reader, &bucket);
    push(&open(&older, 4), &store);
    let error = follows.follow().expect_err("it has less than this one").to_string();
    assert!(error.contains("older state"), "{error}");
    assert!(reader.open_dictionary("d").unwrap().get("b").unwrap().is_some());
}

#[test]
fn an_answer_that_was_damaged_on_its_way_is_asked_for_once_more() {
    let bucket = Bucket::new();
    let (source, mut random) = source(3);
    change(&source, &mut random, 200);
    push(&source, &bucket.store("fruit"));
    let mut failed = 0;
    // Most bits of an answer are not read.
    for seed in 0..200 {
        if seed >= 10 && failed > 0 {
            break;
        }
        let db = reader(&copied(&bucket.store("fruit"), 60 + seed), &bucket);
        bucket.faults.set_rates(Rates { flipped: 1, ..Rates::default() });
        let ids: Vec<_> = db.dictionaries().into_iter().map(|info| info.id).collect();
        let read = |id| db.view().scan(id, b"", b"", usize::MAX);
        failed += ids.iter().filter(|id| read(**id).is_err()).count();
        // A damaged answer does not stay.
        bucket.faults.set_rates(Rates::default());
        assert!(all(&db) == all(&source));
    }
    assert!(failed > 0, "no bit that is read was wrong");
}

#[test]
fn views_of_older_states_read_what_the_local_file_has_no_more() {
    let bucket = Bucket::new();
    let (source, mut random) = source(4);
    let fruit = source.open_dictionary("fruit").unwrap();
    let mut write = |keys: u64| {
        for key in 0..keys {
            let value = bytes(&mut random, 200_000);
            source.put(fruit.id(), &key.to_be_bytes(), &value, Durability::Buffered).unwrap();
        }
        source.compact(fruit.id()).unwrap();
        push(&source, &bucket.store("fruit"));
    };
    write(100);
    let db = reader(&copied(&bucket.store("fruit"), 5), &bucket);
    let mut follows = follower(&db, &bucket);
    // The values are read only at the end, when their zones have been reused.
    let mut views = Vec::new();
    for _ in 0..5 {
        views.push((db.view(), contents(&source).unwrap()));
        write(100);
        assert!(follows.follow().unwrap());
    }
    for (n, (view, then)) in views.iter().enumerate() {
        assert!(of_view(view) == *then, "the view of state {n}");
    }
    assert!(all(&db) == all(&source));
}

#[test]
fn a_crash_at_any_write_while_it_follows_leaves_a_file_that_comes_back() {
    let bucket = Bucket::new();
    let (source, mut random) = source(8);
    change(&source, &mut random, 100);
    push(&source, &bucket.store("fruit"));
    let device = copied(&bucket.store("fruit"), 9);
    let db = reader(&device, &bucket);
    all(&db);
    let mut follows = follower(&db, &bucket);
    for step in 0..12 {
        change(&source, &mut random, 40);
        push(&source, &bucket.store("fruit"));
        let mut crashed = vec![Arc::new(MemoryDevice::clone(&device))];
        let mut newer = follows.look().unwrap().expect("a newer state");
        crashed.push(Arc::new(MemoryDevice::clone(&device)));
        newer.show().unwrap();
        all(&db);
        crashed.push(Arc::new(MemoryDevice::clone(&device)));
        follows.keep(newer).unwrap();
        crashed.push(Arc::new(MemoryDevice::clone(&device)));
        for (n, device) in crashed.iter().enumerate() {
            let world = Arc::new(Simulated::new(1000 * step + n as u64));
            bucket.store("fruit").refresh(device.clone(), world).unwrap();
            let again = reader(device, &bucket);
            assert!(all(&again) == all(&source), "step {step}, crash {n}");
        }
    }
}

/// Readers of other threads, which read all the time: each view is one state, in which all keys
/// have the same value, and what a search finds never goes back.
#[test]
fn readers_see_one_state_after_the_other_while_it_follows() {
    const KEYS: u64 = 200;
    let bucket = Bucket::new();
    let (source, _) = source(5);
    let fruit = source.open_dictionary("fruit").unwrap();
    let write = |n: u64| {
        let mut batch = kvdb::Batch::new();
        for key in 0..KEYS {
            let value = [n.to_be_bytes().to_vec(), vec![7; 2000]].concat();
            batch.put(fruit.id(), format!("{key:03}"), value);
        }
        source.commit(batch, Durability::Buffered).unwrap();
        push(&source, &bucket.store("fruit"));
    };
    write(0);
    let db = reader(&copied(&bucket.store("fruit"), 6), &bucket);
    let mut follows = follower(&db, &bucket);
    let ended = AtomicBool::new(false);
    let number = |value: &[u8]| u64::from_be_bytes(value[..8].try_into().unwrap());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (db, ended) = (&db, &ended);
                let id = fruit.id();
                scope.spawn(move || {
                    let (mut last, mut seen) = (0, BTreeMap::new());
                    while !ended.load(Ordering::SeqCst) {
                        let view = db.view();
                        let all = view.scan(id, b"", b"", usize::MAX).unwrap();
                        assert_eq!(all.len() as u64, KEYS);
                        let of_view = number(&all[0].1);
                        assert!(all.iter().all(|(_, value)| number(value) == of_view));
                        assert!(of_view >= last, "it went back");
                        *seen.entry(of_view).or_insert(0) += 1;
                        let found = db.get(id, format!("{reader:03}").as_bytes()).unwrap();
                        last = number(&found.expect("there"));
                        assert!(last >= of_view, "it went back");
                    }
                    seen.len()
                })
            })
            .collect();
        for n in 1..40 {
            write(n);
            assert!(follows.follow().unwrap());
        }
        ended.store(true, Ordering::SeqCst);
        let seen: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(seen > 6, "{seen} states were seen");
    });
}

#[test]
fn it_follows_when_the_place_answers_again() {
    let bucket = Bucket::new();
    let (source, mut random) = source(11);
    change(&source, &mut random, 60);
    push(&source, &bucket.store("fruit"));
    let db = reader(&copied(&bucket.store("fruit"), 12), &bucket);
    let mut follows = follower(&db, &bucket);
    let mut failures = 0;
    for step in 0..20 {
        let before = all(&db);
        change(&source, &mut random, 20);
        push(&source, &bucket.store("fruit"));
        bucket.faults.set_rates(Rates { flipped: 8, ..Rates::default() });
        let followed = follows.follow();
        bucket.faults.set_rates(Rates::default());
        match followed {
            Ok(true) => {}
            Ok(false) => panic!("there is a newer state"),
            Err(_) => {
                failures += 1;
                assert!(all(&db) == before, "step {step}");
                assert!(follows.follow().unwrap(), "step {step}");
            }
        }
        assert!(all(&db) == all(&source), "step {step}");
    }
    assert!(failures > 0, "no answer was damaged");
}

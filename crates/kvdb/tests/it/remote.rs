//! Tests of stores in object storage. Exactly the content of the store is published, and each part
//! is published once. A local file that refers to it reads what it needs, waits when it must, and
//! never returns wrong bytes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bucket::*;
use crate::model::*;
use crate::seeded;
use bytes::Bytes;
use env::{Machine, Random, Simulated};
use kvdb::{
    Durability, Error, ForkOptions, Kvdb, LocalCopy, OpenOptions, RemoteStore, RemoteZones,
    WriterOptions,
};
use objects::{Condition, Key, MemoryObjects, Objects, Part, Rates};
use zones::{Device, MemoryDevice, Purpose};

#[test]
fn what_is_published_is_what_was_there() {
    for seed in 0..20 {
        let bucket = Bucket::new();
        let (db, mut random) = source(seed);
        change(&db, &mut random, 150);
        db.snapshot("monday").unwrap();
        change(&db, &mut random, 50);
        db.clone_snapshot("monday", "attempt").unwrap();
        change(&db, &mut random, 50);
        let was = all(&db);
        push(&db, &bucket.store("fruit"));
        // Later changes are not in the publication.
        change(&db, &mut random, 20);

        let device = copied(&bucket.store("fruit"), seed);
        assert_eq!(all(&reader(&device, &bucket)), was, "seed {seed}");
        let said = LocalCopy::of(&*device).unwrap().unwrap();
        assert_eq!((said.name.as_str(), said.generation), ("fruit", 1));
        assert_eq!(LocalCopy::of(&MemoryDevice::clone(&device)).unwrap(), Some(said));
    }
}

#[test]
fn a_state_is_there_after_two_requests_and_read_as_it_is_needed() {
    let bucket = Bucket::new();
    let (db, _) = source(1);
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(5);
    for i in 0..2_000 {
        words.insert(format!("{i:08}"), bytes(&mut random, 8_000)).unwrap();
    }
    // If the head contains the state, reading the head is the first request.
    push(&db, &bucket.store("small"));
    let before = bucket.gets();
    copied(&bucket.store("small"), 2);
    assert_eq!(bucket.gets() - before, 1, "the head");

    let stats = push(&db, &bucket.store("words").with_state_in_head(0));
    assert!(stats.bytes > 8 << 20, "{stats:?}");
    let before = bucket.gets();
    let device = copied(&bucket.store("words"), 2);
    let options = OpenOptions { read_only: true, ..small() };
    let copy = open_with(device, bucket.zones(), options).unwrap();
    assert_eq!(bucket.gets() - before, 2, "the head and the state");
    let got = copy.open_dictionary("words").unwrap().get("00001234").unwrap();
    assert_eq!(got, words.get("00001234").unwrap());
    let after = bucket.counts.counts().get;
    assert!(after.requests - before <= 2 + 6, "{after:?}");
    assert!(after.bytes < stats.bytes / 4, "{after:?} of {stats:?}");
}

#[test]
fn only_what_is_new_is_published() {
    let bucket = Bucket::new();
    let (db, mut random) = source(3);
    change(&db, &mut random, 300);
    let first = push(&db, &bucket.store("fruit"));
    assert!(first.objects > 0 && first.bytes >= first.live_bytes / 2, "{first:?}");

    let same = push(&db, &bucket.store("fruit"));
    assert_eq!((same.generation, same.objects, same.bytes), (2, 0, 0));

    change(&db, &mut random, 2);
    let puts = bucket.puts();
    let little = push(&db, &bucket.store("fruit"));
    assert!(little.objects <= 1, "{little:?}");
    assert!(bucket.puts() - puts <= 4, "a pack, the state, and the head twice");
    let was = all(&db);
    let device = copied(&bucket.store("fruit"), 4);
    assert_eq!(all(&reader(&device, &bucket)), was);
}

#[test]
fn many_publications_of_a_store_that_changes_are_each_what_was_there() {
    for seed in 0..6 {
        let bucket = Bucket::new();
        let (db, mut random) = source(seed);
        let mut copies = Vec::new();
        for round in 0..25 {
            let times = 1 + random.below(40);
            change(&db, &mut random, times);
            if random.one_in(5) {
                let _ = db.drop_snapshot("kept");
                db.snapshot("kept").unwrap();
            }
            push(&db, &bucket.store("fruit"));
            let was = all(&db);
            let device = copied(&bucket.store("fruit"), seed * 100 + round);
            // The copies are read after all rounds: later publications must not change what they
            // show.
            copies.push((round, device, was));
        }
        for (round, device, was) in copies {
            assert_eq!(all(&reader(&device, &bucket)), was, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn a_publication_that_was_cut_off_goes_on_where_it_was() {
    let bucket = Bucket::new();
    let env = Arc::new(Simulated::new(5));
    let db = create(Arc::new(MemoryDevice::new()), env.clone(), small()).unwrap();
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(5);
    let mut value = vec![0; 1 << 20];
    for i in 0..150 {
        random.fill(&mut value);
        words.insert(format!("{i:08}"), value.clone()).unwrap();
    }
    // Minutes pass, and then the network is disconnected.
    let cut = db.push(&bucket.store("words"), &mut |now| {
        env.advance(Duration::from_secs(5));
        let far = now.bytes >= 100 << 20;
        if far { Err(Error::Invalid("cut".into())) } else { Ok(()) }
    });
    assert!(cut.is_err());
    assert!(bucket.store("words").head().unwrap().unwrap().state.is_none());
    let nothing = bucket.store("words").copy_to(Arc::new(MemoryDevice::new()), env.clone());
    assert!(nothing.unwrap_err().to_string().contains("there is no store"));

    let whole = push(&db, &bucket.store("words"));
    assert!(whole.bytes < 100 << 20, "64 MiB and more were there: {whole:?}");
    assert!(bucket.keys("p/").is_empty(), "the note is gone: {:?}", bucket.keys("p/"));
    let device = copied(&bucket.store("words"), 6);
    assert_eq!(all(&reader(&device, &bucket)), all(&db));
}

#[test]
fn publications_under_faults_are_whole_or_not_there() {
    let failures = AtomicU64::new(0);
    seeded::each("publications under faults", 4, |seed| {
        let mut failed = 0;
        let bucket = Bucket::new();
        let (db, mut random) = source(seed);
        let mut published = None;
        for round in 0..6 {
            change(&db, &mut random, 30);
            let rates = Rates {
                lost_request: 6,
                lost_answer: 6,
                late_request: 9,
                conflict: 6,
                too_many: 9,
                truncated: 9,
                flipped: 9,
                ..Rates::default()
            };
            bucket.faults.set_rates(rates);
            let pushed = db.push(&bucket.store("fruit"), &mut |_| Ok(()));
            bucket.faults.set_rates(Rates::default());
            match pushed {
                Ok(_) => published = Some(all(&db)),
                Err(_) => failed += 1,
            }
            let Some(was) = &published else { continue };
            let device = copied(&bucket.store("fruit"), seed * 10 + round);
            let there = all(&reader(&device, &bucket));
            // A publication whose last answer was lost may nevertheless have succeeded.
            assert!(there == *was || there == all(&db), "seed {seed}, round {round}");
        }
        failures.fetch_add(failed, Ordering::Relaxed);
    });
    println!("{} publications failed", failures.into_inner());
}

#[test]
fn a_name_belongs_to_one_store_and_the_last_to_begin_publishes() {
    let bucket = Bucket::new();
    let (db, mut random) = source(8);
    change(&db, &mut random, 20);
    push(&db, &bucket.store("fruit"));
    let (other, _) = source(9);
    let refused = other.push(&bucket.store("fruit"), &mut |_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("another store"), "{refused}");
    push(&other, &bucket.store("other"));

    change(&db, &mut random, 20);
    let mut inner = None;
    let outer = db.push(&bucket.store("fruit"), &mut |_| {
        if inner.is_none() {
            inner = Some(push(&db, &bucket.store("fruit")));
        }
        Ok(())
    });
    assert!(matches!(outer, Err(Error::Overtaken(_))), "{outer:?}");
    assert_eq!(inner.unwrap().generation, 2);
    let device = copied(&bucket.store("fruit"), 1);
    assert_eq!(all(&reader(&device, &bucket)), all(&db));
}

#[test]
fn a_copy_is_a_store_of_its_own_that_shares_what_was_there() {
    let bucket = Bucket::new();
    let (db, mut random) = source(11);
    change(&db, &mut random, 300);
    let base = push(&db, &bucket.store("fruit"));
    let was = all(&db);

    let device = forked(&bucket.store("fruit"), 12);
    let fork = open_with(device.clone(), bucket.zones(), small()).unwrap();
    let mut others = Random::new(13);
    change(&fork, &mut others, 200);
    fork.sync().unwrap();
    let changed = all(&fork);
    drop(fork);
    let fork = open_with(device.clone(), bucket.zones(), small()).unwrap();
    assert_eq!(all(&fork), changed);
    let report = fork.stats();
    assert!(report.io.total().write_bytes > 0);

    // The fork has a name of its own, and shared data is not written again.
    let refused = fork.push(&bucket.store("fruit"), &mut |_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("another store"), "{refused}");
    let pushed = push(&fork, &bucket.store("attempt"));
    assert!(pushed.zones > 0);
    let of_attempt = forked(&bucket.store("attempt"), 14);
    assert_eq!(all(&reader(&of_attempt, &bucket)), changed);
    // A fork of the fork.
    let grandchild = open_with(of_attempt, bucket.zones(), small()).unwrap();
    change(&grandchild, &mut others, 50);
    push(&grandchild, &bucket.store("attempt2"));
    let device = copied(&bucket.store("attempt2"), 15);
    assert_eq!(all(&reader(&device, &bucket)), all(&grandchild));

    let device = copied(&bucket.store("fruit"), 16);
    assert_eq!(all(&reader(&device, &bucket)), was, "the parent is as it was");
    assert!(base.zones > 0);
}

#[test]
fn what_was_read_is_here_after_a_close_and_fetched_again_after_a_crash() {
    let bucket = Bucket::new();
    let (db, mut random) = source(21);
    change(&db, &mut random, 300);
    push(&db, &bucket.store("fruit"));
    let was = all(&db);

    let device = forked(&bucket.store("fruit"), 22);
    assert_eq!(all(&reader(&device, &bucket)), was);
    let gets = bucket.gets();
    assert_eq!(all(&reader(&device, &bucket)), was);
    assert_eq!(bucket.gets(), gets, "all of it is here");

    let open = reader(&device, &bucket);
    let crashed = Arc::new(MemoryDevice::clone(&device));
    drop(open);
    assert_eq!(all(&reader(&crashed, &bucket)), was);
    assert!(bucket.gets() > gets, "nothing counts as here");
}

#[test]
fn a_small_cache_is_enough_and_stays_small() {
    let bucket = Bucket::new();
    let (db, _) = source(31);
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(5);
    for i in 0..6_000 {
        words.insert(format!("{i:08}"), bytes(&mut random, 8_000)).unwrap();
    }
    push(&db, &bucket.store("words"));
    let was = contents(&db).unwrap();
    let zones = RemoteZones { cache_bytes: 16 << 20, ..bucket.zones() };
    let device = copied(&bucket.store("words"), 32);
    let options = OpenOptions { read_only: true, ..small() };
    let copy = open_with(device.clone(), zones, options).unwrap();
    for _ in 0..2 {
        assert_eq!(contents(&copy).unwrap(), was);
    }
    // Whole zones are evicted, and those in use by reads stay.
    assert!(device.allocated() < 48 << 20, "{} bytes", device.allocated());
    let words = copy.open_dictionary("words").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (words, was) = (&words, &was);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let tuples = &was[&words.id()];
                for _ in 0..300 {
                    let key = format!("{:08}", random.below(6_000));
                    let got = words.get(&key).unwrap();
                    assert_eq!(got.as_deref(), tuples.get(key.as_bytes()).map(|v| &v[..]));
                }
            });
        }
    });
}

#[test]
fn reads_wait_while_the_place_is_not_to_be_reached_and_go_on_by_themselves() {
    let bucket = Bucket::new();
    let (db, mut random) = source(41);
    change(&db, &mut random, 100);
    push(&db, &bucket.store("fruit"));
    let was = all(&db);
    let device = copied(&bucket.store("fruit"), 42);
    let copy = reader(&device, &bucket);
    bucket.faults.set_outage(true);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| all(&copy));
        // The read has failed once, and waits.
        while bucket.counts.counts().get.failed == 0 {
            std::thread::yield_now();
        }
        assert!(!reading.is_finished());
        bucket.faults.set_outage(false);
        assert_eq!(reading.join().unwrap(), was);
    });

    // The wait is bounded. Then the read fails, and the next read tries again.
    let impatient = RemoteZones { timeout: Duration::from_millis(60), ..bucket.zones() };
    let device = copied(&bucket.store("fruit"), 43);
    let options = OpenOptions { read_only: true, ..small() };
    let copy = open_with(device, impatient, options).unwrap();
    bucket.faults.set_outage(true);
    let failed = contents(&copy).unwrap_err();
    assert!(matches!(failed, Error::Io(_)), "{failed:?}");
    bucket.faults.set_outage(false);
    assert_eq!(all(&copy), was);
}

#[test]
fn an_object_that_is_missing_cut_short_or_flipped_is_damage_and_never_a_wrong_answer() {
    let bucket = Bucket::new();
    let (db, mut random) = source(51);
    change(&db, &mut random, 300);
    push(&db, &bucket.store("fruit"));
    let was = contents(&db).unwrap();
    for key in bucket.keys("z/") {
        let whole = bucket.memory.get(&key, Part::Whole).unwrap().bytes;
        let put = |bytes: Bytes| bucket.memory.put(&key, bytes, Condition::Always).unwrap();
        for harm in 0..3 {
            match harm {
                0 => bucket.memory.delete(&key).unwrap(),
                1 => _ = put(whole.slice(..whole.len() / 2)),
                _ => {
                    let mut bad = whole.to_vec();
                    (0..bad.len()).step_by(1000).for_each(|at| bad[at] ^= 1);
                    put(bad.into());
                }
            }
            let device = copied(&bucket.store("fruit"), 52);
            let copy = reader(&device, &bucket);
            match contents(&copy) {
                Ok(read) => assert_eq!(read, was, "{key}, {harm}"),
                Err(Error::Corrupt(why)) => assert!(!why.is_empty()),
                Err(other) => panic!("{key}, {harm}: {other:?}"),
            }
            put(whole.clone());
        }
    }
}

#[test]
fn a_damaged_head_or_state_is_said_so_and_the_next_publication_goes_on() {
    let bucket = Bucket::new();
    let (db, mut random) = source(61);
    change(&db, &mut random, 100);
    push(&db, &bucket.store("fruit").with_state_in_head(0));
    let state = bucket.keys("c/").remove(0);
    let whole = bucket.memory.get(&state, Part::Whole).unwrap().bytes;
    bucket.memory.put(&state, whole.slice(..10), Condition::Always).unwrap();
    let copy = || {
        bucket.store("fruit").copy_to(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()))
    };
    let error = copy().unwrap_err().to_string();
    assert!(error.contains("is not the one that the head names"), "{error}");
    bucket.memory.delete(&state).unwrap();
    let error = copy().unwrap_err().to_string();
    assert!(error.contains("is missing"), "{error}");
    push(&db, &bucket.store("fruit"));
    copy().unwrap();

    let head = Key::new("m/fruit/head").unwrap();
    bucket.memory.put(&head, Bytes::from_static(b"noise"), Condition::Always).unwrap();
    assert!(matches!(copy(), Err(Error::Corrupt(_))));
    let refused = db.push(&bucket.store("fruit"), &mut |_| Ok(()));
    assert!(matches!(refused, Err(Error::Corrupt(_))), "a head is not replaced unread");
}

#[test]
fn a_local_file_is_not_opened_without_its_place() {
    let bucket = Bucket::new();
    let (db, mut random) = source(71);
    change(&db, &mut random, 50);
    push(&db, &bucket.store("fruit"));
    let device = copied(&bucket.store("fruit"), 72);
    let refused = Kvdb::open(device.clone(), Arc::new(Simulated::new(1)), small());
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("object storage"), "{error}");
    // If the place lacks the zones of the store, reading fails.
    let elsewhere = RemoteZones::new(Arc::new(MemoryObjects::new()));
    let options = OpenOptions { read_only: true, ..small() };
    let copy = open_with(device, elsewhere, options).unwrap();
    assert!(matches!(contents(&copy), Err(Error::Corrupt(_))));
    for name in ["", ".hidden", "a/b", "a b", &"x".repeat(101)] {
        assert!(RemoteStore::new(bucket.counts.clone(), name).is_err(), "{name:?}");
    }
}

#[test]
fn a_checkpoint_of_a_copy_has_everything_itself() {
    let bucket = Bucket::new();
    let (db, mut random) = source(81);
    change(&db, &mut random, 200);
    push(&db, &bucket.store("fruit"));
    let device = copied(&bucket.store("fruit"), 82);
    let copy = reader(&device, &bucket);
    let whole = Arc::new(MemoryDevice::new());
    copy.checkpoint_to(whole.clone()).unwrap();
    let own = Kvdb::open(whole, Arc::new(Simulated::new(1)), small()).unwrap().0;
    assert_eq!(all(&own), all(&db));
}

#[test]
fn a_local_file_follows_the_store_and_keeps_what_did_not_change() {
    let bucket = Bucket::new();
    let (db, mut random) = source(91);
    let words = db.open_dictionary("words").unwrap();
    for i in 0..1_000 {
        words.insert(format!("{i:08}"), bytes(&mut random, 8_000)).unwrap();
    }
    push(&db, &bucket.store("words"));
    let device = copied(&bucket.store("words"), 92);
    assert_eq!(all(&reader(&device, &bucket)), all(&db));
    let fetched = bucket.counts.counts().get.bytes;
    for round in 0..3 {
        words.insert(format!("new{round}"), "x").unwrap();
        push(&db, &bucket.store("words"));
        let env = Arc::new(Simulated::new(93 + round));
        let copy = bucket.store("words").refresh(device.clone(), env.clone()).unwrap();
        assert_eq!(copy.generation, 2 + round);
        let again = bucket.store("words").refresh(device.clone(), env).unwrap();
        assert_eq!(again, copy, "it is the newest");
        let before = bucket.counts.counts().get.bytes;
        assert_eq!(all(&reader(&device, &bucket)), all(&db));
        let more = bucket.counts.counts().get.bytes - before;
        assert!(more < fetched / 3, "{more} bytes after {fetched} at first");
    }
    let report = kvdb::check_with(device, Some(&bucket.zones()), &mut |_, _| {});
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_store_that_is_full_is_published_and_read_elsewhere() {
    let bucket = Bucket::new();
    let options = kvdb::CreateOptions {
        capacity: Some(20 * zones::ZONE_SIZE),
        reserve_zones: 4,
        open: small(),
        ..Default::default()
    };
    let device = Arc::new(MemoryDevice::new());
    let db = Kvdb::create(device, Arc::new(Simulated::new(3)), options).unwrap();
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(5);
    let mut value = vec![0; 100_000];
    let full = (0..10_000).find(|i| {
        random.fill(&mut value);
        words.insert(format!("{i:08}"), value.clone()).is_err()
    });
    assert!(full.is_some_and(|n| n > 500), "{full:?}");
    push(&db, &bucket.store("full"));
    let device = copied(&bucket.store("full"), 4);
    assert_eq!(all(&reader(&device, &bucket)), all(&db));
    let fork = open_with(device, bucket.zones(), small()).unwrap();
    fork.open_dictionary("words").unwrap().insert("more", value).unwrap();
}

/// Zones in object storage are never free in a fork, so moving their remaining data would take
/// space and free none.
#[test]
fn a_fork_does_not_move_what_it_took_over() {
    let bucket = Bucket::new();
    let (db, _) = source(101);
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(5);
    for i in 0..6_000 {
        words.insert(format!("{i:08}"), bytes(&mut random, 8_000)).unwrap();
    }
    push(&db, &bucket.store("words"));
    let device = forked(&bucket.store("words"), 102);
    let fork = open_with(device, bucket.zones(), small()).unwrap();
    let words = fork.open_dictionary("words").unwrap();
    for i in (0..6_000).filter(|i| i % 8 != 0) {
        words.remove(format!("{i:08}")).unwrap();
    }
    fork.compact(words.id()).unwrap();
    let left = contents(&fork).unwrap();
    let written = || fork.stats().io.total().write_bytes;
    let before = written();
    fork.defragment(kvdb::DefragOptions::default()).unwrap();
    assert_eq!(fork.defrag_progress().bytes_moved, 0, "{:?}", fork.defrag_progress());
    assert!(written() - before < 1 << 20, "{} bytes", written() - before);
    assert_eq!(contents(&fork).unwrap(), left);
}

/// Zones that came from one place do not exist in another one.
#[test]
fn a_fork_that_is_published_elsewhere_is_whole_there() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| -> Arc<dyn Objects> {
        Arc::new(objects::DirectoryObjects::create(folder.path().join(name)).unwrap())
    };
    let (db, mut random) = source(111);
    change(&db, &mut random, 200);
    let (here, there) = (place("here"), place("there"));
    push(&db, &RemoteStore::new(here.clone(), "fruit").unwrap());
    let device = forked(&RemoteStore::new(here.clone(), "fruit").unwrap(), 112);
    let fork = open_with(device, RemoteZones::new(here.clone()), small()).unwrap();
    change(&fork, &mut random, 20);
    push(&fork, &RemoteStore::new(there.clone(), "fruit").unwrap());
    let was = all(&fork);
    drop(fork);
    std::fs::remove_dir_all(folder.path().join("here")).unwrap();
    let device = copied(&RemoteStore::new(there.clone(), "fruit").unwrap(), 113);
    let copy = open_with(device, RemoteZones::new(there), small()).unwrap();
    assert_eq!(all(&copy), was);
}

#[test]
fn values_of_zeros_are_published_and_stay() {
    let bucket = Bucket::new();
    let (db, _) = source(121);
    let zeros = db.open_dictionary("zeros").unwrap();
    for i in 0..40 {
        zeros.insert(format!("{i:08}"), vec![0; 1 << 20]).unwrap();
    }
    push(&db, &bucket.store("zeros"));
    let device = copied(&bucket.store("zeros"), 122);
    let fork = open_with(device.clone(), bucket.zones(), small()).unwrap();
    let other = fork.open_dictionary("other").unwrap();
    for i in 0..40 {
        other.insert(format!("{i:08}"), vec![7; 1 << 20]).unwrap();
    }
    fork.flush().unwrap();
    drop(other);
    drop(fork);
    let fork = open_with(device, bucket.zones(), small()).unwrap();
    let zeros = fork.open_dictionary("zeros").unwrap();
    for i in 0..40 {
        assert_eq!(zeros.get(format!("{i:08}")).unwrap().unwrap(), vec![0; 1 << 20], "{i}");
    }
}

#[test]
fn a_full_disk_has_fetched_parts_given_up() {
    let bucket = Bucket::new();
    let (db, _) = source(131);
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(5);
    let mut value = vec![0; 100_000];
    for i in 0..600 {
        random.fill(&mut value);
        words.insert(format!("{i:08}"), value.clone()).unwrap();
    }
    push(&db, &bucket.store("words"));
    let was = contents(&db).unwrap();
    // A disk that has room for less than half of that.
    let disk = Arc::new(Small { memory: MemoryDevice::new(), most: 40 << 20 });
    bucket.store("words").copy_to(disk.clone(), Arc::new(Simulated::new(1))).unwrap();
    let options = OpenOptions { read_only: true, ..small() };
    let copy = open_with(disk.clone(), bucket.zones(), options).unwrap();
    for _ in 0..2 {
        assert_eq!(contents(&copy).unwrap(), was);
    }
    assert!(disk.memory.allocated() <= 40 << 20);
}

/// A device of a host that has space for this many of its bytes.
struct Small {
    memory: MemoryDevice,
    most: u64,
}

impl Device for Small {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        if self.memory.allocated() + buf.len() as u64 > self.most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.memory.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.memory.grow(new_len)
    }
    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        self.memory.lengthen(new_len)
    }
}

#[test]
fn a_copy_that_nobody_keeps_is_published_whole_and_a_fork_shares_while_it_is_registered() {
    let bucket = Bucket::new();
    let (db, mut random) = source(130);
    change(&db, &mut random, 300);
    let base = push(&db, &bucket.store("fruit"));
    let was = all(&db);

    // A cache of a mount, whose source may be deleted at any time.
    let cache = open_with(copied(&bucket.store("fruit"), 131), bucket.zones(), small()).unwrap();
    let whole = push(&cache, &bucket.store("of-cache"));
    assert!(whole.bytes >= base.live_bytes, "{whole:?} of {base:?}");

    let fork_device = forked(&bucket.store("fruit"), 132);
    let id = LocalCopy::of(&*fork_device).unwrap().unwrap().fork.unwrap();
    let fork = open_with(fork_device, bucket.zones(), small()).unwrap();
    let shared = push(&fork, &bucket.store("of-fork"));
    assert_eq!(shared.bytes, 0, "{shared:?}");
    assert!(bucket.store("fruit").drop_fork(id).unwrap());
    let whole = push(&fork, &bucket.store("of-fork"));
    assert!(whole.bytes >= base.live_bytes, "{whole:?} of {base:?}");

    // A registration that is valid for an hour, by the clock of the place.
    let device = Arc::new(MemoryDevice::new());
    let lifetime = Some(Duration::from_secs(3600));
    let options = ForkOptions { lifetime, ..ForkOptions::default() };
    let env = Arc::new(Simulated::new(133));
    bucket.store("fruit").fork_to(device.clone(), env, &options).unwrap();
    let fork = open_with(device, bucket.zones(), small()).unwrap();
    assert_eq!(push(&fork, &bucket.store("of-hour")).bytes, 0);

    // Unshared data does not depend on the store from which the fork came.
    bucket.store("fruit").unpublish(&Simulated::new(134)).unwrap();
    for name in ["of-cache", "of-fork"] {
        let device = copied(&bucket.store(name), 135);
        assert_eq!(all(&reader(&device, &bucket)), was, "{name}");
    }
}

#[test]
fn a_writer_writes_to_none_of_the_zones_that_it_took_over() {
    let bucket = Bucket::new();
    let (source, mut random) = source(21);
    let fill = |db: &Kvdb, random: &mut Random, keys: u64| {
        let words = db.open_dictionary("words").unwrap();
        for key in 0..keys {
            let value = bytes(random, 100_000);
            db.put(words.id(), &key.to_be_bytes(), &value, Durability::Buffered).unwrap();
        }
        db.compact(words.id()).unwrap();
    };
    fill(&source, &mut random, 400);
    push(&source, &bucket.store("fruit"));
    let device = Arc::new(MemoryDevice::new());
    let options = WriterOptions::default();
    let world = Arc::new(Simulated::new(22));
    bucket.store("fruit").writer_to(device.clone(), world, &options).unwrap();
    let writer = open_with(device.clone(), bucket.zones(), small()).unwrap();
    // From here on nothing refers to the data that it took over.
    writer.drop_dictionary(writer.dictionary("words").unwrap()).unwrap();
    fill(&writer, &mut random, 400);
    let expected = all(&writer);
    writer.close().unwrap();
    drop(writer);
    let again = open_with(device, bucket.zones(), small()).unwrap();
    assert!(all(&again) == expected);
}

#[test]
fn what_was_fetched_is_noted_by_a_close_also_where_views_are_held() {
    let bucket = Bucket::new();
    let (db, mut random) = source(77);
    change(&db, &mut random, 40);
    let words = db.open_dictionary("words").unwrap();
    for n in 0..20_000u32 {
        words.insert(n.to_be_bytes().to_vec(), bytes(&mut random, 300)).unwrap();
    }
    push(&db, &bucket.store("fruit"));
    let device = copied(&bucket.store("fruit"), 78);
    let first = reader(&device, &bucket);
    let dict = dictionaries(&db).unwrap()[0];
    let scan = |view: &kvdb::View, dict| view.scan(dict, b"", b"", usize::MAX).unwrap();
    let expected = scan(&first.view(), dict);
    let (view, mut follower) = (first.view(), first.follower(&bucket.store("fruit")).unwrap());
    first.close().unwrap();
    // Parts that are fetched from here on are not kept, since the list of parts is written.
    let after_close = device.allocated();
    for info in db.dictionaries() {
        assert!(scan(&view, info.id) == scan(&db.view(), info.id));
    }
    assert_eq!(device.allocated(), after_close);
    change(&db, &mut random, 1);
    push(&db, &bucket.store("fruit"));
    assert!(follower.follow().is_err(), "it was closed");
    let before = bucket.gets();
    let second = reader(&device, &bucket);
    assert!(scan(&second.view(), dict) == expected);
    assert_eq!(bucket.gets(), before, "it was fetched before the close");
    drop((view, follower));
}

//! Tests of a publisher, which publishes a store repeatedly. Each publication is complete, and data
//! that was not written since the last one is neither read nor uploaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bucket::*;
use crate::model::*;
use env::{Random, Simulated};
use kvdb::{Error, Kvdb, Publisher, PushStats};
use objects::{Objects, Rates};
use zones::{MemoryDevice, ZONE_SIZE};

fn publish(publisher: &mut Publisher) -> PushStats {
    publisher.publish(&mut |_| Ok(())).unwrap()
}

fn compact_all(db: &Kvdb) {
    dictionaries(db).unwrap().iter().for_each(|&dict| db.compact(dict).unwrap());
}

/// Fails unless the newest published state equals the store.
fn assert_is_there(db: &Kvdb, bucket: &Bucket, name: &str, seed: u64) {
    let device = copied(&bucket.store(name), seed);
    assert_eq!(all(&reader(&device, bucket)), all(db), "seed {seed}");
}

#[test]
fn each_publication_has_what_was_there_whatever_was_done_between_them() {
    let seeds = std::env::var("KVFS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    for seed in 0..seeds {
        let bucket = Bucket::new();
        let (db, mut random) = source(seed);
        let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
        let mut failed = 0;
        for round in 0..25 {
            let times = 1 + random.below(40);
            change(&db, &mut random, times);
            match random.below(6) {
                0 => {
                    let _ = db.drop_snapshot("kept");
                    db.snapshot("kept").unwrap();
                }
                // Zones are freed, and written again.
                1 => compact_all(&db),
                2 => db.defragment(kvdb::DefragOptions::default()).map(drop).unwrap(),
                3 => {
                    let conflict = Rates { lost_request: 9, lost_answer: 20, ..Rates::default() };
                    bucket.faults.set_rates(conflict);
                    failed += u32::from(publisher.publish(&mut |_| Ok(())).is_err());
                    bucket.faults.set_rates(Rates::default());
                }
                4 => {
                    // The publisher has written some of its zones by then.
                    let after = random.below(6);
                    let mut looked = 0;
                    let cut = publisher.publish(&mut |_| {
                        looked += 1;
                        if looked > after { Err(Error::Invalid("cut".into())) } else { Ok(()) }
                    });
                    failed += u32::from(cut.is_err());
                }
                _ => {}
            }
            let stats = publish(&mut publisher);
            assert!(stats.zones > 0, "seed {seed}, round {round}");
            assert_is_there(&db, &bucket, "fruit", seed * 100 + round);
        }
        println!("seed {seed}: {failed} publications failed between");
    }
}

#[test]
fn zones_that_were_not_written_are_not_read_again() {
    let bucket = Bucket::new();
    let (db, mut random) = source(1);
    let words = db.open_dictionary("words").unwrap();
    for i in 0..100 {
        words.insert(format!("{i:08}"), bytes(&mut random, 1 << 20)).unwrap();
    }
    let mut publisher = db.publisher(&bucket.store("words")).unwrap();
    let first = publish(&mut publisher);
    let read = |db: &Kvdb| db.stats().io.total().read_bytes;
    let before = read(&db);
    for i in 0..20 {
        words.insert(format!("{i:08}"), format!("little {i}")).unwrap();
        let (puts, gets) = (bucket.puts(), bucket.gets());
        publish(&mut publisher);
        assert!(bucket.puts() - puts <= 2, "a pack, and the head with the changes to the state");
        assert_eq!(bucket.gets() - gets, 0, "the claim is kept");
    }
    let each = (read(&db) - before) / 20;
    assert!(first.zones > 12, "{first:?}");
    assert!(each <= 4 * ZONE_SIZE, "{each} bytes were read for each publication");
    assert_is_there(&db, &bucket, "words", 1);

    // A new publisher does not know what another process has published in the meantime, so it reads
    // everything.
    drop(publisher);
    let before = read(&db);
    publish(&mut db.publisher(&bucket.store("words")).unwrap());
    assert!(read(&db) - before > 8 * ZONE_SIZE);
}

#[test]
fn an_object_with_a_state_that_is_damaged_there_is_replaced_by_the_next_claim() {
    let bucket = Bucket::new();
    let (db, mut random) = source(4);
    change(&db, &mut random, 100);
    // Changes fit into a head, and a state does not.
    let to = bucket.store("fruit").with_state_in_head(300);
    let mut publisher = db.publisher(&to).unwrap();
    publish(&mut publisher);
    let object = bucket.keys("c/").remove(0);
    let is_changed = || {
        let state = to.head().unwrap().unwrap().state.unwrap();
        state.changes.is_some() && state.object.is_some_and(|named| named.key == object)
    };
    assert!(!is_changed());
    db.open_dictionary("fruit").unwrap().insert("a", "little").unwrap();
    publish(&mut publisher);
    assert!(is_changed(), "{:?}", to.head());
    assert_is_there(&db, &bucket, "fruit", 5);

    bucket.memory.delete(&object).unwrap();
    let elsewhere = bucket.store("fruit");
    let copied = elsewhere.copy_to(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(6)));
    assert!(matches!(copied, Err(Error::Corrupt(_))));
    // The same happens after an hour, or with the publisher of another process.
    publisher.take();
    publish(&mut publisher);
    assert!(!is_changed());
    assert_is_there(&db, &bucket, "fruit", 7);
}

#[test]
fn states_that_follow_each_other_are_read_as_they_were_published_whatever_the_head_has() {
    for (seed, in_head) in [0, 200, 600, 2_000, 32 << 10].into_iter().enumerate() {
        let bucket = Bucket::new();
        let (db, mut random) = source(40 + seed as u64);
        let to = bucket.store("fruit").with_state_in_head(in_head);
        let mut publisher = db.publisher(&to).unwrap();
        let (mut whole, mut changed) = (0, 0);
        for round in 0..30 {
            let times = 1 + random.below(40) * u64::from(random.one_in(3));
            change(&db, &mut random, times);
            if random.one_in(8) {
                publisher = db.publisher(&to).unwrap();
            }
            publish(&mut publisher);
            let state = to.head().unwrap().unwrap().state.unwrap();
            changed += u32::from(state.changes.is_some() && state.object.is_some());
            whole += u32::from(state.object.is_none());
            assert_is_there(&db, &bucket, "fruit", seed as u64 * 100 + round);
        }
        match in_head {
            0 => assert_eq!((whole, changed), (0, 0)),
            600 => assert!(changed > 5, "{changed} of 30 were changes"),
            32_768 => assert_eq!(whole, 30),
            _ => {}
        }
    }
}

/// Ends the writers, also where an assertion fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn publications_during_writes_miss_nothing_of_what_was_written_before() {
    let bucket = Bucket::new();
    let (db, mut random) = source(2);
    let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (db, done) = (db.clone(), &done);
            scope.spawn(move || {
                let words = db.open_dictionary("words").unwrap();
                let mut random = Random::new(thread);
                let mut count = 0;
                while !done.load(Ordering::Relaxed) {
                    let key = format!("{thread}/{:03}", random.below(100));
                    let len = random.below(20_000) as usize;
                    words.insert(key, bytes(&mut random, len)).unwrap();
                    count += 1;
                    words.insert(format!("{thread}/count"), format!("{count}")).unwrap();
                }
            });
        }
        let _ends = Ends(&done);
        let words = db.open_dictionary("words").unwrap();
        for round in 0..15 {
            let key = format!("round/{round}");
            words.insert(key.clone(), bytes(&mut random, 30_000)).unwrap();
            publish(&mut publisher);
            let device = copied(&bucket.store("fruit"), 100 + round);
            let copy = reader(&device, &bucket);
            let there = copy.open_dictionary("words").unwrap();
            assert_eq!(there.get(&key).unwrap(), words.get(&key).unwrap());
            // Every byte of it is checked as it is read.
            assert!(all(&copy).values().map(|model| model.len()).sum::<usize>() > 0);
        }
    });
    publish(&mut publisher);
    assert_is_there(&db, &bucket, "fruit", 1);
}

#[test]
fn a_publication_is_due_after_a_change_and_not_after_what_the_store_does_by_itself() {
    let bucket = Bucket::new();
    let (db, mut random) = source(3);
    let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
    assert!(publisher.is_due(), "nothing is there");
    let mut rests = |what: &str, db: &Kvdb| {
        assert!(publisher.is_due(), "after {what}");
        publish(&mut publisher);
        assert!(!publisher.is_due(), "after the publication of {what}");
        compact_all(db);
        db.sync().unwrap();
        let requests = (bucket.gets(), bucket.puts());
        assert!(!publisher.is_due(), "after merges that follow {what}");
        assert_eq!((bucket.gets(), bucket.puts()), requests);
    };
    change(&db, &mut random, 50);
    rests("commits", &db);
    db.snapshot("monday").unwrap();
    rests("a snapshot", &db);
    db.clone_snapshot("monday", "branch").unwrap();
    rests("a clone", &db);
    db.limit_branch("branch", Some(1 << 30)).unwrap();
    rests("a limit", &db);
    db.open_dictionary("empty").unwrap();
    rests("a dictionary", &db);
    db.drop_branch("branch").unwrap();
    rests("the end of a clone", &db);
    db.drop_snapshot("monday").unwrap();
    rests("the end of a snapshot", &db);
    assert_is_there(&db, &bucket, "fruit", 1);
}

#[test]
fn who_was_overtaken_says_so_and_takes_the_right_back_when_told_to() {
    let bucket = Bucket::new();
    let (db, mut random) = source(4);
    change(&db, &mut random, 50);
    let mut publisher = db.publisher(&bucket.store("fruit")).unwrap();
    publish(&mut publisher);
    change(&db, &mut random, 50);
    let other = publish(&mut db.publisher(&bucket.store("fruit")).unwrap());
    assert_eq!(other.generation, 2);
    change(&db, &mut random, 50);
    let overtaken = publisher.publish(&mut |_| Ok(())).unwrap_err();
    assert!(matches!(overtaken, Error::Overtaken(_)), "{overtaken}");
    assert!(publisher.is_due());
    let still = publisher.publish(&mut |_| Ok(())).unwrap_err();
    assert!(matches!(still, Error::Overtaken(_)), "{still}");
    publisher.take();
    assert_eq!(publish(&mut publisher).generation, 3);
    assert_is_there(&db, &bucket, "fruit", 1);
}

#[test]
fn a_note_of_a_publication_that_was_overtaken_takes_nothing_back() {
    let bucket = Bucket::new();
    let env = Arc::new(env::Simulated::new(5));
    let db = create(Arc::new(MemoryDevice::new()), env.clone(), small()).unwrap();
    let words = db.open_dictionary("words").unwrap();
    words.insert("a", "b").unwrap();
    let mut publisher = db.publisher(&bucket.store("words")).unwrap();
    publish(&mut publisher);
    let mut other = db.publisher(&bucket.store("words")).unwrap();
    assert!(other.publish(&mut |_| Err(Error::Invalid("cut".into()))).is_err());
    let epoch = || bucket.store("words").head().unwrap().unwrap().epoch;
    let claimed = epoch();
    // Enough bytes that the publisher notes its progress.
    let mut random = Random::new(5);
    for i in 0..100 {
        words.insert(format!("{i:08}"), bytes(&mut random, 1 << 20)).unwrap();
    }
    let overtaken = publisher.publish(&mut |_| {
        env.advance(std::time::Duration::from_secs(5));
        Ok(())
    });
    assert!(matches!(overtaken, Err(Error::Overtaken(_))), "{overtaken:?}");
    assert_eq!(epoch(), claimed);
    assert_eq!(publish(&mut other).generation, 2);
    assert_is_there(&db, &bucket, "words", 5);
}

#[test]
fn what_a_copy_of_the_store_has_written_is_not_taken_for_what_lies_here() {
    // Everything is rewritten until zones have new content at the same addresses.
    for rounds in 1..4 {
        a_copy_is_cut_off_after(rounds);
    }
}

fn a_copy_is_cut_off_after(rounds: u64) {
    let bucket = Bucket::new();
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone(), Arc::new(env::Simulated::new(6)), small()).unwrap();
    let words = db.open_dictionary("words").unwrap();
    let mut random = Random::new(6);
    let mut fill = |db: &Kvdb| {
        let words = db.open_dictionary("words").unwrap();
        for i in 0..120 {
            words.insert(format!("{i:08}"), bytes(&mut random, 1 << 20)).unwrap();
        }
        db.compact(words.id()).unwrap();
        db.sync().unwrap();
    };
    fill(&db);
    let copy = Arc::new(MemoryDevice::clone(&device));
    let clock = Arc::new(env::Simulated::new(7));
    let (twin, _) = Kvdb::open(copy, clock.clone(), small()).unwrap();

    let mut publisher = db.publisher(&bucket.store("words")).unwrap();
    publish(&mut publisher);
    // The twin is cut off after it has noted what it has written.
    (0..rounds).for_each(|_| fill(&twin));
    let cut = twin.push(&bucket.store("words"), &mut |now| {
        clock.advance(std::time::Duration::from_secs(5));
        if now.bytes > 110 << 20 { Err(Error::Invalid("cut".into())) } else { Ok(()) }
    });
    assert!(cut.is_err());
    let head = bucket.store("words").head().unwrap().unwrap();
    assert!(head.pending.is_some(), "it has noted what it has written");
    publisher.take();
    words.insert("a", "little").unwrap();
    publish(&mut publisher);
    assert_is_there(&db, &bucket, "words", rounds);
}

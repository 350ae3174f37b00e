//! Tests of online defragmentation. It frees all space that it can, changes no result of a read,
//! and makes no caller wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::{contents, create, small};
use env::{Machine, Random, Simulated};
use kvdb::{
    Batch, CreateOptions, DefragOptions, DictionaryId, DictionaryOptions, Durability, Kvdb,
    OpenOptions,
};
use zones::{MemoryDevice, ZONE_SIZE};

/// The paper's load (§4.4), small: files of pages, written at random places and appended to, at a
/// small threshold.
fn fragmented(db: &Kvdb, seed: u64) -> DictionaryId {
    let d = db
        .create_dictionary("pages", DictionaryOptions { stitch_at: 0, ..Default::default() })
        .unwrap();
    let mut random = Random::new(seed);
    let mut lengths = [0u64; 40];
    for _ in 0..120 {
        let mut batch = Batch::new();
        for _ in 0..10 {
            let file = random.below(40);
            let (begin, count) = match random.one_in(2) {
                true => (lengths[file as usize], 1 + random.below(8)),
                false => (random.below(lengths[file as usize] + 1), 1 + random.below(3)),
            };
            for page in begin..begin + count {
                let mut key = file.to_be_bytes().to_vec();
                key.extend_from_slice(&page.to_be_bytes());
                batch.put(d, key, vec![random.below(256) as u8; 16 << 10]);
            }
            lengths[file as usize] = lengths[file as usize].max(begin + count);
        }
        db.commit(batch, Durability::Buffered).unwrap();
    }
    // Deletes some files.
    let mut batch = Batch::new();
    for file in (0..40u64).step_by(4) {
        batch.delete_range(d, file.to_be_bytes().to_vec(), (file + 1).to_be_bytes().to_vec());
    }
    db.commit(batch, Durability::Buffered).unwrap();
    db.compact(d).unwrap();
    d
}

fn threaded(open: OpenOptions) -> Kvdb {
    let options = CreateOptions { open, reserve_zones: 4, ..CreateOptions::default() };
    Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), options).unwrap()
}

#[test]
fn it_reclaims_what_is_reclaimable_and_changes_nothing_that_is_read() {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let options = OpenOptions { memory: 16 << 20, ..small() };
    let db = create(device.clone(), env.clone(), options.clone()).unwrap();
    let d = fragmented(&db, 1);
    let (before, stats) = (contents(&db).unwrap(), db.stats());
    assert!(
        stats.zones_reclaimable * 5 > stats.zones_held,
        "{} of {}: the load leaves holes",
        stats.zones_reclaimable,
        stats.zones_held
    );
    let spans = |db: &Kvdb| {
        db.stats().dictionaries[0].levels.iter().flatten().map(|r| r.value_spans).sum::<u64>()
    };
    let spans_before = spans(&db);
    assert!(
        db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() }).unwrap()
    );
    let progress = db.defrag_progress();
    assert!(!progress.running && progress.rounds > 0);
    assert!(progress.zones_reclaimed * 100 >= progress.zones_reclaimable * 99, "{progress:?}");
    let after = db.stats();
    assert!(
        after.zones_reclaimable <= 3,
        "open zones and what is left in the last ones: {}",
        after.zones_reclaimable
    );
    assert!(after.zones_held + stats.zones_reclaimable <= stats.zones_held + 3);
    assert!(
        progress.bytes_moved < after.zones_held * ZONE_SIZE,
        "only what lies among holes is moved"
    );
    assert!(spans(&db) < spans_before, "scans take {} seeks after {spans_before}", spans(&db));
    assert!(contents(&db).unwrap() == before);
    let zones = db.stats().zones_held;
    // No work is left.
    let moved = db.stats().merged_bytes;
    db.defragment(DefragOptions::default()).unwrap();
    assert_eq!((db.stats().merged_bytes, db.stats().zones_held), (moved, zones));
    db.close().unwrap();
    drop(db);
    assert!(kvdb::check(device.clone(), &mut |_, _| {}).is_clean());
    let (db, _) = Kvdb::open(device, env, options).unwrap();
    assert!(contents(&db).unwrap() == before);
    assert!(db.view().get(d, &[0; 16]).unwrap().is_none());
}

#[test]
fn clients_go_on_meanwhile_and_it_can_be_stopped_and_begun_again() {
    let options = OpenOptions { memory: 16 << 20, threads: true, defrag_rate: 0, ..small() };
    let db = threaded(options);
    let d = fragmented(&db, 2);
    let reclaimable = db.stats().zones_reclaimable;
    let mut expected = contents(&db).unwrap();
    // At this rate it would take minutes.
    let slow = DefragOptions {
        bytes_per_second: Some(1 << 20),
        fullest_percent: 99,
        ..DefragOptions::default()
    };
    assert!(db.defragment(slow).unwrap());
    assert!(!db.defragment(slow).unwrap(), "one at a time");
    while db.defrag_progress().bytes_moved == 0 {
        std::thread::yield_now();
    }
    db.stop_defragment();
    db.wait_for_defragment();
    assert!(!db.defrag_progress().running);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = Vec::new();
            while !done.load(Ordering::Acquire) && written.len() < 3000 {
                let key = (1000 + written.len() as u64).to_be_bytes().to_vec();
                let mut batch = Batch::new();
                batch.put(d, key.clone(), vec![written.len() as u8; 5000]);
                db.commit(batch, Durability::Buffered).unwrap();
                assert_eq!(db.get(d, &key).unwrap().unwrap().len(), 5000);
                written.push(key);
            }
            written
        });
        assert!(
            db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() })
                .unwrap()
        );
        db.wait_for_defragment();
        done.store(true, Ordering::Release);
        let written = writer.join().unwrap();
        expected
            .get_mut(&d)
            .unwrap()
            .extend(written.iter().enumerate().map(|(i, key)| (key.clone(), vec![i as u8; 5000])));
    });
    assert!(contents(&db).unwrap() == expected);
    assert!(db.defrag_progress().bytes_moved > 0, "it moved something while the writer went on");
    // Data that was written during the defragmentation is flushed and merged after it, which may
    // leave holes, too. In the end no space can be gained.
    let begun = std::time::Instant::now();
    loop {
        if db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() }).unwrap()
        {
            db.wait_for_defragment();
            if db.defrag_progress().zones_reclaimable == 0 {
                break;
            }
        }
        assert!(begun.elapsed().as_secs() < 60, "{:?}", db.defrag_progress());
    }
    // The figure of the statistics counts the open zones of tuples, index and pages as well.
    let left = db.stats().zones_reclaimable;
    assert!(left < reclaimable && left <= 3, "{left} of {reclaimable}");
}

#[test]
fn by_hand_it_lays_values_in_the_order_of_their_keys() {
    let db = threaded(OpenOptions { memory: 16 << 20, threads: true, defrag_rate: 0, ..small() });
    let d = fragmented(&db, 4);
    let expected = contents(&db).unwrap();
    let spans = || {
        let dictionaries = db.stats().dictionaries;
        let pages = dictionaries.iter().find(|of| of.info.id == d).expect("it was created");
        pages.levels.iter().flatten().map(|run| run.value_spans).sum::<u64>()
    };
    let scattered = spans();
    let run = |options| {
        assert!(db.defragment(options).unwrap());
        db.wait_for_defragment();
        (spans(), db.defrag_progress().bytes_moved)
    };
    let (laid, moved) = run(DefragOptions::default());
    assert!(
        laid * 10 < scattered && moved > 0,
        "{laid} sequences of {scattered}, {moved} bytes moved"
    );
    assert!(contents(&db).unwrap() == expected);
    assert_eq!(run(DefragOptions::default()), (laid, 0), "there is nothing left to do");
}

#[test]
fn it_begins_by_itself_when_much_is_lost() {
    let options = OpenOptions {
        memory: 16 << 20,
        threads: true,
        flush_interval: std::time::Duration::from_millis(10),
        ..small()
    };
    let db = threaded(options);
    fragmented(&db, 3);
    let begun = std::time::Instant::now();
    while db.defrag_progress().rounds == 0 {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", db.stats());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(db.defrag_progress().automatic);
}

/// One zone with little data: moving it would normally take a zone as well, but the zone that was
/// written last has room for it.
#[test]
fn what_fits_after_what_was_written_last_takes_no_zone() {
    let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let env = Arc::new(Simulated::new(1));
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), env, options).unwrap();
    // The merge stitches the rest.
    let options = DictionaryOptions { stitch_at: 0, separate_at: 2048, ..Default::default() };
    let d = db.create_dictionary("d", options).unwrap();
    let key = |i: u64| i.to_be_bytes().to_vec();
    let mut random = Random::new(1);
    for i in 0..9500 {
        let mut value = [0; 1000];
        random.fill(&mut value);
        db.put(d, &key(i), &value, Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    let mut batch = Batch::new();
    batch.delete_range(d, key(1000), key(8500));
    db.commit(batch, Durability::Buffered).unwrap();
    db.compact(d).unwrap();
    let (before, state) = (db.stats().zones_held, contents(&db).unwrap());
    db.defragment(DefragOptions::default()).unwrap();
    let (after, progress) = (db.stats().zones_held, db.defrag_progress());
    assert_eq!((before, after), (3, 2), "key blocks in two zones, index in one: {progress:?}");
    assert_eq!(contents(&db).unwrap(), state);
}

//! Compares the whole engine with an ordered map. Whatever is committed, flushed, merged, closed
//! and opened again, reads return what the model returns, and views stay as they were.

use std::sync::Arc;
use std::time::Duration;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{
    ADAPTIVE, Batch, CompactionPolicy, Compression, DictionaryId, DictionaryOptions, Durability,
    Error, Join, Kvdb, OpenOptions, View,
};
use proptest::prelude::*;
use zones::MemoryDevice;

#[derive(Clone, Debug)]
enum Step {
    /// A commit whose changes follow from the seed.
    Commit(u64),
    Background,
    Flush,
    Compact(usize),
    Reopen {
        properly: bool,
    },
    /// Keeps a view, to be compared at the end.
    Keep,
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => any::<u64>().prop_map(Step::Commit),
        4 => Just(Step::Background),
        1 => Just(Step::Flush),
        1 => (0..3usize).prop_map(Step::Compact),
        1 => any::<bool>().prop_map(|properly| Step::Reopen { properly }),
        1 => Just(Step::Keep),
        1 => Just(Step::Wait),
    ]
}

fn compare(view: &View, model: &Model, random: &mut Random) {
    for (&d, tuples) in model {
        let all: Vec<(Vec<u8>, Vec<u8>)> =
            tuples.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let scanned = view.scan(d, b"", b"", usize::MAX).unwrap();
        assert!(
            scanned.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).eq(all.iter().cloned()),
            "a scan of {d:?}"
        );
        for _ in 0..20 {
            let key = format!("key{:03}", random.below(310)).into_bytes();
            assert_eq!(view.get(d, &key).unwrap().map(|v| v.to_vec()), tuples.get(&key).cloned());
        }
        walk(view, d, &all, random);
    }
}

/// A random walk of a cursor over a random range.
fn walk(view: &View, d: DictionaryId, all: &[(Vec<u8>, Vec<u8>)], random: &mut Random) {
    let key = |random: &mut Random| format!("key{:03}", random.below(310)).into_bytes();
    let (a, b) = (key(random), key(random));
    let (start, end) = if random.one_in(3) {
        (Vec::new(), Vec::new())
    } else {
        (a.clone().min(b.clone()), a.max(b))
    };
    let inside: Vec<_> =
        all.iter().filter(|(k, _)| *k >= start && (end.is_empty() || *k < end)).collect();
    let mut cursor = view.cursor(d, &start, &end).unwrap();
    let mut at = 0;
    for _ in 0..60 {
        match random.below(10) {
            0..=4 => {
                let tuple = cursor.next().unwrap();
                let expected = inside.get(at);
                assert_eq!(
                    tuple.as_ref().map(|t| t.key.to_vec()),
                    expected.map(|t| t.0.clone()),
                    "next at {at}"
                );
                if let (Some(tuple), Some(expected)) = (tuple, expected) {
                    assert_eq!(tuple.value_len(), expected.1.len());
                    assert_eq!(tuple.value().unwrap(), expected.1);
                    at += 1;
                }
            }
            5..=7 => {
                let tuple = cursor.prev().unwrap();
                let expected = at.checked_sub(1).map(|i| &inside[i].0);
                assert_eq!(
                    tuple.as_ref().map(|t| t.key.to_vec()),
                    expected.cloned(),
                    "prev at {at}"
                );
                at = at.saturating_sub(1);
            }
            8 => {
                let key = key(random);
                cursor.seek(&key).unwrap();
                at = inside.partition_point(|(k, _)| *k < key);
            }
            _ => {
                cursor.seek_to_end().unwrap();
                at = inside.len();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_equals_an_ordered_map(seed: u64, steps in prop::collection::vec(step(), 1..150)) {
        let env = Arc::new(Simulated::new(seed));
        let device = Arc::new(MemoryDevice::new());
        let mut random = Random::new(seed);
        let options = || OpenOptions { merge_part: 20 << 10, ..small() };
        let mut db = create(device.clone(), env.clone(), options()).unwrap();
        let dicts = dictionaries(&db).unwrap();
        let mut model = with_all(Model::new(), &dicts);
        let mut kept: Vec<(View, Model)> = Vec::new();
        for step in steps {
            match step {
                Step::Commit(seed) => {
                    let changes = changes(&mut Random::new(seed), &dicts);
                    apply(&mut model, &changes);
                    let durability = if seed % 8 == 0 { Durability::Synced } else { Durability::Buffered };
                    db.commit(batch(&changes), durability).unwrap();
                }
                Step::Background => drop(db.step().unwrap()),
                Step::Flush => db.flush().unwrap(),
                Step::Compact(i) => db.compact(dicts[i]).unwrap(),
                Step::Reopen { properly } => {
                    // A view would keep its store's device, and the new store could overwrite what
                    // it reads.
                    kept.clear();
                    if properly {
                        db.close().unwrap();
                    } else {
                        db.sync().unwrap();
                    }
                    let image = MemoryDevice::clone(&device);
                    drop(db);
                    let (opened, recovery) = Kvdb::open(if properly { device.clone() } else { Arc::new(image) }, env.clone(), options()).unwrap();
                    assert_eq!(recovery.clean, properly);
                    db = opened;
                    if !properly {
                        // Returns to the one device that the next opening uses.
                        assert_eq!(contents(&db).unwrap(), model);
                        drop(db);
                        db = Kvdb::open(device.clone(), env.clone(), options()).unwrap().0;
                    }
                }
                Step::Keep => kept.push((db.view(), model.clone())),
                Step::Wait => env.advance(Duration::from_millis(20)),
            }
        }
        compare(&db.view(), &model, &mut random);
        for (view, model) in &kept {
            compare(view, model, &mut random);
        }
        drop(kept);
        db.close().unwrap();
        drop(db);
        let report = kvdb::check(device.clone(), &mut |_, _| {});
        assert!(report.is_clean(), "{:?}", report.faults);
    }
}

fn store() -> (Arc<MemoryDevice>, Arc<Simulated>, Kvdb) {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let db = create(device.clone(), env.clone(), small()).unwrap();
    (device, env, db)
}

fn put(db: &Kvdb, d: DictionaryId, key: &str, value: &[u8]) {
    let mut b = Batch::new();
    b.put(d, key.to_owned(), value.to_vec());
    db.commit(b, Durability::Buffered).unwrap();
}

#[test]
fn a_later_change_of_a_batch_wins() {
    let (_, _, db) = store();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut b = Batch::new();
    b.put(d, "a", "1");
    b.delete_range(d, "a", "b");
    b.put(d, "a", "2");
    b.put(d, "aa", "3");
    b.delete(d, "aa");
    db.commit(b, Durability::Synced).unwrap();
    assert_eq!(db.view().scan(d, b"", b"", 9).unwrap(), [("a".into(), "2".into())]);
}

/// Four flushes of appends to many ranges make a merge due. The threshold decides until the last
/// moment how much it copies.
#[test]
fn the_threshold_is_durable_and_changes_while_merges_run() {
    let run = |stitch_at: Option<u64>| {
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        let shape = CompactionPolicy { runs_per_level: 4, ..CompactionPolicy::default() };
        let options =
            OpenOptions { memory: 64 << 20, merge_part: 256 << 10, compaction: shape, ..small() };
        let db = create(device.clone(), env.clone(), options).unwrap();
        let d = db
            .create_dictionary("d", DictionaryOptions { stitch_at: u64::MAX, ..Default::default() })
            .unwrap();
        for flush in 0..4u64 {
            for range in 0..40u64 {
                let mut b = Batch::new();
                (0..600).for_each(|i| {
                    b.put(d, ((range << 40) + flush * 600 + i).to_be_bytes().to_vec(), vec![1; 60])
                });
                db.commit(b, Durability::Buffered).unwrap();
            }
            db.flush().unwrap();
        }
        let before = db.stats().merged_bytes;
        // The merge is in progress.
        while db.stats().merged_bytes == before {
            assert!(db.step().unwrap());
        }
        if let Some(stitch_at) = stitch_at {
            db.set_stitch_at(d, stitch_at).unwrap();
        }
        while db.stats().compactions == 0 {
            assert!(db.step().unwrap());
        }
        let copied = db.stats().merged_bytes - before;
        db.close().unwrap();
        drop(db);
        let (db, _) = Kvdb::open(device, env, small()).unwrap();
        assert_eq!(db.dictionaries()[0].options.stitch_at, stitch_at.unwrap_or(u64::MAX));
        assert_eq!(db.view().scan(d, b"", b"", usize::MAX).unwrap().len(), 4 * 40 * 600);
        copied
    };
    let (plain, adaptive, log) = (run(None), run(Some(ADAPTIVE)), run(Some(0)));
    assert!(adaptive * 3 < plain && log * 3 < plain, "{log} and {adaptive} of {plain} bytes");
}

/// A large merge runs in parts. Data flushed during it is merged separately, and reads see one
/// consistent store throughout.
#[test]
fn young_runs_are_merged_while_a_large_merge_is_under_way() {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let shape = CompactionPolicy { runs_per_level: 2, size_ratio: 1, single_bottom: true };
    let options = OpenOptions { merge_part: 256 << 10, compaction: shape, ..small() };
    let db = create(device.clone(), env.clone(), options).unwrap();
    let d = db
        .create_dictionary("d", DictionaryOptions { stitch_at: u64::MAX, ..Default::default() })
        .unwrap();
    let flush = |value: u8, step: usize| {
        let mut b = Batch::new();
        (0..20_000u32)
            .step_by(step)
            .for_each(|i| b.put(d, i.to_be_bytes().to_vec(), vec![value; 200]));
        db.commit(b, Durability::Buffered).unwrap();
        db.flush().unwrap();
    };
    flush(1, 1);
    flush(2, 1);
    // A part of the large merge is done.
    let before = db.stats().merged_bytes;
    while db.stats().merged_bytes == before {
        assert!(db.step().unwrap());
    }
    assert_eq!(db.stats().compactions, 0);
    let newest = |db: &Kvdb| {
        let all = db.view().scan(d, b"", b"", usize::MAX).unwrap();
        assert_eq!(all.len(), 20_000);
        all.iter().map(|(_, v)| usize::from(v[0])).sum::<usize>()
    };
    assert_eq!(newest(&db), 40_000);
    flush(3, 2);
    flush(4, 4);
    let expected = 5_000 * 4 + 5_000 * 3 + 10_000 * 2;
    assert_eq!(newest(&db), expected);
    let bottom = |db: &Kvdb| db.stats().dictionaries[0].levels[15].len();
    let mut merged_young = false;
    while db.step().unwrap() {
        // The young merge is done, and the large one is not: its inputs and its result lie at the
        // bottom and just above.
        merged_young |=
            db.stats().compactions == 1 && db.stats().dictionaries[0].levels[14].len() == 2;
        assert_eq!(newest(&db), expected);
    }
    assert!(merged_young, "the young runs had to wait");
    assert_eq!(bottom(&db), 1);
    db.close().unwrap();
    drop(db);
    assert!(kvdb::check(device.clone(), &mut |_, _| {}).is_clean());
    let (db, _) = Kvdb::open(device, env, small()).unwrap();
    assert_eq!(newest(&db), expected);
}

#[test]
fn dictionaries_are_durable_and_a_dropped_one_is_gone_with_its_space() {
    let (device, env, db) = store();
    let a = db.create_dictionary("a", DictionaryOptions::default()).unwrap();
    assert_eq!(
        db.create_dictionary("a", DictionaryOptions { separate_at: 7, ..Default::default() })
            .unwrap(),
        a
    );
    let options = DictionaryOptions {
        separate_at: 9,
        stitch_at: 5,
        reserved: true,
        compression: Compression::Zstd,
        compress_values: Compression::Lz4,
        false_positives: 7,
        join: Join::Max,
    };
    let b = db.create_dictionary("b", options.clone()).unwrap();
    assert_eq!((a, b), (DictionaryId(1), DictionaryId(2)));
    for i in 0..20_000 {
        put(&db, a, &format!("{i:05}"), &[7; 1500]);
    }
    put(&db, b, "x", b"y");
    db.flush().unwrap();
    let before = db.space().free;
    let view = db.view();
    db.drop_dictionary(a).unwrap();
    assert!(matches!(db.drop_dictionary(a), Err(Error::NoDictionary(_))));
    assert_eq!(
        view.get(a, b"00007").unwrap().unwrap().len(),
        1500,
        "a view outlives the dictionary"
    );
    drop(view);
    assert!(db.space().free > before, "its zones are free");
    assert!(matches!(db.view().cursor(a, b"", b""), Err(Error::NoDictionary(_))));
    // Replay skips the commits of a dropped dictionary in the journal.
    let c = db.create_dictionary("c", DictionaryOptions::default()).unwrap();
    assert_eq!(c, DictionaryId(3), "numbers are not used again");
    put(&db, c, "gone", b"soon");
    db.sync().unwrap();
    db.drop_dictionary(c).unwrap();
    let image = Arc::new(MemoryDevice::clone(&device));
    let (again, recovery) = Kvdb::open(image, env, small()).unwrap();
    // The first drop has a number, too.
    assert_eq!(recovery.records, 2, "{recovery}");
    let all = again.dictionaries();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].id, all[0].name.as_str(), &all[0].options), (b, "b", &options));
    assert_eq!(again.get(b, b"x").unwrap().unwrap(), "y");
}

#[test]
fn what_cannot_be_stored_is_refused_and_changes_nothing() {
    let (_, _, db) = store();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut b = Batch::new();
    b.put(d, "fine", "value");
    b.put(DictionaryId(99), "k", "v");
    assert!(matches!(db.commit(b, Durability::Buffered), Err(Error::NoDictionary(_))));
    let mut b = Batch::new();
    b.put(d, "fine", "value");
    b.put(d, vec![1; kvdb::MAX_KEY + 1], "v");
    assert!(matches!(db.commit(b, Durability::Buffered), Err(Error::Invalid(_))));
    let mut b = Batch::new();
    b.put(d, "k", vec![1; kvdb::MAX_VALUE + 1]);
    assert!(matches!(db.commit(b, Durability::Buffered), Err(Error::Invalid(_))));
    assert!(matches!(
        db.create_dictionary("", DictionaryOptions::default()),
        Err(Error::Invalid(_))
    ));
    assert_eq!(db.get(d, b"fine").unwrap(), None);
    let mut b = Batch::new();
    b.put(d, vec![1; kvdb::MAX_KEY], vec![2; kvdb::MAX_VALUE]);
    db.commit(b, Durability::Synced).unwrap();
    db.flush().unwrap();
    assert_eq!(db.get(d, &vec![1; kvdb::MAX_KEY]).unwrap().unwrap(), vec![2; kvdb::MAX_VALUE]);
}

#[test]
fn a_store_opened_for_reading_shows_the_journal_and_writes_nothing() {
    let (device, env, db) = store();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    put(&db, d, "k", b"v");
    db.sync().unwrap();
    let image = Arc::new(MemoryDevice::clone(&device));
    let faulty = Arc::new(zones::FaultDevice::new(image, 1));
    for operation in [
        zones::Operation::Write,
        zones::Operation::Sync,
        zones::Operation::Grow,
        zones::Operation::Discard,
    ] {
        faulty.inject(zones::Fault::always(operation, zones::FaultKind::Error));
    }
    let (reader, recovery) =
        Kvdb::open(faulty.clone(), env, OpenOptions { read_only: true, ..small() }).unwrap();
    assert_eq!(recovery.records, 1);
    assert_eq!(reader.get(d, b"k").unwrap().unwrap(), "v");
    let mut b = Batch::new();
    b.put(d, "k", "w");
    assert!(matches!(reader.commit(b, Durability::Buffered), Err(Error::ReadOnly(_))));
    assert!(reader.create_dictionary("e", DictionaryOptions::default()).is_err());
    assert!(reader.flush().is_err());
    reader.sync().unwrap();
    reader.close().unwrap();
    assert_eq!(faulty.struck(), 0);
}

#[test]
fn a_closed_store_takes_no_writes_and_its_views_stay() {
    let (_, _, db) = store();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    put(&db, d, "k", b"v");
    let view = db.view();
    db.close().unwrap();
    db.close().unwrap();
    let mut b = Batch::new();
    b.put(d, "k", "w");
    assert!(matches!(db.commit(b, Durability::Buffered), Err(Error::ReadOnly(_))));
    assert_eq!(view.get(d, b"k").unwrap().unwrap(), "v");
    assert_eq!(db.get(d, b"k").unwrap().unwrap(), "v");
}

#[test]
fn large_values_are_written_once() {
    let (device, env, db) = store();
    let d = db
        .create_dictionary("d", DictionaryOptions { stitch_at: 0, ..Default::default() })
        .unwrap();
    let mut random = Random::new(3);
    let total = 8 << 20;
    for i in 0..total / (64 << 10) {
        let mut b = Batch::new();
        for j in 0..16 {
            b.put(d, format!("{i:04}/{j:02}"), bytes(&mut random, 4096));
        }
        db.commit(b, Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    while db.step().unwrap() {}
    let stats = db.stats();
    assert_eq!(stats.bound_bytes, total as u64);
    assert!(stats.write_amplification() < 1.1, "{}", stats.write_amplification());
    let kept = contents(&db).unwrap();
    db.close().unwrap();
    drop(db);
    assert_eq!(contents(&Kvdb::open(device, env, small()).unwrap().0).unwrap(), kept);
}

#[test]
fn the_journal_stays_bounded_and_its_zones_are_used_again() {
    let (device, _, db) = store();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut most = 0;
    // Each synced commit takes a sector of its own.
    for i in 0..40_000u32 {
        let mut b = Batch::new();
        b.put(d, (i % 50).to_be_bytes().to_vec(), "small");
        db.commit(b, Durability::Synced).unwrap();
        most = most.max(db.stats().journal_bytes);
    }
    assert!(most <= 5 * zones::ZONE_SIZE, "{most}");
    let taken = device.allocated();
    assert!(
        taken <= 12 * zones::ZONE_SIZE,
        "{} zones for a journal of five",
        taken / zones::ZONE_SIZE
    );
}

//! Tests of the difference of two states. It is exact whatever happened between them, and its cost
//! grows only with the number of changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{Batch, DictionaryId, Durability, Kvdb, OpenOptions, View};
use zones::MemoryDevice;

type Tuples = BTreeMap<Vec<u8>, Vec<u8>>;
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>)>;

fn tuples(view: &View, dict: DictionaryId) -> Tuples {
    let all = if view.dictionaries().iter().any(|d| d.id == dict) {
        view.scan(dict, b"", b"", usize::MAX).unwrap()
    } else {
        Vec::new()
    };
    all.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

/// The difference as found by reading both states completely.
fn expected(before: &Tuples, after: &Tuples) -> Changes {
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let all = keys.into_iter().map(|k| (k.clone(), before.get(k).cloned(), after.get(k).cloned()));
    all.filter(|(_, b, a)| b != a).collect()
}

fn found(before: &View, dict: DictionaryId, after: &View, dict_after: DictionaryId) -> Changes {
    let value = |t: Option<kvdb::Tuple>| {
        t.map(|t| {
            let value = t.value().unwrap().to_vec();
            assert_eq!(t.value_len(), value.len());
            value
        })
    };
    let changes = before.difference(dict, after, dict_after).unwrap();
    changes.map(|c| c.unwrap()).map(|c| (c.key.to_vec(), value(c.before), value(c.after))).collect()
}

#[test]
fn any_two_states_of_a_random_history_differ_in_what_reading_everything_finds() {
    for seed in 0..25 {
        let mut random = Random::new(seed);
        let open = OpenOptions { merge_part: 16 << 10 << random.below(4), ..small() };
        let db =
            create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(seed)), open).unwrap();
        let dicts = dictionaries(&db).unwrap();
        let mut states: Vec<View> = vec![db.view()];
        for n in 0..12 {
            for _ in 0..random.below(60) {
                let changes = changes(&mut random, &dicts);
                db.commit(batch(&changes), Durability::Buffered).unwrap();
                if random.one_in(6) {
                    db.step().unwrap();
                }
            }
            match random.below(6) {
                0 => db.flush().unwrap(),
                1 => db.compact(dicts[random.below(3) as usize]).unwrap(),
                2 if n > 2 => db.rollback(&format!("s{}", random.below(n / 2))).unwrap_or(()),
                _ => {}
            }
            match random.below(3) {
                0 => states.push(db.view()),
                _ => {
                    db.snapshot(&format!("s{n}")).unwrap();
                    states.push(db.open_snapshot(&format!("s{n}")).unwrap());
                }
            }
        }
        for _ in 0..30 {
            let (a, b) = (&states[random.below(13) as usize], &states[random.below(13) as usize]);
            for &d in &dicts {
                assert_eq!(
                    found(a, d, b, d),
                    expected(&tuples(a, d), &tuples(b, d)),
                    "seed {seed}"
                );
            }
        }
    }
}

#[test]
fn branches_differ_in_what_they_did_since() {
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    for i in 0..5000u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![1; 100]).unwrap();
    }
    db.snapshot("s").unwrap();
    db.clone_snapshot("s", "b").unwrap();
    let b = db.open_dictionary_in("b", "d").unwrap();
    b.insert(7u32.to_be_bytes().to_vec(), "other").unwrap();
    b.remove_range(4000u32.to_be_bytes()..4010u32.to_be_bytes()).unwrap();
    d.insert("new", "here").unwrap();
    db.compact(b.id()).unwrap();
    db.compact(d.id()).unwrap();
    let view = db.view();
    let changes = found(&view, d.id(), &view, b.id());
    assert_eq!(changes, expected(&tuples(&view, d.id()), &tuples(&view, b.id())));
    assert_eq!(changes.len(), 12);
    let all = found(&view, DictionaryId(99), &view, d.id());
    assert_eq!(all.len(), 5001, "a dictionary that is not there is empty");
}

#[test]
fn ten_changes_in_half_a_million_keys_open_a_few_blocks() {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { memory: 64 << 20, ..small() };
    let db = create(device, Arc::new(Simulated::new(1)), open).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let key = |i: u32| format!("key{i:08}").into_bytes();
    d.ingest((0..500_000).map(|i| (key(i), vec![i as u8; 100]))).unwrap();
    db.snapshot("before").unwrap();
    let mut batch = Batch::new();
    for i in 0..10 {
        batch.put(d.id(), key(i * 50_000 + 77), "changed");
    }
    db.commit(batch, Durability::Buffered).unwrap();
    let compare = |db: &Kvdb, most: u64, what: &str| {
        let (before, after) = (db.open_snapshot("before").unwrap(), db.view());
        let mut difference = before.difference(d.id(), &after, d.id()).unwrap();
        let keys: Vec<_> = difference.by_ref().map(|c| c.unwrap().key.to_vec()).collect();
        assert_eq!(keys, (0..10).map(|i| key(i * 50_000 + 77)).collect::<Vec<_>>(), "{what}");
        assert!(difference.opened() <= most, "{what}: {} blocks and nodes", difference.opened());
    };
    compare(&db, 0, "in memory");
    db.flush().unwrap();
    compare(&db, 4, "in a run of their own");
    db.set_stitch_at(d.id(), 0).unwrap();
    db.compact(d.id()).unwrap();
    compare(&db, 100, "merged in");
}

#[test]
fn large_values_in_one_place_are_not_read() {
    let db = create(
        Arc::new(MemoryDevice::new()),
        Arc::new(Simulated::new(1)),
        OpenOptions { memory: 8 << 20, ..small() },
    )
    .unwrap();
    let d = db.open_dictionary("d").unwrap();
    for i in 0..500u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![i as u8; 50_000]).unwrap();
    }
    db.snapshot("s").unwrap();
    // Writes new blocks of keys, whose values stay in place.
    for i in 0..500u32 {
        d.insert([&i.to_be_bytes()[..], b"!"].concat(), "x").unwrap();
    }
    db.compact(d.id()).unwrap();
    let read = db.stats().io.total().read_bytes;
    assert_eq!(found(&db.open_snapshot("s").unwrap(), d.id(), &db.view(), d.id()).len(), 500);
    let read = db.stats().io.total().read_bytes - read;
    assert!(read < 500 * 50_000 / 20, "{read} bytes");
}

//! Tests of the interface of the crate: stores by path, dictionaries in hand, ranges and prefixes
//! from both ends, estimates, compaction of a range.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::model::{bytes, create, small};
use env::{Random, Simulated};
use kvdb::{Batch, Dictionary, DictionaryOptions, Durability, Error, Kvdb, OpenOptions};
use zones::MemoryDevice;

fn store() -> Kvdb {
    create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), small()).unwrap()
}

fn keys(tuples: impl Iterator<Item = kvdb::Result<(bytes::Bytes, bytes::Bytes)>>) -> Vec<String> {
    tuples.map(|t| String::from_utf8(t.unwrap().0.to_vec()).unwrap()).collect()
}

fn with_keys(db: &Kvdb, keys: &[&[u8]]) -> Dictionary {
    let d = db.open_dictionary("d").unwrap();
    for key in keys {
        d.insert(key.to_vec(), "value").unwrap();
    }
    d
}

#[test]
fn a_store_is_made_where_none_is_and_found_where_one_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("my.kvfs");
    let read_only = || OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(Kvdb::open_path_with(&path, read_only()).is_err(), "nothing is made for reading");
    assert!(!path.exists());
    // A file that an interrupted attempt has left does not stand in the way.
    std::fs::write(directory.path().join("my.kvfs.partial"), b"half").unwrap();
    let db = Kvdb::open_path(&path).unwrap();
    assert!(!directory.path().join("my.kvfs.partial").exists());
    db.open_dictionary("d").unwrap().insert("k", "v").unwrap();
    let busy = Kvdb::open_path(&path).err().expect("one process, one handle");
    assert!(busy.to_string().contains("my.kvfs"), "{busy}");
    db.close().unwrap();
    drop(db);
    let (db, recovery) = Kvdb::recover_path(&path, OpenOptions::default()).unwrap();
    assert!(recovery.clean);
    assert_eq!(db.open_dictionary("d").unwrap().get("k").unwrap().unwrap(), "v");
    assert!(Kvdb::create_path(&path, Default::default()).is_err(), "a store is never overwritten");
}

#[test]
fn a_dictionary_keeps_its_options_and_is_gone_when_dropped() {
    let db = store();
    let options = DictionaryOptions { separate_at: 100, ..DictionaryOptions::default() };
    let d = db.open_dictionary_with("d", options.clone()).unwrap();
    d.insert("k", "v").unwrap();
    let again = db.open_dictionary("d").unwrap();
    assert_eq!((again.id(), again.info().unwrap().options), (d.id(), options));
    db.drop_dictionary(d.id()).unwrap();
    assert_eq!(d.info(), None);
    assert!(matches!(d.get("k"), Err(Error::NoDictionary(_))));
    assert!(matches!(d.insert("k", "v"), Err(Error::NoDictionary(_))));
    assert!(matches!(d.iter().next(), Some(Err(Error::NoDictionary(_)))));
    assert_eq!(
        db.open_dictionary("d").unwrap().iter().count(),
        0,
        "a new one of the same name is empty"
    );
}

#[test]
fn iterators_meet_in_the_middle_and_have_ended_then() {
    let db = store();
    let d = with_keys(&db, &[b"a", b"b", b"c", b"d", b"e"]);
    let mut iter = d.iter();
    let mut next = |back: bool| {
        let tuple = if back { iter.next_back() } else { iter.next() };
        tuple.map(|t| String::from_utf8(t.unwrap().0.to_vec()).unwrap())
    };
    assert_eq!(
        [next(false), next(true), next(true), next(false)],
        ["a", "e", "d", "b"].map(|k| Some(k.to_owned()))
    );
    assert_eq!(next(true).as_deref(), Some("c"));
    assert_eq!([next(true), next(false), next(true)], [None, None, None]);
    assert_eq!(keys(d.iter().rev()), ["e", "d", "c", "b", "a"]);
    assert_eq!(
        d.iter().keys().rev().map(|k| k.unwrap()).collect::<Vec<_>>(),
        ["e", "d", "c", "b", "a"]
    );
}

#[test]
fn an_iterator_sees_what_was_there_when_it_was_made() {
    let db = store();
    let d = with_keys(&db, &[b"a", b"b"]);
    let iter = d.iter();
    d.insert("aa", "late").unwrap();
    d.remove("b").unwrap();
    db.flush().unwrap();
    assert_eq!(keys(iter), ["a", "b"]);
    assert_eq!(keys(d.iter()), ["a", "aa"]);
}

#[test]
fn prefixes_end_where_their_last_byte_carries() {
    let db = store();
    let all: [&[u8]; 9] = [
        b"",
        b"a",
        b"a\xfe",
        b"a\xff",
        b"a\xff\xff",
        b"a\xff\xff\x01",
        b"b",
        b"\xff",
        b"\xff\xff\x07",
    ];
    let d = with_keys(&db, &all);
    let found = |prefix: &[u8]| -> Vec<Vec<u8>> {
        d.prefix(prefix).keys().map(|k| k.unwrap().to_vec()).collect()
    };
    assert_eq!(found(b"a\xff"), [&b"a\xff"[..], b"a\xff\xff", b"a\xff\xff\x01"]);
    assert_eq!(found(b"\xff"), [&b"\xff"[..], b"\xff\xff\x07"]);
    assert_eq!(found(b"").len(), all.len());
    assert_eq!(found(b"a\0"), Vec::<Vec<u8>>::new());
    d.remove_prefix(b"a\xff\xff").unwrap();
    d.remove_prefix(b"\xff\xff").unwrap();
    assert_eq!(found(b""), [&b""[..], b"a", b"a\xfe", b"a\xff", b"b", b"\xff"]);
    d.insert(vec![0xff; kvdb::MAX_KEY], "the last key there can be").unwrap();
    let mut batch = Batch::new();
    batch.put(d.id(), "gone", "with the rest");
    batch.delete_prefix(d.id(), "");
    batch.put(d.id(), "new", "");
    db.commit(batch, Durability::Buffered).unwrap();
    assert_eq!(found(b""), [b"new"]);
    db.flush().unwrap();
    d.compact().unwrap();
    assert_eq!(found(b""), [b"new"]);
}

#[test]
fn every_range_gives_what_a_btree_map_gives() {
    let mut random = Random::new(7);
    let db = store();
    let d = db.open_dictionary("d").unwrap();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let key = |random: &mut Random| -> Vec<u8> {
        (0..random.below(4)).map(|_| b'a' + random.below(4) as u8).collect()
    };
    for round in 0..600 {
        let k = key(&mut random);
        match random.below(12) {
            0..=6 => {
                let len = if random.one_in(9) { 3000 } else { 20 };
                let v = bytes(&mut random, len);
                d.insert(k.clone(), v.clone()).unwrap();
                model.insert(k, v);
            }
            7 => {
                d.remove(k.clone()).unwrap();
                model.remove(&k);
            }
            8 => {
                let to = key(&mut random);
                d.remove_range(&k[..]..&to[..]).unwrap();
                model.retain(|x, _| *x < k || *x >= to);
            }
            9 if round % 3 == 0 => {
                d.remove_prefix(&k).unwrap();
                model.retain(|x, _| !x.starts_with(&k));
            }
            10 => db.flush().unwrap(),
            _ if random.one_in(3) => {
                let to = key(&mut random);
                d.compact_range(&k[..]..&to[..]).unwrap();
            }
            _ => drop(db.step().unwrap()),
        }
        let (a, b) = (key(&mut random), key(&mut random));
        let bound = |random: &mut Random, k: &Vec<u8>| match random.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(k.clone()),
            _ => Bound::Excluded(k.clone()),
        };
        let range = (bound(&mut random, &a.clone().min(b.clone())), bound(&mut random, &a.max(b)));
        if matches!(&range, (Bound::Excluded(a), Bound::Excluded(b)) if a == b) {
            // A BTreeMap panics on this range.
            continue;
        }
        let expected: Vec<(Vec<u8>, Vec<u8>)> =
            model.range(range.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let owned = |t: kvdb::Result<(bytes::Bytes, bytes::Bytes)>| {
            t.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()
        };
        assert_eq!(d.range(range.clone()).map(owned).collect::<Vec<_>>(), expected, "{range:?}");
        let mut backward: Vec<_> = d.range(range.clone()).rev().map(owned).collect();
        backward.reverse();
        assert_eq!(backward, expected, "{range:?} from the back");
        // Reads from both ends in turn.
        let (mut iter, mut front, mut back) = (d.range(range.clone()), Vec::new(), Vec::new());
        loop {
            let (side, tuple) = if random.one_in(2) {
                (&mut front, iter.next())
            } else {
                (&mut back, iter.next_back())
            };
            match tuple {
                Some(tuple) => side.push(owned(tuple)),
                None => break,
            }
        }
        front.extend(back.into_iter().rev());
        assert_eq!(front, expected, "{range:?} from both ends");
    }
    d.compact().unwrap();
    let all: Vec<_> = d.iter().map(|t| t.unwrap()).collect();
    assert!(
        all.iter().map(|(k, v)| (&k[..], &v[..])).eq(model.iter().map(|(k, v)| (&k[..], &v[..])))
    );
}

fn number(i: u64) -> Vec<u8> {
    i.to_be_bytes().to_vec()
}

#[test]
fn an_estimate_is_as_good_as_it_says_and_reads_no_tuples() {
    let db = store();
    let d = db.open_dictionary("d").unwrap();
    let count = 20_000;
    for i in 0..count {
        let len = if i % 100 == 0 { 5000 } else { 80 };
        d.insert(number(i), vec![i as u8; len]).unwrap();
    }
    db.flush().unwrap();
    d.compact().unwrap();
    let whole = d.estimate::<&[u8]>(..).unwrap();
    assert_eq!(
        (whole.items, whole.items_error),
        (count, 0),
        "a whole dictionary of one run is exact"
    );
    let read = |db: &Kvdb| db.stats().io.by_purpose[zones::Purpose::Tuples as usize].read_bytes;
    let before = read(&db);
    let mut random = Random::new(1);
    for _ in 0..200 {
        let (a, b) = (random.below(count), random.below(count));
        let (a, b) = (a.min(b), a.max(b));
        let e = d.estimate(number(a)..number(b)).unwrap();
        assert!(e.items.abs_diff(b - a) <= e.items_error, "{a}..{b}: {e:?}");
        assert!(e.items_error <= 200, "two blocks of 8 KiB: {e:?}");
        let real: u64 = (a..b).map(|i| 8 + if i % 100 == 0 { 5000 } else { 80 }).sum();
        assert!(e.bytes.abs_diff(real) <= e.bytes_error + real / 10, "{a}..{b}: {e:?}, {real}");
    }
    assert_eq!(read(&db), before);
    assert_eq!(d.estimate(number(5)..number(5)).unwrap(), kvdb::Estimate::default());
    assert_eq!(d.estimate(number(9)..number(5)).unwrap(), kvdb::Estimate::default());
    // Data in memory counts as well.
    d.insert(number(count), "one more").unwrap();
    assert_eq!(d.estimate::<&[u8]>(..).unwrap().items, count + 1);
    for i in 1..5000 {
        d.insert(number(count + i), "more").unwrap();
    }
    let more = d.estimate(number(count)..).unwrap();
    assert!(more.items.abs_diff(5000) < 100, "{more:?}");
}

#[test]
fn compacting_a_range_frees_what_was_deleted_there_and_leaves_the_rest_alone() {
    let db = store();
    let d = db.open_dictionary("d").unwrap();
    let mut random = Random::new(3);
    let count = 4000;
    for i in 0..count {
        d.insert(number(i), bytes(&mut random, 1000)).unwrap();
    }
    db.flush().unwrap();
    d.compact().unwrap();
    d.remove_range(number(1000)..number(3000)).unwrap();
    for i in 0..200 {
        d.insert(number(random.below(count)), format!("new {i}")).unwrap();
    }
    db.flush().unwrap();
    let before: Vec<_> = d.iter().map(|t| t.unwrap()).collect();
    let data = |db: &Kvdb| {
        db.stats().dictionaries[0].levels.iter().flatten().map(|r| r.block_bytes).sum::<u64>()
    };
    let (live, written) = (data(&db), db.stats().merged_bytes);
    assert!(live > 3_900_000);
    d.compact_range(number(900)..number(3100)).unwrap();
    assert!(data(&db) < live - 1_900_000, "{} of {live}", data(&db));
    assert!(db.stats().merged_bytes - written < 700_000, "{}", db.stats().merged_bytes - written);
    assert_eq!(d.iter().map(|t| t.unwrap()).collect::<Vec<_>>(), before);
    let runs = || db.stats().dictionaries[0].levels.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(
        runs().iter().sum::<usize>(),
        2,
        "the young run keeps what it has outside: {:?}",
        runs()
    );
    d.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(runs().iter().sum::<usize>(), 1, "{:?}", runs());
    assert_eq!(d.iter().map(|t| t.unwrap()).collect::<Vec<_>>(), before);
    let settled = db.stats().merged_bytes;
    d.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(db.stats().merged_bytes, settled, "nothing is left to do");
    drop(before);
    db.close().unwrap();
}

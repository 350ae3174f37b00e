//! Tests of data that is kept for as long as it can be read: values of tuples, values under a
//! second key, and versions that a view reads.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{create, small};
use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{Batch, DictionaryId, DictionaryOptions, Durability, Isolation, Kvdb};
use zones::MemoryDevice;

const BUFFERED: Durability = Durability::Buffered;
/// The length of a value, and the number of values, which fill zones of their own.
const LEN: usize = 2 << 20;
const COUNT: u64 = 12;

struct Store {
    db: Kvdb,
    env: Arc<Simulated>,
    device: Arc<MemoryDevice>,
}

fn noise(seed: u64) -> Bytes {
    let mut value = vec![0; LEN];
    Random::new(seed).fill(&mut value);
    value.into()
}

fn key(i: u64) -> Bytes {
    Bytes::copy_from_slice(&i.to_be_bytes())
}

impl Store {
    fn new() -> Store {
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        Store { db: create(device.clone(), env.clone(), small()).unwrap(), env, device }
    }

    fn dictionary(&self, name: &str) -> DictionaryId {
        self.db
            .create_dictionary(name, DictionaryOptions { separate_at: 512, ..Default::default() })
            .unwrap()
    }

    /// A dictionary of large values, in runs.
    fn with_values(&self, name: &str) -> DictionaryId {
        let d = self.dictionary(name);
        (0..COUNT).for_each(|i| self.db.put(d, &key(i), &noise(i), BUFFERED).unwrap());
        self.db.flush().unwrap();
        d
    }

    /// The space of unreferenced data is freed, and other data is written there.
    fn write_over(&self) {
        self.db.reclaim();
        for _ in 0..100 {
            self.env.advance(Duration::from_secs(1));
            self.db.step().unwrap();
        }
        let other = self.dictionary("other");
        for i in 0..2 * COUNT {
            self.db.put(other, &key(i), &noise(1000 + i), BUFFERED).unwrap();
        }
        self.db.flush().unwrap();
    }
}

#[test]
fn a_tuple_has_its_value_also_when_its_view_is_gone() {
    for way in ["cursor", "transaction", "difference"] {
        let s = Store::new();
        let empty = s.db.view();
        let d = s.with_values("d");
        let t = s.db.begin(Isolation::Snapshot).unwrap();
        let tuples: Vec<_> = match way {
            "difference" => {
                let changes = empty.difference(d, &s.db.view(), d).unwrap();
                changes.map(|change| change.unwrap().after.unwrap()).collect()
            }
            _ => {
                let mut cursor = match way {
                    "cursor" => s.db.view().cursor(d, b"", b"").unwrap(),
                    _ => t.cursor(d, b"", b"").unwrap(),
                };
                std::iter::from_fn(|| cursor.next().unwrap()).collect()
            }
        };
        drop((t, empty));
        assert_eq!(tuples.len() as u64, COUNT);
        s.db.drop_dictionary(d).unwrap();
        s.write_over();
        for (i, tuple) in (0..).zip(&tuples) {
            assert!(tuple.value().unwrap() == noise(i), "{way}: value {i}");
        }
        // Its space is not kept any longer.
        let held = s.db.space().free;
        drop(tuples);
        s.db.reclaim();
        assert!(
            s.db.space().free >= held + COUNT / 2 * LEN as u64,
            "{way}: its space is free again"
        );
    }
}

/// A value that was put by reference under another key stays in place, whatever happens to its
/// first key.
#[test]
fn a_value_with_two_keys_outlives_the_first_one() {
    for way in ["batch", "transaction", "large transaction"] {
        let s = Store::new();
        let from = s.with_values("from");
        let to = s.dictionary("to");
        let view = Arc::new(s.db.view());
        let mut batch = Batch::new();
        for (key, value) in view.scan_stored(from, b"", b"", usize::MAX).unwrap() {
            batch.put_stored(to, key, value);
        }
        drop(view);
        match way {
            "batch" => s.db.commit(batch, BUFFERED).unwrap(),
            _ => {
                let t = s.db.begin(Isolation::Snapshot).unwrap();
                t.apply(batch).unwrap();
                // More than a commit takes into memtables.
                let more = if way == "transaction" { 0 } else { 20_000u64 };
                (0..more).for_each(|i| t.put(to, key(1000 + i), vec![7; 100]).unwrap());
                t.commit(BUFFERED).unwrap();
            }
        }
        s.db.drop_dictionary(from).unwrap();
        s.write_over();
        let all = |db: &Kvdb, when: &str| {
            for i in 0..COUNT {
                let found = db.get(to, &key(i));
                assert!(
                    found.as_ref().is_ok_and(|v| v.as_ref() == Some(&noise(i))),
                    "{way}, {when}: value {i}: {:?}",
                    found.err()
                );
            }
        };
        all(&s.db, "in memory");
        s.db.sync().unwrap();
        let (again, _) = Kvdb::open(
            Arc::new(MemoryDevice::clone(&s.device)),
            Arc::new(Simulated::new(2)),
            small(),
        )
        .expect("a store that was synced");
        all(&again, "after a crash");
    }
}

/// Range tombstones that newer ones cover are dropped, except for those that a view distinguishes.
#[test]
fn a_view_sees_what_it_saw_however_many_ranges_are_deleted_above_it() {
    let s = Store::new();
    let d = s.dictionary("d");
    let put = |value: &str| s.db.put(d, b"k", value.as_bytes(), BUFFERED).unwrap();
    let delete = || {
        let mut batch = Batch::new();
        batch.delete_range(d, "a", "z");
        s.db.commit(batch, BUFFERED).unwrap();
    };
    let mut views = Vec::new();
    for i in 0..20 {
        put(&i.to_string());
        views.push((s.db.view(), Some(i.to_string())));
        delete();
        views.push((s.db.view(), None));
        // A copy in place of the view.
        if i % 3 == 0 {
            let (view, expected) = views.swap_remove(i as usize);
            views.push((view.clone(), expected));
        }
        for (view, expected) in &views {
            let found = view.get(d, b"k").unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap());
            assert_eq!(found, *expected, "after {i}");
        }
    }
}

/// Versions that newer ones hide are dropped as others come, except for those that a view reads.
#[test]
fn a_view_sees_what_it_saw_however_often_it_is_overwritten() {
    let s = Store::new();
    let d = s.dictionary("d");
    let mut views = Vec::new();
    for i in 0..60u32 {
        s.db.put(d, b"k", &i.to_be_bytes(), BUFFERED).unwrap();
        if i % 7 == 0 {
            views.push((s.db.view(), i));
        }
        // The clock determines which versions no view reads any more.
        s.env.advance(Duration::from_millis(20));
        s.db.step().unwrap();
        for (view, i) in &views {
            assert_eq!(view.get(d, b"k").unwrap().unwrap(), i.to_be_bytes()[..]);
        }
    }
}

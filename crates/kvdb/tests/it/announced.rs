//! Tests of keys that are announced in a store in object storage. They are requested together, so
//! reads of them wait for one round of requests. The announcement itself waits for nothing.

use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{DictionaryId, Kvdb, OpenOptions, RemoteZones, Scope};
use objects::{Objects, RoundObjects};

use crate::bucket::*;
use crate::model::*;

const KEYS: u64 = 40_000;

/// Requests that are sent together arrive within this time, even on a machine with much to do.
const QUIET: Duration = Duration::from_millis(300);

fn key(n: u64) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

/// Publishes a store with many keys in one run. If `rehearses`, its index is among the first reads.
fn published(rehearses: bool) -> (Bucket, DictionaryId) {
    let bucket = Bucket::new();
    let (source, mut random) = source(1);
    let words = source.open_dictionary("words").unwrap();
    (0..KEYS).for_each(|n| words.insert(key(n), bytes(&mut random, 300)).unwrap());
    source.compact(words.id()).unwrap();
    let mut publisher = source.publisher(&bucket.store("fruit")).unwrap();
    if rehearses {
        publisher.rehearse(Box::new(|_| {}));
    }
    publisher.publish(&mut |_| Ok(())).unwrap();
    (bucket, words.id())
}

/// Opens a copy, whose requests are answered in rounds.
fn opened(bucket: &Bucket) -> (Kvdb, Arc<RoundObjects>) {
    let rounds = Arc::new(RoundObjects::new(bucket.memory.clone(), QUIET));
    let remote = Some(RemoteZones::new(rounds.clone() as Arc<dyn Objects>));
    let options = OpenOptions { remote, read_only: true, memory: 64 << 20, ..Default::default() };
    let device = copied(&bucket.store("fruit"), 5);
    (Kvdb::open(device, Arc::new(Machine::default()), options).unwrap().0, rounds)
}

/// Reads some keys far from each other in a new copy, and returns the rounds.
fn rounds(bucket: &Bucket, words: DictionaryId, scope: fn(&Kvdb) -> Scope, announces: bool) -> u64 {
    let (db, rounds) = opened(bucket);
    let scope = scope(&db);
    let keys: Vec<Vec<u8>> = (0..8).map(|n| key(n * KEYS / 8)).collect();
    if announces {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        scope.announce(words, &keys);
    }
    for key in &keys {
        assert!(scope.get(words, key).unwrap().is_some());
    }
    rounds.rounds()
}

#[test]
fn announced_keys_are_read_in_one_round_of_requests() {
    let (bucket, words) = published(true);
    let mainline: fn(&Kvdb) -> Scope = |db| Scope::Mainline(db.clone());
    let frozen: fn(&Kvdb) -> Scope = |db| Scope::Frozen(db.view());
    for scope in [mainline, frozen] {
        assert!(rounds(&bucket, words, scope, false) > 4);
        assert_eq!(rounds(&bucket, words, scope, true), 1);
    }
}

#[test]
fn a_range_is_announced_by_the_key_at_which_it_begins() {
    let (bucket, words) = published(true);
    let (db, rounds) = opened(&bucket);
    let scope = Scope::Mainline(db);
    let starts: [&[u8]; 3] = [b"0001", b"0002", b"0003"];
    scope.announce(words, &starts);
    for start in starts {
        let found = scope.scan(words, start, b"", 1).unwrap();
        assert!(found[0].0.starts_with(start));
    }
    assert_eq!(rounds.rounds(), 1);
}

#[test]
fn an_announcement_does_not_wait_for_the_index() {
    let (bucket, words) = published(false);
    let (db, rounds) = opened(&bucket);
    let before = (rounds.rounds(), db.remote_stats().unwrap().waits);
    Scope::Mainline(db.clone()).announce(words, &[&key(5), &key(KEYS / 2)]);
    assert_eq!((rounds.rounds(), db.remote_stats().unwrap().waits), before);
    assert!(db.get(words, &key(5)).unwrap().is_some());
    assert!(db.remote_stats().unwrap().waits > before.1, "the read waits");
}

#[test]
fn other_stores_and_unknown_dictionaries_are_announced_in_vain() {
    let db = Kvdb::in_memory();
    let words = db.open_dictionary("words").unwrap();
    words.insert("key", "value").unwrap();
    let scope = Scope::Mainline(db.clone());
    scope.announce(words.id(), &[b"key", b"absent"]);
    assert_eq!(scope.get(words.id(), b"key").unwrap().unwrap(), "value");
    let (bucket, words) = published(false);
    let (db, _) = opened(&bucket);
    Scope::Frozen(db.view()).announce(DictionaryId(words.0 + 1000), &[b"key"]);
    assert!(db.get(words, &key(1)).unwrap().is_some());
}

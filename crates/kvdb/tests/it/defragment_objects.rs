//! Tests of a store that continues in another file than the one that wrote its objects. When a
//! defragmentation is asked to empty these objects, their dead data is reclaimed, and all live data
//! stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bucket::*;
use crate::model::*;
use env::{Random, Simulated};
use kvdb::{CollectOptions, DefragOptions, Kvdb, Publisher, RemotePlace, WriterOptions};
use objects::Objects;
use zones::MemoryDevice;

const VALUES: u64 = 400;
const VALUE: usize = 100 << 10;

type Values = BTreeMap<String, Vec<u8>>;

fn key(i: u64) -> String {
    format!("value-{i:04}")
}

/// A store of 40 MB that was published.
fn published() -> (Bucket, Values) {
    let bucket = Bucket::new();
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), small()).unwrap();
    let words = db.open_dictionary("words").unwrap();
    let (mut random, mut values) = (Random::new(1), Values::new());
    for i in 0..VALUES {
        let mut value = vec![0; VALUE];
        random.fill(&mut value);
        words.insert(key(i), value.clone()).unwrap();
        values.insert(key(i), value);
    }
    push(&db, &bucket.store("fruit"));
    (bucket, values)
}

/// Takes the store over on another machine.
fn taken_over(bucket: &Bucket) -> (Kvdb, Publisher) {
    let store = bucket.store("fruit");
    let device = Arc::new(MemoryDevice::new());
    let options = WriterOptions { label: "there".into(), take: true };
    store.writer_to(device.clone(), Arc::new(Simulated::new(2 << 20)), &options).unwrap();
    let db = open_with(device, bucket.zones(), small()).unwrap();
    let mut publisher = db.publisher(&store).unwrap();
    publisher.stay_open("there");
    (db, publisher)
}

fn read(db: &Kvdb) -> Values {
    let words = db.open_dictionary("words").unwrap();
    let all = db.view().scan(words.id(), b"", b"", usize::MAX).unwrap();
    all.into_iter().map(|(k, v)| (String::from_utf8(k.to_vec()).unwrap(), v.to_vec())).collect()
}

/// Bytes of zones in the bucket after all dead objects were deleted.
fn bytes_there(bucket: &Bucket) -> u64 {
    let place = RemotePlace::new(bucket.memory.clone());
    let options = CollectOptions { grace: Duration::ZERO, dry_run: false };
    for world in 0..2 {
        place.collect(&Simulated::new(world + (9 << 20)), options, &mut |_| Ok(())).unwrap();
    }
    assert_eq!(place.survey(&Simulated::new(11 << 20)).unwrap().missing, []);
    bucket.memory.list("z/", "").unwrap().entries.iter().map(|entry| entry.len).sum()
}

/// Deletes three of four values, so that little of each object is in use.
fn thinned(db: &Kvdb, values: &mut Values) {
    let words = db.open_dictionary("words").unwrap();
    for i in (0..VALUES).filter(|i| i % 4 != 0) {
        words.remove(key(i)).unwrap();
        values.remove(&key(i));
    }
    db.compact(words.id()).unwrap();
}

const OBJECTS: DefragOptions =
    DefragOptions { bytes_per_second: None, fullest_percent: 90, objects: true };

#[test]
fn objects_that_are_mostly_holes_are_emptied_when_that_is_asked_for() {
    let (bucket, mut values) = published();
    let (db, mut publisher) = taken_over(&bucket);
    let full = bytes_there(&bucket);
    thinned(&db, &mut values);
    db.defragment(DefragOptions::default()).unwrap();
    publisher.publish(&mut |_| Ok(())).unwrap();
    assert!(bytes_there(&bucket) >= full, "nothing is fetched unless it is asked for");

    db.defragment(OBJECTS).unwrap();
    publisher.publish(&mut |_| Ok(())).unwrap();
    let left = bytes_there(&bucket);
    assert!(left < full / 2, "{left} of {full} bytes are left");
    assert_eq!(read(&db), values);
    assert_eq!(read(&reader(&copied(&bucket.store("fruit"), 99), &bucket)), values);

    // Another defragmentation moves nothing.
    db.defragment(OBJECTS).unwrap();
    assert_eq!(db.defrag_progress().bytes_moved, 0);
}

#[test]
fn a_zone_that_a_snapshot_keeps_is_left_where_it_is() {
    let (bucket, mut values) = published();
    let (db, mut publisher) = taken_over(&bucket);
    let before = values.clone();
    db.snapshot("monday").unwrap();
    thinned(&db, &mut values);
    db.defragment(OBJECTS).unwrap();
    assert_eq!(db.defrag_progress().bytes_moved, 0, "it would free nothing");
    publisher.publish(&mut |_| Ok(())).unwrap();
    assert_eq!(read(&db), values);
    db.rollback("monday").unwrap();
    assert_eq!(read(&db), before);
}

#[test]
fn objects_that_are_mostly_in_use_are_not_fetched() {
    let (bucket, mut values) = published();
    let (db, mut publisher) = taken_over(&bucket);
    let words = db.open_dictionary("words").unwrap();
    for i in (0..VALUES).filter(|i| i % 4 == 0) {
        words.remove(key(i)).unwrap();
        values.remove(&key(i));
    }
    db.compact(words.id()).unwrap();
    let got = bucket.counts.counts().get.bytes;
    db.defragment(OBJECTS).unwrap();
    let more = bucket.counts.counts().get.bytes - got;
    assert!(more < 4 << 20, "{more} bytes were fetched");
    publisher.publish(&mut |_| Ok(())).unwrap();
    assert_eq!(read(&db), values);
}

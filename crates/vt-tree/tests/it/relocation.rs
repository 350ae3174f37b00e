//! Tests that large values are copied to places in the caller's order, and that the runs that refer
//! to them are updated.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use vt_tree::{
    BlockCache, ExtentRef, Input, KeyRange, Memtable, Merge, MergeOptions, MergeStats, Placement,
    Relocated, Relocation, Run, TreeCursor, Value, check_run, slice,
};
use zones::{
    Device, FormatOptions, Lifetime, MemoryDevice, Priority, Purpose, ZoneId, ZonePin, Zones,
};

const KEYS: u64 = 4000;
const VALUE: u64 = 4096;

fn store() -> Arc<BlockCache> {
    store_on(Arc::new(MemoryDevice::default()))
}

fn store_on(device: Arc<dyn Device>) -> Arc<BlockCache> {
    let zones = Zones::format(device, FormatOptions::default()).expect("a fresh store");
    zones.start();
    BlockCache::new(zones, 16 << 20)
}

fn value(key: u64) -> Bytes {
    Bytes::from(key.to_be_bytes().repeat(VALUE as usize / 8))
}

/// A run of all keys, whose values lie in the order of the keys.
fn run(store: &Arc<BlockCache>) -> Arc<Run> {
    let m = Memtable::new();
    for key in 0..KEYS {
        m.put(&key.to_be_bytes(), key + 1, Value::Inline(value(key)));
    }
    merged(store, Input::Memtable(Arc::new(m)), Placement::stitch()).0
}

fn merged(store: &Arc<BlockCache>, input: Input, placement: Placement) -> (Arc<Run>, MergeStats) {
    let options = MergeOptions { placement, ..MergeOptions::default() };
    let (run, stats) = Merge::new(store, &[input], &KeyRange::all(), options)
        .and_then(Merge::finish)
        .expect("merges");
    let run = run.expect("something is left");
    let mut faults = Vec::new();
    check_run(&run, &mut |f| faults.push(f), &mut |_| {});
    assert_eq!(faults, Vec::<String>::new());
    (run, stats)
}

/// The places of the values of a run, in the order of the keys. Each value is compared with what
/// was put.
fn places(store: &Arc<BlockCache>, run: &Arc<Run>, first: u64) -> Vec<ExtentRef> {
    let mut cursor = TreeCursor::new(store, &[Input::Run(run.clone())], KEYS + 1);
    let mut places = Vec::new();
    while let Some(tuple) = cursor.next().expect("it is whole") {
        let key = first + places.len() as u64;
        assert_eq!(&tuple.key[..], &key.to_be_bytes()[..]);
        assert!(store.read_value(&tuple.value).expect("it is whole") == value(key), "{key}");
        let Value::Extent(e) = tuple.value else { panic!("it lies outside its block") };
        places.push(e);
    }
    places
}

/// The keys in the order in which their values are to lie: 1237 and 4000 have no factor in common,
/// so each of them once.
fn order() -> impl Iterator<Item = usize> {
    (0..KEYS).map(|n| (n * 1237 % KEYS) as usize)
}

/// Lays the values in that order.
fn laid(store: &Arc<BlockCache>, places: &[ExtentRef]) -> (Relocated, ZonePin, MergeStats) {
    let placement = Placement { values_at: 256 << 10, window: 512 << 10, ..Placement::stitch() };
    let mut relocation = Relocation::new(store, placement, Priority::Merge, Lifetime::Young);
    for key in order() {
        relocation.push(places[key]).expect("there is room");
    }
    relocation.finish().expect("there is room")
}

#[test]
fn values_lie_in_the_order_of_the_caller_and_all_runs_that_share_them_follow() {
    let store = store();
    let run = run(&store);
    let of_some = KeyRange {
        start: 1000u64.to_be_bytes().to_vec().into(),
        end: Some(2000u64.to_be_bytes().to_vec().into()),
    };
    let some = slice(&run, &of_some).expect("it is whole").expect("keys");
    let before = places(&store, &run, 0);
    let (relocated, pin, stats) = laid(&store, &before);
    assert_eq!(relocated.len() as u64, KEYS, "all of them were scattered");
    assert_eq!((stats.values_read, stats.values_written), (KEYS * VALUE, KEYS * VALUE));

    let relocated = Some(Arc::new(relocated));
    let placement = Placement { relocated, ..Placement::stitch() };
    let (run, stats) = merged(&store, Input::Run(run), placement.clone());
    assert_eq!((stats.values_read, stats.values_written), (0, 0), "only references change");
    let (some, _) = merged(&store, Input::Run(some), placement);
    drop(pin);
    let after = places(&store, &run, 0);
    let addresses: Vec<u64> = order().map(|key| after[key].addr).collect();
    let breaks = addresses.windows(2).filter(|pair| pair[1] != pair[0] + VALUE).count();
    assert!(breaks <= 3, "{breaks}: they fill two zones or three");
    assert!(places(&store, &some, 1000) == after[1000..2000], "shared values stay shared");

    let (relocated, _, stats) = laid(&store, &after);
    assert!(relocated.is_empty() && stats.written() == 0, "what lies in order stays");
}

/// A zone is emptied in the order of addresses, which requires the list of values in it.
#[test]
fn the_values_of_a_run_in_some_zones_are_found_and_no_others() {
    let store = store();
    let run = run(&store);
    let places = places(&store, &run, 0);
    let zones: BTreeSet<ZoneId> = places.iter().map(|e| ZoneId::of(e.addr)).collect();
    assert!(zones.len() > 1, "{zones:?}");
    for zone in &zones {
        let mut found = Vec::new();
        run.values_in(&BTreeSet::from([*zone]), &mut |e| found.push(e)).expect("it is whole");
        let there = places.iter().filter(|e| ZoneId::of(e.addr) == *zone);
        assert!(found.iter().eq(there), "zone {zone:?}");
    }
    run.values_in(&BTreeSet::new(), &mut |e| panic!("{e:?}")).expect("it is whole");
}

#[test]
fn references_to_other_places_stay() {
    let store = store();
    let (one, other) = (run(&store), run(&store));
    let (relocated, _pin, _) = laid(&store, &places(&store, &one, 0));
    let before = places(&store, &other, 0);
    let placement = Placement { relocated: Some(Arc::new(relocated)), ..Placement::stitch() };
    let (after, stats) = merged(&store, Input::Run(other), placement);
    assert!(places(&store, &after, 0) == before);
    assert_eq!(stats.values_written, 0);
}

#[test]
fn a_damaged_value_stays_where_it_is_and_the_others_move() {
    let device = Arc::new(MemoryDevice::default());
    let store = store_on(device.clone());
    let run = run(&store);
    let before = places(&store, &run, 0);
    device.write_at(Purpose::Pages, before[1000].addr, b"noise").expect("it is memory");
    let (relocated, _pin, stats) = laid(&store, &before);
    assert_eq!(relocated.len() as u64, KEYS - 1);
    assert_eq!(stats.values_written, (KEYS - 1) * VALUE);
}

/// A device that fails to read a range.
#[derive(Default)]
struct BadSectors {
    memory: MemoryDevice,
    start: AtomicU64,
    end: AtomicU64,
}

impl Device for BadSectors {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (start, end) = (self.start.load(Relaxed), self.end.load(Relaxed));
        if offset < end && offset + buf.len() as u64 > start {
            return Err(io::Error::other("a bad sector"));
        }
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
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
}

/// Otherwise one bad sector would end each defragmentation at the same place.
#[test]
fn a_few_values_that_cannot_be_read_stay_where_they_are_but_many_are_an_error() {
    let device = Arc::new(BadSectors::default());
    let store = store_on(device.clone());
    let run = run(&store);
    let before = places(&store, &run, 0);
    device.start.store(before[1000].addr, Relaxed);
    device.end.store(before[1000].addr + 3 * VALUE, Relaxed);
    let (relocated, _pin, _) = laid(&store, &before);
    assert_eq!(relocated.len() as u64, KEYS - 3);

    device.start.store(0, Relaxed);
    device.end.store(u64::MAX, Relaxed);
    let placement = Placement { values_at: 256 << 10, window: 512 << 10, ..Placement::stitch() };
    let mut relocation = Relocation::new(&store, placement, Priority::Merge, Lifetime::Young);
    let failed = order().any(|key| relocation.push(before[key]).is_err());
    assert!(failed, "the device reads nothing");
}

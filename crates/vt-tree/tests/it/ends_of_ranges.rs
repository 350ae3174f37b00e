//! A cursor that stops at the end of a range.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use vt_tree::{BlockCache, Input, KeyRange, Memtable, MergeOptions, TreeCursor, Value, merge};
use zones::{FormatOptions, Purpose, Watch, WatchedDevice, Zones};

const KEYS: u64 = 20_000;

/// Counts the bytes of tuples that are read.
#[derive(Default)]
struct Counts {
    tuples: AtomicU64,
}

impl Watch for Counts {
    fn reads(&self, purpose: Purpose, _: u64, len: u64) -> io::Result<()> {
        if purpose == Purpose::Tuples {
            self.tuples.fetch_add(len, Relaxed);
        }
        Ok(())
    }
}

fn key(i: u64) -> Vec<u8> {
    i.to_be_bytes().to_vec()
}

#[test]
fn a_cursor_that_stops_at_an_end_reads_nothing_of_what_lies_after_it() {
    let device = Arc::new(WatchedDevice::<Counts>::default());
    let zones = Zones::format(device.clone(), FormatOptions::default()).expect("a new store");
    zones.start();
    let cache = BlockCache::new(zones, 64 << 10);
    let run = |fill: &dyn Fn(&Memtable)| {
        let memtable = Memtable::new();
        fill(&memtable);
        let inputs = [Input::Memtable(Arc::new(memtable))];
        let run = merge(&cache, &inputs, &KeyRange::all(), MergeOptions::default());
        Input::Run(run.expect("merges").expect("it has items"))
    };
    let value = || Value::Inline(Bytes::from(vec![7; 100]));
    let old = run(&|m| (0..KEYS).for_each(|i| m.put(&key(i), i + 1, value())));
    let deleted = run(&|m| (10..KEYS).for_each(|i| m.delete(&key(i), KEYS + i)));
    // A live tuple at the end, where a cursor that knows its end reads nothing in memory.
    let memtable = Memtable::new();
    memtable.put(&key(10), 3 * KEYS, value());
    let inputs = [Input::Memtable(Arc::new(memtable)), deleted, old];

    let read = |from: u64| device.tuples.load(Relaxed) - from;
    let before = read(0);
    let mut cursor = TreeCursor::new(&cache, &inputs, u64::MAX);
    cursor.end_at(&key(10));
    cursor.seek(&key(5));
    for i in 5..10 {
        assert!(cursor.advance_below(&key(10)).expect("reads"));
        assert_eq!(cursor.current().map(|t| t.key.to_vec()), Some(key(i)));
    }
    for _ in 0..2 {
        assert!(!cursor.advance_below(&key(10)).expect("reads"), "the range ends");
        assert!(cursor.current().is_none());
    }
    assert!(read(before) < 128 << 10, "{} bytes were read for five tuples", read(before));
    assert!(cursor.retreat().expect("reads"), "it goes back from the end");
    assert_eq!(cursor.current().map(|t| t.key.to_vec()), Some(key(9)));

    // All else is deleted, and takes a long walk.
    let before = read(0);
    cursor.seek(&key(10));
    assert!(!cursor.advance().expect("reads"));
    assert!(read(before) > 1 << 20, "only {} bytes were read", read(before));
}

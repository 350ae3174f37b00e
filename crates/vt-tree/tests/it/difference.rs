//! Tests of the difference of two states. The inputs are made by hand, since random histories
//! rarely produce these cases.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    BlockCache, Difference, Input, KeyChange, KeyRange, Memtable, Merge, MergeOptions, Seq, Side,
    Value,
};
use zones::{FormatOptions, MemoryDevice, Zones};

fn store() -> Arc<BlockCache> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    BlockCache::new(zones, 64 << 10)
}

fn memtable(fill: impl FnOnce(&Memtable)) -> Input {
    let memtable = Memtable::new();
    fill(&memtable);
    Input::Memtable(Arc::new(memtable))
}

/// Returns an input as a run.
fn run(store: &Arc<BlockCache>, input: &Input) -> Input {
    let options = MergeOptions { drop_tombstones: false, ..MergeOptions::default() };
    let merged = Merge::new(store, std::slice::from_ref(input), &KeyRange::all(), options);
    let (run, _) = merged.and_then(Merge::finish).expect("merged");
    Input::Run(run.expect("something is left"))
}

fn changes(store: &Arc<BlockCache>, before: &[Input], after: &[Input]) -> Vec<KeyChange> {
    let side = |inputs: &[Input]| -> Side {
        inputs.iter().map(|input| (input.clone(), Seq::MAX)).collect()
    };
    let mut difference = Difference::new(store, side(before), side(after)).expect("begun");
    let mut all = Vec::new();
    while let Some(change) = difference.next().expect("compared") {
        all.push(change);
    }
    all
}

/// Both sides have the same item of the key, and the same deletion of the key, which a difference
/// therefore skips. On one side the deletion lies above the item, on the other below it.
#[test]
fn what_differs_has_what_was_put_again_above_its_deletion() {
    let store = store();
    let value = || Value::Inline(Bytes::from_static(b"value"));
    let put = memtable(|m| m.put(b"k", 1, value()));
    let again = memtable(|m| m.put(b"k", 3, value()));
    let other = memtable(|m| m.put(b"x", 1, value()));
    for (way, deleted) in [
        ("alone", memtable(|m| m.delete(b"k", 2))),
        ("with a range", memtable(|m| m.delete_range(b"a", b"l", 2))),
    ] {
        for (of_runs, what) in [(false, "memtables"), (true, "runs")] {
            let [put, deleted, again, other] = [&put, &deleted, &again, &other]
                .map(|input| if of_runs { run(&store, input) } else { input.clone() });
            // In the later state a merge has dropped the old item.
            let before = [deleted.clone(), put, other.clone()];
            let after = [again, deleted, other];
            let want = |before, after| vec![KeyChange { key: "k".into(), before, after }];
            let found = changes(&store, &before, &after);
            assert_eq!(found, want(None, Some(value())), "deleted {way}, {what}");
            let found = changes(&store, &after, &before);
            assert_eq!(found, want(Some(value()), None), "deleted {way}, {what}, back");
        }
    }
}

/// Device reads of a difference whose later side has deleted everything, in `ranges` ranges that do
/// not touch each other.
fn reads_of_many_ranges(ranges: u64) -> u64 {
    let store = store();
    let key = |i: u64, n: u64| format!("{i:06}/{n}").into_bytes();
    let value = || Value::Inline(Bytes::from(vec![7; 200]));
    let put = memtable(|m| {
        (0..ranges).for_each(|i| (0..4).for_each(|n| m.put(&key(i, n), 1, value())));
    });
    let deleted = memtable(|m| {
        (0..ranges).for_each(|i| m.delete_range(&key(i, 0), &key(i, 9), 2));
    });
    let [put, deleted] = [put, deleted].map(|input| run(&store, &input));
    store.zones().sync().expect("synced");
    let before = store.zones().io().total().read_ops;
    let found = changes(&store, std::slice::from_ref(&put), &[deleted, put.clone()]);
    assert_eq!(found.len() as u64, 4 * ranges);
    store.zones().io().total().read_ops - before
}

#[test]
fn many_ranges_are_not_walked_through_for_each_of_them() {
    let (few, many) = (reads_of_many_ranges(1000), reads_of_many_ranges(4000));
    assert!(many < 8 * few, "{few} reads of 1,000 ranges, {many} of 4,000");
}

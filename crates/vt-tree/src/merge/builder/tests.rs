use super::*;
use crate::filter::hash;
use crate::item::Body;
use crate::value::Value;
use crate::value::place_value;
use zones::{FormatOptions, MemoryDevice, Priority, Zones};

#[test]
fn small_items_behind_an_undecided_value_do_not_pile_up() {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::Log);
    let extent = place_value(&mut writer, &[7; 4096]).expect("there is room");
    let _pin = writer.finish().expect("it is written");
    let cache = BlockCache::new(zones, 1 << 20);
    let mut b = RunBuilder::new(
        &cache,
        &MergeOptions {
            placement: Placement::threshold(1 << 20),
            priority: Priority::Log,
            ..MergeOptions::default()
        },
    );
    let put =
        |key: u64, v| Item { key: key.to_be_bytes().to_vec().into(), seq: 1, body: Body::Put(v) };
    b.push_item(put(0, Value::Extent(extent))).expect("a reference is taken");
    for i in 1..20_000 {
        b.push_item(put(i, Value::Inline(Bytes::from(vec![0; 1000])))).expect("there is room");
        assert!(b.window.len() < 10_000);
    }
    let (run, _) = b.finish().expect("there is room");
    assert_eq!(run.expect("something was pushed").stats().items, 20_000);
}

/// Returns the number of fingerprints in all filters of a run, and of items beneath them.
fn filtered(run: &Run) -> (u64, u64) {
    fn walk(cache: &BlockCache, entry: &Entry, level: u16, sum: &mut (u64, u64)) {
        if let Some(f) = entry.filter {
            sum.0 += cache.filter(f).expect("it is whole").len() as u64;
            sum.1 += entry.items;
        } else {
            let node = cache.node(entry, level).expect("it is whole");
            node.entries.iter().for_each(|e| walk(cache, e, level - 1, sum));
        }
    }
    let mut sum = (0, 0);
    let (root, level) = run.root();
    walk(run.cache(), root, level, &mut sum);
    sum
}

#[test]
fn fingerprints_of_keys_that_are_gone_stay_few() {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    let cache = BlockCache::new(zones, 1 << 20);
    let key = |i: u64| i.to_be_bytes();
    let flush = |keys: &mut dyn Iterator<Item = u64>, delete: bool| {
        let m = Arc::new(crate::Memtable::new());
        for i in keys {
            if delete {
                m.delete(&key(i), i + 1);
            } else {
                m.put(&key(i), i + 1, Value::Inline(Bytes::from_static(&[7; 100])));
            }
        }
        let all = crate::KeyRange::all();
        crate::merge(&cache, &[crate::Input::Memtable(m)], &all, MergeOptions::default())
            .expect("there is room")
            .expect("items")
    };
    let mut run = flush(&mut (0..60_000), false);
    // Spans are deleted repeatedly, so that the remaining data is stitched, piece by piece, out of
    // more and more leaves.
    for round in 0..12u64 {
        let gone = flush(&mut (0..60_000).filter(|i| (i / 700 + round * 5) % 17 == 0), true);
        let options = MergeOptions { drop_tombstones: true, ..MergeOptions::default() };
        let inputs = [crate::Input::Run(gone), crate::Input::Run(run)];
        let before = cache.zones().io().of(Purpose::Tuples).read_bytes;
        let merge = crate::Merge::new(&cache, &inputs, &crate::KeyRange::all(), options);
        let (merged, stats) = merge.and_then(crate::Merge::finish).expect("there is room");
        run = merged.expect("items");
        let read = cache.zones().io().of(Purpose::Tuples).read_bytes - before;
        assert_eq!(stats.blocks_read, read, "round {round}: also what was read for filters");
        let (fingerprints, items) = filtered(&run);
        assert_eq!(items, run.stats().items);
        assert!(
            fingerprints <= 2 * items + 100,
            "round {round}: {fingerprints} fingerprints for {items} items"
        );
    }
    assert!(run.stats().items < 30_000);
}

/// The blocks of each run have one or two items, and alternate with the blocks of the other runs. A
/// merge stitches all blocks and reads none, and the filters contain exactly the keys.
#[test]
fn blocks_of_one_or_two_items_are_stitched_unread() {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    let cache = BlockCache::new(zones, 1 << 20);
    let all = crate::KeyRange::all();
    let options = || MergeOptions {
        separate_at: u32::MAX,
        placement: Placement::threshold(0),
        ..MergeOptions::default()
    };
    for (bytes, blocks_of) in [(8192, 1), (4096, 2)] {
        let runs: Vec<_> = (0..24u64)
            .map(|run| {
                let m = Arc::new(crate::Memtable::new());
                // Each run has a block in each of 200 ranges, after those of the earlier runs.
                for (range, at) in (0..200u64).flat_map(|r| (0..blocks_of).map(move |at| (r, at))) {
                    let key = [range.to_be_bytes(), (run * blocks_of + at).to_be_bytes()].concat();
                    m.put(&key, run + 1, Value::Inline(Bytes::from(vec![7; bytes])));
                }
                crate::Input::Run(
                    crate::merge(&cache, &[crate::Input::Memtable(m)], &all, options())
                        .expect("there is room")
                        .expect("items"),
                )
            })
            .rev()
            .collect();
        let merge = crate::Merge::new(&cache, &runs, &all, options()).expect("a merge");
        let (run, stats) = merge.finish().expect("there is room");
        let run = run.expect("items");
        assert_eq!((stats.blocks_read, stats.blocks_written), (0, 0), "{bytes} bytes");
        let items = 24 * 200 * blocks_of;
        assert_eq!(filtered(&run), (items, items), "{bytes} bytes");
        for key in (0..200u64).flat_map(|r| (0..24 * blocks_of).map(move |at| (r, at))) {
            let key = [key.0.to_be_bytes(), key.1.to_be_bytes()].concat();
            assert!(
                matches!(run.get(&key, hash(&key)).expect("it is whole"), Lookup::Found(..)),
                "{key:?}"
            );
        }
    }
}

//! Tests of the bytes that stitching saves. The cost of a merge is proportional to the data that
//! overlaps, not to all data (VT-tree §3.1).

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    ADAPTIVE, BlockCache, Input, KeyRange, Memtable, Merge, MergeOptions, MergeStats, Placement,
    Run, Update, Value, check_run,
};
use zones::{FormatOptions, MemoryDevice, Zones};

fn store() -> Arc<BlockCache> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    BlockCache::new(zones, 16 << 20)
}

/// A run of `keys`, each with a value of `len` bytes.
fn run(store: &Arc<BlockCache>, keys: impl Iterator<Item = u64>, len: usize) -> Arc<Run> {
    let m = Memtable::new();
    let value = Bytes::from(vec![7u8; len]);
    for (seq, k) in keys.enumerate() {
        m.put(&k.to_be_bytes(), seq as u64 + 1, Value::Inline(value.clone()));
    }
    merged(store, &[Input::Memtable(Arc::new(m))], MergeOptions::default()).0
}

fn merged(
    store: &Arc<BlockCache>,
    inputs: &[Input],
    options: MergeOptions,
) -> (Arc<Run>, MergeStats) {
    let (run, stats) = Merge::new(store, inputs, &KeyRange::all(), options)
        .and_then(Merge::finish)
        .expect("merges");
    let run = run.expect("something is left");
    let mut faults = Vec::new();
    check_run(&run, &mut |f| faults.push(f), &mut |_| {});
    assert_eq!(faults, Vec::<String>::new());
    (run, stats)
}

fn threshold(stitch_at: u64) -> MergeOptions {
    MergeOptions { placement: Placement::threshold(stitch_at), ..MergeOptions::default() }
}

#[test]
fn sorted_runs_are_joined_without_reading_or_writing_a_tuple() {
    let store = store();
    let (a, b) = (run(&store, 0..100_000, 64), run(&store, 100_000..200_000, 64));
    let data = a.stats().block_bytes + b.stats().block_bytes;
    let (c, stats) = merged(&store, &[Input::Run(b), Input::Run(a)], threshold(64 << 10));
    assert_eq!(c.stats().items, 200_000);
    assert_eq!((stats.blocks_written, stats.blocks_read, stats.values_written), (0, 0, 0));
    assert!(
        stats.index_written * 100 < data,
        "{} index bytes for {data} bytes of data",
        stats.index_written
    );
}

#[test]
fn the_index_written_follows_the_overlap_and_not_the_size() {
    let store = store();
    let small = |store: &Arc<BlockCache>| run(store, 5_000..5_100, 64);
    let cost = |n: u64| {
        let big = run(&store, 0..n, 64);
        merged(&store, &[Input::Run(small(&store)), Input::Run(big)], threshold(0)).1
    };
    let (one, eight) = (cost(50_000), cost(400_000));
    // `cargo test -p vt-tree --test it index -- --nocapture` shows them.
    for (n, s) in
        [(50_000, &one), (100_000, &cost(100_000)), (200_000, &cost(200_000)), (400_000, &eight)]
    {
        println!(
            "100 of {n} items: {} bytes of index, {} of blocks written, {} read",
            s.index_written, s.blocks_written, s.blocks_read
        );
    }
    assert!(
        eight.index_written < one.index_written * 2,
        "{} against {}",
        one.index_written,
        eight.index_written
    );
    assert!(
        eight.blocks_written <= one.blocks_written * 2 && eight.blocks_read <= one.blocks_read * 2
    );
}

/// Each update leaves a whole value in the result, which lies elsewhere. The values between two of
/// these are shorter than the threshold of a hard disk, and stay in place.
#[test]
fn an_update_moves_its_own_value_and_no_neighbour() {
    let store = store();
    let (pages, updates) = (16_384, 256);
    let file = run(&store, 0..pages, 4096);
    let patches = Memtable::new();
    let patch = Update::patch(100, b"four").expect("it is short");
    for k in 0..updates {
        patches.update(&(k * pages / updates).to_be_bytes(), pages + 1 + k, &patch);
    }
    let inputs = [Input::Memtable(Arc::new(patches)), Input::Run(file)];
    let placement =
        Placement { values_at: 1 << 20, seek_bytes: 1 << 20, ..Placement::threshold(ADAPTIVE) };
    let (_, stats) = merged(&store, &inputs, MergeOptions { placement, ..MergeOptions::default() });
    assert_eq!(stats.values_written, updates * 4096);
    assert_eq!(stats.values_read, updates * 4096);
}

#[test]
fn large_values_stay_where_they_are_when_their_keys_are_merged() {
    let store = store();
    let (even, odd) = (
        run(&store, (0..4000).map(|i| i * 2), 4096),
        run(&store, (0..4000).map(|i| i * 2 + 1), 4096),
    );
    let inputs = [Input::Run(odd), Input::Run(even)];
    let (_, lfs) = merged(&store, &inputs, threshold(0));
    assert_eq!(lfs.values_written, 0, "threshold 0 never moves a value");
    let (_, lsm) = merged(&store, &inputs, threshold(u64::MAX));
    assert_eq!(lsm.values_written, 8000 * 4096, "an endless threshold moves all");
    let placement = Placement { values_at: 0, ..Placement::copy() };
    let (_, tight) = merged(&store, &inputs, MergeOptions { placement, ..MergeOptions::default() });
    assert_eq!(
        tight.values_written, 0,
        "where space is short, key blocks are copied and values stay"
    );
    assert!(tight.blocks_written > 0 && tight.stitched >= 8000 * 4096);
    let (_, adaptive) = merged(&store, &inputs, threshold(ADAPTIVE));
    assert_eq!(adaptive.values_written, 0);
    let (_, two) = merged(&store, &inputs, threshold(1 << 20));
    assert!(
        two.values_written < 8000 * 4096 / 50,
        "two sequences side by side are as good as one for a scan that reads ahead"
    );
}

/// Values that a scan by the index cannot read in large pieces are moved together, once.
#[test]
fn scattered_values_are_moved_once() {
    let store = store();
    // Each run has every 256th page.
    let runs: Vec<Input> =
        (0..256).map(|r| Input::Run(run(&store, (0..32).map(|i| i * 256 + r), 4096))).collect();
    let (before, stays) = merged(&store, &runs, threshold(64 << 10));
    assert_eq!(stays.values_written, 0, "a window of 16 MiB has 16 pages of each run side by side");
    let (together, moved) = merged(&store, &[Input::Run(before)], threshold(256 << 10));
    assert_eq!(moved.values_written, 8192 * 4096);
    // A quarter is overwritten, and only that quarter moves.
    let scattered: Vec<Input> =
        (0..128).map(|r| Input::Run(run(&store, (0..16).map(|i| i * 512 + r * 4), 4096))).collect();
    let inputs: Vec<Input> = scattered.into_iter().chain([Input::Run(together)]).collect();
    let (_, again) = merged(&store, &inputs, threshold(256 << 10));
    assert_eq!(again.values_written, 128 * 16 * 4096);
}

#[test]
fn short_values_are_gathered_into_their_blocks_once_and_long_ones_stay() {
    let store = store();
    let outside = MergeOptions { separate_at: 512, ..MergeOptions::default() };
    let keys = |from: u64, len| {
        let m = Memtable::new();
        let value = Value::Inline(Bytes::from(vec![from as u8; len]));
        // The lengths alternate after every thousand keys.
        (0..8000u64).filter(|k| k / 1000 % 2 == from).for_each(|k| {
            m.put(&k.to_be_bytes(), k + 1, value.clone());
        });
        merged(&store, &[Input::Memtable(Arc::new(m))], outside.clone())
    };
    let ((short, placed), (long, _)) = (keys(0, 600), keys(1, 4096));
    assert_eq!((placed.values_written, short.stats().value_bytes), (4000 * 600, 4000 * 600));
    let inputs = [Input::Run(short), Input::Run(long)];
    let gather = |inputs: &[Input]| {
        let placement = Placement { gather_below: 2048, ..Placement::stitch() };
        merged(&store, inputs, MergeOptions { placement, ..MergeOptions::default() })
    };
    let (all, stats) = gather(&inputs);
    assert_eq!((stats.values_read, stats.values_written), (4000 * 600, 0));
    assert_eq!(all.stats().value_bytes, 4000 * 4096, "the long ones are where they were");
    assert!(stats.blocks_written > 4000 * 600 && stats.blocks_written < 4000 * 660);
    let mut cursor = vt_tree::TreeCursor::new(&store, &[Input::Run(all.clone())], u64::MAX);
    let mut seen = 0u64;
    while cursor.advance().expect("reads") {
        let tuple = cursor.current().expect("it stands on a tuple").to_tuple();
        let (from, len) = if (seen / 1000).is_multiple_of(2) { (0, 600) } else { (1, 4096) };
        assert_eq!(tuple.key[..], seen.to_be_bytes());
        assert_eq!(matches!(tuple.value, Value::Inline(_)), len == 600, "key {seen}");
        assert_eq!(store.read_value(&tuple.value).expect("reads"), vec![from; len]);
        seen += 1;
    }
    assert_eq!(seen, 8000);
    let (_, again) = gather(&[Input::Run(all)]);
    assert_eq!((again.values_read, again.blocks_written), (0, 0), "there is nothing to gather");
}

#[test]
fn a_compressed_short_value_is_gathered_as_it_was() {
    let store = store();
    let m = Memtable::new();
    let value = |k: u64| -> Vec<u8> { (0..1900).map(|i| (i / 100 + k) as u8).collect() };
    (0..1000u64).for_each(|k| m.put(&k.to_be_bytes(), 1, Value::Inline(value(k).into())));
    let lz4 = MergeOptions {
        separate_at: 512,
        compress_values: vt_tree::Compression::Lz4,
        ..MergeOptions::default()
    };
    let (packed, _) = merged(&store, &[Input::Memtable(Arc::new(m))], lz4);
    assert!(packed.stats().value_bytes < 1000 * 1900 / 2);
    let placement = Placement { gather_below: 2048, ..Placement::stitch() };
    let options = MergeOptions { placement, ..MergeOptions::default() };
    let (all, _) = merged(&store, &[Input::Run(packed)], options);
    assert_eq!(all.stats().value_bytes, 0);
    for k in 0..1000u64 {
        let key = k.to_be_bytes();
        let found = all.get(&key, vt_tree::hash(&key)).expect("reads");
        assert!(matches!(&found, vt_tree::Lookup::Found(_, Value::Inline(v)) if *v == value(k)));
    }
}

/// Appending to many ranges: each flush has a little of each. Blocks end where ranges end, so
/// nothing overlaps, and the adaptive threshold follows the short spans.
#[test]
fn appends_to_many_ranges_are_stitched_at_the_default_threshold() {
    let store = store();
    let per_flush = 400u64;
    let flush = |n: u64| {
        let keys = (0..100u64)
            .flat_map(move |range| (0..per_flush).map(move |i| (range << 40) + n * per_flush + i));
        run(&store, keys, 64)
    };
    let inputs: Vec<Input> = (0..4).rev().map(|n| Input::Run(flush(n))).collect();
    let (all, stats) = merged(&store, &inputs, threshold(ADAPTIVE));
    let data = all.stats().block_bytes;
    assert_eq!(all.stats().items, 4 * 100 * per_flush);
    assert!(stats.blocks_written * 20 < data, "{} of {data} bytes copied", stats.blocks_written);
    assert!(
        data / all.stats().block_spans >= 16 << 10,
        "{} spans in {data} bytes",
        all.stats().block_spans
    );
    // Spans of one block are too short for a scan: they are copied, once.
    let per_flush = 60u64;
    let flush = |n: u64| {
        let keys = (0..500u64)
            .flat_map(move |range| (0..per_flush).map(move |i| (range << 40) + n * per_flush + i));
        run(&store, keys, 64)
    };
    let merged_of = |from: u64| {
        let inputs: Vec<Input> = (from..from + 4).rev().map(|n| Input::Run(flush(n))).collect();
        merged(&store, &inputs, threshold(ADAPTIVE))
    };
    let (a, stats) = merged_of(0);
    assert!(stats.blocks_written * 10 > a.stats().block_bytes * 9);
    let (b, again) =
        merged(&store, &[Input::Run(merged_of(4).0), Input::Run(a)], threshold(ADAPTIVE));
    assert!(
        again.blocks_written * 10 < b.stats().block_bytes,
        "{} of {}",
        again.blocks_written,
        b.stats().block_bytes
    );
}

#[test]
fn a_range_tombstone_drops_subtrees_unread() {
    let store = store();
    let big = run(&store, 0..300_000, 64);
    let m = Memtable::new();
    m.delete_range(&100u64.to_be_bytes(), &299_900u64.to_be_bytes(), 1_000_000);
    let options = MergeOptions { drop_tombstones: true, ..threshold(0) };
    let bytes = big.stats().block_bytes;
    let (left, stats) = merged(&store, &[Input::Memtable(Arc::new(m)), Input::Run(big)], options);
    assert_eq!(left.stats().items, 200);
    assert!(stats.blocks_read < bytes / 100, "{} of {bytes} read", stats.blocks_read);
    assert!(stats.pruned > bytes * 9 / 10);
}

#[test]
fn evacuation_leaves_the_victims_and_stitches_the_rest() {
    let store = store();
    let before = run(&store, 0..20_000, 4096);
    let (victim, _) = before.uses().iter().nth(3).expect("eighty megabytes lie in many zones");
    let placement = Placement { evacuate: Some(Arc::new([victim].into())), ..Placement::stitch() };
    let (after, stats) = merged(
        &store,
        &[Input::Run(before)],
        MergeOptions { placement, ..MergeOptions::default() },
    );
    assert!(after.uses().iter().all(|(z, _)| z != victim));
    assert!(
        stats.values_written <= 9 << 20,
        "{} bytes moved to empty one zone",
        stats.values_written
    );
}

/// Repeated appends, also before all existing keys, must not add a level to the tree each time: a
/// manifest allows 40.
#[test]
fn a_run_that_grows_by_one_small_merge_after_another_stays_low() {
    let store = store();
    for ascending in [true, false] {
        let mut whole = run(&store, 1_000_000..1_020_000, 64);
        for step in 1..150u64 {
            let first =
                if ascending { 1_000_000 + step * 20_000 } else { 1_000_000 - step * 2_000 };
            let next = run(&store, first..first + 500, 64);
            whole = if step % 2 == 0 {
                merged(&store, &[Input::Run(next), Input::Run(whole)], threshold(0)).0
            } else {
                let both = if ascending { [whole, next] } else { [next, whole] };
                vt_tree::concat(&store, &both)
                    .expect("they do not overlap")
                    .expect("something is there")
            };
        }
        assert_eq!(whole.stats().items, 20_000 + 149 * 500);
        assert!(whole.stats().height <= 4, "{} levels", whole.stats().height);
        let mut bytes = Vec::new();
        whole.encode(&mut bytes);
        assert_eq!(
            Run::decode(&store, &mut &bytes[..]).expect("it decodes").stats(),
            whole.stats()
        );
    }
}

//! Compares the run algebra with a model. After any sequence of flushes, merges, slices and
//! concatenations, under any placement, the tuples equal those of an ordered map.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    BlockCache, Compression, Input, KeyRange, Lookup, Memtable, MergeOptions, Placement, Run,
    TreeCursor, Update, Value, check_run, concat, hash, merge, slice,
};
use zones::{FormatOptions, MemoryDevice, Zones};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Random(u64);
impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn store() -> Arc<BlockCache> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    BlockCache::new(zones, 4 << 20)
}

fn key(n: u64) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

fn update(r: &mut Random) -> Update {
    let bytes = vec![r.next(256) as u8; r.next(30) as usize];
    match r.next(3) {
        0 => Update::add(r.next(100) as i64 - 50),
        1 => Update::append(&bytes).expect("short"),
        _ => Update::patch(r.next(4000) as usize, &bytes).expect("short"),
    }
}

/// Makes one random memtable of `n` changes, and applies them to the model as well.
fn memtable(
    r: &mut Random,
    n: u64,
    keys: u64,
    seq: &mut u64,
    model: &mut Model,
    big: bool,
) -> Arc<Memtable> {
    let m = Memtable::new();
    let start = r.next(keys);
    for i in 0..n {
        *seq += 1;
        let k = if r.next(3) == 0 { (start + i) % keys } else { r.next(keys) };
        match r.next(20) {
            0..=2 => {
                m.delete(&key(k), *seq);
                model.remove(&key(k));
            }
            3 => {
                let end = k + 1 + r.next(keys / 10 + 1);
                m.delete_range(&key(k), &key(end), *seq);
                model.retain(|x, _| *x < key(k) || *x >= key(end));
            }
            4..=8 => {
                let update = update(r);
                m.update(&key(k), *seq, &update);
                let value = update.apply(model.get(&key(k)).map(Vec::as_slice));
                model.insert(key(k), value.to_vec());
            }
            _ => {
                let len = if big && r.next(3) == 0 { 4096 } else { r.next(60) };
                let v = vec![*seq as u8; len as usize];
                m.put(&key(k), *seq, Value::Inline(Bytes::from(v.clone())));
                model.insert(key(k), v);
            }
        }
    }
    Arc::new(m)
}

fn compare(store: &Arc<BlockCache>, inputs: &[Input], model: &Model, r: &mut Random, keys: u64) {
    let mut c = TreeCursor::new(store, inputs, u64::MAX);
    let mut forward = Vec::new();
    while let Some(t) = c.next().expect("reads") {
        forward.push((t.key.to_vec(), store.read_value(&t.value).expect("reads").to_vec()));
    }
    let expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(forward, expected, "forward");
    c.seek_to_end();
    let mut backward = Vec::new();
    while let Some(t) = c.prev().expect("reads") {
        backward.push((t.key.to_vec(), store.read_value(&t.value).expect("reads").to_vec()));
    }
    backward.reverse();
    assert_eq!(backward, expected, "backward");
    // A scan with changes of direction.
    for _ in 0..20 {
        let at = key(r.next(keys));
        c.seek(&at);
        let mut pos = expected.partition_point(|(k, _)| *k < at);
        for _ in 0..10 {
            if r.next(2) == 0 {
                let got = c.next().expect("reads").map(|t| t.key.to_vec());
                assert_eq!(got, expected.get(pos).map(|(k, _)| k.clone()));
                pos = (pos + 1).min(expected.len());
            } else {
                let got = c.prev().expect("reads").map(|t| t.key.to_vec());
                assert_eq!(got, pos.checked_sub(1).map(|p| expected[p].0.clone()));
                pos = pos.saturating_sub(1);
            }
        }
    }
    compare_visits(store, inputs, model, r, keys);
    for _ in 0..50 {
        let k = key(r.next(keys));
        let lookup = inputs.iter().fold(Lookup::Absent, |newer, input| {
            newer.over(match input {
                Input::Memtable(m) => m.get(&k, u64::MAX),
                Input::Run(run) => run.get(&k, hash(&k)).expect("reads"),
            })
        });
        let value = store.resolve(lookup).expect("reads");
        let found = value.map(|v| store.read_value(&v).expect("reads").to_vec());
        assert_eq!(found.as_ref(), model.get(&k), "get");
    }
}

/// Compares visits of neighbours in memory, in both directions and within random bounds, some of
/// which end early.
fn compare_visits(
    store: &Arc<BlockCache>,
    inputs: &[Input],
    model: &Model,
    r: &mut Random,
    keys: u64,
) {
    for _ in 0..10 {
        let (one, other) = (r.next(keys), r.next(keys));
        let (start, end) = (key(one.min(other)), key(one.max(other)));
        let expected: Vec<_> = model
            .range(start.clone()..end.clone())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut c = TreeCursor::new(store, inputs, u64::MAX);
        c.end_at(&end);
        c.will_visit(r.next(200) as usize);
        for backward in [false, true] {
            let bound = if backward { &start } else { &end };
            c.seek(if backward { &end } else { &start });
            let mut found = Vec::new();
            loop {
                let moved = match backward {
                    true => c.retreat(),
                    false if r.next(2) == 0 => c.advance(),
                    false => c.advance_below(&end),
                };
                let tuple = if moved.expect("reads") { c.current() } else { None };
                let Some(tuple) = tuple.filter(|t| t.key >= &start[..] && t.key < &end[..]) else {
                    break;
                };
                let value = store.read_value(&tuple.value.to_value()).expect("reads");
                found.push((tuple.key.to_vec(), value.to_vec()));
                let _: ControlFlow<()> = c.visit_near(bound, |key, value| {
                    found.push((key.to_vec(), value.to_vec()));
                    match r.next(8) {
                        0 => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                });
            }
            if backward {
                found.reverse();
            }
            assert_eq!(found, expected, "a visit, backward: {backward}");
        }
    }
}

fn checked(run: Option<Arc<Run>>) -> Option<Arc<Run>> {
    if let Some(run) = &run {
        let mut faults = Vec::new();
        check_run(run, &mut |f| faults.push(f), &mut |_| {});
        assert_eq!(faults, Vec::<String>::new());
    }
    run
}

fn one_history(seed: u64) {
    let mut r = Random(seed);
    let store = store();
    let keys = [50, 1000, 20_000][r.next(3) as usize];
    let changes = [20, 300, 3000][r.next(3) as usize];
    let big = r.next(2) == 0;
    let mut model = Model::new();
    let mut seq = 0;
    let mut runs: Vec<Arc<Run>> = Vec::new();
    for _ in 0..8 {
        let options = |r: &mut Random, bottom: bool, seq: u64| MergeOptions {
            placement: Placement::threshold([0, 4096, 65536, u64::MAX][r.next(4) as usize]),
            drop_tombstones: bottom,
            old_seq: if r.next(2) == 0 { 0 } else { seq },
            compress_values: [Compression::None, Compression::Lz4, Compression::Zstd]
                [r.next(3) as usize],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd]
                [r.next(3) as usize],
            ..MergeOptions::default()
        };
        match r.next(6) {
            0..=2 => {
                let m = memtable(&mut r, changes, keys, &mut seq, &mut model, big);
                let mut inputs = vec![Input::Memtable(m.clone())];
                inputs.extend(runs.iter().cloned().map(Input::Run));
                compare(&store, &inputs, &model, &mut r, keys);
                let options = options(&mut r, runs.is_empty(), seq);
                if let Some(run) = checked(
                    merge(&store, &[Input::Memtable(m)], &KeyRange::all(), options)
                        .expect("merges"),
                ) {
                    runs.insert(0, run);
                }
            }
            3 | 4 if runs.len() > 1 => {
                let from = r.next(runs.len() as u64 - 1) as usize;
                let to = from + 2 + r.next((runs.len() - from - 1) as u64) as usize;
                let inputs: Vec<_> = runs[from..to].iter().cloned().map(Input::Run).collect();
                let options = options(&mut r, to == runs.len(), seq);
                let merged =
                    checked(merge(&store, &inputs, &KeyRange::all(), options).expect("merges"));
                runs.splice(from..to, merged);
            }
            _ if !runs.is_empty() => {
                // Slices a run into three and concatenates the slices.
                let at = r.next(runs.len() as u64) as usize;
                let (a, b) = (r.next(keys), r.next(keys));
                let (a, b) = (key(a.min(b)), key(a.max(b)));
                let parts: Vec<_> = [
                    KeyRange { start: Bytes::new(), end: Some(Bytes::from(a.clone())) },
                    KeyRange::new(a, b.clone()),
                    KeyRange { start: Bytes::from(b), end: None },
                ]
                .iter()
                .filter_map(|range| checked(slice(&runs[at], range).expect("slices")))
                .collect();
                let whole = checked(concat(&store, &parts).expect("concatenates"))
                    .expect("something was there");
                runs[at] = whole;
            }
            _ => {}
        }
        let inputs: Vec<_> = runs.iter().cloned().map(Input::Run).collect();
        compare(&store, &inputs, &model, &mut r, keys);
    }
    let before = store.zones().space().zones_pinned;
    drop(runs);
    assert!(
        before == 0 || store.zones().space().zones_pinned == 0,
        "dropped runs let go of their zones"
    );
}

#[test]
fn any_history_of_flushes_merges_slices_reads_like_a_map() {
    let cases: u64 =
        std::env::var("KVFS_TEST_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    for seed in 0..cases {
        let r = std::panic::catch_unwind(|| one_history(seed));
        if let Err(e) = r {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(e);
        }
    }
}

/// The parts of a merge between split points, together, equal the whole merge.
#[test]
fn pieces_of_a_merge_joined_are_the_merge() {
    let mut several = 0;
    for seed in 0..24 {
        let mut r = Random(seed);
        let store = store();
        let keys = 3000;
        let (mut seq, mut model) = (0, Model::new());
        let mut runs: Vec<Arc<Run>> = Vec::new();
        for _ in 0..4 {
            let n = 200 + r.next(4000);
            let m = memtable(&mut r, n, keys, &mut seq, &mut model, seed % 2 == 0);
            let options =
                MergeOptions { compression: Compression::None, ..MergeOptions::default() };
            let run =
                merge(&store, &[Input::Memtable(m)], &KeyRange::all(), options).expect("flushes");
            runs.splice(0..0, run);
        }
        let values = r.next(2) == 0;
        let cuts = vt_tree::split_points(&runs, 2 + r.next(5) as usize, values).expect("reads");
        assert!(cuts.is_sorted_by(|a, b| a < b), "ascending, each once");
        several += usize::from(cuts.len() > 1);
        let lows: Vec<&[u8]> = runs.iter().map(|run| run.fences().0).collect();
        assert!(
            cuts.iter().all(|cut| lows.iter().any(|low| *low < cut.as_ref())),
            "no piece is empty"
        );
        let inputs: Vec<Input> = runs.iter().cloned().map(Input::Run).collect();
        for drop_tombstones in [false, true] {
            let stitch_at = [0, 4096, u64::MAX][r.next(3) as usize];
            let options = || MergeOptions {
                drop_tombstones,
                placement: Placement::threshold(stitch_at),
                ..MergeOptions::default()
            };
            let mut pieces = Vec::new();
            let starts = std::iter::once(Bytes::new()).chain(cuts.iter().cloned());
            for (start, end) in starts.zip(cuts.iter().cloned().map(Some).chain([None])) {
                let piece = merge(
                    &store,
                    &inputs,
                    &KeyRange { start: start.clone(), end: end.clone() },
                    options(),
                )
                .expect("merges");
                if let Some(piece) = &piece {
                    let (low, high) = piece.fences();
                    assert!(
                        low >= start.as_ref() && end.is_none_or(|end| high <= end.as_ref()),
                        "a piece keeps to its keys"
                    );
                }
                pieces.extend(piece);
            }
            let joined = concat(&store, &pieces).expect("joins").expect("something is left");
            let mut faults = Vec::new();
            check_run(&joined, &mut |f| faults.push(f), &mut |_| {});
            assert!(faults.is_empty(), "{faults:?}");
            compare(&store, &[Input::Run(joined.clone())], &model, &mut r, keys);
            let whole = merge(&store, &inputs, &KeyRange::all(), options())
                .expect("merges")
                .expect("something is left");
            let (a, b) = (joined.stats(), whole.stats());
            if drop_tombstones {
                assert_eq!((a.items, a.tombstones, a.range_tombstones), (b.items, false, false));
            }
            assert!(
                a.items >= b.items && a.items <= b.items + cuts.len() as u64,
                "a range tombstone more for each cut at most"
            );
        }
    }
    assert!(several > 12);
}

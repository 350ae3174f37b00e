//! The run algebra as a specification. However a run was made, a lookup in it returns the results
//! of its inputs, the newest first. Cursors on it, in any direction and with any seeks, return
//! exactly these items, and the items are disjoint. `check_run` finds no fault.
//!
//! The model of a run is a *layer*: the result of a lookup of each *landmark*. Landmarks are all
//! keys that a history may use, and the first key after each; no item begins or ends anywhere else,
//! so nothing can change between landmarks.
//!
//! A history follows from a seed. `KVFS_TEST_CASES` is the number of histories, `KVFS_TEST_SEED`
//! the first seed.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    ADAPTIVE, BlockCache, Body, Compression, Input, Item, KeyRange, Lookup, Memtable, Merge,
    MergeOptions, Placement, Run, RunCursor, Seq, Source, TreeCursor, Update, Value, check_run,
    concat, hash, slice,
};
use zones::{FormatOptions, MemoryDevice, ZoneId, Zones};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
    /// Two numbers below `n`, ascending.
    fn pair(&mut self, n: usize) -> (usize, usize) {
        let (a, b) = (self.below(n), self.below(n));
        (a.min(b), a.max(b))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Says {
    Nothing,
    Deleted(Seq),
    Put(Seq, Bytes),
    /// A change of the result of an older layer.
    Updated(Seq, Update),
}

impl Says {
    fn over(&self, older: &Says) -> Says {
        match (self, older) {
            (Says::Nothing, older) => older.clone(),
            (Says::Updated(seq, u), Says::Deleted(_)) => Says::Put(*seq, u.apply(None)),
            (Says::Updated(seq, u), Says::Put(_, v)) => Says::Put(*seq, u.apply(Some(v))),
            (Says::Updated(seq, u), Says::Updated(_, before)) => {
                Says::Updated(*seq, before.then(u))
            }
            (newer, _) => newer.clone(),
        }
    }
}

/// Two updates do the same to any value.
fn alike(a: &Update, b: &Update) -> bool {
    let values: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"12"), Some(&[9; 600])];
    values.iter().all(|value| a.apply(*value) == b.apply(*value))
}

#[derive(Clone, Debug)]
struct Layer {
    /// The statements about each landmark.
    says: Vec<Says>,
    /// Sequence numbers up to this one may have become 0.
    old: Seq,
    /// Numbers up to this one must be 0: nothing was stitched since they were declared old.
    zero: Seq,
    /// Nothing lies below: an update of a missing key and the value that it makes are the same.
    bottom: bool,
}

impl Layer {
    fn over(layers: &[&Layer]) -> Layer {
        let says = (0..layers[0].says.len())
            .map(|i| layers.iter().fold(Says::Nothing, |newer, older| newer.over(&older.says[i])))
            .collect();
        let old = layers.iter().map(|l| l.old).max().unwrap_or(0);
        let zero = layers.iter().map(|l| l.zero).min().unwrap_or(0);
        Layer { says, old, zero, bottom: layers.iter().any(|l| l.bottom) }
    }

    fn check(&self, landmark: usize, got: &Says, what: &str) {
        let seq = |want: Seq, got: Seq| {
            (got == want && want > self.zero) || (got == 0 && want <= self.old)
        };
        let same = match (&self.says[landmark], got) {
            (Says::Put(s, v), Says::Put(t, w)) => seq(*s, *t) && v == w,
            (Says::Deleted(s), Says::Deleted(t)) => seq(*s, *t),
            (Says::Updated(s, u), Says::Updated(t, w)) => seq(*s, *t) && alike(u, w),
            (Says::Updated(s, u), Says::Put(t, v)) | (Says::Put(s, v), Says::Updated(t, u)) => {
                self.bottom && seq(*s, *t) && u.apply(None) == v
            }
            (a, b) => a == b,
        };
        assert!(
            same,
            "{what}: landmark {landmark}: want {:?}, got {got:?} (old {})",
            self.says[landmark], self.old
        );
    }
}

/// One change of a memtable; keys are landmarks.
#[derive(Clone, Debug)]
enum Op {
    Put(usize, Bytes),
    Update(usize, Update),
    Delete(usize),
    DeleteRange(usize, usize),
}

struct World {
    store: Arc<BlockCache>,
    zones: Arc<Zones>,
    /// Keys of point items.
    keys: Vec<usize>,
    landmarks: Vec<Vec<u8>>,
    seq: Seq,
    /// Ranges are deleted, too. With range deletions few updates stay updates, since the value that
    /// they change was deleted before.
    ranges: bool,
    r: Random,
}

fn fresh_zones() -> Arc<Zones> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh device takes a store");
    zones.start();
    zones
}

/// The keys of a history: adversarial ones, long ones (a few to a block, a few blocks to a node:
/// tall trees), or many plain ones.
fn keys(r: &mut Random) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = match r.below(3) {
        0 => {
            (0..60).map(|_| (0..r.below(5)).map(|_| r.of(&[0, 1, b'a', 0xff])).collect()).collect()
        }
        1 => {
            let (count, front, back) =
                (100 + r.below(300), r.of(&[0, 900]), r.of(&[100, 900, 1800]));
            (0..count)
                .map(|i| {
                    [&vec![b'f'; front][..], format!("{i:04}").as_bytes(), &vec![b'b'; back]]
                        .concat()
                })
                .collect()
        }
        _ => (0..300 + r.below(2000) as u64)
            .map(|i| [&b"dir"[..], &(i / 200).to_be_bytes(), &i.to_be_bytes()].concat())
            .collect(),
    };
    keys.sort();
    keys.dedup();
    keys
}

impl World {
    fn new(seed: u64) -> World {
        let mut r = Random(seed);
        let keys = keys(&mut r);
        let mut landmarks: Vec<_> =
            keys.iter().cloned().chain(keys.iter().map(|k| [&k[..], &[0]].concat())).collect();
        landmarks.sort();
        landmarks.dedup();
        let keys = keys
            .iter()
            .map(|k| landmarks.binary_search(k).expect("every key is a landmark"))
            .collect();
        let zones = fresh_zones();
        let store = BlockCache::new(zones.clone(), 1 << 20);
        let ranges = r.one_in(2);
        World { store, zones, keys, landmarks, seq: 0, ranges, r }
    }

    fn index(&self, key: &[u8]) -> usize {
        self.landmarks
            .binary_search_by(|l| l[..].cmp(key))
            .unwrap_or_else(|_| panic!("{key:?} is no landmark"))
    }

    fn op(&mut self) -> Op {
        let key = self.keys[self.r.below(self.keys.len())];
        match self.r.below(20) {
            0..=3 => Op::Delete(key),
            4 | 5 if self.ranges => {
                let a = self.r.below(self.landmarks.len());
                let b = (a + 1 + self.r.below(1 + self.landmarks.len() / 6))
                    .min(self.landmarks.len() - 1);
                Op::DeleteRange(a, b)
            }
            4..=9 => {
                let bytes = vec![self.seq as u8; self.r.below(40)];
                let offset = self.r.of(&[0, 5, 4000]);
                let updates = [
                    Some(Update::add(self.seq as i64 - 50)),
                    Update::append(&bytes),
                    Update::patch(offset, &bytes),
                ];
                Op::Update(key, updates[self.r.below(3)].clone().expect("short"))
            }
            _ => {
                let len = self.r.of(&[0, 8, 8, 50, 50, 200, 1000, 4096, 5000]);
                Op::Put(key, Bytes::from(vec![self.seq as u8; len]))
            }
        }
    }

    fn apply(&self, m: &Memtable, op: &Op, seq: Seq) {
        match op {
            Op::Put(k, v) => m.put(&self.landmarks[*k], seq, Value::Inline(v.clone())),
            Op::Update(k, update) => m.update(&self.landmarks[*k], seq, update),
            Op::Delete(k) => m.delete(&self.landmarks[*k], seq),
            Op::DeleteRange(a, b) => m.delete_range(&self.landmarks[*a], &self.landmarks[*b], seq),
        }
    }

    /// The layer of a memtable with these changes as of `at`.
    fn layer(&self, ops: &[(Seq, Op)], at: Seq) -> Layer {
        let mut says = vec![Says::Nothing; self.landmarks.len()];
        for (seq, op) in ops.iter().filter(|(seq, _)| *seq <= at) {
            match op {
                Op::Put(k, v) => says[*k] = Says::Put(*seq, v.clone()),
                Op::Update(k, update) => {
                    says[*k] = Says::Updated(*seq, update.clone()).over(&says[*k])
                }
                Op::Delete(k) => says[*k] = Says::Deleted(*seq),
                Op::DeleteRange(a, b) => says[*a..*b].fill(Says::Deleted(*seq)),
            }
        }
        Layer { says, old: 0, zero: 0, bottom: false }
    }

    fn write(&mut self, m: &Memtable, ops: &mut Vec<(Seq, Op)>, count: usize) {
        let run = self.r.below(self.keys.len());
        for i in 0..count {
            self.seq += 1;
            let mut op = self.op();
            if let (Op::Put(k, _), true) = (&mut op, self.r.one_in(2)) {
                // Half of the keys come in order, as files do.
                *k = self.keys[(run + i) % self.keys.len()];
            }
            self.apply(m, &op, self.seq);
            ops.push((self.seq, op));
        }
    }

    fn memtable(&mut self) -> (Arc<Memtable>, Layer) {
        let m = Arc::new(Memtable::new());
        let mut ops = Vec::new();
        let count = self.r.of(&[1, 10, 100, 600]);
        self.write(&m, &mut ops, count);
        (m, self.layer(&ops, Seq::MAX))
    }

    fn options(&mut self, bottom: bool) -> MergeOptions {
        // Defragmentation from time to time. Zone 0 is the superblock's; a history fits in the next
        // few.
        let evacuate = self
            .r
            .one_in(5)
            .then(|| Arc::new((0..2).map(|_| ZoneId(1 + self.r.below(4) as u32)).collect()));
        MergeOptions {
            placement: Placement {
                stitch_at: self.r.of(&[0, 0, 3000, 10_000, 60_000, u64::MAX, ADAPTIVE]),
                values_at: self.r.of(&[0, 0, 3000, 10_000, 60_000, u64::MAX]),
                window: self.r.of(&[1, 20_000, 16 << 20]),
                seek_bytes: self.r.of(&[1, 1000, 8 << 10]),
                gather_below: self.r.of(&[0, 0, 100, 2048, u32::MAX]),
                evacuate,
                relocated: None,
            },
            drop_tombstones: bottom && self.r.one_in(2),
            separate_at: self.r.of(&[1, 40, 2048, 2048, u32::MAX]),
            old_seq: if self.r.one_in(3) { self.seq } else { 0 },
            compress_values: self.r.of(&[Compression::None, Compression::Lz4, Compression::Zstd]),
            compression: self.r.of(&[Compression::None, Compression::Lz4, Compression::Zstd]),
            false_positives: self.r.of(&[80, 80, 0, 2000]),
            ..MergeOptions::default()
        }
    }

    /// A range between landmarks, possibly empty, possibly open at the top.
    fn range(&mut self) -> (usize, Option<usize>, KeyRange) {
        let (a, b) = self.r.pair(self.landmarks.len());
        let b = (!self.r.one_in(4)).then_some(b);
        let end = b.map(|b| Bytes::from(self.landmarks[b].clone()));
        (a, b, KeyRange { start: self.landmarks[a].clone().into(), end })
    }

    /// Merges in steps of a random size.
    fn merge(
        &mut self,
        inputs: &[Input],
        range: &KeyRange,
        options: MergeOptions,
    ) -> Option<Arc<Run>> {
        let mut merge =
            Merge::new(&self.store, inputs, range, options.clone()).expect("a merge begins");
        let budget = self.r.of(&[1, 1000, 100_000, u64::MAX]);
        if self.r.one_in(3) {
            // Merges in two parts: one that ends early, and one with the rest.
            for _ in 0..1 + self.r.below(8) {
                _ = merge.step(budget.min(20_000)).expect("a merge goes on");
            }
            let (front, at, _) = merge.cut().expect("a merge is cut");
            let back = at.and_then(|start| {
                self.merge(inputs, &KeyRange { start, end: range.end.clone() }, options)
            });
            let parts: Vec<_> = front.into_iter().chain(back).collect();
            return if parts.len() > 1 {
                concat(&self.store, &parts).expect("parts fit together")
            } else {
                parts.into_iter().next()
            };
        }
        while !merge.step(budget).expect("a merge goes on") {}
        merge.finish().expect("a merge ends").0
    }

    fn says(&self, lookup: Lookup) -> Says {
        match lookup {
            Lookup::Absent => Says::Nothing,
            Lookup::Deleted(seq) => Says::Deleted(seq),
            Lookup::Found(seq, v) => {
                Says::Put(seq, self.store.read_value(&v).expect("a value reads"))
            }
            Lookup::Updated { seq, base: None, update } => Says::Updated(seq, update),
            known @ Lookup::Updated { seq, .. } => {
                let value = self.store.resolve(known).expect("a base reads").expect("a value");
                Says::Put(seq, self.store.read_value(&value).expect("a value reads"))
            }
        }
    }

    /// Checks `item` against `layer`; returns the landmarks that it covers.
    fn check_item(&self, item: &Item, layer: &Layer) -> (usize, usize) {
        let from = self.index(&item.key);
        let (to, says) = match &item.body {
            Body::DeleteRange { end } => (self.index(end), Says::Deleted(item.seq)),
            Body::Delete => (from + 1, Says::Deleted(item.seq)),
            body => {
                let lookup = Lookup::of(item.seq, body.clone()).expect("an update decodes");
                (from + 1, self.says(lookup))
            }
        };
        assert!(from < to, "an item covers something");
        for i in from..to {
            layer.check(i, &says, "item");
        }
        (from, to)
    }

    fn check_nothing(&self, layer: &Layer, from: usize, to: usize) {
        for i in from..to {
            layer.check(i, &Says::Nothing, "no item");
        }
    }

    /// Checks all operations of one source.
    fn check_source(&mut self, c: &mut dyn Source, layer: &Layer) {
        let end = self.landmarks.len();
        c.first().expect("reads");
        let mut at = 0;
        while let Some(item) = c.item() {
            let (from, to) = self.check_item(&item.to_item(), layer);
            assert!(at <= from, "items ascend and are disjoint");
            self.check_nothing(layer, at, from);
            at = to;
            c.next().expect("reads");
        }
        self.check_nothing(layer, at, end);
        c.last().expect("reads");
        let mut at = end;
        while let Some(item) = c.item() {
            let (from, to) = self.check_item(&item.to_item(), layer);
            assert!(to <= at, "items descend and are disjoint");
            self.check_nothing(layer, to, at);
            at = from;
            c.prev().expect("reads");
        }
        self.check_nothing(layer, 0, at);

        for _ in 0..30 {
            let before = c.item().map(|i| self.check_item(&i.to_item(), layer));
            let key = self.r.below(end);
            match (self.r.below(6), before) {
                (0, _) => {
                    c.seek(&self.landmarks[key]).expect("reads");
                    let here = c.item().map(|i| self.check_item(&i.to_item(), layer));
                    assert!(
                        here.is_none_or(|(_, to)| to > key),
                        "seek: the item ends after the key"
                    );
                    self.check_nothing(layer, key, here.map_or(end, |(from, _)| from));
                }
                (1, _) => {
                    c.seek_before(&self.landmarks[key]).expect("reads");
                    let here = c.item().map(|i| self.check_item(&i.to_item(), layer));
                    assert!(
                        here.is_none_or(|(from, _)| from < key),
                        "seek_before: the item begins before the key"
                    );
                    self.check_nothing(layer, here.map_or(0, |(_, to)| to), key);
                }
                (2 | 3, Some((_, at))) => {
                    c.next().expect("reads");
                    let here = c.item().map(|i| self.check_item(&i.to_item(), layer));
                    assert!(here.is_none_or(|(from, _)| at <= from));
                    self.check_nothing(layer, at, here.map_or(end, |(from, _)| from));
                }
                (_, Some((at, _))) => {
                    c.prev().expect("reads");
                    let here = c.item().map(|i| self.check_item(&i.to_item(), layer));
                    assert!(here.is_none_or(|(_, to)| to <= at));
                    self.check_nothing(layer, here.map_or(0, |(_, to)| to), at);
                }
                (_, None) => {}
            }
        }
    }

    /// Checks all operations of one run.
    fn check_run(&mut self, run: Option<Arc<Run>>, layer: &Layer) -> Option<Arc<Run>> {
        let Some(run) = run else {
            assert!(
                layer.says.iter().all(|s| *s == Says::Nothing),
                "no run, but there was something to say"
            );
            return None;
        };
        let mut faults = Vec::new();
        check_run(&run, &mut |f| faults.push(f), &mut |_| {});
        assert_eq!(faults, Vec::<String>::new());
        for (i, key) in self.landmarks.iter().enumerate() {
            layer.check(i, &self.says(run.get(key, hash(key)).expect("reads")), "get");
        }
        self.check_source(&mut RunCursor::new(run.clone()), layer);
        Some(run)
    }

    /// Checks a cursor on many sources: live tuples in both directions, and a scan with turns and
    /// seeks while a memtable among them is written.
    fn check_cursor(&mut self, runs: &[(Arc<Run>, Layer)]) {
        let live = Arc::new(Memtable::new());
        let mut ops = Vec::new();
        let count = self.r.of(&[0, 5, 50]);
        self.write(&live, &mut ops, count);
        let at = self.seq - self.r.below(count + 1) as u64;
        let mut inputs = vec![Input::Memtable(live.clone())];
        inputs.extend(runs.iter().map(|(run, _)| Input::Run(run.clone())));
        let top = self.layer(&ops, at);
        let layer =
            Layer::over(&[&top].into_iter().chain(runs.iter().map(|(_, l)| l)).collect::<Vec<_>>());
        let tuples: Vec<_> = (0..layer.says.len())
            .filter(|i| matches!(layer.says[*i], Says::Put(..) | Says::Updated(..)))
            .collect();
        // Nothing lies below all of it.
        let layer = Layer { bottom: true, ..layer };

        let mut c = TreeCursor::new(&self.store, &inputs, at);
        // Between tuples `pos - 1` and `pos`.
        let mut pos = 0;
        let full = tuples.len() + 1;
        for step in 0..2 * full + 60 {
            // Moves through all items upwards, then downwards, then at random.
            let forward = if step < full { true } else { step >= 2 * full && self.r.one_in(2) };
            if step >= 2 * full && self.r.one_in(4) {
                let key = self.r.below(self.landmarks.len());
                c.seek(&self.landmarks[key]);
                pos = tuples.partition_point(|t| *t < key);
            }
            if self.r.one_in(10) {
                self.write(&live, &mut ops, 1);
            }
            let (got, want) = if forward {
                (c.next().expect("reads"), tuples.get(pos))
            } else {
                (c.prev().expect("reads"), pos.checked_sub(1).map(|p| &tuples[p]))
            };
            assert_eq!(got.as_ref().map(|t| self.index(&t.key)), want.copied(), "step {step}");
            if let Some(t) = got {
                pos = if forward { pos + 1 } else { pos - 1 };
                let landmark = self.index(&t.key);
                layer.check(landmark, &self.says(Lookup::Found(t.seq, t.value)), "tuple");
            }
        }
    }

    /// The part of `layer` in the range.
    fn cut(&self, layer: &Layer, a: usize, b: Option<usize>) -> Layer {
        let mut cut = layer.clone();
        for (i, s) in cut.says.iter_mut().enumerate() {
            if i < a || b.is_some_and(|b| i >= b) {
                *s = Says::Nothing;
            }
        }
        cut
    }

    fn merged(&self, layers: &[&Layer], options: &MergeOptions) -> Layer {
        let mut layer = Layer::over(layers);
        layer.old = layer.old.max(options.old_seq);
        if options.placement.stitch_at == u64::MAX {
            layer.zero = layer.zero.max(options.old_seq);
        }
        if options.drop_tombstones {
            layer.bottom = true;
            layer
                .says
                .iter_mut()
                .filter(|s| matches!(s, Says::Deleted(_)))
                .for_each(|s| *s = Says::Nothing);
        }
        layer
    }
}

fn inputs(runs: &[(Arc<Run>, Layer)]) -> Vec<Input> {
    runs.iter().map(|(run, _)| Input::Run(run.clone())).collect()
}

fn layers(runs: &[(Arc<Run>, Layer)]) -> Vec<&Layer> {
    runs.iter().map(|(_, layer)| layer).collect()
}

fn history(seed: u64) {
    let mut w = World::new(seed);
    // Newest first.
    let mut runs: Vec<(Arc<Run>, Layer)> = Vec::new();
    for _ in 0..12 {
        let step = w.r.below(10);
        match step {
            // Flushes a memtable, alone or over the newest runs.
            0..=3 => {
                let (m, layer) = w.memtable();
                w.check_source(&mut m.cursor(Seq::MAX), &layer);
                let over = if w.r.one_in(3) { w.r.below(runs.len() + 1) } else { 0 };
                let options = w.options(over == runs.len());
                let mut from = vec![Input::Memtable(m)];
                from.extend(inputs(&runs[..over]));
                let mut all = vec![&layer];
                all.extend(layers(&runs[..over]));
                let layer = w.merged(&all, &options);
                let run = w.merge(&from, &KeyRange::all(), options);
                let run = w.check_run(run, &layer);
                runs.splice(..over, run.map(|run| (run, layer)));
            }
            // Merges neighbours. A merge of one run is a defragmentation.
            4 | 5 if !runs.is_empty() => {
                let (from, to) = w.r.pair(runs.len());
                let to = to + 1;
                let options = w.options(to == runs.len());
                let layer = w.merged(&layers(&runs[from..to]), &options);
                let run = w.merge(&inputs(&runs[from..to]), &KeyRange::all(), options);
                let run = w.check_run(run, &layer);
                runs.splice(from..to, run.map(|run| (run, layer)));
            }
            // Merges neighbours in one range only and keeps the rest, as a bounded step of a
            // compaction does.
            6 | 7 if !runs.is_empty() => {
                let (from, to) = w.r.pair(runs.len());
                let to = to + 1;
                let (a, b, range) = w.range();
                let options = w.options(to == runs.len());
                let layer = w.merged(&layers(&runs[from..to]), &options);
                let layer = w.cut(&layer, a, b);
                let merged = w.merge(&inputs(&runs[from..to]), &range, options);
                let merged = w.check_run(merged, &layer).map(|run| (run, layer));
                let mut after: Vec<_> = merged.into_iter().collect();
                for (run, layer) in &runs[from..to] {
                    let below = slice(
                        run,
                        &KeyRange { start: Bytes::new(), end: Some(range.start.clone()) },
                    )
                    .expect("slices");
                    let mut rest: Vec<_> = below.into_iter().collect();
                    let mut left = w.cut(layer, 0, Some(a));
                    if let (Some(end), Some(b)) = (&range.end, b) {
                        let above = KeyRange { start: end.clone(), end: None };
                        rest.extend(slice(run, &above).expect("slices"));
                        left = Layer::over(&[&left, &w.cut(layer, b, None)]);
                    }
                    let rest = concat(&w.store, &rest).expect("concatenates");
                    after.extend(w.check_run(rest, &left).map(|run| (run, left)));
                }
                runs.splice(from..to, after);
            }
            // Makes a new run from slices of others.
            8 if !runs.is_empty() => {
                let mut cuts: Vec<_> =
                    (0..w.r.below(4)).map(|_| w.r.below(w.landmarks.len())).collect();
                cuts.sort();
                let mut ends: Vec<_> = cuts.iter().copied().map(Some).collect();
                ends.push(None);
                let (mut parts, mut said, mut a) = (Vec::new(), Vec::new(), 0);
                for b in ends {
                    let (run, layer) = runs[w.r.below(runs.len())].clone();
                    let key = |i: usize| Bytes::from(w.landmarks[i].clone());
                    let part =
                        slice(&run, &KeyRange { start: key(a), end: b.map(key) }).expect("slices");
                    let layer = w.cut(&layer, a, b);
                    parts.extend(w.check_run(part, &layer));
                    said.push(layer);
                    a = b.unwrap_or(a);
                }
                let layer = Layer::over(&said.iter().collect::<Vec<_>>());
                let whole = concat(&w.store, &parts).expect("concatenates");
                w.check_run(whole, &layer);
            }
            // Decodes all runs again from their root pointers, with an empty cache.
            _ => {
                w.store = BlockCache::new(w.zones.clone(), w.r.of(&[0, 1 << 16, 1 << 20]));
                for (run, _) in &mut runs {
                    let mut bytes = Vec::new();
                    run.encode(&mut bytes);
                    let mut rest = &bytes[..];
                    *run = Run::decode(&w.store, &mut rest).expect("what was encoded decodes");
                    assert!(rest.is_empty());
                }
            }
        }
        w.check_cursor(&runs);
    }
    drop(runs);
    assert_eq!(w.zones.space().zones_pinned, 0, "dropped runs let go of their zones");
}

#[test]
fn every_history_of_merges_slices_and_concats_says_what_its_memtables_said() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let first = number("KVFS_TEST_SEED").unwrap_or(1);
    for seed in first..first + number("KVFS_TEST_CASES").unwrap_or(60) {
        let outcome = std::panic::catch_unwind(|| history(seed));
        if let Err(cause) = outcome {
            eprintln!(
                "the history of seed {seed} failed: KVFS_TEST_SEED={seed} KVFS_TEST_CASES=1 repeats it"
            );
            std::panic::resume_unwind(cause);
        }
    }
}

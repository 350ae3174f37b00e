//! Tests of the options that each merge has for the tuples it writes, which are compression and
//! filters. Runs with different options can be merged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use vt_tree::{
    BlockCache, ChooseCodec, Compression, ExtentRef, Input, KeyRange, Lookup, Memtable,
    MergeOptions, Placement, Run, RunCursor, Source, Update, Value, check_run, hash, merge,
};
use zones::{Device, FormatOptions, MemoryDevice, Purpose, Zones};

fn store() -> Arc<BlockCache> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default()).unwrap();
    zones.start();
    BlockCache::new(zones, 1 << 20)
}

fn key(i: u64) -> Vec<u8> {
    format!("user/{i:08}/name").into_bytes()
}

fn value(i: u64) -> Bytes {
    Bytes::from(format!(
        "a value that says something about {i}, and says it at some length, as values do"
    ))
}

fn run(
    store: &Arc<BlockCache>,
    items: impl Iterator<Item = u64>,
    options: MergeOptions,
) -> Arc<Run> {
    let m = Arc::new(Memtable::new());
    for (seq, i) in items.enumerate() {
        m.put(&key(i), seq as u64 + 1, Value::Inline(value(i)));
    }
    merge(store, &[Input::Memtable(m)], &KeyRange::all(), options).unwrap().unwrap()
}

fn whole(run: &Arc<Run>) {
    let mut faults = Vec::new();
    check_run(run, &mut |f| faults.push(f), &mut |_| {});
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn compressed_blocks_are_smaller_and_read_the_same() {
    let store = store();
    let stored = |compression| {
        let run = run(&store, 0..20_000, MergeOptions { compression, ..MergeOptions::default() });
        whole(&run);
        let mut c = RunCursor::new(run.clone());
        c.first().unwrap();
        for i in 0..20_000 {
            assert_eq!(c.item().map(|i| i.key.to_vec()), Some(key(i)));
            c.next().unwrap();
        }
        for i in (0..20_000).step_by(997) {
            let Lookup::Found(_, Value::Inline(v)) = run.get(&key(i), hash(&key(i))).unwrap()
            else {
                panic!("{i} is missing")
            };
            assert_eq!(v, value(i));
        }
        run.stats().block_bytes
    };
    let none = stored(Compression::None);
    let (lz4, zstd) = (stored(Compression::Lz4), stored(Compression::Zstd));
    assert!(
        lz4 * 2 < none && zstd * 2 < none,
        "{none} bytes, with LZ4 {lz4}, with Zstandard {zstd}"
    );
}

#[test]
fn runs_stored_in_all_ways_merge_with_each_other() {
    let store = store();
    let ways = [
        (Compression::None, 0),
        (Compression::Lz4, 80),
        (Compression::Zstd, 0),
        (Compression::None, 800),
    ];
    let options = |way: usize, placement| MergeOptions {
        placement,
        compression: ways[way].0,
        false_positives: ways[way].1,
        ..MergeOptions::default()
    };
    // A range of keys for each run, and one in which all have keys.
    let inputs: Vec<Input> = (0..4)
        .map(|way| {
            let own = (way * 100_000..way * 100_000 + 30_000).map(|i| i * 2);
            let shared = (900_000..901_000).map(|i| i * 8 + way * 2);
            Input::Run(run(&store, own.chain(shared), options(way as usize, Placement::stitch())))
        })
        .collect();
    for way in 0..4 {
        for placement in [Placement::stitch(), Placement::threshold(64 << 10), Placement::copy()] {
            let all =
                merge(&store, &inputs, &KeyRange::all(), options(way, placement)).unwrap().unwrap();
            whole(&all);
            assert_eq!(all.stats().items, 4 * 31_000);
            let has =
                |i: u64| matches!(all.get(&key(i), hash(&key(i))).unwrap(), Lookup::Found(..));
            for i in (0..30_000).step_by(7) {
                assert!((0..4).all(|w| has((w * 100_000 + i) * 2)));
                assert!(!(0..4).any(|w| has((w * 100_000 + i) * 2 + 1)));
            }
            assert!(
                (900_000..901_000)
                    .all(|i| (0..4).all(|w| has(i * 8 + w * 2) && !has(i * 8 + w * 2 + 1)))
            );
        }
    }
}

#[test]
fn a_lower_rate_of_false_positives_costs_a_bit_a_key_for_each_half() {
    let store = store();
    let index = |false_positives| {
        let run =
            run(&store, 0..40_000, MergeOptions { false_positives, ..MergeOptions::default() });
        let stats = run.stats();
        (stats.bytes - stats.block_bytes) as f64 * 8.0 / 40_000.0
    };
    let (none, coarse, usual, fine) = (index(0), index(320), index(80), index(20));
    println!(
        "bits of filter a key: {:.2} at 3.2%, {:.2} at 0.8%, {:.2} at 0.2%",
        coarse - none,
        usual - none,
        fine - none
    );
    assert!(usual - none < 12.0, "{:.2} bits a key at 0.8%", usual - none);
    assert!((1.5..2.5).contains(&(usual - coarse)) && (1.5..2.5).contains(&(fine - usual)));
}

/// Values of 4 KiB: text that compresses well, and sometimes noise that does not.
fn page(i: u64) -> Bytes {
    if i % 9 == 4 {
        let mut x = i;
        let noise = std::iter::repeat_with(|| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (x >> 56) as u8
        });
        return noise.take(4096).collect();
    }
    Bytes::from(
        format!("line {i}: the quick brown fox jumps over the lazy dog\n").repeat(100).into_bytes(),
    )
    .slice(..4096)
}

fn pages(
    store: &Arc<BlockCache>,
    items: impl Iterator<Item = u64>,
    options: MergeOptions,
) -> Arc<Run> {
    let m = Arc::new(Memtable::new());
    for (seq, i) in items.enumerate() {
        m.put(&key(i), seq as u64 + 1, Value::Inline(page(i)));
    }
    merge(store, &[Input::Memtable(m)], &KeyRange::all(), options).unwrap().unwrap()
}

#[test]
fn large_values_are_compressed_once_and_move_as_they_lie() {
    let store = store();
    let options = |compress_values, placement| MergeOptions {
        placement,
        compress_values,
        ..MergeOptions::default()
    };
    for compression in [Compression::Lz4, Compression::Zstd] {
        let plain = pages(&store, 0..2000, options(Compression::None, Placement::stitch()));
        let even =
            pages(&store, (0..2000).map(|i| i * 2), options(compression, Placement::stitch()));
        let odd =
            pages(&store, (0..2000).map(|i| i * 2 + 1), options(compression, Placement::stitch()));
        whole(&even);
        assert!(
            even.stats().value_bytes * 3 < plain.stats().value_bytes,
            "{} bytes",
            even.stats().value_bytes
        );
        // Stitched, then moved: the merge has no compression, and the values keep theirs.
        for placement in [Placement::stitch(), Placement::copy()] {
            let inputs = [Input::Run(even.clone()), Input::Run(odd.clone())];
            let all =
                merge(&store, &inputs, &KeyRange::all(), options(Compression::None, placement))
                    .unwrap()
                    .unwrap();
            whole(&all);
            assert_eq!(all.stats().value_bytes, even.stats().value_bytes + odd.stats().value_bytes);
            let mut extents = Vec::new();
            for i in 0..4000 {
                let Lookup::Found(_, v) = all.get(&key(i), hash(&key(i))).unwrap() else {
                    panic!("{i} is missing")
                };
                assert_eq!((v.len(), store.read_value(&v).unwrap()), (4096, page(i)));
                let Value::Extent(e) = v else { panic!("{i} lies in its block") };
                extents.push(e);
            }
            let together = store.read_values(&extents).unwrap();
            assert!((0..4000).all(|i| together[i as usize] == page(i)));
        }
    }
}

/// Compresses the values of keys with even numbers.
#[derive(Debug, Default)]
struct Even {
    packed: AtomicUsize,
    plain: AtomicUsize,
}

impl ChooseCodec for Even {
    fn choose(&self, key: &[u8]) -> Compression {
        // The last digit of the number. See `key`.
        if key[12].is_multiple_of(2) { Compression::Lz4 } else { Compression::None }
    }

    fn placed(&self, key: &[u8], tried: Compression, extent: &ExtentRef) {
        assert_eq!(tried, self.choose(key));
        let count = if extent.codec == Compression::None { &self.plain } else { &self.packed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn each_key_chooses_its_codec_and_an_update_keeps_it() {
    let store = store();
    let even = Arc::new(Even::default());
    let options = MergeOptions {
        compress_values: Compression::Zstd,
        choice: Some(even.clone()),
        ..MergeOptions::default()
    };
    let run = pages(&store, 0..100, options);
    let counts = || (even.packed.load(Ordering::Relaxed), even.plain.load(Ordering::Relaxed));
    assert_eq!(counts(), (44, 56));
    let check = |run: &Arc<Run>, patched: bool| {
        whole(run);
        for i in 0..100 {
            let Lookup::Found(_, v) = run.get(&key(i), hash(&key(i))).unwrap() else {
                panic!("{i} is missing")
            };
            let mut expected = page(i).to_vec();
            if patched {
                expected[10..17].copy_from_slice(b"changed");
            }
            assert_eq!(store.read_value(&v).unwrap(), expected, "{i}");
            let Value::Extent(e) = v else { panic!("{i} lies in its block") };
            // Every ninth page is noise.
            let packed = i % 2 == 0 && i % 9 != 4;
            let codec = if packed { Compression::Lz4 } else { Compression::None };
            assert_eq!(e.codec, codec, "{i}");
        }
    };
    check(&run, false);
    let m = Arc::new(Memtable::new());
    for i in 0..100 {
        m.writer().update(&key(i), 1000 + i, &Update::patch(10, b"changed").unwrap());
    }
    // This merge compresses nothing, except for what was compressed before it.
    let inputs = [Input::Memtable(m), Input::Run(run)];
    let updated =
        merge(&store, &inputs, &KeyRange::all(), MergeOptions::default()).unwrap().unwrap();
    check(&updated, true);
    assert_eq!(counts(), (44, 56), "it was not asked again");
}

#[test]
fn references_that_lie_about_compressed_values_are_errors() {
    let store = store();
    let options = MergeOptions { compress_values: Compression::Lz4, ..MergeOptions::default() };
    let run = pages(&store, 0..1, options);
    let Lookup::Found(_, Value::Extent(e)) = run.get(&key(0), hash(&key(0))).unwrap() else {
        panic!("it is missing")
    };
    assert!(e.stored < 1024 && e.len == 4096);
    assert_eq!(store.read_value(&Value::Extent(e)).unwrap(), page(0));
    let lies = [
        vt_tree::ExtentRef { len: 4095, ..e },
        vt_tree::ExtentRef { len: 4097, ..e },
        vt_tree::ExtentRef { len: u32::MAX, ..e },
        vt_tree::ExtentRef { stored: e.stored - 1, ..e },
        vt_tree::ExtentRef { stored: u32::MAX, ..e },
        vt_tree::ExtentRef { codec: Compression::Zstd, ..e },
        vt_tree::ExtentRef { codec: Compression::None, ..e },
        vt_tree::ExtentRef { crc: !e.crc, ..e },
    ];
    for lie in lies {
        assert!(
            store.read_value(&Value::Extent(lie)).is_err() && store.read_values(&[lie]).is_err(),
            "{lie:?}"
        );
    }
}

/// Counts the bytes of writes in the background.
#[derive(Default)]
struct Counted {
    memory: MemoryDevice,
    behind: AtomicUsize,
}

impl Device for Counted {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.memory.write_at(purpose, offset, buf)
    }
    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        assert_eq!(purpose, Purpose::Pages);
        self.behind.fetch_add(buf.len(), Ordering::Relaxed);
        self.memory.write_behind(purpose, offset, buf)
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

#[test]
fn large_values_are_all_written_behind_where_somebody_waits_for_them_and_nowhere_else() {
    let device = Arc::new(Counted::default());
    let zones = Zones::format(device.clone(), FormatOptions::default()).unwrap();
    zones.start();
    let store = BlockCache::new(zones, 1 << 20);
    for write_behind in [false, true] {
        let run = pages(&store, 0..700, MergeOptions { write_behind, ..MergeOptions::default() });
        whole(&run);
        assert_eq!(
            device.behind.load(Ordering::Relaxed),
            if write_behind { 700 * 4096 } else { 0 }
        );
        for i in 0..700 {
            let Lookup::Found(_, v) = run.get(&key(i), hash(&key(i))).unwrap() else {
                panic!("{i} is missing")
            };
            assert_eq!(store.read_value(&v).unwrap(), page(i));
        }
    }
}

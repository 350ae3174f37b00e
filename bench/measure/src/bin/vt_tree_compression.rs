//! The savings and the cost of compressing tuple blocks and large values: log lines, JSON and
//! noise, written by a flush, read by a scan and by gets with nothing cached. Times are processor
//! times; the device is in memory.
//!
//! `cargo run --release -p measure --bin vt_tree_compression [items]`

use std::sync::Arc;

use measure::{mix, ran};
use vt_tree::{
    BlockCache, Compression, Input, KeyRange, Lookup, Memtable, MergeOptions, Placement, RunCursor,
    Source, Value, hash, merge,
};
use zones::{FormatOptions, MemoryDevice, Zones};

fn value(kind: &str, i: u64) -> Vec<u8> {
    let word = |n: u64| {
        ["orange", "delta", "river", "stone", "quick", "silent", "north", "paper"]
            [(mix(i * 8 + n) % 8) as usize]
    };
    match kind {
        "log line" => {
            let (host, ms) = (mix(i) % 40, mix(i + 1) % 1000);
            format!(
                "host-{host} GET /{}/{}/{} 200 {ms}ms session={:08x}",
                word(0),
                word(1),
                word(2),
                mix(i) as u32
            )
            .into()
        }
        "JSON" => format!(
            r#"{{"id":{i},"name":"{} {}","tags":["{}","{}"],"score":{},"active":{}}}"#,
            word(0),
            word(1),
            word(2),
            word(3),
            mix(i) % 100_000,
            i.is_multiple_of(3)
        )
        .into(),
        _ => (0..8).flat_map(|n| mix(i * 8 + n).to_le_bytes()).collect(),
    }
}

/// So much of it in a row.
fn page(kind: &str, i: u64, len: usize) -> Vec<u8> {
    (0..).flat_map(|n| value(kind, i * 1000 + n)).take(len).collect()
}

fn store() -> Arc<BlockCache> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
        .expect("a fresh store");
    zones.start();
    BlockCache::new(zones, 1 << 20)
}

/// Large values of `len` bytes: flushed, then got in the order of their keys, each by itself, so
/// that nothing but the value is read twice.
fn large_values(kind: &str, len: usize, compress_values: Compression) {
    let n = (64 << 20) / len as u64;
    let store = store();
    let m = Arc::new(Memtable::new());
    for i in 0..n {
        m.put(&i.to_be_bytes(), i + 1, Value::Inline(page(kind, i, len).into()));
    }
    let options = MergeOptions { old_seq: u64::MAX, compress_values, ..MergeOptions::default() };
    let begin = ran();
    let run = merge(&store, &[Input::Memtable(m)], &KeyRange::all(), options)
        .expect("memory")
        .expect("there are items");
    let flush = (ran() - begin) as f64 / (n * len as u64) as f64;
    let (mut read, mut units, mut begin) = (0, 0, 0);
    for round in 0..2 {
        (read, begin) = (0, ran());
        for i in 0..n {
            let Ok(Lookup::Found(_, v)) = run.get(&i.to_be_bytes(), hash(&i.to_be_bytes())) else {
                panic!("{i} is missing")
            };
            if let Value::Extent(e) = v {
                units += u64::from(e.stored.next_multiple_of(e.align())) * round;
            }
            read += store.read_value(&v).expect("memory").len() as u64;
        }
    }
    let get = (ran() - begin) as f64 / read as f64;
    println!(
        "{kind:>8} {:>3} KiB {:>4}: {:.2} of the bytes; {:.2} ns a byte put, {:.2} got ({:.1} us a value)",
        len >> 10,
        format!("{compress_values:?}"),
        units as f64 / read as f64,
        flush,
        get,
        get * len as f64 / 1000.0
    );
}

fn main() {
    let n = std::env::args().nth(1).and_then(|a| a.parse::<u64>().ok()).unwrap_or(300_000);
    for kind in ["log line", "JSON", "noise"] {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let store = store();
            let m = Arc::new(Memtable::new());
            let key = |i: u64| format!("{:016}", mix(i) % 10_000_000_000_000_000);
            let mut bytes = 0;
            for i in 0..n {
                let v = value(kind, i);
                bytes += 16 + v.len();
                m.writer().put_slice(key(i).as_bytes(), i + 1, &v);
            }
            let options = MergeOptions {
                placement: Placement::copy(),
                old_seq: u64::MAX,
                compression,
                ..MergeOptions::default()
            };
            let begin = ran();
            let run = merge(&store, &[Input::Memtable(m)], &KeyRange::all(), options)
                .expect("memory")
                .expect("there are items");
            let flush = (ran() - begin) as f64 / n as f64;
            let begin = ran();
            let mut c = RunCursor::new(run.clone());
            c.first().expect("memory");
            let mut seen = 0;
            while c.item().is_some() {
                seen += 1;
                c.next().expect("memory");
            }
            assert_eq!(seen, n);
            let scan = (ran() - begin) as f64 / n as f64;
            let begin = ran();
            for i in (0..n).step_by(29) {
                let k = key(i);
                run.get(k.as_bytes(), hash(k.as_bytes())).expect("memory");
            }
            let get = (ran() - begin) as f64 / n.div_ceil(29) as f64;
            println!(
                "{kind:>8} {:>4}: {:.2} of the bytes; flush {flush:.0} ns an item, scan {scan:.0}, cold get {:.1} us",
                format!("{compression:?}"),
                run.stats().block_bytes as f64 / bytes as f64,
                get / 1000.0
            );
        }
    }
    for kind in ["log line", "JSON", "noise"] {
        for len in [4 << 10, 64 << 10] {
            for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
                large_values(kind, len, compression);
            }
        }
    }
}

//! What compression of tuple blocks saves and costs: blocks of log lines, of JSON and of noise, written by a flush, read by a scan and by
//! gets whose blocks are not in the cache. Times are those of the processor; the device is memory.
//!
//! `cargo run --release -p vt-tree --example compression [items]`

mod measure;

use std::sync::Arc;

use measure::{mix, ran};
use vt_tree::{Compression, Input, KeyRange, Memtable, MergeOptions, Placement, RunCursor, Source, Store, hash, merge};
use zones::{FormatOptions, MemoryDevice, Zones};

fn value(kind: &str, i: u64) -> Vec<u8> {
    let word = |n: u64| ["orange", "delta", "river", "stone", "quick", "silent", "north", "paper"][(mix(i * 8 + n) % 8) as usize];
    match kind {
        "log line" => {
            let (host, ms) = (mix(i) % 40, mix(i + 1) % 1000);
            format!("host-{host} GET /{}/{}/{} 200 {ms}ms session={:08x}", word(0), word(1), word(2), mix(i) as u32).into()
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

fn main() {
    let n = std::env::args().nth(1).and_then(|a| a.parse::<u64>().ok()).unwrap_or(300_000);
    for kind in ["log line", "JSON", "noise"] {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default()).expect("a fresh store");
            zones.start();
            let store = Store::new(zones, 1 << 20);
            let m = Arc::new(Memtable::new());
            let key = |i: u64| format!("{:016}", mix(i) % 10_000_000_000_000_000);
            let mut bytes = 0;
            for i in 0..n {
                let v = value(kind, i);
                bytes += 16 + v.len();
                m.writer().put_slice(key(i).as_bytes(), i + 1, &v);
            }
            let options = MergeOptions { placement: Placement::copy(), old_seq: u64::MAX, compression, ..MergeOptions::default() };
            let begin = ran();
            let run = merge(&store, &[Input::Memtable(m)], &KeyRange::all(), options).expect("memory").expect("there are items");
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
}

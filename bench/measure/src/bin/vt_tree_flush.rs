//! The cost of a flush of a memtable, and of a merge of two runs: keys of 16 bytes, values of 64, a
//! device in memory. Times are processor times, so that other programs on the machine count little.
//!
//! `cargo run --release -p measure --bin vt_tree_flush [items] [rounds]`

use std::sync::Arc;

use measure::{mix, ran};
use vt_tree::{
    BlockCache, Input, KeyRange, Memtable, MergeOptions, Placement, Pool, Run, Source, merge,
};
use zones::{FormatOptions, MemoryDevice, Zones};

fn run(store: &Arc<BlockCache>, inputs: &[Input]) -> Arc<Run> {
    let options =
        MergeOptions { placement: Placement::copy(), old_seq: u64::MAX, ..MergeOptions::default() };
    merge(store, inputs, &KeyRange::all(), options)
        .expect("the device is memory")
        .expect("there are items")
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<u64>().ok());
    let (n, rounds) = (args.next().unwrap_or(500_000), args.next().unwrap_or(3));
    let pool = Pool::new();
    let mut best = [u64::MAX; 4];
    let mut bytes = 0;
    for _ in 0..rounds {
        let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default())
            .expect("a fresh store");
        zones.start();
        let store = BlockCache::new(zones, 64 << 20);
        let memtables: Vec<Arc<Memtable>> = (0..2u64)
            .map(|part| {
                let m = Arc::new(Memtable::in_pool(&pool));
                for i in 0..n {
                    let key = format!("{:016}", mix(i * 2 + part) % 10_000_000_000_000_000);
                    m.writer().put_slice(key.as_bytes(), i + 1, &mix(i).to_le_bytes().repeat(8));
                }
                m
            })
            .collect();
        let timed = |what: usize, best: &mut [u64; 4], work: &mut dyn FnMut()| {
            let begin = ran();
            work();
            best[what] = best[what].min(ran() - begin);
        };
        timed(0, &mut best, &mut || {
            let mut c = memtables[0].cursor(u64::MAX);
            c.first().expect("a memtable reads no device");
            let mut seen = 0;
            while c.item().is_some() {
                seen += 1;
                c.next().expect("a memtable reads no device");
            }
            assert_eq!(seen, n);
        });
        let mut runs = Vec::new();
        timed(1, &mut best, &mut || {
            runs.push(run(&store, &[Input::Memtable(memtables[0].clone())]))
        });
        runs.push(run(&store, &[Input::Memtable(memtables[1].clone())]));
        bytes = runs[0].stats().block_bytes;
        let inputs: Vec<Input> = runs.iter().cloned().map(Input::Run).collect();
        timed(2, &mut best, &mut || assert_eq!(run(&store, &inputs).stats().items, 2 * n));
        timed(3, &mut best, &mut || {
            let mut c = vt_tree::RunCursor::new(runs[0].clone());
            c.first().expect("the device is memory");
            let mut seen = 0;
            while c.item().is_some() {
                seen += 1;
                c.next().expect("the device is memory");
            }
            assert_eq!(seen, n);
        });
    }
    let [walk, flush, merged, scan] = best;
    println!(
        "walking a memtable {:.0} ns an item, writing it out {:.0}; merging two runs {:.0}; scanning a run {:.0}; {:.1} bytes of blocks an item",
        walk as f64 / n as f64,
        flush as f64 / n as f64,
        merged as f64 / (2 * n) as f64,
        scan as f64 / n as f64,
        bytes as f64 / n as f64
    );
}

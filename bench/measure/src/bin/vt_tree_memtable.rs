//! The cost of a put into the memtable, compared with a `BTreeMap<Vec<u8>, Vec<u8>>` in the same
//! process: keys of 16 bytes, values of 64. Times are processor times, so that other programs on
//! the machine count little.
//!
//! `cargo run --release -p measure --bin vt_tree_memtable [random|sequential|append] [items]
//! [rounds]`

use std::collections::BTreeMap;

use measure::{mix, ran};
use vt_tree::{Memtable, Pool};

const VALUE: [u8; 64] = [7; 64];
/// Keys of one batch.
const BATCH: usize = 100;

fn keys(load: &str, n: u64) -> Vec<[u8; 16]> {
    let decimal =
        |i: u64| <[u8; 16]>::try_from(format!("{i:016}").as_bytes()).expect("sixteen digits");
    match load {
        "random" => (0..n).map(|i| decimal(mix(i) % 10_000_000_000_000_000)).collect(),
        "sequential" => (0..n).map(decimal).collect(),
        // 2040 ranges, each written upwards, in random order.
        _ => {
            let mut next = vec![0u64; 2040];
            (0..n)
                .map(|i| {
                    let range = (mix(i) % 2040) as usize;
                    next[range] += 1;
                    decimal(range as u64 * 1_000_000_000 + next[range])
                })
                .collect()
        }
    }
}

fn main() {
    let only = std::env::args().nth(1).filter(|a| a.parse::<u64>().is_err());
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<u64>().ok());
    let pool = Pool::new();
    let (n, rounds) = (args.next().unwrap_or(500_000), args.next().unwrap_or(3));
    for load in ["random", "sequential", "append"]
        .into_iter()
        .filter(|l| only.as_ref().is_none_or(|o| o == l))
    {
        let keys = keys(load, n);
        let mut best = [f64::MAX; 4];
        let mut bytes = 0;
        for _ in 0..rounds {
            let m = Memtable::in_pool(&pool);
            let begin = ran();
            for (seq, k) in keys.iter().enumerate() {
                m.writer().put_slice(k, seq as u64 + 1, &VALUE);
            }
            best[0] = best[0].min((ran() - begin) as f64 / n as f64);
            bytes = m.bytes();
            let begin = ran();
            let found = keys
                .iter()
                .step_by(7)
                .filter(|k| matches!(m.get(&k[..], u64::MAX), vt_tree::Lookup::Found(..)))
                .count();
            best[3] = best[3].min((ran() - begin) as f64 / found as f64);
            drop(m);
            let m = Memtable::in_pool(&pool);
            let begin = ran();
            for (b, batch) in keys.chunks(BATCH).enumerate() {
                let mut w = m.writer();
                for (i, k) in batch.iter().enumerate() {
                    w.put_slice(k, (b * BATCH + i) as u64 + 1, &VALUE);
                }
            }
            best[1] = best[1].min((ran() - begin) as f64 / n as f64);
            drop(m);
            let mut map = BTreeMap::new();
            let begin = ran();
            for k in &keys {
                map.insert(k.to_vec(), VALUE.to_vec());
            }
            best[2] = best[2].min((ran() - begin) as f64 / n as f64);
        }
        let [one, batched, map, get] = best;
        println!(
            "{load:>10}: {one:.0} ns a put, {batched:.0} in batches of {BATCH}, {map:.0} into a BTreeMap ({:.2} of it); {get:.0} ns a get; {:.0} bytes an item",
            one / map,
            bytes as f64 / n as f64
        );
    }
}

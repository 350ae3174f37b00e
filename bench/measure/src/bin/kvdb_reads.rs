//! Measures reads: `cargo run --release -p measure --bin kvdb_reads -- FILE [MiB [memory MiB [value
//! bytes [threshold]]]]`. Loads tuples in random key order, opens the store again, and reads it
//! cold (with the host's cache dropped) and warm. Prints the cost of each on the device.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use env::{Machine, Random};
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{FileDevice, Purpose};

type Failure = Box<dyn std::error::Error>;

fn key(i: u64) -> String {
    // A bijection of 64 bits: random order, and every key known.
    let mut z = i.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("{:016x}", z ^ (z >> 31))
}

/// Seconds of processor time that this process has taken.
fn processor() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn drop_host_cache(path: &str) -> Result<(), Failure> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which file?")?;
    let number = |i: usize, or: u64| args.get(i).map_or(Ok(or), |v| v.parse());
    let (mib, memory, value) = (number(2, 512)?, number(3, 256)?, number(4, 4096)? as usize);
    let sequential = args.get(6).is_some_and(|v| v == "seq");
    let key = |i: u64| if sequential { format!("{i:016x}") } else { key(i) };
    let open = OpenOptions { memory: (memory as usize) << 20, ..OpenOptions::default() };
    let each = (4096 / value as u64).max(1);
    let count = (mib << 20) / (value as u64 + 16) / each * each;
    if args.get(7).is_none_or(|v| v != "again") {
        let _ = std::fs::remove_file(path);
        let create = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let db = Kvdb::create(
            Arc::new(FileDevice::create(path)?),
            Arc::new(Machine::default()),
            create,
        )?;
        let mut options = DictionaryOptions::default();
        if let Some(t) = args.get(5).and_then(|t| t.parse().ok()) {
            options.stitch_at = t;
        }
        let d = db.create_dictionary("d", options)?;
        let mut noise = Random::new(1);
        let mut data = vec![0; 1 << 20];
        noise.fill(&mut data);
        let begun = Instant::now();
        let mut i = 0;
        while i < count {
            let mut batch = Batch::new();
            for _ in 0..(4096 / value).max(1) {
                let at = noise.below((data.len() - value) as u64) as usize;
                batch.put(d, key(i), data[at..at + value].to_vec());
                i += 1;
            }
            db.commit(batch, Durability::Buffered)?;
        }
        db.flush()?;
        if args.get(7).is_some_and(|v| v == "compact") {
            db.compact(d)?;
        }
        println!(
            "load: {:.0}k/s, written {:.2}",
            count as f64 / begun.elapsed().as_secs_f64() / 1e3,
            db.stats().write_amplification()
        );
        db.close()?;
    }
    let reopen = || -> Result<Kvdb, Failure> {
        drop_host_cache(path)?;
        Ok(Kvdb::open(
            Arc::new(FileDevice::open(path, false)?),
            Arc::new(Machine::default()),
            open.clone(),
        )?
        .0)
    };
    let mut db = reopen()?;
    let d = db.dictionary("d").ok_or("no dictionary")?;
    for l in &db.stats().dictionaries[0].levels {
        println!(
            "  level: {:?}",
            l.iter().map(|r| (r.items, r.value_spans, r.block_spans, r.height)).collect::<Vec<_>>()
        );
    }
    let all = "scan cold,scan warm,scan warm,lend warm,keys warm,back warm,back cold,short cold,short warm,get cold,get warm,get warm,missing";
    for what in args.get(8).map_or(all, |v| v.as_str()).split(',') {
        if what.ends_with("cold") {
            drop(db);
            db = reopen()?;
        }
        let before = db.stats().io;
        let (begun, processor) = (Instant::now(), processor());
        let (mut n, mut bytes) = (0u64, 0usize);
        let view = db.view();
        match what {
            "scan cold" | "scan warm" => {
                let mut c = view.cursor(d, b"", b"")?;
                while let Some(t) = c.next()? {
                    n += 1;
                    bytes += t.key.len() + t.value()?.len();
                }
                assert_eq!(n, count);
            }
            "lend warm" => view.for_each(d, b"", b"", |key, value| {
                n += 1;
                bytes += key.len() + value.len();
                ControlFlow::Continue(())
            })?,
            "keys warm" => {
                let mut c = view.cursor(d, b"", b"")?;
                while let Some(t) = c.next()? {
                    n += 1;
                    bytes += t.key.len();
                }
            }
            "back warm" | "back cold" => {
                let mut c = view.cursor(d, b"", b"")?;
                c.seek_to_end()?;
                while let Some(t) = c.prev()? {
                    n += 1;
                    bytes += t.key.len() + t.value()?.len();
                }
                assert_eq!(n, count);
            }
            "short cold" | "short warm" => {
                let mut r = Random::new(7);
                while n < 3000 {
                    let start = key(r.below(count));
                    bytes += view
                        .scan(d, start.as_bytes(), b"", 50)?
                        .iter()
                        .map(|(k, v)| k.len() + v.len())
                        .sum::<usize>();
                    n += 1;
                }
            }
            "missing" => {
                let mut r = Random::new(7);
                while n < 500_000 {
                    n += 1;
                    let key = key(r.below(1 << 40) + (1 << 41));
                    assert!(db.get(d, key.as_bytes())?.is_none());
                }
            }
            _ => {
                let mut r = Random::new(9);
                let most = if what == "get cold" { 50_000 } else { 300_000 };
                while n < most {
                    n += 1;
                    bytes +=
                        db.get(d, key(r.below(count)).as_bytes())?.ok_or("a key is missing")?.len();
                }
            }
        }
        let took = begun.elapsed().as_secs_f64();
        let after = db.stats().io;
        let ops = |p: Purpose| after.of(p).read_ops - before.of(p).read_ops;
        println!(
            "{what}: {:.0}k/s, {:.0} MB/s, {:.0} ns each, {:.0} of them on a processor; reads a tuple: values {:.3}, blocks {:.3}, index {:.3}; cache {} MB",
            n as f64 / took / 1e3,
            bytes as f64 / took / 1e6,
            took * 1e9 / n as f64,
            (self::processor() - processor) * 1e9 / n as f64,
            ops(Purpose::Pages) as f64 / n as f64,
            ops(Purpose::Tuples) as f64 / n as f64,
            ops(Purpose::Index) as f64 / n as f64,
            db.stats().cache_bytes >> 20,
        );
    }
    Ok(())
}

//! Measures basic speed:
//! `cargo run --release -p measure --bin kvdb_load -- FILE [MiB [memory MiB]]`. Loads, reads and
//! synced commits on a file, with figures for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{FileDevice, MemoryDevice};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which file?")?;
    let mib: u64 = args.get(2).map_or(Ok(256), |v| v.parse())?;
    let memory: usize = args.get(3).map_or(Ok(256), |v| v.parse())?;
    let options = || CreateOptions {
        open: OpenOptions { memory: memory << 20, ..OpenOptions::default() },
        ..CreateOptions::default()
    };
    for (name, value, random, per_batch) in [
        ("sequential 4 KiB", 4096usize, false, 1u64),
        ("sequential 4 KiB, 32 a batch", 4096, false, 32),
        ("random 4 KiB", 4096, true, 1),
        ("sequential 64 B", 64, false, 1),
        ("random 64 B", 64, true, 1),
        ("random 64 B, 100 a batch", 64, true, 100),
    ] {
        let _ = std::fs::remove_file(path);
        let db = Kvdb::create(
            Arc::new(FileDevice::create(path)?),
            Arc::new(Machine::default()),
            options(),
        )?;
        let d = db.create_dictionary("d", DictionaryOptions::default())?;
        let count = (mib << 20) / (value as u64 + 16) / if value < 1000 { 4 } else { 1 };
        let mut noise = Random::new(1);
        let mut data = vec![0; 1 << 20];
        noise.fill(&mut data);
        let (begun, mut worst) = (Instant::now(), Duration::ZERO);
        let mut i = 0;
        while i < count {
            let mut batch = Batch::new();
            for _ in 0..per_batch {
                let key = if random { noise.number() } else { i };
                let at = noise.below((data.len() - value) as u64) as usize;
                batch.put(d, format!("{key:016x}"), data[at..at + value].to_vec());
                i += 1;
            }
            let one = Instant::now();
            db.commit(batch, Durability::Buffered)?;
            worst = worst.max(one.elapsed());
        }
        let put = begun.elapsed();
        db.sync()?;
        let stats = db.stats();
        let begun = Instant::now();
        let view = db.view();
        let mut cursor = view.cursor(d, b"", b"")?;
        let mut scanned = 0;
        while let Some(t) = cursor.next()? {
            scanned += t.value()?.len() + 16;
        }
        let scan = begun.elapsed();
        let begun = Instant::now();
        let gets = 100_000;
        for _ in 0..gets {
            db.get(d, format!("{:016x}", noise.below(count)).as_bytes())?;
        }
        let get = begun.elapsed();
        println!(
            "{name}: {:.0}k/s, {:.0} MB/s, written {:.2}, worst {:.1} ms, delayed {:.0} ms in {}, {} stops; {} flushes, {} merges; scan {:.0} MB/s; get {:.0}k/s",
            count as f64 / put.as_secs_f64() / 1e3,
            count as f64 * (value + 16) as f64 / put.as_secs_f64() / 1e6,
            stats.write_amplification(),
            worst.as_secs_f64() * 1e3,
            stats.delayed_micros as f64 / 1e3,
            stats.delays,
            stats.stops,
            stats.flushes,
            stats.compactions,
            scanned as f64 / scan.as_secs_f64() / 1e6,
            gets as f64 / get.as_secs_f64() / 1e3,
        );
    }
    for threads in [1u64, 16] {
        let _ = std::fs::remove_file(path);
        let db = Kvdb::create(
            Arc::new(FileDevice::create(path)?),
            Arc::new(Machine::default()),
            options(),
        )?;
        let d = db.create_dictionary("d", DictionaryOptions::default())?;
        let begun = Instant::now();
        let each = 4000 / threads.min(2);
        std::thread::scope(|scope| {
            for t in 0..threads {
                let db = &db;
                scope.spawn(move || -> kvdb::Result<()> {
                    for i in 0..each {
                        let mut batch = Batch::new();
                        batch.put(d, (t << 32 | i).to_be_bytes().to_vec(), vec![1; 100]);
                        db.commit(batch, Durability::Synced)?;
                    }
                    Ok(())
                });
            }
        });
        let took = begun.elapsed();
        println!(
            "synced commits, {threads} threads: {:.1}k/s, {} syncs",
            (each * threads) as f64 / took.as_secs_f64() / 1e3,
            db.stats().syncs
        );
    }
    let _ = std::fs::remove_file(path);

    // A power cut's image, taken in memory: what opening costs when the memtables are full and
    // nothing is in runs.
    let device = Arc::new(MemoryDevice::new());
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options())?;
    let d = db.create_dictionary("d", DictionaryOptions::default())?;
    let mut noise = Random::new(2);
    while db.stats().flushes == 0 && db.stats().memtable_bytes < (memory as u64) << 20 >> 2 {
        for _ in 0..1000 {
            let mut batch = Batch::new();
            batch.put(d, noise.number().to_be_bytes().to_vec(), vec![3; 100]);
            db.commit(batch, Durability::Buffered)?;
        }
    }
    db.sync()?;
    let image = MemoryDevice::clone(&device);
    println!("{}", Kvdb::open(Arc::new(image), Arc::new(Machine::default()), options().open)?.1);
    Ok(())
}

//! How long a synced commit of 4 KiB takes beside another thread's commits that are not synced:
//! `cargo run --release -p measure --bin kvdb_sync_beside -- FILE [SECONDS [PAUSE ms]]`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb};
use zones::FileDevice;

/// What the other thread commits.
#[derive(Clone, Copy)]
struct Bulk {
    name: &'static str,
    value: usize,
    /// Tuples of a commit; 0: the thread does nothing.
    batch: u64,
}

const LOADS: [Bulk; 4] = [
    Bulk { name: "nothing", value: 0, batch: 0 },
    Bulk { name: "tuples of 64 B", value: 64, batch: 1 },
    Bulk { name: "values of 4 KiB", value: 4096, batch: 1 },
    Bulk { name: "pages, 8 MiB at once", value: 4096, batch: 2048 },
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which file?")?;
    let seconds: u64 = args.get(2).map_or(Ok(5), |v| v.parse())?;
    let pause = Duration::from_millis(args.get(3).map_or(Ok(20), |v| v.parse())?);
    for load in LOADS {
        let _ = std::fs::remove_file(path);
        let device = Arc::new(FileDevice::create(path)?);
        let db = Kvdb::create(device, Arc::new(Machine::default()), CreateOptions::default())?;
        let d = db.create_dictionary("d", DictionaryOptions::default())?;
        db.put(d, b"synced", b"first", Durability::Synced)?;
        let stop = AtomicBool::new(false);
        let mut took = Vec::new();
        let begun = Instant::now();
        let committed = std::thread::scope(|scope| -> Result<u64, kvdb::Error> {
            let bulk = scope.spawn(|| commit_until(&db, d, load, &stop));
            let mut synced = Ok(());
            while synced.is_ok() && begun.elapsed() < Duration::from_secs(seconds) {
                std::thread::sleep(pause);
                let one = Instant::now();
                synced = db.put(d, b"synced", &vec![1; 4096], Durability::Synced);
                took.push(one.elapsed());
            }
            stop.store(true, Ordering::Relaxed);
            synced?;
            bulk.join().unwrap_or(Ok(0))
        })?;
        let rate = committed as f64 / begun.elapsed().as_secs_f64() / 1e6;
        took.sort();
        let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)].as_secs_f64();
        println!(
            "{}: {rate:.0} MB/s; {} syncs, ms: median {:.2}, nine of ten {:.2}, longest {:.2}; written {:.2}",
            load.name,
            took.len(),
            at(50) * 1e3,
            at(90) * 1e3,
            at(100) * 1e3,
            db.stats().write_amplification(),
        );
    }
    std::fs::remove_file(path)?;
    Ok(())
}

/// Commits as `load` says; gives the bytes.
fn commit_until(
    db: &Kvdb,
    d: DictionaryId,
    load: Bulk,
    stop: &AtomicBool,
) -> Result<u64, kvdb::Error> {
    let mut noise = Random::new(1);
    let mut data = vec![0; 1 << 20];
    noise.fill(&mut data);
    let (mut bytes, mut page) = (0, 0u64);
    while load.batch > 0 && !stop.load(Ordering::Relaxed) {
        let mut batch = Batch::new();
        for _ in 0..load.batch {
            let key = if load.batch == 1 { noise.number() } else { page };
            page += 1;
            let at = noise.below((data.len() - load.value) as u64) as usize;
            let value = &data[at..at + load.value];
            bytes += load.value as u64 + 8;
            if load.batch == 1 {
                db.put(d, &key.to_be_bytes(), value, Durability::Buffered)?;
            } else {
                batch.put(d, key.to_be_bytes().to_vec(), value.to_vec());
            }
        }
        if load.batch > 1 {
            db.commit(batch, Durability::Buffered)?;
        }
    }
    Ok(bytes)
}

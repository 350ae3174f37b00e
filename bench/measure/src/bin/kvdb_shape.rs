//! What the shape of the tree and the stitching threshold cost, counted: loads a store on a file or
//! a block device, lets it settle, scans it.
//!
//! `cargo run --release -p measure --bin kvdb_shape -- FILE LOAD VALUE MiB [name=value ...]`, LOAD
//! one of `sequential`, `random`, `append`, `overwrite` (random, four times), `wdw` (write, delete
//! half, write again). Names: `threads`, `stitch_at` (bytes, `max`, `adaptive`), `separate_at`,
//! `ranges`, `memory` (MiB), `journal` (`false`: none), `scan` (MiB at most), and any shape option.
//! One line of JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{
    ADAPTIVE, Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions,
};
use zones::{FileDevice, Purpose};

struct Load<'a> {
    kind: &'a str,
    value: usize,
    count: u64,
    ranges: u64,
    threads: u64,
}

/// A bijection on 64 bits, so that random keys come once each.
fn mixed(i: u64) -> u64 {
    let x = (i ^ i >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Load<'_> {
    fn key(&self, i: u64, random: &mut Random, next: &mut [u64]) -> [u8; 16] {
        let (a, b) = match self.kind {
            "sequential" => (0, i),
            "append" => {
                let range = random.below(next.len() as u64) as usize;
                next[range] += 1;
                (mixed(range as u64), next[range])
            }
            "overwrite" => (mixed(random.below(self.count / 4)), 0),
            _ => (mixed(i), 0),
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&a.to_be_bytes());
        key[8..].copy_from_slice(&b.to_be_bytes());
        key
    }

    /// Writes its tuples; the latencies in microseconds, sorted.
    fn put(
        &self,
        db: &Kvdb,
        d: DictionaryId,
        data: &[u8],
        done: &AtomicU64,
    ) -> kvdb::Result<Vec<u32>> {
        let each = |thread: u64| -> kvdb::Result<Vec<u32>> {
            let mut random = Random::new(thread + 1);
            let mut next = vec![0; (self.ranges / self.threads).max(1) as usize];
            next.iter_mut().for_each(|n| *n = thread << 40);
            let mut took = Vec::new();
            for i in (thread..self.count).step_by(self.threads as usize) {
                let key = self.key(i, &mut random, &mut next);
                let at = random.below((data.len() - self.value) as u64) as usize;
                let begun = Instant::now();
                let mut batch = Batch::new();
                batch.put(d, key.to_vec(), data[at..at + self.value].to_vec());
                db.commit(batch, Durability::Buffered)?;
                took.push(begun.elapsed().as_micros().min(u128::from(u32::MAX)) as u32);
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(took)
        };
        let mut all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|t| scope.spawn(move || each(t))).collect();
            let mut all = Vec::new();
            for t in threads {
                all.extend(t.join().expect("a client does not panic")?);
            }
            Ok::<_, kvdb::Error>(all)
        })?;
        all.sort_unstable();
        Ok(all)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, kind, value, mib, rest @ ..] = &args[..] else {
        return Err("FILE LOAD VALUE MiB [name=value ...]".into());
    };
    let value: usize = value.parse()?;
    let mut open = OpenOptions::default();
    let mut load = Load {
        kind,
        value,
        count: (mib.parse::<u64>()? << 20) / (value as u64 + 16),
        ranges: 2040,
        threads: 1,
    };
    let mut options = DictionaryOptions::default();
    let mut most_scanned = usize::MAX;
    for option in rest {
        let (name, v) = option.split_once('=').ok_or("name=value")?;
        match (name, v) {
            ("stitch_at", "max") => options.stitch_at = u64::MAX,
            ("stitch_at", "adaptive") => options.stitch_at = ADAPTIVE,
            ("stitch_at", v) => options.stitch_at = v.parse()?,
            ("separate_at", v) => options.separate_at = v.parse()?,
            ("threads", v) => load.threads = v.parse()?,
            ("ranges", v) => load.ranges = v.parse()?,
            ("runs_per_level", v) => open.compaction.runs_per_level = v.parse()?,
            ("size_ratio", v) => open.compaction.size_ratio = v.parse()?,
            ("single_bottom", v) => open.compaction.single_bottom = v.parse()?,
            ("merge_threads", v) => open.merge_threads = v.parse()?,
            ("seek_bytes", v) => open.seek_bytes = v.parse()?,
            ("defrag_rate", v) => open.defrag_rate = v.parse()?,
            ("scan", v) => most_scanned = v.parse::<usize>()? << 20,
            ("memory", v) => open.memory = v.parse::<usize>()? << 20,
            ("journal", v) => open.journal = v.parse()?,
            _ => return Err(format!("{name} is no option").into()),
        }
    }
    // A block device is formatted in its place.
    if std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
        std::fs::remove_file(path)?;
    }
    let db = Kvdb::create(
        Arc::new(FileDevice::create(path)?),
        Arc::new(Machine::default()),
        CreateOptions { open, ..CreateOptions::default() },
    )?;
    let d = db.create_dictionary("d", options)?;
    let mut data = vec![0; 1 << 20];
    Random::new(1).fill(&mut data);
    let (done, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let begun = Instant::now();
    let took = std::thread::scope(|scope| {
        let (db2, done, most, stop, load) = (&db, &done, &most, &stop, &load);
        // Space against data, in percent, in the second half of the load.
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                let live = done.load(Ordering::Relaxed) * (load.value as u64 + 16);
                let live = if load.kind == "overwrite" {
                    live.min(load.count / 4 * (load.value as u64 + 16))
                } else {
                    live
                };
                if done.load(Ordering::Relaxed) > load.count / 2 {
                    let space = db2.space();
                    most.fetch_max(
                        (space.total - space.free.min(space.total)) * 100 / live,
                        Ordering::Relaxed,
                    );
                }
            }
        });
        let took = load.put(&db, d, &data, done).and_then(|took| {
            if load.kind == "wdw" {
                let mut batch = Batch::new();
                for i in (0..load.count).step_by(2) {
                    batch.delete(d, load.key(i, &mut Random::new(1), &mut []).to_vec());
                    if batch.len() == 1000 {
                        db.commit(std::mem::take(&mut batch), Durability::Buffered)?;
                    }
                }
                db.commit(batch, Durability::Buffered)?;
                load.put(&db, d, &data, done)?;
            }
            Ok(took)
        });
        stop.store(true, Ordering::Relaxed);
        took
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let loaded = db.stats();
    db.flush()?;
    // Until merging has nothing to do.
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(1500));
        let merged = db.stats().io.total().write_bytes;
        if merged == before {
            break;
        }
        before = merged;
    }
    let s = db.stats();
    let per_byte = |bytes: u64| (bytes as f64 / s.user_bytes as f64 * 1000.0).round() / 1000.0;
    let of = |p: Purpose| {
        per_byte(s.io.iter().find(|(of, _)| *of == p).map_or(0, |(_, s)| s.write_bytes))
    };
    let spans: Vec<_> = s.dictionaries[0].levels.iter().flatten().collect();
    let sum = |f: fn(&vt_tree::RunStats) -> u64| spans.iter().map(|r| f(r)).sum::<u64>();
    let begun = Instant::now();
    let view = db.view();
    let mut cursor = view.cursor(d, b"", b"")?;
    let mut scanned = 0;
    while let Some(t) = cursor.next()? {
        scanned += t.value()?.len() + 16;
        if scanned >= most_scanned {
            break;
        }
    }
    let scan = begun.elapsed().as_secs_f64();
    let at = |part: f64| f64::from(took[((took.len() - 1) as f64 * part) as usize]) / 1e3;
    println!(
        "{{\"load\":\"{kind}\",\"value_bytes\":{value},\"options\":{rest:?},\"ops_per_s\":{:.0},\"write_amp\":{},\"write_amp_loaded\":{:.3},\"journal\":{},\"tuples\":{},\"index\":{},\"pages\":{},\
         \"p999_ms\":{:.1},\"worst_ms\":{:.1},\"stops\":{},\"delayed_ms\":{},\"flushes\":{},\"merges\":{},\"levels\":{:?},\"block_span\":{},\"value_span\":{},\"defrag_moved\":{},\"zones_held\":{},\"zones_reclaimable\":{},\"space_most_pct\":{},\"live_bytes\":{scanned},\"scan_mb_s\":{:.0}}}",
        load.count as f64 / seconds,
        per_byte(s.io.total().write_bytes),
        loaded.write_amplification(),
        of(Purpose::Journal),
        of(Purpose::Tuples),
        of(Purpose::Index),
        of(Purpose::Pages),
        at(0.999),
        at(1.0),
        s.stops,
        s.delayed_micros / 1000,
        s.flushes,
        s.compactions,
        s.dictionaries[0].levels.iter().map(Vec::len).collect::<Vec<_>>(),
        sum(|r| r.block_bytes) / sum(|r| r.block_spans).max(1),
        sum(|r| r.value_bytes) / sum(|r| r.value_spans).max(1),
        s.defrag.bytes_moved,
        s.zones_held,
        s.zones_reclaimable,
        most.load(Ordering::Relaxed),
        scanned as f64 / scan / 1e6,
    );
    Ok(())
}

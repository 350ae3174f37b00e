//! Measures the effect of a million range deletes on reads:
//! `cargo run --release -p measure --bin kvdb_range_deletes -- [tombstones [FILE]]`.
//!
//! A store of twice as many tuples as tombstones (16 B keys, 64 B values) is read, then the
//! tombstones are committed one by one, then it is read again: with them in memory, in runs above
//! the data, and merged. Each time in turn with a dictionary that has none. Half of the tuples
//! stay alive in every case, so the reads ask for the same keys; a live tuple of a scan has a dead
//! one next to it. In memory or in FILE, which is overwritten.

use std::sync::Arc;
use std::time::Instant;

use env::{Machine, Random};
use kvdb::{Batch, CreateOptions, Dictionary, Durability, Kvdb, OpenOptions};
use zones::{Device, FileDevice, MemoryDevice};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const READS: u64 = 200_000;

fn key(i: u64) -> Vec<u8> {
    format!("{i:016x}").into_bytes()
}

/// How the tombstones lie.
#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    /// Each covers one tuple; live ones lie between.
    Disjoint,
    /// Random ranges up to a thousand tuples wide, over one another, in the upper half of the keys.
    Overlapping,
    /// Each begins where the one before ended, as in a queue that is consumed.
    Adjacent,
    /// For comparison: as disjoint, but deletions of single keys.
    Points,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Disjoint => "disjoint",
            Pattern::Overlapping => "overlapping",
            Pattern::Adjacent => "adjacent",
            Pattern::Points => "points, for comparison",
        }
    }

    /// Key of the `i`th live tuple.
    fn live(self, i: u64) -> u64 {
        if matches!(self, Pattern::Disjoint | Pattern::Points) { 2 * i } else { i }
    }

    /// Key of the `i`th dead tuple.
    fn dead(self, i: u64, count: u64) -> u64 {
        if matches!(self, Pattern::Disjoint | Pattern::Points) { 2 * i + 1 } else { count + i }
    }

    fn delete(self, i: u64, count: u64, random: &mut Random, dict: &Dictionary, batch: &mut Batch) {
        match self {
            Pattern::Points => batch.delete(dict.id(), key(2 * i + 1)),
            Pattern::Disjoint => batch.delete_range(dict.id(), key(2 * i + 1), key(2 * i + 2)),
            Pattern::Adjacent => batch.delete_range(dict.id(), key(count + i), key(count + i + 1)),
            Pattern::Overlapping => {
                let from = count + random.below(count);
                batch.delete_range(
                    dict.id(),
                    key(from),
                    key((from + 1 + random.below(1000)).min(2 * count)),
                );
            }
        }
    }
}

/// Nanoseconds an operation: get, get of a missing key, seek and ten tuples, then a live tuple of a
/// scan forward and backward.
type Reads = [f64; 5];

fn reads(pattern: Pattern, count: u64, dict: &Dictionary, random: &mut Random) -> Outcome<Reads> {
    let each = |begun: Instant, n: u64| begun.elapsed().as_nanos() as f64 / n as f64;
    let begun = Instant::now();
    for _ in 0..READS {
        let k = key(pattern.live(random.below(count)));
        dict.get(&k)?.ok_or("a live tuple is missing")?;
    }
    let get = each(begun, READS);
    let begun = Instant::now();
    for _ in 0..READS {
        let mut k = key(pattern.dead(random.below(count), count));
        k.push(b'x');
        assert!(dict.get(&k)?.is_none());
    }
    let missing = each(begun, READS);
    let begun = Instant::now();
    for _ in 0..READS / 10 {
        let from = key(pattern.live(random.below(count - 100)));
        let mut cursor = dict.store().view().cursor(dict.id(), &from, b"")?;
        for _ in 0..10 {
            cursor.next()?.ok_or("ten live tuples lie behind")?;
        }
    }
    let seek = each(begun, READS / 10);
    let scan = |back: bool| -> Outcome<f64> {
        let begun = Instant::now();
        let (mut cursor, mut found) = (dict.store().view().cursor(dict.id(), b"", b"")?, 0);
        if back {
            cursor.seek_to_end()?;
        }
        while (if back { cursor.prev()? } else { cursor.next()? }).is_some() {
            found += 1;
        }
        Ok(each(begun, found))
    };
    Ok([get, missing, seek, scan(false)?, scan(true)?])
}

/// The factor by which `dict` is slower than `base`, read in turn: the median of five ratios.
fn ratios(pattern: Pattern, count: u64, base: &Dictionary, dict: &Dictionary) -> Outcome<Reads> {
    let mut rounds = Vec::new();
    for round in 0..5 {
        let before = reads(pattern, count, base, &mut Random::new(round))?;
        let after = reads(pattern, count, dict, &mut Random::new(round))?;
        rounds.push((0..5).map(|i| after[i] / before[i]).collect::<Vec<_>>());
    }
    Ok(std::array::from_fn(|i| {
        let mut column: Vec<f64> = rounds.iter().map(|r| r[i]).collect();
        column.sort_by(f64::total_cmp);
        column[2]
    }))
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().collect();
    let count: u64 = args.get(1).map_or(Ok(1_000_000), |v| v.parse())?;
    for pattern in [Pattern::Points, Pattern::Disjoint, Pattern::Overlapping, Pattern::Adjacent] {
        let device: Arc<dyn Device> = match args.get(2) {
            Some(path) => {
                let _ = std::fs::remove_file(path);
                Arc::new(FileDevice::create(path)?)
            }
            None => Arc::new(MemoryDevice::new()),
        };
        // Without threads, so that nothing is merged before it is asked for.
        let open = OpenOptions {
            threads: false,
            memory: 2 << 30,
            flush_on_close: false,
            ..OpenOptions::default()
        };
        let db = Kvdb::create(
            device,
            Arc::new(Machine::default()),
            CreateOptions { open, ..CreateOptions::default() },
        )?;
        let (base, dict) = (db.open_dictionary("base")?, db.open_dictionary("d")?);
        for d in [&base, &dict] {
            d.ingest((0..2 * count).map(|i| (key(i), vec![i as u8; 64])))?;
            d.compact()?;
        }
        println!("{}, {count} of them", pattern.name());
        let tell = |when: &str| -> Outcome<()> {
            let [get, missing, seek, scan, back] = ratios(pattern, count, &base, &dict)?;
            let runs = &db.stats().dictionaries[1].levels;
            let above: Vec<u64> = runs.iter().take(15).flatten().map(|r| r.items).collect();
            println!(
                "  {when}: get {get:.2}x, missing {missing:.2}x, seek and ten {seek:.2}x, scan {scan:.2}x, backward {back:.2}x; \
                 {} KiB in memory, items in young runs {above:?}",
                db.stats().memtable_bytes >> 10,
            );
            Ok(())
        };
        let mut random = Random::new(9);
        let begun = Instant::now();
        for i in 0..count {
            let mut batch = Batch::new();
            pattern.delete(i, count, &mut random, &dict, &mut batch);
            db.commit(batch, Durability::Buffered)?;
        }
        println!("  {:.0} ns a delete", begun.elapsed().as_nanos() as f64 / count as f64);
        tell("in memory")?;
        let written = db.stats().merged_bytes;
        db.flush()?;
        println!("  the flush wrote {} KiB", (db.stats().merged_bytes - written) >> 10);
        tell("in runs")?;
        let (begun, written) = (Instant::now(), db.stats().merged_bytes);
        dict.compact()?;
        println!(
            "  merged in {:.2} s, {} KiB written",
            begun.elapsed().as_secs_f64(),
            (db.stats().merged_bytes - written) >> 10
        );
        tell("merged")?;
    }
    if let Some(path) = args.get(2) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

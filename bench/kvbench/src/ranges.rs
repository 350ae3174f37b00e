//! `kvbench ranges`: measures the cost of range deletes and their effect on reads. Tuples are put
//! in the order of their keys, and every second one is deleted by a range of its own, in scattered
//! order. Reads are measured before, after a thousand, ten thousand, … of them, and when everything
//! is flushed and quiet. The live tuples are the same at every stage, and each lies next to one
//! that is dead in the end.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::engines::{self, Engine, MIB, Settings};
use crate::keys::{Dice, Shape, Values};

#[derive(Args)]
pub struct Options {
    /// Engines, one after the other
    #[arg(long, value_delimiter = ',', default_value = "kvdb,rocksdb")]
    engines: Vec<String>,
    /// Range deletes in all, a power of two; twice as many tuples are put before
    #[arg(long, default_value_t = 1 << 20)]
    deletes: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    value: u64,
    /// Seconds that each kind of read goes on for, a full scan excepted
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// MiB for everything an engine keeps in memory, a quarter of them a write buffer
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// Scratch directory
    #[arg(long, default_value = "bench-scratch")]
    dir: PathBuf,
    /// JSON lines are appended to this file
    #[arg(long, default_value = "ranges.jsonl")]
    out: PathBuf,
}

/// Figures of one stage; times in nanoseconds.
#[derive(Debug, Default, Serialize)]
struct Stage {
    engine: String,
    /// Ranges deleted so far.
    deletes: u64,
    /// Everything is flushed, and the engine has no work left.
    settled: bool,
    /// A delete of this stage; 0: none.
    delete_ns: f64,
    /// A get of a live tuple, and of a dead one (of one that will be).
    get_ns: f64,
    dead_ns: f64,
    /// A get of a live tuple directly after the delete of a range that is deleted already.
    delete_and_get_ns: f64,
    /// Ten tuples from a live one on.
    ten_ns: f64,
    /// A tuple of a full scan that is seen.
    scan_ns: f64,
    scanned: u64,
}

struct Case<'a> {
    engine: &'a dyn Engine,
    values: Values,
    count: u64,
    limit: Duration,
}

const SHAPE: Shape = Shape::Sequential;

impl Case<'_> {
    /// The dead tuple that is deleted as the `n`th.
    fn victim(&self, n: u64) -> u64 {
        2 * (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (self.count - 1)) + 1
    }

    fn delete(&self, n: u64) -> Result<()> {
        let i = self.victim(n);
        if !self.engine.delete_range(&SHAPE.key(i), &SHAPE.key(i + 1))? {
            bail!("it has no range delete");
        }
        Ok(())
    }

    fn get(&self, i: u64) -> Result<bool> {
        let mut right = true;
        let found = self.engine.get(&SHAPE.key(i), &mut |v| right = v == self.values.of(i, 0))?;
        if !right {
            bail!("tuple {i} is not what was written");
        }
        Ok(found)
    }

    /// Nanoseconds of each `what`, repeated until the time is over.
    fn each(&self, mut what: impl FnMut(u64) -> Result<()>) -> Result<f64> {
        let (begun, mut n) = (Instant::now(), 0u64);
        while begun.elapsed() < self.limit {
            // The clock is read rarely, but at least once in this many operations.
            let together = if n < 64 { 1 } else { 16 };
            for _ in 0..together {
                what(n)?;
                n += 1;
            }
        }
        Ok(begun.elapsed().as_nanos() as f64 / n as f64)
    }

    fn reads(&self, stage: &mut Stage) -> Result<()> {
        let mut dice = Dice::new(1);
        // The data that was just written is in no cache yet.
        self.engine.scan(b"", u64::MAX >> 1, &mut |_, _| {})?;
        stage.get_ns = self.each(|_| match self.get(2 * dice.below(self.count))? {
            true => Ok(()),
            false => bail!("a live tuple is missing"),
        })?;
        let deleted = stage.deletes;
        stage.dead_ns =
            self.each(|_| match self.get(self.victim(dice.below(deleted.max(1))))? {
                found if found == (deleted == 0) => Ok(()),
                _ => bail!("a tuple is there that was deleted, or gone though it was not"),
            })?;
        stage.ten_ns = self.each(|_| {
            self.engine.scan(&SHAPE.key(2 * dice.below(self.count - 20)), 10, &mut |_, _| {})?;
            Ok(())
        })?;
        if deleted > 0 {
            stage.delete_and_get_ns = self.each(|n| {
                self.delete(n % deleted)?;
                self.get(2 * dice.below(self.count)).map(drop)
            })?;
        }
        let begun = Instant::now();
        stage.scanned = self.engine.scan(b"", u64::MAX >> 1, &mut |_, _| {})?;
        stage.scan_ns = begun.elapsed().as_nanos() as f64 / stage.scanned.max(1) as f64;
        if stage.scanned != 2 * self.count - deleted {
            bail!("a scan saw {} tuples, not {}", stage.scanned, 2 * self.count - deleted);
        }
        Ok(())
    }

    /// Flushes, and waits until the engine has reported no work for a second.
    fn settle(&self) -> Result<()> {
        self.engine.flush()?;
        let (begun, mut quiet) = (Instant::now(), Instant::now());
        while quiet.elapsed() < Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(120)
        {
            std::thread::sleep(Duration::from_millis(50));
            if self.engine.busy() {
                quiet = Instant::now();
            }
        }
        Ok(())
    }
}

pub fn run(options: &Options) -> Result<()> {
    if !options.deletes.is_power_of_two() || options.deletes < 64 {
        bail!("--deletes {} is no power of two of at least 64", options.deletes);
    }
    let mut out = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&options.out)
        .context("cannot open --out")?;
    for name in &options.engines {
        if !engines::deletes_ranges(name) {
            eprintln!("{name} skipped: it has no range delete");
            continue;
        }
        let dir = options.dir.join(format!("{name}-ranges-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let done = one(name, options, &dir, &mut |stage| {
            writeln!(out, "{}", serde_json::to_string(&stage)?)?;
            println!(
                "{name:17} {:>8} ranges{}: delete {:>6.0} ns, get {:>7.0}, dead {:>7.0}, ten {:>8.0}, delete and get {:>9.0}, scan {:>6.0}",
                stage.deletes,
                if stage.settled { " (settled)" } else { "          " },
                stage.delete_ns,
                stage.get_ns,
                stage.dead_ns,
                stage.ten_ns,
                stage.delete_and_get_ns,
                stage.scan_ns
            );
            Ok(())
        });
        let _ = std::fs::remove_dir_all(&dir);
        done.with_context(|| name.clone())?;
    }
    Ok(())
}

fn one(
    name: &str,
    options: &Options,
    dir: &std::path::Path,
    sink: &mut dyn FnMut(Stage) -> Result<()>,
) -> Result<()> {
    let memory = options.memory * MIB;
    let settings = Settings {
        dir: dir.to_path_buf(),
        memory,
        write_buffer: memory / 4,
        journal: true,
        stitch_at: None,
        separate_at: None,
        value_bytes: options.value,
    };
    let engine = engines::open(name, &settings)?;
    let values = Values::new(options.value as usize);
    let case = Case {
        engine: &*engine,
        values,
        count: options.deletes,
        limit: Duration::from_secs_f64(options.seconds.max(0.01)),
    };
    for i in 0..2 * case.count {
        engine.put(&SHAPE.key(i), case.values.of(i, 0))?;
    }
    engine.finish()?;
    case.settle()?;
    let mut stage = Stage { engine: name.to_string(), settled: true, ..Stage::default() };
    case.reads(&mut stage)?;
    sink(stage)?;
    let mut deleted = 0;
    // A 1024th of them, then sixteen times as many, and so on.
    for upto in [case.count >> 10, case.count >> 6, case.count >> 3, case.count].map(|n| n.max(1)) {
        let (begun, from) = (Instant::now(), deleted);
        while deleted < upto {
            case.delete(deleted)?;
            deleted += 1;
        }
        let delete_ns = begun.elapsed().as_nanos() as f64 / (deleted - from).max(1) as f64;
        let mut stage =
            Stage { engine: name.to_string(), deletes: deleted, delete_ns, ..Stage::default() };
        case.reads(&mut stage)?;
        sink(stage)?;
    }
    case.settle()?;
    let mut stage =
        Stage { engine: name.to_string(), deletes: deleted, settled: true, ..Stage::default() };
    case.reads(&mut stage)?;
    sink(stage)?;
    engine.close()
}

//! `kvbench run`: every combination of load, value size and engine, round by round, so that slow
//! minutes of the machine hit all alike.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::case;
use crate::engines::{self, MIB, Settings};
use crate::keys;
use crate::outcome::Outcome;
use crate::spec::{Load, Read, Spec, name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Args)]
pub struct Options {
    /// Engines, in the order of the first round; see `kvbench engines`
    #[arg(
        long,
        visible_alias = "engine",
        value_delimiter = ',',
        default_value = "kvdb,rocksdb,rocksdb-universal,rocksdb-blob,leveldb,fjall,fjall-kv,redb,lmdb"
    )]
    engines: Vec<String>,
    #[arg(
        long,
        visible_alias = "load",
        value_delimiter = ',',
        default_value = "sequential,random,append"
    )]
    loads: Vec<Load>,
    /// Bytes of a value
    #[arg(long, visible_alias = "value", value_delimiter = ',', default_value = "4096,64")]
    values: Vec<u64>,
    /// What is read after each load
    #[arg(long, visible_alias = "read", value_delimiter = ',')]
    reads: Vec<Read>,
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// MiB of keys and values in a data set; without it 2048 for values of 1 KiB or more, else 512
    #[arg(long)]
    mib: Option<u64>,
    /// Writes go to a journal that is not synced, or to none
    #[arg(long, default_value = "on")]
    journal: Switch,
    /// MiB for everything an engine keeps in memory
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// MiB of one write buffer
    #[arg(long, default_value_t = 64)]
    write_buffer: u64,
    /// Ranges of the load `append`
    #[arg(long, default_value_t = keys::RANGES)]
    ranges: u64,
    /// KiB that a range gets on average for each write buffer (the paper's Figure 7: 512); sets
    /// --ranges
    #[arg(long, conflicts_with = "ranges")]
    run_kib: Option<u64>,
    /// KiB that a range gets in a row before the next is picked; 0: one tuple
    #[arg(long, default_value_t = 0)]
    burst_kib: u64,
    /// Threads that load
    #[arg(long, default_value_t = 1)]
    clients: u64,
    /// Operations of a YCSB load; without it as many as there are tuples, at most a million
    #[arg(long)]
    ops: Option<u64>,
    /// Gets of a cold or limited read phase; of a warm one twenty times as many; short ranges are a
    /// hundredth of it
    #[arg(long, default_value_t = 50_000)]
    gets: u64,
    /// Seconds that a read phase takes at most
    #[arg(long, default_value_t = 10.0)]
    read_seconds: f64,
    /// kvdb's stitching thresholds in bytes, one case each; `default`, or `max` for a plain
    /// LSM-tree
    #[arg(long, value_delimiter = ',', default_value = "default")]
    stitch_at: Vec<String>,
    /// Values of so many bytes and more lie outside of kvdb's key blocks, and merges leave them
    /// where they are; without it kvdb's default
    #[arg(long)]
    separate_at: Option<u32>,
    /// Scratch directory, on the file system to be measured
    #[arg(long, default_value = "bench-scratch")]
    dir: PathBuf,
    /// JSON lines are appended to this file
    #[arg(long, default_value = "kv.jsonl")]
    out: PathBuf,
    /// Full time series of the loads go to this directory, a CSV file each
    #[arg(long)]
    series: Option<PathBuf>,
}

fn threshold(text: &str) -> Result<Option<u64>> {
    match text {
        "default" => Ok(None),
        "max" => Ok(Some(u64::MAX)),
        _ => Ok(Some(text.parse().with_context(|| {
            format!("--stitch-at {text} is neither a number, `default` nor `max`")
        })?)),
    }
}

pub fn run(options: &Options) -> Result<()> {
    let thresholds = options.stitch_at.iter().map(|t| threshold(t)).collect::<Result<Vec<_>>>()?;
    let journal = options.journal == Switch::On;
    let mut cases = Vec::new();
    for engine in &options.engines {
        if !engines::NAMES.contains(&engine.as_str()) {
            bail!("no engine is called {engine}; there are {}", engines::NAMES.join(", "));
        }
        match engine.as_str() {
            "kvdb" => cases.extend(thresholds.iter().map(|t| (engine, *t))),
            _ => cases.push((engine, None)),
        }
    }
    if let Some(dir) = &options.series {
        std::fs::create_dir_all(dir)?;
    }
    let mut out = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&options.out)
        .context("cannot open --out")?;
    let mut failed = 0;
    for round in 0..options.rounds {
        for &value in &options.values {
            for &load in &options.loads {
                // Another engine begins in every round.
                let turn = round as usize % cases.len();
                for (engine, stitch_at) in cases[turn..].iter().chain(&cases[..turn]) {
                    let no_ranges = load == Load::RangeDelete && !engines::deletes_ranges(engine);
                    let unfit = engines::unfit(engine, journal, value)
                        .or(no_ranges.then(|| "it has no range delete".into()));
                    if let Some(why) = unfit {
                        if round == 0 {
                            eprintln!("{engine} {} {value} B skipped: {why}", name(&load));
                        }
                        continue;
                    }
                    let spec = spec(options, engine, *stitch_at, load, value, round);
                    let mut sink = |o: Outcome| write(&mut out, &o);
                    if let Err(e) = case::run(&spec, &options.reads, options.gets, &mut sink) {
                        eprintln!("{engine} {} {value} B FAILED: {e:#}", name(&load));
                        failed += 1;
                    }
                }
            }
        }
    }
    if failed > 0 {
        bail!("{failed} cases failed");
    }
    Ok(())
}

fn spec(
    options: &Options,
    engine: &str,
    stitch_at: Option<u64>,
    load: Load,
    value_bytes: u64,
    round: u32,
) -> Spec {
    let bytes = options.mib.unwrap_or(if value_bytes >= 1024 { 2048 } else { 512 }) * MIB;
    let ranges = match options.run_kib {
        Some(kib) => (options.write_buffer * MIB / (kib << 10).max(1)).max(1),
        None => options.ranges.max(1),
    };
    let settings = Settings {
        dir: options.dir.join(format!("{engine}-{}", std::process::id())),
        memory: options.memory * MIB,
        write_buffer: options.write_buffer * MIB,
        journal: options.journal == Switch::On,
        stitch_at,
        separate_at: options.separate_at.filter(|_| engine == "kvdb"),
        value_bytes,
    };
    let mut spec = Spec {
        engine: engine.to_string(),
        load,
        read: None,
        settings,
        bytes,
        ranges,
        burst: options.burst_kib << 10,
        clients: options.clients.max(1),
        ops: 1,
        read_seconds: options.read_seconds,
        round,
        group: None,
        memory_limit: None,
        series: options
            .series
            .as_ref()
            .map(|d| d.join(format!("{engine}-{}-{value_bytes}-{round}.csv", name(&load)))),
    };
    spec.ops = options.ops.unwrap_or_else(|| spec.count().min(1_000_000)).max(1);
    spec
}

fn write(out: &mut File, o: &Outcome) -> Result<()> {
    let mut line = serde_json::to_string(o)?;
    line.push('\n');
    out.write_all(line.as_bytes())?;
    let mut text = format!(
        "{:17} {:18} {:5} B {:15} {:>9.0}/s {:>7.0} MB/s",
        o.engine, o.load, o.value_bytes, o.phase, o.ops_per_s, o.mb_per_s
    );
    if let (Some(load), Some(all)) = (o.write_amp_load, o.write_amp) {
        text += &format!("  written {load:.2}, {all:.2} settled");
    }
    if let (Some(worst), Some(stalled)) = (o.worst_put_ms, o.stalled_ms) {
        text += &format!(", worst {worst:.0} ms, stalled {stalled:.0} ms");
    }
    if let Some(reads) = o.read_bytes_per_op {
        text += &format!("  {reads:.0} bytes read/op");
    }
    println!("{text}, {} MiB", o.peak_rss >> 20);
    Ok(())
}

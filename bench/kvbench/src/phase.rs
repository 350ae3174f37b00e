//! Runs one phase of a case, alone in its process: opens the store, works, measures, waits until
//! the engine is quiet, and closes it.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::engines::{self, Engine};
use crate::memory_limit;
use crate::meter::{self, Reading, Sampler};
use crate::outcome::Outcome;
use crate::spec::{Kind, Load, Read, Spec, name};
use crate::{load, reads};

/// Points of the progress that a JSON line carries.
const POINTS: usize = 120;

pub fn run(spec: &Spec) -> Result<Outcome> {
    if let Some(group) = &spec.group {
        memory_limit::enter(group)?;
    }
    let engine = engines::open(&spec.engine, &spec.settings)
        .with_context(|| format!("cannot open {}", spec.engine))?;
    let mut out = Outcome {
        engine: spec.engine.clone(),
        load: name(&spec.load),
        phase: spec.read.as_ref().map_or_else(|| "load".into(), name),
        value_bytes: spec.settings.value_bytes,
        data_mib: spec.bytes >> 20,
        round: spec.round,
        journal: spec.settings.journal,
        memory: spec.settings.memory,
        clients: spec.clients,
        batch: engine.batch(),
        ranges: (spec.load == Load::Append).then_some(spec.ranges),
        stitch_at: spec.settings.stitch_at,
        separate_at: spec.settings.separate_at,
        memory_limit: spec.memory_limit,
        ..Outcome::default()
    };
    match spec.read {
        None => loading(engine, spec, &mut out)?,
        Some(read) => reading(engine, spec, read, &mut out)?,
    }
    out.peak_rss = meter::peak_rss();
    Ok(out)
}

fn loading(engine: Box<dyn Engine>, spec: &Spec, out: &mut Outcome) -> Result<()> {
    let dir = &spec.settings.dir;
    load::prepare(&*engine, spec)?;
    if !matches!(spec.load, Load::Sequential | Load::Random | Load::Append | Load::WriteDeleteWrite)
    {
        settle(&*engine, spec)?;
    }
    let done = Arc::new(AtomicU64::new(0));
    let start = Reading::now(dir);
    let merges_before = meter::threads_cpu_s(merges);
    let sampler = Sampler::start(dir.clone(), done.clone());
    let begun = Instant::now();
    let tally = load::run(&*engine, spec, &done)?;
    let seconds = begun.elapsed().as_secs_f64();
    let end = Reading::now(dir);
    let settling = settle(&*engine, spec)?;
    // What lies in the page cache reaches the device only now.
    // SAFETY: sync has no arguments and no failure.
    unsafe { libc::sync() };
    let settled = Reading::now(dir);
    let merges_after = meter::threads_cpu_s(merges);
    let samples = sampler.stop();
    out.figures = engine.figures();
    out.space_bytes = Some(meter::space(dir));
    engine.close()?;

    if let Some(path) = &spec.series {
        let mut file = std::fs::File::create(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(file, "seconds,operations")?;
        samples.progress.iter().try_for_each(|(s, ops)| writeln!(file, "{s:.3},{ops}"))?;
    }
    let user = tally.written.max(1) as f64;
    out.ops = tally.ops;
    out.seconds = seconds;
    out.ops_per_s = tally.ops as f64 / seconds;
    out.mb_per_s = tally.moved as f64 / seconds / 1e6;
    out.settle_seconds = Some(settling);
    out.ops_per_s_settled = Some(tally.ops as f64 / (seconds + settling));
    if tally.written > 0 {
        out.worst_put_ms = Some(tally.puts.max() as f64 / 1e6);
        out.p999_put_us = Some(tally.puts.quantile(0.999) as f64 / 1e3);
        out.p99_put_us = Some(tally.puts.quantile(0.99) as f64 / 1e3);
        out.stalled_ms = Some(tally.stalled as f64 / 1e6);
        out.user_bytes = Some(tally.written);
        out.write_amp_load = Some((end.written - start.written) as f64 / user);
        out.write_amp = Some((settled.written - start.written) as f64 / user);
        out.device_write_amp =
            settled.device.zip(start.device).map(|(b, a)| (b.1 - a.1) as f64 / user);
    }
    if tally.reads.max() > 0 {
        out.worst_read_ms = Some(tally.reads.max() as f64 / 1e6);
        out.p99_read_us = Some(tally.reads.quantile(0.99) as f64 / 1e3);
        out.p50_read_us = Some(tally.reads.quantile(0.5) as f64 / 1e3);
        out.misses = Some(tally.misses);
    }
    out.live_bytes = Some((spec.count() - spec.first_live()) * spec.tuple_bytes());
    out.space_peak_bytes = Some(samples.space_peak);
    out.peak_rss_anon = samples.anon_peak;
    out.cpu_s = settled.cpu_s - start.cpu_s;
    out.merge_cpu_s = (merges_after > 0.0).then_some(merges_after - merges_before);
    let running: Vec<(f64, u64)> =
        samples.progress.iter().copied().filter(|(s, _)| *s <= seconds).collect();
    out.progress = meter::thin(&running, POINTS);
    out.progress.push(((seconds * 1e3).round() / 1e3, tally.ops));
    Ok(())
}

/// The threads of the engines that name theirs: those that flush and merge.
fn merges(thread: &str) -> bool {
    ["kvdb-merge", "kvdb-flush", "rocksdb:low", "rocksdb:high"].contains(&thread)
}

fn reading(engine: Box<dyn Engine>, spec: &Spec, read: Read, out: &mut Outcome) -> Result<()> {
    let dir = &spec.settings.dir;
    let (kind, limit) = (read.kind(), Duration::from_secs_f64(spec.read_seconds));
    if read.warm() || (read.limited() && kind != Kind::Scan) {
        if read.warm() {
            reads::run(&*engine, spec, Kind::Scan, 0, limit, 0)?;
        }
        if kind != Kind::Scan {
            reads::run(&*engine, spec, kind, spec.ops / 2, limit / 2, 1)?;
        }
    }
    let start = Reading::now(dir);
    let sampler = Sampler::start(dir.clone(), Arc::new(AtomicU64::new(0)));
    let seen = reads::run(&*engine, spec, kind, spec.ops, limit, 2)?;
    let end = Reading::now(dir);
    out.peak_rss_anon = sampler.stop().anon_peak;
    engine.close()?;
    let (ops, seconds) = (seen.ops.max(1) as f64, seen.elapsed.as_secs_f64());
    out.ops = seen.ops;
    out.seconds = seconds;
    out.ops_per_s = ops / seconds;
    out.mb_per_s = seen.bytes as f64 / seconds / 1e6;
    out.cpu_s = end.cpu_s - start.cpu_s;
    out.read_bytes_per_op = Some((end.read - start.read) as f64 / ops);
    out.device_reads_per_op = end.device.zip(start.device).map(|(b, a)| (b.0 - a.0) as f64 / ops);
    out.misses = Some(seen.misses);
    if kind != Kind::Scan {
        out.worst_read_ms = Some(seen.latencies.max() as f64 / 1e6);
        out.p99_read_us = Some(seen.latencies.quantile(0.99) as f64 / 1e3);
        out.p50_read_us = Some(seen.latencies.quantile(0.5) as f64 / 1e3);
    }
    Ok(())
}

/// Flushes and waits until the process neither writes nor computes for a second. Returns the time
/// until then.
fn settle(engine: &dyn Engine, spec: &Spec) -> Result<f64> {
    const LOOK: Duration = Duration::from_millis(100);
    const QUIET: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(300);
    let begun = Instant::now();
    engine.flush()?;
    let mut worked = Instant::now();
    let mut before = Reading::now(&spec.settings.dir);
    while worked.elapsed() < QUIET && begun.elapsed() < LONGEST {
        std::thread::sleep(LOOK);
        let now = Reading::now(&spec.settings.dir);
        if engine.busy()
            || now.written > before.written + (64 << 10)
            || now.cpu_s > before.cpu_s + 0.02
        {
            worked = Instant::now();
        }
        before = now;
    }
    Ok(worked.duration_since(begun).as_secs_f64())
}

//! `kvbench report`: Markdown tables of medians over the rounds, with ratios to the best peer.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::medians::{self, Phases, Rounds, Setting, best_peer};
use crate::outcome::Outcome;

#[derive(Args)]
pub struct Options {
    /// JSON lines that `kvbench run` wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

pub fn run(options: &Options) -> Result<()> {
    print!("{}", text(&options.files)?);
    Ok(())
}

/// All tables as Markdown.
pub fn text(files: &[PathBuf]) -> Result<String> {
    let all = medians::read(files)?;
    let mut out = String::new();
    summary(&mut out, all.iter())?;
    for (setting, phases) in &all {
        writeln!(out, "\n## {}\n", setting.title())?;
        if let Some(engines) = phases.get("load") {
            loads(&mut out, engines)?;
        }
        if phases.keys().any(|p| p != "load") {
            reads(&mut out, phases)?;
        }
    }
    Ok(out)
}

/// Operations a second, short.
fn rate(v: f64) -> String {
    match v {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |v| format!("{v:.digits$}"))
}

fn summary<'a>(
    out: &mut String,
    all: impl Iterator<Item = (&'a Setting, &'a Phases)>,
) -> Result<()> {
    writeln!(out, "## kvdb against the best peer in each case\n")?;
    writeln!(
        out,
        "| case | kvdb | best peer | kvdb ÷ best peer | kvdb written | best peer written | least written by a peer |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|")?;
    for (setting, phases) in all {
        let mut order: Vec<_> = phases.iter().collect();
        order.sort_by_key(|(phase, _)| *phase != "load");
        for (phase, engines) in order {
            let ours = engines.iter().find(|(name, _)| name == "kvdb");
            let (Some((_, ours)), Some((name, peer))) = (ours, best_peer(engines)) else {
                continue;
            };
            let written = |r: &Rounds| r.median(|o| o.write_amp);
            let least = engines
                .iter()
                .filter(|(_, r)| r.is_peer())
                .filter_map(|(n, r)| Some((written(r)?, n)));
            let least = least
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .map_or("–".into(), |(w, n)| format!("{w:.2} {n}"));
            let case = if phase == "load" {
                format!("**{}**", setting.title())
            } else {
                format!("… then {phase}")
            };
            writeln!(
                out,
                "| {case} | {} | {} {name} | **{:.2}** | {} | {} | {least} |",
                rate(ours.ops_per_s()),
                rate(peer.ops_per_s()),
                ours.ops_per_s() / peer.ops_per_s(),
                figure(written(ours), 2),
                figure(written(peer), 2),
            )?;
        }
    }
    Ok(())
}

fn loads(out: &mut String, engines: &[(String, Rounds)]) -> Result<()> {
    let best = best_peer(engines).map(|(_, r)| r.ops_per_s());
    writeln!(
        out,
        "| engine | ops/s | ÷ best peer | MB/s | settled ops/s | written at the end | written, settled | device wrote | worst put ms \
         | p99.9 put µs | stalled ms | space peak ÷ live | space settled ÷ live | peak MiB (anonymous) | CPU s | rounds |"
    )?;
    writeln!(out, "|---{}", "|---:".repeat(15) + "|")?;
    for (name, r) in engines {
        let batch = r.0.first().map_or(1, |o| o.batch);
        let name = if batch > 1 { format!("{name} ({batch} a transaction)") } else { name.clone() };
        let space = |of: fn(&Outcome) -> Option<u64>| {
            r.median(|o| Some(of(o)? as f64 / o.live_bytes.filter(|b| *b > 0)? as f64))
        };
        writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} ({}) | {} | {} |",
            rate(r.ops_per_s()),
            figure(best.map(|b| r.ops_per_s() / b), 2),
            figure(r.median(|o| Some(o.mb_per_s)), 0),
            r.median(|o| o.ops_per_s_settled).map_or("–".into(), rate),
            figure(r.median(|o| o.write_amp_load), 2),
            figure(r.median(|o| o.write_amp), 2),
            figure(r.median(|o| o.device_write_amp), 2),
            figure(r.median(|o| o.worst_put_ms), 1),
            figure(r.median(|o| o.p999_put_us), 0),
            figure(r.median(|o| o.stalled_ms), 0),
            figure(space(|o| o.space_peak_bytes), 2),
            figure(space(|o| o.space_bytes), 2),
            figure(r.median(|o| Some((o.peak_rss >> 20) as f64)), 0),
            figure(r.median(|o| Some((o.peak_rss_anon >> 20) as f64)), 0),
            figure(r.median(|o| Some(o.cpu_s)), 1),
            r.0.len(),
        )?;
    }
    Ok(())
}

/// A column for each phase: gets and short ranges a second, scans in MB/s.
fn reads(out: &mut String, phases: &Phases) -> Result<()> {
    let columns: Vec<&String> = phases.keys().filter(|p| *p != "load").collect();
    let scan = |phase: &str| phase.starts_with("scan");
    let title = |phase: &&String| {
        if scan(phase) { format!("{phase} MB/s") } else { format!("{phase} /s · bytes read each") }
    };
    writeln!(out, "\n| engine | {} |", columns.iter().map(title).collect::<Vec<_>>().join(" | "))?;
    writeln!(out, "|---{}|", "|---:".repeat(columns.len()))?;
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in columns.iter().flat_map(|c| &phases[*c]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        write!(out, "| {name} ")?;
        for column in &columns {
            let engines = &phases[*column];
            let best = best_peer(engines).map(|(_, r)| r.ops_per_s());
            let cell =
                engines.iter().find(|(n, _)| n == name).map_or("–".to_string(), |(_, r)| {
                    let ratio = figure(best.map(|b| r.ops_per_s() / b), 2);
                    match scan(column) {
                        true => format!("{} ({ratio})", figure(r.median(|o| Some(o.mb_per_s)), 0)),
                        false => {
                            format!(
                                "{} ({ratio}) · {}",
                                rate(r.ops_per_s()),
                                figure(r.median(|o| o.read_bytes_per_op), 0)
                            )
                        }
                    }
                });
            write!(out, "| {cell} ")?;
        }
        writeln!(out, "|")?;
    }
    Ok(())
}

//! Insert progress over time, the paper's Figure 5: a line an engine, or a line a stitching
//! threshold when there are several. A flat piece is a stall.

use std::collections::BTreeMap;

use super::Picture;
use super::svg::{Chart, colour, shade};
use crate::keys::KEY_BYTES;
use crate::medians::{Phases, Rounds, Setting};

pub fn draw(all: &BTreeMap<Setting, Phases>) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for (setting, phases) in all {
        let Some(engines) = phases.get("load") else { continue };
        let (ours, others): (Vec<_>, Vec<_>) = engines.iter().partition(|(_, r)| !r.is_peer());
        let name = file_name(setting);
        if !others.is_empty() {
            let lines: Vec<_> =
                engines.iter().filter(|(n, r)| r.is_peer() || n == "kvdb").collect();
            pictures.push((format!("progress-{name}"), picture(setting, &lines, colour_of_engine)));
        }
        if ours.len() > 1 {
            pictures.push((format!("thresholds-{name}"), picture(setting, &ours, |n, _| shade(n))));
        }
    }
    pictures
}

fn colour_of_engine(_: usize, label: &str) -> &'static str {
    colour(label)
}

/// The part of the name that distinguishes pictures of different settings.
pub fn file_name(setting: &Setting) -> String {
    let mut name = format!("{}-{}", setting.load, setting.value_bytes);
    if !setting.journal {
        name += "-no-journal";
    }
    if let Some(ranges) = setting.ranges.filter(|r| *r != crate::keys::RANGES) {
        name += &format!("-{ranges}-ranges");
    }
    if setting.clients != 1 {
        name += &format!("-{}-clients", setting.clients);
    }
    if setting.data_mib != if setting.value_bytes >= 1024 { 2048 } else { 512 } {
        name += &format!("-{}-mib", setting.data_mib);
    }
    name
}

fn picture(
    setting: &Setting,
    lines: &[&(String, Rounds)],
    colour: impl Fn(usize, &str) -> &'static str,
) -> String {
    let tuple = (setting.value_bytes + KEY_BYTES as u64) as f64;
    let points = |r: &Rounds| -> Vec<(f64, f64)> {
        let progress = r.middle().map_or(&[][..], |o| &o.progress);
        progress.iter().map(|(s, ops)| (*s, *ops as f64 * tuple / 1e9)).collect()
    };
    let all: Vec<_> = lines.iter().map(|(label, r)| (label, points(r))).collect();
    let largest = |of: fn(&(f64, f64)) -> f64| {
        all.iter().flat_map(|l| l.1.iter().map(of)).fold(0.0, f64::max)
    };
    let (x_max, y_max) = (largest(|p| p.0), largest(|p| p.1));
    let mut chart = Chart::new(
        &format!("Insert progress: {}", setting.title()),
        "seconds",
        "GB inserted",
        x_max,
        y_max,
    );
    for (n, (label, points)) in all.iter().enumerate() {
        chart.line(points, colour(n, label), if label.starts_with("kvdb") { 2.5 } else { 1.5 });
        chart.key(label, colour(n, label));
    }
    chart.finish()
}

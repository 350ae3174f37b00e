//! Insert against scan throughput by stitching threshold, the paper's Figure 6, with the peers as
//! points next to the curve.

use std::collections::BTreeMap;

use super::Picture;
use super::progress::file_name;
use super::svg::{Chart, colour};
use crate::medians::{Phases, Setting};

pub fn draw(all: &BTreeMap<Setting, Phases>) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for (setting, phases) in all {
        let (Some(loads), Some(scans)) = (phases.get("load"), phases.get("scan-cold")) else {
            continue;
        };
        let mut points = Vec::new();
        for (label, load) in loads {
            let Some((_, scan)) = scans.iter().find(|(l, _)| l == label) else { continue };
            let (Some(insert), Some(scan)) =
                (load.median(|o| Some(o.mb_per_s)), scan.median(|o| Some(o.mb_per_s)))
            else {
                continue;
            };
            points.push((label, load, scan, insert));
        }
        if points.iter().filter(|p| !p.1.is_peer()).count() < 2 {
            continue;
        }
        let largest = |of: fn(&(&String, &crate::medians::Rounds, f64, f64)) -> f64| {
            points.iter().map(of).fold(0.0, f64::max)
        };
        let title = format!("Insert against scan by threshold: {}", setting.title());
        let mut chart = Chart::new(
            &title,
            "cold scan, MB/s",
            "insert, MB/s",
            largest(|p| p.2),
            largest(|p| p.3),
        );
        // The curve follows the threshold; the default, which may choose its own, lies next to it.
        let mut curve: Vec<(u64, f64, f64)> = Vec::new();
        for (_, load, scan, insert) in &points {
            if let Some(at) =
                load.0.first().filter(|o| o.engine == "kvdb").and_then(|o| o.stitch_at)
            {
                curve.push((at, *scan, *insert));
            }
        }
        curve.sort_by_key(|p| p.0);
        chart.line(&curve.iter().map(|p| (p.1, p.2)).collect::<Vec<_>>(), colour("kvdb"), 1.5);
        for (label, load, scan, insert) in &points {
            chart.dot(*scan, *insert, colour(label));
            let (x, y) = (chart.x(*scan), chart.y(*insert) - 9.0);
            let short = label.trim_start_matches("kvdb (stitch ").trim_end_matches(')');
            let short = if *label == "kvdb" { "default" } else { short };
            let weight = if load.is_peer() {
                "fill=\"#777\" font-size=\"11\""
            } else {
                "font-weight=\"bold\""
            };
            chart.text(x, y, short, "middle", weight);
        }
        chart.key("kvdb, by threshold", colour("kvdb"));
        pictures.push((format!("tradeoff-{}", file_name(setting)), chart.finish()));
    }
    pictures
}

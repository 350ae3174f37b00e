//! Inserts per second by load and engine, the paper's Figure 7: one picture for each value size and
//! journal setting.

use std::collections::{BTreeMap, BTreeSet};

use super::Picture;
use super::svg::{Chart, HEIGHT, colour};
use crate::medians::{Phases, Setting};

const LOADS: &[&str] = &["sequential", "random", "append"];

pub fn draw(all: &BTreeMap<Setting, Phases>) -> Vec<Picture> {
    // The largest data set of each kind, the paper's number of ranges, one client.
    let usual = |s: &&Setting| {
        LOADS.contains(&s.load.as_str())
            && s.clients == 1
            && s.ranges.is_none_or(|r| r == crate::keys::RANGES)
    };
    let kinds: BTreeSet<(u64, bool)> =
        all.keys().filter(usual).map(|s| (s.value_bytes, s.journal)).collect();
    let mut pictures = Vec::new();
    for (value, journal) in kinds {
        let mut groups: BTreeMap<&str, (&Setting, &Phases)> = BTreeMap::new();
        for (setting, phases) in
            all.iter().filter(|(s, _)| usual(s) && s.value_bytes == value && s.journal == journal)
        {
            let peers = phases.get("load").is_some_and(|e| e.iter().any(|(_, r)| r.is_peer()));
            if peers
                && groups
                    .get(setting.load.as_str())
                    .is_none_or(|(s, _)| s.data_mib < setting.data_mib)
            {
                groups.insert(&setting.load, (setting, phases));
            }
        }
        let groups: Vec<_> = LOADS.iter().filter_map(|l| groups.get(l)).collect();
        if let Some((setting, _)) = groups.first() {
            let title = format!(
                "Inserts: values of {}{}",
                setting.value(),
                if journal { "" } else { ", no journal" }
            );
            let name = format!("bars-{value}{}", if journal { "" } else { "-no-journal" });
            pictures.push((name, picture(&title, &groups)));
        }
    }
    pictures
}

fn picture(title: &str, groups: &[&(&Setting, &Phases)]) -> String {
    let mut engines: Vec<&String> = Vec::new();
    let shown = |phases: &'_ Phases| -> Vec<(String, f64)> {
        let ours_as_it_is =
            phases["load"].iter().filter(|(label, r)| r.is_peer() || label == "kvdb");
        ours_as_it_is.map(|(label, r)| (label.clone(), r.ops_per_s())).collect()
    };
    let rates: Vec<Vec<(String, f64)>> = groups.iter().map(|(_, phases)| shown(phases)).collect();
    for (label, _) in rates.iter().flatten() {
        if !engines.contains(&label) {
            engines.push(label);
        }
    }
    let most = rates.iter().flatten().map(|r| r.1).fold(0.0, f64::max);
    let width = engines.len() as f64 + 1.0;
    let mut chart = Chart::new(title, "", "inserts/s", width * groups.len() as f64, most);
    for (g, ((setting, _), rates)) in groups.iter().zip(&rates).enumerate() {
        for (label, rate) in rates {
            let place = engines.iter().position(|e| *e == label).unwrap_or(0) as f64;
            let left = g as f64 * width + 0.5 + place;
            chart.bar(left + 0.05, left + 0.95, *rate, colour(label));
        }
        let middle = chart.x((g as f64 + 0.5) * width);
        chart.text(middle, HEIGHT - 34.0, &setting.load, "middle", "");
    }
    for label in engines {
        chart.key(label, colour(label));
    }
    chart.finish()
}

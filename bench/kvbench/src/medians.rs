//! The outcomes of all rounds, read from JSON lines and combined: medians by load, phase and
//! engine.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::engines;
use crate::outcome::Outcome;

/// The settings that are equal for the compared engines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Larger values first, then the loads in the order of `LOADS`.
    pub rank: (u64, usize),
    pub load: String,
    pub value_bytes: u64,
    pub data_mib: u64,
    pub journal: bool,
    pub clients: u64,
    pub ranges: Option<u64>,
}

const LOADS: &[&str] =
    &["sequential", "random", "append", "overwrite", "write-delete-write", "range-delete"];

impl Setting {
    fn of(o: &Outcome) -> Setting {
        let at = LOADS.iter().position(|l| *l == o.load).unwrap_or(LOADS.len());
        Setting {
            rank: (u64::MAX - o.value_bytes, at),
            load: o.load.clone(),
            value_bytes: o.value_bytes,
            data_mib: o.data_mib,
            journal: o.journal,
            clients: o.clients,
            ranges: o.ranges,
        }
    }

    /// `4 KiB`, `64 B`.
    pub fn value(&self) -> String {
        match self.value_bytes {
            v if v >= 1024 && v.is_multiple_of(1024) => format!("{} KiB", v / 1024),
            v => format!("{v} B"),
        }
    }

    /// A text such as `append 4 KiB, 2048 MiB`, with all settings that are not the default.
    pub fn title(&self) -> String {
        let mut title = format!("{} {}, {} MiB", self.load, self.value(), self.data_mib);
        if let Some(ranges) = self.ranges.filter(|r| *r != crate::keys::RANGES) {
            title += &format!(", {ranges} ranges");
        }
        if self.clients != 1 {
            title += &format!(", {} clients", self.clients);
        }
        if !self.journal {
            title += ", no journal";
        }
        title
    }
}

/// One engine with its settings, where they are not its defaults.
pub fn label(o: &Outcome) -> String {
    let stitch = o.stitch_at.map(|at| match at {
        u64::MAX => "stitch never".to_string(),
        0 => "stitch always".to_string(),
        bytes => format!("stitch {} KiB", bytes >> 10),
    });
    let separate = o.separate_at.map(|bytes| format!("separate at {bytes} B"));
    let settings: Vec<String> = stitch.into_iter().chain(separate).collect();
    if settings.is_empty() {
        o.engine.clone()
    } else {
        format!("{} ({})", o.engine, settings.join(", "))
    }
}

/// The rounds of one engine in one phase.
#[derive(Clone, Debug, Default)]
pub struct Rounds(pub Vec<Outcome>);

impl Rounds {
    /// The median of a figure over the rounds that have it.
    pub fn median(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let mut all: Vec<f64> = self.0.iter().filter_map(figure).collect();
        all.sort_by(f64::total_cmp);
        match (all.len(), all.len() % 2) {
            (0, _) => None,
            (n, 1) => Some(all[n / 2]),
            (n, _) => Some((all[n / 2 - 1] + all[n / 2]) / 2.0),
        }
    }
    /// The round whose speed is the median (the lower one of two).
    pub fn middle(&self) -> Option<&Outcome> {
        let mut all: Vec<&Outcome> = self.0.iter().collect();
        all.sort_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
        all.get((all.len().max(1) - 1) / 2).copied()
    }
    pub fn ops_per_s(&self) -> f64 {
        self.median(|o| Some(o.ops_per_s)).unwrap_or(0.0)
    }
    pub fn is_peer(&self) -> bool {
        self.0.first().is_some_and(|o| o.engine != "kvdb")
    }
}

/// Phase, then engine, in the order of tables.
pub type Phases = BTreeMap<String, Vec<(String, Rounds)>>;

/// Everything that the files hold, by setting.
pub fn read(files: &[PathBuf]) -> Result<BTreeMap<Setting, Phases>> {
    let mut all: BTreeMap<Setting, Phases> = BTreeMap::new();
    for path in files {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let o: Outcome = serde_json::from_str(line)
                .with_context(|| format!("{}:{} is not an outcome", path.display(), n + 1))?;
            let engines =
                all.entry(Setting::of(&o)).or_default().entry(o.phase.clone()).or_default();
            let name = label(&o);
            match engines.iter_mut().find(|(l, _)| *l == name) {
                Some((_, rounds)) => rounds.0.push(o),
                None => engines.push((name, Rounds(vec![o]))),
            }
        }
    }
    if all.is_empty() {
        bail!("no outcomes in {files:?}");
    }
    let rank = |r: &Rounds| {
        let o = &r.0[0];
        (engines::NAMES.iter().position(|n| *n == o.engine), o.stitch_at, o.separate_at)
    };
    all.values_mut()
        .flat_map(|p| p.values_mut())
        .for_each(|engines| engines.sort_by_key(|(_, r)| rank(r)));
    Ok(all)
}

/// The fastest engine that is not ours.
pub fn best_peer(engines: &[(String, Rounds)]) -> Option<&(String, Rounds)> {
    engines
        .iter()
        .filter(|(_, r)| r.is_peer())
        .max_by(|a, b| a.1.ops_per_s().total_cmp(&b.1.ops_per_s()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(engine: &str, ops_per_s: f64) -> Outcome {
        Outcome { engine: engine.into(), ops_per_s, ..Outcome::default() }
    }

    #[test]
    fn medians_and_the_best_peer() {
        let rounds =
            |engine: &str, all: &[f64]| Rounds(all.iter().map(|v| outcome(engine, *v)).collect());
        let engines = vec![
            ("kvdb".to_string(), rounds("kvdb", &[9.0, 7.0, 8.0])),
            ("redb".to_string(), rounds("redb", &[1.0, 4.0])),
            ("lmdb".to_string(), rounds("lmdb", &[2.0])),
        ];
        assert_eq!(engines[0].1.ops_per_s(), 8.0);
        assert_eq!(engines[1].1.ops_per_s(), 2.5);
        assert_eq!(best_peer(&engines).map(|e| e.0.as_str()), Some("redb"));
        assert_eq!(engines[0].1.median(|o| o.write_amp), None);
    }
}

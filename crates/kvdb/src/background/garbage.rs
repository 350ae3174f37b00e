//! How much of what the runs hold is dead: older versions that newer ones hide, which only a merge
//! can drop. Compactions are chosen and writers are delayed by it, in addition to the number of
//! runs: a tree may have few runs and be mostly dead, or many and not at all.
//!
//! It is not known exactly without reading; a sample estimates it. Of each memtable that is flushed
//! some keys are looked up in the filters of the runs below: the share of them that is there is the
//! share of its items that hide an older one. A run keeps its share as it is cut; one merged from
//! several has what is left of theirs. It is a guess, kept in memory: after opening nothing is
//! known to be dead until something is overwritten again, and only the bounds on runs hold.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use env::sync::Mutex;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::RunId;
use crate::read::generation::Layer;
use crate::read::version::{NumberedRun, Tree, Version};

/// Keys of a memtable that are looked for below.
const SAMPLE: usize = 64;
/// How many of ten thousand missing keys the filter of a run takes for present.
const FALSE_POSITIVES: f64 = 80.0;

/// Shares of runs that are gone are forgotten when there are so many, at the least.
const MANY_SHARES: usize = 1000;

/// The share of a run's items that hide older ones, from 0 to 1, by run.
#[derive(Default)]
pub(crate) struct GarbageEstimate(Mutex<Estimates>);

#[derive(Default)]
struct Estimates {
    shares: BTreeMap<RunId, f64>,
    /// How many there were when those of runs that are gone were last forgotten.
    kept: usize,
    /// Dictionaries with a new estimate.
    changed: BTreeSet<DictionaryId>,
}

impl GarbageEstimate {
    /// Notes the share of a run of a dictionary.
    pub(crate) fn set(&self, dict: DictionaryId, run: RunId, share: f64) {
        if share > 0.0 {
            let mut estimates = self.0.lock();
            estimates.shares.insert(run, share.min(1.0));
            estimates.changed.insert(dict);
        }
    }

    /// The dictionaries with a new estimate since this was asked last.
    pub(super) fn take_changed(&self) -> BTreeSet<DictionaryId> {
        std::mem::take(&mut self.0.lock().changed)
    }

    #[cfg(test)]
    pub(super) fn changed(&self, dict: DictionaryId) {
        self.0.lock().changed.insert(dict);
    }

    /// Items of `runs` that hide others.
    pub(crate) fn items<'a>(&self, runs: impl IntoIterator<Item = &'a NumberedRun>) -> f64 {
        let shares = &self.0.lock().shares;
        runs.into_iter()
            .map(|p| shares.get(&p.id).copied().unwrap_or(0.0) * p.run.stats().items as f64)
            .sum()
    }

    /// Forgets runs that are gone, once that is worth a look at all of them.
    pub(super) fn keep(&self, version: &Version) {
        let mut estimates = self.0.lock();
        if estimates.shares.len() > 2 * estimates.kept + MANY_SHARES {
            let there: BTreeSet<RunId> =
                version.trees.values().flat_map(|t| t.runs()).map(|p| p.id).collect();
            estimates.shares.retain(|id, _| there.contains(id));
            estimates.kept = estimates.shares.len();
        }
    }

    /// Bytes of a dictionary's runs that are dead, and all of them.
    pub(crate) fn dead(&self, tree: &Tree) -> Garbage {
        let overwriting = self.items(tree.runs());
        let (mut bytes, mut items) = (0, 0u64);
        let mut all = 0;
        for stats in tree.runs().map(|p| p.run.stats()) {
            let of = stats.block_bytes + stats.value_bytes;
            all += of;
            // What hides is a tombstone or as large as what it hides; tombstones alone would make
            // that look small.
            if !stats.tombstones {
                (bytes, items) = (bytes + of, items + stats.items);
            }
        }
        if items == 0 {
            (bytes, items) = (all, tree.runs().map(|p| p.run.stats().items).sum());
        }
        let dead = overwriting * bytes as f64 / items.max(1) as f64;
        Garbage { dead: (dead as u64).min(all), all }
    }
}

/// Bytes that are dead, of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Garbage {
    pub dead: u64,
    pub all: u64,
}

impl Garbage {
    /// For a hundred bytes alive.
    pub(crate) fn percent(self) -> u64 {
        self.dead * 100 / (self.all - self.dead).max(1)
    }
}

/// The share of `keys` that the runs of a dictionary seem to have.
fn share_below(tree: &Tree, keys: &[Bytes]) -> Result<f64> {
    let runs = tree.runs().count();
    if runs == 0 || keys.is_empty() {
        return Ok(0.0);
    }
    let mut there = 0;
    for key in keys {
        let hash = vt_tree::hash(key);
        for numbered in tree.runs() {
            if numbered.run.may_have(key, hash)? {
                there += 1;
                break;
            }
        }
    }
    let by_mistake = 1.0 - (1.0 - FALSE_POSITIVES / 1e4).powi(runs as i32);
    let share = f64::from(there) / keys.len() as f64;
    // A key or two may be mistakes that were not counted on.
    let share = (share - by_mistake - 1.5 / SAMPLE as f64) / (1.0 - by_mistake);
    Ok(share.max(0.0))
}

/// The share of the items that hide older ones, over these memtables of a dictionary.
pub(super) fn garbage_share(tree: &Tree, layers: &[&Layer]) -> Result<f64> {
    let mut keys = Vec::new();
    for layer in layers {
        keys.extend(layer.memtable.sample(SAMPLE));
    }
    share_below(tree, &keys)
}

/// Bytes of large values of the generation that takes commits which are dead, or have made
/// others so.
pub(super) fn garbage_of_active(version: &Version) -> Result<u64> {
    let held = version.generation.held();
    let mut dead = 0;
    let all_bytes = version.memtable_bytes().max(1) as f64;
    for (_, tree) in version.in_memory() {
        let Some(layer) = version.active(tree).filter(|l| !l.memtable.is_empty()) else {
            continue;
        };
        dead += layer.memtable.forgotten_bytes();
        let of_all = layer.memtable.bytes() as f64 / all_bytes;
        dead += (share_below(tree, &layer.memtable.sample(SAMPLE))? * held as f64 * of_all) as u64;
    }
    Ok(dead.min(2 * held))
}

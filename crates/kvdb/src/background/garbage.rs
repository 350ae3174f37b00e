//! Estimates how much of the data in runs is dead: older versions hidden by newer ones, which only
//! a merge can drop. The estimate, in addition to the number of runs, decides which compactions are
//! chosen and how much writers are delayed: a tree may have few runs and be mostly dead, or many
//! runs without dead data.
//!
//! The exact amount is unknown without reading, so it is sampled. Some keys of each flushed
//! memtable are looked up in the filters of the runs below: the share that is found is the share of
//! the memtable's items that hide an older one. A run keeps its share when it is cut; a run merged
//! from several gets what is left of theirs. The estimate is kept in memory only: after opening,
//! nothing is known to be dead until data is overwritten again, and only the limits on the number
//! of runs apply.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use env::sync::Mutex;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::RunId;
use crate::version::Version;
use crate::version::generation::Layer;
use crate::version::tree::{NumberedRun, Tree};

/// Number of keys of a memtable that are sampled.
const SAMPLE: usize = 64;
/// The filter of a run reports this many of ten thousand missing keys as present.
const FALSE_POSITIVES: f64 = 80.0;

/// Minimum number of new shares after which those of runs that no longer exist are removed.
const MANY_SHARES: usize = 1000;

/// The share of items that hide older ones, from 0 to 1, for each run.
#[derive(Default)]
pub(crate) struct GarbageEstimate(Mutex<Estimates>);

#[derive(Default)]
struct Estimates {
    shares: BTreeMap<RunId, f64>,
    /// The number of shares when those of runs that no longer exist were last removed.
    kept: usize,
    /// Dictionaries with a new estimate.
    changed: BTreeSet<DictionaryId>,
}

impl GarbageEstimate {
    /// Records the share of a run of a dictionary.
    pub(crate) fn set(&self, dict: DictionaryId, run: RunId, share: f64) {
        if share > 0.0 {
            let mut estimates = self.0.lock();
            estimates.shares.insert(run, share.min(1.0));
            estimates.changed.insert(dict);
        }
    }

    /// Returns the dictionaries with a new estimate since the last call.
    pub(super) fn take_changed(&self) -> BTreeSet<DictionaryId> {
        std::mem::take(&mut self.0.lock().changed)
    }

    #[cfg(test)]
    pub(super) fn changed(&self, dict: DictionaryId) {
        self.0.lock().changed.insert(dict);
    }

    /// Returns the number of items in `runs` that hide others.
    pub(crate) fn items<'a>(&self, runs: impl IntoIterator<Item = &'a NumberedRun>) -> f64 {
        let shares = &self.0.lock().shares;
        runs.into_iter()
            .map(|p| shares.get(&p.id).copied().unwrap_or(0.0) * p.run.stats().items as f64)
            .sum()
    }

    /// Removes the shares of runs that no longer exist, once there are enough new ones.
    pub(super) fn keep(&self, version: &Version) {
        let mut estimates = self.0.lock();
        if estimates.shares.len() > 2 * estimates.kept + MANY_SHARES {
            let there: BTreeSet<RunId> =
                version.trees.values().flat_map(|t| t.runs()).map(|p| p.id).collect();
            estimates.shares.retain(|id, _| there.contains(id));
            estimates.kept = estimates.shares.len();
        }
    }

    /// Returns the dead bytes of a dictionary's runs, and all of their bytes.
    pub(crate) fn dead(&self, tree: &Tree) -> Garbage {
        let overwriting = self.items(tree.runs());
        let (mut bytes, mut items) = (0, 0u64);
        let mut all = 0;
        for stats in tree.runs().map(|p| p.run.stats()) {
            let of = stats.block_bytes + stats.value_bytes;
            all += of;
            // A hiding item is a tombstone, or as large as the item that it hides. Exclude runs
            // with tombstones, which would make the hidden items seem small.
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

/// The dead bytes among all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Garbage {
    pub dead: u64,
    pub all: u64,
}

impl Garbage {
    /// Returns the dead bytes for each hundred live bytes.
    pub(crate) fn percent(self) -> u64 {
        self.dead * 100 / (self.all - self.dead).max(1)
    }
}

/// Returns the share of `keys` that the runs of a dictionary seem to contain.
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
    // Allow for one or two more false positives than expected.
    let share = (share - by_mistake - 1.5 / SAMPLE as f64) / (1.0 - by_mistake);
    Ok(share.max(0.0))
}

/// Returns the share of items that hide older ones, over these memtables of a dictionary.
pub(super) fn garbage_share(tree: &Tree, layers: &[&Layer]) -> Result<f64> {
    let mut keys = Vec::new();
    for layer in layers {
        keys.extend(layer.memtable.sample(SAMPLE));
    }
    share_below(tree, &keys)
}

/// Returns the bytes of large values written in the active generation that are dead already, or
/// have made older values dead.
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

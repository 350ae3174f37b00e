//! Spills: the memtables of a write set are written to runs in their places, and young runs are
//! merged into fewer.

use std::collections::BTreeMap;

use vt_tree::{Input, KeyRange, Merge, MergeOptions, Placement, Seq};
use zones::Priority;

use crate::dictionary::DictionaryId;
use crate::engine::Engine;
use crate::error::Result;
use crate::write_set::{Part, WriteSet};

/// Number of runs of one dictionary above which the youngest ones are merged into one.
const RUNS: usize = 32;
/// An older run joins this merge if it is at most this many times as large as the runs after it
/// together. So each tuple is merged once for each time that its transaction grows by this factor,
/// and the number of runs stays small.
const OLDER: u64 = 2;

impl WriteSet {
    /// Spills memtables to runs in their places. `keep` is the number of oldest parts of each
    /// dictionary that must not be merged with later ones.
    pub(super) fn spill(
        &mut self,
        to: &Engine,
        keep: &BTreeMap<DictionaryId, usize>,
    ) -> Result<()> {
        self.write_out(to, keep, (RUNS, OLDER))
    }

    /// Spills like [`WriteSet::spill`] and merges all parts that need not stay apart into one run,
    /// which drops overwritten and deleted data.
    pub(super) fn gather(
        &mut self,
        to: &Engine,
        keep: &BTreeMap<DictionaryId, usize>,
    ) -> Result<()> {
        self.write_out(to, keep, (1, u64::MAX))
    }

    /// Spills memtables and merges runs. `most` is the number of runs of a dictionary above which
    /// the young ones are merged, see [`RUNS`]; `older` bounds the size of an older run that joins
    /// them. See [`OLDER`].
    fn write_out(
        &mut self,
        to: &Engine,
        keep: &BTreeMap<DictionaryId, usize>,
        (most, older): (usize, u64),
    ) -> Result<()> {
        let version = to.versions.load_full();
        // New parts are made before the old ones are replaced, so that an error changes nothing.
        let mut trees = BTreeMap::new();
        for (dict, parts) in &*self.trees {
            let options =
                version.trees.get(dict).map(|t| t.info().options.clone()).unwrap_or_default();
            let options = MergeOptions {
                // Tombstones must stay: other commits may precede this one, and their keys must be
                // deleted, too.
                drop_tombstones: false,
                old_seq: Seq::MAX,
                priority: Priority::User,
                choice: to.series.choice(*dict, options.compress_values),
                // The caller of the transaction waits for this writer.
                write_behind: true,
                ..options.storage(Placement::stitch())
            };
            let keep = keep.get(dict).copied().unwrap_or(0);
            let mut next = Vec::with_capacity(parts.len());
            for part in parts.iter().filter(|p| p.items() > 0) {
                next.extend(match part {
                    Part::Memtable(_) => merged(to, std::slice::from_ref(part), &options)?,
                    Part::Run(_) => Some(part.clone()),
                });
            }
            if next.len() > keep + most {
                let mut from = next.len();
                let mut together = 0;
                while from > keep
                    && (from + 2 > next.len()
                        || bytes(&next[from - 1]) <= older.saturating_mul(together))
                {
                    from -= 1;
                    together += bytes(&next[from]);
                }
                let one = merged(to, &next[from..], &options)?;
                next.truncate(from);
                next.extend(one);
            }
            trees.insert(*dict, next);
        }
        self.replace(trees);
        Ok(())
    }

    /// Returns whether a dictionary has so many parts above the oldest `keep` that a spill should
    /// merge some.
    pub(super) fn is_stacked(&self, dict: DictionaryId, keep: usize) -> bool {
        self.trees.get(&dict).is_some_and(|parts| parts.len() > keep + RUNS)
    }

    /// Returns each wanted dictionary merged into one part.
    pub(super) fn merged(
        &self,
        to: &Engine,
        wanted: impl Fn(DictionaryId) -> bool,
    ) -> Result<Vec<(DictionaryId, Part)>> {
        let options = MergeOptions {
            drop_tombstones: false,
            old_seq: Seq::MAX,
            priority: Priority::User,
            ..MergeOptions::default()
        };
        let mut out = Vec::new();
        for (&dict, parts) in self.trees.iter().filter(|(dict, _)| wanted(**dict)) {
            let parts: Vec<Part> = parts.iter().filter(|p| p.items() > 0).cloned().collect();
            let one = match parts.len() {
                0 | 1 => parts.into_iter().next(),
                _ => merged(to, &parts, &options)?,
            };
            out.extend(one.map(|part| (dict, part)));
        }
        Ok(out)
    }
}

fn bytes(part: &Part) -> u64 {
    match part {
        Part::Memtable(m) => m.bytes() as u64,
        Part::Run(run) => run.stats().bytes,
    }
}

/// Merges parts, ordered from the oldest on, into one run.
fn merged(to: &Engine, parts: &[Part], options: &MergeOptions) -> Result<Option<Part>> {
    let inputs: Vec<Input> = parts.iter().rev().map(Part::input).collect();
    let mut merge = Merge::new(&to.cache, &inputs, &KeyRange::all(), options.clone())?;
    while !merge.step(u64::MAX)? {}
    let (run, stats) = merge.finish()?;
    to.counters.merged(&stats);
    Ok(run.map(Part::Run))
}

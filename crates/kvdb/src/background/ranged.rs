//! Compaction of a range of keys: what all runs have there is merged into the bottom run, the rest of them stays as it is. Done part
//! by part, each installed by one edit of the manifest, as every compaction: a run is cut around the part by slices, which cost a
//! few index nodes, and the merged part takes its place in the bottom run.

use env::sync::atomic::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Input, KeyRange, Merge, MergeOptions, Run, concat, slice};
use zones::Reserve;

use super::flush::encode_run;
use super::shape::{BOTTOM, Job};
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::RunId;
use crate::manifest::Edit;
use crate::read::bounds;
use crate::read::version::{Placed, Tree, Version};

/// Bytes of work after which it is seen whether the part is full.
const STEP: u64 = 4 << 20;

/// A part of a run, when there is anything in it.
type Part = Option<Arc<Run>>;

/// `true` when `run` has keys in `range`, going by its fences.
fn touches(run: &Run, range: &KeyRange) -> bool {
    let (low, high) = run.fences();
    high > range.start.as_ref() && range.end.as_ref().is_none_or(|end| low < end.as_ref())
}

/// `true` when the range holds nothing that a merge would change: one run at the bottom, without tombstones.
fn settled(tree: &Tree, inputs: &[(usize, Placed)]) -> bool {
    match inputs {
        [] => true,
        [(level, only)] => {
            let stats = only.run.stats();
            *level == BOTTOM
                && tree.levels.get(BOTTOM).is_some_and(|l| l.len() == 1)
                && !stats.tombstones
                && !stats.range_tombstones
        }
        _ => false,
    }
}

impl Database {
    /// Merges what lies in `range` into the bottom run.
    pub(crate) fn compact_range(&self, dict: DictionaryId, range: KeyRange) -> Result<()> {
        let _alone = self.merge_alone();
        let mut rest = Some(range);
        while let Some(range) = rest {
            rest = match bounds::is_empty(&range) || self.background.stopping() {
                true => None,
                false => self.compact_part(dict, range)?,
            };
        }
        Ok(())
    }

    /// Merges and installs the first part of `range`; what is left of it. The caller merges alone.
    fn compact_part(&self, dict: DictionaryId, range: KeyRange) -> Result<Option<KeyRange>> {
        let tree = self.version.load().tree(dict)?.clone();
        let runs = tree.levels.iter().enumerate().flat_map(|(level, runs)| runs.iter().map(move |p| (level, p.clone())));
        let inputs: Vec<(usize, Placed)> = runs.filter(|(_, p)| touches(&p.run, &range)).collect();
        if settled(&tree, &inputs) {
            return Ok(None);
        }
        let options = MergeOptions {
            drop_tombstones: true,
            old_seq: self.visible.load(Ordering::Acquire),
            reserve: Reserve::Merge,
            lane: self.lane(inputs.iter().map(|(_, p)| p), BOTTOM),
            ..tree.info.options.storage(Job::everything_from(&tree, 0).placement(self))
        };
        let sources: Vec<Input> = inputs.iter().map(|(_, p)| Input::Run(p.run.clone())).collect();
        let mut merge = Merge::new(&self.store, &sources, &range, options)?;
        let part = self.part_size();
        while !merge.step(STEP.min(part))? && written(&merge) < part && !self.background.stopping() {}
        let (merged, next, stats) = merge.cut()?;
        // What was cut off lies before `next`, or before the end of the range.
        let end = next.clone().or_else(|| range.end.clone());
        // The part goes into the oldest run at the bottom that reaches into the range, or else beside any.
        let bottom = || tree.levels.get(BOTTOM).and_then(|runs| runs.last()).map(|p| (BOTTOM, p.clone()));
        let home = inputs.last().filter(|(level, _)| *level == BOTTOM).cloned().or_else(bottom).map(|(_, p)| p);
        let (before, after) = match &home {
            Some(home) => self.around(&home.run, &range.start, end.as_ref())?,
            None => (None, None),
        };
        let home = home.map(|p| p.id);
        let mut rests = Vec::new();
        for (level, input) in inputs.iter().filter(|(_, p)| Some(p.id) != home) {
            let (left, right) = self.around(&input.run, &range.start, end.as_ref())?;
            rests.push((*level, input.id, self.joined([left, right].into_iter().flatten().collect())?));
        }
        let result = self.joined([before, merged, after].into_iter().flatten().collect())?;
        self.zones.sync().map_err(|e| self.health.fail("syncing a merge", &e.into()))?;
        self.counters.merged(&stats);
        self.install(|state| {
            let mut edits = vec![Edit::Streams(self.zones.positions())];
            let there = state.dictionaries.contains_key(&dict);
            let id = home.unwrap_or(RunId(state.next_run));
            if there {
                for (level, id, rest) in &rests {
                    edits.push(Edit::DropRun { dict, id: *id });
                    let level = *level as u32;
                    edits.extend(rest.iter().map(|run| Edit::AddRun { dict, level, id: *id, run: encode_run(run) }));
                }
                edits.extend(home.map(|id| Edit::DropRun { dict, id }));
                edits.extend(result.iter().map(|run| Edit::AddRun { dict, level: BOTTOM as u32, id, run: encode_run(run) }));
            }
            let gone: Vec<RunId> = rests.iter().filter(|(_, _, rest)| rest.is_none()).map(|(_, id, _)| *id).chain(home).collect();
            let left: Vec<Placed> = rests.into_iter().filter_map(|(_, id, run)| Some(Placed { id, run: run? })).collect();
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    tree.drop_runs(&gone);
                    left.into_iter().for_each(|rest| tree.replace_run(rest));
                    result.into_iter().for_each(|run| tree.add_run(BOTTOM, Placed { id, run }));
                });
            };
            (edits, change)
        })?;
        self.counters.compactions.add(u64::from(next.is_none()));
        self.compacted();
        Ok(next.map(|start| KeyRange { start, end: range.end }))
    }

    /// What `run` has before `start`, and from `end` on.
    fn around(&self, run: &Arc<Run>, start: &Bytes, end: Option<&Bytes>) -> Result<(Part, Part)> {
        let (low, high) = run.fences();
        let left = match low < start.as_ref() {
            true => slice(run, &KeyRange { start: Bytes::new(), end: Some(start.clone()) })?,
            false => None,
        };
        let right = match end {
            Some(end) if high > end.as_ref() => slice(run, &KeyRange { start: end.clone(), end: None })?,
            _ => None,
        };
        Ok((left, right))
    }

    fn joined(&self, parts: Vec<Arc<Run>>) -> Result<Part> {
        match parts.len() {
            0 | 1 => Ok(parts.into_iter().next()),
            _ => Ok(concat(&self.store, &parts)?),
        }
    }
}

fn written(merge: &Merge) -> u64 {
    let m = merge.stats();
    m.blocks_written + m.values_written + m.index_written
}

//! The compaction policy, which decides which runs of a dictionary are merged next. The levels are
//! tiered, with a single run at the bottom: when a level has enough runs, they are merged into one
//! run of the next level, or, once the data above the bottom run weighs enough, all of it is merged
//! into the bottom run. Deletions are accounted separately: a run with tombstones above older runs
//! keeps dead data alive, so when the store is quiet, or short of space, it is merged with
//! everything below it.
//!
//! Several merges may be in progress in one dictionary. They are safe by the order of age: a run
//! may only move below runs that are older. So a merge takes all runs of its level, none of which
//! may be in another merge; and a merge into the bottom takes all levels from its own downwards.
//! Before it begins it moves its inputs down to the last levels above the bottom: runs flushed
//! during the merge are then merged among themselves, however long the large merge takes.

use std::sync::Arc;

use vt_tree::{ADAPTIVE, MergeOptions, Placement, Run};
use zones::{Job, Lifetime, ZONE_SIZE, Zones};

use super::garbage::Garbage;
use crate::dictionary::{DictionaryId, SHORT_VALUES};
use crate::ids::RunId;
use crate::options::CompactionPolicy;
use crate::version::tree::{NumberedRun, Tree};
use crate::version::version_set::VersionSet;

/// The level of the bottom run.
pub(crate) const BOTTOM: usize = 15;
/// The shortest span of key blocks that is stitched when space is short, bytes.
const TIGHT_STITCH_AT: u64 = 1 << 20;
/// Space is short if less than this part of the store is free.
const TIGHT_PART: u64 = 8;
/// A seek is expensive if it costs more than this many bytes of reading: large values are then
/// moved for the sake of scans.
const DEAR_SEEK_BYTES: u64 = 64 << 10;

/// Dead bytes for each hundred live bytes from which everything above the bottom is merged into it,
/// while clients write and when the store is quiet. Each such merge writes all live data: at the
/// first threshold two bytes for each overwritten one.
const DEAD_PERCENT_BUSY: u64 = 50;
const DEAD_PERCENT_QUIET: u64 = 8;

/// Maximum bytes of key blocks that are rewritten only for readers, and the maximum weight of runs
/// that are added to a merge relative to the runs that are due.
const READER_MERGE_BYTES: u64 = 4 << 20;
const EXTRA_WEIGHT_RATIO: u64 = 4;
/// Number of runs above the bottom that may stay when the store is quiet.
const QUIET_RUNS: usize = 2;

/// A merge whose key blocks are smaller than its new values by this factor is cheap.
const CHEAP_RATIO: u64 = 48;

/// Runs with fewer bytes of key blocks than this get no zones of their own.
const OWN_ZONES_BYTES: u64 = 5 * ZONE_SIZE;
/// If less space than this is free, young and old data share zones, since each would otherwise keep
/// zones open that the store lacks.
pub(crate) const SHARE_ZONES_BELOW: u64 = 32 * ZONE_SIZE;

/// Returns the number of free bytes below which space is short.
pub(super) fn tight_below(zones: &Zones) -> u64 {
    zones.space().zones_total / TIGHT_PART * ZONE_SIZE
}

/// Returns the lifetime of the result of merging `runs` at `level`, by which it is placed next to
/// data that lives as long.
pub(super) fn lifetime<'a>(
    zones: &Zones,
    runs: impl IntoIterator<Item = &'a NumberedRun>,
    level: usize,
) -> Lifetime {
    match level {
        _ if weights(runs) < OWN_ZONES_BYTES || zones.space().free_for_user < SHARE_ZONES_BELOW => {
            Lifetime::Young
        }
        BOTTOM => Lifetime::Old,
        _ => Lifetime::Middle,
    }
}

/// Runs to merge.
pub(crate) struct CompactionPlan {
    pub dict: DictionaryId,
    /// The runs, newest first and adjacent in age.
    pub inputs: Vec<NumberedRun>,
    /// The level of each input.
    pub levels: Vec<(RunId, usize)>,
    /// The level of the result.
    pub level: usize,
    /// No older runs lie below.
    pub to_bottom: bool,
    /// The placement. `None` means that the dictionary's stitching threshold decides.
    pub placement: Option<Placement>,
    /// The merge gathers all short values that the dictionary has outside into their blocks.
    pub gathers: bool,
    /// The merge is done because the store is quiet, and is not urgent.
    pub may_wait: bool,
}

/// Runs of a merge in progress, which no other merge may take.
#[derive(Clone, Debug)]
pub(crate) struct CompactionLock {
    pub number: u64,
    pub dict: DictionaryId,
    pub runs: Vec<RunId>,
    /// The level at which its result grows.
    pub level: usize,
}

/// Returns the cost of merging this run: its key blocks, since values stay in place.
fn weight(numbered: &NumberedRun) -> u64 {
    let stats = numbered.run.stats();
    stats.block_bytes + stats.items
}

fn weights<'a>(runs: impl IntoIterator<Item = &'a NumberedRun>) -> u64 {
    runs.into_iter().map(weight).sum()
}

fn has_tombstones(numbered: &NumberedRun) -> bool {
    let stats = numbered.run.stats();
    stats.tombstones || stats.range_tombstones
}

impl CompactionPlan {
    pub(crate) fn new(
        tree: &Tree,
        inputs: Vec<NumberedRun>,
        level: usize,
        to_bottom: bool,
    ) -> CompactionPlan {
        debug_assert!(
            level > 0,
            "a result at the level of flushes would hide what is flushed while the merge goes on"
        );
        let all = tree
            .levels
            .iter()
            .enumerate()
            .flat_map(|(level, runs)| runs.iter().map(move |p| (p.id, level)));
        let levels = all.filter(|(id, _)| inputs.iter().any(|p| p.id == *id)).collect();
        CompactionPlan {
            dict: tree.info().id,
            inputs,
            levels,
            level,
            to_bottom,
            placement: None,
            gathers: false,
            may_wait: false,
        }
    }

    /// Returns the level that the input lies at.
    pub(crate) fn level_of(&self, id: RunId) -> usize {
        self.levels.iter().find(|(of, _)| *of == id).map_or(BOTTOM, |(_, level)| *level)
    }

    /// Returns the job that the merge is accounted to.
    pub(crate) fn job(&self) -> Job {
        match self {
            _ if self.gathers => Job::Gathering,
            _ if self.may_wait => Job::QuietMerges,
            _ => Job::Merges,
        }
    }

    /// Adapts the plan to a store that is short of space: copies short spans of key blocks, each of
    /// which would keep a zone, and moves no values for the sake of scans.
    pub(crate) fn copy_short_spans(&mut self) {
        if self.placement.is_none() {
            self.placement = Some(Placement { stitch_at: TIGHT_STITCH_AT, ..Placement::stitch() });
        }
    }

    /// Returns the storage options of the next part, by the current options of the dictionary.
    pub(crate) fn storage(
        &self,
        zones: &Zones,
        versions: &VersionSet,
        seek_bytes: u64,
    ) -> MergeOptions {
        match versions.load().trees.get(&self.dict) {
            Some(tree) => tree.storage(self.placement(tree, zones, seek_bytes)),
            // The dictionary was dropped, and so will be the merged data.
            None => MergeOptions::default(),
        }
    }

    /// Returns the placement of the next part.
    fn placement(&self, tree: &Tree, zones: &Zones, seek_bytes: u64) -> Placement {
        if let Some(placement) = &self.placement {
            return placement.clone();
        }
        // Each short span of key blocks that stays keeps a zone: the little free space would be
        // used up before the inputs are freed.
        if zones.space().free_for_user < tight_below(zones) {
            return Placement { stitch_at: TIGHT_STITCH_AT, ..Placement::stitch() };
        }
        let stitch_at = tree.info().options.stitch_at;
        let values_at = match stitch_at {
            ADAPTIVE if seek_bytes < DEAR_SEEK_BYTES => 0,
            ADAPTIVE => seek_bytes,
            at => at,
        };
        // Large values are moved once, on their way to the bottom. A plain LSM-tree moves them in
        // every merge.
        let values_at = if self.to_bottom || stitch_at == u64::MAX { values_at } else { 0 };
        // Do not gather if short values are written outside again since the merge began.
        let gathers = self.gathers && tree.short.are_gathered(tree.info());
        let gather_below = if gathers { SHORT_VALUES.end } else { 0 };
        Placement { stitch_at, values_at, seek_bytes, gather_below, ..Placement::stitch() }
    }

    /// Returns a plan for all runs from level `from` downwards.
    pub(crate) fn everything_from(tree: &Tree, from: usize) -> CompactionPlan {
        let inputs = tree.levels.iter().skip(from).flatten().cloned().collect();
        CompactionPlan::new(tree, inputs, BOTTOM, true)
    }

    /// Returns the youngest level that it takes runs from.
    pub(crate) fn from(&self) -> usize {
        self.levels.iter().map(|(_, level)| *level).min().unwrap_or(BOTTOM)
    }

    /// Returns the merge that the policy calls for in addition to the merges in progress, if any.
    /// Only levels above `above` are considered.
    pub(crate) fn for_policy(
        tree: &Tree,
        policy: &CompactionPolicy,
        compaction_locks: &[CompactionLock],
        above: usize,
        dead: Garbage,
    ) -> Option<CompactionPlan> {
        let compaction_locks: Vec<&CompactionLock> =
            compaction_locks.iter().filter(|c| c.dict == tree.info().id).collect();
        let taken = |level: usize| {
            let runs = tree.levels.get(level).into_iter().flatten();
            compaction_locks
                .iter()
                .any(|c| c.level == level || runs.clone().any(|p| c.runs.contains(&p.id)))
        };
        let dead = policy.single_bottom && dead.percent() >= DEAD_PERCENT_BUSY;
        for (level, runs) in tree.levels.iter().enumerate().take(BOTTOM.min(above)) {
            if dead && !runs.is_empty() && !(level..=BOTTOM).any(taken) {
                return Some(CompactionPlan::for_space(tree, level));
            }
            if taken(level) {
                continue;
            }
            // If values lie outside, merging key blocks costs almost nothing and shows which values
            // are dead.
            if policy.single_bottom
                && !(level..=BOTTOM).any(taken)
                && CompactionPlan::is_cheap(tree, level)
            {
                return Some(CompactionPlan::everything_from(tree, level));
            }
            if runs.len() < policy.runs_per_level {
                continue;
            }
            let below = |from: usize| tree.levels.iter().take(BOTTOM).skip(from).flatten();
            let bottom = weights(tree.levels.iter().skip(BOTTOM).flatten());
            let heavy = policy.single_bottom
                && weights(below(level)).saturating_mul(policy.size_ratio) >= bottom;
            if (heavy || level + 1 == BOTTOM) && !(level..=BOTTOM).any(taken) {
                return Some(CompactionPlan::everything_from(tree, level));
            }
            if level + 1 < BOTTOM {
                return Some(CompactionPlan::down(tree, level, taken));
            }
        }
        None
    }

    /// Merges a level's runs into one of the next level. Runs of that level, and of the following
    /// ones, are included as long as they weigh little: a lookup probes each run, however few keys
    /// it has.
    fn down(tree: &Tree, level: usize, taken: impl Fn(usize) -> bool) -> CompactionPlan {
        let (mut inputs, mut to) = (tree.levels[level].clone(), level + 1);
        for (below, runs) in tree.levels.iter().enumerate().take(BOTTOM).skip(level + 1) {
            let (weight, more) = (weights(&inputs), weights(runs));
            if runs.is_empty()
                || taken(below)
                || weight + more > READER_MERGE_BYTES
                || more > EXTRA_WEIGHT_RATIO * weight
            {
                break;
            }
            inputs.extend_from_slice(runs);
            to = below;
        }
        CompactionPlan::new(tree, inputs, to, false)
    }

    /// Returns a merge for a quiet store of the runs above the bottom, if there are several and
    /// they weigh little. The result is never at the youngest level: runs flushed there during the
    /// merge are newer than the result.
    pub(crate) fn for_readers(tree: &Tree, policy: &CompactionPolicy) -> Option<CompactionPlan> {
        let above = || tree.levels.iter().take(BOTTOM).flatten();
        let to = tree.levels.iter().take(BOTTOM).rposition(|runs| !runs.is_empty())?.max(1);
        let due = policy.single_bottom
            && above().count() > QUIET_RUNS
            && weights(above()) <= READER_MERGE_BYTES;
        due.then(|| CompactionPlan::new(tree, above().cloned().collect(), to, false))
    }

    /// Returns whether a merge of everything from `level` downwards writes little compared with the
    /// large values that it may find dead: the values above the bottom amount to at least an eighth
    /// of those in the bottom, and to many times all key blocks.
    fn is_cheap(tree: &Tree, level: usize) -> bool {
        let values = |from: usize| {
            tree.levels.iter().skip(from).flatten().map(|p| p.run.stats().value_bytes).sum::<u64>()
        };
        let blocks = weights(tree.levels.iter().skip(level).flatten());
        let (all, bottom) = (values(level), values(BOTTOM));
        let above = all - bottom;
        bottom > 0 && above >= bottom / 8 && above >= CHEAP_RATIO.saturating_mul(blocks)
    }

    /// Returns the merge that dead bytes call for when the store is quiet.
    pub(crate) fn for_dead(
        tree: &Tree,
        dead: Garbage,
        policy: &CompactionPolicy,
    ) -> Option<CompactionPlan> {
        let level = tree.levels.iter().take(BOTTOM).position(|runs| !runs.is_empty())?;
        let due = policy.single_bottom && dead.percent() >= DEAD_PERCENT_QUIET;
        due.then(|| CompactionPlan::for_space(tree, level)).filter(|plan| plan.inputs.len() > 1)
    }

    /// Returns a merge of all runs from a level downwards that frees dead data. Short spans are not
    /// stitched, since each would keep a zone.
    fn for_space(tree: &Tree, level: usize) -> CompactionPlan {
        let mut plan = CompactionPlan::everything_from(tree, level);
        plan.copy_short_spans();
        plan
    }

    /// Returns a merge of the runs with tombstones and everything older, if it is due. If `any` is
    /// set, it is due however few tombstones there are.
    pub(crate) fn for_tombstones(tree: &Tree, any: bool) -> Option<CompactionPlan> {
        let level = tree.levels.iter().position(|runs| runs.iter().any(has_tombstones))?;
        let plan = CompactionPlan::everything_from(tree, level);
        let ranges = plan.inputs.iter().any(|p| p.run.stats().range_tombstones);
        let with = weights(plan.inputs.iter().filter(|p| has_tombstones(p)));
        (any || ranges || with * 16 >= weights(&plan.inputs)).then_some(plan)
    }

    /// Returns a merge of all runs of a dictionary, unless it has a single run at the bottom
    /// without tombstones, and no short values to be gathered.
    pub(crate) fn for_all(tree: &Tree) -> Option<CompactionPlan> {
        if let Some(plan) = CompactionPlan::for_short_values(tree) {
            return Some(plan);
        }
        let mut runs = tree.runs();
        let first = runs.next()?;
        let settled =
            runs.next().is_none() && !has_tombstones(first) && tree.levels.len() == BOTTOM + 1;
        (!settled).then(|| CompactionPlan::everything_from(tree, 0))
    }

    /// Returns a merge of the newest runs of a dictionary as far as `own` accepts them, which moves
    /// no data that need not be merged. Returns `None` if it would change nothing.
    pub(crate) fn for_newest(
        tree: &Tree,
        own: impl Fn(&Arc<Run>) -> bool,
    ) -> Option<CompactionPlan> {
        let count = tree.by_level().take_while(|(_, numbered)| own(&numbered.run)).count();
        // A result lies below the level of flushes, so it must include all runs of that level.
        let flushed = tree.levels.first().map_or(0, Vec::len);
        let count = if count == 0 { 0 } else { count.max(flushed) };
        let inputs: Vec<_> = tree.runs().take(count).cloned().collect();
        let all = count == tree.runs().count();
        let level = match tree.by_level().take(count).last()? {
            _ if all => BOTTOM,
            (level, _) => level.max(1),
        };
        let changes = inputs.len() > 1 || all && inputs.iter().any(has_tombstones);
        let plan = CompactionPlan::new(tree, inputs, level, all);
        changes.then(|| CompactionPlan { placement: Some(Placement::stitch()), ..plan })
    }

    /// Returns a merge of all runs of a dictionary whose short values are to be gathered into their
    /// blocks.
    pub(crate) fn for_short_values(tree: &Tree) -> Option<CompactionPlan> {
        let level = tree.levels.iter().position(|runs| !runs.is_empty())?;
        let plan =
            || CompactionPlan { gathers: true, ..CompactionPlan::everything_from(tree, level) };
        tree.short.are_gathered(tree.info()).then(plan)
    }

    /// Returns whether the runs with tombstones have an eighth of all items or more: of short
    /// values they weigh little even if everything is deleted.
    pub(crate) fn deletes_much(&self) -> bool {
        let items = |p: &NumberedRun| p.run.stats().items;
        let all: u64 = self.inputs.iter().map(items).sum();
        let with: u64 = self.inputs.iter().filter(|p| has_tombstones(p)).map(items).sum();
        with >= all / 8
    }

    /// Returns the weight of the runs to be merged, about the bytes of their key blocks.
    pub(crate) fn weight(&self) -> u64 {
        weights(&self.inputs)
    }

    /// Returns the maximum bytes that its short values may take in their blocks, in addition to the
    /// current size.
    pub(crate) fn gathered_bytes(&self) -> u64 {
        let most = |items: u64| items.saturating_mul(SHORT_VALUES.end.into());
        self.inputs.iter().map(|p| p.run.stats()).map(|s| s.value_bytes.min(most(s.items))).sum()
    }
}

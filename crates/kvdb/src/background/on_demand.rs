//! Compactions that a caller waits for, while it excludes all other merges.

use std::sync::Arc;

use vt_tree::{Placement, Run};
use zones::Job;

use super::Compactor;
use super::compaction::{Compaction, Subcompaction};
use super::policy::CompactionPlan;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::version::tree::Tree;

/// Converts [`Error::NoSpace`] to `None`.
pub(super) fn none_if_full<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::NoSpace) => Ok(None),
        other => other.map(Some),
    }
}

/// The large values of a dictionary that is compacted as part of a defragmentation.
pub(crate) enum LargeValues {
    /// They are placed like those of any merge into the bottom, which moves scattered ones where
    /// seeks are expensive.
    AsUsual,
    /// Each of them stays where it is.
    Stay,
    /// The placement decides, even if a single run is merged.
    Laid(Placement),
}

/// Returns whether a compaction should end early.
type ShouldStop<'a> = &'a (dyn Fn() -> bool + Sync);

fn never() -> bool {
    false
}

impl Compactor {
    /// Carries out a plan, with several threads if it is large. Returns `false` if the store is
    /// being closed or `stop` returned `true`, in which case the rest is abandoned.
    fn compact_now(&self, plan: CompactionPlan, stop: ShouldStop<'_>) -> Result<bool> {
        let _job = plan.job().begin_unless_part();
        let job = Job::current();
        let (mut first, _) = Compaction::begin(self, plan, 0);
        first.prepare(self)?;
        let whole = first.whole().clone();
        let stop = || self.engine.signals.stopping() || stop();
        let work = |first: Option<Subcompaction>| {
            let mut next = first;
            while let Some(mut own) = next.take().or_else(|| whole.take()) {
                let done = loop {
                    if self.engine.inline {
                        own.rotate();
                    }
                    match own.step(self) {
                        Ok(false) if !stop() => {}
                        done => break done,
                    }
                };
                // If it was stopped or has failed, the other threads need not continue.
                own.leave(!matches!(done, Ok(true)));
                if !done? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let others = if self.engine.inline { 0 } else { whole.waiting() };
        env::thread::scope(|scope| {
            let work = &work;
            let helpers: Vec<_> = (0..others)
                .filter_map(|_| {
                    env::thread::Builder::new()
                        .name("kvdb-merge".into())
                        .spawn_scoped(scope, || {
                            let _job = job.begin();
                            work(None)
                        })
                        .ok()
                })
                .collect();
            let mut done = work(Some(first));
            for helper in helpers {
                let helped = helper.join().unwrap_or_else(|_| {
                    Err(Error::Invalid("a merging thread has panicked".into()))
                });
                done = match (done, helped) {
                    (Ok(a), Ok(b)) => Ok(a && b),
                    (Err(e), _) | (_, Err(e)) => Err(e),
                };
            }
            done
        })
    }

    /// Carries out a plan. If there is no space for it, merges its runs with everything older into
    /// the bottom, which may free some.
    fn compact_or_reach_bottom(&self, plan: CompactionPlan, stop: ShouldStop<'_>) -> Result<bool> {
        let (dict, level, to_bottom) =
            (plan.dict, plan.inputs.first().map_or(0, |p| plan.level_of(p.id)), plan.to_bottom);
        match self.compact_now(plan, stop) {
            Err(Error::NoSpace) if !to_bottom => {
                let plan = self
                    .engine
                    .versions
                    .load()
                    .trees
                    .get(&dict)
                    .map(|tree| CompactionPlan::everything_from(tree, level));
                let Some(mut plan) = plan.filter(|plan| !plan.inputs.is_empty()) else {
                    return Ok(true);
                };
                plan.copy_short_spans();
                self.compact_now(plan, stop)
            }
            done => done,
        }
    }

    /// Merges all runs of a dictionary into one.
    pub(crate) fn compact(&self, dict: DictionaryId) -> Result<()> {
        let _alone = self.merge_alone();
        let plan = {
            let version = self.engine.versions.load();
            let tree = version.tree(dict)?;
            if tree.short.are_outside(tree.info()) {
                tree.short.gather(false);
            }
            CompactionPlan::for_all(tree)
        };
        if let Some(plan) = plan {
            self.compact_or_reach_bottom(plan, &never)?;
        }
        Ok(())
    }

    /// Merges the newest runs of a dictionary, as far as they belong to one branch according to
    /// `own`, to free the space of data deleted or overwritten among them. Data of older runs is
    /// not copied.
    pub(crate) fn compact_newest(
        &self,
        dict: DictionaryId,
        own: impl Fn(&Arc<Run>) -> bool,
    ) -> Result<()> {
        let _alone = self.merge_alone();
        let plan = CompactionPlan::for_newest(self.engine.versions.load().tree(dict)?, own);
        if let Some(plan) = plan {
            self.compact_now(plan, &never)?;
        }
        Ok(())
    }

    /// Compacts a dictionary as part of a defragmentation.
    pub(crate) fn compact_to_defragment(
        &self,
        dict: DictionaryId,
        values: LargeValues,
        stop: ShouldStop<'_>,
    ) -> Result<()> {
        let _alone = self.merge_alone();
        // Release the version before the merge: it would pin the data that the merge frees.
        let plan = {
            let version = self.engine.versions.load();
            let tree = version.tree(dict)?;
            match values {
                LargeValues::AsUsual => CompactionPlan::for_all(tree),
                LargeValues::Stay => {
                    CompactionPlan::for_all(tree).map(|plan| self.values_stay(plan, tree))
                }
                LargeValues::Laid(placement) => tree.runs().next().map(|_| CompactionPlan {
                    placement: Some(placement),
                    ..CompactionPlan::everything_from(tree, 0)
                }),
            }
        };
        if let Some(plan) = plan {
            self.compact_or_reach_bottom(plan, stop)?;
        }
        Ok(())
    }

    /// Lets the large values of a merge stay where they are.
    fn values_stay(&self, mut plan: CompactionPlan, tree: &Tree) -> CompactionPlan {
        // A merge that gathers short values has to move these.
        if !plan.gathers {
            plan.placement = Some(Placement {
                stitch_at: tree.info().options.stitch_at,
                seek_bytes: self.engine.options.seek_bytes,
                ..Placement::stitch()
            });
        }
        plan
    }

    /// Merges runs for which deletions call, as long as these weigh at most `most` bytes together.
    pub(crate) fn merge_deletions(&self, most: u64) -> Result<()> {
        let _alone = self.merge_alone();
        let plans: Vec<CompactionPlan> = {
            let version = self.engine.versions.load();
            let candidates = self.candidates.when_quiet(&version);
            let trees = candidates.iter().filter_map(|id| version.trees.get(id));
            let plan = |tree: &Arc<Tree>| {
                let any = CompactionPlan::for_tombstones(tree, true);
                CompactionPlan::for_tombstones(tree, false)
                    .or_else(|| any.filter(CompactionPlan::deletes_much))
                    .map(|plan| self.values_stay(plan, tree))
            };
            trees.filter_map(plan).collect()
        };
        let mut left = most;
        for plan in plans {
            let Some(rest) = left.checked_sub(plan.weight()) else { continue };
            left = rest;
            if none_if_full(self.compact_now(plan, &never))? != Some(true) {
                break;
            }
        }
        Ok(())
    }

    /// Does all compactions that are due, including those for few tombstones. The caller merges
    /// alone.
    pub(super) fn settle(&self) -> Result<()> {
        // Deletions first: these merges write the least and free the most, and may free the space
        // that others lack.
        let plans: Vec<CompactionPlan> = {
            let version = self.engine.versions.load();
            let candidates = self.candidates.when_quiet(&version);
            let trees = candidates.iter().filter_map(|id| version.trees.get(id));
            trees.filter_map(|tree| CompactionPlan::for_tombstones(tree, true)).collect()
        };
        for mut plan in plans {
            plan.copy_short_spans();
            if none_if_full(self.compact_now(plan, &never))? == Some(false) {
                return Ok(());
            }
        }
        while let Some(mut plan) = self.next_plan(true, true, &[], usize::MAX) {
            plan.copy_short_spans();
            if !self.compact_or_reach_bottom(plan, &never)? {
                break;
            }
        }
        Ok(())
    }
}

//! Compaction of a key range: the data of all runs in the range is merged into the bottom run, and
//! the rest of them stays as it is. It is done part by part, each installed by one edit of the
//! manifest like any compaction: a run is cut around the part by slices, which cost a few index
//! nodes, and the merged part takes its place in the bottom run.

use env::sync::atomic::Ordering;

use vt_tree::{Input, KeyRange, Merge, MergeOptions, Run};
use zones::{Job, Priority};

use super::Compactor;
use super::merged_part::MergedPart;
use super::policy::{BOTTOM, CompactionPlan, lifetime};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::bounds;
use crate::version::tree::{NumberedRun, Tree};

/// Bytes of work between checks whether the part is full.
const STEP: u64 = 4 << 20;

/// Returns `true` if `run` has keys in `range` according to its fences.
fn touches(run: &Run, range: &KeyRange) -> bool {
    let (low, high) = run.fences();
    high > range.start.as_ref() && range.end.as_ref().is_none_or(|end| low < end.as_ref())
}

/// Returns `true` if a merge of the range would change nothing: there is one run, at the bottom,
/// without tombstones.
fn settled(tree: &Tree, inputs: &[(usize, NumberedRun)]) -> bool {
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

impl Compactor {
    /// Merges all data in `range` into the bottom run.
    pub(crate) fn compact_range(&self, dict: DictionaryId, range: KeyRange) -> Result<()> {
        let _alone = self.merge_alone();
        let _job = Job::Merges.begin_unless_part();
        let mut rest = Some(range);
        while let Some(range) = rest {
            rest = match bounds::is_empty(&range) || self.engine.signals.stopping() {
                true => None,
                false => self.compact_part(dict, range)?,
            };
        }
        Ok(())
    }

    /// Merges and installs the first part of `range`. Returns the rest of the range, if any. The
    /// caller merges alone.
    fn compact_part(&self, dict: DictionaryId, range: KeyRange) -> Result<Option<KeyRange>> {
        let tree = self.engine.versions.load().tree(dict)?.clone();
        let inputs: Vec<(usize, NumberedRun)> = tree
            .by_level()
            .filter(|(_, run)| touches(&run.run, &range))
            .map(|(level, run)| (level, run.clone()))
            .collect();
        if settled(&tree, &inputs) {
            return Ok(None);
        }
        let options = MergeOptions {
            drop_tombstones: true,
            old_seq: self.engine.versions.visible.load(Ordering::Acquire),
            priority: Priority::Merge,
            lifetime: lifetime(&self.engine.zones, inputs.iter().map(|(_, p)| p), BOTTOM),
            ..self.storage(&CompactionPlan::everything_from(&tree, 0))
        };
        let sources: Vec<Input> = inputs.iter().map(|(_, p)| Input::Run(p.run.clone())).collect();
        let mut merge = Merge::new(&self.engine.cache, &sources, &range, options)?;
        let most = self.part_size();
        while !merge.step(STEP.min(most))?
            && merge.stats().written() < most
            && !self.engine.signals.stopping()
        {}
        let (merged, next, stats) = merge.cut()?;
        // The part ends at `next`, or at the end of the range.
        let end = next.clone().or_else(|| range.end.clone());
        // The part goes into the oldest run at the bottom that overlaps the range, or else into the
        // last one there.
        let bottom =
            || tree.levels.get(BOTTOM).and_then(|runs| runs.last()).map(|p| (BOTTOM, p.clone()));
        let home = inputs
            .last()
            .filter(|(level, _)| *level == BOTTOM)
            .cloned()
            .or_else(bottom)
            .map(|(_, p)| p);
        let mut part = MergedPart::of(dict);
        for (level, input) in
            inputs.iter().filter(|(_, p)| home.as_ref().is_none_or(|home| home.id != p.id))
        {
            part.cut(self, input, *level, &range.start, end.as_ref())?;
        }
        match (home, merged) {
            (Some(home), merged) => part.set(
                home.id,
                BOTTOM,
                self.with_part(&home.run, &range.start, end.as_ref(), merged)?,
            ),
            (None, Some(merged)) => part.add(BOTTOM, merged),
            (None, None) => {}
        }
        self.install_part(part, &stats)?;
        self.engine.counters.compactions.add(u64::from(next.is_none()));
        self.compacted();
        Ok(next.map(|start| KeyRange { start, end: range.end }))
    }
}

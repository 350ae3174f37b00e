//! Merges of single runs, one at a time and in parts: by an evacuation, data in the victim zones is
//! copied, and everything else is stitched.

use env::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vt_tree::{Input, KeyRange, Merge, MergeOptions, Placement, Run};
use zones::{Priority, ZoneId};

use super::victims::Victims;
use super::{Defragmenter, STEP, unless_in_vain};
use crate::background::merged_part::MergedPart;
use crate::background::policy::{CompactionLock, lifetime};
use crate::dictionary::{DictionaryId, DictionaryOptions};
use crate::error::Result;
use crate::ids::RunId;
use crate::version::Version;
use crate::version::tree::NumberedRun;

/// The time to wait for a run that another merge is using.
const WAIT: Duration = Duration::from_millis(50);

/// The result of evacuating one part.
enum Evacuated {
    /// The bytes that were moved, and the key at which the rest begins, if any.
    Moved(u64, Option<Bytes>),
    /// Another merge is using the run.
    Busy,
}

/// Tells whether other merges run during an evacuation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherMerges {
    Running,
    /// The caller merges alone (`Compactor::merge_alone`).
    Excluded,
}

/// Merges of single runs that have data in some zones.
pub(super) struct RunMerges {
    pub zones: Arc<BTreeSet<ZoneId>>,
    pub placement: Placement,
    /// Runs of these dictionaries alone are merged; all if it is `None`.
    pub only: Option<BTreeSet<DictionaryId>>,
    /// The runs that were merged.
    pub done: BTreeSet<(DictionaryId, RunId)>,
}

impl Defragmenter {
    /// Evacuates `victims`. `between` is called after each part with the bytes that it moved, and
    /// returns whether to continue. Returns the bytes moved in total.
    pub(super) fn evacuate(
        &self,
        victims: &Victims,
        part: u64,
        merges: OtherMerges,
        between: &mut dyn FnMut(u64) -> bool,
    ) -> Result<u64> {
        let zones = Arc::new(victims.zones.clone());
        let placement = Placement { evacuate: Some(zones.clone()), ..Placement::stitch() };
        let mut of_victims = RunMerges { zones, placement, only: None, done: BTreeSet::new() };
        self.merge_runs(&mut of_victims, part, merges, between)
    }

    /// Merges each run with data in the zones alone, except those that are done. For `between` and
    /// the result see `evacuate`.
    pub(super) fn merge_runs(
        &self,
        of: &mut RunMerges,
        part: u64,
        merges: OtherMerges,
        between: &mut dyn FnMut(u64) -> bool,
    ) -> Result<u64> {
        let touches = |run: &Run| run.uses().iter().any(|(zone, _)| of.zones.contains(&zone));
        let version = self.engine.versions.load_full();
        let runs: Vec<(DictionaryId, RunId)> = version
            .trees
            .iter()
            .flat_map(|(&dict, tree)| {
                tree.runs()
                    .filter(|p| touches(&p.run))
                    .map(move |p| (dict, p.id))
                    .collect::<Vec<_>>()
            })
            .filter(|run| of.only.as_ref().is_none_or(|only| only.contains(&run.0)))
            .filter(|run| !of.done.contains(run))
            .collect();
        drop(version);
        let mut all = 0;
        for (dict, id) in runs {
            let mut start = Some(Bytes::new());
            while let Some(from) = start {
                let (moved, next) = match self.merge_part(dict, id, of, &from, part, merges)? {
                    Evacuated::Moved(bytes, next) => (bytes, next),
                    Evacuated::Busy => {
                        self.await_merge(merges)?;
                        (0, Some(from))
                    }
                };
                all += moved;
                start = next;
                if !between(moved) {
                    return Ok(all);
                }
            }
            of.done.insert((dict, id));
        }
        Ok(all)
    }

    /// Waits for the merge that is using a run. In a store without threads no other thread may ever
    /// continue it, so the caller does.
    fn await_merge(&self, merges: OtherMerges) -> Result<()> {
        if self.engine.inline && merges == OtherMerges::Running {
            return unless_in_vain(self.compactor.compaction_steps(1).map(|_| ()));
        }
        self.pause(WAIT, || self.engine.signals.stopping());
        Ok(())
    }

    /// Merges a run alone, from the key `from` on, until about `part` bytes were written.
    fn merge_part(
        &self,
        dict: DictionaryId,
        id: RunId,
        of: &RunMerges,
        from: &Bytes,
        part: u64,
        merges: OtherMerges,
    ) -> Result<Evacuated> {
        // A caller that merges alone has excluded other merges already.
        let _shared = (merges == OtherMerges::Running).then(|| self.compactor.pausing());
        let find = |version: &Version| {
            let tree = version.trees.get(&dict)?;
            let level = tree.levels.iter().position(|runs| runs.iter().any(|p| p.id == id))?;
            let numbered = tree.levels[level].iter().find(|p| p.id == id)?;
            Some((level, numbered.run.clone(), tree.info().options.clone()))
        };
        let mut found = None;
        let claimed = self.compactor.compaction_lock(|compaction_locks| {
            found = find(&self.engine.versions.load());
            let level = found.as_ref()?.0;
            let busy = compaction_locks
                .iter()
                .any(|c| c.dict == dict && (c.runs.contains(&id) || c.level == level));
            (!busy).then(|| CompactionLock { number: 0, dict, runs: vec![id], level })
        });
        let Some((level, run, options)) = found else {
            // The run was merged away since, together with its data there.
            return Ok(Evacuated::Moved(0, None));
        };
        let Some(number) = claimed else { return Ok(Evacuated::Busy) };
        let numbered = NumberedRun { id, run };
        let done = self.replace_part(&numbered, dict, level, &options, of, from, part, merges);
        self.compactor.release(number);
        done
    }

    #[allow(clippy::too_many_arguments)]
    fn replace_part(
        &self,
        numbered: &NumberedRun,
        dict: DictionaryId,
        level: usize,
        options: &DictionaryOptions,
        of: &RunMerges,
        from: &Bytes,
        part: u64,
        merges: OtherMerges,
    ) -> Result<Evacuated> {
        let (id, run) = (numbered.id, &numbered.run);
        if !run.uses().iter().any(|(zone, _)| of.zones.contains(&zone)) {
            return Ok(Evacuated::Moved(0, None));
        }
        // While it yields to readers it still holds space that other merges may need, so the part
        // ends soon.
        let gives_way = || merges == OtherMerges::Running && self.stands_back();
        let mut placement = of.placement.clone();
        if gives_way() {
            placement.window = STEP;
        }
        let options = MergeOptions {
            drop_tombstones: false,
            old_seq: self.engine.versions.visible.load(Ordering::Acquire),
            priority: Priority::Merge,
            lifetime: lifetime(&self.engine.zones, [numbered], level),
            ..options.storage(placement)
        };
        let range = KeyRange { start: from.clone(), end: None };
        let mut merge =
            Merge::new(&self.engine.cache, &[Input::Run(run.clone())], &range, options)?;
        while !merge.step(STEP.min(part))? {
            let written = merge.stats().written();
            if written >= part || self.engine.signals.stopping() || written > 0 && gives_way() {
                break;
            }
        }
        let (moved, next, stats) = merge.cut()?;
        let mut part = MergedPart::of(dict);
        part.set(id, level, self.compactor.with_part(run, from, next.as_ref(), moved)?);
        self.compactor.install_part(part, &stats)?;
        Ok(Evacuated::Moved(stats.written(), next))
    }
}

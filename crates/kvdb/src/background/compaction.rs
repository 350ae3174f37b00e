//! One compaction in progress. `policy` decides which runs it merges, `compactor` which threads
//! work on it.
//!
//! A compaction is installed in parts. Once it has written enough, or as much as there is room for,
//! the merged data becomes a run of its own at the level below, the inputs lose those keys, and the
//! space that only they used is free for the next part. Runs are sliced and joined by pointer, so
//! this costs a few index nodes. Each part is one edit of the manifest, so the store is consistent
//! after any of them; however large the runs, at most one part exists twice.
//!
//! A large compaction consists of several *subcompactions*: disjoint key ranges of the same inputs,
//! split at index node boundaries, each for a thread of its own. Their results are joined by
//! pointer into one run with one number; the inputs have a hole where each of them has been. After
//! an install, a subcompaction continues with the inputs as they are then; the others continue with
//! those that they began their part with. So at most one part of each subcompaction exists twice,
//! and parts are smaller in proportion to the number of subcompactions.

use env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::{Input, KeyRange, Merge, MergeOptions, Run, split_points};
use zones::{Job, Priority, ZONE_SIZE};

use super::Compactor;
use super::merged_part::MergedPart;
use super::policy::{BOTTOM, CompactionLock, CompactionPlan, SHARE_ZONES_BELOW, lifetime};
use crate::error::{Error, Result};
use crate::ids::RunId;
use crate::manifest::Edit;
use crate::version::tree::NumberedRun;
use crate::version::version_set::{Order, VersionEdit};

/// If there is no space for a part of this size, the compaction fails for lack of space.
const SMALLEST: u64 = 256 << 10;
/// Zones that a part leaves free: the last ones, and open ones that it may begin.
const LEFT: u64 = 3;
/// Bytes of work in one step.
const STEP: u64 = 4 << 20;
/// Maximum size of a part as a share of the store (one part in `SHARE`), with a minimum for small
/// stores.
const SHARE: u64 = 20;
const PART_MIN: u64 = 2 * ZONE_SIZE;
/// A subcompaction is worth a thread if it has at least the largest part divided by this to merge.
const WORTH: u64 = 2;

/// A compaction in progress, shared by the threads that work on its subcompactions.
pub(crate) struct Compaction {
    /// The number of its compaction lock.
    pub number: u64,
    /// The compaction is not urgent.
    pub may_wait: bool,
    /// The job that its writes are accounted to.
    pub job: Job,
    /// The youngest level that it takes runs from.
    from: AtomicUsize,
    /// Bytes that a subcompaction writes before the next install.
    part: AtomicU64,
    workers: Mutex<Workers>,
    /// Held while a part is installed. No thread waits for it while holding another lock.
    state: Mutex<CompactionState>,
}

/// The subcompactions that wait, and those that a thread works on.
#[derive(Default)]
struct Workers {
    /// The current merge of each subcompaction; a step takes it out. `None` if the merge has not
    /// begun, was just installed, or is in a step.
    merges: Vec<Option<Merge>>,
    /// Unclaimed subcompactions.
    waiting: VecDeque<usize>,
    /// Number of subcompactions that a thread works on.
    taken: usize,
    given_up: bool,
}

struct CompactionState {
    plan: CompactionPlan,
    /// Sorted by key; a single one until the compaction is prepared.
    ranges: Vec<SubcompactionRange>,
    /// The run of the data that is merged and installed.
    result: Option<RunId>,
    /// The number of items in the inputs that hid older ones, and of all items, when it began.
    overwriting: (f64, u64),
}

/// The key range of a subcompaction, and its progress.
#[derive(Default)]
struct SubcompactionRange {
    /// All keys below this one are installed.
    at: Bytes,
    end: Option<Bytes>,
    merged: Option<Arc<Run>>,
    done: bool,
}

/// A key range of a compaction, claimed by a thread.
pub(crate) struct Subcompaction {
    whole: Arc<Compaction>,
    number: usize,
    /// This is the first subcompaction, and the compaction is not yet prepared for others.
    first: bool,
}

impl Compaction {
    /// Begins a compaction with a single subcompaction. [`Subcompaction::prepare`] splits it if
    /// that is worthwhile.
    pub(crate) fn begin(
        compactor: &Compactor,
        plan: CompactionPlan,
        number: u64,
    ) -> (Subcompaction, CompactionLock) {
        let compaction_lock = CompactionLock {
            number,
            dict: plan.dict,
            runs: plan.inputs.iter().map(|p| p.id).collect(),
            level: plan.level,
        };
        let overwriting = (
            compactor.garbage.items(&plan.inputs),
            plan.inputs.iter().map(|p| p.run.stats().items).sum(),
        );
        let (from, may_wait, job) = (AtomicUsize::new(plan.from()), plan.may_wait, plan.job());
        let state = CompactionState {
            plan,
            ranges: vec![SubcompactionRange::default()],
            result: None,
            overwriting,
        };
        let workers = Workers { taken: 1, merges: vec![None], ..Workers::default() };
        let part = AtomicU64::new(compactor.part_size());
        let whole = Arc::new(Compaction {
            number,
            may_wait,
            job,
            from,
            part,
            workers: Mutex::new(workers),
            state: Mutex::new(state),
        });
        (Subcompaction { whole, number: 0, first: true }, compaction_lock)
    }

    /// Returns the youngest level that it takes runs from.
    pub(crate) fn from(&self) -> usize {
        self.from.load(Ordering::Relaxed)
    }

    /// Claims a subcompaction.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Subcompaction> {
        let mut workers = self.workers.lock();
        let number = workers.waiting.pop_front()?;
        workers.taken += 1;
        Some(Subcompaction { whole: self.clone(), number, first: false })
    }

    /// Returns the number of unclaimed subcompactions.
    pub(crate) fn waiting(&self) -> usize {
        self.workers.lock().waiting.len()
    }

    /// Abandons the compaction and releases all that it holds. Installed parts stay.
    pub(crate) fn give_up(&self) {
        let mut workers = self.workers.lock();
        workers.given_up = true;
        workers.waiting.clear();
        workers.merges.clear();
    }

    fn reset_part(&self, compactor: &Compactor) {
        let count = self.workers.lock().merges.len() as u64;
        self.part.store((compactor.part_size() / count.max(1)).max(SMALLEST), Ordering::Relaxed);
    }
}

impl CompactionState {
    /// Moves the inputs of a merge into the bottom down to the last levels above the bottom, so
    /// that younger runs can be merged in the meantime.
    fn move_inputs_down(&mut self, compactor: &Compactor) -> Result<()> {
        let upper: Vec<usize> = self
            .plan
            .levels
            .iter()
            .map(|(_, level)| *level)
            .filter(|level| *level < BOTTOM)
            .collect();
        let down = upper.iter().max().map_or(0, |deepest| BOTTOM - 1 - deepest);
        if !self.plan.to_bottom || down == 0 {
            return Ok(());
        }
        let dict = self.plan.dict;
        let moves: Vec<(NumberedRun, usize)> =
            self.plan.inputs.iter().map(|p| (p.clone(), self.plan.level_of(p.id))).collect();
        let moves: Vec<(NumberedRun, usize)> = moves
            .into_iter()
            .filter(|(_, level)| *level < BOTTOM)
            .map(|(p, level)| (p, level + down))
            .collect();
        let levels = moves.iter().map(|(p, level)| (p.id, *level)).collect::<Vec<_>>();
        compactor.engine.versions.install(Order::OfPlaces, |state| {
            let mut change = VersionEdit::default();
            if state.dictionaries.contains_key(&dict) {
                for (NumberedRun { id, run }, level) in &moves {
                    change.edits.push(Edit::DropRun { dict, id: *id });
                    change.add_run(dict, *level, *id, run);
                }
            }
            change
        })?;
        for (id, level) in &mut self.plan.levels {
            *level = levels.iter().find(|(of, _)| of == id).map_or(*level, |(_, now)| *now);
        }
        Ok(())
    }

    /// Splits the compaction into subcompactions if it is large enough and there may be threads for
    /// them. It is not split when little space is free, since the parts of several would be so
    /// small that they leave holes.
    fn split(&mut self, compactor: &Compactor) -> Result<()> {
        if compactor.engine.zones.space().free_for_user < SHARE_ZONES_BELOW {
            return Ok(());
        }
        let placement = compactor.storage(&self.plan).placement;
        let values = placement.values_at > 0 || placement.gather_below > 0;
        let stats = || self.plan.inputs.iter().map(|p| p.run.stats());
        let work: u64 =
            stats().map(|s| s.block_bytes + s.items + if values { s.value_bytes } else { 0 }).sum();
        let most = work / (compactor.engine.options.merge_part / WORTH).max(1);
        let count = most
            .min(compactor.engine.options.merge_subcompactions(compactor.engine.inline) as u64)
            as usize;
        if count < 2 {
            return Ok(());
        }
        let runs: Vec<Arc<Run>> = self.plan.inputs.iter().map(|p| p.run.clone()).collect();
        let cuts = split_points(&runs, count, values)?;
        let starts = std::iter::once(Bytes::new()).chain(cuts.iter().cloned());
        let ends = cuts.iter().cloned().map(Some).chain([None]);
        self.ranges = starts
            .zip(ends)
            .map(|(at, end)| SubcompactionRange { at, end, ..Default::default() })
            .collect();
        Ok(())
    }
}

impl Subcompaction {
    /// Returns the youngest level that its compaction takes runs from.
    pub(crate) fn from(&self) -> usize {
        self.whole.from()
    }

    pub(crate) fn whole(&self) -> &Arc<Compaction> {
        &self.whole
    }

    /// Returns whether other threads may work on the same compaction.
    pub(crate) fn is_shared(&self) -> bool {
        self.whole.workers.lock().merges.len() > 1
    }

    /// Splits the compaction on the first call, so that other threads can take subcompactions.
    /// Returns `true` if this call has made any.
    pub(crate) fn prepare(&mut self, compactor: &Compactor) -> Result<bool> {
        if !std::mem::replace(&mut self.first, false) {
            return Ok(false);
        }
        let mut state = self.whole.state.lock();
        state.move_inputs_down(compactor)?;
        state.split(compactor)?;
        self.whole.from.store(state.plan.from(), Ordering::Relaxed);
        let count = state.ranges.len();
        {
            let mut workers = self.whole.workers.lock();
            workers.merges.resize_with(count, || None);
            workers.waiting = (1..count).collect();
        }
        self.whole.reset_part(compactor);
        compactor.engine.counters.split_merges.add(u64::from(count > 1));
        Ok(count > 1)
    }

    /// Does a bounded amount of work. Returns `true` when the subcompaction is done or its
    /// compaction is abandoned. If there is no space, later calls work in smaller parts.
    pub(crate) fn step(&mut self, compactor: &Compactor) -> Result<bool> {
        match self.work(compactor) {
            Err(Error::NoSpace) => {
                let part = self.whole.part.load(Ordering::Relaxed);
                if part <= SMALLEST {
                    return Err(Error::NoSpace);
                }
                self.whole.part.store((part / 4).max(SMALLEST), Ordering::Relaxed);
                self.whole.state.lock().plan.copy_short_spans();
                Ok(false)
            }
            done => done,
        }
    }

    /// Switches to another subcompaction of the same compaction and puts this one back. A store
    /// without threads does this instead of working on several at once.
    pub(crate) fn rotate(&mut self) {
        let mut workers = self.whole.workers.lock();
        if let Some(number) = workers.waiting.pop_front() {
            let before = std::mem::replace(&mut self.number, number);
            workers.waiting.push_back(before);
        }
    }

    /// Installs the merged data, so that the subcompaction pins nothing, and leaves the rest to the
    /// next idle thread. The caller must call [`Subcompaction::leave`] next.
    pub(crate) fn hand_back(&mut self, compactor: &Compactor) -> Result<()> {
        let done = self.take_merge().map_or(Ok(false), |merge| self.install(compactor, merge))?;
        let mut workers = self.whole.workers.lock();
        if !done && !workers.given_up {
            workers.waiting.push_back(self.number);
        }
        Ok(())
    }

    /// Ends this thread's work on a subcompaction that is finished, handed back, or failed. Returns
    /// `true` if no thread works on the compaction any more, or will.
    pub(crate) fn leave(self, failed: bool) -> bool {
        if failed {
            self.whole.give_up();
        }
        let mut workers = self.whole.workers.lock();
        workers.taken -= 1;
        workers.taken == 0 && workers.waiting.is_empty()
    }

    fn take_merge(&self) -> Option<Merge> {
        self.whole.workers.lock().merges.get_mut(self.number)?.take()
    }

    fn work(&mut self, compactor: &Compactor) -> Result<bool> {
        if self.whole.workers.lock().given_up {
            return Ok(true);
        }
        let part = self.whole.part.load(Ordering::Relaxed);
        let mut merge = match self.take_merge() {
            Some(merge) => merge,
            None => self.begin(compactor)?,
        };
        let done = merge.step(STEP.min(part))?;
        if !done && merge.stats().written() < part {
            if let Some(slot) = self.whole.workers.lock().merges.get_mut(self.number) {
                *slot = Some(merge);
            }
            return Ok(false);
        }
        self.install(compactor, merge)
    }

    /// Begins its next part.
    fn begin(&self, compactor: &Compactor) -> Result<Merge> {
        let mut state = self.whole.state.lock();
        let storage = compactor.storage(&state.plan);
        // Not all short values are gathered if one part does not gather.
        state.plan.gathers &= storage.placement.gather_below > 0;
        let own = &state.ranges[self.number];
        let range = KeyRange { start: own.at.clone(), end: own.end.clone() };
        let inputs: Vec<Input> =
            state.plan.inputs.iter().map(|p| Input::Run(p.run.clone())).collect();
        let options = MergeOptions {
            drop_tombstones: state.plan.to_bottom,
            old_seq: compactor.engine.versions.visible.load(Ordering::Acquire),
            priority: Priority::Merge,
            lifetime: lifetime(&compactor.engine.zones, &state.plan.inputs, state.plan.level),
            ..storage
        };
        drop(state);
        Ok(Merge::new(&compactor.engine.cache, &inputs, &range, options)?)
    }

    /// Makes the merged data part of the store and removes those keys from the inputs. Returns
    /// `true` if the subcompaction is done.
    fn install(&mut self, compactor: &Compactor, merge: Merge) -> Result<bool> {
        let (run, next, stats) = merge.cut()?;
        let mut state = self.whole.state.lock();
        let state = &mut *state;
        let own = &state.ranges[self.number];
        let next = next.filter(|next| own.end.as_ref().is_none_or(|end| next < end));
        let (from, to) = (own.at.clone(), next.clone().or_else(|| own.end.clone()));
        let merged = compactor.joined(own.merged.iter().cloned().chain(run))?;
        let others = |numbers: std::ops::Range<usize>| {
            state.ranges[numbers].iter().filter_map(|range| range.merged.clone())
        };
        let all = others(0..self.number)
            .chain(merged.clone())
            .chain(others(self.number + 1..state.ranges.len()));
        let whole = compactor.joined(all)?;
        let (dict, target) = (state.plan.dict, state.plan.level);
        let mut part = MergedPart::of(dict);
        let mut left = Vec::new();
        for input in &state.plan.inputs {
            let rest =
                part.cut(compactor, input, state.plan.level_of(input.id), &from, to.as_ref())?;
            left.extend(rest.map(|run| NumberedRun { id: input.id, run }));
        }
        match (state.result, &whole) {
            (Some(id), whole) => part.set(id, target, whole.clone()),
            (None, Some(whole)) => part.add(target, whole.clone()),
            (None, None) => {}
        }
        let mut others = state.ranges.iter().enumerate().filter(|(n, _)| *n != self.number);
        part.gathered = state.plan.gathers && next.is_none() && others.all(|(_, range)| range.done);
        let installed = compactor.install_part(part, &stats)?;
        let there = installed.is_some();
        let result =
            installed.and_then(|i| Some(NumberedRun { id: state.result.or(i.new)?, run: whole? }));
        state.plan.inputs = left;
        state.result = result.as_ref().map(|numbered| numbered.id);
        let done = next.is_none() || !there;
        let own = &mut state.ranges[self.number];
        (own.merged, own.done) = (merged, done);
        own.at = to.unwrap_or_default();
        if !there {
            self.whole.give_up();
        }
        let all_done = !there || state.ranges.iter().all(|range| range.done);
        if let Some(numbered) = result.filter(|_| all_done && target < BOTTOM) {
            // Items hidden within the inputs are dropped; the remaining share hides items below.
            let items = numbered.run.stats().items;
            let left = state.overwriting.0 - state.overwriting.1.saturating_sub(items) as f64;
            let share = left / items.max(1) as f64;
            compactor.garbage.set(state.plan.dict, numbered.id, share);
        }
        self.whole.reset_part(compactor);
        compactor.engine.counters.compactions.add(u64::from(all_done));
        compactor.compacted();
        Ok(done)
    }
}

impl Compactor {
    /// Returns the storage options for the next part of a plan. A value that updates have made long
    /// enough gets its place in a compaction, so that must know the codecs of series.
    pub(super) fn storage(&self, plan: &CompactionPlan) -> MergeOptions {
        let engine = &self.engine;
        let storage = plan.storage(&engine.zones, &engine.versions, engine.options.seek_bytes);
        let choice = engine.series.choice(plan.dict, storage.compress_values);
        MergeOptions { choice, ..storage }
    }

    /// Returns the bytes that a merge writes before it is installed. The size shrinks when little
    /// is free.
    pub(crate) fn part_size(&self) -> u64 {
        let space = self.engine.zones.space();
        let zones = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        // Keep a minimum: each cut of the inputs costs a few extra blocks.
        let room = zones.saturating_sub(LEFT).saturating_mul(ZONE_SIZE / 4 * 3).max(ZONE_SIZE / 2);
        let share = (space.zones_pinned * ZONE_SIZE / SHARE).max(PART_MIN);
        room.min(self.engine.options.merge_part).min(share)
    }
}

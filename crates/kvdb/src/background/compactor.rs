//! Assigns merges to threads. Each thread has a stack of merges in progress: a merge that becomes
//! due at a younger level goes first, so that a large merge does not let young runs pile up.
//! Threads choose plans concurrently, without a common lock during the merge, or take a
//! subcompaction of a large merge that another thread has begun. A thread that turns to a younger
//! merge leaves its subcompaction to the next idle thread. Work that must exclude merges uses
//! [`Compactor::merge_alone`]: the threads pause between two steps and abandon their merges;
//! installed parts stay.

use env::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;

use super::activity::Activity;
use super::candidates::Candidates;
use super::compaction::{Compaction, Subcompaction};
use super::garbage::GarbageEstimate;
use super::policy::{BOTTOM, CompactionLock, CompactionPlan, tight_below};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lock_order::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::version::Version;
use crate::version::tree::Tree;

/// Maximum number of merges on a thread's stack, each younger than the one before.
const DEEPEST: usize = 4;
/// Interval between checks whether readers still wait, made by a merge that is not urgent, and the
/// maximum number of such checks between two steps.
const GLANCE: Duration = Duration::from_millis(250);
const STAND_BACK: u32 = 8;

/// Merges runs, and keeps concurrent merges apart.
pub(crate) struct Compactor {
    pub(super) engine: Engine,
    activity: Arc<Activity>,
    /// The estimated share of items in runs that hide older ones.
    pub(super) garbage: Arc<GarbageEstimate>,
    pub(super) candidates: Arc<Candidates>,
    /// Held shared during a step of a merge, and exclusively by work that must exclude merges.
    pause: RwLock<()>,
    /// Incremented when all merges in progress are abandoned.
    round: AtomicU64,
    compaction_locks: Mutex<Vec<CompactionLock>>,
    next_lock: AtomicU64,
    under_way: Mutex<Vec<Arc<Compaction>>>,
    /// The merges of a store without threads.
    stack: Mutex<MergeStack>,
    /// One more than the number of free zones when a merge last failed for lack of space. 0 if the
    /// last merge found space.
    starved: AtomicU64,
}

/// The merges that one thread has in progress, or its subcompactions of them, the youngest last.
#[derive(Default)]
pub(crate) struct MergeStack {
    round: u64,
    merges: Vec<Subcompaction>,
}

impl Compactor {
    pub(super) fn new(
        engine: &Engine,
        activity: Arc<Activity>,
        garbage: Arc<GarbageEstimate>,
        candidates: Arc<Candidates>,
    ) -> Compactor {
        Compactor {
            engine: engine.clone(),
            activity,
            garbage,
            candidates,
            pause: RwLock::new(Rank::Merges, ()),
            round: AtomicU64::default(),
            compaction_locks: Mutex::default(),
            next_lock: AtomicU64::default(),
            under_way: Mutex::default(),
            stack: Mutex::default(),
            starved: AtomicU64::default(),
        }
    }

    /// Returns whether a merge into the bottom is in progress, so that the space that it will free
    /// is not known yet.
    pub(crate) fn merges_into_bottom(&self) -> bool {
        let compaction_locks = self.compaction_locks.lock();
        // The other locks belong to defragmentation.
        let merges = self.under_way.lock();
        let into_bottom = |c: &CompactionLock| c.level == BOTTOM;
        compaction_locks
            .iter()
            .any(|c| into_bottom(c) && merges.iter().any(|merge| merge.number == c.number))
    }

    /// Returns `true` if a merge would find no more space than the last one, which failed.
    pub(crate) fn starved(&self, zones_free: u64) -> bool {
        zones_free < self.starved.load(Ordering::Relaxed)
    }

    /// Returns whether a merge, or the defragmentation of a run, is in progress.
    pub(crate) fn busy(&self) -> bool {
        !self.compaction_locks.lock().is_empty()
    }

    /// Blocks [`Compactor::merge_alone`] while the guard lives.
    pub(crate) fn pausing(&self) -> RwLockReadGuard<'_, ()> {
        self.pause.read()
    }

    /// Locks the runs that `choose` returns, given the existing locks. Returns the number by which
    /// the lock is released.
    pub(crate) fn compaction_lock(
        &self,
        choose: impl FnOnce(&[CompactionLock]) -> Option<CompactionLock>,
    ) -> Option<u64> {
        let mut compaction_locks = self.compaction_locks.lock();
        let number = self.next_lock.fetch_add(1, Ordering::Relaxed);
        let compaction_lock = CompactionLock { number, ..choose(&compaction_locks)? };
        compaction_locks.push(compaction_lock);
        Some(number)
    }

    pub(crate) fn release(&self, number: u64) {
        self.compaction_locks.lock().retain(|c| c.number != number);
        self.under_way.lock().retain(|whole| whole.number != number);
    }

    /// Claims a subcompaction of the youngest merge that has unclaimed ones and takes runs from
    /// above level `above`.
    fn take(&self, above: usize) -> Option<Subcompaction> {
        let under_way = self.under_way.lock();
        let whole = under_way
            .iter()
            .filter(|whole| whole.from() < above && whole.waiting() > 0)
            .min_by_key(|whole| whole.from())?;
        whole.take()
    }

    /// Returns the most urgent compaction of runs that none of `compaction_locks` covers. If
    /// `tombstones` is set, merges that only deletions call for are included; if `any` is set,
    /// however few deletions there are. Only merges that begin at a level above `above` are
    /// considered.
    pub(crate) fn next_plan(
        &self,
        tombstones: bool,
        any: bool,
        compaction_locks: &[CompactionLock],
        above: usize,
    ) -> Option<CompactionPlan> {
        let version = self.engine.versions.load();
        let policy = self.engine.options.compaction.sane();
        // Values are gathered for the sake of scans, so not when space is short, which is when
        // `any` is set.
        if !any && let Some(plan) = self.gathering_plan(&version, compaction_locks, above) {
            return Some(plan);
        }
        let by_policy = |t: &Arc<Tree>| {
            let dead = self.garbage.dead(t);
            CompactionPlan::for_policy(t, &policy, compaction_locks, above, dead)
        };
        let candidates = self.candidates.by_policy(&version);
        let mut trees = candidates.iter().filter_map(|id| version.trees.get(id));
        if let Some(plan) = trees.find_map(by_policy) {
            return Some(plan);
        }
        if !tombstones {
            return None;
        }
        let free = |t: &&Arc<Tree>| compaction_locks.iter().all(|c| c.dict != t.info().id);
        let dead = |t: &Tree| self.garbage.dead(t);
        let quiet = |t: &Arc<Tree>| {
            CompactionPlan::for_dead(t, dead(t), &policy)
                .or_else(|| CompactionPlan::for_readers(t, &policy))
        };
        let candidates = self.candidates.when_quiet(&version);
        candidates
            .iter()
            .filter_map(|id| version.trees.get(id))
            .filter(free)
            .find_map(|t| CompactionPlan::for_tombstones(t, any).or_else(|| quiet(t)))
            .map(|plan| CompactionPlan { may_wait: !any, ..plan })
    }

    /// Returns a merge that gathers the short values of a dictionary into their blocks, if there is
    /// room for them.
    fn gathering_plan(
        &self,
        version: &Version,
        compaction_locks: &[CompactionLock],
        above: usize,
    ) -> Option<CompactionPlan> {
        let free = |t: &&Arc<Tree>| compaction_locks.iter().all(|c| c.dict != t.info().id);
        let candidates = self.candidates.outside(version);
        let trees = candidates.iter().filter_map(|id| version.trees.get(id)).filter(free);
        let plan = trees.filter_map(|t| CompactionPlan::for_short_values(t)).next()?;
        let room = plan.gathered_bytes().saturating_add(tight_below(&self.engine.zones))
            <= self.engine.zones.space().free_for_user;
        (room && plan.from() < above).then_some(plan)
    }

    /// Excludes all merges while the guard lives; those in progress are abandoned.
    pub(crate) fn merge_alone(&self) -> RwLockWriteGuard<'_, ()> {
        let alone = self.pause.write();
        self.round.fetch_add(1, Ordering::AcqRel);
        self.compaction_locks.lock().clear();
        self.under_way.lock().drain(..).for_each(|whole| whole.give_up());
        alone
    }

    /// Does one bounded step of the youngest merge of `stack`, or of a younger one that is due.
    /// Returns `false` if there is nothing to do.
    pub(crate) fn merge_step(&self, stack: &mut MergeStack) -> Result<bool> {
        let _shared = self.pause.read();
        let round = self.round.load(Ordering::Acquire);
        if std::mem::replace(&mut stack.round, round) != round {
            stack.merges.clear();
        }
        if stack.merges.len() < DEEPEST
            && let Some(younger) = self.next_subcompaction(stack)
        {
            let older = stack.merges.pop_if(|older| older.is_shared());
            stack.merges.push(younger);
            if let Some(mut older) = older {
                // Hand it back: it would pin data that the other threads have merged since.
                let left = older.hand_back(self);
                self.end(older, left.is_err());
                left?;
            }
        }
        let Some(subcompaction) = stack.merges.last_mut() else { return Ok(false) };
        let _job = subcompaction.whole().job.begin();
        let new = subcompaction.prepare(self);
        if self.engine.inline {
            subcompaction.rotate();
        } else if new.as_ref().is_ok_and(|new| *new) {
            self.engine.signals.compaction_wanted();
        }
        match new.and_then(|_| subcompaction.step(self)) {
            Ok(false) => {}
            done => {
                let starved = if matches!(done, Err(Error::NoSpace)) {
                    self.engine.zones.space().zones_free + 1
                } else {
                    0
                };
                if let Some(subcompaction) = stack.merges.pop() {
                    self.end(subcompaction, done.is_err());
                }
                self.starved.store(starved, Ordering::Relaxed);
                done?;
            }
        }
        Ok(true)
    }

    /// Returns the first subcompaction of a merge that is due and younger than all of `stack`, or a
    /// subcompaction of a merge in progress.
    fn next_subcompaction(&self, stack: &MergeStack) -> Option<Subcompaction> {
        let (tombstones, above) = match stack.merges.last() {
            None => (self.activity.is_quiet(), usize::MAX),
            Some(subcompaction) => (false, subcompaction.from()),
        };
        let mut compaction_locks = self.compaction_locks.lock();
        match self.next_plan(tombstones, false, &compaction_locks, above) {
            Some(plan) => {
                let number = self.next_lock.fetch_add(1, Ordering::Relaxed);
                let (subcompaction, compaction_lock) = Compaction::begin(self, plan, number);
                compaction_locks.push(compaction_lock);
                self.under_way.lock().push(subcompaction.whole().clone());
                Some(subcompaction)
            }
            None => self.take(above),
        }
    }

    /// Yields to readers that wait for a disk's seeks if the youngest merge of `stack` is not
    /// urgent, for a bounded time and until a younger merge is wanted.
    fn stand_back(&self, stack: &MergeStack) {
        let may_wait = stack.merges.last().is_some_and(|merge| merge.whole().may_wait);
        let mut left = STAND_BACK;
        while left > 0
            && may_wait
            && !self.engine.signals.stopping()
            && self.activity.readers_wait()
        {
            let mut wanted = self.engine.signals.wanted.lock();
            let before = wanted.compaction;
            self.engine.signals.wake_compaction.wait_for(&mut wanted, GLANCE);
            if wanted.compaction != before {
                return;
            }
            left -= 1;
        }
    }

    /// Ends a thread's work on a subcompaction.
    fn end(&self, subcompaction: Subcompaction, failed: bool) {
        let number = subcompaction.whole().number;
        if subcompaction.leave(failed) {
            self.release(number);
        }
    }

    /// Does up to `steps` bounded steps of compaction, for a store without threads. Returns `false`
    /// if there is nothing to do.
    pub(crate) fn compaction_steps(&self, steps: usize) -> Result<bool> {
        let mut stack = self.stack.lock();
        for done in 0..steps {
            if !self.merge_step(&mut stack)? {
                return Ok(done > 0);
            }
        }
        Ok(true)
    }

    /// Updates the counters after a merge, and retries a flush that was blocked for lack of space.
    pub(super) fn compacted(&self) {
        self.candidates.count_runs(&self.engine.versions.load(), &self.engine.counters);
        if self.engine.signals.blocked() {
            self.engine.signals.flush_wanted();
        }
    }

    /// Returns whether no merge is in progress or due.
    pub(crate) fn at_rest(&self) -> bool {
        !self.busy()
            && self.next_plan(true, false, &[], usize::MAX).is_none()
            && self.short_values_at_rest()
    }

    /// Runs a merge thread, of which there may be several.
    pub(crate) fn compaction_loop(&self) {
        let mut failed = false;
        let mut seen = 0;
        let mut stack = MergeStack::default();
        loop {
            {
                let mut wanted = self.engine.signals.wanted.lock();
                while wanted.compaction == seen && !self.engine.signals.stopping() && !failed {
                    self.engine.signals.wake_compaction.wait(&mut wanted);
                }
                if failed && !self.engine.signals.stopping() {
                    self.engine
                        .signals
                        .wake_compaction
                        .wait_for(&mut wanted, Duration::from_secs(5));
                }
                seen = wanted.compaction;
            }
            failed = false;
            loop {
                if self.engine.signals.stopping() {
                    return;
                }
                self.stand_back(&stack);
                match self.merge_step(&mut stack) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) if self.engine.health.failed() => return,
                    Err(e) => {
                        tracing::warn!("a merge failed and will be tried again: {e}");
                        failed = true;
                        break;
                    }
                }
            }
        }
    }
}

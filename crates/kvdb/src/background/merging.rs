//! Who merges. Each thread has a stack of merges under way: one that becomes due at a younger level
//! goes first, so that a large merge does not let the young runs pile up; parallel threads take
//! plans without a lock, or a subcompaction of a large merge that another one has begun. A thread
//! that turns to a younger merge leaves its subcompaction to the next idle thread. Work that must
//! not find a merge under way goes through [`Database::merge_alone`]: the threads pause between two
//! steps, and give up what they had begun; what of it is installed stays.

use env::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use env::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::compaction::{Compaction, Subcompaction};
use super::garbage::GarbageEstimate;
use super::policy::{BOTTOM, CompactionLock, CompactionPlan};
use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::read::version::Tree;

/// Merges that a thread has under way at most, each younger than the one before.
const DEEPEST: usize = 4;

#[derive(Default)]
pub(crate) struct Merging {
    /// Shared for a step of a merge; alone by work that must not find one.
    gate: RwLock<()>,
    /// Changes when all merges under way are given up.
    round: AtomicU64,
    compaction_locks: Mutex<Vec<CompactionLock>>,
    next_lock: AtomicU64,
    under_way: Mutex<Vec<Arc<Compaction>>>,
    /// Of a store without threads.
    pub inline: Mutex<MergeStack>,
    /// One more than the zones that were free when a merge last found no space for it; 0: it found
    /// some.
    starved: AtomicU64,
    /// What runs hide of older ones.
    pub garbage: GarbageEstimate,
}

/// The merges that one thread has under way, or its pieces of them, the youngest last.
#[derive(Default)]
pub(crate) struct MergeStack {
    round: u64,
    merges: Vec<Subcompaction>,
}

impl Merging {
    /// A merge into the bottom is under way: what it leaves behind is not known yet.
    pub(crate) fn below(&self) -> bool {
        self.compaction_locks.lock().iter().any(|c| c.level == BOTTOM && c.runs.len() > 1)
    }

    /// `true` when a merge would find no more space than the last one, which found too little.
    pub(crate) fn starved(&self, zones_free: u64) -> bool {
        zones_free < self.starved.load(Ordering::Relaxed)
    }

    /// A merge, or the defragmentation of a run, is under way.
    pub(crate) fn busy(&self) -> bool {
        !self.compaction_locks.lock().is_empty()
    }

    /// Keeps [`Database::merge_alone`] waiting.
    pub(crate) fn pausing(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// Locks the runs that `choose` names, given those that are locked already; the number to
    /// release them by.
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

    /// An unclaimed subcompaction of the youngest merge that has any and takes runs from above
    /// level `above`.
    fn take(&self, above: usize) -> Option<Subcompaction> {
        let under_way = self.under_way.lock();
        let whole = under_way
            .iter()
            .filter(|whole| whole.from() < above && whole.waiting() > 0)
            .min_by_key(|whole| whole.from())?;
        whole.take()
    }
}

impl Database {
    /// The most pressing compaction of runs without one of `compaction_locks`. `tombstones`: also
    /// those that only deletions call for; `any`: however few they are. `above`: only those that
    /// begin at a level above this one.
    pub(crate) fn next_plan(
        &self,
        tombstones: bool,
        any: bool,
        compaction_locks: &[CompactionLock],
        above: usize,
    ) -> Option<CompactionPlan> {
        let version = self.versions.load();
        let shape = self.options.compaction.sane();
        let shapes = version.trees.values().filter_map(|t| {
            Some((
                t.levels.first().map_or(0, Vec::len),
                CompactionPlan::for_policy(
                    t,
                    &shape,
                    compaction_locks,
                    above,
                    self.merging.garbage.dead(t),
                )?,
            ))
        });
        if let Some((_, plan)) = shapes.max_by_key(|(runs, _)| *runs) {
            return Some(plan);
        }
        if !tombstones {
            return None;
        }
        let free = |t: &&std::sync::Arc<Tree>| compaction_locks.iter().all(|c| c.dict != t.info.id);
        let dead = |t: &Tree| self.merging.garbage.dead(t);
        let quiet = |t: &std::sync::Arc<Tree>| {
            CompactionPlan::for_dead(t, dead(t), &shape)
                .or_else(|| CompactionPlan::for_readers(t, &shape))
        };
        version
            .trees
            .values()
            .filter(free)
            .find_map(|t| CompactionPlan::for_tombstones(t, any).or_else(|| quiet(t)))
    }

    /// Keeps all merges from going on; those under way are given up.
    pub(crate) fn merge_alone(&self) -> RwLockWriteGuard<'_, ()> {
        let gate = self.merging.gate.write();
        self.merging.round.fetch_add(1, Ordering::AcqRel);
        self.merging.compaction_locks.lock().clear();
        self.merging.under_way.lock().drain(..).for_each(|whole| whole.give_up());
        gate
    }

    /// One bounded step of the youngest merge of `stack`, or of one that is due. `false`: there is
    /// nothing to do.
    pub(crate) fn merge_step(&self, stack: &mut MergeStack) -> Result<bool> {
        let _shared = self.merging.gate.read();
        let round = self.merging.round.load(Ordering::Acquire);
        if std::mem::replace(&mut stack.round, round) != round {
            stack.merges.clear();
        }
        if stack.merges.len() < DEEPEST
            && let Some(younger) = self.next_piece(stack)
        {
            let older = stack.merges.pop_if(|older| older.is_shared());
            stack.merges.push(younger);
            if let Some(mut older) = older {
                // It would keep what the others have merged since.
                let left = older.hand_back(self);
                self.end(older, left.is_err());
                left?;
            }
        }
        let Some(piece) = stack.merges.last_mut() else { return Ok(false) };
        let new = piece.prepare(self);
        if self.inline() {
            piece.turn();
        } else if new.as_ref().is_ok_and(|new| *new) {
            self.signals.compaction_wanted();
        }
        match new.and_then(|_| piece.step(self)) {
            Ok(false) => {}
            done => {
                let starved = if matches!(done, Err(Error::NoSpace)) {
                    self.zones.space().zones_free + 1
                } else {
                    0
                };
                if let Some(piece) = stack.merges.pop() {
                    self.end(piece, done.is_err());
                }
                self.merging.starved.store(starved, Ordering::Relaxed);
                done?;
            }
        }
        Ok(true)
    }

    /// A merge that is due and goes before all of `stack`, or a piece of one.
    fn next_piece(&self, stack: &MergeStack) -> Option<Subcompaction> {
        let (tombstones, above) = match stack.merges.last() {
            None => (self.is_quiet(), usize::MAX),
            Some(piece) => (false, piece.from()),
        };
        let mut compaction_locks = self.merging.compaction_locks.lock();
        match self.next_plan(tombstones, false, &compaction_locks, above) {
            Some(plan) => {
                let number = self.merging.next_lock.fetch_add(1, Ordering::Relaxed);
                let (piece, compaction_lock) = Compaction::begin(self, plan, number);
                compaction_locks.push(compaction_lock);
                self.merging.under_way.lock().push(piece.whole().clone());
                Some(piece)
            }
            None => self.merging.take(above),
        }
    }

    /// A thread has finished a subcompaction.
    fn end(&self, piece: Subcompaction, failed: bool) {
        let number = piece.whole().number;
        if piece.leave(failed) {
            self.merging.release(number);
        }
    }
}

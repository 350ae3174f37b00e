//! Write pressure: the backpressure on commits that would add to the debt of flushes and merges.
//! Delays begin early, are short, and grow with the square of the debt, far beyond its normal
//! maximum if merges cannot keep up: otherwise runs would accumulate as long as writes are faster
//! than merges, and each read probes every run. A commit waits only when memory would exceed its
//! budget. A commit of data is refused when a flush of everything committed could no longer find
//! room, so that no acknowledged data can be lost to a full store; deletions are admitted.

use env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use super::{Compactor, Defragmenter, Flusher};
use crate::commit::{Applied, CommitEnv, CommitSize, Committer, SpaceClaim};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lock_order::{Mutex, Rank};
use crate::manifest::Edit;
use crate::options::Shares;
use crate::version::version_set::VersionEdit;

/// Nanoseconds of delay per byte when the debt is at its limit: 20 MB/s.
const SLOWEST: f64 = 50.0;
/// The debt at which delays stop growing: 1.25 MB/s, slower than merges on any disk.
const DEEPEST: f64 = 16.0;
/// Delays are accumulated up to this many nanoseconds before a thread sleeps, since the overhead of
/// shorter sleeps exceeds their length.
const WORTH_SLEEPING: u64 = 300_000;
/// The longest single sleep, nanoseconds.
const LONGEST: u64 = 20_000_000;
/// Dead bytes for each hundred live bytes from which writers are slowed down, and at which they are
/// slowest. Both are above the level that merges at their normal pace maintain.
const DEAD_FROM: usize = 75;
const DEAD_TO: usize = 300;
/// Bytes that commits may add before the space is checked again.
const LOOK_AGAIN: u64 = 4 << 20;

/// A commit that was refused after its large values had been written.
#[derive(Clone, Copy)]
struct Refused {
    /// See [`Admission::state`].
    state: (u64, u64),
    /// The space that was free for users afterwards, bytes.
    free: u64,
    size: CommitSize,
}

/// Decides when a commit may proceed, and starts the work that commits make due.
pub(crate) struct Admission {
    pub(super) engine: Engine,
    shares: Shares,
    commits: Arc<Committer>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) compactor: Arc<Compactor>,
    pub(super) defragmenter: Arc<Defragmenter>,
    /// Held by the thread that reclaims space.
    reclaiming: Mutex<()>,
    /// Set while a thread reclaims space.
    searching: AtomicBool,
    /// The newest commit, and the number of the version, when space was last searched in vain.
    searched: (AtomicU64, AtomicU64),
    /// The last commit that was refused after its large values had been written.
    refused: env::sync::Mutex<Option<Refused>>,
    /// Delays that commits owe and have not yet slept.
    owed_nanos: AtomicU64,
    /// Bytes that commits may still add before the space is checked again.
    space_left: AtomicU64,
}

impl Admission {
    pub(super) fn new(
        engine: &Engine,
        commits: Arc<Committer>,
        flusher: Arc<Flusher>,
        compactor: Arc<Compactor>,
        defragmenter: Arc<Defragmenter>,
    ) -> Admission {
        Admission {
            engine: engine.clone(),
            shares: Shares::of(&engine.options),
            commits,
            flusher,
            compactor,
            defragmenter,
            reclaiming: Mutex::new(Rank::Reclaiming, ()),
            searching: AtomicBool::new(false),
            searched: (AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)),
            refused: env::sync::Mutex::default(),
            owed_nanos: AtomicU64::new(0),
            space_left: AtomicU64::new(0),
        }
    }

    /// Returns the debt: 0 if there is nothing to do, 1 at the intended maximum, more if there are
    /// too many young runs.
    fn debt(&self) -> f64 {
        let part = |value, from, to| square(value, from, to).min(1.0);
        let memory =
            part(self.commits.pressing_bytes(), self.shares.memtables / 2, self.shares.memtables);
        let fan = self.engine.options.compaction.sane().runs_per_level;
        let runs = debt_of_runs(self.engine.counters.young_runs.get() as usize, fan);
        let dead = part(self.engine.counters.dead_percent.get() as usize, DEAD_FROM, DEAD_TO);
        let log = &self.commits.log;
        let deferred = part(log.deferred_bytes(), log.window(), log.most_deferred());
        memory.max(runs).max(dead).max(deferred)
    }

    /// Waits until another `bytes` of deferred values may be added.
    fn admit_deferred(&self, bytes: usize) -> Result<()> {
        let full = || {
            let waiting = self.commits.log.deferred_bytes();
            waiting > 0 && waiting + bytes > self.commits.log.most_deferred()
        };
        if !full() {
            return Ok(());
        }
        self.engine.counters.stops.add(1);
        let mut asked = false;
        while full() {
            self.engine.health.writable()?;
            // The journal's thread makes room for a window of values. A commit with more of them
            // relies on the bound of held values, which falls while memtables grow, and when syncs
            // are expected.
            let window = self.shares.window.min(self.commits.log.window());
            if std::mem::replace(&mut asked, true) && bytes > window {
                match self.commits.log.write_out() {
                    Ok(_) | Err(Error::NoSpace) => {}
                    Err(e) => return Err(e),
                }
            }
            self.engine.signals.journal_wanted(None);
            self.engine.signals.wait_for_memory(Duration::from_millis(100), full);
            if full() && self.engine.signals.blocked() {
                return Err(Error::NoSpace);
            }
        }
        Ok(())
    }

    /// Returns whether flushes are too slow for commits that place large values: the values that
    /// these overwrite then take as much space as the live data.
    fn holds_too_much(&self) -> bool {
        let held = self.engine.versions.load().generation.held_by_all();
        held > 3 * self.engine.counters.most_held() && self.commits.newest_sealed().is_some()
    }

    fn admit_memory(&self, bytes: usize, deletes_only: bool) -> Result<()> {
        let full = || {
            let memory = self.commits.memtable_bytes() + bytes > self.shares.memtables
                && self.commits.sealed_bytes() > 0;
            memory
                || self.engine.counters.journal_device.get() > 2 * self.shares.journal_device
                || self.holds_too_much()
        };
        if !full() {
            return Ok(());
        }
        self.engine.counters.stops.add(1);
        while full() {
            self.engine.health.writable()?;
            if self.engine.signals.blocked() {
                // Deletions free space, so they may use a little more memory than the limit.
                let limit = self.shares.memtables + self.shares.memtables / 8;
                if deletes_only && self.commits.memtable_bytes() + bytes < limit {
                    break;
                }
                return Err(Error::NoSpace);
            }
            if self.commits.newest_sealed().is_none() {
                // The journal is too long, but its data is not sealed yet.
                self.commits.seal(self.engine.versions.load().generation.number)?;
            }
            self.engine.signals.wait_for_memory(Duration::from_millis(100), full);
        }
        Ok(())
    }

    fn admit_space(&self, bytes: u64, claim: SpaceClaim) -> Result<()> {
        let spend = |left: u64| left.checked_sub(bytes);
        if self.space_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
            return Ok(());
        }
        // Taken before the look, which then sees what a search has freed that ends now.
        let (state, in_vain) = (self.state(), self.is_searched());
        if self.look_at_space(bytes, claim) {
            return Ok(());
        }
        // A program may retry in a full store as often as it likes: until something has changed, a
        // refused commit costs this look. It neither waits for the journal nor writes or flushes.
        if in_vain {
            // Other refused commits may have reserved zones.
            let returned = self.commits.log.try_return_reserved_zones();
            return match returned && self.look_at_space(bytes, claim) {
                true => Ok(()),
                false => Err(Error::NoSpace),
            };
        }
        // Values that are held count as data that a flush has yet to write, until they are placed,
        // which costs less than a search for space.
        if self.place_held() && self.look_at_space(bytes, claim) {
            return Ok(());
        }
        match self.want_space() && self.look_at_space(bytes, claim) {
            true => Ok(()),
            false => {
                self.searched.0.store(state.0, Ordering::Relaxed);
                self.searched.1.store(state.1, Ordering::Relaxed);
                Err(Error::NoSpace)
            }
        }
    }

    /// Returns the number of the newest commit and that of the version. Both only grow.
    fn state(&self) -> (u64, u64) {
        let versions = &self.engine.versions;
        (versions.visible.load(Ordering::Acquire), versions.load().installed)
    }

    /// Returns whether a search for space would find what the last one has found: nothing was
    /// committed, deleted or flushed since, and no search is under way.
    fn is_searched(&self) -> bool {
        let (commit, version) = &self.searched;
        self.is_all_found()
            && self.state() == (commit.load(Ordering::Relaxed), version.load(Ordering::Relaxed))
    }

    /// Returns whether all space that could be reclaimed was searched for, and no search is under
    /// way.
    fn is_all_found(&self) -> bool {
        // A search clears this flag after it has set `searching`.
        let reclaimable = self.engine.signals.reclaimable.load(Ordering::Acquire);
        !reclaimable && !self.searching.load(Ordering::Acquire)
    }

    /// Searches for space, in the one thread that does.
    fn search(&self) -> bool {
        if let Err(e) = self.forget_undoable() {
            tracing::warn!("commits that can be undone keep their space: {e}");
        }
        // Search only once after each deletion or flush, so that a store full of live data is not
        // searched repeatedly.
        if !self.engine.signals.reclaimable.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.place_held();
        match self.reclaim() {
            Ok(true) => self.engine.signals.reclaimable.store(true, Ordering::Release),
            Ok(false) => {}
            Err(e) => tracing::warn!("no space could be made free: {e}"),
        }
        true
    }

    fn look_at_space(&self, bytes: u64, claim: SpaceClaim) -> bool {
        let space = self.engine.zones.space();
        let free = space.free_for_user.saturating_sub(self.flusher.unflushed_bytes());
        // `space_left` never includes promised space, as `free_for_user` excludes it. When that
        // space is exhausted, a batch with a promise may still use up to the promised amount.
        let left = free.checked_sub(bytes);
        self.space_left.store(left.map_or(0, |left| (left / 4).min(LOOK_AGAIN)), Ordering::Relaxed);
        left.is_some() || claim.promised && bytes <= space.promised
    }

    /// Drops the snapshots around commits: no commit made so far can be undone any more.
    fn forget_undoable(&self) -> Result<()> {
        if self.engine.snapshots.around_commits().is_empty() {
            return Ok(());
        }
        self.commits.flush_before_edit(self)?;
        // Snapshots that wait for this flush are in the manifest afterwards.
        self.flusher.flush_sealed()?;
        let naming = self.engine.snapshots.naming.lock();
        if self.engine.snapshots.next_pending().is_some() {
            return Ok(());
        }
        let pairs = self.engine.snapshots.around_commits();
        let names = pairs.iter().flatten().map(|snapshot| snapshot.label.name.clone());
        self.commits.install(|_| VersionEdit::of(names.map(Edit::DropSnapshot)))?;
        drop(naming);
        // Release their runs outside of all locks.
        drop(pairs);
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        Ok(())
    }

    /// Logs background work that failed. The commit that ran it has not failed: the work is
    /// retried, and if the store has stopped, the next commit returns the error.
    fn warn_of_failed_work<T>(result: Result<T>) {
        if let Err(e) = result {
            tracing::warn!("background work failed and will be tried again: {e}");
        }
    }
}

/// Background work provides the services that commits need of the engine.
impl CommitEnv for Admission {
    fn admit(&self, bytes: usize, deferred: usize, claim: SpaceClaim) -> Result<()> {
        if !claim.removes {
            self.admit_space(bytes as u64, claim)?;
        }
        if self.engine.inline {
            return Ok(());
        }
        self.admit_memory(bytes, claim.removes)?;
        if deferred > 0 {
            self.admit_deferred(deferred)?;
        }
        let owed = (self.debt() * SLOWEST * bytes as f64) as u64;
        if owed > 0 {
            let before = self.owed_nanos.fetch_add(owed, Ordering::Relaxed);
            if before + owed >= WORTH_SLEEPING {
                // The part that exceeds one sleep is left to the next commits.
                let owed = self.owed_nanos.swap(0, Ordering::Relaxed);
                self.owed_nanos.fetch_add(owed.saturating_sub(LONGEST), Ordering::Relaxed);
                let pause = Duration::from_nanos(owed.min(LONGEST));
                self.engine.counters.delays.add(1);
                self.engine.counters.delayed_micros.add(pause.as_micros() as u64);
                env::thread::sleep(pause);
            }
        }
        Ok(())
    }

    fn want_space(&self) -> bool {
        let Some(_one) = self.reclaiming.try_lock() else {
            // Another thread is reclaiming: wait for it, then check again.
            drop(self.reclaiming.lock());
            return true;
        };
        self.searching.store(true, Ordering::Release);
        let searched = self.search();
        self.searching.store(false, Ordering::Release);
        searched
    }

    fn place_held(&self) -> bool {
        let log = &self.commits.log;
        let held = log.holds() && log.deferred_bytes() > 0;
        if held {
            Self::warn_of_failed_work(log.write_out());
        }
        let given_back = log.return_reserved_zones();
        held || given_back
    }

    fn was_refused(&self, size: CommitSize, claim: SpaceClaim) -> bool {
        if claim.removes || claim.promised || !self.is_all_found() {
            return false;
        }
        let Some(last) = *self.refused.lock() else { return false };
        size.large >= last.size.large
            && size.all >= last.size.all
            && self.state() == last.state
            && self.engine.zones.space().free_for_user <= last.free
    }

    fn note_refused(&self, size: CommitSize, claim: SpaceClaim) {
        if !claim.removes && !claim.promised {
            let (state, free) = (self.state(), self.engine.zones.space().free_for_user);
            *self.refused.lock() = Some(Refused { state, free, size });
        }
    }

    fn flush_all(&self) -> Result<()> {
        self.flusher.flush_all()
    }

    /// Requests the work that is due, or does it directly if the store has no threads.
    fn after_commit(&self, applied: Applied) -> Result<()> {
        let long = self.engine.counters.journal_device.get() > self.shares.journal_device;
        let tight = self.commits.log.take_journal_tight();
        let mut seal = applied.seal;
        if (tight || long) && self.commits.newest_sealed().is_none() {
            seal = Some(self.engine.versions.load().generation.number);
        }
        let write = self.commits.log.has_gathered(&applied);
        if !self.engine.inline {
            if write || seal.is_some() {
                self.engine.signals.journal_wanted(seal);
            }
            let written = if applied.pending >= self.shares.journal_buffer {
                self.commits.log.write_buffer()
            } else if self.commits.log.leaves_much(&applied) {
                self.commits.log.write_gathered()
            } else {
                Ok(())
            };
            return match written {
                // If there is no space, the data stays in memory until there is some.
                Err(Error::NoSpace) => Ok(()),
                written => written,
            };
        }
        if write {
            // If there is no space, the data stays in memory until there is some.
            Self::warn_of_failed_work(self.commits.log.write_gathered());
        }
        if let Some(generation) = seal {
            Self::warn_of_failed_work(self.commits.seal(generation));
        }
        if tight
            || long
            || self.commits.memtable_bytes() > self.shares.memtables
            || self.holds_too_much()
        {
            Self::warn_of_failed_work(self.flusher.flush_sealed());
        }
        let runs = self.engine.counters.young_runs.get() as usize
            >= 4 * self.engine.options.compaction.sane().runs_per_level;
        if runs && !self.compactor.starved(self.engine.zones.space().zones_free) {
            Self::warn_of_failed_work(self.compactor.compaction_steps(usize::MAX));
        }
        Ok(())
    }
}

/// Returns the square of the position of `value` between two bounds: 0 up to `from`, 1 at `to`.
fn square(value: usize, from: usize, to: usize) -> f64 {
    let x = value.saturating_sub(from) as f64 / (to - from) as f64;
    x * x
}

/// Returns the debt of `runs` at the youngest level, where `fan` of them make a merge due: 1 at
/// four times as many, and more above, so that writes slow down to the speed of merges.
fn debt_of_runs(runs: usize, fan: usize) -> f64 {
    square(runs, fan + fan / 2, 4 * fan).min(DEEPEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_slow_writers_down_the_more_the_more_there_are() {
        let fan = 8;
        assert_eq!(debt_of_runs(12, fan), 0.0);
        assert_eq!(debt_of_runs(32, fan), 1.0);
        assert!((13..90).all(|runs| debt_of_runs(runs, fan) < debt_of_runs(runs + 1, fan)));
        assert_eq!(debt_of_runs(10_000, fan), DEEPEST);
    }
}

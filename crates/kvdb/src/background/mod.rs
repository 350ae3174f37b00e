//! Background work: threads for the clock, the journal, flushes, merges and defragmentation, or,
//! without threads, [`Database::step`], which does one bounded unit of it. Nothing is decided here:
//! what a thread does is what a step does.

pub(crate) mod compaction;
pub(crate) mod defragment;
pub(crate) mod flush;
mod garbage;
pub(crate) mod merging;
mod part;
pub(crate) mod policy;
mod pressure;
mod ranged;
mod reclaim;

use env::sync::atomic::{AtomicU64, Ordering};
use env::thread::JoinHandle;
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;

pub(crate) use defragment::Defragmenter;
use garbage::Garbage;
use merging::MergeStack;
pub(crate) use merging::Merging;

use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::signals::Signals;

/// Zones that go back to the host at an interval under load, at most.
const GIVE_BACK: usize = 16;
/// A failed flush is tried this often before the store stops taking writes.
const ATTEMPTS: u32 = 5;

pub(crate) struct Background {
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Nanoseconds of the clock at its last tick.
    last_tick: AtomicU64,
    /// Commits seen at the last tick, and since when there was none.
    quiet: Mutex<(u64, Duration)>,
}

impl Background {
    pub(crate) fn new(now: Duration) -> Background {
        Background {
            threads: Mutex::default(),
            last_tick: AtomicU64::new(now.as_nanos() as u64),
            quiet: Mutex::new((0, now)),
        }
    }

    /// Ends all threads.
    pub(crate) fn stop(&self, signals: &Signals) {
        signals.stop_soon();
        signals.wake_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a background thread has panicked");
            }
        }
    }
}

impl Database {
    /// Starts the threads, if this store has any.
    pub(crate) fn start_threads(self: &Arc<Self>) -> Result<()> {
        if self.inline() || self.options.read_only {
            return Ok(());
        }
        let mut threads = self.background.threads.lock();
        type Work = (&'static str, fn(&Database));
        let merge: Work = ("kvdb-merge", Database::compaction_loop);
        let mut loops: Vec<Work> = vec![
            ("kvdb-clock", Database::clock_loop),
            ("kvdb-journal", Database::journal_loop),
            ("kvdb-flush", Database::flush_loop),
            ("kvdb-defrag", Database::defragment_loop),
        ];
        loops.extend(std::iter::repeat_n(merge, self.options.merge_threads()));
        for (name, work) in loops {
            let db = self.clone();
            let run = move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&db)));
                if outcome.is_err() {
                    // A bug in the program: no caller may wait for this thread's work any more.
                    db.health
                        .fail("background work", &Error::Invalid(format!("{name} has panicked")));
                    db.signals.memory_is_free();
                }
            };
            threads.push(env::thread::Builder::new().name(name.into()).spawn(run)?);
        }
        drop(threads);
        // So that the first synced commits find their space allocated as well.
        self.commits.prepare_segment()
    }

    fn clock_loop(&self) {
        loop {
            let mut wanted = self.signals.wanted.lock();
            if self.signals.stopping() {
                return;
            }
            self.signals.wake_clock.wait_for(&mut wanted, self.options.flush_interval);
            drop(wanted);
            if self.signals.stopping() {
                return;
            }
            if let Err(e) = self.tick() {
                tracing::warn!("work at the interval failed: {e}");
            }
            if self.health.failed() {
                return;
            }
        }
    }

    fn journal_loop(&self) {
        loop {
            let seal = {
                let mut wanted = self.signals.wanted.lock();
                while !wanted.journal && !self.signals.stopping() {
                    self.signals.wake_journal.wait(&mut wanted);
                }
                wanted.journal = false;
                self.signals.journal_asked.store(false, Ordering::Release);
                wanted.seal
            };
            if self.signals.stopping() || self.health.failed() {
                return;
            }
            let values = self.commits.deferred_bytes.load(Ordering::Relaxed) > 0;
            let written = match seal {
                Some(generation) => self.commits.seal(generation),
                None => self.commits.write_out().map(|_| ()),
            };
            {
                let mut wanted = self.signals.wanted.lock();
                if wanted.seal == seal {
                    wanted.seal = None;
                }
            }
            let prepare = || {
                if values {
                    self.commits.reserve_zones_ahead()?;
                    self.seal_what_holds_much(false)?;
                }
                self.commits.prepare_segment()
            };
            let done = written.and_then(|()| prepare());
            self.signals.memory_is_free();
            match done {
                Ok(()) => {}
                Err(Error::NoSpace) => {
                    // Commits are told. What was deleted may make room.
                    self.signals.blocked.store(true, Ordering::Release);
                    self.want_space();
                }
                Err(e) => tracing::warn!("writing the journal out failed: {e}"),
            }
        }
    }

    fn flush_loop(&self) {
        let mut failures = 0u32;
        loop {
            {
                let mut wanted = self.signals.wanted.lock();
                while !wanted.flush && !self.signals.stopping() && failures == 0 {
                    self.signals.wake_flush.wait(&mut wanted);
                }
                if failures > 0 && !self.signals.stopping() {
                    // A failed flush is tried again after a while, or as soon as space came back.
                    let pause = Duration::from_millis(50) * (1 << failures.min(5));
                    self.signals.wake_flush.wait_for(&mut wanted, pause);
                }
                wanted.flush = false;
            }
            if self.signals.stopping() {
                return;
            }
            let result = self.flush_sealed();
            self.signals.blocked.store(matches!(result, Err(Error::NoSpace)), Ordering::Release);
            match result {
                Ok(_) => failures = 0,
                Err(e) => {
                    failures += 1;
                    tracing::warn!("a flush failed and will be tried again: {e}");
                    if failures >= ATTEMPTS && !matches!(e, Error::NoSpace) {
                        self.health.fail("flushing", &e);
                        return;
                    }
                }
            }
            self.signals.memory_is_free();
        }
    }

    fn compaction_loop(&self) {
        let mut failed = false;
        let mut seen = 0;
        let mut stack = MergeStack::default();
        loop {
            {
                let mut wanted = self.signals.wanted.lock();
                while wanted.compaction == seen && !self.signals.stopping() && !failed {
                    self.signals.wake_compaction.wait(&mut wanted);
                }
                if failed && !self.signals.stopping() {
                    self.signals.wake_compaction.wait_for(&mut wanted, Duration::from_secs(5));
                }
                seen = wanted.compaction;
            }
            failed = false;
            loop {
                if self.signals.stopping() {
                    return;
                }
                match self.merge_step(&mut stack) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) if self.health.failed() => return,
                    Err(e) => {
                        tracing::warn!("a merge failed and will be tried again: {e}");
                        failed = true;
                        break;
                    }
                }
            }
        }
    }

    /// Up to `steps` bounded steps of compaction, for a store without threads. `false`: there is
    /// nothing to do.
    pub(crate) fn compaction_steps(&self, steps: usize) -> Result<bool> {
        let mut stack = self.merging.inline.lock();
        for done in 0..steps {
            if !self.merge_step(&mut stack)? {
                return Ok(done > 0);
            }
        }
        Ok(true)
    }

    /// `true` when no commit came for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        let (_, since) = *self.background.quiet.lock();
        self.now().saturating_sub(since) >= self.options.idle_flush.min(Duration::from_secs(2))
    }

    /// The caller has flushed by hand, and so expects no more commits for a while: what is put off
    /// until the store is quiet is done soon.
    pub(crate) fn tidy_soon(&self) {
        if !self.inline() {
            let idle = self.options.idle_flush.max(Duration::from_secs(2));
            *self.background.quiet.lock() =
                (self.counters.commits.get(), self.now().saturating_sub(idle));
            self.signals.wake_clock.notify_one();
        }
    }

    /// Nothing is left that the background would do by itself, unless something is committed.
    pub(crate) fn at_rest(&self) -> bool {
        let merges =
            || !self.merging.busy() && self.next_plan(true, false, &[], usize::MAX).is_none();
        let space = || {
            self.zones.spare() == 0 && !self.defragmenter.progress().running && !self.holes_due()
        };
        self.commits.sealed.lock().is_empty()
            && !self.signals.deletions.load(Ordering::Acquire)
            && merges()
            && space()
    }

    /// What falls due with time.
    pub(crate) fn tick(&self) -> Result<()> {
        let now = self.now();
        self.background.last_tick.store(now.as_nanos() as u64, Ordering::Relaxed);
        {
            let commits = self.counters.commits.get();
            let mut quiet = self.background.quiet.lock();
            if quiet.0 != commits {
                *quiet = (commits, now);
            }
        }
        self.transactions.end_idle(now);
        self.sweep_logs()?;
        self.commits.sync_and_mark()?;
        match self.commits.prepare_segment() {
            // Commits take one from what is set aside, when they must.
            Ok(()) | Err(Error::NoSpace) => {}
            Err(e) => return Err(e),
        }
        self.look_for_holes();
        self.seal_what_holds_much(true)?;
        // What a burst of work took and was not needed since; little at once, since it is the
        // device that writers wait for.
        self.zones.give_back_idle(GIVE_BACK)?;
        let (_, since) = *self.background.quiet.lock();
        if now.saturating_sub(since) >= self.options.idle_flush {
            self.signals.compaction_wanted();
            self.commits.value_buffers.lock().keep(0);
            self.commits.return_reserved_zones();
            if self.signals.deletions.swap(false, Ordering::AcqRel) {
                let flushed = self.flush_all();
                if flushed.is_err() {
                    self.signals.deletions.store(true, Ordering::Release);
                }
                flushed?;
            }
            self.zones.give_back()?;
            self.versions.load().generation.release_idle_memory();
        }
        Ok(())
    }

    /// Values that were overwritten stay until the flush of their generation: one that has made a
    /// good part of the store's values dead is flushed, however small its memtables are. `in_time`:
    /// also one that holds much, since a sample sees little of what was overwritten before it was
    /// flushed at all.
    fn seal_what_holds_much(&self, in_time: bool) -> Result<()> {
        const LEAST: u64 = 64 << 20;
        const MOST: u64 = 256 << 20;
        // No reader asks a memtable for less: what newer versions hide there may be forgotten as
        // others come.
        let floor =
            self.versions.read_snapshots.floor(self.versions.visible.load(Ordering::Acquire));
        let version = self.versions.load_full();
        for layer in version.trees.values().filter_map(|t| t.layers.first()) {
            layer.memtable.set_floor(floor);
        }
        let held = version.generation.held();
        let live = self.holes().live;
        if held < LEAST || !self.commits.sealed.lock().is_empty() {
            return Ok(());
        }
        if in_time && held > MOST.max(live / 5)
            || self.garbage_of_active()? > LEAST.max((live + held) / 10)
        {
            self.commits.seal(version.generation.number)?;
        }
        Ok(())
    }

    /// One bounded unit of background work. `false`: there is nothing to do.
    pub(crate) fn step(&self) -> Result<bool> {
        self.writable()?;
        let since = self.now().as_nanos() as u64
            - self.background.last_tick.load(Ordering::Relaxed).min(self.now().as_nanos() as u64);
        if since >= self.options.flush_interval.as_nanos() as u64 {
            self.tick()?;
            return Ok(true);
        }
        if self.flush_sealed()? {
            return Ok(true);
        }
        self.compaction_steps(1)
    }

    /// After a flush: who waited for memory goes on, and the young runs may want merging.
    pub(crate) fn flushed(&self) {
        self.count_runs();
        self.signals.reclaimable.store(true, Ordering::Release);
        self.signals.blocked.store(false, Ordering::Release);
        self.signals.memory_is_free();
        self.signals.compaction_wanted();
    }

    /// After a merge: what found no space may find some now.
    fn compacted(&self) {
        self.count_runs();
        if self.signals.flush_blocked() {
            self.signals.flush_wanted();
        }
    }

    fn count_runs(&self) {
        let version = self.versions.load();
        let most = version.trees.values().map(|t| t.levels.first().map_or(0, Vec::len)).max();
        self.counters.young_runs.set(most.unwrap_or(0) as u64);
        self.merging.garbage.keep(&version);
        let dead = version.trees.values().map(|t| self.merging.garbage.dead(t));
        let dead = dead.fold(Garbage::default(), |sum, d| Garbage {
            dead: sum.dead + d.dead,
            all: sum.all + d.all,
        });
        self.counters.dead_percent.set(dead.percent());
    }
}

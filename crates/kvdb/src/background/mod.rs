//! Background work: threads for the clock, the journal, flushes, merges and defragmentation, or,
//! without threads, [`Database::step`], which does one bounded unit of it. Nothing is decided here:
//! what a thread does is what a step does.

pub(crate) mod compaction;
mod dead;
pub(crate) mod defragment;
pub(crate) mod flush;
pub(crate) mod merging;
mod part;
mod pressure;
mod ranged;
mod reclaim;
pub(crate) mod shape;

use env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use env::thread::JoinHandle;
use std::sync::Arc;
use std::time::Duration;

use env::sync::{Condvar, Mutex};

use dead::Dead;
pub(crate) use defragment::Defragmenter;
pub(crate) use merging::Merging;
use merging::Stack;

use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::journal::record;
use zones::{Priority, Purpose, ZONE_SIZE};

/// Zones that go back to the host at an interval under load, at most.
const GIVE_BACK: usize = 16;
/// A failed flush is tried this often before the store stops taking writes.
const ATTEMPTS: u32 = 5;

#[derive(Default)]
struct Wanted {
    flush: bool,
    journal: bool,
    /// The generation to be sealed.
    seal: Option<u64>,
    /// Grows: each merging thread knows what it has seen of it.
    compaction: u64,
}

pub(crate) struct Background {
    wanted: Mutex<Wanted>,
    wake_flush: Condvar,
    wake_compaction: Condvar,
    wake_clock: Condvar,
    wake_journal: Condvar,
    /// The journal's thread was asked for something that it has not looked at yet: nobody need ask
    /// again.
    journal_asked: AtomicBool,
    /// A flush has ended, or values have been placed: memory and perhaps journal space are free
    /// again.
    memory_free: Condvar,
    stop: AtomicBool,
    /// The last flush found no space.
    blocked: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Nanoseconds of the clock at its last tick.
    last_tick: AtomicU64,
    /// Commits seen at the last tick, and since when there was none.
    quiet: Mutex<(u64, Duration)>,
}

impl Background {
    pub(crate) fn new(now: Duration) -> Background {
        Background {
            wanted: Mutex::default(),
            wake_flush: Condvar::new(),
            wake_compaction: Condvar::new(),
            wake_clock: Condvar::new(),
            wake_journal: Condvar::new(),
            journal_asked: AtomicBool::new(false),
            memory_free: Condvar::new(),
            stop: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            threads: Mutex::default(),
            last_tick: AtomicU64::new(now.as_nanos() as u64),
            quiet: Mutex::new((0, now)),
        }
    }

    pub(crate) fn flush_wanted(&self) {
        self.wanted.lock().flush = true;
        self.wake_flush.notify_one();
    }

    pub(crate) fn compaction_wanted(&self) {
        self.wanted.lock().compaction += 1;
        self.wake_compaction.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn flush_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// What has gathered should be written; `seal`: and this generation closed.
    pub(crate) fn journal_wanted(&self, seal: Option<u64>) {
        if self.journal_asked.swap(true, Ordering::AcqRel) && seal.is_none() {
            return;
        }
        let mut wanted = self.wanted.lock();
        if wanted.seal.is_some() && wanted.seal == seal {
            return;
        }
        wanted.journal = true;
        wanted.seal = seal.or(wanted.seal);
        drop(wanted);
        self.wake_journal.notify_one();
    }

    /// Waits until memory becomes free, at most so long; not at all unless `full` still holds.
    pub(crate) fn wait_for_memory(&self, at_most: Duration, full: impl Fn() -> bool) {
        let mut wanted = self.wanted.lock();
        if full() {
            self.memory_free.wait_for(&mut wanted, at_most);
        }
    }

    /// Tells those that wait for memory.
    pub(crate) fn memory_is_free(&self) {
        // Under the lock, so that one that is about to wait does not miss it.
        drop(self.wanted.lock());
        self.memory_free.notify_all();
    }

    /// Lets threads end as soon as they look.
    pub(crate) fn stop_soon(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        {
            // Under the lock, so that a thread that is about to wait does not miss it.
            let _wanted = self.wanted.lock();
            self.wake_flush.notify_all();
            self.wake_compaction.notify_all();
            self.wake_clock.notify_all();
            self.wake_journal.notify_all();
            self.memory_free.notify_all();
        }
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
        type Job = (&'static str, fn(&Database));
        let merge: Job = ("kvdb-merge", Database::compaction_loop);
        let mut jobs: Vec<Job> = vec![
            ("kvdb-clock", Database::clock_loop),
            ("kvdb-journal", Database::journal_loop),
            ("kvdb-flush", Database::flush_loop),
            ("kvdb-defrag", Database::defragment_loop),
        ];
        jobs.extend(std::iter::repeat_n(merge, self.options.merge_threads()));
        for (name, job) in jobs {
            let db = self.clone();
            let run = move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&db)));
                if outcome.is_err() {
                    // A mistake in the program: nobody may wait for this thread's work.
                    db.health
                        .fail("background work", &Error::Invalid(format!("{name} has panicked")));
                    db.background.memory_free.notify_all();
                }
            };
            threads.push(env::thread::Builder::new().name(name.into()).spawn(run)?);
        }
        drop(threads);
        // So that the first synced commits find their space allocated as well.
        self.prepare_segment()
    }

    fn clock_loop(&self) {
        loop {
            let mut wanted = self.background.wanted.lock();
            if self.background.stopping() {
                return;
            }
            self.background.wake_clock.wait_for(&mut wanted, self.options.flush_interval);
            drop(wanted);
            if self.background.stopping() {
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
                let mut wanted = self.background.wanted.lock();
                while !wanted.journal && !self.background.stopping() {
                    self.background.wake_journal.wait(&mut wanted);
                }
                wanted.journal = false;
                self.background.journal_asked.store(false, Ordering::Release);
                wanted.seal
            };
            if self.background.stopping() || self.health.failed() {
                return;
            }
            let values = self.unplaced_bytes.load(Ordering::Relaxed) > 0;
            let done = match seal {
                Some(generation) => self.seal(generation),
                None => self.write_out().map(|_| ()),
            };
            {
                let mut wanted = self.background.wanted.lock();
                if wanted.seal == seal {
                    wanted.seal = None;
                }
            }
            let done = done.and_then(|()| if values { self.set_aside_ahead() } else { Ok(()) });
            let done =
                done.and_then(|()| if values { self.seal_what_holds_much(false) } else { Ok(()) });
            let done = done.and_then(|()| self.prepare_segment());
            self.background.memory_is_free();
            match done {
                Ok(()) => {}
                Err(Error::NoSpace) => {
                    // Those who commit hear of it; what was deleted may make room.
                    self.background.blocked.store(true, Ordering::Release);
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
                let mut wanted = self.background.wanted.lock();
                while !wanted.flush && !self.background.stopping() && failures == 0 {
                    self.background.wake_flush.wait(&mut wanted);
                }
                if failures > 0 && !self.background.stopping() {
                    // A failed flush is tried again after a while, or as soon as space came back.
                    let pause = Duration::from_millis(50) * (1 << failures.min(5));
                    self.background.wake_flush.wait_for(&mut wanted, pause);
                }
                wanted.flush = false;
            }
            if self.background.stopping() {
                return;
            }
            let result = self.flush_sealed();
            self.background.blocked.store(matches!(result, Err(Error::NoSpace)), Ordering::Release);
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
            self.background.memory_is_free();
        }
    }

    fn compaction_loop(&self) {
        let mut failed = false;
        let mut seen = 0;
        let mut stack = Stack::default();
        loop {
            {
                let mut wanted = self.background.wanted.lock();
                while wanted.compaction == seen && !self.background.stopping() && !failed {
                    self.background.wake_compaction.wait(&mut wanted);
                }
                if failed && !self.background.stopping() {
                    self.background.wake_compaction.wait_for(&mut wanted, Duration::from_secs(5));
                }
                seen = wanted.compaction;
            }
            failed = false;
            loop {
                if self.background.stopping() {
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

    /// Somebody has flushed by hand, and so expects no more for a while: what is put off until the
    /// store is quiet is done soon.
    pub(crate) fn tidy_soon(&self) {
        if !self.inline() {
            let idle = self.options.idle_flush.max(Duration::from_secs(2));
            *self.background.quiet.lock() =
                (self.counters.commits.get(), self.now().saturating_sub(idle));
            self.background.wake_clock.notify_one();
        }
    }

    /// Nothing is left that the background would do by itself, unless something is committed.
    pub(crate) fn at_rest(&self) -> bool {
        let merges =
            || !self.merging.busy() && self.next_job(true, false, &[], usize::MAX).is_none();
        let space = || {
            self.zones.spare() == 0 && !self.defragmenter.progress().running && !self.holes_due()
        };
        self.sealed.lock().is_empty()
            && !self.deletions.load(Ordering::Acquire)
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
        self.sync_and_mark()?;
        match self.prepare_segment() {
            // Commits take one from what is set aside, when they must.
            Ok(()) | Err(Error::NoSpace) => {}
            Err(e) => return Err(e),
        }
        self.look_for_holes();
        self.seal_what_holds_much(true)?;
        // What a moment's work took and nobody needed since; little at once, since it is the device
        // that writers wait for.
        self.zones.give_back_idle(GIVE_BACK)?;
        let (_, since) = *self.background.quiet.lock();
        if now.saturating_sub(since) >= self.options.idle_flush {
            self.background.compaction_wanted();
            self.chunks.lock().keep(0);
            self.give_aside_back();
            if self.deletions.swap(false, Ordering::AcqRel) {
                let flushed = self.flush_all();
                if flushed.is_err() {
                    self.deletions.store(true, Ordering::Release);
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
        // Nobody asks a memtable for less: what newer versions hide there may be forgotten as
        // others come.
        let floor = self.versions.pins.floor(self.versions.visible.load(Ordering::Acquire));
        let version = self.versions.load_full();
        for layer in version.trees.values().filter_map(|t| t.layers.first()) {
            layer.memtable.set_floor(floor);
        }
        let held = version.generation.held();
        let live = self.holes().live;
        if held < LEAST || !self.sealed.lock().is_empty() {
            return Ok(());
        }
        if in_time && held > MOST.max(live / 5)
            || self.dead_of_active()? > LEAST.max((live + held) / 10)
        {
            self.seal(version.generation.number)?;
        }
        Ok(())
    }

    /// Makes the journal durable. When it was already, and nothing came behind, a mark is written
    /// (not synced) that says so: from then on damage to the last commits is told from a torn
    /// write.
    fn sync_and_mark(&self) -> Result<()> {
        if !self.options.journal {
            return Ok(());
        }
        let mut pipeline = self.pipeline.lock();
        let end = pipeline.end();
        if end == self.marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if end > self.durable.load(Ordering::Acquire) {
            drop(pipeline);
            return self.sync_to(end);
        }
        let mark = record::mark();
        if pipeline.pending.len() + mark.len() > pipeline.room {
            return Ok(());
        }
        pipeline.pending.stream.extend_from_slice(&mark);
        self.marked.store(pipeline.end(), Ordering::Relaxed);
        drop(pipeline);
        self.write_out()?;
        Ok(())
    }

    /// Lays a segment ready for the journal, its space on the host allocated and written, so that
    /// no synced commit waits for it.
    fn prepare_segment(&self) -> Result<()> {
        if !self.options.journal || self.writer.lock().ready() >= self.stock() {
            return Ok(());
        }
        let (zone, pin) = match self.zones.take_zone(Purpose::Journal, Priority::User) {
            Ok(taken) => taken,
            Err(zones::Error::NoSpace) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if self.options.zero_journal && self.synced_commits.load(Ordering::Relaxed) {
            let zeros = vec![0; 1 << 20];
            for offset in (0..ZONE_SIZE).step_by(zeros.len()) {
                self.zones.write(Purpose::Journal, zone.start() + offset, &zeros)?;
            }
        }
        // The writer is not locked during the sync that this needs.
        let owned = self.list_segment(zone, pin)?;
        self.give_to(&mut self.writer.lock(), vec![owned])
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
        self.reclaimable.store(true, Ordering::Release);
        self.background.blocked.store(false, Ordering::Release);
        self.background.memory_is_free();
        self.background.compaction_wanted();
    }

    /// After a merge: what found no space may find some now.
    fn compacted(&self) {
        self.count_runs();
        if self.background.flush_blocked() {
            self.background.flush_wanted();
        }
    }

    fn count_runs(&self) {
        let version = self.versions.load();
        let most = version.trees.values().map(|t| t.levels.first().map_or(0, Vec::len)).max();
        self.counters.young_runs.set(most.unwrap_or(0) as u64);
        self.merging.hiding.keep(&version);
        let dead = version.trees.values().map(|t| self.merging.hiding.dead(t));
        let dead = dead
            .fold(Dead::default(), |sum, d| Dead { dead: sum.dead + d.dead, all: sum.all + d.all });
        self.counters.dead_percent.set(dead.percent());
    }
}

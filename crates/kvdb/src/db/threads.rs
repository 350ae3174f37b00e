//! Runs background work. Threads do this work for the clock, the journal, flushes, merges and
//! defragmentation. In a store without threads, each call of [`Database::step`] does one bounded
//! unit of the work. The parts of the store decide which work is due, so a thread and a step do the
//! same.

use env::sync::atomic::{AtomicU64, Ordering};
use env::thread::JoinHandle;
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;

use crate::commit::CommitEnv;
use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::signals::Signals;

/// The maximum number of zones that are returned to the host at an interval under load.
const GIVE_BACK: usize = 16;
/// The longest interval between two checks for transactions that were idle for longer than their
/// limit. Such transactions may hold locks for which others wait, so a long flush interval must not
/// keep them open.
const LOOK_FOR_IDLE: Duration = Duration::from_secs(1);

/// The threads of a store.
pub(crate) struct Threads {
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The time of the last tick, in nanoseconds of the clock.
    last_tick: AtomicU64,
}

impl Threads {
    pub(crate) fn new(now: Duration) -> Threads {
        let last_tick = AtomicU64::new(now.as_nanos() as u64);
        Threads { threads: Mutex::default(), last_tick }
    }

    /// Wakes the threads that wait for a signal, and waits for all threads to end.
    fn stop(&self, signals: &Signals) {
        signals.wake_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a background thread has panicked");
            }
        }
    }
}

impl Database {
    /// Starts the threads, if this store has any. After an error no thread is left running, since a
    /// thread would keep the store, the device and its lock open although no caller has the store.
    pub(crate) fn start_threads(self: &Arc<Self>) -> Result<()> {
        if self.engine.inline || self.engine.options.read_only {
            return Ok(());
        }
        self.spawn_threads()
            // Prepare a segment, so that the space for the first synced commits is already
            // allocated.
            .and_then(|()| self.commits.log.prepare_segment())
            .inspect_err(|_| self.stop_threads())
    }

    /// Ends all threads, including those that wait.
    pub(super) fn stop_threads(&self) {
        self.engine.signals.stop_soon();
        self.scrubber.close();
        self.defragmenter.wake();
        self.threads.stop(&self.engine.signals);
    }

    fn spawn_threads(self: &Arc<Self>) -> Result<()> {
        let mut threads = self.threads.threads.lock();
        type Work = (&'static str, fn(&Database));
        let merge: Work = ("kvdb-merge", |db| db.compactor.compaction_loop());
        let mut loops: Vec<Work> = vec![
            ("kvdb-clock", Database::clock_loop),
            ("kvdb-journal", Database::journal_loop),
            ("kvdb-flush", |db| db.flusher.flush_loop()),
            ("kvdb-defrag", |db| db.defragmenter.defragment_loop()),
        ];
        loops.extend(std::iter::repeat_n(merge, self.engine.options.merge_threads()));
        for (name, work) in loops {
            let db = self.clone();
            let run = move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&db)));
                if outcome.is_err() {
                    // A panic is a bug in the program. No caller may wait any longer for the work
                    // of this thread.
                    db.engine
                        .health
                        .fail("background work", &Error::Invalid(format!("{name} has panicked")));
                    db.engine.signals.memory_is_free();
                }
            };
            threads.push(env::thread::Builder::new().name(name.into()).spawn(run)?);
        }
        Ok(())
    }

    fn clock_loop(&self) {
        let interval = self.engine.options.flush_interval;
        let mut waited = Duration::ZERO;
        loop {
            let step = interval.saturating_sub(waited).min(LOOK_FOR_IDLE);
            let mut wanted = self.engine.signals.wanted.lock();
            if self.engine.signals.stopping() {
                return;
            }
            let timed_out = self.engine.signals.wake_clock.wait_for(&mut wanted, step).timed_out();
            drop(wanted);
            if self.engine.signals.stopping() {
                return;
            }
            waited += step;
            if timed_out && waited < interval {
                self.transactions.end_idle(self.engine.env.monotonic());
                continue;
            }
            waited = Duration::ZERO;
            if let Err(e) = self.tick() {
                tracing::warn!("work at the interval failed: {e}");
            }
            if self.engine.health.failed() {
                return;
            }
        }
    }

    fn journal_loop(&self) {
        loop {
            let seal = {
                let mut wanted = self.engine.signals.wanted.lock();
                while !wanted.journal && !self.engine.signals.stopping() {
                    self.engine.signals.wake_journal.wait(&mut wanted);
                }
                wanted.journal = false;
                self.engine.signals.journal_asked.store(false, Ordering::Release);
                wanted.seal
            };
            if self.engine.signals.stopping() || self.engine.health.failed() {
                return;
            }
            let values = self.commits.log.deferred_bytes() > 0;
            let written = match seal {
                Some(generation) => self.commits.seal(generation),
                None => self.commits.log.write_gathered(),
            };
            {
                let mut wanted = self.engine.signals.wanted.lock();
                if wanted.seal == seal {
                    wanted.seal = None;
                }
            }
            let prepare = || {
                if values {
                    self.commits.log.reserve_zones_ahead()?;
                    self.flusher.seal_what_holds_much(false)?;
                }
                self.commits.log.prepare_segment()
            };
            let done = written.and_then(|()| prepare());
            self.engine.signals.memory_is_free();
            match done {
                Ok(()) => {}
                Err(Error::NoSpace) => {
                    // Tell commits, and reclaim deleted data, which may free space.
                    self.engine.signals.journal_ended(false);
                    self.admission.want_space();
                }
                Err(e) => tracing::warn!("writing the journal out failed: {e}"),
            }
        }
    }

    /// Makes deferred work run soon instead of when the store is quiet. A caller that has flushed
    /// explicitly expects no commits for a while.
    pub(crate) fn tidy_soon(&self) {
        if !self.engine.inline {
            self.activity.expect_none();
            self.engine.signals.wake_clock.notify_one();
        }
    }

    /// Does the periodic work.
    pub(crate) fn tick(&self) -> Result<()> {
        let now = self.engine.env.monotonic();
        self.threads.last_tick.store(now.as_nanos() as u64, Ordering::Relaxed);
        self.activity.look(now);
        self.commits.log.interval_is_over();
        self.transactions.end_idle(now);
        // Sync first: the later steps may fail each time, and commits must be on disk within the
        // interval.
        self.commits.log.sync_and_mark()?;
        self.transactions.sweep_logs()?;
        self.transactions.sweep_undoable()?;
        match self.commits.log.prepare_segment() {
            // Commits can take a segment from the reserve if they must.
            Ok(()) | Err(Error::NoSpace) => {}
            Err(e) => return Err(e),
        }
        let idle = self.activity.is_idle(now);
        if !self.compactor.gather_short_values(&self.flusher, idle)? {
            self.defragmenter.look_for_holes();
            self.defragmenter.look_for_aging();
        }
        self.flusher.seal_what_holds_much(true)?;
        // Return zones that a burst of work took and that are no longer needed. Return only a few
        // at a time, since writers wait for the same device.
        self.engine.zones.give_back_idle(GIVE_BACK)?;
        if idle {
            self.engine.signals.compaction_wanted();
            self.commits.log.release_value_buffers();
            self.commits.log.return_reserved_zones();
            if self.engine.signals.deletions.swap(false, Ordering::AcqRel) {
                let flushed = self.flusher.flush_all();
                if flushed.is_err() {
                    self.engine.signals.deletions.store(true, Ordering::Release);
                }
                flushed?;
            }
            self.engine.zones.give_back()?;
            self.engine.versions.load().generation.release_idle_memory();
        }
        Ok(())
    }

    /// Does one bounded unit of background work. Returns `false` if there is nothing to do.
    pub(crate) fn step(&self) -> Result<bool> {
        self.engine.health.writable()?;
        let since = self.engine.env.monotonic().as_nanos() as u64
            - self
                .threads
                .last_tick
                .load(Ordering::Relaxed)
                .min(self.engine.env.monotonic().as_nanos() as u64);
        if since >= self.engine.options.flush_interval.as_nanos() as u64 {
            self.tick()?;
            return Ok(true);
        }
        if self.flusher.flush_sealed()? {
            return Ok(true);
        }
        self.compactor.compaction_steps(1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use env::Machine;
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose};

    use super::*;
    use crate::{
        CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions, TransactionOptions,
    };

    fn options() -> CreateOptions {
        // Use an interval so long that the clock does nothing during a test.
        let open = OpenOptions {
            memory: 64 << 20,
            zero_journal: false,
            flush_interval: Duration::from_secs(3600),
            ..OpenOptions::default()
        };
        CreateOptions { open, ..CreateOptions::default() }
    }

    #[track_caller]
    fn until(what: &str, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_journal_that_finds_space_again_holds_off_no_commits() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options()).unwrap();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let signals = &db.db.engine.signals;
        device.inject(Fault::always(Operation::Write, FaultKind::NoSpace).of(Purpose::Pages));
        db.put(dict, b"large", &[3; 5000], Durability::Buffered).unwrap();
        signals.journal_wanted(None);
        until("the journal finds no space", || signals.blocked());
        device.clear();
        db.sync().unwrap();
        until("it has found space", || !signals.blocked());
    }

    #[test]
    fn a_transaction_that_is_idle_for_too_long_ends_within_a_long_flush_interval() {
        let device = Arc::new(MemoryDevice::new());
        let db = Kvdb::create(device, Arc::new(Machine::default()), options()).unwrap();
        let idle_limit = Some(Duration::ZERO);
        let begun =
            TransactionOptions { detached: true, idle_limit, ..TransactionOptions::default() };
        drop(db.begin_with(begun).unwrap());
        until("it was aborted", || db.transactions().is_empty());
    }

    #[test]
    fn a_flush_that_finds_no_space_is_not_made_up_for_by_the_journal() {
        let signals = Signals::default();
        signals.flush_ended(false);
        signals.journal_ended(true);
        assert!(signals.blocked());
        signals.journal_ended(false);
        signals.flush_ended(true);
        assert!(!signals.blocked());
    }

    /// The device and its lock must be released, whichever write fails.
    #[test]
    fn a_store_that_cannot_be_opened_is_not_held() {
        let mut failed = 0;
        for after in 0.. {
            let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
            let fault = Fault::once(Operation::Write, FaultKind::Error);
            device.inject(fault.of(Purpose::Manifest).after(after));
            let made = Kvdb::create(device.clone(), Arc::new(Machine::default()), options());
            if made.is_ok() {
                break;
            }
            failed += 1;
            assert_eq!(Arc::strong_count(&device), 1, "write {after} of the manifest failed");
        }
        assert!(failed > 1, "the manifest is written for the threads' first segment, too");
    }
}

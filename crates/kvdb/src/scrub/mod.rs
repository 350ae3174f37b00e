//! Scrub: while the store is in use, reads all of its data again from the medium and verifies the
//! checksums. This finds silent damage in seldom read data while there are still backups or
//! snapshots elsewhere to repair it from.
//!
//! A scrub is slow on purpose: it reads at most at the permitted rate, on a thread of low priority.
//! It bypasses all caches, takes no lock that a commit waits for, and delays the freeing of a zone
//! by at most one step of some MiB.
//!
//! - `walk` determines the data to read, and its order;
//! - `pace` limits the rate.

mod pace;
mod walk;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::{Condvar, Mutex};
use env::thread::JoinHandle;

use crate::commit::Committer;
use crate::engine::Engine;
use crate::error::Result;
use pace::Pace;

/// Maximum number of faults kept in memory. All faults are counted and logged.
const KEPT: usize = 1000;

/// Options of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Maximum bytes read per second. `None` means no limit.
    pub bytes_per_second: Option<u64>,
}

/// The progress of the current scrub, or of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// True if a scrub is in progress.
    pub running: bool,
    /// True if the scrub has finished without leaving anything out.
    pub complete: bool,
    /// Bytes read.
    pub bytes: u64,
    /// Approximate number of bytes to read.
    pub bytes_total: u64,
    /// Number of places that cannot be read or contain wrong data.
    pub faults: u64,
    /// Number of scrubs that have finished since the store was opened.
    pub completed: u64,
}

/// A place that cannot be read or contains wrong data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubFault {
    /// The part of the store, as in [`crate::Fault`].
    pub place: String,
    /// A description of the damage, with its device address.
    pub what: String,
    /// The affected keys, if the place contains keys or values.
    pub keys: Option<FaultKeys>,
}

/// A key range of a dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultKeys {
    /// The name of the dictionary.
    pub dictionary: String,
    /// The first key of the range.
    pub start: Bytes,
    /// The first key after the range.
    pub end: Bytes,
}

impl std::fmt::Display for ScrubFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

#[derive(Default)]
struct ScrubState {
    progress: ScrubProgress,
    faults: Vec<ScrubFault>,
    /// The faults found in this scrub, used to count a place that two steps visit only once.
    known: BTreeSet<(String, String)>,
    stop: bool,
    thread: Option<JoinHandle<()>>,
}

/// Reads the store again, and records the faults that it finds.
pub(crate) struct Scrubber {
    engine: Engine,
    commits: Arc<Committer>,
    state: Mutex<ScrubState>,
    /// Signalled when a scrub ends or is asked to stop.
    changed: Condvar,
}

impl Scrubber {
    pub(crate) fn new(engine: Engine, commits: Arc<Committer>) -> Scrubber {
        let (state, changed) = Default::default();
        Scrubber { engine, commits, state, changed }
    }

    pub(crate) fn progress(&self) -> ScrubProgress {
        self.state.lock().progress
    }

    pub(crate) fn faults(&self) -> Vec<ScrubFault> {
        self.state.lock().faults.clone()
    }

    /// Begins a scrub. Returns `false` if one is in progress.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        if state.progress.running {
            return false;
        }
        let completed = state.progress.completed;
        state.progress = ScrubProgress { running: true, completed, ..ScrubProgress::default() };
        state.faults.clear();
        state.known.clear();
        state.stop = false;
        true
    }

    fn end(&self, complete: bool) {
        let mut state = self.state.lock();
        state.progress.running = false;
        state.progress.complete = complete;
        state.progress.completed += u64::from(complete);
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.changed.notify_all();
    }

    /// Stops the scrub and joins its thread.
    pub(crate) fn close(&self) {
        self.stop();
        let thread = self.state.lock().thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the scrub has panicked");
        }
    }

    pub(crate) fn wait_for_end(&self) {
        let mut state = self.state.lock();
        while state.progress.running {
            self.changed.wait(&mut state);
        }
    }

    fn find(&self, fault: ScrubFault) {
        let mut state = self.state.lock();
        if !state.known.insert((fault.place.clone(), fault.what.clone())) {
            return;
        }
        tracing::error!("scrub: {fault}");
        state.progress.faults += 1;
        if state.faults.len() < KEPT {
            state.faults.push(fault);
        } else {
            // Do not remember all of them: beyond this number a fault may be counted more than
            // once.
            state.known.clear();
        }
    }

    /// Counts `bytes` as read and, if `wait` is set, waits as long as the rate requires. `now`
    /// returns the time. Breaks if the scrub is to stop.
    fn read(
        &self,
        bytes: u64,
        pace: &mut Pace,
        now: &dyn Fn() -> Duration,
        wait: bool,
    ) -> ControlFlow<()> {
        pace.read(bytes);
        let mut state = self.state.lock();
        state.progress.bytes += bytes;
        state.progress.bytes_total = state.progress.bytes_total.max(state.progress.bytes);
        loop {
            if state.stop {
                return ControlFlow::Break(());
            }
            let owed = if wait { pace.owed(now()) } else { Duration::ZERO };
            if owed.is_zero() {
                return ControlFlow::Continue(());
            }
            self.changed.wait_for(&mut state, owed);
        }
    }

    /// Starts a scrub. Returns `false` if one is in progress. In a store without threads the scrub
    /// runs to its end before this returns.
    pub(crate) fn start(self: &Arc<Self>, options: ScrubOptions) -> Result<bool> {
        if !self.begin() {
            return Ok(false);
        }
        if self.engine.inline {
            self.scrub(options);
            return Ok(true);
        }
        let scrubber = self.clone();
        let run = move || {
            env::thread::lower_priority();
            scrubber.scrub(options);
        };
        let started = env::thread::Builder::new().name("kvdb-scrub".into()).spawn(run);
        match started {
            Ok(thread) => {
                let before = self.state.lock().thread.replace(thread);
                // The previous thread has already reported its end, so this does not wait for long.
                drop(before.map(JoinHandle::join));
                Ok(true)
            }
            Err(e) => {
                self.end(false);
                Err(e.into())
            }
        }
    }

    fn scrub(&self, options: ScrubOptions) {
        let ended = End(self);
        let mut pace = Pace::new(options.bytes_per_second, self.engine.env.monotonic());
        let now = || self.engine.env.monotonic();
        // Without threads nothing advances the clock, so waiting would never end.
        let wait = !self.engine.inline;
        let total = self.scrub_bytes();
        self.state.lock().progress.bytes_total = total;
        let mut read = |bytes| self.read(bytes, &mut pace, &now, wait);
        let done = self.scrub_all(&mut read, &mut |fault| self.find(fault));
        std::mem::forget(ended);
        self.end(done.is_continue());
    }
}

/// A guard that ends a scrub on panic, so that callers waiting for the end are woken.
struct End<'a>(&'a Scrubber);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end(false);
    }
}

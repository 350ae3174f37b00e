//! A scheduler for tests: exactly one of several threads runs at a time, and a seed decides which.
//!
//! [`run`] executes a body as the first thread of a *simulated run*. Threads started with
//! [`crate::thread`] belong to the run of their parent. Each is a thread of the operating system,
//! so its code needs no changes; it yields only at *points*: before a lock is taken
//! ([`crate::sync`]), before an atomic operation that orders threads, in a wait, in a sleep, and
//! wherever the program calls [`point`]. At a point the seed decides which of the runnable threads
//! continues. A seed always gives the same schedule, so a failure can be reproduced.
//!
//! Time in a run is virtual. It stands still while a thread runs. If no thread can run it jumps to
//! the earliest deadline, and from time to time it does so earlier, which makes timeouts and
//! intervals part of the schedule. A run in which no thread can ever run again fails as a deadlock,
//! with a list of what each thread waits for.
//!
//! The seed selects one of two strategies. *Random* continues with a random thread at each point,
//! or stays with the running one with a probability that depends on the seed. *Priorities* always
//! runs the thread of the highest priority and from time to time drops the running one to the
//! lowest, which reaches schedules in which one thread pauses for long (after PCT: Burckhardt,
//! Kothari, Musuvathi, Nagarakatte, ASPLOS 2010).
//!
//! Outside of a run the functions of this module do nothing. In builds without debug assertions the
//! locks and atomics of [`crate::sync`] are the plain ones and never call them, so that release
//! builds have no overhead.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::random::{Random, mix};

/// The number of points after which a run is aborted, because some thread must be spinning.
const MOST_POINTS: u64 = 20_000_000;
/// The number of points per early jump of the clock: while threads can run, the clock jumps to the
/// next deadline once in this many points.
const JUMP: u64 = 128;
/// The value of `turn` when no thread may run, because the run is over.
const NONE: usize = usize::MAX;
/// The thread that runs the body of the run.
const FIRST: usize = 0;

/// The reason why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A thread panicked.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// The number and name of the thread.
        thread: String,
        /// The message of the panic.
        message: String,
    },
    /// No thread can ever run again; the text lists what each one waits for.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// The run was aborted after too many points; the text has the state of each thread.
    #[error("no end after {MOST_POINTS} scheduling points: {0}")]
    Endless(String),
}

/// The state of a thread: it can run, it waits, or it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitReason {
    /// The thread can run.
    No,
    /// The thread waits for something at this address: a lock to be released, a condition to be
    /// signalled, a thread to end.
    For { what: &'static str, address: usize },
    /// The thread waits for a deadline only.
    Sleeps,
    /// The thread has ended.
    Ended,
}

struct SimulatedThread {
    name: String,
    waits: WaitReason,
    deadline: Option<Duration>,
    /// `true` if the last wait ended because of its deadline.
    timed_out: bool,
    priority: u64,
    handle: Option<std::thread::Thread>,
}

struct RunState {
    random: Random,
    threads: Vec<SimulatedThread>,
    clock: Duration,
    points: u64,
    /// The number of points per random switch: at one point in this many, a random thread continues
    /// instead of the running thread. If it is 1, a random thread continues at every point.
    stay: u64,
    /// The number of points per demotion: the running thread loses its priority once in this many
    /// points. It is 0 if there are no priorities.
    demote: u64,
    lowest: u64,
    /// A digest of all decisions.
    trace: u64,
    failure: Option<Failure>,
}

pub(crate) struct Run {
    state: Mutex<RunState>,
    /// The thread that may run.
    turn: AtomicUsize,
    over: mpsc::Sender<Result<Box<dyn Any + Send>, Failure>>,
}

thread_local!(static ME: RefCell<Option<(Arc<Run>, usize)>> = const { RefCell::new(None) });

fn me() -> Option<(Arc<Run>, usize)> {
    ME.try_with(|me| me.borrow().clone()).ok().flatten()
}

/// Returns whether this thread belongs to a simulated run.
pub fn simulated() -> bool {
    ME.try_with(|me| me.borrow().is_some()).unwrap_or(false)
}

/// The result of a run that completed.
#[derive(Debug)]
pub struct Done<T> {
    /// The value that the body returned.
    pub value: T,
    /// The number of scheduling points.
    pub points: u64,
    /// A digest of all decisions. Equal schedules have equal digests.
    pub trace: u64,
}

/// Runs `body`, and every thread that it starts, under the schedule of `seed`. Returns when `body`
/// has returned and no other thread can run. After a failure the threads of the run are blocked
/// forever, so their memory is not freed.
pub fn run<T: Send + 'static>(
    seed: u64,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<Done<T>, Failure> {
    let mut random = Random::new(seed);
    let priorities = random.one_in(2);
    let rate = 1 << random.below(if priorities { 8 } else { 5 });
    let (over, ended) = mpsc::channel();
    let state = RunState {
        stay: if priorities { 1 } else { rate },
        demote: if priorities { 2 * rate } else { 0 },
        lowest: u64::MAX / 2,
        random,
        threads: Vec::new(),
        clock: Duration::ZERO,
        points: 0,
        trace: 0,
        failure: None,
    };
    let run = Arc::new(Run { state: Mutex::new(state), turn: AtomicUsize::new(0), over });
    let id = run.enter("main".into());
    let boxed = move || -> Box<dyn Any + Send> { Box::new(body()) };
    let inside = run.clone();
    let thread =
        std::thread::Builder::new().name("simulated".into()).spawn(move || inside.first(id, boxed));
    let thread = thread.expect("the machine has room for a thread");
    let value = ended.recv().expect("a run says how it ended before it is dropped")?;
    // The thread has sent the result and ends.
    let _ = thread.join();
    let state = run.state.lock();
    let value = *value.downcast::<T>().expect("the body returned this type");
    Ok(Done { value, points: state.points, trace: state.trace })
}

impl Run {
    fn enter(&self, name: String) -> usize {
        let mut state = self.state.lock();
        let priority = u64::MAX / 2 + 1 + state.random.below(1 << 32);
        let id = state.threads.len();
        let name = format!("{id} ({name})");
        let thread = SimulatedThread {
            name,
            waits: WaitReason::No,
            deadline: None,
            timed_out: false,
            priority,
            handle: None,
        };
        state.threads.push(thread);
        id
    }

    fn first(self: Arc<Run>, id: usize, body: impl FnOnce() -> Box<dyn Any + Send>) {
        stay_on_one_processor();
        let mut value = None;
        self.clone().live(id, || value = Some(body()));
        // The value is set unless the body panicked. Other threads may still run.
        if let Some(value) = value {
            self.wait_for_all();
            let _ = self.over.send(Ok(value));
        }
    }

    /// Waits until no thread can run, after the first thread has ended.
    fn wait_for_all(&self) {
        while self.turn.load(Ordering::Acquire) != NONE {
            std::thread::park();
        }
    }

    /// Runs the body of a thread of the run.
    fn live(self: Arc<Run>, id: usize, body: impl FnOnce()) {
        self.state.lock().threads[id].handle = Some(std::thread::current());
        self.wait_for_turn(id);
        ME.with(|me| *me.borrow_mut() = Some((self.clone(), id)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        ME.with(|me| *me.borrow_mut() = None);
        if let Err(panic) = outcome {
            return self.panicked(id, &*panic);
        }
        let mut state = self.state.lock();
        state.threads[id].waits = WaitReason::Ended;
        state.wake(id_address(id), usize::MAX);
        match state.next(id) {
            Ok(next) => self.pass_to(&state, next),
            // The result of the first thread is known, so threads that wait forever for an ended
            // thread do not matter.
            Err(_) if state.threads[FIRST].waits == WaitReason::Ended => {
                self.turn.store(NONE, Ordering::Release);
                if let Some(first) = &state.threads[FIRST].handle {
                    first.unpark();
                }
            }
            Err(failure) => self.fail(&mut state, failure),
        }
    }

    /// Fails the run, since one of its threads has panicked.
    fn panicked(&self, id: usize, panic: &(dyn Any + Send)) {
        let message = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let message =
            message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let mut state = self.state.lock();
        let thread = state.threads[id].name.clone();
        self.fail(&mut state, Failure::Panicked { thread, message });
    }

    fn wait_for_turn(&self, id: usize) {
        while self.turn.load(Ordering::Acquire) != id {
            std::thread::park();
        }
    }

    fn pass_to(&self, state: &RunState, next: usize) {
        self.turn.store(next, Ordering::Release);
        if let Some(handle) = &state.threads[next].handle {
            handle.unpark();
        }
    }

    fn fail(&self, state: &mut RunState, failure: Failure) {
        if state.failure.is_none() {
            state.failure = Some(failure.clone());
            self.turn.store(NONE, Ordering::Release);
            let _ = self.over.send(Err(failure));
        }
    }

    /// Yields until the schedule continues this thread. Returns `true` if the deadline ended the
    /// wait.
    fn yield_until_continued(
        &self,
        id: usize,
        waits: WaitReason,
        deadline: Option<Duration>,
    ) -> bool {
        let mut state = self.state.lock();
        if state.failure.is_some() {
            drop(state);
            park_for_ever();
        }
        state.points += 1;
        let thread = &mut state.threads[id];
        (thread.waits, thread.deadline, thread.timed_out) = (waits, deadline, false);
        let next = match state.points {
            MOST_POINTS.. => Err(Failure::Endless(state.describe())),
            _ => state.next(id),
        };
        match next {
            Ok(next) if next == id => {}
            Ok(next) => {
                self.pass_to(&state, next);
                drop(state);
                self.wait_for_turn(id);
                state = self.state.lock();
            }
            Err(failure) => {
                self.fail(&mut state, failure);
                drop(state);
                park_for_ever();
            }
        }
        state.threads[id].timed_out
    }
}

impl RunState {
    /// Chooses the thread that continues.
    fn next(&mut self, current: usize) -> Result<usize, Failure> {
        let deadline = self.threads.iter().filter_map(|t| t.deadline).min();
        let any = self.threads.iter().any(|t| t.waits == WaitReason::No);
        if let Some(deadline) = deadline
            && (!any || self.random.one_in(JUMP))
        {
            self.clock = self.clock.max(deadline);
            for thread in &mut self.threads {
                if thread.deadline.is_some_and(|d| d <= self.clock) {
                    (thread.waits, thread.deadline, thread.timed_out) =
                        (WaitReason::No, None, true);
                }
            }
        }
        let ready: Vec<usize> =
            (0..self.threads.len()).filter(|&i| self.threads[i].waits == WaitReason::No).collect();
        let next = if self.demote > 0 {
            if self.random.one_in(self.demote) {
                self.drop_priority(current);
            }
            ready.iter().copied().max_by_key(|&i| self.threads[i].priority)
        } else if ready.contains(&current) && !self.random.one_in(self.stay) {
            Some(current)
        } else {
            self.random.pick(&ready).copied()
        };
        let next = next.ok_or_else(|| Failure::Deadlock(self.describe()))?;
        self.trace = mix(self.trace ^ next as u64);
        Ok(next)
    }

    fn drop_priority(&mut self, id: usize) {
        self.lowest -= 1;
        self.threads[id].priority = self.lowest;
    }

    /// Wakes up to `most` random threads that wait at this address.
    fn wake(&mut self, at: usize, most: usize) {
        let waiting = |t: &SimulatedThread| matches!(t.waits, WaitReason::For { address, .. } if address == at);
        let mut those: Vec<usize> =
            (0..self.threads.len()).filter(|&i| waiting(&self.threads[i])).collect();
        for _ in 0..most.min(those.len()) {
            let id = those.swap_remove(self.random.below(those.len() as u64) as usize);
            (self.threads[id].waits, self.threads[id].deadline) = (WaitReason::No, None);
        }
    }

    fn describe(&self) -> String {
        let line = |t: &SimulatedThread| match t.waits {
            WaitReason::No => format!("thread {} runs", t.name),
            WaitReason::For { what, address } => {
                format!("thread {} waits for a {what} at {address:#x}", t.name)
            }
            WaitReason::Sleeps => format!("thread {} sleeps", t.name),
            WaitReason::Ended => format!("thread {} has ended", t.name),
        };
        self.threads.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the address at which `join` waits for a thread. No object has this address.
fn id_address(id: usize) -> usize {
    id + 1
}

fn park_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Pins the thread to one processor: switches between processors cost ten times as much.
fn stay_on_one_processor() {
    #[cfg(target_os = "linux")]
    if let Ok(allowed) = rustix::thread::sched_getaffinity(None) {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let those: Vec<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        let mut one = rustix::thread::CpuSet::new();
        if let Some(cpu) = those.get(run % those.len().max(1)) {
            one.set(*cpu);
            // An error affects only the speed.
            let _ = rustix::thread::sched_setaffinity(None, &one);
        }
    }
}

/// Marks a point at which the schedule may continue another thread. Does nothing while the thread
/// unwinds, so that the failure is reported unchanged.
pub fn point() {
    if let Some((run, id)) = me()
        && !std::thread::panicking()
    {
        run.yield_until_continued(id, WaitReason::No, None);
    }
}

/// Yields to all other runnable threads, if the strategy has an order of threads. Returns `false`
/// outside of a run.
pub(crate) fn yield_now() -> bool {
    let Some((run, id)) = me() else { return false };
    if run.state.lock().demote > 0 {
        run.state.lock().drop_priority(id);
    }
    run.yield_until_continued(id, WaitReason::No, None);
    true
}

/// Waits until [`wake`] is called with this address. Returns `true` on a timeout.
#[cfg(debug_assertions)]
pub(crate) fn wait(what: &'static str, address: usize, at_most: Option<Duration>) -> bool {
    let Some((run, id)) = me() else { return false };
    let deadline = at_most.and_then(|time| run.state.lock().clock.checked_add(time));
    run.yield_until_continued(id, WaitReason::For { what, address }, deadline)
}

#[cfg(debug_assertions)]
pub(crate) fn wake(address: usize, most: usize) {
    if let Some((run, _)) = me() {
        run.state.lock().wake(address, most);
    }
}

/// Sleeps in virtual time. Returns `false` outside of a run.
pub(crate) fn sleep(time: Duration) -> bool {
    let Some((run, id)) = me() else { return false };
    let until = run.state.lock().clock.checked_add(time);
    run.yield_until_continued(id, WaitReason::Sleeps, until);
    true
}

/// Returns a random number from the seed of the run, or `None` outside of a run.
pub fn random() -> Option<u64> {
    me().map(|(run, _)| run.state.lock().random.number())
}

/// Returns the time since some fixed point. In a run, the time is virtual.
pub fn now() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    match me() {
        Some((run, _)) => run.state.lock().clock,
        None => START.get_or_init(Instant::now).elapsed(),
    }
}

/// A thread of the current run that has not been started yet.
pub(crate) struct PendingThread {
    run: Arc<Run>,
    pub id: usize,
}

/// Adds a thread to the run of this one. Returns `None` outside of a run.
pub(crate) fn pending_thread(name: &str) -> Option<PendingThread> {
    let (run, _) = me()?;
    Some(PendingThread { id: run.enter(name.into()), run })
}

impl PendingThread {
    /// Runs the body on this thread of the operating system.
    pub fn live(self, body: impl FnOnce()) {
        let id = self.id;
        self.run.live(id, body);
    }
}

/// Removes a thread that could not be started.
pub(crate) fn never_started(id: usize) {
    if let Some((run, _)) = me() {
        run.state.lock().threads[id].waits = WaitReason::Ended;
    }
}

/// Fails the run of this thread if one of `threads` has not ended. The panic of this thread would
/// wait for that thread outside of the schedule, where it never ends. If the run fails, this call
/// does not return.
pub(crate) fn fail_unless_ended(threads: &[usize], panic: &(dyn Any + Send)) {
    let Some((run, me)) = me() else { return };
    let ended = |id: &usize| run.state.lock().threads[*id].waits == WaitReason::Ended;
    if !threads.iter().all(ended) {
        run.panicked(me, panic);
        park_for_ever();
    }
}

/// Waits until a thread of this run has ended.
pub(crate) fn join(id: usize) {
    let Some((run, me)) = me() else { return };
    loop {
        if run.state.lock().threads[id].waits == WaitReason::Ended {
            return;
        }
        run.yield_until_continued(
            me,
            WaitReason::For { what: "thread", address: id_address(id) },
            None,
        );
    }
}

//! A scheduler for tests: several threads of which exactly one runs at a time, and a seed decides
//! which.
//!
//! [`run`] executes a body as the first thread of a *simulated run*. Threads started with
//! [`crate::thread`] belong to the run of their parent. Each is a thread of the operating system,
//! so it needs no special code; it only gives way at *points*: before a lock is taken
//! ([`crate::sync`]), before an atomic operation whose order matters, in a wait, in a sleep, and
//! wherever the program calls [`point`]. At a point the seed decides which of the threads that
//! could go on goes on. The same seed gives the same schedule, so a failure can be run again.
//!
//! Time in a run is virtual. It stands still while a thread runs. When no thread can run it jumps
//! to the earliest deadline, and now and then it does so earlier, which makes timeouts and
//! intervals part of the schedule. A run in which no thread can ever run again fails as a deadlock,
//! with a list of what each thread waits for.
//!
//! Two strategies take turns with the seeds. *Random* continues with a random thread at each point,
//! or stays with the running one with a probability that differs from seed to seed. *Priorities*
//! always runs the thread of the highest priority and now and then drops the running one to the
//! lowest, which reaches schedules where one thread rests for long (after PCT: Burckhardt, Kothari,
//! Musuvathi, Nagarakatte, ASPLOS 2010).
//!
//! Outside of a run every function here does nothing. In builds without debug assertions the locks
//! and atomics of [`crate::sync`] are the plain ones and never come here, so a product pays
//! nothing.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::random::{Random, mix};

/// Points after which a run is given up: some thread spins.
const MOST_POINTS: u64 = 20_000_000;
/// While others could run, the clock jumps to the next deadline once in so many points.
const JUMP: u64 = 128;
/// No thread: the run is over.
const NONE: usize = usize::MAX;

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("thread {thread} panicked: {message}")]
    Panicked { thread: String, message: String },
    #[error("deadlock: {0}")]
    Deadlock(String),
    #[error("no end after {MOST_POINTS} scheduling points: {0}")]
    Endless(String),
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitReason {
    /// It could run.
    No,
    /// For something at this address: a lock to be released, a condition to be signalled, a thread
    /// to end.
    For { what: &'static str, address: usize },
    /// For a deadline only.
    Sleeps,
    /// It has ended.
    Ended,
}

struct Thread {
    name: String,
    waits: WaitReason,
    deadline: Option<Duration>,
    /// Set when the deadline ended the last wait.
    timed_out: bool,
    priority: u64,
    handle: Option<std::thread::Thread>,
}

struct RunState {
    random: Random,
    threads: Vec<Thread>,
    clock: Duration,
    points: u64,
    /// The running thread goes on at a point unless one in so many says otherwise; 1: a fair draw
    /// each time.
    stay: u64,
    /// One in so many points the running thread loses its priority; 0: there are no priorities.
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

/// Whether this thread belongs to a simulated run.
pub fn simulated() -> bool {
    ME.try_with(|me| me.borrow().is_some()).unwrap_or(false)
}

/// What a run that came to its end tells about itself.
#[derive(Debug)]
pub struct Done<T> {
    pub value: T,
    /// Scheduling points that were passed.
    pub points: u64,
    /// A digest of all decisions: equal for equal schedules.
    pub trace: u64,
}

/// Runs `body` and every thread that it starts under the schedule of this seed. Ends when `body`
/// has returned and no other thread can run. After a failure the threads of the run stay where they
/// are for ever: they hold memory, but no processor.
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
    // Its thread has said that it is over and has nothing else to do.
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
        let thread = Thread {
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
        // Here only the last thread to run arrives, or the first one whose end let others go on.
        if let Some(value) = value {
            self.wait_for_all();
            let _ = self.over.send(Ok(value));
        }
    }

    /// The first thread has ended: the others go on as far as they can.
    fn wait_for_all(&self) {
        while self.turn.load(Ordering::Acquire) != NONE {
            std::thread::park();
        }
    }

    /// The life of a thread of the run.
    fn live(self: Arc<Run>, id: usize, body: impl FnOnce()) {
        self.state.lock().threads[id].handle = Some(std::thread::current());
        self.wait_for_turn(id);
        ME.with(|me| *me.borrow_mut() = Some((self.clone(), id)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        ME.with(|me| *me.borrow_mut() = None);
        if let Err(panic) = outcome {
            let message = panic.downcast_ref::<&str>().map(|s| s.to_string());
            let message =
                message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let mut state = self.state.lock();
            let thread = state.threads[id].name.clone();
            return self.fail(&mut state, Failure::Panicked { thread, message });
        }
        let mut state = self.state.lock();
        state.threads[id].waits = WaitReason::Ended;
        state.wake(id_address(id), usize::MAX);
        match state.next(id) {
            Ok(next) => self.pass_to(&state, next),
            // Threads that wait for ever for what only their owner could give them: their owner has
            // ended.
            Err(_) => {
                self.turn.store(NONE, Ordering::Release);
                if let Some(first) = &state.threads[0].handle {
                    first.unpark();
                }
            }
        }
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

    /// Gives way: goes on when the schedule says so. `true` when the deadline has ended the wait.
    fn give_way(&self, id: usize, waits: WaitReason, deadline: Option<Duration>) -> bool {
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
    /// Who goes on.
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

    /// Wakes up to `most` of the threads that wait at this address, drawn by lot.
    fn wake(&mut self, at: usize, most: usize) {
        let waiting =
            |t: &Thread| matches!(t.waits, WaitReason::For { address, .. } if address == at);
        let mut those: Vec<usize> =
            (0..self.threads.len()).filter(|&i| waiting(&self.threads[i])).collect();
        for _ in 0..most.min(those.len()) {
            let id = those.swap_remove(self.random.below(those.len() as u64) as usize);
            (self.threads[id].waits, self.threads[id].deadline) = (WaitReason::No, None);
        }
    }

    fn describe(&self) -> String {
        let line = |t: &Thread| match t.waits {
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

/// A thread that ends is waited for at this address, which is no object's.
fn id_address(id: usize) -> usize {
    id + 1
}

fn park_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Handing over between processors costs ten times as much as on one.
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
            // Only speed depends on it.
            let _ = rustix::thread::sched_setaffinity(None, &one);
        }
    }
}

/// A place where another thread may go on. Does nothing while the thread unwinds: a failure is told
/// as it was.
pub fn point() {
    if let Some((run, id)) = me()
        && !std::thread::panicking()
    {
        run.give_way(id, WaitReason::No, None);
    }
}

/// Lets all others that can run go first, as far as the strategy knows such an order.
pub(crate) fn yield_now() -> bool {
    let Some((run, id)) = me() else { return false };
    if run.state.lock().demote > 0 {
        run.state.lock().drop_priority(id);
    }
    run.give_way(id, WaitReason::No, None);
    true
}

/// WaitReason until [`wake`] is called with this address. `true` when the time ran out before.
#[cfg(debug_assertions)]
pub(crate) fn wait(what: &'static str, address: usize, at_most: Option<Duration>) -> bool {
    let Some((run, id)) = me() else { return false };
    let deadline = at_most.and_then(|time| run.state.lock().clock.checked_add(time));
    run.give_way(id, WaitReason::For { what, address }, deadline)
}

#[cfg(debug_assertions)]
pub(crate) fn wake(address: usize, most: usize) {
    if let Some((run, _)) = me() {
        run.state.lock().wake(address, most);
    }
}

/// Sleeps in virtual time; `false` outside of a run.
pub(crate) fn sleep(time: Duration) -> bool {
    let Some((run, id)) = me() else { return false };
    let until = run.state.lock().clock.checked_add(time);
    run.give_way(id, WaitReason::Sleeps, until);
    true
}

/// A random number from the seed of the run.
pub fn random() -> Option<u64> {
    me().map(|(run, _)| run.state.lock().random.number())
}

/// Time since some fixed point: virtual in a run, of the machine outside.
pub fn now() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    match me() {
        Some((run, _)) => run.state.lock().clock,
        None => START.get_or_init(Instant::now).elapsed(),
    }
}

/// A thread of the current run, not started yet.
pub(crate) struct PendingThread {
    run: Arc<Run>,
    pub id: usize,
}

/// Makes room for a thread in this thread's run.
pub(crate) fn pending_thread(name: &str) -> Option<PendingThread> {
    let (run, _) = me()?;
    Some(PendingThread { id: run.enter(name.into()), run })
}

impl PendingThread {
    /// On its own thread of the operating system.
    pub fn live(self, body: impl FnOnce()) {
        let id = self.id;
        self.run.live(id, body);
    }
}

/// The machine had no room for the thread.
pub(crate) fn never_started(id: usize) {
    if let Some((run, _)) = me() {
        run.state.lock().threads[id].waits = WaitReason::Ended;
    }
}

/// WaitReason until a thread of this run has ended.
pub(crate) fn join(id: usize) {
    let Some((run, me)) = me() else { return };
    loop {
        if run.state.lock().threads[id].waits == WaitReason::Ended {
            return;
        }
        run.give_way(me, WaitReason::For { what: "thread", address: id_address(id) }, None);
    }
}

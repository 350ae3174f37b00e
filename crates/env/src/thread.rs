//! Threads, with the interface of `std::thread`. Threads started by a thread of a simulated run
//! belong to that run.

pub use std::thread::{Result, available_parallelism, current, panicking};

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::schedule;

/// Sleeps, in virtual time if the thread is simulated.
pub fn sleep(time: Duration) {
    if !schedule::sleep(time) {
        std::thread::sleep(time);
    }
}

/// Yields to other threads.
pub fn yield_now() {
    if !schedule::yield_now() {
        std::thread::yield_now();
    }
}

/// Gives this thread the lowest priority of the operating system, for background work. Has no
/// effect on the schedule of a simulated run.
pub fn lower_priority() {
    // If the system does not allow this, the priority does not change.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

thread_local! {
    static WITHOUT_DESCRIPTORS: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread has a table of descriptors of its own. The descriptors that its process
/// has open are invalid in this table, or belong to other files.
pub fn give_up_descriptors() {
    WITHOUT_DESCRIPTORS.set(true);
}

/// Returns an error if this thread no longer shares the descriptors of its process. A thread must
/// call this before it uses a descriptor that another thread may have opened, because the
/// descriptor could refer to another file.
pub fn has_descriptors() -> io::Result<()> {
    match WITHOUT_DESCRIPTORS.get() {
        false => Ok(()),
        true => Err(io::Error::other("this thread has none of the descriptors of its process")),
    }
}

/// A handle with which to wait for a thread, like [`std::thread::JoinHandle`].
pub struct JoinHandle<T> {
    thread: std::thread::JoinHandle<Option<T>>,
    simulated: Option<usize>,
}

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended. Returns its result, or the panic that ended it.
    pub fn join(self) -> Result<T> {
        if let Some(id) = self.simulated {
            schedule::join(id);
        }
        ended(self.thread.join())
    }
}

/// Unwraps the outcome of a thread. If a simulated thread panics, its run fails and no thread of
/// the run continues, so this error is seen only outside of the run.
fn ended<T>(outcome: Result<Option<T>>) -> Result<T> {
    outcome.and_then(|value| {
        value.ok_or_else(|| Box::new("a thread of a simulated run panicked") as _)
    })
}

/// Starts threads with a name, like [`std::thread::Builder`].
#[derive(Default)]
pub struct Builder {
    name: String,
}

impl Builder {
    /// Creates a builder for a thread without a name.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Sets the name of the thread.
    pub fn name(self, name: String) -> Builder {
        Builder { name }
    }

    /// Starts a thread.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let pending = schedule::pending_thread(&self.name);
        let simulated = pending.as_ref().map(|pending| pending.id);
        let builder = std::thread::Builder::new().name(self.name);
        let thread = started(builder.spawn(move || live(pending, body)), simulated)?;
        schedule::point();
        Ok(JoinHandle { thread, simulated })
    }

    /// Starts a thread that ends before the scope.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &Scope<'scope, '_>,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        let pending = schedule::pending_thread(&self.name);
        let simulated = pending.as_ref().map(|pending| pending.id);
        let builder = std::thread::Builder::new().name(self.name);
        let thread = builder.spawn_scoped(scope.threads, move || live(pending, body));
        let thread = started(thread, simulated)?;
        scope.simulated.borrow_mut().extend(simulated);
        schedule::point();
        Ok(ScopedJoinHandle { thread, simulated })
    }
}

/// Runs the body of a new thread, under the schedule if the thread is simulated. Returns `None` if
/// the body panicked under the schedule.
fn live<T>(pending: Option<schedule::PendingThread>, body: impl FnOnce() -> T) -> Option<T> {
    let Some(pending) = pending else { return Some(body()) };
    let mut value = None;
    pending.live(|| value = Some(body()));
    value
}

/// Removes a thread from its run if it could not be started.
fn started<H>(thread: io::Result<H>, simulated: Option<usize>) -> io::Result<H> {
    thread.inspect_err(|_| simulated.into_iter().for_each(schedule::never_started))
}

/// Starts a thread.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(body).expect("the machine has room for a thread")
}

/// A scope of threads that end before [`scope`] returns, like [`std::thread::Scope`].
pub struct Scope<'scope, 'env: 'scope> {
    threads: &'scope std::thread::Scope<'scope, 'env>,
    simulated: RefCell<Vec<usize>>,
}

/// A handle with which to wait for a thread of a scope, like [`std::thread::ScopedJoinHandle`].
pub struct ScopedJoinHandle<'scope, T> {
    thread: std::thread::ScopedJoinHandle<'scope, Option<T>>,
    simulated: Option<usize>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits until the thread has ended. Returns its result, or the panic that ended it.
    pub fn join(self) -> Result<T> {
        if let Some(id) = self.simulated {
            schedule::join(id);
        }
        ended(self.thread.join())
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread.
    pub fn spawn<T: Send + 'scope>(
        &self,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        Builder::new().spawn_scoped(self, body).expect("the machine has room for a thread")
    }
}

/// Runs `body` with a scope, and waits for the threads started in it, like [`std::thread::scope`].
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|threads| {
        let scope = Scope { threads, simulated: RefCell::default() };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        // The scope of `std` waits outside of the schedule, so all simulated threads must have
        // ended before that.
        let simulated = scope.simulated.take();
        match outcome {
            Ok(value) => {
                simulated.into_iter().for_each(schedule::join);
                value
            }
            Err(panic) => {
                schedule::fail_unless_ended(&simulated, &*panic);
                resume_unwind(panic)
            }
        }
    })
}

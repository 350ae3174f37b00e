//! Threads, with the interface of `std::thread`: those started by a thread of a simulated run
//! belong to that run.

pub use std::thread::{Result, available_parallelism, current, panicking};

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use crate::schedule;

pub fn sleep(time: Duration) {
    if !schedule::sleep(time) {
        std::thread::sleep(time);
    }
}

pub fn yield_now() {
    if !schedule::yield_now() {
        std::thread::yield_now();
    }
}

/// Lets all other threads go before this one: it works on what nobody waits for. Of a simulated
/// run, the seed goes on deciding.
pub fn give_way() {
    // Where that is not allowed it goes on as it is.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

pub struct JoinHandle<T> {
    thread: std::thread::JoinHandle<Option<T>>,
    simulated: Option<usize>,
}

impl<T> JoinHandle<T> {
    pub fn join(self) -> Result<T> {
        if let Some(id) = self.simulated {
            schedule::join(id);
        }
        ended(self.thread.join())
    }
}

/// A simulated thread that panicked has failed its run, and whoever joins it never goes on.
fn ended<T>(outcome: Result<Option<T>>) -> Result<T> {
    outcome.and_then(|value| {
        value.ok_or_else(|| Box::new("a thread of a simulated run panicked") as _)
    })
}

#[derive(Default)]
pub struct Builder {
    name: String,
}

impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }

    pub fn name(self, name: String) -> Builder {
        Builder { name }
    }

    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let pending = schedule::pending_thread(&self.name);
        let simulated = pending.as_ref().map(|pending| pending.id);
        let builder = std::thread::Builder::new().name(self.name);
        let thread = match pending {
            None => builder.spawn(move || Some(body())),
            Some(pending) => builder.spawn(move || {
                let mut value = None;
                pending.live(|| value = Some(body()));
                value
            }),
        };
        let thread =
            thread.inspect_err(|_| simulated.into_iter().for_each(schedule::never_started))?;
        schedule::point();
        Ok(JoinHandle { thread, simulated })
    }

    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &Scope<'scope, '_>,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        let pending = schedule::pending_thread(&self.name);
        let simulated = pending.as_ref().map(|pending| pending.id);
        let builder = std::thread::Builder::new().name(self.name);
        let thread = match pending {
            None => builder.spawn_scoped(scope.threads, move || Some(body())),
            Some(pending) => builder.spawn_scoped(scope.threads, move || {
                let mut value = None;
                pending.live(|| value = Some(body()));
                value
            }),
        };
        let thread =
            thread.inspect_err(|_| simulated.into_iter().for_each(schedule::never_started))?;
        scope.simulated.borrow_mut().extend(simulated);
        schedule::point();
        Ok(ScopedJoinHandle { thread, simulated })
    }
}

pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(body).expect("the machine has room for a thread")
}

/// Threads that end before [`scope`] returns.
pub struct Scope<'scope, 'env: 'scope> {
    threads: &'scope std::thread::Scope<'scope, 'env>,
    simulated: RefCell<Vec<usize>>,
}

pub struct ScopedJoinHandle<'scope, T> {
    thread: std::thread::ScopedJoinHandle<'scope, Option<T>>,
    simulated: Option<usize>,
}

impl<T> ScopedJoinHandle<'_, T> {
    pub fn join(self) -> Result<T> {
        if let Some(id) = self.simulated {
            schedule::join(id);
        }
        ended(self.thread.join())
    }
}

impl<'scope> Scope<'scope, '_> {
    pub fn spawn<T: Send + 'scope>(
        &self,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        Builder::new().spawn_scoped(self, body).expect("the machine has room for a thread")
    }
}

pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|threads| {
        let scope = Scope { threads, simulated: RefCell::default() };
        let value = body(&scope);
        // The scope of the machine waits outside of the schedule: it may find only threads that
        // have ended.
        scope.simulated.take().into_iter().for_each(schedule::join);
        value
    })
}

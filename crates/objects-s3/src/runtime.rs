//! Runs requests of an asynchronous client for threads that block.
//!
//! The runtime has two threads of its own. A caller hands its request over and waits on a condition
//! variable; it never runs a future itself, so any thread may call, and any number at once.

use std::future::Future;
use std::sync::Arc;

use env::sync::{Condvar, Mutex};
use tokio::runtime::{Builder, Runtime};

/// The threads that carry requests.
pub(crate) struct Engine(Option<Runtime>);

/// The outcome that a caller waits for.
struct Slot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Running,
    Done(T),
    /// The request has panicked, or the runtime has ended before it.
    Dropped,
}

/// The request's side of a slot. When it is dropped the slot changes its state, so that no caller
/// waits forever.
struct Promise<T>(Arc<Slot<T>>);

impl<T> Promise<T> {
    fn set(&self, to: State<T>) {
        let mut state = self.0.state.lock();
        if matches!(*state, State::Running) {
            *state = to;
            self.0.changed.notify_all();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.set(State::Dropped);
    }
}

impl Engine {
    /// Starts the threads.
    pub fn start() -> std::io::Result<Engine> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("objects-s3")
            .enable_all()
            .build()?;
        Ok(Engine(Some(runtime)))
    }

    /// Runs the request to its end, and blocks until then. Returns `None` if it has no outcome,
    /// because it has panicked: then it is not known how far it came.
    pub fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let slot = Arc::new(Slot { state: Mutex::new(State::Running), changed: Condvar::new() });
        let promise = Promise(slot.clone());
        self.0.as_ref()?.spawn(async move { promise.set(State::Done(request.await)) });
        let mut state = slot.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Running) {
                State::Running => slot.changed.wait(&mut state),
                State::Done(value) => return Some(value),
                State::Dropped => return None,
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Requests that were abandoned may still be running, and need not be waited for.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn many_callers_wait_at_once() {
        let engine = Engine::start().expect("threads");
        let start = Instant::now();
        env::thread::scope(|scope| {
            for n in 0..64 {
                let engine = &engine;
                scope.spawn(move || {
                    let request = async move {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        n
                    };
                    assert_eq!(engine.run(request), Some(n));
                });
            }
        });
        assert!(start.elapsed() < Duration::from_secs(3), "they ran one after the other");
    }

    #[test]
    fn a_panic_reaches_the_caller_as_no_outcome() {
        let engine = Engine::start().expect("threads");
        let fails = || -> u8 { panic!("in a request") };
        assert_eq!(engine.run(async move { fails() }), None);
        assert_eq!(engine.run(async { 1 }), Some(1));
    }
}

//! A background thread that calls a function at an interval.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use env::sync::{Condvar, Mutex};

/// The state on which the thread waits. It is separate from the thread's owner, so that waiting
/// does not keep the owner alive.
#[derive(Default)]
pub(crate) struct Ticker {
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Ticker {
    /// Starts a thread that calls `tick` every `pause`, until `tick` breaks, the ticker is stopped,
    /// or `owner` is dropped.
    pub fn start<T: Send + Sync + 'static>(
        self: &Arc<Self>,
        name: &str,
        pause: Duration,
        owner: Weak<T>,
        tick: impl Fn(Arc<T>) -> ControlFlow<()> + Send + 'static,
    ) -> io::Result<()> {
        let ticker = self.clone();
        let run = move || {
            loop {
                let mut stop = ticker.stop.lock();
                if !*stop {
                    ticker.wake.wait_for(&mut stop, pause);
                }
                if *stop {
                    return;
                }
                drop(stop);
                let Some(owner) = owner.upgrade() else { return };
                if tick(owner).is_break() {
                    return;
                }
            }
        };
        env::thread::Builder::new().name(name.into()).spawn(run).map(drop)
    }

    /// Makes the thread call `tick` now. A thread that is in such a call makes the next one after
    /// the usual pause.
    pub fn wake(&self) {
        self.wake.notify_all();
    }

    /// Makes the thread exit, after a call that may be under way.
    pub fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
    }
}

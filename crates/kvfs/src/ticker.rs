//! A background thread that calls a function at an interval.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use env::sync::{Condvar, Mutex};

/// What the thread waits on; apart from the thread's owner, so that waiting does not keep the owner
/// alive.
#[derive(Default)]
pub(crate) struct Ticker {
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Ticker {
    /// Starts a thread that calls `tick` every `pause`, until it breaks, the ticker is stopped or
    /// `owner` is dropped.
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

    /// Has the thread call `tick` now, unless it is in such a call: then at the next interval.
    pub fn wake(&self) {
        self.wake.notify_all();
    }

    /// Has the thread exit after the call that it may be in.
    pub fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
    }
}

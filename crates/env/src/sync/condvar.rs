//! A condition variable for the scheduled mutex. Outside of a run it counts its signals under a
//! lock, and a signal wakes all waiters; a waiter must check its condition again in any case.

use std::time::Duration;

use super::MutexGuard;
use crate::schedule;

/// A condition variable, like that of `parking_lot`.
#[derive(Default)]
pub struct Condvar {
    signals: parking_lot::Mutex<u64>,
    signalled: parking_lot::Condvar,
}

/// The result of a wait with a timeout. It says whether the wait has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the timeout elapsed before a signal.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar { signals: parking_lot::Mutex::new(0), signalled: parking_lot::Condvar::new() }
    }

    /// Wakes at least one waiter.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.notify(usize::MAX);
    }

    fn notify(&self, most: usize) {
        *self.signals.lock() += 1;
        self.signalled.notify_all();
        schedule::wake(self.address(), most);
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Releases the lock of `guard`, waits for a signal, and takes the lock again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at_most(guard, None);
    }

    /// Releases the lock of `guard`, waits for a signal or a timeout, and takes the lock again.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        at_most: Duration,
    ) -> WaitTimeoutResult {
        self.wait_at_most(guard, Some(at_most))
    }

    fn wait_at_most<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        at_most: Option<Duration>,
    ) -> WaitTimeoutResult {
        if schedule::simulated() {
            // Only the running thread can signal. Until this thread waits, it is the running
            // thread, so no signal is lost.
            return WaitTimeoutResult(MutexGuard::unlocked(guard, || {
                schedule::wait("signal", self.address(), at_most)
            }));
        }
        let mut signals = self.signals.lock();
        let before = *signals;
        WaitTimeoutResult(MutexGuard::unlocked(guard, move || {
            let unchanged = |signals: &mut u64| *signals == before;
            match at_most {
                Some(time) => {
                    self.signalled.wait_while_for(&mut signals, unchanged, time).timed_out()
                }
                None => {
                    self.signalled.wait_while(&mut signals, unchanged);
                    false
                }
            }
        }))
    }
}

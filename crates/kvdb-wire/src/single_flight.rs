//! Lets one thread make a value, for example a connection, for all threads that need it. The others
//! wait, each until its own deadline. If the attempt fails, they fail with it, so that a dead
//! server costs them one attempt together instead of one after the other.

use env::Instant;
use env::sync::{Condvar, Mutex};

use crate::deadline::left;
use crate::error::{Error, Result};

/// The value that was made last, shared by all threads.
pub struct SingleFlight<T> {
    state: Mutex<State<T>>,
    /// Notified when an attempt has ended.
    ended: Condvar,
}

struct State<T> {
    made: Option<T>,
    is_making: bool,
    /// Number of attempts that have ended.
    attempts: u64,
    /// The error of the last attempt, if it failed.
    failed: Option<Error>,
}

impl<T: Clone> SingleFlight<T> {
    pub fn new(made: Option<T>) -> SingleFlight<T> {
        let state = State { made, is_making: false, attempts: 0, failed: None };
        SingleFlight { state: Mutex::new(state), ended: Condvar::new() }
    }

    /// Returns the current value if it is `good`. Otherwise returns the value that this thread
    /// makes, or that another thread is already making.
    pub fn get(
        &self,
        deadline: impl Into<Option<Instant>>,
        good: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let deadline = deadline.into();
        let mut state = self.state.lock();
        let begun = state.attempts;
        loop {
            if let Some(made) = state.made.as_ref().filter(|made| good(made)) {
                return Ok(made.clone());
            }
            if state.attempts != begun
                && let Some(why) = &state.failed
            {
                return Err(why.again());
            }
            if !state.is_making {
                break;
            }
            match deadline {
                Some(deadline) => {
                    let time = left(deadline)?;
                    self.ended.wait_for(&mut state, time);
                }
                None => self.ended.wait(&mut state),
            }
        }
        state.is_making = true;
        drop(state);
        // The guard ends the attempt even if `make` panics.
        let turn = Turn(self);
        let has_time = deadline.map_or(Ok(()), |deadline| left(deadline).map(drop));
        let made = has_time.map_err(Error::from).and_then(|()| make());
        let mut state = self.state.lock();
        match &made {
            Ok(made) => (state.made, state.failed) = (Some(made.clone()), None),
            Err(e) => state.failed = Some(e.again()),
        }
        drop(state);
        drop(turn);
        made
    }

    /// Returns the current value.
    pub fn peek(&self) -> Option<T> {
        self.state.lock().made.clone()
    }

    /// Takes the current value.
    pub fn take(&self) -> Option<T> {
        self.state.lock().made.take()
    }
}

struct Turn<'a, T>(&'a SingleFlight<T>);

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_making = false;
        state.attempts += 1;
        drop(state);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn those_that_wait_fail_with_the_attempt_that_they_waited_for() {
        let flight = Arc::new(SingleFlight::<u8>::new(None));
        let (begun, begins) = channel();
        let (ends, end) = channel::<()>();
        std::thread::scope(|scope| {
            let (first, waiter) = (flight.clone(), flight.clone());
            scope.spawn(move || {
                let made = first.get(
                    soon(),
                    |_| true,
                    || {
                        begun.send(()).unwrap();
                        let _ = end.recv();
                        Err(Error::Closed)
                    },
                );
                assert!(made.is_err());
            });
            begins.recv().unwrap();
            let early = Instant::now() + Duration::from_millis(5);
            let late = waiter.get(early, |_| true, || panic!("another one makes it"));
            assert!(late.is_err_and(|e| e.is_of_connection()), "its deadline is its own");
            drop(ends);
        });
        assert_eq!(flight.get(soon(), |_| true, || Ok(7)).unwrap(), 7, "it is tried again");
        assert_eq!(flight.get(soon(), |_| true, || panic!("it is here")).unwrap(), 7);
    }
}

//! How it is known that everything the kernel has sent until now has been done: all threads that answer requests meet.
//!
//! A thread takes one request after the other, in the order in which the kernel queues them. So when all threads stand still at the same
//! time, each with a request in hand that was queued after others, all those others are done. The requests in hand are writes to
//! a file that exists for this alone: writes of pages stand in one queue with the pages that the kernel has written back before.
//!
//! Whoever is held up by a slow request keeps the others waiting; not for long.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long threads wait for each other.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(crate) struct Rendezvous {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads that are still to come; 0: nobody is waited for.
    missing: usize,
    /// Meetings so far.
    meeting: u64,
    /// The last one that all came to.
    complete: u64,
}

/// A meeting that was called.
pub(crate) struct Meeting<'a> {
    place: &'a Rendezvous,
    number: u64,
}

impl Rendezvous {
    /// Calls so many threads. One meeting at a time.
    pub fn call(&self, threads: usize) -> Meeting<'_> {
        let mut state = self.state.lock();
        state.meeting += 1;
        state.missing = threads;
        if threads == 0 {
            state.complete = state.meeting;
        }
        Meeting { place: self, number: state.meeting }
    }

    /// A thread has come; it leaves when all have come, or when they let it wait for too long.
    pub fn arrive(&self) {
        let mut state = self.state.lock();
        if state.missing == 0 {
            return;
        }
        state.missing -= 1;
        let meeting = state.meeting;
        if state.missing == 0 {
            state.complete = meeting;
            self.wake.notify_all();
            return;
        }
        let until = Instant::now() + PATIENCE;
        while state.meeting == meeting && state.complete < meeting && state.missing > 0 {
            if self.wake.wait_until(&mut state, until).timed_out() {
                // Nobody is kept waiting for those who did not come.
                state.missing = 0;
                self.wake.notify_all();
            }
        }
    }
}

impl Meeting<'_> {
    /// All were there at the same time.
    pub fn have_come(&self) -> bool {
        self.place.state.lock().complete >= self.number
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn all_leave_together() {
        let place = Arc::new(Rendezvous::default());
        place.arrive();
        for _ in 0..3 {
            let meeting = place.call(3);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let place = place.clone();
                    std::thread::spawn(move || place.arrive())
                })
                .collect();
            assert!(!meeting.have_come());
            place.arrive();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert!(meeting.have_come());
        }
        assert!(place.call(0).have_come());
    }

    #[test]
    fn nobody_waits_for_long() {
        let place = Rendezvous::default();
        let meeting = place.call(2);
        place.arrive();
        assert!(!meeting.have_come());
        // Late, but let through.
        place.arrive();
    }
}

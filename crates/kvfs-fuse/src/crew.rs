//! The threads that answer requests, and what happens when all of them are held up.
//!
//! Most answers take microseconds, and as many threads as there are cores give them. But a call in a serializable transaction may wait for
//! another transaction, for seconds, and the program that would end that one needs answers, too. So somebody looks from time to time: when
//! every thread has had the same request in hand as at the look before, one more is started. It goes home when it is not needed any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Threads at most.
const MOST: usize = 64;
/// How often somebody looks, when there is something to wait for, and when there is not.
const OFTEN: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(500);

/// What a thread says of itself: an odd number while it has a request in hand, and another one for each.
#[derive(Default)]
// A cache line of its own, for it is written with every request.
#[repr(align(64))]
pub(crate) struct Seat(AtomicU64);

impl Seat {
    /// Takes a request up, until what this returns is dropped.
    pub fn work(&self) -> Working<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Working(self)
    }
}

pub(crate) struct Working<'a>(&'a Seat);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// All threads of one mount.
pub(crate) struct Crew {
    /// Threads there always are.
    base: usize,
    seats: Mutex<Vec<Arc<Seat>>>,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl Crew {
    pub fn new(base: usize) -> Crew {
        Crew { base, seats: Mutex::default(), ended: Mutex::new(false), wake: Condvar::new() }
    }

    /// A thread joins.
    pub fn join(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat::default());
        self.seats.lock().push(seat.clone());
        seat
    }

    pub fn leave(&self, seat: &Arc<Seat>) {
        self.seats.lock().retain(|s| !Arc::ptr_eq(s, seat));
    }

    /// Leaves if enough others have nothing to do. For a thread that came to help, with nothing in hand.
    pub fn leave_if_not_needed(&self, seat: &Arc<Seat>) -> bool {
        let mut seats = self.seats.lock();
        let idle = seats.iter().filter(|s| s.0.load(Ordering::Relaxed).is_multiple_of(2)).count();
        // This one is among them.
        let leaves = idle > self.base;
        if leaves {
            seats.retain(|s| !Arc::ptr_eq(s, seat));
        }
        leaves
    }

    pub fn threads(&self) -> usize {
        self.seats.lock().len()
    }

    /// Looks after the threads until the end. `stalls`: whether a request may take long now; `help` starts one more thread.
    pub fn look_after(&self, stalls: impl Fn() -> bool, mut help: impl FnMut()) {
        let mut before = Vec::new();
        let mut ended = self.ended.lock();
        while !*ended {
            let pause = if stalls() { OFTEN } else { SELDOM };
            self.wake.wait_for(&mut ended, pause);
            let now: Vec<u64> = self.seats.lock().iter().map(|s| s.0.load(Ordering::Relaxed)).collect();
            if !*ended && now == before && now.len() < MOST && now.iter().all(|n| !n.is_multiple_of(2)) {
                help();
            }
            before = now;
        }
    }

    pub fn end(&self) {
        *self.ended.lock() = true;
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn help_comes_when_all_are_held_up_and_leaves_when_they_are_not() {
        let crew = Arc::new(Crew::new(2));
        let (a, b) = (crew.join(), crew.join());
        let (call, called) = channel();
        let looking = {
            let crew = crew.clone();
            std::thread::spawn(move || crew.look_after(|| true, || call.send(crew.join()).unwrap()))
        };
        let working = a.work();
        assert!(called.recv_timeout(OFTEN * 5).is_err(), "one of them is free");
        let also = b.work();
        let helper = called.recv().unwrap();
        assert_eq!(crew.threads(), 3);
        assert!(!crew.leave_if_not_needed(&helper));
        drop(working);
        assert!(!crew.leave_if_not_needed(&helper), "with it there are two");
        drop(also);
        assert!(crew.leave_if_not_needed(&helper));
        assert_eq!(crew.threads(), 2);
        crew.end();
        looking.join().unwrap();
    }
}

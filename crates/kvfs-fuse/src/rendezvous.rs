//! How it is known that every page that the kernel has written back until now has been taken: the threads that answer requests meet.
//!
//! A thread takes one request after the other, in the order in which the kernel queues them. Pages of a file that exists for this alone are queued
//! behind all others (`barrier`). When a thread has one of these in hand it waits, and so does the next thread, until of every thread one of two
//! things is known: it stands here, or it has a request in hand that writes back no page. Then all pages that were queued before are done. So
//! nobody waits for a thread that is held up by something else, as by the lock of a transaction.
//!
//! Threads that stand here answer nothing else; so a meeting that does not come about is given up soon, and called again.

use std::collections::HashSet;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long threads stand and wait for others.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often threads that do not come here are looked at.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Default)]
pub(crate) struct Rendezvous {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Meetings so far.
    meeting: u64,
    /// One is under way.
    open: bool,
    here: HashSet<ThreadId>,
}

/// A meeting that was called, until this is dropped.
pub(crate) struct Meeting<'a>(&'a Rendezvous);

impl Rendezvous {
    /// Calls all threads. One meeting at a time.
    pub fn call(&self) -> Meeting<'_> {
        let mut state = self.state.lock();
        state.meeting += 1;
        state.open = true;
        state.here.clear();
        Meeting(self)
    }

    /// A thread has come, with a page of the barrier in hand; it leaves when the meeting is over.
    pub fn arrive(&self) {
        let mut state = self.state.lock();
        let meeting = state.meeting;
        if !state.open {
            return;
        }
        state.here.insert(std::thread::current().id());
        self.wake.notify_all();
        // Whoever has called may be gone.
        let until = Instant::now() + 2 * PATIENCE;
        while state.open && state.meeting == meeting && !self.wake.wait_until(&mut state, until).timed_out() {}
        if state.meeting == meeting {
            state.here.remove(&std::thread::current().id());
        }
    }
}

impl Meeting<'_> {
    /// Waits until all are here but those that `done` says have nothing in hand that matters; `false`: that takes too long.
    pub fn has_all(&self, all: impl Fn() -> Vec<(ThreadId, bool)>) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut state = self.0.state.lock();
        loop {
            // The first page of the barrier must have been taken: only then everything before it has been, too.
            if !state.here.is_empty() && all().iter().all(|(thread, done)| *done || state.here.contains(thread)) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            self.0.wake.wait_for(&mut state, LOOK);
        }
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().open = false;
        self.0.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    /// A thread that comes when told to; its number, and the end of it.
    fn comer(place: &Arc<Rendezvous>) -> (ThreadId, std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
        let (go, told) = channel();
        let place = place.clone();
        let thread = std::thread::spawn(move || {
            told.recv().unwrap();
            place.arrive();
        });
        (thread.thread().id(), go, thread)
    }

    #[test]
    fn all_must_come_but_those_with_other_work() {
        let place = Arc::new(Rendezvous::default());
        place.arrive();
        let (a, go_a, end_a) = comer(&place);
        let (b, go_b, end_b) = comer(&place);
        let meeting = place.call();
        assert!(!meeting.has_all(|| vec![(a, true), (b, true)]), "nobody has taken a page of the barrier yet");
        go_a.send(()).unwrap();
        assert!(meeting.has_all(|| vec![(a, false), (b, true)]), "the other one has other work");
        assert!(!meeting.has_all(|| vec![(a, false), (b, false)]), "the other one may have a page in hand");
        drop(meeting);
        end_a.join().unwrap();
        let meeting = place.call();
        go_b.send(()).unwrap();
        assert!(meeting.has_all(|| vec![(b, false)]));
        drop(meeting);
        end_b.join().unwrap();
    }
}

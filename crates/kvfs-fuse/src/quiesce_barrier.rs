//! A barrier that proves that every page that the kernel has written back so far has been taken.
//!
//! A thread takes one request at a time, in the order in which the kernel queues them. Pages of a
//! file that exists only for this purpose are queued after all other pages (`barrier`). A thread
//! that takes one of these pages waits in the barrier, until each thread either waits there too, or
//! serves a request that writes back no page. Then all pages that were queued earlier have been
//! written. A thread that is blocked for another reason, such as the lock of a transaction, delays
//! no round.
//!
//! Threads that wait in the barrier answer nothing else, so a round that does not complete is soon
//! abandoned and started again.

use std::collections::HashSet;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The time that threads wait in the barrier for other threads.
const PATIENCE: Duration = Duration::from_millis(250);
/// The interval at which the threads that have not arrived are examined.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Default)]
pub(crate) struct QuiesceBarrier {
    state: Mutex<BarrierState>,
    wake: Condvar,
}

#[derive(Default)]
struct BarrierState {
    /// The number of rounds begun.
    round: u64,
    /// A round is in progress.
    open: bool,
    here: HashSet<ThreadId>,
}

/// A round, which is in progress until this value is dropped.
pub(crate) struct QuiesceRound<'a>(&'a QuiesceBarrier);

impl QuiesceBarrier {
    /// Begins a round for all threads. Only one round is in progress at a time.
    pub fn call(&self) -> QuiesceRound<'_> {
        let mut state = self.state.lock();
        state.round += 1;
        state.open = true;
        state.here.clear();
        QuiesceRound(self)
    }

    /// Waits in the barrier until the round ends, if a round is in progress. A thread calls this
    /// method when it has taken a page of the barrier.
    pub fn arrive(&self) {
        let mut state = self.state.lock();
        let round = state.round;
        if !state.open {
            return;
        }
        state.here.insert(std::thread::current().id());
        self.wake.notify_all();
        // The thread that began the round may have ended.
        let until = Instant::now() + 2 * PATIENCE;
        while state.open
            && state.round == round
            && !self.wake.wait_until(&mut state, until).timed_out()
        {}
        if state.round == round {
            state.here.remove(&std::thread::current().id());
        }
    }
}

impl QuiesceRound<'_> {
    /// Waits until all threads have arrived, except threads for which `all` returns `true`, because
    /// their requests write back no page. Returns `false` after a timeout.
    pub fn has_all(&self, all: impl Fn() -> Vec<(ThreadId, bool)>) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut state = self.0.state.lock();
        loop {
            // The first page of the barrier must have been taken, because only then has every
            // earlier page been taken.
            if !state.here.is_empty()
                && all().iter().all(|(thread, done)| *done || state.here.contains(thread))
            {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            self.0.wake.wait_for(&mut state, LOOK);
        }
    }
}

impl Drop for QuiesceRound<'_> {
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

    /// Starts a thread that arrives on a message. Returns its id, the sender of the message, and
    /// its handle.
    fn comer(
        place: &Arc<QuiesceBarrier>,
    ) -> (ThreadId, std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
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
        let place = Arc::new(QuiesceBarrier::default());
        place.arrive();
        let (a, go_a, end_a) = comer(&place);
        let (b, go_b, end_b) = comer(&place);
        let round = place.call();
        assert!(
            !round.has_all(|| vec![(a, true), (b, true)]),
            "no thread has taken a page of the barrier yet"
        );
        go_a.send(()).unwrap();
        assert!(round.has_all(|| vec![(a, false), (b, true)]), "the other one has other work");
        assert!(
            !round.has_all(|| vec![(a, false), (b, false)]),
            "the other one may have a page in hand"
        );
        drop(round);
        end_a.join().unwrap();
        let round = place.call();
        go_b.send(()).unwrap();
        assert!(round.has_all(|| vec![(b, false)]));
        drop(round);
        end_b.join().unwrap();
    }
}

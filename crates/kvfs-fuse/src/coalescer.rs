//! Does work once for all callers that request it while a round of the work is in progress. Each
//! call is served by a round that begins after the call, together with all calls that arrive before
//! that round begins.

use parking_lot::{Condvar, Mutex};

pub(crate) struct Coalescer<T> {
    state: Mutex<CoalescerState<T>>,
    wake: Condvar,
}

impl<T> Default for Coalescer<T> {
    fn default() -> Self {
        Coalescer {
            state: Mutex::new(CoalescerState { begun: 0, done: 0, outcome: None }),
            wake: Condvar::new(),
        }
    }
}

struct CoalescerState<T> {
    /// The number of rounds begun.
    begun: u64,
    done: u64,
    /// The result of the last round that is done, or `None` if it panicked.
    outcome: Option<T>,
}

/// The round that is in progress. The round ends when this value is dropped, even by a panic.
struct Round<'a, T>(&'a Coalescer<T>, Option<T>);

impl<T> Drop for Round<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.done = state.begun;
        state.outcome = self.1.take();
        self.0.wake.notify_all();
    }
}

impl<T: Clone> Coalescer<T> {
    /// Waits for a round of `work` that began after this call, on this thread or another one, and
    /// returns the result of the round. Returns `None` if the round panicked.
    pub fn run(&self, work: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        while state.done < state.begun {
            self.wake.wait(&mut state);
            if state.done >= wanted {
                return state.outcome.clone();
            }
        }
        state.begun += 1;
        drop(state);
        let mut round = Round(self, None);
        let outcome = work();
        round.1 = Some(outcome.clone());
        Some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn those_who_come_during_a_round_share_the_next_one() {
        let coalescer = Arc::new(Coalescer::default());
        let rounds = Arc::new(AtomicUsize::new(0));
        let (go, wait) = channel::<()>();
        let (say, begun) = channel();
        let first = {
            let (coalescer, rounds) = (coalescer.clone(), rounds.clone());
            std::thread::spawn(move || {
                coalescer.run(|| {
                    say.send(()).unwrap();
                    wait.recv().unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst)
                });
            })
        };
        begun.recv().unwrap();
        let others: Vec<_> = (0..8)
            .map(|_| {
                let (coalescer, rounds) = (coalescer.clone(), rounds.clone());
                std::thread::spawn(move || {
                    let nth = coalescer.run(|| rounds.fetch_add(1, Ordering::SeqCst));
                    assert!(
                        nth.expect("no round panicked") >= 1,
                        "what was under way does not count"
                    );
                    assert!(
                        rounds.load(Ordering::SeqCst) >= 2,
                        "what was under way does not count"
                    );
                })
            })
            .collect();
        go.send(()).unwrap();
        first.join().unwrap();
        others.into_iter().for_each(|t| t.join().unwrap());
        assert!((2..=9).contains(&rounds.load(Ordering::SeqCst)));
        coalescer.run(|| rounds.fetch_add(1, Ordering::SeqCst));
    }
}

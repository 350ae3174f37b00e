//! Work that is done once for all who ask for it meanwhile: who asks gets one that began after he asked, with all others that have come
//! until it begins.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Together {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Rounds of work so far.
    begun: u64,
    done: u64,
}

/// The round that is under way, over when this is dropped, by a panic as well.
struct Round<'a>(&'a Together);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.done = state.begun;
        self.0.wake.notify_all();
    }
}

impl Together {
    /// Returns when a round of `work` has been done that began after this was called, here or by another thread.
    pub fn run(&self, work: impl FnOnce()) {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        while state.done < state.begun {
            self.wake.wait(&mut state);
            if state.done >= wanted {
                return;
            }
        }
        state.begun += 1;
        drop(state);
        let _round = Round(self);
        work();
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
        let together = Arc::new(Together::default());
        let rounds = Arc::new(AtomicUsize::new(0));
        let (go, wait) = channel::<()>();
        let (say, begun) = channel();
        let first = {
            let (together, rounds) = (together.clone(), rounds.clone());
            std::thread::spawn(move || {
                together.run(|| {
                    say.send(()).unwrap();
                    wait.recv().unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                });
            })
        };
        begun.recv().unwrap();
        let others: Vec<_> = (0..8)
            .map(|_| {
                let (together, rounds) = (together.clone(), rounds.clone());
                std::thread::spawn(move || {
                    together.run(|| {
                        rounds.fetch_add(1, Ordering::SeqCst);
                    });
                    assert!(rounds.load(Ordering::SeqCst) >= 2, "what was under way does not count");
                })
            })
            .collect();
        go.send(()).unwrap();
        first.join().unwrap();
        others.into_iter().for_each(|t| t.join().unwrap());
        assert!((2..=9).contains(&rounds.load(Ordering::SeqCst)));
        together.run(|| {
            rounds.fetch_add(1, Ordering::SeqCst);
        });
    }
}

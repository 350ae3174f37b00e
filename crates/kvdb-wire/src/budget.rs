//! The memory budget that the pending answers of all connections share. A connection that waits for
//! memory reads no further requests, so they remain in its socket (backpressure).

use std::sync::Arc;

use env::sync::{Condvar, Mutex};

/// A budget of bytes, of which callers reserve shares.
pub struct Budget {
    most: usize,
    free: Mutex<usize>,
    /// Notified when bytes are released.
    freed: Condvar,
}

/// A reserved part of a budget, released when it is dropped.
pub struct Share {
    of: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub fn new(most: usize) -> Arc<Budget> {
        Arc::new(Budget { most, free: Mutex::new(most), freed: Condvar::new() })
    }

    /// Waits until `bytes` are free, and reserves them. If the whole budget is smaller, it reserves
    /// the whole budget.
    pub fn take(self: &Arc<Budget>, bytes: usize) -> Share {
        let bytes = bytes.min(self.most);
        let mut free = self.free.lock();
        while *free < bytes {
            self.freed.wait(&mut free);
        }
        *free -= bytes;
        Share { of: self.clone(), bytes }
    }
}

impl Share {
    /// Releases all but `to` bytes.
    pub fn shrink(&mut self, to: usize) {
        let spare = self.bytes.saturating_sub(to);
        if spare > 0 {
            self.bytes -= spare;
            *self.of.free.lock() += spare;
            self.of.freed.notify_all();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_never_more_than_the_budget() {
        for seed in 0..100 {
            let ran = env::schedule::run(seed, || {
                let budget = Budget::new(10);
                let threads: Vec<_> = (1..5)
                    .map(|i| {
                        let budget = budget.clone();
                        env::thread::spawn(move || {
                            let mut share = budget.take(i * 4);
                            assert!(*budget.free.lock() <= 10 - share.bytes);
                            share.shrink(1);
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                *budget.free.lock()
            });
            assert_eq!(ran.unwrap().value, 10, "seed {seed}");
        }
    }
}

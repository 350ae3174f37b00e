//! Memory that is charged to all clients together. The counters are here, and [`Limits`] has
//! their limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::limits::Limits;
use crate::output::Budget;

/// The memory that the clients of a server use together.
pub struct Memory {
    /// The number of bytes of large incoming requests, of commands between `MULTI` and `EXEC`,
    /// and of watched keys.
    requests: AtomicUsize,
    most_requests: usize,
    /// The number of `WATCH` commands that are in force.
    watches: AtomicUsize,
    most_watches: usize,
    whole_replies: Arc<Budget>,
    unsent: Arc<Budget>,
    ahead: Arc<Budget>,
}

impl Memory {
    pub fn new(limits: &Limits) -> Memory {
        Memory {
            requests: AtomicUsize::new(0),
            most_requests: limits.requests,
            watches: AtomicUsize::new(0),
            most_watches: limits.watches,
            whole_replies: Arc::new(Budget::new(limits.whole_replies)),
            unsent: Arc::new(Budget::new(limits.all_unsent)),
            ahead: Arc::new(Budget::new(limits.all_ahead)),
        }
    }

    /// Charges memory for requests. Returns `false`, and charges none, if there is too little.
    #[must_use]
    pub fn take_for_requests(&self, bytes: usize) -> bool {
        let fits = self.requests.fetch_add(bytes, Relaxed) + bytes <= self.most_requests;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }
    /// Releases memory that was charged for requests.
    pub fn give_back(&self, bytes: usize) {
        self.requests.fetch_sub(bytes, Relaxed);
    }
    /// Returns the number of bytes that requests use.
    #[cfg(test)]
    pub fn of_requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    /// Counts a `WATCH`. Returns the limit, and counts none, if the limit has been reached.
    pub fn begin_watch(&self) -> Result<(), usize> {
        if self.watches.fetch_add(1, Relaxed) < self.most_watches {
            return Ok(());
        }
        self.end_watch();
        Err(self.most_watches)
    }
    pub fn end_watch(&self) {
        self.watches.fetch_sub(1, Relaxed);
    }

    /// Returns the budget of replies that must be complete before they are sent.
    pub fn whole_replies(&self) -> &Arc<Budget> {
        &self.whole_replies
    }
    /// Returns the budget of replies that wait for clients.
    pub fn unsent(&self) -> &Arc<Budget> {
        &self.unsent
    }
    /// Returns the budget of requests that were read ahead.
    pub fn ahead(&self) -> &Arc<Budget> {
        &self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let memory = Memory::new(&Limits { requests: 10, watches: 1, ..Limits::default() });
        assert!(memory.take_for_requests(10) && !memory.take_for_requests(1));
        memory.give_back(10);
        assert_eq!(memory.of_requests(), 0);
        assert_eq!((memory.begin_watch(), memory.begin_watch()), (Ok(()), Err(1)));
        memory.end_watch();
        assert_eq!(memory.begin_watch(), Ok(()));
    }
}

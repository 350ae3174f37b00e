//! Turns of requests: of those with one key one is done at a time, and a copy waits for its
//! outcome. Requests with other keys do not wait, since a request may take as long as the disk, or
//! as another client.

use std::collections::HashSet;

use env::sync::{Condvar, Mutex, MutexGuard};

use crate::body::TransactionKey;

/// The keys of the requests that are in progress.
#[derive(Default)]
pub(crate) struct Turns {
    under_way: Mutex<HashSet<TransactionKey>>,
    /// Notified when a request has ended.
    ended: Condvar,
}

/// A request that is in progress, until this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    key: TransactionKey,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.under_way.lock().remove(&self.key);
        self.turns.ended.notify_all();
    }
}

impl Turns {
    /// Waits until no request with this key is in progress.
    pub fn of(&self, key: &TransactionKey) -> Turn<'_> {
        let mut under_way = self.under_way.lock();
        while !under_way.insert(*key) {
            self.ended.wait(&mut under_way);
        }
        Turn { turns: self, key: *key }
    }

    /// Returns the keys of the requests that are in progress, which stay so until the result is
    /// dropped.
    pub fn under_way(&self) -> MutexGuard<'_, HashSet<TransactionKey>> {
        self.under_way.lock()
    }
}

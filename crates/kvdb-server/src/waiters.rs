//! Connections that wait until there is something under a key, in the order in which they came.
//!
//! Only the first one in the queue of a key may take what is there; when it has, or gives up, the
//! next one is woken. A commit wakes the first one of each key that it may have filled. No lock is
//! held during a wait, and a connection that finds nothing when it is woken waits on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::TransactionId;

use crate::clients::Connection;
use crate::keyspace::Kind;

/// Where keys are: a dictionary of the store, of a clone, or as an open transaction sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spot {
    pub transaction: Option<TransactionId>,
    pub clone: Option<String>,
    pub dictionary: String,
}

/// What is waited for: an element under a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Awaited {
    pub spot: Spot,
    pub kind: Kind,
    pub key: Bytes,
}

/// Of all connections of a server.
#[derive(Default)]
pub struct Waiters {
    queues: Mutex<HashMap<Awaited, VecDeque<Arc<Connection>>>>,
    /// Connections that wait.
    count: AtomicUsize,
}

impl Waiters {
    /// Connections that wait.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Takes a place at the end of each queue. A commit that becomes visible after this returns
    /// wakes the connection if it is the first one.
    pub fn wait(&self, connection: &Arc<Connection>, awaited: Vec<Awaited>) -> Place<'_> {
        let mut queues = self.queues.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        let mut kept: Vec<Awaited> = Vec::with_capacity(awaited.len());
        for one in awaited {
            // A key that is named twice is waited for once.
            let queue = queues.entry(one.clone()).or_default();
            if queue.back().is_none_or(|last| last.id != connection.id) {
                queue.push_back(connection.clone());
                kept.push(one);
            }
        }
        Place { waiters: self, connection: connection.clone(), awaited: kept }
    }

    /// There may be something under the key: wakes the one that has waited for longest.
    pub fn wake(&self, awaited: &Awaited) {
        if let Some(first) = self.queues.lock().get(awaited).and_then(VecDeque::front) {
            first.bell.ring();
        }
    }

    /// There may be something under any key, or a transaction has ended.
    pub fn wake_all(&self) {
        if self.count() > 0 {
            let queues = self.queues.lock();
            queues.values().filter_map(VecDeque::front).for_each(|first| first.bell.ring());
        }
    }
}

/// The place of a connection in its queues, until this is dropped.
pub struct Place<'a> {
    waiters: &'a Waiters,
    connection: Arc<Connection>,
    awaited: Vec<Awaited>,
}

impl Place<'_> {
    /// The keys whose first waiter this connection is, in the order in which it has named them.
    pub fn turns(&self) -> Vec<Bytes> {
        let queues = self.waiters.queues.lock();
        let is_first = |one: &&Awaited| {
            let first = queues.get(*one).and_then(VecDeque::front);
            first.is_some_and(|first| first.id == self.connection.id)
        };
        self.awaited.iter().filter(is_first).map(|one| one.key.clone()).collect()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiters.queues.lock();
        for one in &self.awaited {
            let Some(queue) = queues.get_mut(one) else { continue };
            queue.retain(|waiting| waiting.id != self.connection.id);
            match queue.front() {
                // There may be more than one has taken.
                Some(next) => next.bell.ring(),
                None => drop(queues.remove(one)),
            }
        }
        self.waiters.count.fetch_sub(1, Ordering::SeqCst);
    }
}

//! Connections that wait for an element under a key, in the order of their arrival.
//!
//! Only the first connection in the queue of a key may take an element. When it has taken one, or
//! gives up, the next connection is woken. A commit wakes the first connection of each key that
//! it may have filled. Entries that are read from a stream stay in it, so all connections that
//! wait for a stream are woken. No lock is held during a wait, and a connection that finds
//! nothing when it is woken continues to wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::TransactionId;

use crate::clients::Connection;
use crate::keyspace::Kind;

/// The location of a key: a dictionary of the store, of a clone, or of an open transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spot {
    pub transaction: Option<TransactionId>,
    pub clone: Option<String>,
    pub dictionary: String,
}

impl Spot {
    /// Returns the branch of the store in which the spot is; `""` is the store itself.
    pub fn branch(&self) -> &str {
        self.clone.as_deref().unwrap_or_default()
    }
}

/// The element for which a connection waits, identified by a key and a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Awaited {
    pub spot: Spot,
    pub kind: Kind,
    pub key: Bytes,
}

/// The queues of all connections of a server.
#[derive(Default)]
pub struct Waiters {
    queues: Mutex<Queues>,
    /// The number of connections that wait.
    count: AtomicUsize,
}

#[derive(Default)]
struct Queues {
    all: HashMap<Awaited, Queue>,
    /// The number of fillings of which [`Waiters::wake`] was notified.
    filled: u64,
}

/// The connections that wait for a key.
#[derive(Default)]
struct Queue {
    connections: VecDeque<Arc<Connection>>,
    /// The number of the filling that put an element under the key since the key was last empty.
    filled: Option<u64>,
}

impl Queue {
    /// Returns the clients that are woken when the key is filled.
    fn woken(&self, kind: Kind) -> impl Iterator<Item = &Arc<Connection>> {
        self.connections.iter().take(if kind == Kind::Stream { usize::MAX } else { 1 })
    }
}

impl Waiters {
    /// Returns the number of connections that wait.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Enters the connection at the end of each queue. A commit that becomes visible after this
    /// call returns wakes the connection if it is the first one of the queue.
    pub fn wait(&self, connection: &Arc<Connection>, awaited: Vec<Awaited>) -> Place<'_> {
        let mut queues = self.queues.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        let mut kept: Vec<Awaited> = Vec::with_capacity(awaited.len());
        for one in awaited {
            // A key that is named twice is entered once.
            let queue = &mut queues.all.entry(one.clone()).or_default().connections;
            if queue.back().is_none_or(|last| last.id != connection.id) {
                queue.push_back(connection.clone());
                kept.push(one);
            }
        }
        Place { waiters: self, connection: connection.clone(), awaited: kept }
    }

    /// Wakes the connection that has waited longest for each of these keys, in this order. It is
    /// called when a commit has put elements under the keys; `true` marks a key that had no
    /// elements before.
    pub fn wake(&self, filled: impl Iterator<Item = (Awaited, bool)>) {
        let mut queues = self.queues.lock();
        let before = queues.filled;
        for (awaited, new) in filled {
            queues.filled += 1;
            let now = queues.filled;
            let Some(queue) = queues.all.get_mut(&awaited) else { continue };
            // The element of an earlier commit was taken before the waiting connection has
            // looked.
            let stale = new && queue.filled.is_some_and(|filled| filled <= before);
            if queue.filled.is_none() || stale {
                queue.filled = Some(now);
            }
            queue.woken(awaited.kind).for_each(|waiting| waiting.bell.ring());
        }
    }

    /// Wakes all waiting connections, because there may be elements under any key, or because a
    /// transaction has ended.
    pub fn wake_all(&self) {
        if self.count() > 0 {
            let queues = self.queues.lock();
            let woken = queues.all.iter().flat_map(|(one, queue)| queue.woken(one.kind));
            woken.for_each(|waiting| waiting.bell.ring());
        }
    }
}

/// A key of which a connection is the first waiter.
pub struct Turn {
    pub key: Bytes,
    /// The number of the filling that put an element under the key, or `None` if no filling was
    /// reported.
    pub filled: Option<u64>,
}

/// The place of a connection in its queues. It is left when this value is dropped.
pub struct Place<'a> {
    waiters: &'a Waiters,
    connection: Arc<Connection>,
    awaited: Vec<Awaited>,
}

impl Place<'_> {
    /// Returns the keys of which this connection is the first waiter: first the keys that were
    /// filled, in the order of the fillings, then the others in the order in which the connection
    /// has named them. If one transaction fills several keys, a client must get the key that was
    /// written first.
    pub fn turns(&self) -> Vec<Turn> {
        let queues = self.waiters.queues.lock();
        let turn = |one: &Awaited| {
            let queue = queues.all.get(one)?;
            let first = queue.connections.front()?;
            let key = one.key.clone();
            (first.id == self.connection.id).then_some(Turn { key, filled: queue.filled })
        };
        let mut turns: Vec<_> = self.awaited.iter().filter_map(turn).collect();
        turns.sort_by_key(|turn| turn.filled.unwrap_or(u64::MAX));
        turns
    }

    /// Records that the key was empty in a state that was read after the turn was taken. A
    /// filling since then still counts.
    pub fn found_empty(&self, turn: &Turn) {
        let mut queues = self.waiters.queues.lock();
        let one = self.awaited.iter().find(|one| one.key == turn.key);
        let queue = one.and_then(|one| queues.all.get_mut(one));
        if let Some(queue) = queue.filter(|queue| queue.filled == turn.filled) {
            queue.filled = None;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiters.queues.lock();
        for one in &self.awaited {
            let Some(queue) = queues.all.get_mut(one) else { continue };
            queue.connections.retain(|waiting| waiting.id != self.connection.id);
            match queue.connections.front() {
                // There may be more elements than this connection has taken.
                Some(next) => next.bell.ring(),
                None => drop(queues.all.remove(one)),
            }
        }
        self.waiters.count.fetch_sub(1, Ordering::SeqCst);
    }
}

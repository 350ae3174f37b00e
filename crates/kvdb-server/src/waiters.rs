//! Connections that wait until there is something under a key, in the order in which they came.
//!
//! Only the first one in the queue of a key may take what is there; when it has, or gives up, the
//! next one is woken. A commit wakes the first one of each key that it may have filled. What is
//! read of a stream stays in it, so all that wait for one are woken. No lock is held during a wait,
//! and a connection that finds nothing when it is woken waits on.

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

impl Spot {
    /// The branch of the store that it is in; `""`: the store itself.
    pub fn branch(&self) -> &str {
        self.clone.as_deref().unwrap_or_default()
    }
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
    queues: Mutex<Queues>,
    /// Connections that wait.
    count: AtomicUsize,
}

#[derive(Default)]
struct Queues {
    all: HashMap<Awaited, Queue>,
    /// Counts what [`Waiters::wake`] is told.
    filled: u64,
}

/// The connections that wait for a key.
#[derive(Default)]
struct Queue {
    connections: VecDeque<Arc<Connection>>,
    /// When there came something under the key, among all of them, since it was last empty.
    filled: Option<u64>,
}

impl Queue {
    /// The clients that are woken when something comes under the key.
    fn woken(&self, kind: Kind) -> impl Iterator<Item = &Arc<Connection>> {
        self.connections.iter().take(if kind == Kind::Stream { usize::MAX } else { 1 })
    }
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
            let queue = &mut queues.all.entry(one.clone()).or_default().connections;
            if queue.back().is_none_or(|last| last.id != connection.id) {
                queue.push_back(connection.clone());
                kept.push(one);
            }
        }
        Place { waiters: self, connection: connection.clone(), awaited: kept }
    }

    /// A commit put elements under these keys, in this order, and there was nothing under those
    /// that are said to be new: wakes the one that has waited for each for longest.
    pub fn wake(&self, filled: impl Iterator<Item = (Awaited, bool)>) {
        let mut queues = self.queues.lock();
        let before = queues.filled;
        for (awaited, new) in filled {
            queues.filled += 1;
            let now = queues.filled;
            let Some(queue) = queues.all.get_mut(&awaited) else { continue };
            // The element of an earlier commit was taken before the waiter looked.
            let stale = new && queue.filled.is_some_and(|filled| filled <= before);
            if queue.filled.is_none() || stale {
                queue.filled = Some(now);
            }
            queue.woken(awaited.kind).for_each(|waiting| waiting.bell.ring());
        }
    }

    /// There may be something under any key, or a transaction has ended.
    pub fn wake_all(&self) {
        if self.count() > 0 {
            let queues = self.queues.lock();
            let woken = queues.all.iter().flat_map(|(one, queue)| queue.woken(one.kind));
            woken.for_each(|waiting| waiting.bell.ring());
        }
    }
}

/// A key whose first waiter a connection is.
pub struct Turn {
    pub key: Bytes,
    /// When there came something under it, among all of them; `None`: nothing was told of it.
    pub filled: Option<u64>,
}

/// The place of a connection in its queues, until this is dropped.
pub struct Place<'a> {
    waiters: &'a Waiters,
    connection: Arc<Connection>,
    awaited: Vec<Awaited>,
}

impl Place<'_> {
    /// The keys whose first waiter this connection is, in the order in which there came something
    /// under them, and after these the others, in the order in which it has named them. Of several
    /// keys that one transaction fills a client is to get the one that was written first.
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

    /// Nothing was found under the key, in a state that was read after the turn was given. What was
    /// put there since then counts.
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
                // There may be more than one has taken.
                Some(next) => next.bell.ring(),
                None => drop(queues.all.remove(one)),
            }
        }
        self.waiters.count.fetch_sub(1, Ordering::SeqCst);
    }
}

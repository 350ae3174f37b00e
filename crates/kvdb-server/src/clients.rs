//! The part of a connection that other connections use: its row in `CLIENT LIST`, its mailbox,
//! its bell, and a function that closes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::bell::Bell;
use crate::mailbox::{Delivery, Mailbox, Put};

/// Closes a connection from another thread. All reads and waits of the connection then end.
pub type Closer = Box<dyn Fn() + Send + Sync>;

/// Settings and state of a connection that `CLIENT LIST` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub name: String,
    /// The name and the version of the client's library.
    pub library: (String, String),
    pub dictionary: String,
    pub resp3: bool,
    /// The number of commands queued since `MULTI`, or `None` outside of `MULTI`.
    pub queued: Option<usize>,
    pub channels: usize,
    pub patterns: usize,
    /// The number of subscribed shard channels.
    pub shards: usize,
    /// Set if the client monitors all commands.
    pub monitors: bool,
    /// Set if the client tracks keys. The flag says whether it tracks all keys with some
    /// prefixes; the number names the connection that is notified in its place.
    pub tracks: Option<(bool, Option<u64>)>,
}

/// The way in which another connection ends a wait (`CLIENT UNBLOCK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unblocked {
    /// The wait ends as if the timeout had expired.
    TimedOut,
    /// The wait ends with an error.
    Refused,
}

/// A connection as other connections see it.
pub struct Connection {
    pub id: u64,
    pub address: String,
    pub since: Instant,
    pub bell: Bell,
    pub mailbox: Mailbox,
    pub shown: Mutex<Shown>,
    closer: Option<Closer>,
    /// Index of the connection's last command in the table of commands, or `usize::MAX` if there
    /// was none.
    command: AtomicUsize,
    /// Arrival of the last command, in milliseconds after `since`.
    active: AtomicU64,
    /// State of the connection's wait for a key: [`FREE`], [`WAITS`], [`TIMED_OUT`] or
    /// [`REFUSED`]. The state is one word, so that a request to end one wait never ends the next
    /// one.
    wait: AtomicU64,
}

/// The connection does not wait for a key.
const FREE: u64 = 0;
/// The connection waits for a key.
const WAITS: u64 = 1;
/// Another connection has ended the wait, as if the timeout had expired.
const TIMED_OUT: u64 = 2;
/// Another connection has ended the wait with an error.
const REFUSED: u64 = 3;

impl Connection {
    /// Returns whether the client has requested messages. Its mailbox is emptied only in this
    /// case.
    pub fn takes_messages(&self) -> bool {
        let shown = self.shown.lock();
        let subscribed = shown.channels + shown.patterns + shown.shards > 0;
        shown.monitors || shown.tracks.is_some() || subscribed
    }

    pub fn new(id: u64, address: String, closer: Option<Closer>) -> Self {
        Connection {
            id,
            address,
            since: Instant::now(),
            bell: Bell::default(),
            mailbox: Mailbox::default(),
            shown: Mutex::default(),
            closer,
            command: AtomicUsize::new(usize::MAX),
            active: AtomicU64::new(0),
            wait: AtomicU64::new(FREE),
        }
    }

    /// Closes the connection. Its thread finds the connection at its end, even while it reads or
    /// waits.
    pub fn close(&self) {
        if let Some(close) = &self.closer {
            close();
        }
        self.bell.ring();
    }

    /// Puts a message into the mailbox. A connection is closed if more than `most` bytes wait for
    /// it.
    pub fn send(&self, delivery: Delivery, most: usize) {
        match self.mailbox.put(delivery, most) {
            Put::Waits => {}
            Put::First => self.bell.ring(),
            Put::Overrun => self.close(),
        }
    }

    /// Records the connection's last command by its index in the table.
    pub fn does(&self, command: usize, at: Instant) {
        self.command.store(command, Relaxed);
        let after = at.saturating_duration_since(self.since).as_millis();
        self.active.store(u64::try_from(after).unwrap_or(u64::MAX), Relaxed);
    }
    /// Returns the index of the connection's last command in the table.
    pub fn command(&self) -> Option<usize> {
        Some(self.command.load(Relaxed)).filter(|command| *command != usize::MAX)
    }
    /// Returns the time since the last command arrived.
    pub fn idle(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.active.load(Relaxed)))
    }

    /// Returns whether the connection has subscribed to anything.
    pub fn listens(&self) -> bool {
        let shown = self.shown.lock();
        shown.channels + shown.patterns + shown.shards > 0
    }

    pub fn is_blocked(&self) -> bool {
        self.wait.load(SeqCst) != FREE
    }
    /// Marks the beginning of a wait.
    pub fn begin_wait(&self) {
        self.wait.store(WAITS, SeqCst);
    }
    /// Marks the end of the wait, and returns how another connection has ended it, or `None` if
    /// none has.
    pub fn end_wait(&self) -> Option<Unblocked> {
        unblocked(self.wait.swap(FREE, SeqCst))
    }
    /// Ends the wait of the connection. Returns `false` if the connection does not wait, or if
    /// its wait has already been ended.
    pub fn unblock(&self, how: Unblocked) -> bool {
        let how = if how == Unblocked::TimedOut { TIMED_OUT } else { REFUSED };
        let waited = self.wait.compare_exchange(WAITS, how, SeqCst, SeqCst).is_ok();
        if waited {
            self.bell.ring();
        }
        waited
    }
    /// Returns how another connection has ended the wait, or `None` if none has.
    pub fn unblocked(&self) -> Option<Unblocked> {
        unblocked(self.wait.load(SeqCst))
    }
}

fn unblocked(wait: u64) -> Option<Unblocked> {
    match wait {
        TIMED_OUT => Some(Unblocked::TimedOut),
        REFUSED => Some(Unblocked::Refused),
        _ => None,
    }
}

/// The connections of a server, by their numbers.
#[derive(Default)]
pub struct Clients {
    all: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// The number of the newest connection.
    newest: std::sync::atomic::AtomicU64,
}

impl Clients {
    /// Returns the number of a new connection; the first is 1.
    pub fn next_id(&self) -> u64 {
        self.newest.fetch_add(1, Relaxed) + 1
    }
    pub fn add(&self, connection: Arc<Connection>) {
        self.all.lock().insert(connection.id, connection);
    }
    pub fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.all.lock().values().cloned().collect()
    }
    pub fn get(&self, id: u64) -> Option<Arc<Connection>> {
        self.all.lock().get(&id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use env::{schedule, thread};

    use super::*;

    /// One connection waits repeatedly, and another connection ends the waits. Each end that was
    /// reported must belong to exactly one wait; a late end would end a later wait.
    #[test]
    fn what_ends_a_wait_never_meets_the_next_one_whatever_the_schedule() {
        let mut all = 0;
        for seed in 0..200 {
            let ran = schedule::run(seed, || {
                let waits = Arc::new(Connection::new(1, String::new(), None));
                let waiting = waits.clone();
                let ends = thread::spawn(move || {
                    (0..10).filter(|_| waiting.unblock(Unblocked::TimedOut)).count()
                });
                let mut ended = 0;
                for _ in 0..10 {
                    waits.begin_wait();
                    thread::yield_now();
                    ended += usize::from(waits.end_wait().is_some());
                }
                assert_eq!(ends.join().expect("the thread"), ended);
                ended
            });
            all += ran.unwrap_or_else(|e| panic!("seed {seed}: {e}")).value;
        }
        assert!(all > 0, "no wait was ended");
    }
}

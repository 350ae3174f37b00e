//! The part of a connection that other connections use: what `CLIENT LIST` shows of it, its
//! mailbox, its bell, and how it is closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::bell::Bell;
use crate::mailbox::Mailbox;

/// Has a connection closed from outside: what it reads or waits for is over.
pub type Closer = Box<dyn Fn() + Send + Sync>;

/// What a connection has chosen, as far as others are shown it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub name: String,
    /// The client's library, its name and version.
    pub library: (String, String),
    pub dictionary: String,
    pub resp3: bool,
    /// Commands between `MULTI` and `EXEC`.
    pub queued: Option<usize>,
    pub channels: usize,
    pub patterns: usize,
    /// Channels of the shard.
    pub shards: usize,
}

/// A wait that another connection ends (`CLIENT UNBLOCK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unblocked {
    /// As if the time was up.
    TimedOut,
    /// With an error.
    Refused,
}

/// A connection as others see it.
pub struct Connection {
    pub id: u64,
    pub address: String,
    pub since: Instant,
    pub bell: Bell,
    pub mailbox: Mailbox,
    pub shown: Mutex<Shown>,
    closer: Option<Closer>,
    /// The place of its last command in the table of commands; `usize::MAX`: none.
    command: AtomicUsize,
    /// Milliseconds after `since` at which that came.
    active: AtomicU64,
    /// Whether it waits for a key, and what another connection has made of that: [`FREE`],
    /// [`WAITS`], [`TIMED_OUT`] or [`REFUSED`]. One word, so that what ends a wait never meets the
    /// next one.
    wait: AtomicU64,
}

/// It waits for no key.
const FREE: u64 = 0;
/// It waits for a key.
const WAITS: u64 = 1;
/// It was to wait no longer, as if the time was up.
const TIMED_OUT: u64 = 2;
/// It was to wait no longer, with an error.
const REFUSED: u64 = 3;

impl Connection {
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

    /// Its thread finds the connection at its end, whatever it is at.
    pub fn close(&self) {
        if let Some(close) = &self.closer {
            close();
        }
        self.bell.ring();
    }

    /// Notes a command, by its place in the table.
    pub fn does(&self, command: usize, at: Instant) {
        self.command.store(command, Relaxed);
        let after = at.saturating_duration_since(self.since).as_millis();
        self.active.store(u64::try_from(after).unwrap_or(u64::MAX), Relaxed);
    }
    /// The place of the last command in the table.
    pub fn command(&self) -> Option<usize> {
        Some(self.command.load(Relaxed)).filter(|command| *command != usize::MAX)
    }
    /// How long ago that came.
    pub fn idle(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.active.load(Relaxed)))
    }

    /// It has subscribed to something.
    pub fn listens(&self) -> bool {
        let shown = self.shown.lock();
        shown.channels + shown.patterns + shown.shards > 0
    }

    pub fn is_blocked(&self) -> bool {
        self.wait.load(SeqCst) != FREE
    }
    /// A wait begins.
    pub fn begin_wait(&self) {
        self.wait.store(WAITS, SeqCst);
    }
    /// The wait is over. Gives what another connection has made of it.
    pub fn end_wait(&self) -> Option<Unblocked> {
        unblocked(self.wait.swap(FREE, SeqCst))
    }
    /// Ends the wait of a connection; `false`: it does not wait, or for nothing more.
    pub fn unblock(&self, how: Unblocked) -> bool {
        let how = if how == Unblocked::TimedOut { TIMED_OUT } else { REFUSED };
        let waited = self.wait.compare_exchange(WAITS, how, SeqCst, SeqCst).is_ok();
        if waited {
            self.bell.ring();
        }
        waited
    }
    /// What another connection has made of the wait.
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
pub struct Clients(Mutex<BTreeMap<u64, Arc<Connection>>>);

impl Clients {
    pub fn add(&self, connection: Arc<Connection>) {
        self.0.lock().insert(connection.id, connection);
    }
    pub fn remove(&self, id: u64) {
        self.0.lock().remove(&id);
    }
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.0.lock().values().cloned().collect()
    }
    pub fn get(&self, id: u64) -> Option<Arc<Connection>> {
        self.0.lock().get(&id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use env::{schedule, thread};

    use super::*;

    /// One connection waits again and again, and another one ends its waits: each end that was
    /// reported is that of one wait. One that came late would end a wait that it was not for.
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

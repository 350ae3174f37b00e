//! The part of a connection that other connections use: what `CLIENT LIST` shows of it, its
//! mailbox, its bell, and how it is closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use env::sync::Mutex;

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
    /// It waits for a key.
    blocked: AtomicBool,
    /// 0: not; else what another connection has made of the wait.
    unblocked: AtomicU8,
}

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
            blocked: AtomicBool::new(false),
            unblocked: AtomicU8::new(0),
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
        self.blocked.load(Relaxed)
    }
    /// A wait begins, or is over.
    pub fn set_blocked(&self, blocked: bool) {
        self.unblocked.store(0, Relaxed);
        self.blocked.store(blocked, Relaxed);
    }
    /// Ends the wait of a connection; `false`: it does not wait.
    pub fn unblock(&self, how: Unblocked) -> bool {
        let waits = self.is_blocked();
        if waits {
            self.unblocked.store(if how == Unblocked::TimedOut { 1 } else { 2 }, Relaxed);
            self.bell.ring();
        }
        waits
    }
    /// What another connection has made of the wait.
    pub fn unblocked(&self) -> Option<Unblocked> {
        match self.unblocked.load(Relaxed) {
            0 => None,
            1 => Some(Unblocked::TimedOut),
            _ => Some(Unblocked::Refused),
        }
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

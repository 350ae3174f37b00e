//! The state that all connections of a server share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use kvdb::Kvdb;

use crate::channels::Channels;
use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::descriptors;
use crate::effects::Reached;
use crate::files::Files;
use crate::limits::Limits;
use crate::locks::KeyLocks;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::monitors::Monitors;
use crate::notifications::Notifications;
use crate::password::Password;
use crate::pause::Pause;
use crate::scripts::Scripts;
use crate::seals::Seals;
use crate::slow_log::SlowLog;
use crate::tracking::Tracking;
use crate::transactions::{Snapshots, TransactionStates, Transactions};
use crate::waiters::Waiters;

/// Returns the owner's statistics of the store as JSON.
pub type InfoSource = Arc<dyn Fn() -> String + Send + Sync>;

/// Checks all data that the owner of the store keeps in it, and returns the findings as JSON.
pub type Check = Arc<dyn Fn() -> kvdb::Result<String> + Send + Sync>;
/// Publishes the store to an address. Returns statistics as JSON, or the reason of the failure.
pub type Publish = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// Describes the keys of a dictionary from the first up to the second in the terms of the store's
/// owner, such as a file.
pub type Describe = Arc<dyn Fn(&str, &[u8], &[u8]) -> Option<String> + Send + Sync>;

/// State that all connections of a server share.
pub struct Shared {
    pub db: Kvdb,
    pub limits: Limits,
    pub password: Password,
    pub durable: bool,
    pub info: Option<InfoSource>,
    pub describe: Option<Describe>,
    pub check: Option<Check>,
    pub publish: Option<Publish>,
    pub socket: String,
    pub tcp: Option<SocketAddr>,
    /// Connections to that address are encrypted, each by a relay.
    pub relayed: bool,
    pub locks: KeyLocks,
    pub transactions: Arc<dyn Transactions>,
    pub transaction_states: TransactionStates,
    pub seals: Seals,
    pub snapshots: Arc<dyn Snapshots>,
    pub files: Arc<dyn Files>,
    pub cursors: Cursors,
    pub scripts: Scripts,
    pub clients: Clients,
    pub channels: Channels,
    pub monitors: Monitors,
    pub tracking: Tracking,
    pub notifications: Notifications,
    pub waiters: Waiters,
    pub pause: Pause,
    pub slow_log: SlowLog,
    pub metrics: Metrics,
    pub next_client: AtomicU64,
    pub memory: Memory,
    /// Time of the last sync that a client has asked for, seconds since 1970.
    pub last_sync: AtomicU64,
    /// Limit on the number of connections.
    pub most_connections: AtomicUsize,
    /// Set when the server stops, so that long commands end.
    pub stopping: AtomicBool,
    /// Set if the sweeper removes expired keys in the background.
    pub sweeps: AtomicBool,
}

impl Shared {
    pub fn new(
        db: Kvdb,
        limits: Limits,
        password: Option<String>,
        durable: bool,
        info: Option<InfoSource>,
        metrics: Metrics,
    ) -> Self {
        Shared {
            transactions: Arc::new(db.clone()),
            transaction_states: TransactionStates::of_store(&db),
            seals: Seals::default(),
            snapshots: Arc::new(db.clone()),
            files: Arc::new(db.clone()),
            last_sync: AtomicU64::new(db.wall_clock().as_secs()),
            db,
            memory: Memory::new(&limits),
            most_connections: AtomicUsize::new(limits.connections),
            cursors: Cursors::new(limits.cursors, limits.cursor_bytes),
            scripts: Scripts::new(None, &limits),
            clients: Clients::default(),
            channels: Channels::new(limits.subscriptions, limits.mailbox),
            monitors: Monitors::new(limits.mailbox),
            tracking: Tracking::new(limits.tracked, limits.mailbox),
            notifications: Notifications::default(),
            waiters: Waiters::default(),
            pause: Pause::default(),
            slow_log: SlowLog::default(),
            limits,
            password: Password::new(password),
            durable,
            info,
            describe: None,
            check: None,
            publish: None,
            socket: String::new(),
            tcp: None,
            relayed: false,
            locks: KeyLocks::default(),
            metrics,
            next_client: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            sweeps: AtomicBool::new(true),
        }
    }

    /// Sets the limit on connections, if the process can have enough descriptors. Otherwise returns
    /// how many connections are possible, and changes nothing.
    pub fn allow_connections(&self, wanted: usize) -> Result<(), usize> {
        match descriptors::provide(wanted, self.relayed) {
            possible if possible < wanted => Err(possible),
            _ => {
                self.most_connections.store(wanted, Relaxed);
                Ok(())
            }
        }
    }

    /// Returns the parts of the server on which effects act.
    pub fn reached(&self) -> Reached<'_> {
        let (channels, notifications) = (&self.channels, &self.notifications);
        Reached { channels, notifications, waiters: &self.waiters }
    }
}

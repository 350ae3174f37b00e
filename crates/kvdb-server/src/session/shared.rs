//! The state that all connections of a server share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use kvdb::Kvdb;

use crate::channels::Channels;
use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::descriptors;
use crate::effects::Reached;
use crate::limits::Limits;
use crate::locks::KeyLocks;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::monitors::Monitors;
use crate::notifications::Notifications;
use crate::owner::Owner;
use crate::password::Password;
use crate::pause::Pause;
use crate::scripts::Scripts;
use crate::seals::Seals;
use crate::slow_log::SlowLog;
use crate::tracking::Tracking;
use crate::transactions::TransactionStates;
use crate::waiters::Waiters;

/// State that all connections of a server share.
pub struct Shared {
    pub db: Kvdb,
    pub limits: Limits,
    pub password: Password,
    pub durable: bool,
    pub owner: Owner,
    pub socket: String,
    pub tcp: Option<SocketAddr>,
    /// Connections to that address are encrypted, each by a relay.
    pub relayed: bool,
    pub locks: KeyLocks,
    pub transaction_states: TransactionStates,
    pub seals: Seals,
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
        metrics: Metrics,
    ) -> Self {
        Shared {
            transaction_states: TransactionStates::of_store(&db),
            seals: Seals::default(),
            owner: Owner::of_store(&db),
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

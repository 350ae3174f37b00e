//! The state that all connections of a server share.

use std::sync::atomic::AtomicBool;

use kvdb::Kvdb;

use crate::access::Access;
use crate::channels::Channels;
use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::effects::Reached;
use crate::limits::Limits;
use crate::locks::KeyLocks;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::monitors::Monitors;
use crate::notifications::Notifications;
use crate::owner::Owner;
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
    pub access: Access,
    pub owner: Owner,
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
    pub memory: Memory,
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
            access: Access::new(password, durable, limits.connections),
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
            locks: KeyLocks::default(),
            metrics,
            stopping: AtomicBool::new(false),
            sweeps: AtomicBool::new(true),
        }
    }

    /// Returns the parts of the server on which effects act.
    pub fn reached(&self) -> Reached<'_> {
        let (channels, notifications) = (&self.channels, &self.notifications);
        Reached { channels, notifications, waiters: &self.waiters }
    }
}

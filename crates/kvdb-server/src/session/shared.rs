//! The parts of a server that all connections share.

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
use crate::prevented::Prevented;
use crate::scripts::Scripts;
use crate::seals::Seals;
use crate::slow_log::SlowLog;
use crate::tracking::Tracking;
use crate::transactions::TransactionStates;
use crate::waiters::Waiters;

/// The parts of a server that all connections share. Each part owns its state, which only its
/// methods change.
pub struct Shared {
    pub db: Kvdb,
    /// Limits on the resources that clients may use. They do not change.
    pub limits: Limits,
    /// Counters of the memory that clients use together.
    pub memory: Memory,
    /// The hosts of transactions, snapshots and files, and the other information that the owner
    /// provides about the store.
    pub owner: Owner,
    /// The addresses, the password, and the limit on the number of connections.
    pub access: Access,

    /// Locks of keys, for commands that read and then write.
    pub locks: KeyLocks,
    /// Locks, savepoints and effects of open transactions.
    pub transaction_states: TransactionStates,
    /// The seals of programs that may write only in some transactions.
    pub seals: Seals,
    /// The transactions that can only be read.
    pub prevented: Prevented,
    /// The cursors of `SCAN` and similar commands.
    pub cursors: Cursors,
    /// The texts of scripts, and the processes that run them.
    pub scripts: Scripts,

    /// The open connections.
    pub clients: Clients,
    /// Subscriptions to channels.
    pub channels: Channels,
    /// The classes of events of keys that clients want as messages.
    pub notifications: Notifications,
    /// Clients that wait for a key.
    pub waiters: Waiters,
    /// The clients that are notified of changes of the keys that they cache.
    pub tracking: Tracking,
    /// The clients that monitor commands.
    pub monitors: Monitors,

    /// The pause that `CLIENT PAUSE` has begun.
    pub pause: Pause,
    pub slow_log: SlowLog,
    pub metrics: Metrics,
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
            prevented: Prevented::default(),
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

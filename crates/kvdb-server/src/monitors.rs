//! The connections that monitor all commands (`MONITOR`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use env::sync::Mutex;

use crate::clients::Connection;
use crate::mailbox::{Delivery, Via};

pub struct Monitors {
    all: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// The number of connections, so that a command takes no lock if there are none.
    count: AtomicUsize,
    /// Limit on the bytes that wait for one connection.
    most_waiting: usize,
}

impl Monitors {
    pub fn new(most_waiting: usize) -> Self {
        Monitors { all: Mutex::default(), count: AtomicUsize::new(0), most_waiting }
    }

    pub fn add(&self, connection: &Arc<Connection>) {
        let mut all = self.all.lock();
        all.insert(connection.id, connection.clone());
        self.count.store(all.len(), Relaxed);
    }
    pub fn remove(&self, connection: u64) {
        let mut all = self.all.lock();
        all.remove(&connection);
        self.count.store(all.len(), Relaxed);
    }

    /// Returns whether any connection monitors commands. This costs one load, and is usually
    /// `false`.
    pub fn are_there(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Shows a line to all connections that monitor commands.
    pub fn show(&self, line: &Bytes) {
        for connection in self.all.lock().values() {
            let (channel, payload) = (Bytes::new(), line.clone());
            connection.send(Delivery { via: Via::Monitor, channel, payload }, self.most_waiting);
        }
    }
}

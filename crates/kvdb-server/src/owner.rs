//! The owner of the store that is served. It is the program that has opened the store, and it may
//! keep files in the store. It hosts the transactions, snapshots and files of clients, and
//! describes more of the store than its keys. A store that holds only keys hosts them itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kvdb::Kvdb;

use crate::files::Files;
use crate::transactions::{Snapshots, Transactions};

/// Returns the owner's statistics of the store as JSON.
pub type InfoSource = Arc<dyn Fn() -> String + Send + Sync>;

/// Checks all data that the owner of the store keeps in it, and returns the findings as JSON.
pub type Check = Arc<dyn Fn() -> kvdb::Result<String> + Send + Sync>;
/// Publishes the store to an address. Returns statistics as JSON, or the reason of the failure.
pub type Publish = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// Describes the keys of a dictionary from the first up to the second in terms of the store's
/// owner, such as a file.
pub type Describe = Arc<dyn Fn(&str, &[u8], &[u8]) -> Option<String> + Send + Sync>;

/// The owner of the store in the form that the server needs.
pub struct Owner {
    transactions: Arc<dyn Transactions>,
    snapshots: Arc<dyn Snapshots>,
    files: Arc<dyn Files>,
    info: Option<InfoSource>,
    describe: Option<Describe>,
    check: Option<Check>,
    publish: Option<Publish>,
    /// Time of the last sync that a client has requested, in seconds since 1970.
    last_sync: AtomicU64,
}

impl Owner {
    /// Returns the owner of a store that holds only keys.
    pub fn of_store(db: &Kvdb) -> Owner {
        Owner {
            transactions: Arc::new(db.clone()),
            snapshots: Arc::new(db.clone()),
            files: Arc::new(db.clone()),
            info: None,
            describe: None,
            check: None,
            publish: None,
            last_sync: AtomicU64::new(db.wall_clock().as_secs()),
        }
    }

    /// Sets the hosts, which are not the store itself.
    pub fn hosted_by(
        mut self,
        transactions: Option<Arc<dyn Transactions>>,
        snapshots: Option<Arc<dyn Snapshots>>,
        files: Option<Arc<dyn Files>>,
    ) -> Owner {
        self.transactions = transactions.unwrap_or(self.transactions);
        self.snapshots = snapshots.unwrap_or(self.snapshots);
        self.files = files.unwrap_or(self.files);
        self
    }
    pub fn with_info(self, info: Option<InfoSource>) -> Owner {
        Owner { info, ..self }
    }
    pub fn with_describe(self, describe: Option<Describe>) -> Owner {
        Owner { describe, ..self }
    }
    pub fn with_check(self, check: Option<Check>) -> Owner {
        Owner { check, ..self }
    }
    pub fn with_publish(self, publish: Option<Publish>) -> Owner {
        Owner { publish, ..self }
    }

    pub fn transactions(&self) -> &Arc<dyn Transactions> {
        &self.transactions
    }
    pub fn snapshots(&self) -> &Arc<dyn Snapshots> {
        &self.snapshots
    }
    pub fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    /// Makes everything that was acknowledged so far durable, and records the time.
    pub fn sync(&self, db: &Kvdb) -> kvdb::Result<()> {
        self.transactions.sync()?;
        self.last_sync.store(db.wall_clock().as_secs(), Relaxed);
        Ok(())
    }
    /// Returns the time of the last sync, or of the start, in seconds since 1970.
    pub fn last_sync(&self) -> u64 {
        self.last_sync.load(Relaxed)
    }

    /// Returns the statistics of the store as JSON, or `None` if the owner has none.
    pub fn info(&self) -> Option<String> {
        self.info.as_ref().map(|info| info())
    }
    /// Describes keys of a dictionary in terms of the owner.
    pub fn describe(&self, dictionary: &str, start: &[u8], end: &[u8]) -> Option<String> {
        self.describe.as_ref()?(dictionary, start, end)
    }
    pub fn check(&self) -> Option<&Check> {
        self.check.as_ref()
    }
    pub fn publish(&self) -> Option<&Publish> {
        self.publish.as_ref()
    }
}

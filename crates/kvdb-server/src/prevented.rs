//! Transactions of merges and undos that later changes by others prevent. They contain only a
//! part of the changes that they should make, so they can be read and aborted, but not committed.

use std::collections::BTreeSet;

use env::sync::Mutex;
use kvdb::{Kvdb, TransactionId};

/// The open transactions that must not be committed.
#[derive(Default)]
pub struct Prevented(Mutex<BTreeSet<TransactionId>>);

impl Prevented {
    /// Adds a transaction, and removes transactions that have ended.
    pub fn note(&self, db: &Kvdb, id: TransactionId) {
        let mut all = self.0.lock();
        all.retain(|id| db.transaction(*id).is_ok());
        all.insert(id);
    }

    /// Returns whether a transaction must not be committed.
    pub fn has(&self, id: TransactionId) -> bool {
        self.0.lock().contains(&id)
    }
}

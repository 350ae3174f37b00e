//! The public API for transactions; [`crate::transactions`] implements it.

use std::sync::Arc;

use crate::db::Kvdb;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::read::view::View;
use crate::transactions::{
    Isolation, MergeRoutine, Transaction, TransactionInfo, TransactionOptions, UndoableCommit,
};

impl Kvdb {
    /// Begins a transaction, which ends at the latest when its last handle is dropped.
    pub fn begin(&self, isolation: Isolation) -> Result<Transaction> {
        self.begin_with(TransactionOptions { isolation, ..TransactionOptions::default() })
    }

    /// Begins a transaction with these options.
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        self.db.transactions.begin(options)
    }

    /// Joins an open transaction that is not [private](TransactionOptions::private).
    pub fn transaction(&self, id: TransactionId) -> Result<Transaction> {
        self.db.transactions.join(id).ok_or(Error::NoTransaction(id))
    }

    /// Returns the error of a transaction that was recently aborted in favor of an older
    /// transaction, and that may be begun again. Callers use this if they learn only at the end of
    /// the transaction that it was aborted.
    pub fn lost_to_another(&self, id: TransactionId) -> Option<Error> {
        self.db.transactions.lost(id)
    }

    /// Returns the open transactions, the oldest first.
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        self.db.transactions.list()
    }

    /// Sets the routine that joins the changes of a transaction with other changes of the same keys
    /// of a dictionary. The routine stays set until the store is closed.
    pub fn set_merge(&self, dict: DictionaryId, routine: Arc<dyn MergeRoutine>) {
        self.db.transactions.set_routine(dict, routine);
    }

    /// Returns whether a commit of `key` would currently have to wait for a serializable
    /// transaction.
    pub fn is_locked(&self, dict: DictionaryId, key: &[u8]) -> bool {
        self.db.transactions.is_locked(dict, key)
    }

    /// Returns the commits that can be undone, the oldest first; see
    /// [`TransactionOptions::undoable`](crate::TransactionOptions::undoable).
    pub fn undoable_commits(&self) -> Vec<UndoableCommit> {
        self.db.transactions.undoable_commits()
    }

    /// Returns the commits that can be undone. Each is returned with the number of bytes that are
    /// freed when the commit can no longer be undone, as far as this is known without reads. This
    /// examines all snapshots.
    pub fn undoable_commits_and_bytes(&self) -> Vec<(UndoableCommit, u64)> {
        self.db.transactions.undoable_commits_and_bytes()
    }

    /// Returns the states directly before and directly after a commit that can be undone.
    pub fn states_around(&self, number: u64) -> Result<(View, View)> {
        self.db.transactions.states_around(number)
    }
}

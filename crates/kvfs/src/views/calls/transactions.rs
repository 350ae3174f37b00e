//! Calls that begin, read and end transactions; see `views/transactions`.

use std::ops::Range;

use kvdb::{
    CommitOptions, Durability, Isolation, Revision, Savepoint, Transaction, TransactionId,
    TransactionInfo, TransactionOptions,
};

use crate::attr::Ino;
use crate::commit::apply_commit::ChangeSet;
use crate::difference::{Difference, Listing};
use crate::error::Result;
use crate::fs::Fs;
use crate::views::Views;

impl Views {
    /// Begins a transaction over files and keys: of the mainline, of the clone that the options
    /// name as its branch, or within the transaction that they name. It stays open until it is
    /// ended, whichever programs use it (`detached` is always set). If the options turn conflict
    /// checks off, the last commit wins for keys only: conflicts over files are always checked.
    pub fn begin(&self, options: TransactionOptions) -> Result<TransactionId> {
        self.shared.transactions.begin(options)
    }

    /// Returns the transaction itself, to read and write keys in it.
    pub fn transaction(&self, id: TransactionId) -> Result<Transaction> {
        self.shared.transactions.transaction(id)
    }

    /// Commits the files and keys of a transaction. With `Synced` the commit is on disk when this
    /// returns.
    ///
    /// [`kvdb::Error::Conflict`] ends the transaction. After [`kvdb::Error::NotSynced`] it is
    /// committed nevertheless. After other errors it is still open.
    pub fn commit(&self, id: TransactionId, durability: Durability) -> Result<()> {
        self.shared.transactions.commit(id, durability)
    }

    /// Like [`Views::commit`], with options: commit only if the transaction is in a given state
    /// ([`Views::revision`]), or keep it open after a conflict.
    pub fn commit_with(&self, id: TransactionId, options: CommitOptions) -> Result<()> {
        self.shared.transactions.commit_with(id, options)
    }

    /// Syncs the changes of a durable transaction so far, files included. For another transaction,
    /// only checks that it is open.
    pub fn keep(&self, id: TransactionId) -> Result<()> {
        self.shared.transactions.keep(id)
    }

    /// Takes inode numbers for objects that are made in a transaction by a process without its
    /// view. The numbers belong to the transaction.
    pub fn reserve_inodes(&self, id: TransactionId, count: u64) -> Result<Range<Ino>> {
        self.shared.transactions.reserve_inodes(id, count)
    }

    /// Aborts a transaction and discards all its changes.
    pub fn abort(&self, id: TransactionId) -> Result<()> {
        self.shared.transactions.abort(id)
    }

    /// Marks the current state of a transaction, files included.
    pub fn savepoint(&self, id: TransactionId) -> Result<Savepoint> {
        self.shared.transactions.savepoint(id)
    }

    /// Undoes the changes of a transaction since a savepoint, files included.
    pub fn rollback_to(&self, id: TransactionId, savepoint: &Savepoint) -> Result<()> {
        self.shared.transactions.rollback_to(id, savepoint)
    }

    /// Returns the revision of a transaction, including everything written in its view so far, for
    /// a commit of exactly that state ([`Views::commit_with`]).
    pub fn revision(&self, id: TransactionId) -> Result<Revision> {
        self.shared.transactions.revision(id)
    }

    /// Returns the user who began a transaction, if known; see [`TransactionOptions::user`].
    pub fn user(&self, id: TransactionId) -> Result<Option<u32>> {
        Ok(self.transaction(id)?.user())
    }

    /// Returns the open transactions, the oldest first.
    pub fn list(&self) -> Vec<TransactionInfo> {
        self.shared.transactions.list()
    }

    /// Returns the transactions that `id` is within, the outermost first, and `id` itself.
    pub fn and_around(&self, id: TransactionId) -> Result<Vec<TransactionId>> {
        let (mut all, mut next) = (Vec::new(), Some(id));
        while let Some(id) = next {
            all.push(id);
            next = self.transaction(id)?.within();
        }
        all.reverse();
        Ok(all)
    }

    /// Returns whether a serializable transaction is open, for which others may have to wait.
    pub fn takes_locks(&self) -> bool {
        self.list().iter().any(|t| t.isolation == Isolation::Serializable)
    }

    /// Returns the changes that a transaction has made to the files so far.
    pub fn change_set(&self, id: TransactionId) -> Result<ChangeSet> {
        self.shared.transactions.change_set(id)
    }

    /// Returns the changes of a transaction to the files, by path, relative to the state that it
    /// reads. A commit adds nothing else: if others have changed the same since, it conflicts.
    pub fn difference(&self, id: TransactionId, listing: Listing) -> Result<Difference> {
        self.shared.transactions.difference(id, listing)
    }

    /// Returns the files as they were before a transaction's own changes, read-only. They are not
    /// among the views that are open.
    pub fn beneath(&self, id: TransactionId) -> Result<Fs> {
        self.shared.transactions.beneath(id)
    }

    /// Describes the keys from `start` up to `end` of a dictionary, with the names that files have
    /// in a transaction; see [`crate::describe_keys`].
    pub fn describe_keys(
        &self,
        id: TransactionId,
        dictionary: &str,
        start: &[u8],
        end: &[u8],
    ) -> Option<String> {
        self.shared.transactions.describe_keys(id, dictionary, start, end)
    }
}

//! A host of transactions: how they begin and end where the store is. A store of keys does so by
//! itself; where a file system is open on it, memory and caches have to agree with each commit, so
//! the program that has both passes its own way.

use std::ops::Range;

use bytes::Bytes;
use kvdb::{
    CommitOptions, DictionaryId, DictionaryInfo, Durability, Error, Kvdb, Transaction,
    TransactionOptions,
};

/// The dictionaries of a transaction's branch. Those of a durable one are in the snapshot that it
/// began with, which lists them as of the main branch.
pub fn dictionaries_of(transaction: &Transaction) -> kvdb::Result<Vec<DictionaryInfo>> {
    let branch = if transaction.is_durable() { "" } else { transaction.branch() };
    Ok(transaction.view()?.dictionaries_in(branch))
}

/// Begins and ends the transactions of clients.
pub trait Host: Send + Sync {
    /// Begins a transaction.
    fn begin(&self, options: TransactionOptions) -> kvdb::Result<Transaction>;

    /// Commits one. After a conflict it is open as before.
    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()>;

    /// Ends one without its changes.
    fn abort(&self, transaction: &Transaction) -> kvdb::Result<()>;

    /// Names the file or the like that a key belongs to, for people who are told of a conflict.
    fn place(&self, _: &Transaction, _: DictionaryId, _: &Bytes) -> Option<String> {
        None
    }

    /// Numbers of inodes that were never given, and are not given to others.
    fn reserve_numbers(&self, _: &Transaction, _count: u32) -> kvdb::Result<Range<u64>> {
        Err(Error::Invalid("no file system is open where the store is".into()))
    }
}

impl Host for Kvdb {
    fn begin(&self, options: TransactionOptions) -> kvdb::Result<Transaction> {
        self.begin_with(TransactionOptions { detached: true, ..options })
    }

    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()> {
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        transaction.commit_with(CommitOptions { durability, stays: true, ..Default::default() })
    }

    fn abort(&self, transaction: &Transaction) -> kvdb::Result<()> {
        transaction.abort();
        Ok(())
    }
}

//! The host of transactions, which begins and ends them where the store is, and makes and drops
//! snapshots and clones there. A store of keys is its own host. If a file system is open on the
//! store, its memory and caches have to agree with each commit, and what they hold belongs into a
//! snapshot, so the program that has both provides a host of its own.

use std::ops::Range;

use bytes::Bytes;
use kvdb::{
    CommitOptions, DictionaryId, DictionaryInfo, Durability, Error, Kvdb, ServedChange,
    Transaction, TransactionOptions,
};

/// Returns the dictionaries of a transaction's branch. Those of a durable transaction are in the
/// snapshot that it began with, which lists them as those of the main branch.
pub fn dictionaries_of(transaction: &Transaction) -> kvdb::Result<Vec<DictionaryInfo>> {
    let branch = if transaction.is_durable() { "" } else { transaction.branch() };
    Ok(transaction.view()?.dictionaries_in(branch))
}

/// Begins and ends the transactions of clients.
pub trait Host: Send + Sync {
    /// Begins a transaction.
    fn begin(&self, options: TransactionOptions) -> kvdb::Result<Transaction>;

    /// Commits a transaction. After a conflict it remains open.
    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()>;

    /// Ends a transaction and discards its changes.
    fn abort(&self, transaction: &Transaction) -> kvdb::Result<()>;

    /// Returns the name of the file or other object that a key belongs to, for people who are
    /// notified of a conflict.
    fn place(&self, _: &Transaction, _: DictionaryId, _: &Bytes) -> Option<String> {
        None
    }

    /// Reserves inode numbers that were never allocated, and that are not allocated to others.
    fn reserve_numbers(&self, _: &Transaction, _count: u32) -> kvdb::Result<Range<u64>> {
        Err(Error::Invalid("no file system is open where the store is".into()))
    }

    /// Takes note of changes of a client, before they are applied to a transaction or to the main
    /// branch. It may know how their values are stored best.
    fn note_changes(&self, _changes: &[ServedChange]) {}

    /// Answers a question of a client about the changes of its transaction, or takes some of them
    /// out, as the words say. The same words may come again.
    fn review(&self, _: &Transaction, _words: &[Bytes]) -> kvdb::Result<Vec<u8>> {
        Err(Error::Invalid("no file system is open where the store is".into()))
    }

    /// Lends the main branch to a client, which changes it directly, past this host, until it is
    /// taken back. Returns a number that identifies the state in which it is lent. `since` is that
    /// number if an earlier server has lent the branch already, to the same client: then this fails
    /// if anything else may have changed the branch in the meantime. Fails if the host changes the
    /// branch itself.
    fn lend(&self, _since: Option<u64>) -> kvdb::Result<u64> {
        Err(Error::Invalid("this server does not lend its main files".into()))
    }

    /// Takes the main branch back. What the host knows of it may be outdated.
    fn take_back(&self) {}

    /// Like [`Host::reserve_numbers`], for files that are made in the main branch while it is lent.
    fn reserve_numbers_of_main(&self, _count: u32) -> kvdb::Result<Range<u64>> {
        Err(Error::Invalid("no file system is open where the store is".into()))
    }

    /// Makes a snapshot of a branch; `""` is the main one. It has everything that was written there
    /// before.
    fn make_snapshot(
        &self,
        _branch: &str,
        _name: &str,
        _durability: Durability,
    ) -> kvdb::Result<()> {
        Err(Error::Invalid("this server makes no snapshots".into()))
    }

    /// Drops a snapshot, durably.
    fn remove_snapshot(&self, _name: &str) -> kvdb::Result<()> {
        Err(Error::Invalid("this server drops no snapshots".into()))
    }

    /// Makes a clone of a snapshot, durably.
    fn make_clone(&self, _snapshot: &str, _name: &str) -> kvdb::Result<()> {
        Err(Error::Invalid("this server makes no clones".into()))
    }

    /// Drops a clone, durably, and ends its transactions.
    fn remove_clone(&self, _name: &str) -> kvdb::Result<()> {
        Err(Error::Invalid("this server drops no clones".into()))
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

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> kvdb::Result<()> {
        self.snapshot_of(branch, name, durability)
    }

    fn remove_snapshot(&self, name: &str) -> kvdb::Result<()> {
        self.drop_snapshot(name)
    }

    fn make_clone(&self, snapshot: &str, name: &str) -> kvdb::Result<()> {
        self.clone_snapshot(snapshot, name)
    }

    fn remove_clone(&self, name: &str) -> kvdb::Result<()> {
        self.drop_branch(name)
    }
}

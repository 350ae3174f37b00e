//! Transactions, snapshots and clones of clients over the files of a served store. They are made at
//! the views, so that the memory of this process and the kernel's caches agree with each commit,
//! and are part of each snapshot.

use std::ops::Range;

use bytes::Bytes;
use kvdb::{CommitOptions, DictionaryId, Durability, Result, Transaction, TransactionOptions};
use kvdb_wire::Host;
use kvfs::{ViewId, Views};

use crate::transactions::of_store;

/// Hosts the transactions of clients over these views.
pub struct ServedFiles(pub Views);

impl Host for ServedFiles {
    fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        let begun = self.0.begin(options).and_then(|id| self.0.transaction(id));
        begun.map_err(of_store)
    }

    fn commit(&self, transaction: &Transaction, synced: bool) -> Result<()> {
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        let options = CommitOptions { durability, stays: true, ..CommitOptions::default() };
        self.0.commit_with(transaction.id(), options).map_err(of_store)
    }

    fn abort(&self, transaction: &Transaction) -> Result<()> {
        self.0.abort(transaction.id()).map_err(of_store)
    }

    fn place(&self, transaction: &Transaction, dict: DictionaryId, key: &Bytes) -> Option<String> {
        let all = kvdb_wire::dictionaries_of(transaction).ok()?;
        let name = all.into_iter().find(|info| info.id == dict)?.name;
        // The range that contains only this key.
        let end = [&key[..], &[0]].concat();
        self.0.describe_keys(transaction.id(), &name, key, &end)
    }

    fn reserve_numbers(&self, transaction: &Transaction, count: u32) -> Result<Range<u64>> {
        self.0.reserve_inodes(transaction.id(), u64::from(count)).map_err(of_store)
    }

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        self.0.snapshot(&ViewId::of_branch(branch), name, durability).map_err(of_store)
    }

    fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.0.drop_snapshot(name).map_err(of_store)
    }

    fn make_clone(&self, snapshot: &str, name: &str) -> Result<()> {
        self.0.clone_snapshot(snapshot, name).map_err(of_store)
    }

    fn remove_clone(&self, name: &str) -> Result<()> {
        self.0.drop_clone(name).map_err(of_store)
    }
}

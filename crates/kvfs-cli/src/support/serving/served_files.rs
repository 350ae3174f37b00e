//! Transactions, snapshots and clones of clients over the files of a served store. They are made at
//! the views, so that the memory of this process and the kernel's caches agree with each commit,
//! and are part of each snapshot. The main files are lent to a client where they are not mounted.

use std::ops::Range;

use bytes::Bytes;
use kvdb::{
    CommitOptions, DictionaryId, Durability, Error, Kvdb, Result, ServedChange, Transaction,
    TransactionOptions,
};
use kvdb_wire::Host;
use kvfs::{Compress, ViewId, Views};

use crate::support::serving::served_reviews;
use crate::support::serving::transactions::of_store;

/// Hosts the transactions of clients over these views.
pub struct ServedFiles {
    pub db: Kvdb,
    pub views: Views,
    /// This process has the files mounted, too.
    pub is_mounted: bool,
    /// The compression of files without a way of their own.
    pub compress: Option<Compress>,
}

impl Host for ServedFiles {
    fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        let begun = self.views.begin(options).and_then(|id| self.views.transaction(id));
        begun.map_err(of_store)
    }

    fn commit(&self, transaction: &Transaction, synced: bool) -> Result<()> {
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        let options = CommitOptions { durability, stays: true, ..CommitOptions::default() };
        self.views.commit_with(transaction.id(), options).map_err(of_store)
    }

    fn abort(&self, transaction: &Transaction) -> Result<()> {
        self.views.abort(transaction.id()).map_err(of_store)
    }

    fn place(&self, transaction: &Transaction, dict: DictionaryId, key: &Bytes) -> Option<String> {
        let all = kvdb_wire::dictionaries_of(transaction).ok()?;
        let name = all.into_iter().find(|info| info.id == dict)?.name;
        // The range that contains only this key.
        let end = [&key[..], &[0]].concat();
        self.views.describe_keys(transaction.id(), &name, key, &end)
    }

    fn reserve_numbers(&self, transaction: &Transaction, count: u32) -> Result<Range<u64>> {
        self.views.reserve_inodes(transaction.id(), u64::from(count)).map_err(of_store)
    }

    fn note_changes(&self, changes: &[ServedChange]) {
        kvfs::announce_ways(&self.db, changes, self.compress);
    }

    fn review(&self, transaction: &Transaction, words: &[Bytes]) -> Result<Vec<u8>> {
        served_reviews::answer(&self.db, &self.views, transaction, words)
    }

    fn lend(&self, since: Option<u64>) -> Result<u64> {
        if self.is_mounted {
            let why = "the main files are mounted where the store is, and written there: serve the \
                       store by kvfs serve, or mount a transaction (--txn)";
            return Err(Error::Invalid(why.into()));
        }
        self.views.lend(since).map_err(of_store)
    }

    fn take_back(&self) {
        if self.is_mounted {
            return;
        }
        if let Err(e) = self.views.take_back() {
            tracing::warn!("removed files of a client keep their space until a mount: {e}");
        }
    }

    fn reserve_numbers_of_main(&self, count: u32) -> Result<Range<u64>> {
        self.views.reserve_inodes_of_mainline(u64::from(count)).map_err(of_store)
    }

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        self.views.snapshot(&ViewId::of_branch(branch), name, durability).map_err(of_store)
    }

    fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.views.drop_snapshot(name).map_err(of_store)
    }

    fn make_clone(&self, snapshot: &str, name: &str) -> Result<()> {
        self.views.clone_snapshot(snapshot, name).map_err(of_store)
    }

    fn remove_clone(&self, name: &str) -> Result<()> {
        self.views.drop_clone(name).map_err(of_store)
    }
}

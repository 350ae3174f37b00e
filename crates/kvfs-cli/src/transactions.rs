//! Transactions of the socket, over keys and files: begun and ended at the views, so that what programs have written reaches the
//! transaction before it commits, and what it has changed reaches them.

use kvdb::{Durability, Result, Savepoint, Transaction, TransactionId, TransactionOptions};
use kvdb_server::{FileChange, Transactions};
use kvfs::{FileKind, Views};

pub struct OverFiles(pub Views);

fn of_store(error: kvfs::Error) -> kvdb::Error {
    match error {
        kvfs::Error::Store(error) => error,
        kvfs::Error::NoSpace => kvdb::Error::NoSpace,
        kvfs::Error::ReadOnly => kvdb::Error::ReadOnly("the file system is read-only".into()),
        kvfs::Error::Corrupt { .. } => kvdb::Error::Corrupt(error.to_string()),
        other => kvdb::Error::Invalid(other.to_string()),
    }
}

impl Transactions for OverFiles {
    fn begin(&self, options: TransactionOptions) -> Result<TransactionId> {
        self.0.begin(options).map_err(of_store)
    }

    fn commit(&self, id: TransactionId, durability: Durability) -> Result<()> {
        self.0.commit(id, durability).map_err(of_store)
    }

    fn abort(&self, id: TransactionId) -> Result<()> {
        self.0.abort(id).map_err(of_store)
    }

    /// What programs have of its files in memory cannot be undone.
    fn rollback(&self, transaction: &Transaction, to: &Savepoint) -> Result<()> {
        let touched = self.0.touched(transaction.id()).map_err(of_store)?;
        if !touched.names.is_empty() || !touched.inodes.is_empty() {
            return Err(kvdb::Error::Invalid("files were changed in this transaction, and savepoints are for keys alone".into()));
        }
        transaction.rollback_to(to)
    }

    fn files(&self, id: TransactionId) -> Result<Vec<FileChange>> {
        Ok(listed(self.0.difference(id).map_err(of_store)?))
    }
}

/// As the socket's clients are told.
pub fn listed(all: Vec<kvfs::FileChange>) -> Vec<FileChange> {
    let kind = |kind| match kind {
        Some(FileKind::Dir) => 'd',
        Some(FileKind::File) => 'f',
        Some(FileKind::Symlink) => 'l',
        _ => 'o',
    };
    let one = |change: kvfs::FileChange| FileChange {
        kind: kind(change.after.or(change.before).map(|attr| attr.kind)),
        path: change.path,
        before: change.before.map(|attr| attr.size),
        after: change.after.map(|attr| attr.size),
    };
    all.into_iter().map(one).collect()
}

//! Options with which a transaction is begun and committed, and its entry in a listing.

use std::time::Duration;

use super::revision::Revision;
use crate::commit::batch::Durability;
use crate::ids::TransactionId;

/// The isolation of concurrent transactions from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The transaction reads the store as of its beginning, with its own changes. If two
    /// transactions change the same key, the first one to commit wins and the other gets
    /// [`crate::Error::Conflict`], unless a [`super::MergeRoutine`] can join both changes.
    #[default]
    Snapshot,
    /// The transaction behaves as if it ran alone: all keys that it reads or writes are locked
    /// until it ends (strict two-phase locking). It reads the newest committed state. If two
    /// transactions want the same key, the older one goes first, so there is no deadlock.
    Serializable,
}

/// Options with which a transaction is begun.
#[derive(Clone, Debug)]
pub struct TransactionOptions {
    /// The isolation level.
    pub isolation: Isolation,
    /// Enables conflict detection (snapshot isolation only). If it is `false`, the last commit
    /// wins; this is for callers who know that no other writer touches their keys.
    pub check_conflicts: bool,
    /// The transaction stays open when its last handle is dropped and can be joined by its number,
    /// until it is ended or idle for too long. A transaction that is not detached is aborted with
    /// its last handle.
    pub detached: bool,
    /// The transaction can be reached only through its handles: it is listed, but cannot be joined
    /// by its number. This is for transactions that a program uses internally in a store in which
    /// others join transactions.
    pub private: bool,
    /// The transaction is aborted after this time without a call. `None` means no limit.
    pub idle_limit: Option<Duration>,
    /// The time that a call waits for a lock before it fails with [`crate::Error::Locked`]
    /// (serializable only).
    pub lock_timeout: Duration,
    /// The aborted transaction that this one retries (serializable only). The new transaction takes
    /// over its age.
    pub retry_of: Option<TransactionId>,
    /// The transaction survives a crash and a restart, and loses at most the calls of the last
    /// moments (the flush interval). Its changes are logged, and hence written once more. Snapshot
    /// isolation only; implies `detached`.
    pub durable: bool,
    /// The commit can be undone for a while ([`crate::Kvdb::undoable_commits`]): snapshots of the
    /// states before and after it are kept, for which the current memtables are sealed. This is for
    /// commits made by people, not for thousands a second.
    pub undoable: bool,
    /// The enclosing transaction. This transaction reads the changes that the enclosing one has
    /// made so far, and its commit adds its own changes to them; others see these when the
    /// enclosing one commits. Both must have snapshot isolation; the nested one cannot be durable
    /// or undoable by itself, and belongs to the branch and the user of the enclosing one.
    pub within: Option<TransactionId>,
    /// The branch of the transaction; `""` is the main one. A durable transaction reads only this
    /// branch, and the snapshots around an undoable commit are taken of it. When the branch is
    /// dropped, the transaction is aborted.
    pub branch: String,
    /// The bytes that the changes may take. A change that would exceed the limit fails with
    /// [`crate::Error::OverLimit`], unless it is a deletion. Changes of nested transactions count
    /// as well. Data that is copied by reference counts as if it were written, and a key that is
    /// changed twice may count twice until its versions are merged. `None` means no limit other
    /// than the space of the store.
    pub limit: Option<u64>,
    /// The number of files that the transaction may make. The store itself knows no files: the
    /// layer above counts them.
    pub limit_of_files: Option<u64>,
    /// A label for people who read a list of transactions.
    pub label: String,
    /// The system user that began the transaction, for interfaces that keep users apart. The store
    /// itself ignores it.
    pub user: Option<u32>,
    /// The changes are shown in place of the store to programs that should notice no difference.
    /// This is for interfaces that otherwise show a transaction at a place of its own. The store
    /// itself ignores it.
    pub in_place: bool,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        TransactionOptions {
            isolation: Isolation::Snapshot,
            check_conflicts: true,
            detached: false,
            private: false,
            idle_limit: None,
            lock_timeout: Duration::from_secs(10),
            retry_of: None,
            durable: false,
            undoable: false,
            within: None,
            branch: String::new(),
            limit: None,
            limit_of_files: None,
            label: String::new(),
            user: None,
            in_place: false,
        }
    }
}

/// Options with which a transaction is committed.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions {
    /// The durability that the commit waits for.
    pub durability: Durability,
    /// Commits only if the transaction is at this revision ([`super::Transaction::revision`]). At
    /// another one the commit fails with [`crate::Error::Changed`], and the transaction stays open.
    pub only_in: Option<Revision>,
    /// The transaction stays open after a conflict, so that its changes can be inspected and
    /// copied.
    pub stays: bool,
    /// Aborts the open transactions within this one when it has committed. Otherwise the commit
    /// fails while there are any ([`crate::Error::Nested`]), and the transaction stays open.
    pub aborts_nested: bool,
}

impl Default for CommitOptions {
    fn default() -> Self {
        CommitOptions {
            durability: Durability::Buffered,
            only_in: None,
            stays: false,
            aborts_nested: false,
        }
    }
}

/// An entry in the listing of open transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// The number of the transaction, by which it can be joined.
    pub id: TransactionId,
    /// The isolation level.
    pub isolation: Isolation,
    /// The transaction that this one was begun within.
    pub within: Option<TransactionId>,
    /// The branch of the transaction; `""` is the main one.
    pub branch: String,
    /// The label that the transaction was begun with.
    pub label: String,
    /// The transaction survives a restart.
    pub durable: bool,
    /// The time since it began, or since the store was opened.
    pub age: Duration,
    /// The time since its last call.
    pub idle: Duration,
    /// The number of changes made so far, including those that were undone.
    pub changes: u64,
    /// Bytes of memory that its changes take, without those that were spilled to runs.
    pub memory: u64,
    /// Bytes of its runs.
    pub run_bytes: u64,
    /// Its limit in bytes, if it has one.
    pub limit: Option<u64>,
    /// The number of files that it may make, if that is limited.
    pub limit_of_files: Option<u64>,
    /// The transaction that a call of this one waits for, since it holds a lock that the call
    /// needs.
    pub waits_for: Option<TransactionId>,
}

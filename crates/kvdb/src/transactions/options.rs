//! How a transaction is begun, and how it is listed.

use std::time::Duration;

use super::revision::Revision;
use crate::commit::batch::Durability;
use crate::ids::TransactionId;

/// What a transaction sees of others, and they of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// It reads the store as it was when it began, with its own changes. Of two that change the
    /// same key the first one to commit wins; the other gets [`crate::Error::Conflict`], unless a
    /// [`super::MergeRoutine`] can join both.
    #[default]
    Snapshot,
    /// As if it ran alone: what it reads or writes is locked until it ends (strict two-phase
    /// locking). It reads what is committed now. Of two that want the same key the older one goes
    /// first, so there is no deadlock.
    Serializable,
}

/// How a transaction is begun.
#[derive(Clone, Debug)]
pub struct TransactionOptions {
    /// How it is isolated from others.
    pub isolation: Isolation,
    /// Snapshot isolation only. `false`: the last commit wins. For callers who know that no other
    /// else touches their keys.
    pub check_conflicts: bool,
    /// It stays when its last handle is dropped, to be joined by its number, until it is ended or
    /// idle for too long. Otherwise it is aborted with its last handle.
    pub detached: bool,
    /// Its handles alone reach it: it is listed, and not joined by its number. For what a program
    /// does for itself in a store in which others join transactions.
    pub private: bool,
    /// It is aborted after so long without a call. `None`: never.
    pub idle_limit: Option<Duration>,
    /// Serializable only: how long a call waits for a lock before it gives up with
    /// [`crate::Error::Locked`].
    pub lock_timeout: Duration,
    /// Serializable only: it is begun in place of one that was aborted for an older one, and is as
    /// old as that.
    pub retry_of: Option<TransactionId>,
    /// It survives a crash and a restart, as it was some moments (the flush interval) before at the
    /// latest: its changes are logged, and hence written once more. Snapshot isolation only;
    /// detached whether or not that is said.
    pub durable: bool,
    /// Its commit can be undone for a while ([`crate::Kvdb::undoable_commits`]): the states before
    /// and after it are kept, for which the memtables of the moment are closed. For commits that
    /// people make, not for thousands a second.
    pub undoable: bool,
    /// The transaction that it is begun within: it reads what that one has changed so far, and its
    /// commit makes its changes a part of that one, which others see when that one commits. Both of
    /// snapshot isolation; neither durable nor undoable by itself; of the branch and the user of
    /// that one.
    pub within: Option<TransactionId>,
    /// The branch that it is of; `""`: the main one. What a durable one reads, and the states
    /// around a commit that can be undone, are of this branch alone; its end ends the transaction.
    pub branch: String,
    /// Its changes may take so many bytes: those that would take more are refused with
    /// [`crate::Error::OverLimit`], but for deletions. What others within it have changed counts,
    /// too. What is copied by reference counts as if it were written, and what is changed twice may
    /// count twice until it is merged. `None`: as much as there is room for.
    pub limit: Option<u64>,
    /// The files that it may make. The store itself knows no files: the layer above counts them.
    pub limit_of_files: Option<u64>,
    /// For people who look at a list of transactions.
    pub label: String,
    /// The user of the system that began it, for interfaces that keep users apart. The store itself
    /// ignores it.
    pub user: Option<u32>,
    /// What it changes is seen in place of the store, by programs that are to see no difference,
    /// for interfaces that show it otherwise elsewhere. The store itself ignores it.
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

/// How a transaction is committed.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions {
    /// When the commit returns.
    pub durability: Durability,
    /// Only if it is in this state ([`super::Transaction::revision`]); in another one it fails with
    /// [`crate::Error::Changed`], and the transaction is open as before.
    pub only_in: Option<Revision>,
    /// It is open after a conflict, too: what it has changed can be looked at and taken elsewhere.
    pub stays: bool,
    /// Transactions that are open within it are aborted when it has committed. Otherwise it is not
    /// committed while there are any ([`crate::Error::Nested`]), and is open as before.
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

/// An open transaction as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Its number, by which it can be joined.
    pub id: TransactionId,
    /// How it is isolated from others.
    pub isolation: Isolation,
    /// The transaction that it was begun within.
    pub within: Option<TransactionId>,
    /// The branch that it is of; `""`: the main one.
    pub branch: String,
    /// The label that it was begun with.
    pub label: String,
    /// It survives a restart.
    pub durable: bool,
    /// Since it began, or since the store was opened.
    pub age: Duration,
    /// Since its last call.
    pub idle: Duration,
    /// Changes made so far, those undone included.
    pub changes: u64,
    /// Memory of what is not in runs of its own, bytes.
    pub memory: u64,
    /// Bytes of those runs.
    pub run_bytes: u64,
    /// Its limit, bytes, if it has one.
    pub limit: Option<u64>,
    /// The files that it may make, if they are limited.
    pub limit_of_files: Option<u64>,
    /// The transaction whose end a call of this one waits for, since that one holds what it would
    /// lock.
    pub waits_for: Option<TransactionId>,
}

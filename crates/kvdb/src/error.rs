//! The errors of a store, with messages for users.

use std::io;

use bytes::Bytes;

use crate::dictionary::DictionaryId;
use crate::ids::TransactionId;

/// The reason why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The dictionary does not exist.
    #[error("no dictionary {0}")]
    NoDictionary(String),
    /// The snapshot does not exist.
    #[error("no snapshot {0}")]
    NoSnapshot(String),
    /// The branch does not exist.
    #[error("no branch {0}")]
    NoBranch(String),
    /// The name is already in use.
    #[error("{0} exists already")]
    Exists(String),
    /// The store has no space left for user data. Deletions still work.
    #[error("the store is full: delete something, or grow it")]
    NoSpace,
    /// The transaction, or a transaction around it, has reached its limit of bytes. Deletions still
    /// work.
    #[error(
        "transaction {id} has reached its limit of {limit} bytes: delete something in it, or begin \
         one with a larger limit"
    )]
    OverLimit {
        /// The transaction whose limit was reached.
        id: TransactionId,
        /// The limit in bytes. See [`crate::TransactionOptions::limit`].
        limit: u64,
    },
    /// The clone has reached the limit of bytes that it may have in addition to shared data.
    /// Deletions still work.
    #[error(
        "clone {branch} has reached its limit of {limit} bytes: delete something in it, or give it \
         a larger limit"
    )]
    CloneOverLimit {
        /// The branch of the clone.
        branch: String,
        /// The limit in bytes. See [`crate::Kvdb::limit_branch`].
        limit: u64,
    },
    /// The transaction, or a transaction around it, has reached its limit of new files. Removals
    /// still work.
    #[error(
        "transaction {id} has reached its limit of {limit} files: remove some that it has made, or \
         begin one with a larger limit"
    )]
    TooManyFiles {
        /// The transaction whose limit was reached.
        id: TransactionId,
        /// The limit in files. See [`crate::TransactionOptions::limit_of_files`].
        limit: u64,
    },
    /// The clone has reached the limit of files that it may have in addition to shared files.
    /// Removals still work.
    #[error(
        "clone {branch} has reached its limit of {limit} files: remove some that were made in it, \
         or give it a larger limit"
    )]
    CloneTooManyFiles {
        /// The branch of the clone.
        branch: String,
        /// The limit in files. See [`crate::Kvdb::limit_files`].
        limit: u64,
    },
    /// The store takes no more writes, for example after a failed sync. Reads still work.
    #[error("the store takes no more writes: {0}")]
    ReadOnly(String),
    /// The commit happened and is visible, but a later step failed (its sync, for example), so the
    /// commit may be missing when the store is opened again.
    #[error("committed and seen by all, but perhaps not durable: {0}")]
    NotSynced(String),
    /// Bytes on the device differ from the bytes that were written. The text names the place.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// The store cannot carry out the request. Nothing was changed.
    #[error("not possible: {0}")]
    Invalid(String),
    /// The operation would exceed the store's memory. Nothing was changed. The text names the
    /// resource and a remedy.
    #[error("too much: {0}")]
    Limit(String),
    /// The transaction cannot commit, because another commit has changed the same keys since the
    /// transaction began. The transaction has ended and must be begun again.
    #[error("conflict: {}: begin the transaction again", shown(keys))]
    Conflict {
        /// The first keys in conflict, at most [`NAMED_CONFLICTS`].
        keys: Vec<(DictionaryId, Bytes)>,
    },
    /// A serializable transaction holds the lock and did not release it in time, or an older
    /// transaction took a lock that this transaction held, which ends this transaction. The caller
    /// should try again.
    #[error("locked: {0}")]
    Locked(String),
    /// The transaction is no longer in the state that was to be committed. The transaction stays
    /// open, and nothing was committed.
    #[error("transaction {0} has changed since it was looked at, and was not committed")]
    Changed(TransactionId),
    /// Other transactions are open within the transaction that was to be committed. The transaction
    /// stays open, and nothing was committed.
    #[error(
        "transaction {id} is not committed while others are open within it ({}): commit or abort \
         these first",
        listed(nested)
    )]
    Nested {
        /// The transaction that was to be committed.
        id: TransactionId,
        /// The transactions that are open within transaction `id`.
        nested: Vec<TransactionId>,
    },
    /// The transaction does not exist.
    #[error("no transaction {0}: it has ended, or never was")]
    NoTransaction(TransactionId),
    /// No store is published under this name.
    #[error("there is no store {0}: check the address, or publish one there")]
    NoStore(String),
    /// Another writer has begun to publish the same store, so this writer must stop. No published
    /// data is lost.
    #[error(
        "{0} is published by another process by now, and this publication was given up: try again \
         if that is not meant to be the only one"
    )]
    Overtaken(String),
    /// Another local file is open as the writer of the store at its address.
    #[error(
        "{store} is open for writing by {by}: close it there; if it is gone for good, take the store \
         from it, without what it has not published"
    )]
    OpenElsewhere {
        /// The address of the store.
        store: String,
        /// A description of where the store is open.
        by: String,
    },
    /// The store was written at its address by another file, so this file lacks the newer published
    /// state.
    #[error(
        "{0} was written at its address since this file was published there, so the file lacks what \
         is there: open the store at its address"
    )]
    WrittenElsewhere(String),
    /// The local file has commits that were never published, and another file has become the writer
    /// since.
    #[error(
        "{0} was taken over by another writer, and this file has changes that were never published: \
         publish the file under another name, or remove it"
    )]
    Unpublished(String),
    /// Object storage failed.
    #[error("{0}")]
    Objects(#[from] objects::ObjectsError),
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// Converts an error that occurred after a commit had happened into the error for the caller of
    /// the commit.
    #[must_use]
    pub fn after_commit(self) -> Error {
        match self {
            Error::NotSynced(why) | Error::ReadOnly(why) => Error::NotSynced(why),
            other => Error::NotSynced(other.to_string()),
        }
    }

    /// Returns whether the operation may succeed if the transaction is begun again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict { .. } | Error::Locked(_))
    }
}

/// The maximum number of keys that [`Error::Conflict`] and
/// [`Transaction::change_back`](crate::Transaction::change_back) name. The search stops at this
/// number, so a list of this length may be incomplete.
pub const NAMED_CONFLICTS: usize = 16;

/// Formats transactions for a message.
fn listed(transactions: &[TransactionId]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = transactions.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = transactions.len().saturating_sub(SHOWN);
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Formats the first keys for a message.
fn shown(keys: &[(DictionaryId, Bytes)]) -> String {
    const SHOWN: usize = 3;
    let mut out = String::new();
    for (i, (dict, key)) in keys.iter().take(SHOWN).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let more = if key.len() > 40 { "…" } else { "" };
        out += &format!(
            "{comma}key \"{}\"{more} of dictionary {}",
            key[..key.len().min(40)].escape_ascii(),
            dict.0
        );
    }
    if keys.len() > SHOWN {
        let least = if keys.len() < NAMED_CONFLICTS { "" } else { "at least " };
        out += &format!(" and {least}{} more", keys.len() - SHOWN);
    }
    out + if keys.len() == 1 {
        " was changed by another commit"
    } else {
        " were changed by other commits"
    }
}

/// The result of an operation on a store.
pub type Result<T> = std::result::Result<T, Error>;

impl From<zones::Error> for Error {
    fn from(e: zones::Error) -> Error {
        match e {
            zones::Error::NoSpace => Error::NoSpace,
            zones::Error::Corrupt { .. } => {
                Error::Corrupt(e.to_string().trim_start_matches("corrupt: ").to_owned())
            }
            zones::Error::Io { ref source, .. } => {
                Error::Io(io::Error::new(source.kind(), e.to_string()))
            }
            _ => Error::Invalid(e.to_string()),
        }
    }
}

impl From<vt_tree::Error> for Error {
    fn from(e: vt_tree::Error) -> Error {
        match e {
            vt_tree::Error::Zones(e) => e.into(),
            vt_tree::Error::Corrupt { .. } => {
                Error::Corrupt(e.to_string().trim_start_matches("corrupt ").to_owned())
            }
        }
    }
}

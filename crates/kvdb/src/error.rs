//! What can go wrong, in sentences for the person at the keyboard.

use std::io;

use bytes::Bytes;

use crate::dictionary::DictionaryId;
use crate::ids::TransactionId;

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such dictionary.
    #[error("no dictionary {0}")]
    NoDictionary(String),
    /// There is no such snapshot.
    #[error("no snapshot {0}")]
    NoSnapshot(String),
    /// There is no such branch.
    #[error("no branch {0}")]
    NoBranch(String),
    /// The name is taken.
    #[error("{0} exists already")]
    Exists(String),
    /// No space left for user data; deleting still works.
    #[error("the store is full: delete something, or grow it")]
    NoSpace,
    /// The transaction, or one around it, has as much as it may have; deleting still works.
    #[error(
        "transaction {id} has reached its limit of {limit} bytes: delete something in it, or begin \
         one with a larger limit"
    )]
    OverLimit {
        /// Whose limit it is.
        id: TransactionId,
        /// Bytes, see [`crate::TransactionOptions::limit`].
        limit: u64,
    },
    /// The clone has as much of its own as it may have; deleting still works.
    #[error(
        "clone {branch} has reached its limit of {limit} bytes: delete something in it, or give it \
         a larger limit"
    )]
    CloneOverLimit {
        /// The branch.
        branch: String,
        /// Bytes, see [`crate::Kvdb::limit_branch`].
        limit: u64,
    },
    /// The transaction, or one around it, has made as many files as it may; removing still works.
    #[error(
        "transaction {id} has reached its limit of {limit} files: remove some that it has made, or \
         begin one with a larger limit"
    )]
    TooManyFiles {
        /// Whose limit it is.
        id: TransactionId,
        /// Files, see [`crate::TransactionOptions::limit_of_files`].
        limit: u64,
    },
    /// The clone has as many files of its own as it may have; removing still works.
    #[error(
        "clone {branch} has reached its limit of {limit} files: remove some that were made in it, \
         or give it a larger limit"
    )]
    CloneTooManyFiles {
        /// The branch.
        branch: String,
        /// Files, see [`crate::Kvdb::limit_files`].
        limit: u64,
    },
    /// The store stopped accepting writes (a sync failed, say); reading goes on.
    #[error("the store takes no more writes: {0}")]
    ReadOnly(String),
    /// A commit has happened, and all see what it has changed; what failed came afterwards (its
    /// sync, say), so it may not be there when the store is opened again.
    #[error("committed and seen by all, but perhaps not durable: {0}")]
    NotSynced(String),
    /// Bytes on the device are not what was written there. The text names the place.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// The caller asked for what the store cannot hold; nothing was changed.
    #[error("not possible: {0}")]
    Invalid(String),
    /// It would pile up more than the store's memory allows; nothing was changed. The text says of
    /// what, and what to do.
    #[error("too much: {0}")]
    Limit(String),
    /// A transaction cannot commit: another commit has changed the same keys since it began. It is
    /// over; begin it again.
    #[error("conflict: {}: begin the transaction again", shown(keys))]
    Conflict {
        /// The first of them.
        keys: Vec<(DictionaryId, Bytes)>,
    },
    /// A serializable transaction holds what is wanted, and did not let it go in time; or an older
    /// one took what this one held, which is over then. Try again.
    #[error("locked: {0}")]
    Locked(String),
    /// The transaction is in another state than the one that was to be committed; it is open, and
    /// nothing was committed.
    #[error("transaction {0} has changed since it was looked at, and was not committed")]
    Changed(TransactionId),
    /// Transactions are open within the one that was to be committed; it is open, and nothing was
    /// committed.
    #[error(
        "transaction {id} is not committed while others are open within it ({}): commit or abort \
         these first",
        listed(nested)
    )]
    Nested {
        /// The transaction.
        id: TransactionId,
        /// Those within it.
        nested: Vec<TransactionId>,
    },
    /// There is no such transaction.
    #[error("no transaction {0}: it has ended, or never was")]
    NoTransaction(TransactionId),
    /// Nothing is published under that name.
    #[error("there is no store {0}: check the address, or publish one there")]
    NoStore(String),
    /// Another writer has begun to publish the same store, so that this one may not any more;
    /// nothing that was published is lost.
    #[error(
        "{0} is published by another process by now, and this publication was given up: try again \
         if that is not meant to be the only one"
    )]
    Overtaken(String),
    /// Another local file is open for writing the store at its address.
    #[error(
        "{store} is open for writing by {by}: close it there; if it is gone for good, take the store \
         from it, without what it has not published"
    )]
    OpenElsewhere {
        /// The store.
        store: String,
        /// Says who has it open.
        by: String,
    },
    /// The store was written at its address, so that its own file lacks what is published.
    #[error(
        "{0} was written at its address since this file was published there, so the file lacks what \
         is there: open the store at its address"
    )]
    WrittenElsewhere(String),
    /// The local file has commits that were never published, and another one has been the writer
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
    /// As it is told to the caller of a commit that has happened all the same.
    #[must_use]
    pub fn after_commit(self) -> Error {
        match self {
            Error::NotSynced(why) | Error::ReadOnly(why) => Error::NotSynced(why),
            other => Error::NotSynced(other.to_string()),
        }
    }

    /// Whether the same may succeed when the transaction is begun again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict { .. } | Error::Locked(_))
    }
}

/// Transactions, for a message.
fn listed(transactions: &[TransactionId]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = transactions.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = transactions.len().saturating_sub(SHOWN);
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// A few of the keys, for a message.
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
        out += &format!(" and {} more", keys.len() - SHOWN);
    }
    out + if keys.len() == 1 {
        " was changed by another commit"
    } else {
        " were changed by other commits"
    }
}

/// The outcome of an operation on a store.
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

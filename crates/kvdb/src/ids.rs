//! The identifiers of transactions, runs and snapshots.

use std::fmt;
use std::time::Duration;

use vt_tree::Seq;

/// The number of a transaction, unique in its store for as long as the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a run in the manifest; within a level, a larger one is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunId(pub u64);

/// The name, identity and time of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// The branch that it was taken of; empty for the main one.
    pub branch: String,
    /// Its identity, unique in every store that it was sent to.
    pub id: [u8; 16],
    /// The time of its creation, since 1970.
    pub created: Duration,
    /// The last commit that it contains.
    pub seq: Seq,
}

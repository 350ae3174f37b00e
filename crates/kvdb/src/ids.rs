//! How transactions, runs and snapshots are named wherever they are spoken of.

use std::fmt;
use std::time::Duration;

use vt_tree::Seq;

/// Names a transaction in its store, for as long as the store is open; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a run in the manifest; larger is newer within a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunId(pub u64);

/// What a snapshot is called, and of when it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// The branch that it is of; empty: the main one.
    pub branch: String,
    /// Tells it from all others, in every store that it was sent to.
    pub id: [u8; 16],
    /// When it was made, since 1970.
    pub created: Duration,
    /// Commits up to this one are in it.
    pub seq: Seq,
}

//! The identifiers of transactions, runs and snapshots.

use std::fmt;
use std::time::Duration;

use vt_tree::Seq;

/// The number of a transaction. The number is unique in the store while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a run in the manifest. Within a level, a run with a larger number is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunId(pub u64);

/// The name, identity and time of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The name of the snapshot.
    pub name: String,
    /// The branch of which the snapshot was taken. The name is empty for the main branch.
    pub branch: String,
    /// The identity of the snapshot, which is unique in every store to which the snapshot was sent.
    pub id: [u8; 16],
    /// The time when the snapshot was created, as the duration since 1970.
    pub created: Duration,
    /// The number of the last commit that the snapshot contains.
    pub seq: Seq,
}

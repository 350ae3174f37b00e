//! The commits: from a batch to memtables that readers see, and to a durable record.
//!
//! `committer` has the skeleton of a commit on one page, and its invariants. The four kinds of
//! commits fill it: `put` (a single put), `changes` (a batch, a transaction, a commit that is
//! replayed from a mirror), `runs` (runs that a transaction has built), `order` (an edit of the
//! manifest, such as a drop, a rollback or an ingest). `log` has the records of all of them.
//!
//! What comes before the lock: `batch`, `validate`, `updates` (long chains of updates are replaced
//! by values), `place` (large values are placed, or copied into the log's buffers), `locking` (the
//! locks that a commit waits for), `enter` (the lock itself, with room in the log). Under the lock:
//! `memtables`, and `conditional`, which checks there for conflicts without a transaction. After
//! it: `feed` and `recent`, which remember commits for those who follow the store, with their
//! `author`, and for transactions that look for conflicts; `sealing`, in which `short_values`
//! decides when short values are placed outside their blocks; `replay`, at the next opening.

pub(crate) mod author;
pub(crate) mod batch;
mod changes;
mod committer;
pub(crate) mod conditional;
mod enter;
pub(crate) mod feed;
pub(crate) mod locking;
pub(crate) mod log;
mod memtables;
pub(crate) mod order;
mod place;
mod put;
pub(crate) mod recent;
mod replay;
pub(crate) mod runs;
pub(crate) mod sealing;
mod short_values;
#[cfg(test)]
mod tests;
pub(crate) mod updates;
mod validate;

use std::sync::Arc;

use vt_tree::Seq;

pub(crate) use self::changes::Outcome;
pub(crate) use self::committer::{Applied, Committer};
use self::feed::Feed;
pub(crate) use self::memtables::write_memtables;
pub(crate) use self::order::number_alone;
use self::recent::RecentCommits;
pub use self::validate::{MAX_KEY, MAX_UPDATE, MAX_VALUE};
pub(crate) use self::validate::{SpaceClaim, Valid, check_put};
use crate::error::Result;
use crate::locks::Locks;
use crate::read::ranks::Ranks;
use crate::version::Version;

/// The size of a commit that places large values first.
#[derive(Clone, Copy)]
pub(crate) struct CommitSize {
    /// The bytes of its large values.
    pub large: u64,
    /// The bytes of all keys and values.
    pub all: u64,
}

/// The services that a commit needs of later parts of the store.
pub(crate) trait CommitEnv {
    /// Admits a commit of `bytes`: at once, after a delay, or with an error. `deferred` is the
    /// number of bytes that will be deferred.
    fn admit(&self, bytes: usize, deferred: usize, claim: SpaceClaim) -> Result<()>;

    /// Reclaims deleted data when space runs short, or waits for the thread that does. Returns
    /// `false` without an attempt if nothing was deleted or flushed since the last one. `true` does
    /// not mean that space was gained: the caller must check again.
    fn want_space(&self) -> bool;

    /// Places the held values, and releases the zones that were reserved for more of them. Returns
    /// `false` if there were neither.
    fn place_held(&self) -> bool;

    /// Returns whether a commit of this size, or a smaller one, was refused for lack of space, and
    /// there is no more space now: this one would be refused, too, after its large values had been
    /// written.
    fn was_refused(&self, size: CommitSize, claim: SpaceClaim) -> bool;

    /// Notes that such a commit was refused. It must hold no space any more.
    fn note_refused(&self, size: CommitSize, claim: SpaceClaim);

    /// Flushes all earlier commits into runs.
    fn flush_all(&self) -> Result<()>;

    /// Starts the work that a commit has made due.
    fn after_commit(&self, applied: Applied) -> Result<()>;
}

/// Makes the snapshots with which generations end, while no other commit happens.
pub(crate) trait SnapshotMaker {
    /// Returns the maximum size of a snapshot's record in the journal, bytes.
    fn record_size(&self) -> usize;

    /// Returns the record of a snapshot of `version` with the commits up to `seq`. For a pair of
    /// snapshots around a commit, the first call makes the one before it.
    fn record(&self, version: &Version, seq: Seq) -> Vec<u8>;

    /// Notes that the generation that ends with the snapshot is sealed: the snapshot can be read
    /// from now on.
    fn closed(&self);
}

/// The parts next to the engine that the committer shares with others.
pub(crate) struct CommitParts {
    pub locks: Arc<Locks>,
    pub recent: Arc<RecentCommits>,
    pub feed: Arc<Feed>,
    pub ranks: Arc<Ranks>,
}

//! Transactions: what belongs together, done by any number of threads and processes, seen by no
//! other until it commits (VT-tree paper, §3.2).
//!
//! - `write_set` (in `read`): what a transaction has written, in memory and in runs of its own;
//! - `bulk`: many sorted tuples at once, as a run;
//! - `options`: how a transaction is begun and listed;
//! - `handle`: the calls of a transaction; `state`: what its handles share; `revision`: which state
//!   of its changes it is in;
//! - `nested`: transactions within transactions;
//! - `nested_batch`: changes of a transaction that are made all at once or not at all;
//! - `reads`: what of others a commit depends on, though it does not change it;
//! - `registry`: those that are open;
//! - `conflicts`: what others have changed since a transaction began, and the merge routines that
//!   reconcile it; `join`: the routines that dictionaries name in their options;
//! - `locking`: what serializable ones lock, and what that means for others;
//! - `ending`: commit and abort; `undo`: commits that can be undone;
//! - `carry`: what another branch has changed, taken over;
//! - `durable`: those that survive a crash and a restart;
//! - `changes`: what a transaction would change, listed;
//! - `updates`: bounds the updates of one key.

mod bulk;
mod carry;
mod changes;
mod conflicts;
pub(crate) mod durable;
mod ending;
mod handle;
mod join;
mod locking;
mod nested;
mod nested_batch;
mod options;
mod reads;
mod registry;
mod revision;
mod state;
mod undo;
mod updates;

pub use bulk::{Bulk, BulkRun, KeptTuple, StoredTuple, StoredTuples};
pub use carry::{Clash, Settled};
pub use changes::{Changed, Changes};
pub use conflicts::{MergeRoutine, Merged};
pub use handle::{MAX_SAVEPOINTS, Savepoint, Transaction};
pub use nested::MAX_NESTED;
pub use nested_batch::NestedBatch;
pub use options::{CommitOptions, Isolation, TransactionInfo, TransactionOptions};
pub(crate) use registry::{TransactionParts, Transactions};
pub use revision::Revision;
pub use undo::UndoableCommit;

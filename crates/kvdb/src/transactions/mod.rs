//! Transactions: groups of changes made by any number of threads and processes, which other readers
//! see only once they commit (VT-tree paper, §3.2).
//!
//! The changes of a transaction are a `write_set`, a room below this one: views read it, too.
//!
//! - `spill`: writes a write set to runs when it takes too much memory;
//! - `bulk`: bulk loading of sorted tuples as a run;
//! - `options`: options with which a transaction is begun, and its entry in a listing;
//! - `handle`: the calls of a transaction; `state`: the state that its handles share; `revision`:
//!   identifies the state of its changes;
//! - `nested`: transactions within transactions;
//! - `nested_batch`: changes of a transaction that are applied atomically;
//! - `reads`: the read set, keys and ranges that a commit depends on without changing them;
//! - `registry`: the open transactions;
//! - `conflicts`: detection of changes made by others since a transaction began, and the merge
//!   routines that reconcile them; `join`: the routines that dictionaries name in their options;
//! - `locking`: the locks that serializable transactions take, and their effect on others;
//! - `ending`: commit and abort; `undo`: commits that can be undone;
//! - `carry`: applies the changes of another branch to a transaction;
//! - `durable`: transactions that survive a crash and a restart;
//! - `changes`: lists the uncommitted changes of a transaction;
//! - `updates`: bounds the updates of one key.

mod bulk;
mod carry;
mod changes;
mod conflicts;
pub(crate) mod durable;
mod ending;
mod handle;
mod in_use;
mod join;
mod locking;
mod nested;
mod nested_batch;
mod options;
mod reads;
mod registry;
mod revision;
mod spill;
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

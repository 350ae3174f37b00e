//! KVDB: an ordered, transactional key-value database on VT-trees.
//!
//! ```no_run
//! let db = kvdb::Kvdb::open_path("fruit.kvfs")?;
//! let fruit = db.open_dictionary("fruit")?;
//! fruit.insert("apple", "red")?;
//! assert_eq!(fruit.get("apple")?.as_deref(), Some(&b"red"[..]));
//! # Ok::<(), kvdb::Error>(())
//! ```
//!
//! A store is a file, and a [`Dictionary`] is one of its key spaces. Changes that belong together
//! form a [`Batch`], which is committed as one unit and may change any number of dictionaries. A
//! [`View`] is the store as of one commit:
//!
//! ```
//! use kvdb::{Batch, Durability, Kvdb};
//!
//! let db = Kvdb::in_memory();
//! let fruit = db.open_dictionary("fruit")?;
//! let before = db.view();
//! let mut batch = Batch::new();
//! batch.put(fruit.id(), "apple", "red");
//! batch.put(fruit.id(), "pear", "green");
//! db.commit(batch, Durability::Synced)?;
//! assert_eq!(before.iter(fruit.id()).count(), 0);
//! for tuple in fruit.prefix("p") {
//!     let (key, value) = tuple?;
//!     assert_eq!((&key[..], &value[..]), (&b"pear"[..], &b"green"[..]));
//! }
//! # Ok::<(), kvdb::Error>(())
//! ```
//!
//! The guide is `docs/kvdb.md`.
//!
//! In the order in which a commit passes through them, the rooms of this crate are `commit` (the
//! pipeline, late binding, group sync), `mirror` (commits that outlive the process), `journal` (the
//! stream of records), `version` (the versions and snapshots that readers pin), `read` (views, and
//! reads of them), `background` (flush, compaction, write throttling), `manifest` (the log of the
//! store's structure), `engine` (the state that all parts of an open store share), and `db` (the
//! connections between the parts; threads, recovery, checks, checkpoints). The other rooms are
//! `transactions` with their `write_set` and `locks`, `catalog` (the dictionaries), `snapshots`,
//! `log` (the layout of the journal and the manifest on the device), `remote` (stores in object
//! storage), `series` (the codecs of values by the prefixes of their keys), `lock_order`, `scrub`
//! and `salvage`.

#![warn(missing_docs)]

mod background;
mod catalog;
mod commit;
mod counters;
mod db;
mod dictionary;
mod engine;
mod error;
mod health;
mod ids;
mod journal;
mod lock_order;
mod locks;
mod log;
mod manifest;
mod mirror;
mod options;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod persistent_map;
mod read;
mod remote;
mod salvage;
mod scrub;
mod series;
mod short_values;
mod signals;
mod snapshots;
mod transactions;
mod version;
mod write_set;

pub use background::defragment::{DefragOptions, DefragProgress, ValueOrder, VisitRange};
pub use commit::author::with_author;
pub use commit::batch::{Batch, Durability};
pub use commit::conditional::Reads;
pub use commit::feed::{CommitPosition, CommittedKey, CommittedKeys, RecentKeys};
pub use commit::locking::without_lock_waits;
pub use commit::{MAX_KEY, MAX_UPDATE, MAX_VALUE};
pub use db::check::{CheckReport, Fault, check, check_with};
pub use db::checkpoint::CheckpointStats;
pub use db::follower::{Follower, NewerState};
pub use db::handle::Dictionary;
pub use db::ingest::{Ingest, IngestStats};
pub use db::promise::PromisedSpace;
pub use db::publisher::{Publisher, PushStats};
pub use db::receive::{ReceiveOptions, ReceiveStats};
pub use db::recovery::Recovery;
pub use db::reference::Reference;
pub use db::rehearsal::Rehearse;
pub use db::repair::{Deletion, RepairReport, StateOfRun};
pub use db::scope::{Scope, ScopeCursor};
pub use db::send::SendStats;
pub use db::served::{PageRequest, ServedChange, ServedView, TuplePage};
pub use db::snapshots::STORE_BRANCH;
pub use db::stats::{DictionaryStats, Stats};
pub use db::writer::WriterOptions;
pub use db::{Kvdb, Space};
pub use dictionary::{
    ADAPTIVE, ADAPTIVE_SEPARATION, Compression, DictionaryId, DictionaryInfo, DictionaryOptions,
    FALSE_POSITIVES, Join, MAX_DICTIONARY_NAME,
};
pub use error::{Error, NAMED_CONFLICTS, Result};
pub use ids::{Label as SnapshotLabel, TransactionId};
pub use mirror::{Mirror, Note};
pub use options::{CompactionPolicy, CreateOptions, OpenOptions};
pub use read::bounds::prefix_end;
pub use read::cursor::{Cursor, Tuple, TupleRef};
pub use read::iter::{Iter, Keys};
pub use read::view::{StoredValue, View};
pub use remote::{
    Amount, CollectOptions, CollectProgress, Collected, ForkId, ForkInfo, ForkOptions, Head,
    JournalPlace, LocalCopy, MissingObject, Owner, PullProgress, PushProgress, RemotePlace,
    RemoteStore, RemoteZones, StateChanges, StateName, StateObject, Survey,
};
pub use salvage::{Remnant, Salvage, SalvagedValue, Scan};
pub use scrub::{FaultKeys, ScrubFault, ScrubOptions, ScrubProgress};
pub use series::{ReadOther, SeriesCodec, SeriesOf, SeriesSource};
pub use snapshots::{
    BranchInfo, BranchLimit, BuildsUpon, Change, Difference, ForkBase, Lineage, MAX_SNAPSHOT_NAME,
    Received, SnapshotInfo, StreamEnd,
};
pub use transactions::{
    Bulk, BulkRun, Changed, Changes, Clash, CommitOptions, Isolation, KeptTuple, MAX_NESTED,
    MAX_SAVEPOINTS, MergeRoutine, Merged, NestedBatch, Revision, Savepoint, Settled, StoredTuple,
    StoredTuples, Transaction, TransactionInfo, TransactionOptions, UndoableCommit,
};
pub use vt_tree::{Estimate, Update, read_alone, read_onward, value_waited};
pub use zones::remote::RemoteStats;
pub use zones::{Profile, ZoneInfo, ZoneState};

/// Runs the guide's examples as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/kvdb.md")]
struct Guide;

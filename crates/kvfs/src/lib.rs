//! KVFS: a POSIX file system on kvdb.
//!
//! ```
//! use std::sync::Arc;
//! use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT};
//!
//! let env: Arc<dyn env::Env> = Arc::new(env::Simulated::new(1));
//! let fs = Fs::open(kvdb::Kvdb::in_memory(), env, FsOptions::default())?;
//! let dir = fs.mkdir(ROOT, b"notes", 0o755, Caller::default())?;
//! let file = fs.mknod(dir.ino, b"today", FileKind::File, 0o644, 0, Caller::default())?;
//! fs.write(file.ino, 0, b"rain", Default::default())?;
//! fs.rename(dir.ino, b"today", ROOT, b"yesterday", Default::default())?;
//! let found = fs.resolve(b"/yesterday")?.ino;
//! assert_eq!(&fs.read(found, 0, 100)?[..], b"rain");
//! fs.fsync(found, false)?;
//! # Ok::<(), kvfs::Error>(())
//! ```
//!
//! [`Fs`] has one method for each call of a file system; an adapter (FUSE, for example) only
//! translates. The kernel checks permissions. The `layout` module alone defines the stored form,
//! which `docs/format.md` describes.
//!
//! - Calls: `namespace`, `rename`, `directory` (on `listing`, `listing_table`), `directory_locks`,
//!   `data` (on `pages`), `write_call`, `attributes`, `xattr`, `allocate`, `reflink`, `statfs`,
//!   `resolve`. Every call begins in `fs`, `freeze_lock` and `locks`; it finds inodes by `inodes`
//!   and entries by `names`, and reads and writes the store through `store` or through a scope of
//!   the store. `opening` opens and shuts down a file system; `orphans` removes files without a
//!   name.
//! - Reading ahead, by place, the data that a reader of a tree will read next: `reading_ahead`, on
//!   `read_plan` and `listing_order`.
//! - In memory: `inode` (with the lock order), `privileges`, `partial_page`, `inode_cache`,
//!   `inode_allocator` (on `reservation`). Uncommitted changes: `dirty`, `dirty_queue`, `sync`,
//!   `free_space` on `space_account`; the codecs of their pages: `compress`. Writes out of a cache:
//!   `cached_writes`, `lost`. The thread of an interval: `ticker`.
//! - Transactions, snapshots and clones: `views`, `apply_commit`, `merge`, `fs/superseded`,
//!   `views/snapshots`, `difference`, `changed_paths`, `going_down`; `views/in_use`, for another
//!   process that takes over all views; `views/lent`, for a client to which a server has lent the
//!   mainline. Merging branches: `merging`, `three_way`, `views/merging`, `views/common_states`;
//!   forks: `views/merging_forks`.
//! - Whole trees: `walk`, `tree`, `tree_order`, `clone_tree`, `same_file`, `remove_tree`,
//!   `whole`; `name_order`, in which a defragmentation lays their pages.
//! - Checking: `verify`, `repair`, `losses`, `salvage`, `scrub_note`, `describe_keys`.
//!
//! A write reserves space (`free_space`), puts pages into the buffer of its inode (`data`) and
//! marks the inode dirty (`dirty`). A `sync`, the interval, or a writer that finds too much dirty
//! data makes `dirty` stage the buffer as a batch, which [`Fs`] commits. If the store seems full, a
//! write commits dirty data before it is refused.

#![warn(missing_docs)]

mod allocate;
mod apply_commit;
mod attr;
mod attributes;
mod cached_writes;
mod changed_paths;
mod clone_tree;
mod compress;
mod data;
mod describe_keys;
mod difference;
mod directory;
mod directory_locks;
mod dirty;
mod dirty_queue;
mod error;
mod file_account;
mod file_limits;
mod first_reads;
mod free_space;
mod freeze_lock;
mod fs;
mod going_down;
mod inode;
mod inode_allocator;
mod inode_cache;
mod inodes;
mod layout;
mod listing;
mod listing_order;
mod listing_table;
mod locks;
mod losses;
mod lost;
mod merge;
mod merging;
mod name_order;
mod names;
mod namespace;
mod opening;
mod orphans;
mod pages;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod partial_page;
mod privileges;
mod promised_ranges;
mod promises;
mod read_plan;
mod reading_ahead;
mod reflink;
mod remove_tree;
mod rename;
mod repair;
mod replaced_state;
mod request;
mod reservation;
mod resolve;
mod salvage;
mod same_file;
mod scrub_note;
mod space_account;
mod statfs;
mod store;
mod sync;
mod three_way;
mod ticker;
mod tree;
mod tree_order;
mod verify;
mod views;
mod walk;
mod whole;
mod write_call;
mod xattr;

pub use apply_commit::ChangeSet;
pub use attr::{
    Allocate, AllocateMode, Attr, Caller, DirEntry, FileKind, Ino, ROOT, ReadHints, RenameFlags,
    SetAttr, StatFs, TimeSet, Timestamp, Whence, WriteHints, Written, XattrFlags,
};
pub use changed_paths::{ChangedPaths, PathChange};
pub use clone_tree::{CloneStats, Earlier};
pub use compress::{COMPRESS_ATTRIBUTE, Compress, announce_ways, receive_by_ways};
pub use describe_keys::describe_keys;
pub use difference::{Below, Difference, FileChange, Listing, XattrChange, difference_of_states};
pub use error::{Error, Result};
pub use first_reads::rehearse;
pub use fs::{Atime, Fs, FsOptions, Statistics, ZONE_SIZE};
pub use going_down::GoingDown;
pub use kvdb::{Note, TransactionId};
pub use losses::{Loss, losses};
pub use merging::{
    Choice, Deed, FinishRebase, MergeConflict, MergeForkOptions, MergeOptions, Merged, Rebased,
    SettleKeys,
};
pub use name_order::lay_by_name;
pub use remove_tree::RemoveStats;
pub use repair::{Losses, Repaired, repair};
pub use request::with_note;
pub use salvage::{Left, LeftEntries, LeftEntry, LeftNode, Remains};
pub use sync::FSync;
pub use verify::{Finding, Report, verify};
pub use views::{
    CommittedTo, InUse, Pause, Running, Untold, ViewId, ViewNotes, Views, Wait, Watcher,
};
pub use walk::{Walk, Walked};
pub use whole::Whole;

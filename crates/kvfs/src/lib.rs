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
//! Each room below is a folder. A room uses only rooms that come before it in this list.
//!
//! - `layout`: the keys and values of the store, and the inode numbers that a directory has
//!   reserved (`reservation`). `attr` and `error`, which are files, come before it.
//! - `inode`: an inode in memory (with the lock order), and what finds, keeps, locks and numbers
//!   inodes: `inodes`, `inode_cache`, `locks`, `inode_allocator`. Parts of an inode:
//!   `partial_page`, `listing`, `privileges`. The queue of inodes with uncommitted changes:
//!   `dirty_queue`.
//! - `space`: accounts of space (`free_space` on `space_account`, `promises`) and of files
//!   (`file_limits` on `file_account`), on the `store` that contains the view.
//! - `names`: the entries of directories, and the listings in progress: `listing_table`,
//!   `listing_order`.
//! - `pages`: the pages of files, their codecs (`compress`), lost writes of a cache (`lost`), the
//!   order in which a defragmentation lays pages (`name_order`). Reading ahead, by place, what a
//!   reader of a tree will read next: `reading_ahead`, on `read_plan`.
//! - `fs`: the file system itself, in which every call begins: `freeze_lock`, the kernel's
//!   `request`, the inode numbers, the replaced state (`superseded`), `statfs`, and the thread of
//!   an interval (`ticker`).
//! - `commit`: commits of uncommitted changes, and their effect on memory: `dirty`, `sync`,
//!   `orphans`, `promised_ranges`, `apply_commit`, `replaced_state`.
//! - `difference`: the changes between two states, by path.
//! - `merge`: the merge routine of keys; merging branches: `merging`, `three_way`.
//! - `opening`: opens and shuts down a file system.
//! - `upkeep`: checks and repairs: `verify`, `repair`, `losses`, `salvage`, `scrub_note`,
//!   `describe_keys`.
//! - `file`: the calls on one file: `data`, `write_call`, `cached_writes`, `attributes`, `xattr`,
//!   `allocate`, `reflink`.
//! - `namespace`: the calls on names: `rename`, `directory`, `directory_locks`, `resolve`.
//! - `views`: transactions, snapshots and clones: `views/in_use`, for another process that
//!   continues with all of it; `views/lent`, for a client of a server that has the mainline;
//!   `views/merging`, `views/merging_forks`; `changed_paths`, for clients that follow the store;
//!   `going_down`; `first_reads`.
//! - `trees`: operations on whole trees: `walk`, `tree`, `tree_order`, `clone_tree`, `same_file`,
//!   `remove_tree`, `whole`.
//!
//! A write reserves space (`free_space`), puts pages into the buffer of its inode (`data`) and
//! marks the inode dirty (`dirty`). A `sync`, the interval, or a writer that finds too much dirty
//! data makes `dirty` stage the buffer as a batch, which [`Fs`] commits. If the store seems full, a
//! write commits dirty data before it is refused.

#![warn(missing_docs)]

mod attr;
mod commit;
mod difference;
mod error;
mod file;
mod fs;
mod inode;
mod layout;
mod merge;
mod names;
mod namespace;
mod opening;
mod pages;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod space;
mod trees;
mod upkeep;
mod views;

pub use attr::{
    Allocate, AllocateMode, Attr, Caller, DirEntry, FileKind, Ino, ROOT, ReadHints, RenameFlags,
    SetAttr, StatFs, TimeSet, Timestamp, Whence, WriteHints, Written, XattrFlags,
};
pub use commit::apply_commit::ChangeSet;
pub use commit::sync::FSync;
pub use difference::{Below, Difference, FileChange, Listing, XattrChange, difference_of_states};
pub use error::{Error, Result};
pub use fs::request::with_note;
pub use fs::{Atime, Fs, FsOptions, Statistics, ZONE_SIZE};
pub use kvdb::{Note, TransactionId};
pub use merge::merging::{
    Choice, Deed, FinishRebase, MergeConflict, MergeForkOptions, MergeOptions, Merged, Rebased,
    SettleKeys,
};
pub use pages::compress::{COMPRESS_ATTRIBUTE, Compress, announce_ways, receive_by_ways};
pub use pages::name_order::lay_by_name;
pub use trees::clone_tree::{CloneStats, Earlier};
pub use trees::remove_tree::RemoveStats;
pub use trees::walk::{Walk, Walked};
pub use trees::whole::Whole;
pub use upkeep::describe_keys::describe_keys;
pub use upkeep::losses::{Loss, losses};
pub use upkeep::repair::{Losses, Repaired, repair};
pub use upkeep::salvage::{Left, LeftEntries, LeftEntry, LeftNode, Remains};
pub use upkeep::verify::{Finding, Report, verify};
pub use views::changed_paths::{ChangedPaths, PathChange};
pub use views::first_reads::rehearse;
pub use views::going_down::GoingDown;
pub use views::{
    CommittedTo, InUse, Pause, Running, Untold, ViewId, ViewNotes, Views, Wait, Watcher,
};

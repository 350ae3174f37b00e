//! KVFS as a FUSE file system.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//! use kvfs::{Fs, FsOptions, Views};
//! use kvfs_fuse::{FuseAdapter, KernelNotifier, MountOptions, Policy, mount};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let db = kvdb::Kvdb::in_memory();
//! let env: Arc<dyn env::Env> = Arc::new(env::Simulated::new(1));
//! let views = Views::new(db.clone(), Fs::open(db, env, FsOptions::default())?);
//! let adapter = Arc::new(FuseAdapter::new(views.clone()));
//! let at = Path::new("/mnt/kvfs");
//! let mut mounted = mount(adapter.clone(), at, &MountOptions::default(), &Policy::default())?;
//! // Keeps what the kernel caches up to date with transactions.
//! let notifier = KernelNotifier::start(&views, &adapter, &mounted)?;
//! // Programs use /mnt/kvfs.
//! mounted.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! `handler` is the boundary: the requests of any FUSE transport to any file system, in plain
//! types.
//!
//! Below it lie the messages on `/dev/fuse` and in the slots of io_uring: `wire` (their layouts),
//! `dispatcher` (turns a request into a call), `connection` (reads requests, writes answers and
//! invalidations), `session`, `worker_pool` and `blocking_pool` (the threads), `intake` (the order
//! in which they take requests), `ring` and `queues` (io_uring, with a thread for each of `cpus`
//! that gives way by `courtesy`), `switch` (the kernel's parameter that enables io_uring).
//!
//! Above it, `fuse_adapter` answers with a `kvfs` file system and its views: `node_id` (maps
//! numbers of the kernel to views), `control_directory` (the directory with all views),
//! `kernel_notifier` (tells the kernel about changes), `unshared_thread` and `mount_root` (the
//! daemon's use of its own mount), `program_files` (finds the files that programs run from),
//! `watch_events` (tells programs that watch files), `recall` (requests the dirty pages of one file
//! from the kernel), `quiesce_barrier`, `barrier` and `coalescer` (find out that all dirty pages
//! have arrived).
//!
//! `mount` mounts and unmounts file systems, `handover` lets another process continue a mount
//! (`interrupt` stops the threads for that), `abort_watchdog` ends the connection of a daemon that
//! was killed (`control`: the kernel's files for that), `mounts` lists the mounts, `counters`
//! counts requests, `ioctl` handles the control codes that are answered.

#![warn(missing_docs)]

mod abort_watchdog;
mod barrier;
mod blocking_pool;
mod coalescer;
mod connection;
mod control;
mod control_directory;
pub mod counters;
mod courtesy;
mod cpus;
mod dispatcher;
mod fault;
mod fuse_adapter;
mod fusermount;
pub mod handler;
mod handover;
mod intake;
mod interrupt;
mod ioctl;
mod kept;
mod kernel_notifier;
pub mod mount;
mod mount_root;
pub mod mounts;
mod name_parts;
mod node_id;
mod program_files;
mod queues;
mod quiesce_barrier;
mod recall;
mod ring;
mod security_labels;
mod session;
mod size_setter;
pub mod switch;
mod unshared_thread;
pub mod view_names;
mod watch_events;
mod wire;
mod worker_pool;

pub use counters::Counters;
pub use fuse_adapter::FuseAdapter;
pub use handler::{Handler, Invalidator, NodeId, Policy, TransportChoice};
pub use handover::{Handover, Stopper};
pub use kept::Kept;
pub use kernel_notifier::KernelNotifier;
pub use mount::{
    AccessTimes, Error, Keeping, MountOptions, Mounted, Served, Unmount, Unmounter,
    kept_connection, mount, mount_kept, take_over, take_over_killed, unmount,
};
pub use unshared_thread::{Life, live};

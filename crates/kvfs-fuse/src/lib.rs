//! The FUSE door to KVFS.
//!
//! `handler` is the seam: what any FUSE transport asks of any file system, in plain types. On one side of it is `transport` (on
//! `fuser` and `/dev/fuse`), on the other `door`, which answers with a `kvfs` file system. `mount` mounts and unmounts,
//! `mounts` reads what is mounted, `counters` counts requests.

pub mod counters;
pub mod handler;
pub mod mount;
pub mod mounts;
mod transport;
mod types;

pub use counters::Counters;
pub use handler::{Handler, Invalidator, Policy};
pub use mount::{AccessTimes, Error, MountOptions, Mounted, Unmount, Unmounter, mount, unmount};

//! The FUSE door to KVFS.
//!
//! `handler` is the seam: what any FUSE transport asks of any file system, in plain types. On one side of it are the messages on
//! `/dev/fuse` (`wire`: their layouts; `transport`: which call a request becomes; `session`, `crew` and `waiting`: the threads; `intake`: in which order they take requests), or in the slots of io_uring (`ring`, and `queues` with a thread for each of `cpus`, that gives way by `courtesy`; `switch`: the kernel's), on the other
//! `door`, which answers with a `kvfs` file system and its views (`wire_ino`: which view an inode number names; `hidden`: the directory
//! that has them all; `herald`: tells the kernel when one
//! ends, `guest` and `place`: how it uses the mount itself, `recall`: how it has the kernel hand over one file, `rendezvous`, `barrier` and `together`:
//! how it knows that everything has arrived). `mount` mounts and
//! unmounts, `watch` ends the connection of a daemon that was killed (`control`: the kernel's files for that), `mounts` reads what is mounted,
//! `counters` counts requests, `ioctl` knows those that we answer.

mod barrier;
mod control;
pub mod counters;
mod courtesy;
mod cpus;
mod crew;
mod door;
mod fusermount;
mod guest;
pub mod handler;
mod herald;
mod hidden;
mod intake;
mod ioctl;
pub mod mount;
pub mod mounts;
mod place;
mod queues;
mod recall;
mod rendezvous;
mod ring;
mod session;
pub mod switch;
mod together;
mod transport;
mod waiting;
mod watch;
mod wire;
mod wire_ino;

pub use counters::Counters;
pub use door::Door;
pub use handler::{Choice, Handler, Invalidator, Policy};
pub use herald::Herald;
pub use mount::{AccessTimes, Error, MountOptions, Mounted, Unmount, Unmounter, mount, unmount};

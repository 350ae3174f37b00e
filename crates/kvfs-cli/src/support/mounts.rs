//! Mounted stores as commands find them: records of daemons, sockets, paths in a mount.

pub mod daemons;
pub mod live;
pub mod mounted;
pub mod place;
pub mod replies;
pub mod sockets;
pub mod waiting;

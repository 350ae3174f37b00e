//! The C library `libkvfs_served`: transactions and snapshots of a store that a server holds
//! (`kvfs serve`), over the wire. The header `kvfs_served.h` is its documentation.
//!
//! - `store`: a connection, and the transaction or the snapshot that is open on it;
//! - `keys`, `files`: reads and writes in that view;
//! - `failure`: errors as the codes of `kvfs.h`, with sentences;
//! - `boundary`: pointers, strings and panics at the border to C; `handles`: what the program has
//!   open; `quiet`: no SIGPIPE;
//! - `connection_calls`, `key_calls`, `file_calls`: the functions of the header.
//!
//! Only `boundary`, `quiet` and the last three have `unsafe` code.

mod boundary;
mod connection_calls;
mod failure;
mod file_calls;
mod files;
mod handles;
mod key_calls;
mod keys;
mod quiet;
mod store;

//! The RESP door to KVDB: `redis-cli` and every Redis client can use a store while it is mounted.
//!
//! A Unix socket (mode 0600), and TCP with a password if asked. RESP2, RESP3, inline commands and
//! pipelining; strings, counters, scans, and the ordered stretches that Redis has not got (`RANGE`,
//! `DELRANGE`). Dictionaries are chosen by `SELECT n` or `USE name`; those of the file system
//! cannot be reached. Writes are on disk within the store's flush interval, or before the reply
//! with `DURABLE yes`; `SYNC` makes everything acknowledged so far durable.
//!
//! `TXN` begins, joins and ends transactions of the store; `MULTI` and `WATCH` are Redis' own.
//!
//! From bytes to bytes: `socket` and `server` accept, `conversation` holds a client's buffer,
//! `request` finds the commands in it, `commands` admits and runs them in a `session`, `output`
//! gathers the replies.

mod client;
mod commands;
mod conversation;
mod cursors;
mod dictionaries;
mod error;
mod failure;
mod glob;
mod limits;
mod locks;
mod metrics;
mod output;
#[doc(hidden)]
pub mod parsers;
mod request;
#[cfg(all(test, debug_assertions))]
mod schedule_tests;
mod server;
mod session;
mod socket;
mod transactions;
mod walk;

pub use client::{Client, Reply, read_reply};
pub use error::Error;
pub use glob::matches as matches_glob;
pub use limits::Limits;
pub use server::{Server, ServerOptions};
pub use session::{Describe, InfoSource};
pub use transactions::{
    Cloned, FileChange, FileDetail, Importing, Removed, Snapshots, Transactions, Walking, Whose,
};

//! A RESP server for KVDB: `redis-cli` and every Redis client can use a store while it is mounted.
//!
//! ```
//! use kvdb_server::{Client, Reply, Server, ServerOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let socket = dir.path().join("kvdb.sock");
//! let server = Server::start(kvdb::Kvdb::in_memory(), &socket, ServerOptions::default())?;
//!
//! let mut client = Client::connect(&socket)?;
//! assert_eq!(client.call(&[b"SET", b"planet", b"earth"])?, Reply::Status("OK".into()));
//! assert_eq!(client.call(&[b"GET", b"planet"])?, Reply::Bulk(b"earth".to_vec()));
//! assert_eq!(client.call(&[b"INCR", b"moons"])?, Reply::Integer(1));
//! server.stop();
//! # Ok(())
//! # }
//! ```
//!
//! The server listens on a Unix socket (mode 0600), and with a password on TCP, with TLS if it
//! has a certificate. It speaks RESP2, RESP3 and inline commands, with pipelining. It has all
//! types of Redis, with expiry, and commands on ranges of keys that Redis does not have (`RANGE`,
//! `DELRANGE`). `SELECT n` or `USE name` choose a dictionary; the dictionaries of the file system
//! cannot be reached. Writes are on disk within the store's flush interval, or before the reply
//! with `DURABLE yes`; `SYNC` makes everything acknowledged so far durable.
//!
//! `TXN` begins, joins and ends transactions of the store; `MULTI` and `WATCH` work as in Redis.
//!
//! A request passes through the modules in this order: `socket` and `server` accept connections,
//! `tls` relays encrypted ones, `event_loop` waits for bytes of a `stream` and serves connections
//! in turns, `conversation` holds the buffer of a client, `request` finds the commands in it,
//! `commands` admits and runs them in a `session`, `output` collects the replies, and a `backlog`
//! holds the replies that the client has not taken yet.

#![warn(missing_docs)]

mod access;
mod backlog;
mod bell;
mod channels;
mod client;
mod clients;
mod commands;
mod conversation;
mod cursors;
mod descriptors;
mod dictionaries;
mod effects;
mod error;
mod error_code;
mod event_loop;
mod failure;
mod files;
mod glob;
mod keyspace;
mod limits;
mod locks;
mod mailbox;
mod memory;
mod metrics;
mod monitors;
mod names;
mod notifications;
mod output;
mod owner;
#[doc(hidden)]
pub mod parsers;
mod password;
mod pause;
mod peer;
mod prevented;
mod relay;
mod reply;
mod request;
mod review;
#[cfg(all(test, debug_assertions))]
mod schedule_tests;
mod scripts;
mod seals;
mod server;
mod session;
mod slow_log;
mod socket;
mod stream;
mod stream_sink;
mod sweeper;
mod tcp;
mod tls;
mod tls_client;
mod tracking;
mod transactions;
mod waiters;
mod walk;

pub use client::{Client, read_reply};
pub use descriptors::provide as provide_descriptors;
pub use error::Error;
pub use error_code::ErrorCode;
pub use files::{
    Cloned, EntryKind, EntryTime, FileError, FileResult, Files, Imported, Importing, Removed,
    WalkedEntry, Walking, Whose,
};
pub use glob::matches as matches_glob;
pub use limits::Limits;
pub use owner::{Check, Describe, InfoSource, Publish};
pub use relay::Relayed;
pub use reply::Reply;
pub use server::{Server, ServerOptions};
pub use socket::PrivateSocket;
pub use tls::Tls;
pub use tls_client::{TlsClient, connect as connect_tcp};
pub use transactions::{
    Conflicting, FileChange, FileDetail, FinishRebase, Merge, Merging, Paths, Preferred, Rebased,
    SettleKey, Snapshots, Transactions,
};

//! Client and server of a store over a wire: the file system runs in one process, and its
//! transactional store in another.
//!
//! A [`Server`] answers frames on a socket out of a [`kvdb::Kvdb`]. A [`Client`] sends requests to
//! it, opens views of snapshots ([`SnapshotView`]), and begins transactions or takes the lease of
//! the main branch ([`ServedTransaction`]). Both are [`kvdb::ServedView`]s, so that code that works
//! on a [`kvdb::Scope`] works on them.
//! `docs/wire.md` specifies every byte; `docs/decisions/160-the-seam.md` and
//! `161-transactions-over-a-wire.md` give the reasons for the design.
//!
//! From the bytes up: `frame` (a length, a checksum, a number), `request` and `reply` (the messages
//! in frames, encoded by `body`, `changes` and `failure`), `socket` (the transport of frames),
//! `vsock` (that between a virtual machine and its host), `deadline` (the time limits of reads and
//! writes).
//!
//! The client: `client` (one connection that many threads share), `single_flight` (lets one thread
//! connect for all), `asking` (retries), `reach` (whether the server answers), `pages` (the read
//! cache), `ahead` and `prefetch` (what is read ahead, and how), `snapshot_view`;
//! `served_transaction`, with `gathered` (changes that the server may not have), `outgoing`
//! (batches and their numbers), `new_ranges` (ranges in which the client knows all keys),
//! `transaction_state` and `transaction_view`; `names` (snapshots and clones).
//!
//! The server: `server` (listens), `conversation` (one connection), `roles` (the rights of
//! clients), `tenants` (the places of the clients of one token), `budget` (limits the answers of
//! all connections), `transactions` (of all clients), `sequence` (of their batches), `unfinished`
//! (incomplete changes), `host` (begins and ends transactions), `naming` (the snapshots and clones
//! that clients make), `records` and `once` (the records of transactions and of other requests in
//! the store), `wanted` (the outcomes of the latter), `turns` (of requests with one key), `lending`
//! and `lease_record` (the lease of the main branch). Both sides use `counts` (requests and bytes).

#![warn(missing_docs)]

mod ahead;
mod asking;
mod body;
mod budget;
mod changes;
mod client;
mod conversation;
mod counts;
mod deadline;
mod error;
mod failure;
mod frame;
mod gathered;
mod host;
mod lease_record;
mod lending;
mod names;
mod naming;
mod new_ranges;
mod once;
mod outgoing;
mod pages;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod prefetch;
mod reach;
mod records;
mod referred;
mod reply;
mod request;
mod roles;
mod sequence;
mod served_transaction;
mod server;
mod single_flight;
mod snapshot_view;
mod socket;
mod tenants;
mod transaction_state;
mod transaction_view;
mod transactions;
mod turns;
mod unfinished;
mod vsock;
mod wanted;

pub use body::TransactionKey;
pub use changes::MAX_CHANGES;
pub use client::{Client, ClientOptions, Counts};
pub use conversation::ServerOptions;
pub use counts::RequestCounts;
pub use error::{Error, Result};
pub use failure::{Failure, FailureCode};
pub use frame::{FRAME_OVERHEAD, Frame, MAX_FRAME, VERSION, read_frame, write_frame};
pub use host::{Host, dictionaries_of};
pub use lending::is_lent;
pub use reach::Reach;
pub use reply::{ConflictKey, Listed, Reply};
pub use request::Request;
pub use roles::{Role, Tokens};
pub use served_transaction::{
    BeginOptions, LeaseOptions, Outcome, ServedSavepoint, ServedTransaction,
};
pub use server::Server;
pub use snapshot_view::SnapshotView;
pub use socket::{Socket, Transport};
pub use vsock::{VsockAddress, VsockListener};

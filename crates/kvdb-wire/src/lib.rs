//! A store over a wire: a file system is here, and its transactional store is there.
//!
//! A [`Server`] answers frames on a socket out of a [`kvdb::Kvdb`]; a [`Client`] asks it, and opens
//! views of snapshots ([`SnapshotView`]) and begins transactions ([`ServedTransaction`]). Both are
//! [`kvdb::ServedView`]s, so that code that works on a [`kvdb::Scope`] works on them. Every byte is
//! in `docs/wire.md`, and why it is so in `docs/decisions/160-the-seam.md` and
//! `161-transactions-over-a-wire.md`.
//!
//! From the bytes up: `frame` (a length, a checksum, a number), `request` and `reply` (what they
//! bring, on `body`, `changes` and `failure`), `socket` (what frames come and go on), `deadline`
//! (by when). The client: `client` (a connection that many threads ask on), `single_flight` (made
//! by one of them), `asking` (until there is an answer), `reach` (or none for too long), `pages`
//! (what it has read), `ahead` (what it reads before it is asked for), `snapshot_view`;
//! `served_transaction`, with `gathered` (changes that the server may not have), `outgoing`
//! (batches and their numbers), `new_ranges` (where nothing has to be asked for),
//! `transaction_state` and `transaction_view`. The server: `server` (listens), `conversation` (one
//! connection), `roles` (who may do what), `budget` (of the answers of all of them), `counts` (by
//! requests, of both sides), `transactions` (of all clients), `unfinished` (their changes that have
//! not come whole), `host` (which begins and ends them), `records` (what the store keeps of them).

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
mod new_ranges;
mod outgoing;
mod pages;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod reach;
mod records;
mod reply;
mod request;
mod roles;
mod served_transaction;
mod server;
mod single_flight;
mod snapshot_view;
mod socket;
mod transaction_state;
mod transaction_view;
mod transactions;
mod unfinished;

pub use body::TransactionKey;
pub use changes::MAX_CHANGES;
pub use client::{Client, ClientOptions, Counts};
pub use conversation::ServerOptions;
pub use counts::RequestCounts;
pub use error::{Error, Result};
pub use failure::{Failure, FailureCode};
pub use frame::{FRAME_OVERHEAD, Frame, MAX_FRAME, VERSION, read_frame, write_frame};
pub use host::{Host, dictionaries_of};
pub use reach::Reach;
pub use reply::{ConflictKey, Reply};
pub use request::Request;
pub use roles::{Role, Tokens};
pub use served_transaction::{BeginOptions, Outcome, ServedSavepoint, ServedTransaction};
pub use server::Server;
pub use snapshot_view::SnapshotView;
pub use socket::{Socket, Transport};

//! Access to stores in object storage by their addresses, through local files in directories of the
//! user. Stores that a server holds are accessed by the address of the server.
//!
//! - `address`: `dir:FOLDER/NAME` and `s3://BUCKET/NAME`, and the objects to which they refer;
//! - `server`: the check of a server before a store depends on it;
//! - `secrets`: the secret with which objects are encrypted;
//! - `local_copies`: the local files of readers and writers, their paths, and how they are claimed;
//! - `forking`: a separate store that begins as a copy of a published one;
//! - `publishing`, `following`: threads that publish an open store or show published states;
//! - `served`: `kvfs+unix:SOCKET`, `kvfs+vsock://CID:PORT` and `kvfs://HOST:PORT`, and how
//!   transactions on a server end;
//! - `served_directory`: a directory of such a store, by the address of its server and its path;
//! - `credentials`: the token and the certificates for a server on the network;
//! - `error`: the errors, in sentences.
//!
//! The libraries below take any `Arc<dyn Objects>`; only this crate decides how a word of the user
//! is interpreted.
//!
//! ```
//! use std::path::Path;
//!
//! use places::Address;
//!
//! let address = Address::required(Path::new("dir:/srv/stores/work@monday"))?;
//! assert_eq!(address.name, "work");
//! assert_eq!(address.snapshot.as_deref(), Some("monday"));
//! assert!(Address::parse(Path::new("work.kvfs"))?.is_none());
//! # Ok::<(), places::Error>(())
//! ```

#![warn(missing_docs)]

mod address;
pub mod credentials;
mod error;
pub mod following;
mod forking;
mod host;
pub mod local_copies;
pub mod publishing;
pub mod secrets;
pub mod served;
mod served_directory;
mod server;

pub use address::{Address, FORMS, FORMS_OF_PLACES, place, zones_of};
pub use credentials::Credentials;
pub use error::{Error, Result};
pub use forking::fork;
pub use host::host_name;
pub use served::{FORMS_OF_SERVERS, Server};
pub use served_directory::ServedDirectory;
pub use server::{needs_trial, trial};

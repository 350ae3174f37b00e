//! Lua 5.1 scripts, as in Redis, in a process of their own.
//!
//! A script may loop forever, allocate all memory, or exploit a bug of the interpreter, which is
//! written in C. So scripts do not run in the process of the store: a *worker* is a process that
//! has a socket and nothing else. It receives a script, requests each command that the script calls
//! from the server, and returns the script's result. Whatever happens to a worker, the server ends
//! it and starts another one; changes that the script made by then are undone with its transaction.
//!
//! `wire` contains the messages between the two, `watchful` their waits for one another, `shebang`
//! the parser of a script's first line with its permissions, `library` that of a library's first
//! line, and the functions that a library registers. The other modules belong to the
//! worker: `worker` runs the conversation, `confine` removes the rights of the process, `state`
//! makes an interpreter with Redis' libraries, `replies` translates replies of commands and results
//! of scripts.
//!
//! ```
//! use kvdb_lua::wire::{self, Frame, Kind, Run};
//!
//! let script = b"#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])";
//! let shebang = kvdb_lua::shebang::read(script)?;
//! assert!(shebang.no_writes);
//!
//! // A server has a worker run it.
//! let name = kvdb_lua::name_of(script);
//! let run = Run {
//!     resp3: false,
//!     seconds: 5,
//!     name: name.as_bytes(),
//!     text: &script[shebang.length..],
//!     keys: vec![b"apple"],
//!     arguments: vec![],
//! };
//! let mut socket = Vec::new();
//! wire::write(&mut socket, Kind::Run, &run.encode())?;
//!
//! // The worker reads it.
//! let frame = Frame::read(&mut &socket[..], 1 << 20)?;
//! assert_eq!(Run::decode(&frame.payload), Some(run));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod library;
pub mod shebang;
pub mod watchful;
pub mod wire;

#[cfg(feature = "worker")]
mod arguments;
#[cfg(feature = "worker")]
mod bits;
#[cfg(feature = "worker")]
mod confine;
#[cfg(feature = "worker")]
mod json;
#[cfg(feature = "worker")]
mod msgpack;
#[cfg(feature = "worker")]
mod numbers;
#[cfg(feature = "worker")]
mod replies;
#[cfg(feature = "worker")]
mod state;
#[cfg(feature = "worker")]
mod structs;
#[cfg(feature = "worker")]
mod worker;

#[cfg(feature = "worker")]
pub use worker::run as run_worker;

use sha1::{Digest, Sha1};

/// Returns the name of a script: the SHA-1 sum of its text, in hexadecimal digits.
pub fn name_of(text: &[u8]) -> String {
    let digits =
        |byte: &u8| [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[digit as usize]);
    Sha1::digest(text).iter().flat_map(digits).map(char::from).collect()
}

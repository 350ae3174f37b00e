//! Failures between a client and a server.

use std::io;

use crate::failure::Failure;

/// Why a conversation, or a request of it, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection has failed.
    #[error("the connection to the server failed: {0}")]
    Io(#[from] io::Error),
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Bytes are no frame or no message; no more can be read of the connection.
    #[error("malformed bytes on the wire: {0}")]
    Malformed(&'static str),
    /// The other side speaks no version that this one does.
    #[error("the other side speaks version {theirs} of the protocol, and this one {ours}")]
    Version {
        /// Spoken by the other side.
        theirs: u16,
        /// Spoken here.
        ours: u16,
    },
    /// The server has answered with a failure.
    #[error("{0}")]
    Failed(Failure),
    /// An answer is none to what was asked.
    #[error("the server has answered something else than was asked")]
    Unexpected,
    /// An address that leads nowhere.
    #[error("{0:?} is no address of a server: write unix:PATH")]
    Address(String),
}

impl Error {
    /// Returns whether the same request may succeed on another connection.
    pub fn is_of_connection(&self) -> bool {
        matches!(self, Error::Io(_) | Error::Closed | Error::Malformed(_))
    }

    /// The same failure, for another one that has met it.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::Io(e) => Error::Io(io::Error::new(e.kind(), e.to_string())),
            Error::Closed => Error::Closed,
            Error::Malformed(what) => Error::Malformed(what),
            Error::Version { theirs, ours } => Error::Version { theirs: *theirs, ours: *ours },
            Error::Failed(failure) => Error::Failed(failure.clone()),
            Error::Unexpected => Error::Unexpected,
            Error::Address(address) => Error::Address(address.clone()),
        }
    }
}

/// A result of the wire.
pub type Result<T> = std::result::Result<T, Error>;

impl From<zones::varint::Malformed> for Error {
    fn from(_: zones::varint::Malformed) -> Error {
        Error::Malformed("a number or a length")
    }
}

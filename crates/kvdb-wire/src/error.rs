//! Failures between a client and a server.

use std::io;

use crate::failure::Failure;

/// The reason why a connection or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection has failed.
    #[error("the connection to the server failed: {0}")]
    Io(#[from] io::Error),
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The bytes are not a valid frame or message. Nothing more can be read from the connection.
    #[error("malformed bytes on the wire: {0}")]
    Malformed(&'static str),
    /// The two sides speak different versions.
    #[error("the other side speaks version {theirs} of the protocol, and this one {ours}")]
    Version {
        /// The version of the other side.
        theirs: u16,
        /// The version of this side.
        ours: u16,
    },
    /// The server has answered with a failure.
    #[error("{0}")]
    Failed(Failure),
    /// The server has no place for another connection of this client, for now.
    #[error("{0}")]
    NoPlace(String),
    /// The answer does not fit the request.
    #[error("the server has answered something else than was asked")]
    Unexpected,
    /// The address is not that of a server.
    #[error("{0:?} is no address of a server: write unix:PATH")]
    Address(String),
}

impl Error {
    /// Returns whether the same request may succeed on another connection.
    pub fn is_of_connection(&self) -> bool {
        matches!(self, Error::Io(_) | Error::Closed | Error::Malformed(_) | Error::NoPlace(_))
    }

    /// Returns a copy, for another thread that fails for the same reason.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::Io(e) => Error::Io(io::Error::new(e.kind(), e.to_string())),
            Error::Closed => Error::Closed,
            Error::Malformed(what) => Error::Malformed(what),
            Error::Version { theirs, ours } => Error::Version { theirs: *theirs, ours: *ours },
            Error::Failed(failure) => Error::Failed(failure.clone()),
            Error::NoPlace(what) => Error::NoPlace(what.clone()),
            Error::Unexpected => Error::Unexpected,
            Error::Address(address) => Error::Address(address.clone()),
        }
    }
}

/// The result of an operation over the wire.
pub type Result<T> = std::result::Result<T, Error>;

impl From<zones::varint::Malformed> for Error {
    fn from(_: zones::varint::Malformed) -> Error {
        Error::Malformed("a number or a length")
    }
}

//! Errors that keep a server from starting.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server is listening at this path.
    #[error("another server is listening at {0}; stop it, or choose another path")]
    InUse(PathBuf),
    /// The path has a file that is not a socket.
    #[error("{0} exists and is no socket; choose another path, or move it away")]
    NotASocket(PathBuf),
    /// The path is too long for a socket.
    #[error("{0} is too long for the path of a socket (at most 106 bytes); choose a shorter one")]
    PathTooLong(PathBuf),
    /// TCP was requested without a password.
    #[error("TCP is open to anyone who can reach the machine; give a password with it")]
    NoPassword,
    /// The Unix socket could not be created.
    #[error("could not make the socket {path}: {error}")]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The TCP socket could not be created.
    #[error("could not listen at {address}: {error}")]
    Tcp {
        /// The address of the socket.
        address: SocketAddr,
        /// The kernel's error.
        error: io::Error,
    },
    /// A certificate or a key cannot be used.
    #[error("cannot use {path} for TLS: {why}")]
    Tls {
        /// The file of the certificate or the key.
        path: PathBuf,
        /// The reason why it cannot be used.
        why: String,
    },
    /// A thread or an event could not be created.
    #[error("could not start: {0}")]
    Start(#[from] io::Error),
}

//! Why a server does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("another server is listening at {0}; stop it, or choose another path")]
    InUse(PathBuf),
    #[error("{0} exists and is no socket; choose another path, or move it away")]
    NotASocket(PathBuf),
    #[error("{0} is too long for the path of a socket (at most 106 bytes); choose a shorter one")]
    PathTooLong(PathBuf),
    #[error("TCP is open to anyone who can reach the machine; give a password with it")]
    NoPassword,
    #[error("could not make the socket {path}: {error}")]
    Socket { path: PathBuf, error: io::Error },
    #[error("could not listen at {address}: {error}")]
    Tcp { address: SocketAddr, error: io::Error },
    #[error("could not start: {0}")]
    Start(#[from] io::Error),
}

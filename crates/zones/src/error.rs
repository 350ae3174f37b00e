//! What can go wrong with a store, in words for its user. Clonable, because the first failed sync
//! is repeated to everyone after.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
    Io { doing: String, source: Arc<io::Error> },
    #[error("no space left in the store; delete something, or give it more room")]
    NoSpace,
    #[error("this is not a KVFS store (no superblock found)")]
    NotAStore,
    #[error(
        "the store has format version {found}, this program reads version {supported}; use the program that wrote it"
    )]
    Version { found: u32, supported: u32 },
    /// `addr` is the device address where the damage shows; 0 when it has none.
    #[error("corrupt: {what} (at address {addr})")]
    Corrupt { what: String, addr: u64 },
    #[error("the store {} is in use by another process; unmount it there, or wait", .0.display())]
    Busy(PathBuf),
    #[error("nothing can be allocated before recovery has finished")]
    NotStarted,
    /// A call that can never succeed.
    #[error("invalid request: {0}")]
    Invalid(String),
}

impl Error {
    /// An I/O error in its context; a full host becomes [`Error::NoSpace`].
    pub fn io(doing: impl Into<String>, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Error::NoSpace,
            _ => Error::Io { doing: doing.into(), source: Arc::new(source) },
        }
    }

    pub fn corrupt(what: impl Into<String>, addr: u64) -> Error {
        Error::Corrupt { what: what.into(), addr }
    }
}

impl From<crate::varint::Malformed> for Error {
    fn from(malformed: crate::varint::Malformed) -> Error {
        Error::corrupt(malformed.to_string(), 0)
    }
}

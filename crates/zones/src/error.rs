//! Errors of a store, with messages for its user. Errors can be cloned, because every call after a
//! failed sync returns the error of the sync.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a store operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An error of the host.
    #[error("{doing}: {source}")]
    Io {
        /// The operation that failed.
        doing: String,
        /// The error of the host.
        source: Arc<io::Error>,
    },
    /// The store is full for this priority, and the host provides no more space.
    #[error("no space left in the store; delete something, or give it more room")]
    NoSpace,
    /// The device has no superblock.
    #[error("this is not a KVFS store (no superblock found)")]
    NotAStore,
    /// The store has a format version that this program does not read.
    #[error(
        "the store has format version {found}, this program reads version {supported}; use the program that wrote it"
    )]
    Version {
        /// The version of the store.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// Bytes on the device differ from the bytes that were written.
    #[error("corrupt: {what} (at address {addr})")]
    Corrupt {
        /// The corrupt data and the defect.
        what: String,
        /// The device address, or 0 if there is none.
        addr: u64,
    },
    /// Another process has the device open.
    #[error("the store {} is in use by another process; unmount it there, or wait", .0.display())]
    Busy(PathBuf),
    /// [`Zones::start`](crate::Zones::start) has not been called yet.
    #[error("nothing can be allocated before recovery has finished")]
    NotStarted,
    /// Zones of the store lie in object storage, but the caller has not named the place.
    #[error(
        "the file is the local part of a store in object storage; open it as that, by its address"
    )]
    Remote,
    /// The call can never succeed. The text says why.
    #[error("invalid request: {0}")]
    Invalid(String),
}

impl Error {
    /// Returns an I/O error that occurred while `doing` something. If the host is full, returns
    /// [`Error::NoSpace`].
    pub fn io(doing: impl Into<String>, source: io::Error) -> Error {
        // The source may be an error of this crate that was passed through the interface of a
        // device.
        if let Some(own) = source.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
            return own.clone();
        }
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Error::NoSpace,
            _ => Error::Io { doing: doing.into(), source: Arc::new(source) },
        }
    }

    /// Returns an [`Error::Corrupt`] for `what` at `addr`.
    pub fn corrupt(what: impl Into<String>, addr: u64) -> Error {
        Error::Corrupt { what: what.into(), addr }
    }
}

impl From<crate::varint::Malformed> for Error {
    fn from(malformed: crate::varint::Malformed) -> Error {
        Error::corrupt(malformed.to_string(), 0)
    }
}

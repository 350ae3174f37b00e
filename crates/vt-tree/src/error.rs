//! Errors of a tree: those of the device, and bytes on it that differ from those written.

/// An error of a tree operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the device, its space or its superblock.
    #[error(transparent)]
    Zones(#[from] zones::Error),
    /// Bytes on the device differ from those written, or no writer can have written them.
    #[error(
        "corrupt {what} at device address {addr:#x}: run `kvfs check`, restore from a backup or a snapshot stream"
    )]
    Corrupt {
        /// The corrupt data and the fault.
        what: String,
        /// The device address of the block or value; 0 if it is not known.
        addr: u64,
    },
}

impl Error {
    /// Returns an [`Error::Corrupt`] for `what` at `addr`.
    pub fn corrupt(what: impl Into<String>, addr: u64) -> Error {
        Error::Corrupt { what: what.into(), addr }
    }
}

/// The result of a tree operation.
pub type Result<T> = std::result::Result<T, Error>;

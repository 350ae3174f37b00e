//! Errors of a tree: errors of the device, and bytes on the device that differ from the bytes that
//! were written.

/// An error of a tree operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the device, its space or its superblock.
    #[error(transparent)]
    Zones(#[from] zones::Error),
    /// Bytes on the device differ from the bytes that were written, or no writer can have written
    /// them.
    #[error(
        "corrupt {what} at device address {addr:#x}: run `kvfs check`, restore from a backup or a snapshot stream"
    )]
    Corrupt {
        /// The corrupt data and the defect.
        what: String,
        /// The device address of the block or value, or 0 if it is not known.
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

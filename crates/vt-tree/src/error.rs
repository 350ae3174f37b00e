//! What can go wrong in a tree: the device, or bytes on it that are not what was written.

/// An error of a tree operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The floor below: the device, its space, its superblock.
    #[error(transparent)]
    Zones(#[from] zones::Error),
    /// Bytes that passed their checksum, or carry none, say something impossible. `addr` is the
    /// device address of the piece that holds them; 0 where the caller did not say.
    #[error(
        "corrupt {what} at device address {addr:#x}: run `kvfs check`, restore from a backup or a snapshot stream"
    )]
    Corrupt { what: String, addr: u64 },
}

impl Error {
    /// A `Corrupt` error for `what` at `addr`.
    pub fn corrupt(what: impl Into<String>, addr: u64) -> Error {
        Error::Corrupt { what: what.into(), addr }
    }
}

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

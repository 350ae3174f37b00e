//! What can go wrong, in sentences for the person at the keyboard.

use std::io;

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no dictionary {0}")]
    NoDictionary(String),
    /// No space left for user data; deleting still works.
    #[error("the store is full: delete something, or grow it")]
    NoSpace,
    /// The store stopped accepting writes (a sync failed, say); reading goes on.
    #[error("the store takes no more writes: {0}")]
    ReadOnly(String),
    /// Bytes on the device are not what was written there. The text names the place.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// The caller asked for what the store cannot hold; nothing was changed.
    #[error("not possible: {0}")]
    Invalid(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<zones::Error> for Error {
    fn from(e: zones::Error) -> Error {
        match e {
            zones::Error::NoSpace => Error::NoSpace,
            zones::Error::Corrupt { .. } => Error::Corrupt(e.to_string().trim_start_matches("corrupt: ").to_owned()),
            zones::Error::Io { ref source, .. } => Error::Io(io::Error::new(source.kind(), e.to_string())),
            _ => Error::Invalid(e.to_string()),
        }
    }
}

impl From<vt_tree::Error> for Error {
    fn from(e: vt_tree::Error) -> Error {
        match e {
            vt_tree::Error::Zones(e) => e.into(),
            vt_tree::Error::Corrupt { .. } => Error::Corrupt(e.to_string().trim_start_matches("corrupt ").to_owned()),
        }
    }
}

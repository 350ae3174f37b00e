//! Errors of the calls, and the errno that the kernel gets for each.

use crate::Ino;

/// The failure of a file system call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST.
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY.
    #[error("the directory is not empty")]
    NotEmpty,
    /// ENAMETOOLONG.
    #[error("the name is longer than 255 bytes, or the symbolic link's target longer than 4095")]
    NameTooLong,
    /// EMLINK.
    #[error("too many links to one file")]
    TooManyLinks,
    /// ELOOP.
    #[error("too many symbolic links on the way")]
    TooManySymlinks,
    /// EINVAL, with the reason.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// EPERM, with the reason.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// EOPNOTSUPP, with the feature that is not supported.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// EFBIG.
    #[error("the file would grow beyond the largest size")]
    TooLarge,
    /// E2BIG.
    #[error("the argument is too long")]
    ArgumentTooLong,
    /// ENODATA.
    #[error("no such extended attribute")]
    NoAttribute,
    /// ENXIO, because `seek` found no such offset.
    #[error("no data or hole at or after this offset")]
    NoSuchOffset,
    /// ENOSPC.
    #[error("no space left in the store")]
    NoSpace,
    /// EROFS.
    #[error("the file system is read-only")]
    ReadOnly,
    /// Data written before may never reach the device, because the store has failed in this sync or
    /// earlier.
    #[error("what was written last may never be on disk: {0}")]
    NotSynced(String),
    /// A write of a cache begins after bytes that were refused.
    #[error(
        "inode {0} takes nothing behind what was refused before (for want of space, say), as it would stand behind a hole: \
         set the file's size, or write it anew"
    )]
    LostBefore(Ino),
    /// The inode number does not exist in the file system, or does not exist any more.
    #[error("inode {0} does not exist any more")]
    Stale(Ino),
    /// Bytes in the store that the file system cannot have written.
    #[error("corrupt file system at inode {ino}: {what}; run `kvfs check`")]
    Corrupt {
        /// The damaged inode.
        ino: Ino,
        /// The description of the damage.
        what: String,
    },
    /// Some data that programs have written has not arrived yet, so the operation would miss it.
    #[error("programs have written what has not arrived yet, so nothing was done: {0}; try again")]
    NotHandedOver(String),
    /// An error of the database.
    #[error(transparent)]
    Store(kvdb::Error),
}

/// A result with the [`Error`] of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl From<kvdb::Error> for Error {
    fn from(e: kvdb::Error) -> Self {
        match e {
            kvdb::Error::NoSpace => Error::NoSpace,
            e => Error::Store(e),
        }
    }
}

impl Error {
    /// Returns whether the call failed because a transaction holds a lock.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self, Error::Store(kvdb::Error::Locked(_)))
    }

    /// Converts an error for a sync: if the store has failed, accepted data is lost, which is worse
    /// than being read-only.
    pub(crate) fn of_sync(self) -> Error {
        match self {
            Error::Store(kvdb::Error::ReadOnly(why)) => Error::NotSynced(why),
            other => other,
        }
    }

    /// Returns the errno that a program gets for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::TooManyLinks => libc::EMLINK,
            Error::TooManySymlinks => libc::ELOOP,
            Error::Invalid(_) => libc::EINVAL,
            Error::NotPermitted(_) => libc::EPERM,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::TooLarge => libc::EFBIG,
            Error::ArgumentTooLong => libc::E2BIG,
            Error::NoAttribute => libc::ENODATA,
            Error::NoSuchOffset => libc::ENXIO,
            Error::NoSpace => libc::ENOSPC,
            Error::ReadOnly => libc::EROFS,
            Error::Stale(_) => libc::ESTALE,
            Error::Corrupt { .. } | Error::NotSynced(_) | Error::LostBefore(_) => libc::EIO,
            Error::Store(
                kvdb::Error::NoSpace
                | kvdb::Error::OverLimit { .. }
                | kvdb::Error::CloneOverLimit { .. }
                | kvdb::Error::TooManyFiles { .. }
                | kvdb::Error::CloneTooManyFiles { .. },
            ) => libc::ENOSPC,
            Error::Store(kvdb::Error::ReadOnly(_)) => libc::EROFS,
            // The same call may succeed later, or in another transaction.
            Error::Store(kvdb::Error::Locked(_) | kvdb::Error::Conflict { .. }) => libc::EDEADLK,
            Error::Store(kvdb::Error::NoTransaction(_)) => libc::ESTALE,
            Error::Store(kvdb::Error::Limit(_)) => libc::ENOMEM,
            Error::NotHandedOver(_) | Error::Store(kvdb::Error::Nested { .. }) => libc::EBUSY,
            Error::Store(_) => libc::EIO,
        }
    }
}

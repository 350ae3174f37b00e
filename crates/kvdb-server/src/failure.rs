//! Reasons why a command failed, in the words of Redis.

use std::borrow::Cow;

use crate::error_code::ErrorCode;
use crate::files::FileError;

/// The error reply of a command. Its text starts with an [`ErrorCode`], which programs can
/// evaluate.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request was wrong. The text contains the reason without the code `ERR`.
    #[error("{code} {0}", code = ErrorCode::Err)]
    Request(Cow<'static, str>),
    /// An error of a kind that is distinguished only by its code.
    #[error("{0} {1}")]
    Coded(ErrorCode, Cow<'static, str>),
    /// A text with its own code, which a script or a client has created.
    #[error("{0}")]
    Foreign(String),
    /// The store is full (`NOSPACE`). Reads and deletions still work.
    #[error("{code} the store is full; delete something, or let the store grow", code = ErrorCode::NoSpace)]
    NoSpace,
    /// The store does not accept writes any more (`READONLY`).
    #[error("{code} the store takes no more writes: {0}", code = ErrorCode::ReadOnly)]
    ReadOnly(String),
    /// The transaction is committed, but may not be on disk (`NOTSYNCED`).
    #[error("{code} {0}", code = ErrorCode::NotSynced)]
    NotSynced(String),
    /// A checksum did not match (`CORRUPT`).
    #[error("{code} {0}; run `kvfs check` on the store", code = ErrorCode::Corrupt)]
    Corrupt(String),
    /// Another transaction has changed the same keys since this one began (`CONFLICT`). The
    /// transaction has ended, and may be retried.
    #[error("{code} {0}", code = ErrorCode::Conflict)]
    Conflict(String),
    /// Another transaction holds a lock that is needed, or has taken a lock that this transaction
    /// held (`LOCKED`).
    #[error("{code} {0}", code = ErrorCode::Locked)]
    Locked(String),
    /// The transaction or the clone has reached a limit, or there is no space for files
    /// (`NOSPACE`). The text says which.
    #[error("{code} {0}", code = ErrorCode::NoSpace)]
    OverLimit(String),
    /// The transaction has ended (`NOTXN`).
    #[error("{code} {0}", code = ErrorCode::NoTransaction)]
    NoTransaction(String),
    /// The command would buffer more than is allowed (`LIMIT`).
    #[error("{code} {0}", code = ErrorCode::Limit)]
    Limit(String),
    /// A part of a transaction failed, and its changes cannot be undone alone, so the whole
    /// transaction was undone (`EXECABORT`).
    #[error("{code} {0}", code = ErrorCode::ExecAbort)]
    Undone(String),
    /// The device failed (`IOERR`).
    #[error("{code} {0}", code = ErrorCode::Io)]
    Io(String),
    /// A change is too large for the method that was tried first. Clients never see this error.
    #[error("{code} the change is too large for one step", code = ErrorCode::Limit)]
    TooLargeAtOnce,
}

/// The result of a command's handler. `Err` means that the handler has not written a reply.
pub type Outcome = Result<(), Failure>;

impl Failure {
    pub const SYNTAX: Failure = Failure::Request(Cow::Borrowed("syntax error"));
    pub const NOT_AN_INTEGER: Failure =
        Failure::Request(Cow::Borrowed("value is not an integer or out of range"));
    pub const NOT_A_FLOAT: Failure = Failure::Request(Cow::Borrowed("value is not a valid float"));
    pub const TOO_LONG: Failure =
        Failure::Request(Cow::Borrowed("string exceeds maximum allowed size (proto-max-bulk-len)"));
    pub const STOPPING: Failure = Failure::Request(Cow::Borrowed("the server is stopping"));

    pub fn request(text: impl Into<String>) -> Self {
        Failure::Request(Cow::Owned(text.into()))
    }
    /// Returns whether the key holds a value of a type on which the command does not work.
    pub fn is_wrong_type(&self) -> bool {
        matches!(self, Failure::Coded(ErrorCode::WrongType, _))
    }
    /// Returns whether the store could not run the request, at least at this time, although the
    /// request is valid.
    pub fn is_of_the_store(&self) -> bool {
        use Failure::{
            Conflict, Io, Limit, Locked, NoSpace, NoTransaction, NotSynced, OverLimit, ReadOnly,
            Undone,
        };
        matches!(
            self,
            Limit(_)
                | NoSpace
                | OverLimit(_)
                | ReadOnly(_)
                | NotSynced(_)
                | Conflict(_)
                | Locked(_)
                | NoTransaction(_)
                | Undone(_)
                | Io(_)
        )
    }
    /// Returns the error for a change that was in conflict with other transactions at every
    /// retry.
    pub fn again_and_again() -> Self {
        Failure::Conflict("others changed the same again and again; try again later".into())
    }
    pub fn coded(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Failure::Coded(code, text.into())
    }
}

impl From<kvdb::Error> for Failure {
    fn from(error: kvdb::Error) -> Self {
        match error {
            kvdb::Error::NoSpace => Failure::NoSpace,
            kvdb::Error::OverLimit { .. }
            | kvdb::Error::CloneOverLimit { .. }
            | kvdb::Error::TooManyFiles { .. }
            | kvdb::Error::CloneTooManyFiles { .. } => Failure::OverLimit(error.to_string()),
            kvdb::Error::ReadOnly(why) => Failure::ReadOnly(why),
            kvdb::Error::NotSynced(_) => Failure::NotSynced(error.to_string()),
            kvdb::Error::Corrupt(what) => Failure::Corrupt(what),
            kvdb::Error::Io(error) => Failure::Io(error.to_string()),
            kvdb::Error::Conflict { .. } => {
                Failure::Conflict(error.to_string().trim_start_matches("conflict: ").to_owned())
            }
            kvdb::Error::Locked(why) => Failure::Locked(why),
            kvdb::Error::Limit(what) => Failure::Limit(what),
            kvdb::Error::NoTransaction(_) => Failure::NoTransaction(error.to_string()),
            kvdb::Error::Changed(_) => Failure::coded(ErrorCode::Changed, error.to_string()),
            kvdb::Error::Nested { .. } => Failure::coded(ErrorCode::Nested, error.to_string()),
            kvdb::Error::Exists(_) => Failure::coded(ErrorCode::Exists, error.to_string()),
            kvdb::Error::NoDictionary(_) => {
                Failure::coded(ErrorCode::NoDictionary, error.to_string())
            }
            kvdb::Error::NoSnapshot(_) | kvdb::Error::NoBranch(_) => {
                Failure::coded(ErrorCode::NoSnapshot, error.to_string())
            }
            other => Failure::request(other.to_string()),
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let code = match error {
            FileError::NotFound => ErrorCode::NoEntry,
            FileError::NotDirectory => ErrorCode::NotDirectory,
            FileError::Exists => ErrorCode::Exists,
            FileError::NoSpace(what) => return Failure::OverLimit(what),
            FileError::Store(error) => return error.into(),
        };
        Failure::coded(code, error.to_string())
    }
}

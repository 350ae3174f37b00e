//! Failures that a server reports: a code for programs, and a sentence for people.

use std::fmt;

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of the failure, for programs.
    pub code: FailureCode,
    /// The description, for people.
    pub what: String,
}

impl Failure {
    /// Returns whether the transaction or the lease of the request is over for its client.
    pub(crate) fn ends_transaction(&self) -> bool {
        matches!(self.code, FailureCode::NoView | FailureCode::Fenced)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal),* $(,)?) => {
        /// Kinds of failures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FailureCode {
            $($(#[$doc])* $name,)*
        }

        impl FailureCode {
            /// All kinds.
            pub const ALL: &[FailureCode] = &[$(FailureCode::$name),*];

            pub(crate) fn code(self) -> u8 {
                match self { $(FailureCode::$name => $code),* }
            }

            pub(crate) fn of(code: u8) -> FailureCode {
                match code { $($code => FailureCode::$name,)* _ => FailureCode::Other }
            }
        }
    };
}

codes! {
    /// Any failure without a code of its own.
    Other = 0,
    /// The client has no right to do that.
    NotAllowed = 1,
    /// There is no such view or transaction on this connection.
    NoView = 2,
    /// There is no such snapshot.
    NoSnapshot = 3,
    /// There is no such dictionary.
    NoDictionary = 4,
    /// Bytes in the store differ from those that were written.
    Corrupt = 5,
    /// The request exceeds a limit.
    Limit = 6,
    /// The transaction is in conflict with another commit.
    Conflict = 7,
    /// A lock could not be acquired.
    Locked = 8,
    /// The store accepts no writes.
    ReadOnly = 9,
    /// The store is full.
    NoSpace = 10,
    /// The name is taken.
    Exists = 11,
    /// The request is invalid.
    Invalid = 12,
    /// The transaction is committed, but may not be on disk.
    NotSynced = 13,
    /// All parts of the change have to be sent again.
    Again = 14,
    /// Another client has taken the lease, or it was lost otherwise: changes under it are refused.
    Fenced = 15,
}

/// Converts an error of the store into the failure that is sent to the client.
pub(crate) fn of_store(error: kvdb::Error) -> Failure {
    let code = match &error {
        kvdb::Error::NoSnapshot(_) => FailureCode::NoSnapshot,
        kvdb::Error::NoDictionary(_) => FailureCode::NoDictionary,
        kvdb::Error::Corrupt(_) => FailureCode::Corrupt,
        kvdb::Error::Limit(_) => FailureCode::Limit,
        kvdb::Error::Conflict { .. } => FailureCode::Conflict,
        kvdb::Error::Locked(_) => FailureCode::Locked,
        kvdb::Error::ReadOnly(_) => FailureCode::ReadOnly,
        kvdb::Error::NoSpace
        | kvdb::Error::OverLimit { .. }
        | kvdb::Error::CloneOverLimit { .. }
        | kvdb::Error::TooManyFiles { .. }
        | kvdb::Error::CloneTooManyFiles { .. } => FailureCode::NoSpace,
        kvdb::Error::NotSynced(_) => FailureCode::NotSynced,
        kvdb::Error::NoTransaction(_) => FailureCode::NoView,
        kvdb::Error::Exists(_) => FailureCode::Exists,
        kvdb::Error::Invalid(_) => FailureCode::Invalid,
        _ => FailureCode::Other,
    };
    // The code tells the kind of the failure. For these kinds only the name is sent, from which the
    // client composes its own message.
    let what = match error {
        kvdb::Error::NoSnapshot(what)
        | kvdb::Error::NoDictionary(what)
        | kvdb::Error::Corrupt(what) => what,
        error => error.to_string(),
    };
    Failure { code, what }
}

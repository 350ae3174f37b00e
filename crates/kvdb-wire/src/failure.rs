//! Failures as a server tells them: a code for programs, and a sentence for people.

use std::fmt;

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people.
    pub what: String,
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
            /// All of them.
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
    /// Something that has no code of its own.
    Other = 0,
    /// The client may not do that.
    NotAllowed = 1,
    /// There is no such view or transaction on this connection.
    NoView = 2,
    /// There is no such snapshot.
    NoSnapshot = 3,
    /// There is no such dictionary.
    NoDictionary = 4,
    /// Bytes in the store are not what was written there.
    Corrupt = 5,
    /// The request is beyond a limit.
    Limit = 6,
    /// The transaction is in conflict with another commit.
    Conflict = 7,
    /// A lock was not to be had.
    Locked = 8,
    /// The store takes no writes.
    ReadOnly = 9,
    /// The store is full.
    NoSpace = 10,
    /// The name is taken.
    Exists = 11,
    /// It is not possible as it was asked.
    Invalid = 12,
    /// The transaction is committed, and perhaps not on disk.
    NotSynced = 13,
    /// All parts of the change have to be sent again.
    Again = 14,
}

/// A failure of the store, as a client is told of it.
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
    // The code says what kind it is; a name alone is what the client makes its sentence of.
    let what = match error {
        kvdb::Error::NoSnapshot(what)
        | kvdb::Error::NoDictionary(what)
        | kvdb::Error::Corrupt(what) => what,
        error => error.to_string(),
    };
    Failure { code, what }
}

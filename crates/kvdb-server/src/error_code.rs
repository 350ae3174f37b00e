//! The codes of errors. A code is the first word of an error reply, by which programs distinguish
//! errors. The rest of the reply is a sentence for people, and may change. Errors that also exist
//! in Redis have the same codes as in Redis.

use std::fmt;

/// The first word of an error reply (`docs/resp.md` lists them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// An element of the same kind already has this name.
    BusyGroup,
    /// The key to be restored already exists.
    BusyKey,
    /// A script of the other kind is running.
    Busy,
    /// The transaction is in a different state from the one that the command named.
    Changed,
    /// Others have changed the same data since the transaction began.
    Conflict,
    /// A checksum did not match.
    Corrupt,
    /// Any other error.
    Err,
    /// None of the commands between `MULTI` and `EXEC` was run.
    ExecAbort,
    /// The name is already in use.
    Exists,
    /// The bytes of a key do not fit its type.
    InvalidObject,
    /// The device failed.
    Io,
    /// A limit of the server would be exceeded.
    Limit,
    /// Another transaction holds the lock.
    Locked,
    /// Transactions are open within the transaction that was to be committed.
    Nested,
    /// The client has not authenticated.
    NoAuth,
    /// No commit with this number can be undone.
    NoCommit,
    /// The dictionary does not exist, or no longer exists.
    NoDictionary,
    /// There is no file at a path.
    NoEntry,
    /// The list of committed changes does not reach back to this position.
    NoFeed,
    /// The group of consumers does not exist.
    NoGroup,
    /// The version of the protocol is unknown.
    NoProtocol,
    /// The script is not known.
    NoScript,
    /// The snapshot or clone does not exist.
    NoSnapshot,
    /// The store is full.
    NoSpace,
    /// No script is running.
    NotBusy,
    /// A path leads through something that is not a directory.
    NotDirectory,
    /// The change was made, but may not be on disk.
    NotSynced,
    /// The transaction has ended, or never existed.
    NoTransaction,
    /// The store or the snapshot does not accept writes.
    ReadOnly,
    /// The dictionary belongs to the file system.
    Reserved,
    /// The client was started in a sealed transaction, and must not run this command.
    Sealed,
    /// The command waited, and another connection ended its wait.
    Unblocked,
    /// The user or the password is wrong.
    WrongPassword,
    /// The key holds a value of another type.
    WrongType,
}

impl ErrorCode {
    /// All codes with their words, sorted by the words.
    const ALL: [(ErrorCode, &str); 34] = [
        (ErrorCode::Busy, "BUSY"),
        (ErrorCode::BusyGroup, "BUSYGROUP"),
        (ErrorCode::BusyKey, "BUSYKEY"),
        (ErrorCode::Changed, "CHANGED"),
        (ErrorCode::Conflict, "CONFLICT"),
        (ErrorCode::Corrupt, "CORRUPT"),
        (ErrorCode::Err, "ERR"),
        (ErrorCode::ExecAbort, "EXECABORT"),
        (ErrorCode::Exists, "EXISTS"),
        (ErrorCode::InvalidObject, "INVALIDOBJ"),
        (ErrorCode::Io, "IOERR"),
        (ErrorCode::Limit, "LIMIT"),
        (ErrorCode::Locked, "LOCKED"),
        (ErrorCode::Nested, "NESTED"),
        (ErrorCode::NoAuth, "NOAUTH"),
        (ErrorCode::NoCommit, "NOCOMMIT"),
        (ErrorCode::NoDictionary, "NODICT"),
        (ErrorCode::NoEntry, "NOENT"),
        (ErrorCode::NoFeed, "NOFEED"),
        (ErrorCode::NoGroup, "NOGROUP"),
        (ErrorCode::NoProtocol, "NOPROTO"),
        (ErrorCode::NoScript, "NOSCRIPT"),
        (ErrorCode::NoSnapshot, "NOSNAPSHOT"),
        (ErrorCode::NoSpace, "NOSPACE"),
        (ErrorCode::NotBusy, "NOTBUSY"),
        (ErrorCode::NotDirectory, "NOTDIR"),
        (ErrorCode::NotSynced, "NOTSYNCED"),
        (ErrorCode::NoTransaction, "NOTXN"),
        (ErrorCode::ReadOnly, "READONLY"),
        (ErrorCode::Reserved, "RESERVED"),
        (ErrorCode::Sealed, "SEALED"),
        (ErrorCode::Unblocked, "UNBLOCKED"),
        (ErrorCode::WrongPassword, "WRONGPASS"),
        (ErrorCode::WrongType, "WRONGTYPE"),
    ];

    /// Returns all codes.
    pub fn all() -> impl Iterator<Item = ErrorCode> {
        Self::ALL.iter().map(|(code, _)| *code)
    }

    /// Returns the word of the code.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(code, _)| *code == self).map_or("ERR", |(_, word)| word)
    }

    /// Splits an error reply into its code and the sentence after it. The code is `None` if it is
    /// unknown, as in an error that a script has created itself.
    pub fn split(reply: &str) -> (Option<ErrorCode>, &str) {
        let (first, rest) = reply.split_once(' ').unwrap_or((reply, reply));
        let found = Self::ALL.iter().find(|(_, word)| *word == first);
        (found.map(|(code, _)| *code), rest)
    }

    /// Returns the code of an error reply, if it is known.
    pub fn of(reply: &str) -> Option<ErrorCode> {
        Self::split(reply).0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_found_by_its_word() {
        assert!(ErrorCode::ALL.is_sorted_by(|a, b| a.1 < b.1));
        for code in ErrorCode::all() {
            assert_eq!(ErrorCode::of(&format!("{code} a sentence")), Some(code));
            // A code that is missing in the list would have the word of another code.
            assert_eq!(code == ErrorCode::Err, code.word() == "ERR");
        }
        assert_eq!(ErrorCode::split("MINE was made"), (None, "was made"));
        assert_eq!(ErrorCode::split("LIMIT"), (Some(ErrorCode::Limit), "LIMIT"));
        assert_eq!(ErrorCode::split(""), (None, ""));
    }
}

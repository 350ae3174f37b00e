//! Errors of operations on objects, with messages for the user. The difference that matters to a
//! caller is between errors after which *nothing was changed* and [`ObjectsError::Unsure`].

use std::io;
use std::sync::Arc;

use crate::key::{InvalidKey, Key};
use crate::secret_id::SecretId;

/// The result of an operation on objects.
pub type Result<T, E = ObjectsError> = std::result::Result<T, E>;

/// An error of an operation on objects. After every variant except [`ObjectsError::Unsure`] it is
/// certain that the operation changed nothing and never will.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The object does not exist: HTTP status 404.
    #[error("the object {key} does not exist; check its name, and whether it was deleted")]
    NotFound {
        /// The key of the object.
        key: Key,
    },
    /// The condition of a put does not hold: HTTP status 412 as the first answer to a request that
    /// was sent once.
    #[error("the object {key} was changed or created by another writer; read it again")]
    ConditionFailed {
        /// The key of the object.
        key: Key,
    },
    /// It is unknown whether the operation was applied or will be applied: there was no answer, or
    /// the answer does not tell (409, 5xx, 412 to a repetition). A writer reads the object to find
    /// out, and takes into account that a request in flight may still arrive. For a read, this only
    /// means that there was no answer.
    #[error("it is not known if the request for {key} was applied: {why}; read the object again")]
    Unsure {
        /// The key, or the prefix of a list.
        key: String,
        /// The reason.
        why: String,
    },
    /// The server is overloaded, and has not applied the request: HTTP status 429, or 503 with
    /// `SlowDown`.
    #[error("the request for {key} was refused for now: {why}; try again later, and more slowly")]
    Busy {
        /// The key, or the prefix of a list.
        key: String,
        /// The reason.
        why: String,
    },
    /// A range begins at or after the end of the object: HTTP status 416.
    #[error(
        "a range of {key} begins at byte {start}, but the object has only {len} bytes; \
         read its length first"
    )]
    OutOfRange {
        /// The key of the object.
        key: Key,
        /// The offset of the first requested byte.
        start: u64,
        /// The length of the object, in bytes.
        len: u64,
    },
    /// The place does not allow the operation: HTTP status 403, or permissions of the host.
    #[error("{doing} is not allowed: {why}; check the credentials and permissions")]
    Denied {
        /// The operation and the object to which it applies.
        doing: String,
        /// The reason.
        why: String,
    },
    /// The bucket or folder does not exist.
    #[error("{place} does not exist; create it, mount it, or check its name")]
    NoBucket {
        /// The place, as returned by [`crate::Objects::place`].
        place: String,
    },
    /// The stored bytes of an encrypted object are not the bytes that were encrypted under its key.
    #[error("the object {key} in {place} is damaged, or was replaced: it cannot be decrypted")]
    Damaged {
        /// The key of the object.
        key: Key,
        /// The place, as returned by [`crate::Objects::place`].
        place: String,
    },
    /// The object is encrypted with another secret, or it is encrypted and no secret is given, or
    /// it is not encrypted although a secret is given.
    #[error("{}", of_secrets(.key, .place, *.found, *.own))]
    Secret {
        /// The key of the object.
        key: Key,
        /// The place, as returned by [`crate::Objects::place`].
        place: String,
        /// The secret with which the object is encrypted.
        found: Option<SecretId>,
        /// The secret with which the place is used.
        own: Option<SecretId>,
    },
    /// The call can never succeed. The text is a sentence that says why.
    #[error("{0}")]
    Invalid(String),
    /// An error of the host occurred, and nothing was changed.
    #[error("{doing} failed: {source}; {}", advice(.source))]
    Io {
        /// The operation and the object to which it applies.
        doing: String,
        /// The error of the host.
        source: Arc<io::Error>,
    },
}

/// Describes the difference between the secret of an object and the secret of its user, and what to
/// do about it.
fn of_secrets(key: &Key, place: &str, found: Option<SecretId>, own: Option<SecretId>) -> String {
    match (found, own) {
        (Some(found), Some(own)) => format!(
            "{key} in {place} is encrypted with the secret {found}, and the one that is given is \
             {own}: give the other one"
        ),
        (Some(found), None) => format!(
            "{key} in {place} is encrypted with the secret {found}, and none is given: give it"
        ),
        (None, _) => format!(
            "{key} in {place} is not encrypted, and a secret is given: use this place without one"
        ),
    }
}

/// Returns advice to the user about an error of the host.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "free some space there, and repeat it",
        io::ErrorKind::QuotaExceeded => "raise the quota or delete something, and repeat it",
        io::ErrorKind::ReadOnlyFilesystem => "mount the place so that it can be written",
        io::ErrorKind::FileTooLarge => "raise the limit for the size of files",
        io::ErrorKind::StaleNetworkFileHandle => "mount the network folder again",
        io::ErrorKind::NotConnected | io::ErrorKind::TimedOut => "check the connection",
        _ => "check the device or the network that has the objects",
    }
}

impl ObjectsError {
    /// Returns an error of the host while `doing` something, before it could change anything.
    pub fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> ObjectsError {
        let (doing, source) = (doing.into(), source.into());
        match source.kind() {
            io::ErrorKind::PermissionDenied => {
                ObjectsError::Denied { doing, why: source.to_string() }
            }
            _ => ObjectsError::Io { doing, source: Arc::new(source) },
        }
    }

    /// Returns whether the same call may succeed when it is repeated later, although nothing else
    /// changes. A put or a delete may be repeated without a check only if
    /// [`ObjectsError::is_certain`] is true, too. After other errors, [`crate::swap`] and
    /// [`crate::create`] determine the state.
    pub fn may_be_retried(&self) -> bool {
        match self {
            ObjectsError::Unsure { .. } | ObjectsError::Busy { .. } => true,
            ObjectsError::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::Interrupted
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::NotConnected
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::StaleNetworkFileHandle
            ),
            _ => false,
        }
    }

    /// Returns whether it is certain that the operation was not applied and never will be.
    pub fn is_certain(&self) -> bool {
        !matches!(self, ObjectsError::Unsure { .. })
    }
}

impl From<InvalidKey> for ObjectsError {
    fn from(invalid: InvalidKey) -> ObjectsError {
        ObjectsError::Invalid(invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_host_say_what_to_do() {
        let full = ObjectsError::io("writing a", io::Error::from(io::ErrorKind::StorageFull));
        assert!(full.to_string().contains("free some space"), "{full}");
        assert!(full.is_certain() && !full.may_be_retried());
        let denied = ObjectsError::io("reading a", rustix::io::Errno::ACCESS);
        assert!(matches!(denied, ObjectsError::Denied { .. }), "{denied}");
    }

    #[test]
    fn only_an_unknown_outcome_is_not_certain() {
        let unsure = ObjectsError::Unsure { key: "a".into(), why: "no answer came".into() };
        let busy = ObjectsError::Busy { key: "a".into(), why: "SlowDown".into() };
        let failed = ObjectsError::ConditionFailed { key: Key::new("a").expect("a key") };
        let table = [(&unsure, true, false), (&busy, true, true), (&failed, false, true)];
        for (error, retried, certain) in table {
            assert_eq!((error.may_be_retried(), error.is_certain()), (retried, certain), "{error}");
        }
    }
}

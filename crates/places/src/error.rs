//! Errors, in sentences for the user. The program adds advice, because only the program knows the
//! names of its commands and calls.

use std::io;
use std::path::PathBuf;

use objects::{ObjectsError, SecretId};

/// The variable of the environment that names the file of the secret.
pub const VARIABLE: &str = "KVFS_SECRET_FILE";

/// The result of an operation on a store in object storage.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Describes the difference between the secret of a local file and the given one, and what to do
/// about it.
fn of_secrets(place: &str, of_file: Option<SecretId>, given: Option<SecretId>) -> String {
    let variable = VARIABLE;
    match (of_file, given) {
        (Some(of_file), None) => format!(
            "the store in {place} is encrypted with the secret {of_file}: name the file that has \
             it in {variable}"
        ),
        (Some(of_file), Some(given)) => format!(
            "the store in {place} is encrypted with the secret {of_file}, and {variable} names a \
             file with another one, {given}"
        ),
        (None, _) => {
            format!("the store in {place} is not encrypted: use it without {variable}")
        }
    }
}

/// The reason why an operation on a store in object storage failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A word begins like an address, but is not one. See [`crate::FORMS`].
    #[error("{0} names no store in object storage")]
    NoName(String),
    /// A word is a path where an address is required. See [`crate::FORMS`].
    #[error("{} is no address of a store in object storage", .0.display())]
    NoAddress(PathBuf),
    /// A word does not name a place. See [`crate::FORMS_OF_PLACES`].
    #[error("{} is no place in object storage", .0.display())]
    NoPlace(PathBuf),
    /// The place has no stores. See [`crate::FORMS_OF_PLACES`].
    #[error("there is no store in {0}")]
    Empty(String),
    /// A store cannot have this name.
    #[error("{0}")]
    Name(kvdb::Error),
    /// The requested snapshot does not exist.
    #[error("there is no {0}")]
    NoSnapshot(String),
    /// The place could not be opened.
    #[error("cannot use {place}: {source}")]
    Place {
        /// The place, with the scheme.
        place: String,
        /// The error of the place.
        source: ObjectsError,
    },
    /// The stores of a place could not be listed.
    #[error("cannot use {place}: {source}")]
    Stores {
        /// The place, with the scheme.
        place: String,
        /// The error of the operation.
        source: kvdb::Error,
    },
    /// The server does not keep the conditions on which heads depend; the text is a sentence.
    #[error("{0}")]
    Unsafe(String),
    /// The file that the environment names does not hold a secret.
    #[error(
        "{} has no secret, which is 64 hexadecimal digits: make a file with one by kvfs secret",
        .0.display()
    )]
    NoSecret(PathBuf),
    /// A local file was made from a store that is encrypted with another secret, or is not
    /// encrypted.
    #[error("{}", of_secrets(.place, *.of_file, *.given))]
    Secret {
        /// The place of the store.
        place: String,
        /// The secret that the local file was made with.
        of_file: Option<SecretId>,
        /// The given secret.
        given: Option<SecretId>,
    },
    /// A file or directory of this machine cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The error of the host.
        source: io::Error,
    },
    /// A local file could not be opened as the device of a store.
    #[error("cannot open {}: {source}", path.display())]
    Device {
        /// The path of the file.
        path: PathBuf,
        /// The error of the device.
        source: zones::Error,
    },
    /// An operation on the store failed.
    #[error("cannot {doing} {address}: {source}")]
    Store {
        /// The verb that names the operation.
        doing: &'static str,
        /// The address of the store.
        address: String,
        /// The error of the store.
        source: kvdb::Error,
    },
    /// The store could not be claimed for a local file.
    #[error("cannot write {address}: {source}")]
    Claim {
        /// The address of the store.
        address: String,
        /// The local file.
        file: PathBuf,
        /// The error of the store.
        source: kvdb::Error,
    },
    /// A local file says that its zones lie elsewhere, but not at which place.
    #[error("cannot tell where the store lies: {0}")]
    NoHome(kvdb::Error),
    /// This machine has no local file of the store.
    #[error("nothing of {0} is here, so it cannot be mounted without a place")]
    NothingHere(String),
    /// All possible local files of the store are in use.
    #[error("{address} is mounted {most} times from {}", directory.display())]
    InUse {
        /// The address of the store.
        address: String,
        /// The largest number of local files.
        most: usize,
        /// The directory that they lie in.
        directory: PathBuf,
    },
    /// The last changes are not published. Only the local file has them.
    #[error("{address} lacks the last changes: {why}")]
    NotPublished {
        /// The address of the store.
        address: String,
        /// The reason why the last publication failed.
        why: String,
        /// Another writer or publisher has taken over the store, so trying again is useless.
        displaced: bool,
    },
    /// A thread could not be started.
    #[error("cannot start to {doing}: {source}")]
    Thread {
        /// The verb that names the task of the thread.
        doing: &'static str,
        /// The error of the host.
        source: io::Error,
    },
    /// A word begins like the address of a server, but is not one. See
    /// [`crate::FORMS_OF_SERVERS`].
    #[error("{} is no address of a server: {why}", word.display())]
    NoServer {
        /// The word.
        word: PathBuf,
        /// The reason.
        why: String,
    },
    /// The client of a server on the network has neither a token nor a certificate.
    #[error("a server of the network wants a token, or a certificate of the client")]
    NoCredentials,
    /// A certificate of the client is given without its key, or a key is given without its
    /// certificate.
    #[error("the certificate of a client and its key go together")]
    HalfCertificate,
    /// A file with a secret may be used by every user.
    #[error("{} has a {what}, and every user may use the file", path.display())]
    NotPrivate {
        /// The path of the file.
        path: PathBuf,
        /// The content of the file.
        what: &'static str,
    },
    /// A file that should have a secret in its first line has none.
    #[error("{} has no {what} in its first line", path.display())]
    NoLine {
        /// The path of the file.
        path: PathBuf,
        /// The secret that it should have.
        what: &'static str,
    },
    /// A file of this machine cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the host.
        source: io::Error,
    },
    /// Certificates could not be used.
    #[error("{0}")]
    Tls(kvdb_server::Error),
    /// A server could not be reached, or it refuses the client.
    #[error("cannot read {address}: {source}")]
    Server {
        /// The address of the server.
        address: String,
        /// The error of the connection.
        source: kvdb_wire::Error,
    },
}

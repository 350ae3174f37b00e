//! Errors of the store as Python exceptions. The classes are in `kvfs.errors`, whose `make`
//! selects one of them by a word; the sentences come from the crates.

use std::io;
use std::path::PathBuf;

use kvdb::TransactionId;
use kvdb_wire::FailureCode;
use objects::ObjectsError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The reason why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The database returned the error.
    Store(kvdb::Error),
    /// The file system returned the error, for this path.
    Files(kvfs::Error, Option<Vec<u8>>),
    /// The file of the store could not be opened or created.
    Device(zones::Error),
    /// The error concerns a store in object storage, its address, or its local file.
    Places(places::Error),
    /// The store is shown as it was in a snapshot, so it cannot be changed.
    AsItWas(String),
    /// Another writer has taken the store at this address from the object that is being closed,
    /// which has this local file.
    Displaced(String, PathBuf),
    /// The object was closed; the text says which.
    Closed(&'static str),
    /// A stream that replaces the store is being received.
    Receiving,
    /// The store belongs to another process with this number, from which this process was forked.
    Forked(u32),
    /// The transaction has ended.
    Ended(TransactionId),
    /// There is no commit with this number that can be undone, or no such commit if the number is
    /// `None`.
    NoCommit(Option<u64>),
    /// A commit cannot be undone, because others have changed the same data since.
    StandsAgainst(String),
    /// An argument is invalid.
    Invalid(String),
    /// The operation is not possible over a wire.
    Unsupported(String),
    /// The server that has the store cannot be reached any more.
    Disconnected(String),
    /// Python code raised an exception.
    Raised(PyErr),
}

/// The outcome of a call.
pub type Outcome<T> = Result<T, Failure>;

impl From<kvdb::Error> for Failure {
    fn from(error: kvdb::Error) -> Failure {
        Failure::Store(error)
    }
}

impl From<places::Error> for Failure {
    fn from(error: places::Error) -> Failure {
        match error {
            places::Error::Device { source, .. } => Failure::Device(source),
            error => Failure::Places(error),
        }
    }
}

impl From<kvfs::Error> for Failure {
    fn from(error: kvfs::Error) -> Failure {
        match error {
            kvfs::Error::Store(error) => Failure::Store(error),
            error => Failure::Files(error, None),
        }
    }
}

impl Failure {
    /// Returns the failure with the path that it concerns.
    pub fn at(self, path: &[u8]) -> Failure {
        match self {
            Failure::Files(error, None) => Failure::Files(error, Some(path.to_vec())),
            other => other,
        }
    }

    /// Returns whether another writer now writes or publishes the store.
    pub fn is_displaced(&self) -> bool {
        self.class().0 == "displaced"
    }

    /// Returns whether another process or object has the file of the store open.
    pub fn is_busy(&self) -> bool {
        matches!(self, Failure::Device(zones::Error::Busy(_)))
    }

    /// Returns the word for the class, and the errno if the class has one.
    fn class(&self) -> (&'static str, i32) {
        match self {
            Failure::Store(error) => of_store(error),
            Failure::Files(error, _) => match error {
                kvfs::Error::Store(error) => of_store(error),
                kvfs::Error::NoSpace => ("no_space", error.errno()),
                kvfs::Error::ReadOnly => ("read_only", error.errno()),
                kvfs::Error::Corrupt { .. } => ("corrupt", error.errno()),
                kvfs::Error::NotSynced(_) => ("device", error.errno()),
                error => ("file", error.errno()),
            },
            Failure::Device(error) => of_device(error),
            Failure::Places(error) => of_places(error),
            Failure::AsItWas(_) => ("read_only", EROFS),
            Failure::Displaced(..) => ("displaced", 0),
            Failure::Closed(_) | Failure::Receiving => ("closed", 0),
            Failure::Forked(_) => ("forked", 0),
            Failure::Ended(_) => ("ended", 0),
            Failure::NoCommit(_) => ("not_found", 0),
            Failure::StandsAgainst(_) => ("conflict", 0),
            Failure::Invalid(_) => ("invalid", 0),
            Failure::Unsupported(_) => ("unsupported", 0),
            Failure::Disconnected(_) => ("disconnected", 0),
            Failure::Raised(_) => ("error", 0),
        }
    }

    fn sentence(&self) -> String {
        match self {
            Failure::Store(error) => error.to_string(),
            Failure::Files(error, _) => error.to_string(),
            Failure::Device(error) => error.to_string(),
            Failure::Places(error) => match error {
                places::Error::NoName(_) | places::Error::NoAddress(_) => {
                    format!("{error}: {}", places::FORMS)
                }
                places::Error::NoServer { .. } => {
                    format!("{error}: {}", places::FORMS_OF_SERVERS)
                }
                places::Error::NoCredentials => {
                    format!("{error}: give token, token_file, or cert and cert_key")
                }
                places::Error::Claim { file, source: kvdb::Error::Unpublished(_), .. } => {
                    format!("{error}. It is {}", file.display())
                }
                error => error.to_string(),
            },
            Failure::Displaced(address, file) => format!(
                "{address} was taken by another writer. What was changed here and not published is \
                 in {} alone: open that file, and publish it under another name",
                file.display()
            ),
            Failure::AsItWas(snapshot) => format!(
                "the store was opened as it was in snapshot {snapshot}, which does not change: \
                 open it by its address without @{snapshot}"
            ),
            Failure::Closed(what) => format!("{what} is closed: open it again"),
            Failure::Receiving => {
                "a stream is being received, which replaces the store: wait until that has ended"
                    .into()
            }
            Failure::Forked(pid) => format!(
                "the store was opened by process {pid}, and this one was forked off it: use it \
                 there alone, or mount it and connect to it here"
            ),
            Failure::Ended(id) => kvdb::Error::NoTransaction(*id).to_string(),
            Failure::NoCommit(number) => {
                let which = match number {
                    Some(number) => format!("commit {number} cannot be undone"),
                    None => "no commit can be undone".into(),
                };
                format!(
                    "{which}: the newest are kept for a day, of transactions that asked for it, \
                     and none in a store that was full since"
                )
            }
            Failure::StandsAgainst(what)
            | Failure::Invalid(what)
            | Failure::Unsupported(what)
            | Failure::Disconnected(what) => what.clone(),
            Failure::Raised(error) => error.to_string(),
        }
    }
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

fn of_store(error: &kvdb::Error) -> (&'static str, i32) {
    use kvdb::Error;
    match error {
        Error::NoDictionary(_) | Error::NoSnapshot(_) | Error::NoBranch(_) | Error::NoStore(_) => {
            ("not_found", 0)
        }
        Error::Exists(_) => ("exists", 0),
        Error::NoSpace
        | Error::OverLimit { .. }
        | Error::CloneOverLimit { .. }
        | Error::TooManyFiles { .. }
        | Error::CloneTooManyFiles { .. } => ("no_space", ENOSPC),
        Error::ReadOnly(_) => ("read_only", EROFS),
        Error::NotSynced(_) | Error::Objects(_) => ("device", EIO),
        Error::Corrupt(_) => ("corrupt", EIO),
        Error::Invalid(_) => ("invalid", 0),
        Error::Limit(_) => ("limit", 0),
        Error::Conflict { .. } => ("conflict", 0),
        Error::OpenElsewhere { .. } => ("busy", 0),
        Error::Overtaken(_) | Error::WrittenElsewhere(_) | Error::Unpublished(_) => {
            ("displaced", 0)
        }
        Error::Locked(_) => ("locked", 0),
        Error::NoTransaction(_) => ("ended", 0),
        // The call is not possible in this state of the transaction, which stays open.
        Error::Changed(_) | Error::Nested { .. } => ("invalid", 0),
        Error::Io(error) => of_io(error),
    }
}

fn of_places(error: &places::Error) -> (&'static str, i32) {
    use places::Error;
    match error {
        Error::NoName(_)
        | Error::NoAddress(_)
        | Error::NoPlace(_)
        | Error::Name(_)
        | Error::NoSecret(_)
        | Error::Secret { .. }
        | Error::NoServer { .. }
        | Error::NoCredentials
        | Error::HalfCertificate
        | Error::NotPrivate { .. }
        | Error::NoLine { .. }
        | Error::Tls(_) => ("invalid", 0),
        Error::Empty(_) | Error::NoSnapshot(_) | Error::NothingHere(_) => ("not_found", 0),
        Error::Place { source, .. } => of_place(source),
        Error::Stores { source, .. }
        | Error::Store { source, .. }
        | Error::Claim { source, .. }
        | Error::NoHome(source) => of_store(source),
        Error::Path { source, .. }
        | Error::Thread { source, .. }
        | Error::Unreadable { source, .. } => of_io(source),
        Error::Server { source, .. } => of_wire(source),
        Error::Device { source, .. } => of_device(source),
        Error::InUse { .. } => ("busy", 0),
        Error::NotPublished { displaced: true, .. } => ("displaced", 0),
        Error::NotPublished { .. } => ("device", EIO),
        Error::Unsafe(_) => ("error", 0),
    }
}

/// Returns the class of an error of a server that cannot be reached, or that refuses a request.
fn of_wire(error: &kvdb_wire::Error) -> (&'static str, i32) {
    let failure = match error {
        kvdb_wire::Error::Failed(failure) => failure,
        kvdb_wire::Error::NoPlace(_) => return ("limit", 0),
        _ => return ("disconnected", 0),
    };
    match failure.code {
        FailureCode::NotAllowed => ("file", 13),
        FailureCode::NoView | FailureCode::NoSnapshot | FailureCode::NoDictionary => {
            ("not_found", 0)
        }
        FailureCode::Corrupt => ("corrupt", EIO),
        FailureCode::Limit => ("limit", 0),
        FailureCode::Conflict => ("conflict", 0),
        FailureCode::Locked => ("locked", 0),
        FailureCode::ReadOnly => ("read_only", EROFS),
        FailureCode::NoSpace => ("no_space", ENOSPC),
        FailureCode::Exists => ("exists", 0),
        FailureCode::Invalid => ("invalid", 0),
        FailureCode::NotSynced | FailureCode::Fenced => ("device", EIO),
        FailureCode::Other | FailureCode::Again => ("error", 0),
    }
}

/// Returns the class of the error for a place that could not be opened.
fn of_place(error: &ObjectsError) -> (&'static str, i32) {
    match error {
        ObjectsError::NotFound { .. } | ObjectsError::NoBucket { .. } => ("not_found", 0),
        ObjectsError::Invalid(_) | ObjectsError::Secret { .. } => ("invalid", 0),
        ObjectsError::Denied { .. } => ("file", 13),
        ObjectsError::Io { source, .. } => of_io(source),
        _ => ("device", EIO),
    }
}

fn of_device(error: &zones::Error) -> (&'static str, i32) {
    match error {
        zones::Error::Busy(_) => ("busy", 0),
        zones::Error::Io { source, .. } => of_io(source),
        zones::Error::NoSpace => ("no_space", ENOSPC),
        zones::Error::Corrupt { .. } => ("corrupt", EIO),
        _ => ("not_a_store", 0),
    }
}

fn of_io(error: &io::Error) -> (&'static str, i32) {
    match error.kind() {
        io::ErrorKind::NotFound => ("file", 2),
        io::ErrorKind::PermissionDenied => ("file", 13),
        io::ErrorKind::AlreadyExists => ("file", 17),
        io::ErrorKind::NotADirectory => ("file", 20),
        io::ErrorKind::IsADirectory => ("file", 21),
        _ => ("device", error.raw_os_error().unwrap_or(EIO)),
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        if let Failure::Raised(error) = failure {
            return error;
        }
        let made = Python::attach(|py| -> PyResult<PyErr> {
            let (class, errno) = failure.class();
            let path = match &failure {
                Failure::Files(_, Some(path)) => Some(PyBytes::new(py, path)),
                _ => None,
            };
            let make = py.import("kvfs.errors")?.getattr("make")?;
            Ok(PyErr::from_value(make.call1((class, failure.sentence(), errno, path))?))
        });
        made.unwrap_or_else(|error| error)
    }
}

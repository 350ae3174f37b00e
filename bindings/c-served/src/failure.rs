//! Errors as the codes of `kvfs.h`, with sentences.

use libc::c_int;

use kvdb_wire::FailureCode;

pub const OK: c_int = 0;
pub const ABSENT: c_int = 1;
pub const ERROR: c_int = -1;
pub const CONFLICT: c_int = -2;
pub const LOCKED: c_int = -3;
pub const ENDED: c_int = -4;
pub const FULL: c_int = -5;
pub const LOST: c_int = -6;

/// The reason why a call failed.
#[derive(Debug)]
pub struct Failure {
    pub code: c_int,
    /// The errno of a failure that a file system has one for, otherwise 0.
    pub errno: c_int,
    pub what: String,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: c_int, what: impl Into<String>) -> Failure {
        Failure { code, errno: 0, what: what.into() }
    }

    /// Returns an error of an argument.
    pub fn invalid(what: impl Into<String>) -> Failure {
        Failure { code: ERROR, errno: libc::EINVAL, what: what.into() }
    }

    /// Returns the error of all calls after a panic.
    pub fn broken() -> Failure {
        Failure::new(LOST, "the library has failed, which is a bug: close the connection")
    }

    /// Adds the path that the failure concerns.
    pub fn at(mut self, path: &[u8]) -> Failure {
        self.what = format!("{}: {}", String::from_utf8_lossy(path), self.what);
        self
    }
}

impl From<kvdb::Error> for Failure {
    fn from(error: kvdb::Error) -> Failure {
        use kvdb::Error;
        let (code, errno) = match &error {
            Error::Conflict { .. } => (CONFLICT, 0),
            Error::Locked(_) => (LOCKED, 0),
            Error::NoTransaction(_) => (ENDED, 0),
            Error::NoSnapshot(_) | Error::NoDictionary(_) => (ABSENT, 0),
            Error::NoSpace
            | Error::OverLimit { .. }
            | Error::CloneOverLimit { .. }
            | Error::TooManyFiles { .. }
            | Error::CloneTooManyFiles { .. } => (FULL, libc::ENOSPC),
            Error::ReadOnly(_) => (ERROR, libc::EROFS),
            // The client has sentences of its own for a server that is gone.
            Error::Io(_) => (LOST, libc::EIO),
            _ => (ERROR, 0),
        };
        Failure { code, errno, what: error.to_string() }
    }
}

impl From<kvfs::Error> for Failure {
    fn from(error: kvfs::Error) -> Failure {
        let code = match error {
            kvfs::Error::Store(error) => return error.into(),
            kvfs::Error::NotFound => ABSENT,
            kvfs::Error::NoSpace => FULL,
            _ => ERROR,
        };
        Failure { code, errno: error.errno(), what: error.to_string() }
    }
}

impl From<places::Error> for Failure {
    fn from(error: places::Error) -> Failure {
        use places::Error;
        match &error {
            Error::Server { source, .. } => {
                let (code, errno) = of_wire(source);
                Failure { code, errno, what: error.to_string() }
            }
            Error::NoServer { .. } => {
                Failure::invalid(format!("{error}: {}", places::FORMS_OF_SERVERS))
            }
            Error::NoCredentials => {
                Failure::invalid(format!("{error}: give token, token_file, or cert and cert_key"))
            }
            Error::Unreadable { source, .. } => {
                let errno = source.raw_os_error().unwrap_or(libc::EIO);
                Failure { code: ERROR, errno, what: error.to_string() }
            }
            _ => Failure::invalid(error.to_string()),
        }
    }
}

/// Returns the code and the errno for a server that cannot be reached, or refuses.
fn of_wire(error: &kvdb_wire::Error) -> (c_int, c_int) {
    let failure = match error {
        kvdb_wire::Error::Failed(failure) => failure,
        kvdb_wire::Error::NoPlace(_) => return (ERROR, libc::EBUSY),
        _ => return (LOST, libc::EIO),
    };
    match failure.code {
        FailureCode::NotAllowed => (ERROR, libc::EACCES),
        FailureCode::NoView => (ENDED, 0),
        FailureCode::NoSnapshot | FailureCode::NoDictionary => (ABSENT, 0),
        FailureCode::Conflict => (CONFLICT, 0),
        FailureCode::Locked => (LOCKED, 0),
        FailureCode::NoSpace => (FULL, libc::ENOSPC),
        FailureCode::ReadOnly => (ERROR, libc::EROFS),
        _ => (ERROR, 0),
    }
}

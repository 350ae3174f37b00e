//! The credentials of a client of a server on the network, and the authorities that the client
//! trusts. The caller or the environment provides them. Files with secrets must not be accessible
//! to every user.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kvdb_server::TlsClient;

use crate::error::{Error, Result};

/// The largest length of a secret, in bytes.
pub const LONGEST_SECRET: u64 = 4096;

/// The environment variable that contains a token.
pub const TOKEN: &str = "KVFS_TOKEN";
/// The environment variable that names the file with the token.
const TOKEN_FILE: &str = "KVFS_TOKEN_FILE";
/// The environment variable that names the file with the trusted certificates.
const CA: &str = "KVFS_CA";
/// The environment variable that names the file with the certificate of the client.
const CERT: &str = "KVFS_CERT";
/// The environment variable that names the file with the key of this certificate.
const CERT_KEY: &str = "KVFS_CERT_KEY";

/// Credentials for a server on the network.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The token.
    pub token: Option<String>,
    /// The file whose first line is the token. It is used if no token is given.
    pub token_file: Option<PathBuf>,
    /// The trusted certificates (PEM). If no file is given, the certificates that the machine
    /// trusts are used.
    pub ca: Option<PathBuf>,
    /// The certificate of the client (PEM).
    pub cert: Option<PathBuf>,
    /// The key of this certificate (PEM).
    pub cert_key: Option<PathBuf>,
}

impl Credentials {
    /// Fills in the files and the token from the environment where the caller has given none.
    pub fn or_environment(self) -> Credentials {
        let file = |given: Option<PathBuf>, variable| {
            let named = || std::env::var_os(variable).filter(|path| !path.is_empty());
            given.or_else(|| named().map(PathBuf::from))
        };
        let has_token = self.token.is_some();
        let token_file = match has_token {
            true => None,
            false => file(self.token_file, TOKEN_FILE),
        };
        let token = self.token.or_else(|| std::env::var(TOKEN).ok().filter(|t| !t.is_empty()));
        Credentials {
            // A file, given or named by the environment, takes precedence over the token of the
            // environment.
            token: token.filter(|_| token_file.is_none()),
            token_file,
            ca: file(self.ca, CA),
            cert: file(self.cert, CERT),
            cert_key: file(self.cert_key, CERT_KEY),
        }
    }

    /// Returns the token, which is empty if the client has a certificate and no token.
    pub(crate) fn token(&self) -> Result<String> {
        match self.token_if_any()? {
            Some(token) => Ok(token),
            None if self.certificate()?.is_some() => Ok(String::new()),
            None => Err(Error::NoCredentials),
        }
    }

    /// Returns the token for a server that may or may not require one.
    pub(crate) fn token_if_any(&self) -> Result<Option<String>> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(Some(token.clone())),
            (None, Some(file)) => read_secret(file, "token").map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns the TLS configuration: the trusted authorities, and the client's certificate.
    pub(crate) fn tls(&self) -> Result<TlsClient> {
        let own = self.certificate()?;
        if let Some((_, key)) = own {
            let about = std::fs::metadata(key).map_err(|e| unreadable(key, e))?;
            must_be_private(key, &about, "private key")?;
        }
        TlsClient::believing(self.ca.as_deref(), own).map_err(Error::Tls)
    }

    /// Returns the files of the client's certificate and its key.
    fn certificate(&self) -> Result<Option<(&Path, &Path)>> {
        match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => Err(Error::HalfCertificate),
        }
    }
}

/// Reads the first line of a file that must not be accessible to other users. `what` names its
/// content in messages.
pub fn read_secret(path: &Path, what: &'static str) -> Result<String> {
    let cannot = |e| unreadable(path, e);
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    must_be_private(path, &metadata, what)?;
    let mut text = String::new();
    if metadata.is_file() && metadata.size() <= LONGEST_SECRET {
        file.take(LONGEST_SECRET).read_to_string(&mut text).map_err(cannot)?;
    }
    let line = text.lines().next().filter(|line| !line.is_empty());
    line.map(String::from).ok_or_else(|| Error::NoLine { path: path.to_owned(), what })
}

/// Returns an error if the permissions of a file let every user access it. `what` names its content
/// in messages.
fn must_be_private(path: &Path, metadata: &Metadata, what: &'static str) -> Result {
    match metadata.permissions().mode() & 0o007 == 0 {
        true => Ok(()),
        false => Err(Error::NotPrivate { path: path.to_owned(), what }),
    }
}

fn unreadable(path: &Path, source: std::io::Error) -> Error {
    Error::Unreadable { path: path.to_owned(), source }
}

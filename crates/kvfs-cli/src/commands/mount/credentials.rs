//! The options with the credentials of a client of a network server, and the authorities that it
//! trusts. The environment, which is the only source for `kvfs run`, has those that are not given.

use std::ffi::OsString;
use std::path::PathBuf;

use super::absolute;
use crate::support::terminal::output::Outcome;

/// The options of a client of the network.
#[derive(clap::Args, Default)]
pub struct Credentials {
    /// For kvfs://HOST:PORT and kvfs+vsock://CID:PORT: read the token from the first line of this
    /// file, which others must not be able to read (default: the file that KVFS_TOKEN_FILE names,
    /// or the token in KVFS_TOKEN).
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// For kvfs://HOST:PORT: trust the certificates in this file (PEM) instead of those that the
    /// machine trusts (default: the file that KVFS_CA names).
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For kvfs://HOST:PORT: present the certificate in this file (PEM), with or instead of a token
    /// (default: the file that KVFS_CERT names).
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// For kvfs://HOST:PORT: key of the certificate of --cert, in a file (PEM) that others must not
    /// be able to read (default: the file that KVFS_CERT_KEY names).
    #[arg(long, value_name = "FILE")]
    cert_key: Option<PathBuf>,
}

impl Credentials {
    /// Returns whether one of these options is given.
    pub fn is_given(&self) -> bool {
        let all = [&self.token_file, &self.ca, &self.cert, &self.cert_key];
        all.iter().any(|file| file.is_some())
    }

    /// Returns the credentials of these options and of the environment.
    pub fn all(&self) -> places::Credentials {
        let given = places::Credentials {
            token: None,
            token_file: self.token_file.clone(),
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            cert_key: self.cert_key.clone(),
        };
        given.or_environment()
    }

    /// Returns the arguments of a process with the same credentials that works in another
    /// directory. A token in the environment is passed by other means (`secrets`).
    pub fn words(&self) -> Outcome<Vec<OsString>> {
        let places::Credentials { token: _, token_file, ca, cert, cert_key } = self.all();
        let files = [
            ("--token-file", token_file),
            ("--ca", ca),
            ("--cert", cert),
            ("--cert-key", cert_key),
        ];
        let mut words: Vec<OsString> = Vec::new();
        for (name, file) in files {
            if let Some(path) = file {
                words.extend([name.into(), absolute(&path)?.into()]);
            }
        }
        Ok(words)
    }

    /// Returns the token in the environment, unless a file has the token.
    pub fn token_of_environment(&self) -> Option<String> {
        self.all().token
    }
}

//! The credentials of a client of a network server, and the authorities that it trusts: files named
//! by options, or environment variables, which are the only source for `kvfs run`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kvdb_server::TlsClient;

use super::absolute;
use crate::network;
use crate::output::{Exit, Failure, Outcome};

/// The variables with a token and with the names of files.
pub const TOKEN: &str = "KVFS_TOKEN";
const TOKEN_FILE: &str = "KVFS_TOKEN_FILE";
const CA: &str = "KVFS_CA";
const CERT: &str = "KVFS_CERT";
const CERT_KEY: &str = "KVFS_CERT_KEY";

/// The options of a client of the network.
#[derive(clap::Args, Default)]
pub struct Credentials {
    /// For kvfs://HOST:PORT: read the token from the first line of this file, which others must not
    /// be able to read (default: the file that KVFS_TOKEN_FILE names, or the token in KVFS_TOKEN).
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

    /// Returns the arguments of a process with the same credentials that works in another
    /// directory. A token in the environment is passed by other means (`secrets`).
    pub fn words(&self) -> Outcome<Vec<OsString>> {
        let files = [
            ("--token-file", &self.token_file, TOKEN_FILE),
            ("--ca", &self.ca, CA),
            ("--cert", &self.cert, CERT),
            ("--cert-key", &self.cert_key, CERT_KEY),
        ];
        let mut all: Vec<OsString> = Vec::new();
        for (name, file, variable) in files {
            if let Some(path) = given(file, variable) {
                all.extend([name.into(), absolute(&path)?.into()]);
            }
        }
        Ok(all)
    }

    /// Returns the token in the environment, unless a file has the token.
    pub fn token_of_environment(&self) -> Option<String> {
        let is_in_file = given(&self.token_file, TOKEN_FILE).is_some();
        std::env::var(TOKEN).ok().filter(|token| !is_in_file && !token.is_empty())
    }

    /// Returns the token, which is empty if the client has a certificate and no token.
    pub fn token(&self) -> Outcome<String> {
        match (given(&self.token_file, TOKEN_FILE), self.token_of_environment()) {
            (Some(file), _) => network::read_secret(&file, "token"),
            (None, Some(token)) => Ok(token),
            _ if self.certificate()?.is_some() => Ok(String::new()),
            _ => {
                let what = "a server of the network wants a token, or a certificate of the client";
                Err(Failure::new(Exit::Usage, what).hint(
                    "give the file that has it: --token-file FILE, or --cert FILE --cert-key FILE",
                ))
            }
        }
    }

    /// Returns the TLS configuration: the trusted authorities, and the client's certificate.
    pub fn tls(&self) -> Outcome<TlsClient> {
        let own = self.certificate()?;
        if let Some((_, key)) = &own {
            let about = std::fs::metadata(key);
            let about =
                about.map_err(|e| Failure::io(format!("cannot read {}", key.display()), &e))?;
            network::must_be_private(key, &about, "private key")?;
        }
        let ca = given(&self.ca, CA);
        let own: Option<(&Path, &Path)> = own.as_ref().map(|(cert, key)| (&**cert, &**key));
        let tls = TlsClient::believing(ca.as_deref(), own);
        tls.map_err(|e| Failure::new(Exit::Usage, e.to_string()))
    }

    /// Returns the files of the client's certificate and its key.
    fn certificate(&self) -> Outcome<Option<(PathBuf, PathBuf)>> {
        match (given(&self.cert, CERT), given(&self.cert_key, CERT_KEY)) {
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => {
                let what = "the certificate of a client and its key go together";
                Err(Failure::new(Exit::Usage, what).hint("give both: --cert FILE --cert-key FILE"))
            }
        }
    }
}

/// Returns the file of an option, or else that of a variable.
fn given(option: &Option<PathBuf>, variable: &str) -> Option<PathBuf> {
    let of_variable = || std::env::var_os(variable).filter(|path| !path.is_empty());
    option.clone().or_else(|| of_variable().map(PathBuf::from))
}

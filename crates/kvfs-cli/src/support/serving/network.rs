//! The network options of a mounted store: an address to listen on next to its socket, with a
//! password, encrypted if there is a certificate; and the number of clients.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kvdb_server::{ServerOptions, Tls};

use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The network options of a mount. Paths are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    pub listen: Option<SocketAddr>,
    pub password_file: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// The limit of connections, including connections to the socket.
    pub max_clients: Option<usize>,
}

impl Network {
    /// Checks that the options are consistent.
    pub fn check(&self) -> Outcome {
        let wrong = |what: &str| Err(Failure::new(Exit::Usage, format!("mount options: {what}")));
        let others = [&self.password_file, &self.tls_cert, &self.tls_key];
        match self.listen {
            None if others.iter().any(|other| other.is_some()) => wrong(
                "password_file, tls_cert and tls_key are for listen=ADDRESS, which is not there",
            ),
            Some(_) if self.password_file.is_none() => wrong(
                "listen needs password_file=FILE: whoever reaches the address could do everything",
            ),
            _ if self.tls_cert.is_some() != self.tls_key.is_some() => {
                wrong("tls_cert and tls_key go together")
            }
            _ => Ok(()),
        }
    }

    /// Returns a warning for an address that other machines may reach.
    pub fn warning(&self) -> Option<String> {
        let address = self.listen.filter(|address| !address.ip().is_loopback())?;
        self.tls_cert.is_none().then(|| {
            format!(
                "keys are served at {address} in the clear: whoever is on the way reads them and \
                 the password; tls_cert=FILE,tls_key=FILE encrypt them"
            )
        })
    }

    /// Adds the network options to those of the server.
    pub fn add_to(&self, options: &mut ServerOptions) -> Outcome {
        if let Some(most) = self.max_clients {
            options.limits.connections = most;
        }
        let (Some(address), Some(password)) = (self.listen, &self.password_file) else {
            return Ok(());
        };
        options.tcp = Some(address);
        options.password = Some(read_secret(password, "password")?);
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let tls = Tls::from_files(cert, key);
            options.tls = Some(tls.map_err(|e| Failure::new(Exit::Usage, e.to_string()))?);
        }
        Ok(())
    }
}

/// Reads the first line of a file, which must not be accessible to others. `what` names its
/// content in messages.
pub fn read_secret(path: &Path, what: &'static str) -> Outcome<String> {
    Ok(places::credentials::read_secret(path, what)?)
}

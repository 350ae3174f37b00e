//! The network options of a mounted store: an address to listen on next to its socket, with a
//! password, encrypted if there is a certificate; and the number of clients.

use std::fs::Metadata;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kvdb_server::{ServerOptions, Tls};

use crate::output::{Exit, Failure, Outcome};

/// The limit of a password, in bytes.
const LONGEST: u64 = 4096;

/// The network options of a mount. Paths are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    pub listen: Option<SocketAddr>,
    pub password_file: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// The limit of connections, those of the socket included.
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
pub fn read_secret(path: &Path, what: &str) -> Outcome<String> {
    let cannot = |e: std::io::Error| Failure::io(format!("cannot read {}", path.display()), &e);
    let file = std::fs::File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    must_be_private(path, &metadata, what)?;
    let mut text = String::new();
    if metadata.is_file() && metadata.size() <= LONGEST {
        file.take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
    }
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.into()),
        None => {
            let refused = format!("{} has no {what} in its first line", path.display());
            let hint = format!("write one of up to {LONGEST} bytes");
            Err(Failure::new(Exit::Usage, refused).hint(hint))
        }
    }
}

/// Fails if every user may use a file. `what` names its content in messages.
pub fn must_be_private(path: &Path, metadata: &Metadata, what: &str) -> Outcome {
    if metadata.permissions().mode() & 0o007 == 0 {
        return Ok(());
    }
    let refused = format!("{} has a {what}, and every user may use the file", path.display());
    Err(Failure::new(Exit::Usage, refused).hint(format!("chmod o= {}", path.display())))
}

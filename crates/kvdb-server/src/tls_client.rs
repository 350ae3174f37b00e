//! The other side of TLS: a client of a server that shows a certificate.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::Error;
use crate::relay::{Relay, agree};
use crate::tcp;

/// The authorities that a client believes, to which certificates of servers lead.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// Believes the certificates of a file in PEM; without one, those that the machine does.
    pub fn believing(authorities: Option<&Path>) -> Result<TlsClient, Error> {
        let mut roots = RootCertStore::empty();
        let wrong = |why: &dyn std::fmt::Display| Error::Tls {
            path: authorities.unwrap_or(Path::new("what the machine believes")).to_path_buf(),
            why: why.to_string(),
        };
        match authorities {
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Some(path) => {
                let all = CertificateDer::pem_file_iter(path).map_err(|e| wrong(&e))?;
                for one in all {
                    let one = one.map_err(|e| wrong(&e))?;
                    roots.add(one).map_err(|e| wrong(&e))?;
                }
                if roots.is_empty() {
                    return Err(wrong(&"there is no certificate in it"));
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(&e))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsClient(Arc::new(config)))
    }

    /// Connects to a server, whose certificate must have its name, within so much time. What is
    /// said at the socket that this returns is said to the server, encrypted.
    pub fn connect(&self, host: &str, port: u16, time: Duration) -> io::Result<UnixStream> {
        let deadline = Instant::now() + time;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        let mut tls = rustls::Connection::from(tls);
        let mut far = connect(host, port, deadline)?;
        agree(&mut tls, &mut far, deadline)?;
        let (mine, near) = UnixStream::pair()?;
        // The caller has its own limits of time.
        let relay = Relay::new(tls, far, near, Duration::from_secs(24 * 3600))?;
        let thread = std::thread::Builder::new().name("tls-relay".into()).stack_size(256 << 10);
        thread.spawn(move || relay.run())?;
        Ok(mine)
    }
}

/// Connects to the first of the host's addresses that answers.
pub fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left.min(ATTEMPT)) {
            Ok(stream) => {
                tcp::notices_the_end(&stream)?;
                return Ok(stream);
            }
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// An address that does not answer is given up after so long, for the next one.
const ATTEMPT: Duration = Duration::from_secs(5);

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsClient")
    }
}

//! The client side of TLS, for a server that presents a certificate.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::Error;
use crate::relay::{Relay, agree};
use crate::tcp;
use crate::tls::{pair, roots, wrong};

/// The authorities that a client trusts for the certificates of servers, and the client's own
/// certificate, if it has one.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// Trusts the authorities in a PEM file, or without one the authorities that the machine
    /// trusts. `own` names the files of the certificate that the client presents to servers that
    /// request one, and of its key.
    pub fn believing(
        authorities: Option<&Path>,
        own: Option<(&Path, &Path)>,
    ) -> Result<TlsClient, Error> {
        let believed = match authorities {
            Some(path) => roots(path)?,
            None => {
                let mut all = RootCertStore::empty();
                all.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                all
            }
        };
        let machine = Path::new("what the machine believes");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(authorities.unwrap_or(machine), &e))?
            .with_root_certificates(believed);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let (chain, own) = pair(certificates, key)?;
                builder.with_client_auth_cert(chain, own).map_err(|e| wrong(key, &e))?
            }
        };
        Ok(TlsClient(Arc::new(config)))
    }

    /// Connects to a server within this time. The certificate of the server must be valid for its
    /// name. Data that is written to the returned socket is sent to the server encrypted.
    pub fn connect(&self, host: &str, port: u16, time: Duration) -> io::Result<UnixStream> {
        let deadline = Instant::now() + time;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        let mut tls = rustls::Connection::from(tls);
        let mut far = connect(host, port, deadline)?;
        agree(&mut tls, &mut far, deadline)?;
        let (mine, near) = UnixStream::pair()?;
        // The caller has its own time limits.
        let relay = Relay::new(tls, far, near, Duration::from_secs(24 * 3600))?;
        let thread = std::thread::Builder::new().name("tls-relay".into()).stack_size(256 << 10);
        thread.spawn(move || relay.run())?;
        Ok(mine)
    }
}

/// Connects to the first address of the host that answers.
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

/// Time after which the next address is tried if an address does not answer.
const ATTEMPT: Duration = Duration::from_secs(5);

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsClient")
    }
}

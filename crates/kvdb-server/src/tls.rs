//! Encrypted TCP connections (TLS), on which the server presents a certificate.
//!
//! The event loops are not aware of TLS. Each encrypted connection has a thread that relays between
//! the client's socket, which carries TLS records, and one end of a pair of Unix sockets; a loop
//! serves the other end like any other client. So a slow handshake delays no other client, and
//! plain connections pay nothing for TLS ([`rustls`] implements the protocol).

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::error::Error;
use crate::relay::{HANDSHAKE, Relay, Relayed, agree};
use crate::tcp;

/// Number of bytes of a client that are relayed before the server reads them, so that the end of
/// the client is noticed while the server works on its requests.
const AHEAD: usize = 8 << 20;

/// The configuration of encrypted connections, with the certificates and the key of the server.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads PEM files: the certificate of the server, followed by the certificates that lead to
    /// a known authority, and the private key of the server.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Tls, Error> {
        let (chain, own) = pair(certificates, key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, own))
            .map_err(|e| wrong(key, &e))?;
        Ok(Tls(Arc::new(config)))
    }

    /// Reads PEM files like [`Tls::from_files`], and requests from clients a certificate that
    /// leads to an authority of a third file. If `required` is set, clients without a certificate
    /// are refused; clients with a certificate of another authority are always refused.
    pub fn asking(
        certificates: &Path,
        key: &Path,
        authorities: &Path,
        required: bool,
    ) -> Result<Tls, Error> {
        let (chain, own) = pair(certificates, key)?;
        let roots = Arc::new(roots(authorities)?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        if !required {
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|e| wrong(authorities, &e))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder.with_client_cert_verifier(verifier).with_single_cert(chain, own)
            })
            .map_err(|e| wrong(key, &e))?;
        // A resumed session has no proof of its own, and the certificate of the first session may
        // have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Tls(Arc::new(config)))
    }

    /// Starts a relay for a client, and returns the end of the socket pair to serve. A client
    /// that takes nothing for the time `stall` is dropped.
    pub(crate) fn relay(&self, client: TcpStream, stall: Duration) -> io::Result<UnixStream> {
        let tls = ServerConnection::new(self.0.clone()).map_err(io::Error::other)?;
        let (served, near) = UnixStream::pair()?;
        let relay = Relay::new(tls.into(), client, near, stall)?;
        let thread = std::thread::Builder::new().name("resp-tls".into()).stack_size(256 << 10);
        thread.spawn(move || relay.run())?;
        Ok(served)
    }

    /// Performs the handshake with a client, which may take a while. Then passes the end of the
    /// connection to serve to `serve`, with the certificate that the client has proved to own,
    /// and relays until the connection has ended. A client that takes nothing for the time
    /// `stall` is disconnected.
    pub fn serve<T>(
        &self,
        mut client: TcpStream,
        stall: Duration,
        serve: impl FnOnce(Relayed, Option<&[u8]>) -> T,
    ) -> io::Result<T> {
        tcp::notices_the_end(&client)?;
        let tls = ServerConnection::new(self.0.clone()).map_err(io::Error::other)?;
        let mut tls = rustls::Connection::from(tls);
        agree(&mut tls, &mut client, Instant::now() + HANDSHAKE)?;
        let shown = tls.peer_certificates().and_then(|chain| chain.first()).map(|own| own.to_vec());
        let (socket, near) = UnixStream::pair()?;
        let relay = Relay::new(tls, client, near, stall)?.taking_ahead(AHEAD);
        let done = serve(Relayed { socket, far_ended: relay.far_ended() }, shown.as_deref());
        relay.run();
        Ok(done)
    }
}

/// Returns the error for a file that cannot be used.
pub(crate) fn wrong(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Tls { path: path.to_path_buf(), why: why.to_string() }
}

/// Reads the certificates of a server or client, its own certificate first, and its private key.
pub(crate) fn pair(
    certificates: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificates)
        .and_then(|all| all.collect())
        .map_err(|e| wrong(certificates, &e))?;
    if chain.is_empty() {
        return Err(wrong(certificates, &"there is no certificate in it"));
    }
    Ok((chain, PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e))?))
}

/// Reads the trusted authorities.
pub(crate) fn roots(authorities: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let all = CertificateDer::pem_file_iter(authorities).map_err(|e| wrong(authorities, &e))?;
    for one in all {
        let one = one.map_err(|e| wrong(authorities, &e))?;
        roots.add(one).map_err(|e| wrong(authorities, &e))?;
    }
    match roots.is_empty() {
        true => Err(wrong(authorities, &"there is no certificate in it")),
        false => Ok(roots),
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

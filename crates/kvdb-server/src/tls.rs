//! TLS: encrypted TCP connections, on which the server presents a certificate.
//!
//! The event loops are not aware of TLS. Each encrypted connection has a thread that relays between
//! the client's socket, which carries TLS records, and one end of a pair of Unix sockets; a loop
//! serves the other end like any other client. So a slow handshake delays no other client, and
//! plain connections pay nothing for TLS ([`rustls`] implements the protocol).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::error::Error;

/// Time limit of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes that are relayed at once.
const PIECE: usize = 16 << 10;

/// The configuration of encrypted connections: the server's certificates and its key.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads PEM files: the server's certificate, followed by those that lead to a known authority,
    /// and its private key.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Tls, Error> {
        let wrong = |path: &Path, why: &dyn std::fmt::Display| Error::Tls {
            path: path.to_path_buf(),
            why: why.to_string(),
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificates)
            .and_then(|all| all.collect())
            .map_err(|e| wrong(certificates, &e))?;
        if chain.is_empty() {
            return Err(wrong(certificates, &"there is no certificate in it"));
        }
        let own = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, own))
            .map_err(|e| wrong(key, &e))?;
        Ok(Tls(Arc::new(config)))
    }

    /// Begins to relay for a client, and returns the socket end to serve. A client that takes
    /// nothing for as long as `stall` is given up.
    pub(crate) fn relay(&self, client: TcpStream, stall: Duration) -> io::Result<UnixStream> {
        let tls = ServerConnection::new(self.0.clone()).map_err(io::Error::other)?;
        let (served, server) = UnixStream::pair()?;
        client.set_nonblocking(true)?;
        client.set_nodelay(true)?;
        server.set_nonblocking(true)?;
        let mut relay =
            Relay { tls, client, server, inbound: Vec::new(), ended: Ended::default(), stall };
        let thread = std::thread::Builder::new().name("resp-tls".into()).stack_size(256 << 10);
        thread.spawn(move || {
            if let Err(error) = relay.run() {
                tracing::debug!("an encrypted RESP connection has ended: {error}");
            }
            let _ = relay.client.shutdown(Shutdown::Both);
        })?;
        Ok(served)
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// The sides that have ended.
#[derive(Default)]
struct Ended {
    client: bool,
    server: bool,
}

struct Relay {
    tls: ServerConnection,
    client: TcpStream,
    server: UnixStream,
    /// Data of the client that the server has not taken yet.
    inbound: Vec<u8>,
    ended: Ended,
    stall: Duration,
}

/// Returns `None` if the operation would block.
fn at_once<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Relay {
    fn run(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            self.pass_to_server()?;
            self.take_from_client()?;
            self.take_from_server()?;
            self.pass_to_client()?;
            let answered = self.ended.server && !self.tls.wants_write();
            if answered || (self.ended.client && self.tls.is_handshaking()) {
                return Ok(());
            }
            // Data of the last records is forwarded before the thread waits for anything.
            if self.inbound.is_empty() || !self.pass_to_server()? {
                self.wait(begun)?;
            }
        }
    }

    /// Forwards data to the server. Returns `true` if it took some.
    fn pass_to_server(&mut self) -> io::Result<bool> {
        let mut taken = 0;
        while taken < self.inbound.len() {
            match at_once(self.server.write(&self.inbound[taken..])) {
                Ok(Some(more)) => taken += more,
                Ok(None) => break,
                // The server does not read any more, but may have sent the reason.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => taken = self.inbound.len(),
                Err(e) => return Err(e),
            }
        }
        self.inbound.drain(..taken);
        if self.ended.client && self.inbound.is_empty() {
            let _ = self.server.shutdown(Shutdown::Write);
        }
        Ok(taken > 0)
    }

    fn take_from_client(&mut self) -> io::Result<()> {
        while self.inbound.is_empty() && !self.ended.client {
            match at_once(self.tls.read_tls(&mut self.client))? {
                None => return Ok(()),
                Some(0) => self.ended.client = true,
                Some(_) => {
                    let state = match self.tls.process_new_packets() {
                        Ok(state) => state,
                        Err(error) => {
                            // The client is sent the alert that says what was wrong.
                            let _ = self.tls.write_tls(&mut self.client);
                            return Err(io::Error::other(error));
                        }
                    };
                    self.ended.client = state.peer_has_closed();
                    self.inbound.resize(state.plaintext_bytes_to_read(), 0);
                    self.tls.reader().read_exact(&mut self.inbound)?;
                }
            }
        }
        if self.ended.client && self.inbound.is_empty() {
            let _ = self.server.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn take_from_server(&mut self) -> io::Result<()> {
        if !self.wants_server() {
            return Ok(());
        }
        let mut piece = [0; PIECE];
        match at_once(self.server.read(&mut piece))? {
            None => {}
            Some(0) => {
                self.ended.server = true;
                self.tls.send_close_notify();
            }
            Some(got) => self.tls.writer().write_all(&piece[..got])?,
        }
        Ok(())
    }

    fn pass_to_client(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if at_once(self.tls.write_tls(&mut self.client))?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether more data of the server can be taken: not before the client has taken the
    /// data before it.
    fn wants_server(&self) -> bool {
        !self.ended.server && !self.tls.wants_write() && !self.tls.is_handshaking()
    }

    /// Waits until one of the sockets is ready. Returns an error if the client takes too long.
    fn wait(&self, begun: Instant) -> io::Result<()> {
        let (mut client, mut server) = (PollFlags::empty(), PollFlags::empty());
        client.set(PollFlags::IN, self.inbound.is_empty() && !self.ended.client);
        client.set(PollFlags::OUT, self.tls.wants_write());
        server.set(PollFlags::IN, self.wants_server());
        server.set(PollFlags::OUT, !self.inbound.is_empty());
        // A socket that is not wanted may have ended, which would be reported again and again.
        let mut polled = Vec::with_capacity(2);
        if !client.is_empty() {
            polled.push(PollFd::new(&self.client, client));
        }
        if !server.is_empty() {
            polled.push(PollFd::new(&self.server, server));
        }
        let at_most = match (self.tls.is_handshaking(), self.tls.wants_write()) {
            (true, _) => Some(HANDSHAKE.saturating_sub(begun.elapsed())),
            (false, true) => Some(self.stall),
            (false, false) => None,
        };
        let at_most = at_most.and_then(|time| time.try_into().ok());
        match rustix::event::poll(&mut polled, at_most.as_ref()) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

//! Clients on other machines: a network address at which each connection is encrypted, and must
//! show a token or a certificate.
//!
//! Each connection has a thread of its own, which makes the TLS handshake and then relays. The
//! number and the time of handshakes in progress are limited, and further connections are closed at
//! once. After its handshake a client counts against the limits of the server, like those at a
//! socket.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kvdb_server::{Relayed, Tls};
use kvdb_wire::{Server, Socket, Tokens, Transport};

use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// Limit of the handshakes in progress.
const HANDSHAKES: usize = 64;
/// The time without progress after which a client is disconnected.
const STALL: Duration = Duration::from_secs(30);
/// The pause after a failed accept, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Limit of the bytes of a list of tokens.
const LONGEST: u64 = 1 << 20;

/// The certificates and tokens for clients of the network.
pub struct Network {
    pub tls: Tls,
    pub tokens: Arc<Tokens>,
}

impl Network {
    /// Reads the certificate, its key, the list of tokens, and the authorities of clients that show
    /// a certificate.
    pub fn read(
        cert: &Path,
        key: &Path,
        tokens: &Path,
        client_ca: Option<&Path>,
    ) -> Outcome<Network> {
        let wrong = |what: String| Failure::new(Exit::Usage, what);
        let parsed = read_tokens(tokens)?;
        let tls = match client_ca {
            None if parsed.has_certificates() => {
                let what = format!("{} has certificates of clients", tokens.shown());
                return Err(wrong(what).hint("say which authority has signed them: --client-ca"));
            }
            Some(_) if !parsed.has_certificates() => {
                let what = format!("{} has no certificate of a client", tokens.shown());
                return Err(
                    wrong(what).hint("add a line that begins with cert:, or leave out --client-ca")
                );
            }
            None => Tls::from_files(cert, key),
            // A client that could show a token needs no certificate.
            Some(authorities) => Tls::asking(cert, key, authorities, !parsed.has_tokens()),
        };
        let tls = tls.map_err(|e| wrong(e.to_string()))?;
        Ok(Network { tls, tokens: Arc::new(parsed) })
    }
}

/// Reads a list of tokens, which has at least one line.
pub fn read_tokens(list: &Path) -> Outcome<Tokens> {
    let list_name = list.shown();
    let wrong = |what: String| Failure::new(Exit::Usage, what);
    let cannot = |e: std::io::Error| Failure::io(format!("cannot read {list_name}"), &e);
    let about = std::fs::metadata(list).map_err(cannot)?;
    if about.permissions().mode() & 0o022 != 0 {
        let what = format!("{list_name} can be written by others, who could let in anyone");
        return Err(wrong(what).hint(format!("chmod go-w {list_name}")));
    }
    if !about.is_file() || about.size() > LONGEST {
        return Err(wrong(format!("{list_name} is no list of tokens")));
    }
    let text = std::fs::read_to_string(list).map_err(cannot)?;
    let parsed = Tokens::parse(&text).map_err(|e| wrong(format!("{list_name}: {e}")))?;
    if parsed.is_empty() {
        return Err(wrong(format!("{list_name} has no token, so no client could do anything")));
    }
    Ok(parsed)
}

/// Accepts connections until it is dropped.
pub struct Listening {
    listener: Arc<TcpListener>,
    stopping: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at `at`, which is HOST:PORT.
    pub fn begin(at: &str, network: Network, server: Weak<Server>) -> Outcome<Listening> {
        let cannot = |e: std::io::Error| Failure::io(format!("cannot listen at {at}"), &e);
        let addresses: Vec<SocketAddr> = at.to_socket_addrs().map_err(cannot)?.collect();
        let listener = Arc::new(TcpListener::bind(&addresses[..]).map_err(cannot)?);
        let stopping = Arc::new(AtomicBool::new(false));
        let (accepts, stops) = (listener.clone(), stopping.clone());
        let taking = Arc::new(Taking { network, server, handshakes: AtomicUsize::new(0) });
        let accept = move || {
            while !stops.load(Ordering::Relaxed) {
                match accepts.accept() {
                    Ok((stream, from)) => taking.take(stream, from),
                    Err(_) if stops.load(Ordering::Relaxed) => break,
                    Err(e) => {
                        tracing::warn!("no connection is accepted: {e}");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        };
        let accepting = std::thread::Builder::new().name("serve-accept".into()).spawn(accept);
        Ok(Listening { listener, stopping, accepting: Some(accepting.map_err(cannot)?) })
    }

    /// Returns the address, with the port that was assigned.
    pub fn address(&self) -> Outcome<SocketAddr> {
        self.listener.local_addr().map_err(|e| Failure::io("cannot listen there", &e))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Wake the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

/// The transport of a client of the network. The end of such a client is known before all that it
/// has sent is read.
struct Encrypted(Relayed);

impl Transport for Encrypted {
    fn read(&self, room: &mut [u8]) -> std::io::Result<usize> {
        Transport::read(&self.0.socket, room)
    }

    fn write(&self, bytes: &[u8]) -> std::io::Result<usize> {
        Transport::write(&self.0.socket, bytes)
    }

    fn end(&self) {
        self.0.socket.end();
    }

    fn has_ended(&self) -> bool {
        self.0.far_ended.load(Ordering::Relaxed) || self.0.socket.has_ended()
    }

    fn limit_reads(&self, time: Option<Duration>) -> std::io::Result<()> {
        self.0.socket.limit_reads(time)
    }

    fn limit_writes(&self, time: Option<Duration>) -> std::io::Result<()> {
        self.0.socket.limit_writes(time)
    }
}

struct Taking {
    network: Network,
    server: Weak<Server>,
    handshakes: AtomicUsize,
}

/// Counts a handshake in progress until it is dropped.
struct Handshake(Arc<Taking>);

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Taking {
    fn take(self: &Arc<Taking>, stream: TcpStream, from: SocketAddr) {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!("{from} is not served: too many connections begin");
            return;
        }
        let (taking, handshake) = (self.clone(), Handshake(self.clone()));
        let serve = move || {
            let done = taking.network.tls.serve(stream, STALL, |relayed, certificate| {
                drop(handshake);
                let tokens = &taking.network.tokens;
                let own = certificate.and_then(|der| tokens.of_certificate(der)).map(Arc::new);
                match taking.server.upgrade() {
                    Some(server) => {
                        let socket = Socket::over(Encrypted(relayed));
                        server.serve_with(socket, own.as_ref().unwrap_or(tokens))
                    }
                    None => Ok(()),
                }
            });
            match done {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::warn!("{from} is not served: {e}"),
                Err(e) => tracing::debug!("{from} is not served: {e}"),
            }
        };
        let thread = std::thread::Builder::new().name("serve-tls".into()).stack_size(256 << 10);
        if let Err(e) = thread.spawn(serve) {
            tracing::warn!("{from} is not served: {e}");
        }
    }
}

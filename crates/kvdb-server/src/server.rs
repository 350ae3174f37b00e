//! The server. It has one thread that accepts connections, and event loops that serve them.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use kvdb::Kvdb;
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::commands;
use crate::conversation::Conversation;
use crate::error::Error;
use crate::event_loop::EventLoop;
use crate::files::Files;
use crate::limits::Limits;
use crate::owner::{Check, Describe, InfoSource, Owner, Publish};
use crate::scripts::Scripts;
use crate::session::Shared;
use crate::socket::PrivateSocket;
use crate::stream::Stream;
use crate::stream_sink::StreamSink;
use crate::sweeper::Sweeping;
use crate::tls::Tls;
use crate::transactions::{Snapshots, Transactions};

/// Limit on the number of loops. A larger number of loops would wait for each other's commits.
const MOST_LOOPS: usize = 8;

/// Options of the server.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// The password that TCP clients must send with `AUTH` or `HELLO`. The Unix socket requires
    /// no password, because its mode admits only the owner, who may also read the file of the
    /// store.
    pub password: Option<String>,
    /// The TCP address to serve in addition. Port 0 selects a free port (`Server::tcp_address`).
    /// A TCP address requires a password.
    pub tcp: Option<SocketAddr>,
    /// The TLS configuration of TCP connections. If it is set, unencrypted clients are refused.
    pub tls: Option<Tls>,
    /// Set if connections start with `DURABLE yes`, so that each write is on disk before its
    /// reply.
    pub durable: bool,
    /// Limits on the resources that clients may use.
    pub limits: Limits,
    /// The command, with its arguments, that starts a process for scripts
    /// (`kvdb_lua::run_worker`). Each process gets a socket as standard input. If it is `None`,
    /// scripts are not available.
    pub scripts: Option<Vec<OsString>>,
    /// The host of transactions; `None` stands for the store itself.
    pub transactions: Option<Arc<dyn Transactions>>,
    /// The host of snapshots and clones; `None` stands for the store itself.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// The host of files; `None` stands for a store without files.
    pub files: Option<Arc<dyn Files>>,
    /// The store's statistics as a JSON object, for `INFO` and `KVFS.STAT`.
    pub info: Option<InfoSource>,
    /// Describes keys, for `SCRUB FAULTS`.
    pub describe: Option<Describe>,
    /// Checks the data that the owner of the store keeps in it, for `KVFS.CHECK`.
    pub check: Option<Check>,
    /// Publishes the store to object storage, for `KVFS.PUSH`.
    pub publish: Option<Publish>,
}

/// A running server. Dropping it stops the server: connections end, and the socket is removed.
pub struct Server {
    common: Common,
    path: PathBuf,
    wake: Arc<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
    sweeping: Option<Sweeping>,
}

/// The state that the accepting thread needs.
#[derive(Clone)]
struct Common {
    shared: Arc<Shared>,
    loops: Vec<Arc<EventLoop>>,
}

/// Returns the number of event loops. Half of the processors are left to clients and to the
/// threads of the store.
fn wanted_loops() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get() / 2).clamp(1, MOST_LOOPS)
}

impl Server {
    /// Serves `db` on a Unix socket at `path`, with mode 0600. The socket of a dead server is
    /// replaced; the socket of a running server is an error.
    pub fn start(db: Kvdb, path: &Path, options: ServerOptions) -> Result<Server, Error> {
        if options.tcp.is_some() && options.password.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::NoPassword);
        }
        let mut shared =
            Shared::new(db, options.limits, options.password, options.durable, commands::metrics());
        shared.owner = Owner::of_store(&shared.db)
            .hosted_by(options.transactions, options.snapshots, options.files)
            .with_info(options.info)
            .with_describe(options.describe)
            .with_check(options.check)
            .with_publish(options.publish);
        shared.scripts = Scripts::new(options.scripts, &shared.limits);
        let listener = match options.tcp {
            None => None,
            Some(address) => {
                let failed = |error| Error::Tcp { address, error };
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Some((listener.local_addr().map_err(failed)?, listener))
            }
        };
        let (address, tcp) = listener.unzip();
        let socket = path.to_string_lossy().into_owned();
        shared.access.listen(socket, address, options.tls.is_some());
        shared.access.allow_possible(shared.limits.connections);
        let socket = PrivateSocket::listen(path)?;
        let wake =
            Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let common = Common { shared: Arc::new(shared), loops: Vec::new() };
        let mut server =
            Server { common, path: path.into(), wake, accepting: None, sweeping: None };
        // From here on an error ends the threads that have already been started.
        let Common { shared, loops } = &mut server.common;
        for number in 1..=wanted_loops() {
            loops.push(EventLoop::start(format!("resp-{number}"), shared.clone())?);
        }
        let (common, wake) = (server.common.clone(), server.wake.clone());
        let accepting = std::thread::Builder::new().name("resp-accept".into());
        let accepting =
            accepting.spawn(move || accept(&common, socket, tcp, options.tls, &wake))?;
        server.accepting = Some(accepting);
        let Common { shared, loops } = server.common.clone();
        let end_idle = move || {
            if let Some(limit) = shared.access.idle_limit() {
                loops.iter().for_each(|one| one.end_idle(limit));
            }
        };
        server.sweeping = Some(Sweeping::start(server.common.shared.clone(), end_idle)?);
        Ok(server)
    }

    /// Returns the path of the Unix socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the TCP address with the actual port.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.common.shared.access.tcp()
    }
    /// Ends every connection after its current command, and removes the socket. The server does
    /// not sync: data that clients have written stays buffered or durable as it was.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.common.shared.stopping.store(true, Relaxed);
        self.common.shared.scripts.close();
        self.common.shared.pause.end();
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        self.sweeping = None;
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.common.loops.iter().for_each(|one| one.stop());
        self.common.loops.iter().for_each(|one| one.wait_for_end());
        self.common.shared.tracking.wait_for_end();
    }
}

/// Accepts connections until `wake` is readable. The socket is removed when this thread ends.
fn accept(
    common: &Common,
    socket: PrivateSocket,
    tcp: Option<TcpListener>,
    tls: Option<Tls>,
    wake: &OwnedFd,
) {
    loop {
        let mut polled =
            vec![PollFd::new(wake, PollFlags::IN), PollFd::new(&socket.listener, PollFlags::IN)];
        if let Some(tcp) = &tcp {
            polled.push(PollFd::new(tcp, PollFlags::IN));
        }
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!("the RESP server takes no more connections: poll failed: {error}");
                return;
            }
        }
        if common.shared.stopping.load(Relaxed) {
            return;
        }
        let unix =
            || socket.listener.accept().map(|(s, _)| (Stream::Unix(s), "unix".to_string(), false));
        take_all(common, unix);
        if let Some(tcp) = &tcp {
            take_all(common, || {
                let (stream, address) = tcp.accept()?;
                let stream = match &tls {
                    None => Stream::Tcp(stream),
                    Some(tls) => {
                        Stream::Tls(tls.relay(stream, common.shared.limits.write_timeout)?)
                    }
                };
                Ok((stream, address.to_string(), true))
            });
        }
    }
}

fn take_all(common: &Common, mut next: impl FnMut() -> io::Result<(Stream, String, bool)>) {
    loop {
        match next() {
            Ok((stream, address, needs_password)) => {
                welcome(common, stream, address, needs_password)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error)
                if error.kind() == io::ErrorKind::Interrupted
                    || error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // The process may be out of descriptors. The connection stays in the kernel's
                // backlog; without a pause this loop would spin.
                tracing::warn!("could not accept a RESP connection: {error}");
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
        }
    }
}

fn welcome(common: &Common, stream: Stream, address: String, needs_password: bool) {
    let shared = &common.shared;
    let metrics = &shared.metrics;
    metrics.accepted.fetch_add(1, Relaxed);
    if let Err(error) = stream.prepare(shared.limits.write_timeout) {
        tracing::warn!("could not set up a RESP connection: {error}");
        return;
    }
    // No other thread adds connections, so the check is not a race.
    if metrics.connected.load(Relaxed) >= shared.access.most_connections() as u64 {
        metrics.rejected.fetch_add(1, Relaxed);
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
        return;
    }
    let Some(serving) = common.loops.iter().min_by_key(|one| one.connections()) else { return };
    let (user, process) = (stream.user(), stream.process());
    let stream = Arc::new(stream);
    let give_way = {
        let serving = serving.clone();
        Box::new(move || serving.give_way())
    };
    let conversation = Conversation::new(
        shared.clone(),
        Box::new(StreamSink::new(stream.clone(), shared, give_way)),
        address,
        needs_password,
    );
    let conversation = Box::new(conversation.with(user, process));
    if let Err(error) = serving.add(stream, conversation) {
        tracing::warn!("could not serve a RESP connection: {error}");
    }
}

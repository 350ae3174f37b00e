//! The server: one thread that accepts, one for each connection.
//!
//! A request is run by the thread that read it, because waking another one costs more than most
//! requests do.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use kvdb::Kvdb;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::bell::Bell;
use crate::clients::Closer;
use crate::commands;
use crate::conversation::Conversation;
use crate::error::Error;
use crate::limits::Limits;
use crate::output::Sink;
use crate::scripts::Scripts;
use crate::session::{Check, Describe, InfoSource, Shared};
use crate::socket::PrivateSocket;
use crate::sweeper::Sweeping;
use crate::transactions::{Snapshots, Transactions};

/// How long a connection sleeps at most where it has no descriptor to wait with.
const LOOK: Duration = Duration::from_millis(50);

/// What the server is asked to be.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// What TCP clients must show with `AUTH` or `HELLO`. The Unix socket asks for none: its mode
    /// lets only the owner in, who may read the store's file as well.
    pub password: Option<String>,
    /// Serve this TCP address, too; port 0 takes a free one (`Server::tcp_address`). Needs a
    /// password.
    pub tcp: Option<SocketAddr>,
    /// Connections start with `DURABLE yes`: each write is on disk before its reply.
    pub durable: bool,
    /// What clients may use at most.
    pub limits: Limits,
    /// The command that starts a process for scripts (`kvdb_lua::run_worker`), program and
    /// arguments; `None`: there are no scripts. Each gets a socket as standard input.
    pub scripts: Option<Vec<OsString>>,
    /// Who begins and ends transactions; `None`: the store itself.
    pub transactions: Option<Arc<dyn Transactions>>,
    /// Who makes snapshots and clones; `None`: the store itself.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// The store's statistics as a JSON object, for `INFO` and `KVFS.STAT`.
    pub info: Option<InfoSource>,
    /// Says what keys are, for `SCRUB FAULTS`.
    pub describe: Option<Describe>,
    /// Checks what the owner of the store keeps there, for `KVFS.CHECK`.
    pub check: Option<Check>,
}

/// A running server. Dropped, it stops: connections end, the socket disappears.
pub struct Server {
    common: Arc<Common>,
    path: PathBuf,
    wake: Arc<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
    sweeping: Option<Sweeping>,
}

/// What the threads share.
struct Common {
    shared: Arc<Shared>,
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
    /// Signalled when the last connection is gone.
    empty: Condvar,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Unix(s) => (&*s).write_all(bytes),
            Stream::Tcp(s) => (&*s).write_all(bytes),
        }
    }
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => (&*s).read(buffer),
            Stream::Tcp(s) => (&*s).read(buffer),
        }
    }
    /// The user of the system at the other end.
    fn user(&self) -> Option<u32> {
        match self {
            Stream::Unix(s) => {
                rustix::net::sockopt::socket_peercred(s).ok().map(|peer| peer.uid.as_raw())
            }
            Stream::Tcp(_) => None,
        }
    }
    fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Stream::Unix(s) => s.shutdown(how),
            Stream::Tcp(s) => s.shutdown(how),
        };
    }
    fn prepare(&self, write_timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(s) => {
                s.set_nonblocking(false)?;
                s.set_write_timeout(Some(write_timeout))
            }
            Stream::Tcp(s) => {
                s.set_nonblocking(false)?;
                s.set_nodelay(true)?;
                s.set_write_timeout(Some(write_timeout))
            }
        }
    }
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.set_read_timeout(Some(timeout)),
            Stream::Tcp(s) => s.set_read_timeout(Some(timeout)),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) => s.as_fd(),
            Stream::Tcp(s) => s.as_fd(),
        }
    }
}

struct ToStream(Arc<Stream>);

impl Sink for ToStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
    fn is_gone(&self) -> bool {
        // What it has sent before may still have to be read.
        let mut polled = [PollFd::new(&*self.0, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }
    fn wait(&self, bell: &Bell, at_most: Option<Duration>) {
        // Half a connection is none: the client's next bytes may wait, but not its end.
        listen(&self.0, PollFlags::RDHUP, bell, at_most);
    }
    fn closer(&self) -> Option<Closer> {
        let stream = Arc::downgrade(&self.0);
        Some(Box::new(move || {
            if let Some(stream) = stream.upgrade() {
                stream.shutdown(Shutdown::Both);
            }
        }))
    }
}

/// What was heard first.
enum Heard {
    Bell,
    /// What was listened for, or the stream has ended.
    Stream,
    Nothing,
}

/// Listens for `what` of the stream, for its end, and for the bell.
fn listen(stream: &Stream, what: PollFlags, bell: &Bell, at_most: Option<Duration>) -> Heard {
    let rings = bell.descriptor().ok();
    if bell.take() {
        return Heard::Bell;
    }
    let mut polled = vec![PollFd::new(stream, what)];
    polled.extend(rings.as_ref().map(|rings| PollFd::new(rings, PollFlags::IN)));
    // Out of descriptors: the bell is heard a little later.
    let at_most =
        if rings.is_none() { Some(at_most.map_or(LOOK, |t| t.min(LOOK))) } else { at_most };
    let at_most = at_most.and_then(|time| time.try_into().ok());
    let found = rustix::event::poll(&mut polled, at_most.as_ref());
    if bell.take() {
        Heard::Bell
    } else if found.is_ok() && !polled[0].revents().is_empty() {
        Heard::Stream
    } else {
        Heard::Nothing
    }
}

impl Server {
    /// Serves `db` on a Unix socket at `path`, mode 0600. A dead server's socket there is replaced;
    /// a living one's is an error.
    pub fn start(db: Kvdb, path: &Path, options: ServerOptions) -> Result<Server, Error> {
        if options.tcp.is_some() && options.password.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::NoPassword);
        }
        let mut shared = Shared::new(
            db,
            options.limits,
            options.password,
            options.durable,
            options.info,
            commands::metrics(),
        );
        shared.describe = options.describe;
        shared.check = options.check;
        shared.scripts = Scripts::new(options.scripts, &shared.limits);
        if let Some(transactions) = options.transactions {
            shared.transactions = transactions;
        }
        if let Some(snapshots) = options.snapshots {
            shared.snapshots = snapshots;
        }
        let tcp = match options.tcp {
            None => None,
            Some(address) => {
                let failed = |error| Error::Tcp { address, error };
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                shared.tcp = Some(listener.local_addr().map_err(failed)?);
                Some(listener)
            }
        };
        shared.socket = path.to_string_lossy().into_owned();
        let socket = PrivateSocket::listen(path)?;
        let wake =
            Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let common = Arc::new(Common {
            shared: Arc::new(shared),
            streams: Mutex::default(),
            empty: Condvar::new(),
        });
        let accepting = {
            let (common, wake) = (common.clone(), wake.clone());
            std::thread::Builder::new()
                .name("resp-accept".into())
                .spawn(move || accept(&common, socket, tcp, &wake))?
        };
        let sweeping = Some(Sweeping::start(common.shared.clone())?);
        Ok(Server { common, path: path.into(), wake, accepting: Some(accepting), sweeping })
    }

    /// The path of the Unix socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The TCP address, its port filled in.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.common.shared.tcp
    }
    /// Ends every connection, after the command that it is at, and removes the socket. What clients
    /// wrote stays buffered or durable as it was.
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
        let mut streams = self.common.streams.lock();
        for stream in streams.values() {
            stream.shutdown(Shutdown::Both);
        }
        while !streams.is_empty() {
            self.common.empty.wait(&mut streams);
        }
    }
}

/// Accepts until `wake` is readable. The socket goes with this thread.
fn accept(common: &Arc<Common>, socket: PrivateSocket, tcp: Option<TcpListener>, wake: &OwnedFd) {
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
                tcp.accept().map(|(s, address)| (Stream::Tcp(s), address.to_string(), true))
            });
        }
    }
}

fn take_all(common: &Arc<Common>, mut next: impl FnMut() -> io::Result<(Stream, String, bool)>) {
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
                // Out of descriptors, say. The connection stays in the backlog; without a pause
                // this would spin.
                tracing::warn!("could not accept a RESP connection: {error}");
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
        }
    }
}

fn welcome(common: &Arc<Common>, stream: Stream, address: String, needs_password: bool) {
    let shared = &common.shared;
    let metrics = &shared.metrics;
    metrics.accepted.fetch_add(1, Relaxed);
    if let Err(error) = stream.prepare(shared.limits.write_timeout) {
        tracing::warn!("could not set up a RESP connection: {error}");
        return;
    }
    let stream = Arc::new(stream);
    let mut streams = common.streams.lock();
    if streams.len() >= shared.limits.connections {
        metrics.rejected.fetch_add(1, Relaxed);
        drop(streams);
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
        return;
    }
    let conversation = Conversation::new(
        shared.clone(),
        Box::new(ToStream(stream.clone())),
        address,
        needs_password,
    );
    let conversation = conversation.with(stream.user());
    let id = conversation.id();
    streams.insert(id, stream.clone());
    metrics.connected.store(streams.len() as u64, Relaxed);
    drop(streams);
    let thread = std::thread::Builder::new().name(format!("resp-{id}")).stack_size(1 << 20);
    let guard = Leave { common: common.clone(), id };
    if let Err(error) = thread.spawn(move || {
        let guard = guard;
        serve(&guard.common, &stream, conversation);
    }) {
        tracing::warn!("could not start a thread for a RESP connection: {error}");
    }
}

/// Takes a connection out of the list when its thread ends, however it ends.
struct Leave {
    common: Arc<Common>,
    id: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut streams = self.common.streams.lock();
        streams.remove(&self.id);
        self.common.shared.metrics.connected.store(streams.len() as u64, Relaxed);
        if streams.is_empty() {
            self.common.empty.notify_all();
        }
    }
}

fn serve(common: &Common, stream: &Arc<Stream>, mut conversation: Conversation) {
    loop {
        if let Some(bell) = conversation.bell() {
            match listen(stream, PollFlags::IN, bell, None) {
                Heard::Stream => {}
                Heard::Nothing => continue,
                Heard::Bell if conversation.deliver() => continue,
                Heard::Bell => break,
            }
        }
        let Some(input) = conversation.input() else { break };
        let got = match rustix::io::read(&**stream, rustix::buffer::spare_capacity(input)) {
            Ok(0) => return,
            Ok(got) => got,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        common.shared.metrics.bytes_in.fetch_add(got as u64, Relaxed);
        if !conversation.process() {
            break;
        }
        if common.shared.stopping.load(Relaxed) {
            return;
        }
    }
    drop(conversation);
    linger(stream);
}

/// Closes so that the client gets the last reply even where it is still sending: what it sends is
/// read and dropped, for a moment.
fn linger(stream: &Stream) {
    stream.shutdown(Shutdown::Write);
    if stream.set_read_timeout(Duration::from_millis(200)).is_err() {
        return;
    }
    let mut dropped = [0; 4096];
    for _ in 0..4096 {
        if !matches!(stream.read(&mut dropped), Ok(got) if got > 0) {
            return;
        }
    }
}

//! The connection to the kernel and the threads that answer on it.
//!
//! Each thread reads one request at a time from its own clone of the connection, answers it and reads the next: no queue and no
//! hand-over between threads, for waking another thread costs more than most answers. Only requests that wait for the disk are
//! let out of the way (`waiting`). The connection ends when the kernel says that the file system is gone.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::io::Errno as Os;

use crate::counters::Request;
use crate::handler::{Errno, Handler, Ino, Invalidator};
use crate::transport::{Desk, Outcome, Transport};
use crate::waiting::WaitingRoom;
use crate::wire;

/// Opcode of the first request on a connection.
const INIT: u32 = 26;

/// The threads of one mount.
pub(crate) struct Session {
    connection: Arc<OwnedFd>,
    /// What the kernel has offered.
    offered: u64,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// Answers INIT on a connection that was just mounted, then starts the threads.
    pub fn start<H: Handler>(connection: OwnedFd, transport: Transport<H>, threads: usize, max_write: u32) -> io::Result<Session> {
        let mut buffer = vec![0; max_write as usize + wire::REQUEST_ROOM];
        let offered = greet(&connection, &transport, &mut buffer)?;
        let connection = Arc::new(connection);
        let transport = Arc::new(transport);
        let room = Arc::new(WaitingRoom::default());
        let mut session = Session { connection: connection.clone(), offered, threads: Vec::new() };
        for i in 0..threads.max(1) {
            // Without the right to open the device there is one connection, and all share it.
            let own = if i == 0 { None } else { clone_of(&connection).ok() };
            let connection = own.map_or_else(|| connection.clone(), Arc::new);
            let (transport, room) = (transport.clone(), room.clone());
            let mut buffer = std::mem::take(&mut buffer);
            buffer.resize(max_write as usize + wire::REQUEST_ROOM, 0);
            let thread = std::thread::Builder::new().name(format!("fuse-{i}"));
            session.threads.push(thread.spawn(move || serve(&connection, &transport, &room, &mut buffer))?);
        }
        Ok(session)
    }

    /// How many threads answer.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    pub fn invalidator(&self) -> KernelCache {
        KernelCache { connection: self.connection.clone(), expires: self.offered & wire::init::HAS_EXPIRE_ONLY != 0 }
    }

    /// Returns when the kernel has ended the connection and every thread has come home. The first error wins.
    pub fn wait(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            // Every thread is waited for, whatever the others said.
            outcome = outcome.and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        }
        outcome
    }
}

/// Reads the kernel's INIT and answers it; gives what the kernel offered.
fn greet<H: Handler>(connection: &OwnedFd, transport: &Transport<H>, buffer: &mut [u8]) -> io::Result<u64> {
    let length = next(connection, buffer)?.ok_or(io::ErrorKind::NotConnected)?;
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "the kernel did not begin with INIT");
    let (head, fields) = wire::head(&buffer[..length]).map_err(|_| broken())?;
    if head.opcode != INIT {
        return Err(broken());
    }
    let mut desk = Desk::default();
    let answered = transport.init(fields, &mut desk);
    let error = answered.err().map_or(0, |e| e.0);
    send(connection, head.unique, -error, &desk.answer.0)?;
    answered.map_err(|e| io::Error::from_raw_os_error(e.0))
}

fn serve<H: Handler>(
    connection: &Arc<OwnedFd>,
    transport: &Arc<Transport<H>>,
    room: &Arc<WaitingRoom>,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut desk = Desk::default();
    let broken = |_| io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a broken request");
    while let Some(length) = next(connection, buffer)? {
        let (head, fields) = wire::head(&buffer[..length]).map_err(broken)?;
        if !Request::of(head.opcode).waits_for_the_disk() {
            answer(connection, transport, &head, fields, &mut desk);
            continue;
        }
        // An answer must go to the connection that its request came from.
        let (connection, transport, message) = (connection.clone(), transport.clone(), buffer[..length].to_vec());
        room.admit(move || {
            // It was decoded above.
            if let Ok((head, fields)) = wire::head(&message) {
                answer(&connection, &transport, &head, fields, &mut Desk::default());
            }
        });
    }
    Ok(())
}

/// Has one request dispatched and sends its answer.
fn answer<H: Handler>(
    connection: &OwnedFd,
    transport: &Transport<H>,
    head: &wire::Head,
    fields: wire::Fields<'_>,
    desk: &mut Desk,
) {
    let sent = match transport.dispatch(head, fields, desk) {
        Outcome::Nothing => Ok(()),
        Outcome::Error(Errno(e)) => send(connection, head.unique, -e, &[]),
        Outcome::Answer => send(connection, head.unique, 0, &desk.answer.0),
        Outcome::Data(data) => send(connection, head.unique, 0, &data),
    };
    match sent {
        Ok(()) => {}
        // The request was interrupted and is forgotten, or the connection is gone; the next read knows.
        Err(Os::NOENT | Os::NODEV | Os::CONNABORTED) => transport.take_back(desk),
        Err(e) => {
            transport.take_back(desk);
            tracing::error!("the kernel did not take the answer to {head:?}: {e}");
        }
    }
}

/// The next request's length in `buffer`; `None`: the file system is unmounted.
fn next(connection: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(connection, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            // NOENT: the request was interrupted before we had it.
            Err(Os::INTR | Os::AGAIN | Os::NOENT) => {}
            Err(Os::NODEV | Os::CONNABORTED) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// An answer, or (with `unique` 0) a message that no request asked for. `error`: 0 or a negative error number, or a message's code.
fn send(connection: impl AsFd, unique: u64, error: i32, body: &[u8]) -> rustix::io::Result<()> {
    let mut head = [0; wire::OUT_HEADER];
    head[..4].copy_from_slice(&((wire::OUT_HEADER + body.len()) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&error.to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    // The kernel takes an answer whole or not at all.
    if body.is_empty() {
        rustix::io::write(connection, &head).map(drop)
    } else {
        rustix::io::writev(connection, &[IoSlice::new(&head), IoSlice::new(body)]).map(drop)
    }
}

/// A second connection to the same mount, with a queue of its own for requests under way.
fn clone_of(connection: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = File::options().read(true).write(true).open("/dev/fuse")?;
    // FUSE_DEV_IOC_CLONE: _IOR(229, 0, uint32_t), the argument points to the number of the descriptor to join.
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    // SAFETY: this ioctl on /dev/fuse only reads the u32 it is given, which lives until the call returns.
    unsafe {
        let join = rustix::ioctl::Setter::<CLONE, u32>::new(connection.as_raw_fd() as u32);
        rustix::ioctl::ioctl(&clone, join)?;
    }
    Ok(clone.into())
}

/// Messages that make the kernel drop what it caches.
pub(crate) struct KernelCache {
    connection: Arc<OwnedFd>,
    /// The kernel can ask about an entry anew without tearing it out.
    expires: bool,
}

impl KernelCache {
    fn tell(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match send(&*self.connection, 0, code, body) {
            // It had nothing cached.
            Ok(()) | Err(Os::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Invalidator for KernelCache {
    fn entry(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        let mut body = wire::Answer::default();
        let flags = if self.expires { wire::INVAL_ENTRY_EXPIRE } else { 0 };
        body.u64(parent).u32(name.len() as u32).u32(flags);
        body.0.extend_from_slice(name);
        body.0.push(0);
        self.tell(wire::NOTIFY_INVAL_ENTRY, &body.0)
    }

    fn inode(&self, ino: Ino) -> io::Result<()> {
        // Offset 0 and length 0: all of it.
        let mut body = wire::Answer::default();
        body.u64(ino).u64(0).u64(0);
        self.tell(wire::NOTIFY_INVAL_INODE, &body.0)
    }

    fn grown(&self, ino: Ino, size: u64) -> io::Result<()> {
        // Stores nothing, at the new end.
        let mut body = wire::Answer::default();
        body.u64(ino).u64(size).u32(0).u32(0);
        self.tell(wire::NOTIFY_STORE, &body.0)
    }
}

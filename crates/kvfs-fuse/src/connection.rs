//! The connection to the kernel: requests are read from it, and answers and invalidations are
//! written to it. Both transports of requests (`session`, `queues`) use this module.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno as Os;

use crate::dispatcher::{Dispatcher, Outcome, ReplyBuffer};
use crate::handler::{Handler, Invalidator, NodeId};
use crate::wire;

/// Dispatches one request, and sends the kernel all notifications that must precede the answer.
pub(crate) fn dispatch<H: Handler>(
    connection: &OwnedFd,
    dispatcher: &Dispatcher<H>,
    head: &wire::Head,
    fields: wire::Fields<'_>,
    reply: &mut ReplyBuffer,
    read_buffer: &mut [u8],
) -> Outcome {
    let outcome = dispatcher.dispatch(head, fields, reply, read_buffer);
    // The message is sent before the answer, since the receiver of the answer may rely on it.
    for &node in &reply.stale_attributes {
        if let Err(e) = forget_attributes(connection, node) {
            tracing::warn!(
                %node,
                "the kernel may go on with a set-user-ID bit that is gone: it did not take word of it: {e}"
            );
        }
    }
    outcome
}

/// Reads the next request into `buffer` and returns its length, or 0 if a signal has ended the
/// call. Returns `None` if the file system is unmounted.
pub(crate) fn next(connection: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(connection, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(Os::INTR) => return Ok(Some(0)),
            // The kernel reports NOENT if the request was interrupted before it was read.
            Err(Os::AGAIN | Os::NOENT) => {}
            Err(Os::NODEV | Os::CONNABORTED) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sends an answer, or (with `unique` 0) a message that does not answer a request. `error` is 0, a
/// negative error number, or the code of a message.
pub(crate) fn send(
    connection: impl AsFd,
    unique: u64,
    error: i32,
    body: &[u8],
) -> rustix::io::Result<()> {
    let mut head = [0; wire::OUT_HEADER];
    head[..4].copy_from_slice(&((wire::OUT_HEADER + body.len()) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&error.to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    // The kernel accepts an answer as a whole or not at all.
    if body.is_empty() {
        rustix::io::write(connection, &head).map(drop)
    } else {
        rustix::io::writev(connection, &[IoSlice::new(&head), IoSlice::new(body)]).map(drop)
    }
}

/// Returns a second connection to the same mount, with a separate queue for the requests that are
/// in progress.
pub(crate) fn clone_of(connection: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = File::options().read(true).write(true).open("/dev/fuse")?.into();
    join(&clone, connection)?;
    Ok(clone)
}

/// Makes a descriptor of the device that belongs to no mount join a connection.
pub(crate) fn join(clone: &OwnedFd, connection: &OwnedFd) -> io::Result<()> {
    // FUSE_DEV_IOC_CLONE is _IOR(229, 0, uint32_t). Its argument points to the number of the
    // descriptor to join.
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    // SAFETY: this ioctl on /dev/fuse only reads the u32 argument, which lives until the call
    // returns.
    unsafe {
        let join = rustix::ioctl::Setter::<CLONE, u32>::new(connection.as_raw_fd() as u32);
        rustix::ioctl::ioctl(clone, join)?;
    }
    Ok(())
}

/// Messages that make the kernel drop cached data.
pub(crate) struct DeviceInvalidator {
    connection: Arc<OwnedFd>,
    /// The kernel supports messages that make it look up an entry again without tearing it out.
    expires: bool,
}

impl DeviceInvalidator {
    pub fn new(connection: Arc<OwnedFd>, expires: bool) -> DeviceInvalidator {
        DeviceInvalidator { connection, expires }
    }

    fn tell(&self, code: i32, body: &[u8]) -> io::Result<()> {
        tell(&self.connection, code, body)
    }
}

fn tell(connection: &OwnedFd, code: i32, body: &[u8]) -> io::Result<()> {
    match send(connection, 0, code, body) {
        // The kernel had nothing cached.
        Ok(()) | Err(Os::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Makes the kernel request attributes again. The kernel takes no lock of the inode for this
/// message, so a thread that answers requests may send it.
fn forget_attributes(connection: &OwnedFd, node: NodeId) -> io::Result<()> {
    let mut body = wire::Answer::default();
    // A negative offset means no pages.
    body.node(node).u64(-1_i64 as u64).u64(0);
    tell(connection, wire::NOTIFY_INVAL_INODE, &body.0)
}

impl DeviceInvalidator {
    fn invalidate_entry(&self, parent: NodeId, name: &[u8], flags: u32) -> io::Result<()> {
        let mut body = wire::Answer::default();
        body.node(parent).u32(name.len() as u32).u32(flags);
        body.0.extend_from_slice(name);
        body.0.push(0);
        self.tell(wire::NOTIFY_INVAL_ENTRY, &body.0)
    }
}

impl Invalidator for DeviceInvalidator {
    fn expire_name(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        self.invalidate_entry(parent, name, if self.expires { wire::INVAL_ENTRY_EXPIRE } else { 0 })
    }

    fn remove_name(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        self.invalidate_entry(parent, name, 0)
    }

    fn invalidate_inode(&self, node: NodeId) -> io::Result<()> {
        // Offset 0 and length 0 mean the whole file.
        let mut body = wire::Answer::default();
        body.node(node).u64(0).u64(0);
        self.tell(wire::NOTIFY_INVAL_INODE, &body.0)
    }

    fn extend_to(&self, node: NodeId, size: u64, last: u8) -> io::Result<()> {
        // An empty message would not move the end: the kernel extends a file only together with the
        // bytes before the new end.
        let Some(at) = size.checked_sub(1) else { return Ok(()) };
        let mut body = wire::Answer::default();
        body.node(node).u64(at).u32(1).u32(0);
        body.0.push(last);
        self.tell(wire::NOTIFY_STORE, &body.0)
    }
}

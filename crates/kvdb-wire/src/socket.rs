//! The transport of frames: a connection on which several threads read and write. It is a connected
//! Unix socket, or anything else that carries bytes in order.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// One end of a connection.
pub trait Transport: Send + Sync {
    /// Reads some bytes. Returns 0 at the end of the stream. Fails with `WouldBlock` once the time
    /// limit of reads has passed.
    fn read(&self, room: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes, and returns the number of them. Fails with `WouldBlock` once the time
    /// limit of writes has passed.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends the connection, so that reads and writes of both ends return.
    fn end(&self);

    /// Returns whether the other end has ended the connection, even if nothing has been read up to
    /// there. A transport that cannot know it returns `false`.
    fn has_ended(&self) -> bool {
        false
    }

    /// Sets the time after which a read fails. `None` means no limit.
    fn limit_reads(&self, time: Option<Duration>) -> io::Result<()>;

    /// Sets the time after which a write fails. `None` means no limit.
    fn limit_writes(&self, time: Option<Duration>) -> io::Result<()>;
}

impl Transport for UnixStream {
    fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(room)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(bytes)
    }

    fn end(&self) {
        // Ignore the error of a connection that has already ended.
        let _ = self.shutdown(Shutdown::Both);
    }

    fn has_ended(&self) -> bool {
        let mut on = [PollFd::new(self, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut on, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    fn limit_reads(&self, time: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(time)
    }

    fn limit_writes(&self, time: Option<Duration>) -> io::Result<()> {
        self.set_write_timeout(time)
    }
}

/// A connection. Its clones share it, and it is closed when the last of them is dropped.
#[derive(Clone)]
pub struct Socket(Arc<dyn Transport>);

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket::over(stream)
    }
}

impl Socket {
    /// Returns a connection over this transport.
    pub fn over(transport: impl Transport + 'static) -> Socket {
        Socket(Arc::new(transport))
    }

    /// Connects to the server that listens at this path. The queue of a server that accepts no
    /// connections is full after a while; then this waits for at most `time`.
    pub fn connect_unix(path: &Path, time: Duration) -> io::Result<Socket> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The time limit of writes also applies to connecting.
        let time = time.max(Duration::from_millis(1));
        net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Send, Some(time))?;
        rustix::io::retry_on_intr(|| net::connect(&socket, &address))?;
        Ok(UnixStream::from(socket).into())
    }

    /// Ends the connection for all its users: their reads and writes return.
    pub fn end(&self) {
        self.0.end();
    }

    /// Returns whether the other end has ended the connection, as far as that is known.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Sets the time after which a read fails.
    pub fn limit_reads(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.limit_reads(time)
    }

    /// Sets the time after which a write fails, because the other side does not read.
    pub fn limit_writes(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.limit_writes(time)
    }
}

impl Read for Socket {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

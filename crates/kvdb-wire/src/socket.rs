//! Frames come and go on this: a connection, on which several threads read and write. That is a
//! connected Unix socket, or whatever else carries bytes in their order.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// One end of a connection.
pub trait Transport: Send + Sync {
    /// Reads some bytes; none at the end. After the limit of reads the error is `WouldBlock`.
    fn read(&self, room: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes, and returns how many. After the limit of writes the error is
    /// `WouldBlock`.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends the connection: reads and writes of both ends return.
    fn end(&self);

    /// A read that takes longer fails. `None`: it takes as long as it may.
    fn limit_reads(&self, time: Option<Duration>) -> io::Result<()>;

    /// A write that takes longer fails.
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
        // It may have ended by itself.
        let _ = self.shutdown(Shutdown::Both);
    }

    fn limit_reads(&self, time: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(time)
    }

    fn limit_writes(&self, time: Option<Duration>) -> io::Result<()> {
        self.set_write_timeout(time)
    }
}

/// A connection. Clones are the same one, which is closed with the last of them.
#[derive(Clone)]
pub struct Socket(Arc<dyn Transport>);

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket::over(stream)
    }
}

impl Socket {
    /// A connection over this.
    pub fn over(transport: impl Transport + 'static) -> Socket {
        Socket(Arc::new(transport))
    }

    /// Connects to the server that listens under this name. One that accepts no connection has a
    /// full queue of them after a while, and is waited for so long.
    pub fn connect_unix(path: &Path, time: Duration) -> io::Result<Socket> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The limit of writes is that of connecting, too.
        let time = time.max(Duration::from_millis(1));
        net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Send, Some(time))?;
        rustix::io::retry_on_intr(|| net::connect(&socket, &address))?;
        Ok(UnixStream::from(socket).into())
    }

    /// Ends the connection for all that use it: their reads and writes return.
    pub fn end(&self) {
        self.0.end();
    }

    /// A read that takes longer fails.
    pub fn limit_reads(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.limit_reads(time)
    }

    /// A write that takes longer fails: the other side does not read.
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

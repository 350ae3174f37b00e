//! Frames come and go on this: a connected Unix socket, on which several threads read and write.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A connected socket. Clones are the same, which is closed with the last of them.
#[derive(Clone, Debug)]
pub struct Socket(Arc<UnixStream>);

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket(Arc::new(stream))
    }
}

impl Socket {
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
        // It may have ended by itself.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// A read that takes longer fails.
    pub fn limit_reads(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(time)
    }

    /// A write that takes longer fails: the other side does not read.
    pub fn limit_writes(&self, time: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(time)
    }
}

impl Read for Socket {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(room)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

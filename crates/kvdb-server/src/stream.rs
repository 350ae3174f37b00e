//! The socket of a client.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::peer;

/// Time for which data of a client is read and dropped after its connection has ended.
const LINGER: Duration = Duration::from_secs(1);

/// A client's socket.
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    /// The local end of a pair whose other end a thread relays to a client over TLS.
    Tls(UnixStream),
}

/// The result of a non-blocking read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes have arrived.
    Bytes(usize),
    /// No bytes have arrived yet.
    Nothing,
    /// The client has closed the connection, or it is broken.
    End,
}

impl Stream {
    /// Prepares an accepted socket. A write that makes no progress for `write_timeout` fails.
    pub fn prepare(&self, write_timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(s) | Stream::Tls(s) => {
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

    /// Returns the user of the process at the other end.
    pub fn user(&self) -> Option<u32> {
        match self {
            Stream::Unix(s) => peer::user(s).ok(),
            Stream::Tcp(_) | Stream::Tls(_) => None,
        }
    }

    /// Returns the process at the other end, with its number in this PID namespace.
    pub fn process(&self) -> Option<i32> {
        match self {
            Stream::Unix(s) => {
                let peer = rustix::net::sockopt::socket_peercred(s).ok()?;
                Some(peer.pid.as_raw_nonzero().get())
            }
            Stream::Tcp(_) | Stream::Tls(_) => None,
        }
    }

    /// Appends the bytes that have arrived, up to the capacity of `input`, without waiting.
    pub fn receive(&self, input: &mut Vec<u8>) -> Received {
        match rustix::net::recv(self, spare_capacity(input), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Received::End,
            Ok((_, got)) => Received::Bytes(got),
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// Writes as many bytes as the socket accepts without blocking, and returns their number.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(self, &bytes[sent..], flags) {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    /// Writes all bytes, and waits for the client if necessary.
    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Unix(s) | Stream::Tls(s) => (&*s).write_all(bytes),
            Stream::Tcp(s) => (&*s).write_all(bytes),
        }
    }

    pub fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Stream::Unix(s) | Stream::Tls(s) => s.shutdown(how),
            Stream::Tcp(s) => s.shutdown(how),
        };
    }

    /// Closes the connection in such a way that the client receives the last reply even if it is
    /// still sending: its data is read and dropped for a short time.
    pub fn linger(&self) {
        let until = Instant::now() + LINGER;
        self.shutdown(Shutdown::Write);
        let timeout = Some(Duration::from_millis(200));
        let limited = match self {
            Stream::Unix(s) | Stream::Tls(s) => s.set_read_timeout(timeout),
            Stream::Tcp(s) => s.set_read_timeout(timeout),
        };
        if limited.is_err() {
            return;
        }
        let mut dropped = [0; 4096];
        while Instant::now() < until {
            let read = match self {
                Stream::Unix(s) | Stream::Tls(s) => (&*s).read(&mut dropped),
                Stream::Tcp(s) => (&*s).read(&mut dropped),
            };
            if !matches!(read, Ok(got) if got > 0) {
                return;
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) | Stream::Tls(s) => s.as_fd(),
            Stream::Tcp(s) => s.as_fd(),
        }
    }
}

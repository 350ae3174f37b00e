//! Deadlines: a call has one deadline, which limits all of its waits. A socket limits each read and
//! each write separately, so a peer that sends a byte from time to time would never exceed that
//! limit. Therefore the limit is set before each of them to the time that remains.

use std::io::{self, Read, Write};
use std::time::Duration;

use env::Instant;

use crate::socket::Socket;

/// Returns the time until a deadline, or an error if it has passed.
pub fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "there was no answer in time")),
        false => Ok(left),
    }
}

/// A socket whose reads or writes fail after a deadline, if there is one.
pub struct Until {
    pub socket: Socket,
    pub deadline: Option<Instant>,
}

impl Until {
    fn limit(&self, set: impl Fn(&Socket, Option<Duration>) -> io::Result<()>) -> io::Result<()> {
        let left = self.deadline.map(left).transpose()?;
        set(&self.socket, left)
    }
}

/// Replaces the error of a socket's limit, whose message does not mention the limit.
fn in_time(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "the other side has stopped")
        }
        _ => e,
    }
}

impl Read for Until {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.limit(Socket::limit_reads)?;
        self.socket.read(room).map_err(in_time)
    }
}

impl Write for Until {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit(Socket::limit_writes)?;
        self.socket.write(bytes).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

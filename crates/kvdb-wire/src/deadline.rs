//! Deadlines: a call has one, and all that it waits for ends by it. A limit of a socket is one of
//! each read and each write, and a peer that sends a byte now and then would never meet it; so it
//! is set anew before each of them, to what is left.

use std::io::{self, Read, Write};
use std::time::Duration;

use env::Instant;

use crate::socket::Socket;

/// The time until a deadline, or the error of one that is over.
pub fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "there was no answer in time")),
        false => Ok(left),
    }
}

/// Reads or writes of a socket, which end at a deadline. `None`: there is none.
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

/// The error of a limit of a socket does not name it.
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

//! A worker as the server sees it: a process at the other end of a socket, which may do anything.

use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvdb_lua::wire::{self, Frame, Kind};

/// Why nothing came of a worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// It took too long.
    TooLong,
    /// It has ended, or said what makes no sense.
    Gone,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Broken::TooLong,
            _ => Broken::Gone,
        }
    }
}

/// Reads up to a moment.
struct Timed {
    socket: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(into)
    }
}

/// Writes up to the same moment.
impl io::Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub struct Worker {
    child: Child,
    channel: BufReader<Timed>,
}

impl Worker {
    /// Starts one. It inherits its socket as standard input, and nothing else: no environment, no
    /// other descriptor (all of this process are closed by `exec`).
    pub fn start(command: &[OsString]) -> io::Result<Worker> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| io::Error::other("there is no command"))?;
        let (socket, theirs) = UnixStream::pair()?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let until = Instant::now();
        Ok(Worker { child, channel: BufReader::with_capacity(16 << 10, Timed { socket, until }) })
    }

    /// Another handle of the socket.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.channel.get_ref().socket.try_clone()
    }
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
    /// Whether it has said something, or hung up: at rest it waits to be asked.
    pub fn has_spoken(&mut self) -> bool {
        let timed = self.channel.get_mut();
        let looked = timed.socket.set_nonblocking(true).and_then(|()| timed.socket.read(&mut [0]));
        let silent = matches!(&looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let waits = timed.socket.set_nonblocking(false).is_ok();
        !(silent && waits && self.channel.buffer().is_empty())
    }
    /// What follows is to be done by then.
    pub fn by(&mut self, until: Instant) {
        self.channel.get_mut().until = until;
    }
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Broken> {
        Ok(wire::write(self.channel.get_mut(), kind, payload)?)
    }
    /// The next message, of up to so many bytes.
    pub fn receive(&mut self, most: usize) -> Result<Frame, Broken> {
        Ok(Frame::read(&mut self.channel, most)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A process that was killed has ended, so this does not wait for long.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

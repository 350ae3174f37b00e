//! The server's side of a worker. The worker is a process at the other end of a socket, and is
//! not trusted.

use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvdb_lua::watchful::Watchful;
use kvdb_lua::wire::{self, Frame, Kind};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// The reason why a worker has not returned a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// The time limit was exceeded.
    TooLong,
    /// The worker has ended, or has sent an invalid message.
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

/// Interval at which a wait checks whether the time has elapsed.
const TICK: Duration = Duration::from_millis(20);

/// A socket with a deadline for reads and writes. The timeout of the socket itself is one tick,
/// so that it need not be set for each message.
struct Timed {
    socket: Arc<UnixStream>,
    watchful: Watchful,
    until: Instant,
}

impl Timed {
    fn over(socket: UnixStream) -> io::Result<Timed> {
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        Ok(Timed { socket: Arc::new(socket), watchful: Watchful::new(), until: Instant::now() })
    }

    /// Repeats `step` until it does not time out, or until the deadline has passed.
    fn until_time_is_up<T>(
        &self,
        mut step: impl FnMut(&UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        while Instant::now() < self.until {
            match step(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The deadline also applies to a worker that always answers at once.
        if Instant::now() < self.until
            && let Some(got) = self.watchful.receive(&*self.socket, into)?
        {
            return Ok(got);
        }
        self.until_time_is_up(|mut socket| socket.read(into))
    }
}

impl io::Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until_time_is_up(|mut socket| socket.write(bytes))
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
    /// Starts a worker. The worker inherits only its socket, as standard input. It inherits no
    /// environment and no other descriptor (`exec` closes all others of this process).
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
        Ok(Worker { child, channel: BufReader::with_capacity(16 << 10, Timed::over(socket)?) })
    }

    /// Returns the socket, through which other threads can end the worker's current work.
    pub fn socket(&self) -> Arc<UnixStream> {
        self.channel.get_ref().socket.clone()
    }
    /// Returns whether the worker is idle, which means that it has not ended, and has sent
    /// nothing since its last answer.
    pub fn is_at_rest(&self) -> bool {
        let socket = &*self.channel.get_ref().socket;
        let looked = rustix::net::recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT);
        looked.is_err_and(|error| error == Errno::AGAIN) && self.channel.buffer().is_empty()
    }
    /// Sets the deadline of the following reads and writes.
    pub fn by(&mut self, until: Instant) {
        self.channel.get_mut().until = until;
    }
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Broken> {
        Ok(wire::write(self.channel.get_mut(), kind, payload)?)
    }
    /// Receives the next message, of up to `most` bytes.
    pub fn receive(&mut self, most: usize) -> Result<Frame, Broken> {
        Ok(Frame::read(&mut self.channel, most)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A killed process ends soon, so this wait is short.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

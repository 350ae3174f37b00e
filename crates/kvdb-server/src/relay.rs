//! A relay of an encrypted connection. It passes data between the socket of the far side, which
//! carries TLS records, and one end of a pair of Unix sockets, which carries the plaintext. The
//! other end of the pair is used like any other Unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustls::Connection;

/// Time that a side may take for the TLS handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Number of bytes that are relayed at once.
const PIECE: usize = 16 << 10;

/// Performs the TLS handshake with the far side, until a deadline.
pub(crate) fn agree(
    tls: &mut Connection,
    far: &mut TcpStream,
    deadline: Instant,
) -> io::Result<()> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    let in_time = |e: io::Error| match e.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => e,
    };
    loop {
        while tls.wants_write() {
            far.set_write_timeout(left()?)?;
            tls.write_tls(far).map_err(in_time)?;
        }
        if !tls.is_handshaking() {
            return Ok(());
        }
        far.set_read_timeout(left()?)?;
        if tls.read_tls(far).map_err(in_time)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = tls.process_new_packets() {
            // The alert tells the client the reason.
            let _ = tls.write_tls(far);
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
    }
}

/// The end of an encrypted connection that the server serves.
pub struct Relayed {
    /// The plaintext of both directions.
    pub socket: UnixStream,
    /// Set once the far side has ended, even if some of its data has not been read yet.
    pub far_ended: Arc<AtomicBool>,
}

/// The sides that have ended.
#[derive(Default)]
struct Ended {
    far: bool,
    near: bool,
}

/// Passes data between the two sides until one of them has ended.
pub(crate) struct Relay {
    tls: Connection,
    far: TcpStream,
    near: UnixStream,
    /// The bytes that the far side has sent but the near side has not taken yet.
    inbound: Vec<u8>,
    /// The number of bytes in `inbound` at which the relay stops reading from the far side.
    ahead: usize,
    ended: Ended,
    far_ended: Arc<AtomicBool>,
    stall: Duration,
}

/// Converts an error that means that the socket is not ready to `None`.
fn at_once<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Relay {
    /// Makes a relay. The far side is dropped when it has taken nothing for the time `stall`.
    pub fn new(
        mut tls: Connection,
        far: TcpStream,
        near: UnixStream,
        stall: Duration,
    ) -> io::Result<Relay> {
        // The data that arrived with the end of the handshake has already been read.
        let come = tls.process_new_packets().map_err(io::Error::other)?;
        let mut inbound = vec![0; come.plaintext_bytes_to_read()];
        tls.reader().read_exact(&mut inbound)?;
        far.set_nonblocking(true)?;
        far.set_nodelay(true)?;
        near.set_nonblocking(true)?;
        let (ended, far_ended) = (Ended::default(), Arc::default());
        Ok(Relay { tls, far, near, inbound, ahead: 1, ended, far_ended, stall })
    }

    /// Lets the relay read this many bytes from the far side before the near side has taken them.
    /// The end of the far side is noticed after its earlier data.
    pub fn taking_ahead(mut self, bytes: usize) -> Relay {
        self.ahead = bytes;
        self
    }

    /// Returns a flag that is set once the far side has ended.
    pub fn far_ended(&self) -> Arc<AtomicBool> {
        self.far_ended.clone()
    }

    /// Passes data until one side has ended, and then ends the connection.
    pub fn run(mut self) {
        if let Err(error) = self.pass_on() {
            tracing::debug!("an encrypted connection has ended: {error}");
        }
        let _ = self.far.shutdown(Shutdown::Both);
    }

    fn pass_on(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            self.pass_near()?;
            self.take_far()?;
            self.take_near()?;
            self.pass_far()?;
            let answered = self.ended.near && !self.tls.wants_write();
            if answered || (self.ended.far && self.tls.is_handshaking()) {
                return Ok(());
            }
            // Data that has already arrived is passed on before the relay waits.
            if self.inbound.is_empty() || !self.pass_near()? {
                self.wait(begun)?;
            }
        }
    }

    /// Passes data to the near side. Returns `true` if the near side has taken some of it.
    fn pass_near(&mut self) -> io::Result<bool> {
        let mut taken = 0;
        while taken < self.inbound.len() {
            match at_once(self.near.write(&self.inbound[taken..])) {
                Ok(Some(more)) => taken += more,
                Ok(None) => break,
                // The peer does not read any more, but may have sent the reason.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => taken = self.inbound.len(),
                Err(e) => return Err(e),
            }
        }
        self.inbound.drain(..taken);
        if self.ended.far && self.inbound.is_empty() {
            let _ = self.near.shutdown(Shutdown::Write);
        }
        Ok(taken > 0)
    }

    fn take_far(&mut self) -> io::Result<()> {
        while self.inbound.len() < self.ahead && !self.ended.far {
            match at_once(self.tls.read_tls(&mut self.far))? {
                None => return Ok(()),
                Some(0) => self.ended.far = true,
                Some(_) => {
                    let state = match self.tls.process_new_packets() {
                        Ok(state) => state,
                        Err(error) => {
                            // The alert tells the client the reason.
                            let _ = self.tls.write_tls(&mut self.far);
                            return Err(io::Error::other(error));
                        }
                    };
                    self.ended.far = state.peer_has_closed();
                    let had = self.inbound.len();
                    self.inbound.resize(had + state.plaintext_bytes_to_read(), 0);
                    self.tls.reader().read_exact(&mut self.inbound[had..])?;
                }
            }
        }
        self.far_ended.store(self.ended.far, Ordering::Relaxed);
        if self.ended.far && self.inbound.is_empty() {
            let _ = self.near.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn take_near(&mut self) -> io::Result<()> {
        if !self.wants_near() {
            return Ok(());
        }
        let mut piece = [0; PIECE];
        match at_once(self.near.read(&mut piece))? {
            None => {}
            Some(0) => {
                self.ended.near = true;
                self.tls.send_close_notify();
            }
            Some(got) => self.tls.writer().write_all(&piece[..got])?,
        }
        Ok(())
    }

    fn pass_far(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if at_once(self.tls.write_tls(&mut self.far))?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Whether data from the near side can be accepted. It is not accepted while the far side has
    /// not taken the data before it.
    fn wants_near(&self) -> bool {
        !self.ended.near && !self.tls.wants_write() && !self.tls.is_handshaking()
    }

    /// Waits until one of the sockets can continue. Returns an error if the far side takes too
    /// long.
    fn wait(&self, begun: Instant) -> io::Result<()> {
        let (mut far, mut near) = (PollFlags::empty(), PollFlags::empty());
        far.set(PollFlags::IN, self.inbound.len() < self.ahead && !self.ended.far);
        far.set(PollFlags::OUT, self.tls.wants_write());
        near.set(PollFlags::IN, self.wants_near());
        near.set(PollFlags::OUT, !self.inbound.is_empty());
        // A socket without an awaited event may have ended, which would be reported repeatedly.
        let mut polled = Vec::with_capacity(2);
        if !far.is_empty() {
            polled.push(PollFd::new(&self.far, far));
        }
        if !near.is_empty() {
            polled.push(PollFd::new(&self.near, near));
        }
        let at_most = match (self.tls.is_handshaking(), self.tls.wants_write()) {
            (true, _) => Some(HANDSHAKE.saturating_sub(begun.elapsed())),
            (false, true) => Some(self.stall),
            (false, false) => None,
        };
        let at_most = at_most.and_then(|time| time.try_into().ok());
        match rustix::event::poll(&mut polled, at_most.as_ref()) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

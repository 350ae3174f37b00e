//! The sink of a socket. It sends replies, and keeps the replies that the client does not accept
//! at once.
//!
//! A client may send all of a pipeline before it reads the first reply. If the server waited
//! until the client reads, both would wait forever. So replies wait in a [`Backlog`] while the
//! next commands run, and an event loop sends them when the client accepts more. If there is no
//! room for more replies, the thread waits for the client, and reads its requests ahead at the
//! same time. If there is no room for these requests either, and the client accepts nothing for a
//! while, the server assumes that it never will, and ends the connection.

use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::backlog::Backlog;
use crate::bell::Bell;
use crate::clients::Closer;
use crate::output::Sink;
use crate::session::Shared;
use crate::stream::{Received, Stream};

/// Longest sleep of a connection that has no descriptor to wait for.
const LOOK: Duration = Duration::from_millis(50);
/// Interval of checks whether other connections have freed room for this client's requests.
const TICK: Duration = Duration::from_secs(1);

pub struct StreamSink {
    stream: Arc<Stream>,
    /// A function that is called before the thread waits.
    give_way: Box<dyn Fn() + Send>,
    /// Replies that the client has not taken.
    unsent: Backlog,
    /// Requests that were read while the thread waited for the client.
    ahead: Backlog,
    /// Set if the client has closed its sending side.
    ended: bool,
    /// The last time at which the client took or sent something while replies waited.
    moved: Instant,
    /// Set if the connection is ending. Data that the client sends then no longer counts as
    /// progress.
    finishes: bool,
    /// The reason why the client was dropped while a command waited.
    failed: Option<io::Error>,
    /// The value of `Limits::write_timeout`.
    patience: Duration,
    /// The value of `Limits::stall`.
    stall: Duration,
}

impl StreamSink {
    pub fn new(stream: Arc<Stream>, shared: &Shared, give_way: Box<dyn Fn() + Send>) -> Self {
        let limits = &shared.limits;
        StreamSink {
            stream,
            give_way,
            unsent: Backlog::new(limits.unsent, shared.memory.unsent().clone()),
            ahead: Backlog::new(limits.ahead, shared.memory.ahead().clone()),
            ended: false,
            moved: Instant::now(),
            finishes: false,
            failed: None,
            patience: limits.write_timeout,
            stall: limits.stall,
        }
    }

    /// Sends as many of the waiting bytes as the client accepts now.
    fn push(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let front = self.unsent.front();
            let wanted = front.len();
            let sent = self.stream.send_now(front)?;
            self.unsent.consume(sent);
            if sent > 0 {
                self.moved = Instant::now();
            }
            if sent < wanted {
                break;
            }
        }
        Ok(())
    }

    /// Reads some of the data that the client has sent, if there is room for it.
    fn read_ahead(&mut self) {
        let stream = &self.stream;
        let mut came = Received::Nothing;
        let _ = self.ahead.fill(|piece| came = stream.receive(piece));
        match came {
            Received::Bytes(_) if self.finishes => {}
            Received::Bytes(_) => self.moved = Instant::now(),
            Received::Nothing => {}
            Received::End => self.ended = true,
        }
    }

    /// Sends or keeps as many of these bytes as possible, and returns their number.
    fn offer(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        let mut sent = 0;
        if self.unsent.is_empty() {
            sent = self.stream.send_now(bytes)?;
            self.moved = if sent < bytes.len() { Instant::now() } else { self.moved };
        }
        Ok(sent + self.unsent.push(&bytes[sent..]))
    }

    /// Waits until the client takes or sends something, one of these events occurs, the bell has
    /// rung, or `at_most` has elapsed. Reads the data that has arrived, if there is room for it.
    /// Returns an error if the time of the client has elapsed.
    fn await_client(
        &mut self,
        mut events: PollFlags,
        rings: Option<BorrowedFd<'_>>,
        at_most: Option<Duration>,
    ) -> io::Result<()> {
        let full = !self.ended && !self.ahead.has_room();
        let left = self.time_left(full)?;
        events.set(PollFlags::IN, !self.ended && !full);
        events.set(PollFlags::OUT, !self.unsent.is_empty());
        let at_most = [left, at_most, full.then_some(TICK)].into_iter().flatten().min();
        let at_most = at_most.and_then(|time| Timespec::try_from(time).ok());
        let readable = {
            let mut polled = vec![PollFd::new(&*self.stream, events)];
            polled.extend(rings.as_ref().map(|rings| PollFd::new(rings, PollFlags::IN)));
            match rustix::event::poll(&mut polled, at_most.as_ref()) {
                Ok(_) => polled[0].revents().contains(PollFlags::IN),
                Err(Errno::INTR) => false,
                Err(error) => return Err(error.into()),
            }
        };
        if readable {
            self.read_ahead();
        }
        Ok(())
    }

    /// Returns the time for which the server still waits for the client, or `None` if no replies
    /// wait.
    fn time_left(&self, full: bool) -> io::Result<Option<Duration>> {
        if self.unsent.is_empty() {
            return Ok(None);
        }
        let idle = self.moved.elapsed();
        // A client that does not send either is slow. A client that does send waits until the
        // server reads.
        if full && idle >= self.stall && self.is_ready(PollFlags::IN) {
            return Err(self.in_vain(format!(
                "its client sends requests and takes no replies. {} bytes of replies and {} bytes \
                 of requests wait, and there is no room for more: it has to read while it sends",
                self.unsent.len(),
                self.ahead.len()
            )));
        }
        if idle >= self.patience {
            return Err(self.in_vain(format!(
                "its client has taken none of {} bytes of replies for {:?}",
                self.unsent.len(),
                self.patience
            )));
        }
        Ok(Some(self.patience - idle))
    }

    /// Returns the error, and closes the socket, so that the client learns at once that its data
    /// is not read any more.
    fn in_vain(&self, why: String) -> io::Error {
        self.stream.shutdown(Shutdown::Both);
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    fn is_ready(&self, events: PollFlags) -> bool {
        let mut polled = [PollFd::new(&*self.stream, events)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl Sink for StreamSink {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut sent = self.offer(bytes)?;
        if sent < bytes.len() {
            // The client is slow to take its replies.
            (self.give_way)();
        }
        while sent < bytes.len() {
            self.await_client(PollFlags::empty(), None, None)?;
            sent += self.offer(&bytes[sent..])?;
        }
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        !self.unsent.is_empty()
    }
    fn deadline(&self) -> Option<Instant> {
        self.is_waiting().then(|| self.moved + self.patience)
    }
    fn check(&self) -> io::Result<()> {
        self.time_left(false).map(drop)
    }
    fn heard(&mut self) {
        if self.is_waiting() {
            self.moved = Instant::now();
        }
    }
    fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }
    fn take_ahead(&mut self, into: &mut Vec<u8>) -> usize {
        self.ahead.take_into(into)
    }

    fn finish(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        (self.give_way)();
        self.finishes = true;
        while !self.unsent.is_empty() {
            let awaited = self.await_client(PollFlags::empty(), None, None);
            if awaited.and_then(|()| self.push()).is_err() {
                return;
            }
            // Data that the client still sends is not needed any more.
            self.ahead.clear();
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.ahead.is_empty() {
                let front = self.ahead.front();
                let taken = front.len().min(into.len());
                into[..taken].copy_from_slice(&front[..taken]);
                self.ahead.consume(taken);
                return Ok(taken);
            }
            if self.ended {
                return Ok(0);
            }
            self.await_client(PollFlags::empty(), None, None)?;
            self.push()?;
        }
    }

    fn will_wait(&self) {
        (self.give_way)();
    }

    fn is_gone(&self) -> bool {
        // Data that the client has sent before may still have to be read.
        self.failed.is_some() || self.is_ready(PollFlags::RDHUP)
    }

    fn wait(&mut self, bell: &Bell, at_most: Option<Duration>) {
        (self.give_way)();
        let rings = bell.descriptor().ok();
        let until = at_most.and_then(|time| Instant::now().checked_add(time));
        while !bell.take() && !self.is_gone() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            // The process is out of descriptors, so the ring of the bell is noticed a little
            // later.
            let look = rings.is_none().then_some(LOOK);
            let at_most = [left, look].into_iter().flatten().min();
            // A half-closed connection counts as closed. The next bytes of the client are read
            // ahead, but the end of its stream ends the wait.
            let awaited = self.await_client(PollFlags::RDHUP, rings, at_most);
            if let Err(error) = awaited.and_then(|()| self.push()) {
                self.failed = Some(error);
            }
        }
    }

    fn closer(&self) -> Option<Closer> {
        let stream = Arc::downgrade(&self.stream);
        Some(Box::new(move || {
            if let Some(stream) = stream.upgrade() {
                stream.shutdown(Shutdown::Both);
            }
        }))
    }
}

//! A client: one connection at a time, on which any number of threads ask.
//!
//! There is no thread that reads. Of those that wait for an answer, one reads frames and hands each
//! to the thread that asked for it, until its own has come; then another one of them reads. So an
//! answer is taken by the thread that waits for it, without waking another one, which would cost
//! more than the answer does.
//!
//! A call has a deadline, by which all ends that it waits for: a turn to write, an answer, the
//! thread that reads. The one that reads ends the connection at its own deadline, since it may have
//! read a part of a frame.
//!
//! A connection that has failed is of no use any more, and all that wait on it are told. The next
//! request makes a new one.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{Condvar, Mutex};

use crate::counts::{ByRequest, RequestCounts};
use crate::deadline::{Until, left};
use crate::error::{Error, Result};
use crate::frame::{FRAME_OVERHEAD, Frame, VERSION, read_frame, write_frame};
use crate::reach::{Reach, Reachable};
use crate::reply::Reply;
use crate::request::Request;
use crate::single_flight::SingleFlight;
use crate::socket::Socket;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Tells the server who this is; may be empty.
    pub token: Bytes,
    /// For so long a server that does not answer is waited for, and requests are tried on one
    /// connection after the other, before they fail; zero: for ever.
    pub timeout: Duration,
    /// Bytes that a view may keep of what was read of it.
    pub memory: usize,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions { token: Bytes::new(), timeout: Duration::from_secs(60), memory: 32 << 20 }
    }
}

/// Counts of all that a client has sent and received, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were made.
    pub connections: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Bytes of their frames.
    pub sent: u64,
    /// Bytes of frames that came.
    pub received: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    by_request: ByRequest,
}

/// Bytes that are read at once, if there are so many.
const READ_BYTES: usize = 64 << 10;

/// Time to tell the server what is not answered.
const TELLING: Duration = Duration::from_secs(1);
/// An answer that takes longer is waited for.
const SOON: Duration = Duration::from_secs(1);

type Connect = dyn Fn(Duration) -> io::Result<Socket> + Send + Sync;

/// A client of one server.
pub struct Client {
    connect: Box<Connect>,
    pub(crate) options: ClientOptions,
    pub(crate) current: SingleFlight<Arc<Connection>>,
    counters: Arc<Counters>,
    pub(crate) reachable: Reachable,
    /// This one.
    pub(crate) own: Weak<Client>,
}

impl Client {
    /// Connects to a server by `connect`, which is called again after a connection has failed, and
    /// has so much time. Fails if there is no server, or it speaks another version, or does not
    /// know the token.
    pub fn connect(
        connect: impl Fn(Duration) -> io::Result<Socket> + Send + Sync + 'static,
        options: ClientOptions,
    ) -> Result<Arc<Client>> {
        let client = Arc::new_cyclic(|own| Client {
            connect: Box::new(connect),
            options,
            current: SingleFlight::new(None),
            counters: Arc::default(),
            reachable: Reachable::default(),
            own: own.clone(),
        });
        client.connection(client.deadline()?)?;
        Ok(client)
    }

    /// By when a call that begins now must be answered. Fails where the server is gone.
    pub(crate) fn deadline(&self) -> Result<Instant> {
        self.reachable.deadline(self.options.timeout)
    }

    /// Returns whether the server is to be reached, as far as calls have shown it.
    pub fn reach(&self) -> Reach {
        match self.reachable.reach() {
            Reach::Connected => {
                let current = self.current.peek().filter(|current| !current.has_failed());
                let waits = current.and_then(|current| current.waits_for());
                waits.filter(|time| *time > SOON).map_or(Reach::Connected, Reach::Waiting)
            }
            other => other,
        }
    }

    /// Waits for the server no more: calls that do so fail, and others do until it answers.
    pub fn give_up(&self) {
        let why = Error::Closed;
        if self.reachable.give_up(&why) {
            self.end_connection(&why);
            self.look_for_server();
        }
    }

    /// Ends the connection that is in use.
    pub(crate) fn end_connection(&self, why: &Error) {
        if let Some(connection) = self.current.peek() {
            connection.fail(why);
        }
    }

    /// The connection that is in use, or a new one.
    pub(crate) fn connection(&self, deadline: Instant) -> Result<Arc<Connection>> {
        let connect = || {
            let socket = (self.connect)(left(deadline)?)?;
            let counters = self.counters.clone();
            let connection = Connection::new(socket, &self.options.token, counters, deadline)?;
            self.counters.connections.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(connection))
        };
        self.current.get(deadline, |connection| !connection.has_failed(), connect)
    }

    /// Returns what was sent and received.
    pub fn counts(&self) -> Counts {
        Counts {
            connections: self.counters.connections.load(Ordering::Relaxed),
            requests: self.counters.requests.load(Ordering::Relaxed),
            sent: self.counters.sent.load(Ordering::Relaxed),
            received: self.counters.received.load(Ordering::Relaxed),
        }
    }

    /// Returns the same by requests.
    pub fn counts_by_request(&self) -> Vec<(&'static str, RequestCounts)> {
        self.counters.by_request.counts()
    }
}

/// A connection after its greeting.
pub(crate) struct Connection {
    socket: Socket,
    /// When it was begun to be made.
    pub(crate) made: Instant,
    /// Locked by the thread that reads.
    reading: Mutex<BufReader<Until>>,
    /// Locked by the thread that writes a frame.
    writing: Mutex<Until>,
    waiting: Mutex<Waiting>,
    /// Told when an answer was handed over, or when no thread reads or writes any more.
    changed: Condvar,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// By the number of the request: since when it is under way, and its answer, once that is
    /// here.
    answers: HashMap<u64, (Instant, Option<Frame>)>,
    /// A thread reads.
    is_read: bool,
    /// A thread writes. So the lock of what it writes to is never waited for.
    is_written: bool,
    /// Says why there are no answers any more.
    failed: Option<String>,
    /// Requests that may be under way.
    most: usize,
}

impl Connection {
    fn new(
        socket: Socket,
        token: &Bytes,
        counters: Arc<Counters>,
        deadline: Instant,
    ) -> Result<Connection> {
        let until = || Until { socket: socket.clone(), deadline: Some(deadline) };
        let waiting = Waiting { most: 1, ..Waiting::default() };
        let connection = Connection {
            made: Instant::now(),
            reading: Mutex::new(BufReader::with_capacity(READ_BYTES, until())),
            writing: Mutex::new(until()),
            socket,
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
            counters,
        };
        let hello = Request::Hello { version: VERSION, token: token.clone() };
        match connection.call(&hello, deadline)? {
            Reply::Welcome { version: VERSION, under_way, .. } => {
                connection.waiting.lock().most = (under_way as usize).max(1);
                Ok(connection)
            }
            Reply::Welcome { version, .. } => {
                Err(Error::Version { theirs: version, ours: VERSION })
            }
            _ => Err(Error::Unexpected),
        }
    }

    pub fn has_failed(&self) -> bool {
        self.waiting.lock().failed.is_some()
    }

    /// For how long the request is under way that was asked first.
    fn waits_for(&self) -> Option<Duration> {
        let waiting = self.waiting.lock();
        let unanswered = waiting.answers.values().filter(|(_, answer)| answer.is_none());
        unanswered.map(|(asked, _)| asked.elapsed()).max()
    }

    /// Nothing is answered on this connection any more.
    pub(crate) fn fail(&self, why: &Error) {
        let mut waiting = self.waiting.lock();
        waiting.failed.get_or_insert_with(|| why.to_string());
        (waiting.is_read, waiting.is_written) = (false, false);
        drop(waiting);
        self.socket.end();
        self.changed.notify_all();
    }

    /// Asks, and waits for the answer. A failure that the server tells is an error here.
    pub fn call(&self, request: &Request, deadline: Instant) -> Result<Reply> {
        let (kind, body) = request.encode();
        let number = self.turn_to_write(true, deadline)?;
        if let Err(e) = self.write(number, kind, &body, deadline) {
            self.waiting.lock().answers.remove(&number);
            return Err(e);
        }
        let frame = self.answer(number, deadline)?;
        self.counters.by_request.answered(kind, FRAME_OVERHEAD + frame.body.len());
        match Reply::decode(frame.kind, &frame.body) {
            Ok(Reply::Failed(failure)) => Err(Error::Failed(failure)),
            Ok(reply) => Ok(reply),
            Err(e) => {
                self.fail(&e);
                Err(e)
            }
        }
    }

    /// Asks for something that ends with the connection anyway, and does not wait for the answer.
    pub fn tell(&self, request: &Request) {
        let (kind, body) = request.encode();
        let deadline = Instant::now() + TELLING;
        // No request that waits has this number, so its answer is left.
        let told = self.turn_to_write(false, deadline);
        if let Err(e) = told.and_then(|number| self.write(number, kind, &body, deadline)) {
            tracing::debug!("a server was not told: {e}");
        }
    }

    /// Waits until no other thread writes and, for a request that is answered, until one more may
    /// be under way. Returns the number of the request.
    fn turn_to_write(&self, is_answered: bool, deadline: Instant) -> Result<u64> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(why) = &waiting.failed {
                return Err(Error::Io(io::Error::other(why.clone())));
            }
            let time = left(deadline)?;
            let has_room = !is_answered || waiting.answers.len() < waiting.most;
            if has_room && !waiting.is_written {
                break;
            }
            self.changed.wait_for(&mut waiting, time);
        }
        waiting.is_written = true;
        if !is_answered {
            return Ok(0);
        }
        waiting.last += 1;
        let number = waiting.last;
        waiting.answers.insert(number, (Instant::now(), None));
        Ok(number)
    }

    /// Writes a frame, and ends the turn.
    fn write(&self, number: u64, kind: u8, body: &[u8], deadline: Instant) -> Result<()> {
        let written = {
            let mut to = self.writing.lock();
            to.deadline = Some(deadline);
            write_frame(&mut *to, number, kind, body)
        };
        match &written {
            Ok(bytes) => {
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                self.counters.sent.fetch_add(*bytes as u64, Ordering::Relaxed);
                self.counters.by_request.asked(kind, *bytes);
            }
            // A message that is too large was not begun.
            Err(Error::Malformed(_)) => {}
            Err(e) => self.fail(e),
        }
        self.waiting.lock().is_written = false;
        self.changed.notify_all();
        written.map(drop)
    }

    fn answer(&self, number: u64, deadline: Instant) -> Result<Frame> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some((_, Some(_))) = waiting.answers.get(&number) {
                let frame = waiting.answers.remove(&number).and_then(|(_, frame)| frame);
                drop(waiting);
                // One may wait to ask, or to be the one that reads.
                self.changed.notify_all();
                return frame.ok_or(Error::Unexpected);
            }
            if let Some(why) = &waiting.failed {
                let why = io::Error::other(why.clone());
                waiting.answers.remove(&number);
                return Err(Error::Io(why));
            }
            // Checked by the one that reads, too: answers to others may come for ever.
            let time = match left(deadline) {
                Ok(time) => time,
                Err(e) => {
                    waiting.answers.remove(&number);
                    drop(waiting);
                    self.changed.notify_all();
                    return Err(e.into());
                }
            };
            if waiting.is_read {
                self.changed.wait_for(&mut waiting, time);
                continue;
            }
            waiting.is_read = true;
            drop(waiting);
            let read = {
                let mut from = self.reading.lock();
                from.get_mut().deadline = Some(deadline);
                read_frame(&mut *from)
            };
            waiting = self.waiting.lock();
            match read {
                Ok(frame) => {
                    waiting.is_read = false;
                    self.counters
                        .received
                        .fetch_add((FRAME_OVERHEAD + frame.body.len()) as u64, Ordering::Relaxed);
                    let is_own = frame.number == number;
                    // An answer that none waits for, as a second one to the same request, is left.
                    if let Some((_, answer @ None)) = waiting.answers.get_mut(&frame.number) {
                        *answer = Some(frame);
                    }
                    if !is_own {
                        self.changed.notify_all();
                    }
                }
                Err(e) => {
                    drop(waiting);
                    self.fail(&e);
                    waiting = self.waiting.lock();
                }
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.socket.end();
    }
}

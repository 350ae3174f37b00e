//! A client: one connection at a time, shared by any number of threads.
//!
//! There is no dedicated reader thread. One of the threads that wait for an answer reads frames,
//! and hands each frame to the thread that sent its request, until its own answer has arrived; then
//! another waiting thread takes over. So in the common case a thread reads its own answer, and no
//! other thread has to be woken, which would cost more than the answer.
//!
//! A call has a deadline, which limits every wait in it: for the turn to write, for the answer, for
//! the thread that reads. The reading thread ends the connection at its own deadline, since it may
//! have read part of a frame.
//!
//! A connection that has failed is not used again, and all threads that wait on it are notified.
//! The next request opens a new one.

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
use crate::failure::{Failure, FailureCode};
use crate::frame::{FRAME_OVERHEAD, Frame, VERSION, read_frame, write_frame};
use crate::reach::{Reach, Reachable};
use crate::reply::Reply;
use crate::request::Request;
use crate::single_flight::SingleFlight;
use crate::socket::Socket;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Authenticates the client to the server; may be empty.
    pub token: Bytes,
    /// The time for which a server that does not answer is waited for, and requests are retried on
    /// new connections, before they fail. Zero means no limit.
    pub timeout: Duration,
    /// Limit of the bytes that a view may cache.
    pub memory: usize,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions { token: Bytes::new(), timeout: Duration::from_secs(60), memory: 32 << 20 }
    }
}

/// Traffic of a client since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections made.
    pub connections: u64,
    /// Requests sent.
    pub requests: u64,
    /// Bytes of the frames of these requests.
    pub sent: u64,
    /// Bytes of the frames received.
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

/// Size of the read buffer.
const READ_BYTES: usize = 64 << 10;

/// Time limit for sending a request whose answer is not awaited.
const TELLING: Duration = Duration::from_secs(1);
/// A client whose oldest request is pending for longer than this is reported as waiting.
const SOON: Duration = Duration::from_secs(1);

type Connect = dyn Fn(Duration) -> io::Result<Socket> + Send + Sync;

/// A client of one server.
pub struct Client {
    connect: Box<Connect>,
    pub(crate) options: ClientOptions,
    pub(crate) current: SingleFlight<Arc<Connection>>,
    /// The time of the last probe that was answered, of all watches.
    pub(crate) probed: SingleFlight<Instant>,
    counters: Arc<Counters>,
    pub(crate) reachable: Reachable,
    /// A reference to this client, for the thread that probes for the server.
    pub(crate) own: Weak<Client>,
}

impl Client {
    /// Connects to a server by `connect`, which is called again after a connection has failed. Its
    /// argument is the time that it may take. Fails if the server cannot be reached, speaks another
    /// version, or does not know the token.
    pub fn connect(
        connect: impl Fn(Duration) -> io::Result<Socket> + Send + Sync + 'static,
        options: ClientOptions,
    ) -> Result<Arc<Client>> {
        let client = Arc::new_cyclic(|own| Client {
            connect: Box::new(connect),
            options,
            current: SingleFlight::new(None),
            probed: SingleFlight::new(None),
            counters: Arc::default(),
            reachable: Reachable::default(),
            own: own.clone(),
        });
        client.connection(client.deadline()?)?;
        Ok(client)
    }

    /// Returns the deadline of a call that begins now. Fails if the server has disappeared.
    pub(crate) fn deadline(&self) -> Result<Instant> {
        self.reachable.deadline(self.options.timeout)
    }

    /// Returns whether the server can be reached, as far as calls have shown it.
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

    /// Stops waiting for the server: pending calls fail, and so do new ones until it answers.
    pub fn give_up(&self) {
        let why = Error::Closed;
        if self.reachable.give_up(&why) {
            self.end_connection(&why);
            self.look_for_server();
        }
    }

    /// Ends the current connection.
    pub(crate) fn end_connection(&self, why: &Error) {
        if let Some(connection) = self.current.peek() {
            connection.fail(why);
        }
    }

    /// Returns the current connection, or a new one if it has failed.
    pub(crate) fn connection(&self, deadline: Instant) -> Result<Arc<Connection>> {
        let connect = || self.greeted((self.connect)(left(deadline)?)?, deadline).map(Arc::new);
        self.current.get(deadline, |connection| !connection.has_failed(), connect)
    }

    fn greeted(&self, socket: Socket, deadline: Instant) -> Result<Connection> {
        let counters = self.counters.clone();
        let connection = Connection::new(socket, &self.options.token, counters, deadline)?;
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    /// Fails unless the server answers on a connection of its own before the deadline. The current
    /// connection stays as it is.
    pub(crate) fn probe(&self, deadline: Instant) -> Result<()> {
        let is_gone = |e: &io::Error| {
            use io::ErrorKind::{
                ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound, TimedOut,
                WouldBlock,
            };
            let gone = [
                ConnectionRefused,
                HostUnreachable,
                NetworkUnreachable,
                NotFound,
                TimedOut,
                WouldBlock,
            ];
            left(deadline).is_err() || gone.contains(&e.kind())
        };
        let socket = match (self.connect)(left(deadline)?) {
            Ok(socket) => socket,
            Err(e) if is_gone(&e) => return Err(e.into()),
            // A handshake that the server ends, and a lack of local descriptors, do not show that
            // it has disappeared.
            Err(_) => return Ok(()),
        };
        match self.greeted(socket, deadline) {
            Err(e) if left(deadline).is_err() => Err(e),
            // A server that ends the connection is running, and has no place for another one.
            _ => Ok(()),
        }
    }

    /// Returns the traffic so far.
    pub fn counts(&self) -> Counts {
        Counts {
            connections: self.counters.connections.load(Ordering::Relaxed),
            requests: self.counters.requests.load(Ordering::Relaxed),
            sent: self.counters.sent.load(Ordering::Relaxed),
            received: self.counters.received.load(Ordering::Relaxed),
        }
    }

    /// Returns the traffic so far for each kind of request.
    pub fn counts_by_request(&self) -> Vec<(&'static str, RequestCounts)> {
        self.counters.by_request.counts()
    }
}

/// A connection whose greeting is complete.
pub(crate) struct Connection {
    socket: Socket,
    /// The time at which connecting began.
    pub(crate) made: Instant,
    /// Held by the thread that reads.
    reading: Mutex<BufReader<Until>>,
    /// Held by the thread that writes a frame.
    writing: Mutex<Until>,
    waiting: Mutex<Waiting>,
    /// Notified when an answer was handed over, and when the reading or writing thread is done.
    changed: Condvar,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// Pending requests by number: when each was sent, and its answer once it has arrived.
    answers: HashMap<u64, (Instant, Option<Frame>)>,
    /// Set while a thread reads.
    is_read: bool,
    /// Set while a thread writes, so that the `writing` lock is never contended.
    is_written: bool,
    /// The reason why the connection no longer yields answers.
    failed: Option<String>,
    /// Limit of the pending requests.
    most: usize,
}

impl Waiting {
    /// Hands an answer over to its request. An answer to no pending request is ignored, for example
    /// a second answer to the same request.
    fn arrived(&mut self, frame: Frame) {
        if let Some((_, answer @ None)) = self.answers.get_mut(&frame.number) {
            *answer = Some(frame);
        }
    }
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
        let greeted = connection.call(&hello, deadline).map_err(|e| match e {
            // Other clients of the token have all of its places. A view waits for one, as it waits
            // for a server: the server may not know yet that an earlier connection has failed.
            Error::Failed(Failure { code: FailureCode::Limit, what }) => Error::NoPlace(what),
            e => e,
        })?;
        match greeted {
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

    /// Returns for how long the oldest pending request has been waiting.
    fn waits_for(&self) -> Option<Duration> {
        let waiting = self.waiting.lock();
        let unanswered = waiting.answers.values().filter(|(_, answer)| answer.is_none());
        unanswered.map(|(asked, _)| asked.elapsed()).max()
    }

    /// Ends the connection, and makes all requests on it fail.
    pub(crate) fn fail(&self, why: &Error) {
        let mut waiting = self.waiting.lock();
        waiting.failed.get_or_insert_with(|| why.to_string());
        (waiting.is_read, waiting.is_written) = (false, false);
        drop(waiting);
        self.socket.end();
        self.changed.notify_all();
    }

    /// Sends a request, and waits for its answer. Returns an error if the server answers with a
    /// failure.
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

    /// Sends a request without waiting for its answer. It is for requests whose effect also takes
    /// place when the connection ends.
    pub fn tell(&self, request: &Request) {
        let (kind, body) = request.encode();
        let deadline = Instant::now() + TELLING;
        // No pending request has number 0, so the answer is ignored.
        let told = self.turn_to_write(false, deadline);
        if let Err(e) = told.and_then(|number| self.write(number, kind, &body, deadline)) {
            tracing::debug!("a server was not told: {e}");
        }
    }

    /// Waits until no other thread writes and, if the request is answered, until one more may be
    /// pending. Returns the number of the request.
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

    /// Writes a frame, and ends the thread's turn to write.
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
            // Nothing was written of a message that is too large.
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
                // Another thread may wait to send a request, or to take over reading.
                self.changed.notify_all();
                return frame.ok_or(Error::Unexpected);
            }
            if let Some(why) = &waiting.failed {
                let why = io::Error::other(why.clone());
                waiting.answers.remove(&number);
                return Err(Error::Io(why));
            }
            // The reading thread checks its deadline, too: answers to other requests may arrive
            // without end.
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
                    let bytes = (FRAME_OVERHEAD + frame.body.len()) as u64;
                    self.counters.received.fetch_add(bytes, Ordering::Relaxed);
                    let is_own = frame.number == number;
                    waiting.arrived(frame);
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

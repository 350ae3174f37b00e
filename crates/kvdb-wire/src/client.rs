//! A client: one connection at a time, on which any number of threads ask.
//!
//! There is no thread that reads. Of those that wait for an answer, one reads frames and hands each
//! to the thread that asked for it, until its own has come; then another one of them reads. So an
//! answer is taken by the thread that waits for it, without waking another one, which would cost
//! more than the answer does.
//!
//! A connection that has failed is of no use any more, and all that wait on it are told. The next
//! request makes a new one.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::frame::{FRAME_OVERHEAD, Frame, VERSION, read_frame, write_frame};
use crate::reply::Reply;
use crate::request::Request;
use crate::socket::Socket;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Tells the server who this is; may be empty.
    pub token: Bytes,
    /// For so long a request is tried, on one connection after the other, before it fails.
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
}

/// Bytes that are read at once, if there are so many.
const READ_BYTES: usize = 64 << 10;

type Connect = dyn Fn() -> io::Result<Socket> + Send + Sync;

/// A client of one server.
pub struct Client {
    connect: Box<Connect>,
    pub(crate) options: ClientOptions,
    current: Mutex<Option<Arc<Connection>>>,
    counters: Arc<Counters>,
}

impl Client {
    /// Connects to a server by `connect`, which is called again after a connection has failed.
    /// Fails if there is no server, or it speaks another version, or does not know the token.
    pub fn connect(
        connect: impl Fn() -> io::Result<Socket> + Send + Sync + 'static,
        options: ClientOptions,
    ) -> Result<Arc<Client>> {
        let client = Client {
            connect: Box::new(connect),
            options,
            current: Mutex::new(None),
            counters: Arc::default(),
        };
        client.connection()?;
        Ok(Arc::new(client))
    }

    /// The connection that is in use, or a new one.
    pub(crate) fn connection(&self) -> Result<Arc<Connection>> {
        let mut current = self.current.lock();
        if let Some(connection) = current.as_ref().filter(|connection| !connection.has_failed()) {
            return Ok(connection.clone());
        }
        let socket = (self.connect)()?;
        let connection = Arc::new(Connection::new(socket, &self.options, self.counters.clone())?);
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        *current = Some(connection.clone());
        Ok(connection)
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
}

/// A connection after its greeting.
pub(crate) struct Connection {
    socket: Socket,
    /// Locked by the thread that reads.
    reading: Mutex<BufReader<Socket>>,
    /// Locked while a frame is written.
    writing: Mutex<Socket>,
    waiting: Mutex<Waiting>,
    /// Told when an answer was handed over, or when no thread reads any more.
    changed: Condvar,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// By the number of the request: its answer, once that is here.
    answers: HashMap<u64, Option<Frame>>,
    /// A thread reads.
    is_read: bool,
    /// Says why there are no answers any more.
    failed: Option<String>,
    /// Requests that may be under way.
    most: usize,
}

impl Connection {
    fn new(socket: Socket, options: &ClientOptions, counters: Arc<Counters>) -> Result<Connection> {
        // Of a server that stops in the middle nothing is heard any more.
        socket.limit_reads(Some(options.timeout))?;
        socket.limit_writes(Some(options.timeout))?;
        let waiting = Waiting { most: 1, ..Waiting::default() };
        let connection = Connection {
            reading: Mutex::new(BufReader::with_capacity(READ_BYTES, socket.clone())),
            writing: Mutex::new(socket.clone()),
            socket,
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
            counters,
        };
        let hello = Request::Hello { version: VERSION, token: options.token.clone() };
        match connection.call(&hello)? {
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

    /// Nothing is answered on this connection any more.
    fn fail(&self, why: &Error) {
        let mut waiting = self.waiting.lock();
        waiting.failed.get_or_insert_with(|| why.to_string());
        waiting.is_read = false;
        drop(waiting);
        self.socket.end();
        self.changed.notify_all();
    }

    /// Asks, and waits for the answer. A failure that the server tells is an error here.
    pub fn call(&self, request: &Request) -> Result<Reply> {
        let (kind, body) = request.encode();
        let number = self.number()?;
        let sent = write_frame(&mut *self.writing.lock(), number, kind, &body);
        match sent {
            Ok(bytes) => {
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                self.counters.sent.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(e) => {
                self.waiting.lock().answers.remove(&number);
                // A message that is too large was not begun.
                if !matches!(e, Error::Malformed(_)) {
                    self.fail(&e);
                }
                return Err(e);
            }
        }
        let frame = self.answer(number)?;
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
        // No request that waits has this number, so its answer is left.
        if let Err(e) = write_frame(&mut *self.writing.lock(), 0, kind, &body) {
            self.fail(&e);
        }
    }

    /// The number of a request, when there may be another one under way.
    fn number(&self) -> Result<u64> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(why) = &waiting.failed {
                return Err(Error::Io(io::Error::other(why.clone())));
            }
            if waiting.answers.len() < waiting.most {
                break;
            }
            self.changed.wait(&mut waiting);
        }
        waiting.last += 1;
        let number = waiting.last;
        waiting.answers.insert(number, None);
        Ok(number)
    }

    fn answer(&self, number: u64) -> Result<Frame> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(Some(_)) = waiting.answers.get(&number) {
                let frame = waiting.answers.remove(&number).flatten();
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
            if waiting.is_read {
                self.changed.wait(&mut waiting);
                continue;
            }
            waiting.is_read = true;
            drop(waiting);
            let read = read_frame(&mut *self.reading.lock());
            waiting = self.waiting.lock();
            match read {
                Ok(frame) => {
                    waiting.is_read = false;
                    self.counters
                        .received
                        .fetch_add((FRAME_OVERHEAD + frame.body.len()) as u64, Ordering::Relaxed);
                    let is_own = frame.number == number;
                    // An answer that none waits for, as a second one to the same request, is left.
                    if let Some(answer @ None) = waiting.answers.get_mut(&frame.number) {
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

//! One connection as the server has it: who asks, the views that are open, and what is answered.
//!
//! A few threads take turns to read: the one that has read a request answers it, while the next one
//! reads. So requests of one connection are answered at the same time, and none of them is handed
//! from one thread to another.
//!
//! All that a connection can make the server hold is bounded: a frame for each of its threads, an
//! answer for each of them, and so many views. One that does not read its answers in time is ended.
//! All connections together hold so many bytes of answers as the server's options say.

use std::collections::HashMap;
use std::io::BufReader;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, Ordering};
use kvdb::{DictionaryId, Kvdb, View};

use crate::body::{ANSWER_BYTES, MAX_DICTIONARIES, MAX_TUPLES};
use crate::budget::Budget;
use crate::deadline::Until;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::frame::{Frame, MAX_FRAME, VERSION, read_frame_of, write_frame};
use crate::reply::Reply;
use crate::request::Request;
use crate::socket::Socket;

/// Requests of one connection that may be under way; more of them wait in the socket.
const UNDER_WAY: u32 = 64;
/// Bytes of the largest first frame of a connection.
const MAX_GREETING: usize = 4 << 10;
/// Views that one connection may have open.
pub(crate) const MAX_VIEWS: usize = 256;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Clients must send this; empty: nothing.
    pub token: Bytes,
    /// Connections at a time; more are closed at once.
    pub connections: usize,
    /// A client that has not greeted for so long is cut off.
    pub greeting: Duration,
    /// A client that has not taken all of an answer for so long is cut off.
    pub patience: Duration,
    /// Bytes that the answers under way may take together; more requests wait.
    pub answers: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            token: Bytes::new(),
            connections: 128,
            greeting: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            answers: 64 << 20,
        }
    }
}

/// A connection.
pub(crate) struct Conversation {
    db: Kvdb,
    options: ServerOptions,
    /// Of all connections.
    answers: Arc<Budget>,
    socket: Socket,
    reading: Mutex<BufReader<Until>>,
    writing: Mutex<Until>,
    greeted: AtomicBool,
    views: Mutex<Views>,
}

#[derive(Default)]
struct Views {
    last: u64,
    open: HashMap<u64, View>,
}

impl Conversation {
    pub fn new(
        db: Kvdb,
        options: ServerOptions,
        answers: Arc<Budget>,
        socket: Socket,
    ) -> Conversation {
        // Of a client that is not known yet little is taken, and not for long.
        let greeted_by = Some(Instant::now() + options.greeting);
        let until = |deadline| Until { socket: socket.clone(), deadline };
        Conversation {
            db,
            options,
            answers,
            reading: Mutex::new(BufReader::with_capacity(READ_BYTES, until(greeted_by))),
            writing: Mutex::new(until(None)),
            socket,
            greeted: AtomicBool::new(false),
            views: Mutex::default(),
        }
    }

    /// Answers the greeting, which comes before all else and is answered alone.
    pub fn greet(&self) -> Result<()> {
        self.answer_next(MAX_GREETING)?;
        self.reading.lock().get_mut().deadline = None;
        match self.greeted.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::Closed),
        }
    }

    /// Answers requests until the connection ends. Several threads may do so.
    pub fn serve(&self) {
        loop {
            match self.answer_next(MAX_FRAME) {
                Ok(()) => {}
                Err(Error::Closed) => break,
                Err(e) => {
                    tracing::debug!("a connection ends: {e}");
                    break;
                }
            }
        }
        self.end();
    }

    /// Ends the connection.
    pub fn end(&self) {
        self.socket.end();
    }

    fn answer_next(&self, most: usize) -> Result<()> {
        let Frame { number, kind, body } = read_frame_of(&mut *self.reading.lock(), most)?;
        // What cannot be read as a request may be one of a newer version, or anything: nothing that
        // follows would be understood.
        let request = Request::decode(kind, &body)?;
        drop(body);
        let mut share = self.answers.take(most_of_answer(&request));
        let reply = match self.answer(request) {
            Ok(reply) => reply,
            Err(failure) => Reply::Failed(failure),
        };
        let (kind, body) = reply.encode();
        drop(reply);
        // A client that reads slowly holds what its answer takes, and no more.
        share.shrink(body.len());
        let mut to = self.writing.lock();
        to.deadline = Some(Instant::now() + self.options.patience);
        write_frame(&mut *to, number, kind, &body)?;
        Ok(())
    }

    fn answer(&self, request: Request) -> std::result::Result<Reply, Failure> {
        let is_hello = matches!(request, Request::Hello { .. });
        if is_hello == self.greeted.load(Ordering::Relaxed) {
            return Err(failure(FailureCode::NotAllowed, "a connection begins with one greeting"));
        }
        match request {
            Request::Hello { version, token } => self.hello(version, &token),
            Request::View { snapshot } => self.view(snapshot),
            Request::GetMany { view, dict, keys } => get_many(&self.find(view)?, dict, &keys),
            Request::GetPart { view, dict, key, offset, length } => {
                get_part(&self.find(view)?, dict, &key, (offset, length))
            }
            Request::Iterate { view, dict, backward, keys_only, tuples, bytes, start, end } => {
                let page = Page {
                    backward,
                    keys_only,
                    tuples: tuples.min(MAX_TUPLES) as usize,
                    bytes: (bytes as usize).min(ANSWER_BYTES),
                };
                page.of(&self.find(view)?, dict, &start, &end)
            }
            Request::Drop { view } => match self.views.lock().open.remove(&view) {
                Some(_) => Ok(Reply::Done),
                None => Err(no_view()),
            },
            Request::Begin { .. }
            | Request::Apply { .. }
            | Request::Commit { .. }
            | Request::Abort { .. }
            | Request::Sync
            | Request::Snapshot { .. }
            | Request::Clone { .. } => {
                Err(failure(FailureCode::NotAllowed, "this server lets clients read only"))
            }
        }
    }

    fn hello(&self, version: u16, token: &Bytes) -> std::result::Result<Reply, Failure> {
        // Of a wrong token it is not told by the time how much of it is right.
        let differs = token.iter().zip(&self.options.token).fold(0, |all, (a, b)| all | (a ^ b));
        if differs != 0 || token.len() != self.options.token.len() {
            return Err(failure(FailureCode::NotAllowed, "the token is not that of this server"));
        }
        // A client of another version is told this one, and decides.
        if version == VERSION {
            self.greeted.store(true, Ordering::Relaxed);
        }
        Ok(Reply::Welcome { version: VERSION, under_way: UNDER_WAY, views: MAX_VIEWS as u32 })
    }

    fn view(&self, snapshot: Option<String>) -> std::result::Result<Reply, Failure> {
        // The main branch goes on while it is read, and is the store's own.
        let Some(name) = &snapshot else {
            return Err(failure(FailureCode::NotAllowed, "this server shows snapshots alone"));
        };
        let label = self.db.snapshot_label(name).map(|label| label.id);
        let view = self.db.open_snapshot(name).map_err(of_store)?;
        // Another one may have taken the name in between.
        let id = self.db.snapshot_label(name).map(|label| label.id);
        let Some(id) = id.filter(|id| Some(*id) == label) else {
            return Err(failure(FailureCode::NoSnapshot, "the snapshot was dropped"));
        };
        let mut dictionaries: Vec<_> =
            view.dictionaries_in("").into_iter().map(|info| (info.id, info.name)).collect();
        dictionaries.truncate(MAX_DICTIONARIES);
        let mut views = self.views.lock();
        if views.open.len() >= MAX_VIEWS {
            return Err(failure(FailureCode::Limit, "too many views are open: drop some"));
        }
        views.last += 1;
        let number = views.last;
        views.open.insert(number, view);
        Ok(Reply::Viewed { view: number, snapshot: id, space: self.db.space(), dictionaries })
    }

    fn find(&self, view: u64) -> std::result::Result<View, Failure> {
        self.views.lock().open.get(&view).cloned().ok_or_else(no_view)
    }
}

/// Bytes that the answer to a request may take, about. One value alone may be longer.
fn most_of_answer(request: &Request) -> usize {
    match request {
        Request::Iterate { bytes, .. } => (*bytes as usize).min(ANSWER_BYTES),
        Request::GetMany { .. } | Request::GetPart { .. } => ANSWER_BYTES,
        _ => 0,
    }
}

fn failure(code: FailureCode, what: &str) -> Failure {
    Failure { code, what: what.into() }
}

fn no_view() -> Failure {
    failure(FailureCode::NoView, "there is no such view on this connection")
}

/// A failure of the store, as a client is told of it.
fn of_store(error: kvdb::Error) -> Failure {
    let code = match &error {
        kvdb::Error::NoSnapshot(_) => FailureCode::NoSnapshot,
        kvdb::Error::NoDictionary(_) => FailureCode::NoDictionary,
        kvdb::Error::Corrupt(_) => FailureCode::Corrupt,
        kvdb::Error::Limit(_) => FailureCode::Limit,
        kvdb::Error::Conflict { .. } => FailureCode::Conflict,
        kvdb::Error::Locked(_) => FailureCode::Locked,
        kvdb::Error::ReadOnly(_) => FailureCode::ReadOnly,
        kvdb::Error::NoSpace => FailureCode::NoSpace,
        kvdb::Error::Exists(_) => FailureCode::Exists,
        kvdb::Error::Invalid(_) => FailureCode::Invalid,
        _ => FailureCode::Other,
    };
    // The code says what kind it is; a name alone is what the client makes its sentence of.
    let what = match error {
        kvdb::Error::NoSnapshot(what)
        | kvdb::Error::NoDictionary(what)
        | kvdb::Error::Corrupt(what) => what,
        error => error.to_string(),
    };
    Failure { code, what }
}

/// Values of keys, so many as an answer has room for.
fn get_many(
    view: &View,
    dict: DictionaryId,
    keys: &[Bytes],
) -> std::result::Result<Reply, Failure> {
    // Lengths are known without a read, so it is settled first what is read.
    let (mut bytes, mut taken) = (0, 0);
    if keys.len() > 1 {
        for key in keys {
            let len = view.value_len(dict, key).map_err(of_store)?.unwrap_or_default();
            if taken > 0 && bytes + len > ANSWER_BYTES {
                break;
            }
            bytes += len;
            taken += 1;
        }
    } else {
        taken = keys.len();
    }
    if taken == 0 {
        return Err(failure(FailureCode::Invalid, "no key was asked for"));
    }
    Ok(Reply::Values(view.multi_get(dict, &keys[..taken]).map_err(of_store)?))
}

fn get_part(
    view: &View,
    dict: DictionaryId,
    key: &Bytes,
    (offset, length): (u64, u32),
) -> std::result::Result<Reply, Failure> {
    match view.get(dict, key).map_err(of_store)? {
        None => Ok(Reply::Values(vec![None])),
        Some(value) => {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
            let to = from.saturating_add(length as usize).min(value.len());
            Ok(Reply::Part { length: value.len() as u64, bytes: value.slice(from..to) })
        }
    }
}

/// How much of a range is asked for.
struct Page {
    backward: bool,
    keys_only: bool,
    tuples: usize,
    bytes: usize,
}

impl Page {
    fn of(
        &self,
        view: &View,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
    ) -> std::result::Result<Reply, Failure> {
        let mut cursor = view.cursor(dict, start, end).map_err(of_store)?;
        if self.keys_only {
            cursor = cursor.keys_only();
        }
        if self.backward {
            cursor.seek_to_end().map_err(of_store)?;
        }
        let (mut tuples, mut bytes): (Vec<(Bytes, Bytes)>, usize) = (Vec::new(), 0);
        while tuples.len() < self.tuples.max(1) {
            let next = if self.backward { cursor.prev() } else { cursor.next() };
            let Some(tuple) = next.map_err(of_store)? else {
                return Ok(Reply::Tuples { ended: true, tuples });
            };
            let value = if self.keys_only { 0 } else { tuple.value_len() };
            bytes += tuple.key.len() + value;
            if bytes > self.bytes && !tuples.is_empty() {
                break;
            }
            let value = match self.keys_only {
                true => Bytes::new(),
                false => tuple.value().map_err(of_store)?,
            };
            tuples.push((tuple.key, value));
        }
        Ok(Reply::Tuples { ended: false, tuples })
    }
}

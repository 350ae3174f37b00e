//! Replies on their way to the client. `encode` writes them as bytes of RESP2 or RESP3.
//!
//! The replies of a pipelined group are buffered here and sent in one write, with two exceptions.
//! A group of more than `Limits::reply` bytes is sent in pieces, so that memory stays bounded. If
//! a connection has requested durable writes, no reply to a write is sent before the store is
//! synced, once for all of them. If that sync fails, each of those replies is replaced by the
//! error, because the durability that they would acknowledge was not reached.

mod encode;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kvdb::Kvdb;

pub use self::encode::number_text;
use crate::bell::Bell;
use crate::clients::Closer;
use crate::failure::{Failure, Outcome};

/// The destination of the bytes. It is a socket, or memory for a client inside this process.
pub trait Sink: Send {
    /// Sends the bytes, or keeps them until the client takes them. Bytes that were kept earlier
    /// are sent first. If the slice is empty, sends as many of the kept bytes as the client
    /// accepts now.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns whether bytes are kept that the client has not taken.
    fn is_waiting(&self) -> bool {
        false
    }
    /// Returns the time at which the client is dropped if it neither takes nor sends data before.
    /// Returns `None` if no bytes wait for the client.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// Returns an error if the deadline of the client has passed.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }
    /// Records that the client has sent something.
    fn heard(&mut self) {}
    /// Returns whether the client has sent something while a thread waited for it.
    fn has_ahead(&self) -> bool {
        false
    }
    /// Appends the bytes that were read ahead, up to the capacity of `into`, and returns their
    /// number.
    fn take_ahead(&mut self, _into: &mut Vec<u8>) -> usize {
        0
    }
    /// Waits until the client has taken the kept replies, or is dropped.
    fn finish(&mut self) {}
    /// Reads bytes that the client sends after a command, and waits until there are some. Returns
    /// 0 at the end of the stream.
    fn receive(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Waits until the bell rings, the client disconnects, or `at_most` has elapsed. `None` waits
    /// without a limit.
    fn wait(&mut self, bell: &Bell, at_most: Option<Duration>) {
        bell.wait(at_most);
    }
    /// Notifies the sink that the thread is about to wait for something other than the client.
    fn will_wait(&self) {}
    /// Returns a function that closes the connection from another thread.
    fn closer(&self) -> Option<Closer> {
        None
    }
    /// Returns whether the client has disconnected.
    fn is_gone(&self) -> bool {
        false
    }
}

/// A limit on bytes that several connections share.
pub struct Budget {
    used: AtomicUsize,
    most: usize,
}

impl Budget {
    pub fn new(most: usize) -> Self {
        Budget { used: AtomicUsize::new(0), most }
    }
    pub fn take(&self, bytes: usize) -> bool {
        let fits = self.used.fetch_add(bytes, Relaxed) + bytes <= self.most;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }
    pub fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }
    /// Returns the number of bytes that are charged.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// The reply that a command is writing.
struct UnderWay {
    /// The position of the reply in the output buffer.
    position: usize,
    /// Set if the reply acknowledges a write that must be durable before any part of the reply is
    /// sent.
    held: bool,
    /// The error that replaces the reply because the sync before its first part failed.
    denied: Option<String>,
}

pub struct Output {
    db: Kvdb,
    sink: Box<dyn Sink>,
    bytes: Vec<u8>,
    send_at: usize,
    /// The ranges of replies in `bytes` that acknowledge a write which must become durable first.
    unsynced: Vec<Range<usize>>,
    /// Set if the protocol is RESP3, and not RESP2.
    pub resp3: bool,
    /// Set if nothing may be sent, because everything written may have to be withdrawn.
    keep: bool,
    /// Set if written bytes are dropped instead of sent.
    muted: bool,
    /// The part of `bytes` beyond `send_at` is charged to this budget.
    budget: Arc<Budget>,
    charged: usize,
    /// Set if the replies that are kept have exceeded the budget.
    overfull: bool,
    /// The number of bytes sent so far.
    pub sent: u64,
    /// The reply in progress. It is also `None` if a part of the reply has already been sent.
    under_way: Option<UnderWay>,
    /// A bulk string in progress: its start in the buffer, the value of `sent` at that time, and
    /// the number of bytes still owed.
    in_bulk: Option<(usize, u64, u64)>,
    broken: Option<io::Error>,
}

impl Output {
    pub fn new(db: Kvdb, sink: Box<dyn Sink>, send_at: usize, budget: Arc<Budget>) -> Self {
        Output {
            db,
            sink,
            bytes: Vec::new(),
            send_at,
            unsynced: Vec::new(),
            resp3: false,
            keep: false,
            muted: false,
            budget,
            charged: 0,
            overfull: false,
            sent: 0,
            under_way: None,
            in_bulk: None,
            broken: None,
        }
    }

    /// Makes an output for replies that a script reads in this process. The replies are kept
    /// until they are taken.
    pub fn scratch(db: Kvdb, send_at: usize, budget: Arc<Budget>) -> Self {
        struct Nowhere;
        impl Sink for Nowhere {
            fn send(&mut self, _: &[u8]) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Output::new(db, Box::new(Nowhere), send_at, budget);
        out.keep();
        out
    }
    /// Takes the replies so far, and releases their charge to the budget.
    pub fn take(&mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.bytes);
        self.rewind(0);
        bytes
    }
    /// Appends a reply that has already been encoded.
    pub fn reply(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the header of a bulk string of `len` bytes. `add_to_bulk` adds the bytes in pieces.
    pub fn begin_bulk(&mut self, len: u64) {
        self.in_bulk = Some((self.bytes.len(), self.sent, len));
        self.number(b'$', i64::try_from(len).unwrap_or(i64::MAX));
    }
    /// Adds a piece of a bulk string, and sends the buffer if it is large. Returns `false` once
    /// no more data is needed.
    pub fn add_to_bulk(&mut self, piece: &[u8]) -> bool {
        if let Some((.., owed)) = &mut self.in_bulk {
            *owed = owed.saturating_sub(piece.len() as u64);
        }
        self.bytes.extend_from_slice(piece);
        self.send_if_large();
        !self.is_broken()
    }
    /// Ends the bulk string. If reading it failed, removes it from the buffer and returns the
    /// failure. If a part has already been sent, the client cannot receive an error, and the
    /// connection is closed.
    pub fn end_bulk(&mut self, read: Outcome) -> Outcome {
        let Some((position, sent, owed)) = self.in_bulk.take() else { return read };
        if read.is_ok() && (owed == 0 || self.is_broken()) {
            self.bytes.extend_from_slice(b"\r\n");
            return Ok(());
        }
        let read = read.and_then(|()| {
            Err(Failure::Corrupt("a string ends before its length is reached".into()))
        });
        if self.sent == sent {
            self.bytes.truncate(position);
            self.give_back();
            return read;
        }
        self.broken = Some(io::Error::other("a part of a reply could not be read"));
        self.bytes.clear();
        Ok(())
    }
    /// Begins a reply. `held` means that the reply acknowledges a write that must be durable
    /// before the client reads any part of the reply. If the reply is long, the store is synced
    /// before its first part is sent.
    pub fn begin_reply(&mut self, held: bool) {
        self.under_way = Some(UnderWay { position: self.bytes.len(), held, denied: None });
    }
    /// Ends a reply. `held` means that the reply does acknowledge such a write.
    pub fn end_reply(&mut self, held: bool) {
        let Some(UnderWay { position, denied, .. }) = self.under_way.take() else { return };
        match denied {
            Some(error) => {
                self.bytes.truncate(position);
                self.error(&error);
            }
            None if held => self.unsynced.push(position..self.bytes.len()),
            None => {}
        }
    }
    fn denied(&self) -> Option<usize> {
        let reply = self.under_way.as_ref()?;
        reply.denied.as_ref().map(|_| reply.position)
    }
    /// Returns the position of the next reply, for `rewind`.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }
    /// Removes everything written since `position`. This is allowed only if no part of it was
    /// sent, so there must be no `send_if_large` in between.
    pub fn rewind(&mut self, position: usize) {
        self.bytes.truncate(position);
        self.overfull = false;
        self.give_back();
    }
    /// Keeps all replies until `release`, so that `rewind` can remove them. Large replies are
    /// charged to the budget of all connections until they are sent. If the budget is exhausted,
    /// the output is overfull, and all kept replies must be removed.
    pub fn keep(&mut self) {
        self.keep = true;
    }
    pub fn release(&mut self) {
        self.keep = false;
    }
    /// Returns whether replies are kept. In this case a command must not wait for other
    /// connections, because its client would receive nothing, and its disconnection would not be
    /// noticed.
    pub fn is_kept(&self) -> bool {
        self.keep
    }
    /// Lets `write` write a reply that is sent as a whole. If `write` fails, the whole reply is
    /// removed.
    pub fn whole(&mut self, write: impl FnOnce(&mut Output) -> Outcome) -> Outcome {
        let (position, kept) = (self.position(), self.keep);
        self.keep();
        let written = write(self);
        // `EXEC` keeps all replies, including this one.
        self.keep = kept;
        if written.is_err() {
            self.rewind(position);
        }
        written
    }
    /// Returns whether the replies that are kept exceed the budget.
    pub fn is_overfull(&self) -> bool {
        self.overfull
    }
    /// Charges the bytes that are buffered now to the budget.
    fn charge(&mut self) {
        let more = self.bytes.len().saturating_sub(self.send_at).saturating_sub(self.charged);
        if more > 0 {
            match self.budget.take(more) {
                true => self.charged += more,
                false => self.overfull = true,
            }
        }
    }
    fn give_back(&mut self) {
        let still = self.bytes.len().saturating_sub(self.send_at).min(self.charged);
        self.budget.give_back(self.charged - still);
        self.charged = still;
        if self.bytes.capacity() > self.send_at * 2 && self.bytes.len() <= self.send_at {
            self.bytes.shrink_to(self.send_at);
        }
    }
    /// Returns whether enough bytes are buffered to be sent.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= self.send_at
    }
    /// Sends the buffered bytes if there are many. Long replies call this function between their
    /// elements.
    pub fn send_if_large(&mut self) {
        if self.keep {
            self.charge();
        } else if self.is_full() {
            self.flush();
        }
    }
    /// Returns the time at which the client is dropped; see [`Sink::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        self.sink.deadline()
    }
    /// Returns an error if the deadline of the client has passed; see [`Sink::check`].
    pub fn check(&self) -> io::Result<()> {
        self.sink.check()
    }
    /// Records that the client has sent something; see [`Sink::heard`].
    pub fn heard(&mut self) {
        self.sink.heard();
    }
    /// Returns the error that broke the connection to the client.
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }
    /// Returns whether the client has sent something while a thread waited; see
    /// [`Sink::has_ahead`].
    pub fn has_ahead(&self) -> bool {
        self.sink.has_ahead()
    }
    /// Appends bytes that were read ahead; see [`Sink::take_ahead`].
    pub fn take_ahead(&mut self, into: &mut Vec<u8>) -> usize {
        self.sink.take_ahead(into)
    }
    /// Sends everything, and waits until the client has taken it or is dropped.
    pub fn finish(&mut self) {
        if self.flush() {
            self.sink.finish();
        }
    }
    /// Notifies the sink that the current command is about to wait or to run for a long time, so
    /// that other connections can continue.
    pub fn will_wait(&self) {
        self.sink.will_wait();
    }
    /// Returns whether the client has disconnected, so that commands need not wait any more.
    pub fn is_gone(&self) -> bool {
        self.is_broken() || self.sink.is_gone()
    }
    /// Waits until the bell rings, the client disconnects, or `at_most` has elapsed; `None` waits
    /// without a limit. Bytes written before are sent, and the current command begins its reply
    /// again.
    pub fn wait(&mut self, bell: &Bell, at_most: Option<Duration>) {
        let held = self.under_way.take().is_some_and(|reply| reply.held);
        if self.flush() {
            self.sink.wait(bell, at_most);
        }
        self.begin_reply(held);
    }
    /// Returns `true` once the client has disconnected, or if the written bytes will be removed.
    /// In both cases the writer of a long reply may stop.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some() || self.overfull || self.denied().is_some()
    }
    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// Returns whether no buffered reply needs a sync, so that all of them may be sent later.
    pub fn may_wait(&self) -> bool {
        self.unsynced.is_empty() && self.broken.is_none()
    }
    /// Sends everything, after a sync if a reply needs one. Returns `false` once the client has
    /// disconnected.
    pub fn flush(&mut self) -> bool {
        if let Some(position) = self.denied() {
            self.bytes.truncate(position);
            return self.broken.is_none();
        }
        let held = self.under_way.take().filter(|reply| reply.held);
        if held.is_some() || !self.unsynced.is_empty() {
            self.sink.will_wait();
            if let Err(error) = self.db.sync() {
                // The writes are committed, and visible to all clients.
                let error = Failure::from(error.after_commit()).to_string();
                if let Some(reply) = held {
                    self.bytes.truncate(reply.position);
                    let denied = Some(error.clone());
                    self.under_way = Some(UnderWay { position: 0, held: true, denied });
                }
                self.deny(&error);
            }
            self.unsynced.clear();
        }
        let bytes: &[u8] = if self.muted { &[] } else { &self.bytes };
        if self.broken.is_none() && (!bytes.is_empty() || self.sink.is_waiting()) {
            match self.sink.send(bytes) {
                Ok(()) => self.sent += bytes.len() as u64,
                Err(error) => self.broken = Some(error),
            }
        }
        self.bytes.clear();
        if self.bytes.capacity() > self.send_at * 2 {
            self.bytes = Vec::new();
        }
        self.give_back();
        self.broken.is_none()
    }

    /// Lets `write` write messages, and sends them before the current command has written any
    /// part of its reply. The messages are sent even if replies are muted.
    pub fn aside(&mut self, write: impl FnOnce(&mut Output)) {
        let held = self.under_way.take().is_some_and(|reply| reply.held);
        let muted = self.muted;
        self.unmute();
        write(self);
        self.flush();
        self.muted = muted;
        self.begin_reply(held);
    }

    /// Drops everything that is written from now on, until `unmute`.
    pub fn mute(&mut self) {
        self.flush();
        self.muted = true;
    }
    pub fn unmute(&mut self) {
        if self.muted {
            self.flush();
            self.muted = false;
        }
    }

    /// Sends bytes that are not part of a reply, after everything that was written so far.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.flush() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.sink.send(bytes)?;
        self.sent += bytes.len() as u64;
        Ok(())
    }

    /// Reads bytes that the client sends after the current command; see [`Sink::receive`].
    pub fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.sink.receive(into)
    }

    /// Replaces every reply that waits for the sync by `error`.
    fn deny(&mut self, error: &str) {
        let old = std::mem::take(&mut self.bytes);
        let mut from = 0;
        for reply in std::mem::take(&mut self.unsynced) {
            self.bytes.extend_from_slice(&old[from..reply.start]);
            self.error(error);
            from = reply.end;
        }
        self.bytes.extend_from_slice(&old[from..]);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.budget.give_back(self.charged);
    }
}

//! Replies on their way to the client; `encode` writes them as bytes of RESP2 or RESP3.
//!
//! The replies of a pipelined group gather here and leave in one write. Two things change that: a
//! group of more than `Limits::reply` bytes is sent in pieces, so that memory stays bounded; and
//! where a connection asked for durable writes, no reply to a write leaves before the store is
//! synced, once for all of them. If that sync fails, each of those replies becomes the error,
//! because what they would acknowledge did not happen.

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

/// Where the bytes go: a socket, or memory for a client inside this process.
pub trait Sink: Send {
    /// Sends these bytes, or keeps them until the client takes them. They come behind those that
    /// were kept before; without bytes, as many of those leave as the client takes now.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Bytes are kept that the client has not taken.
    fn is_waiting(&self) -> bool {
        false
    }
    /// When the client is given up, if it neither takes nor sends anything until then; `None`:
    /// nothing waits for it.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// An error: that time has come.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }
    /// The client has sent something.
    fn heard(&mut self) {}
    /// The client has sent something while it was waited for.
    fn has_ahead(&self) -> bool {
        false
    }
    /// Appends what that was, up to the capacity of `into`; returns how much.
    fn take_ahead(&mut self, _into: &mut Vec<u8>) -> usize {
        0
    }
    /// Waits until the client has taken what is kept, or is given up.
    fn finish(&mut self) {}
    /// What the client sends behind a command, as far as it has come; waits for some. 0: the end.
    fn receive(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Waits until the bell rings, the client goes away, or so long; `None` is for ever.
    fn wait(&mut self, bell: &Bell, at_most: Option<Duration>) {
        bell.wait(at_most);
    }
    /// The thread is about to wait for something else than the client.
    fn will_wait(&self) {}
    /// Closes the connection from another thread.
    fn closer(&self) -> Option<Closer> {
        None
    }
    /// The client has gone away.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Bytes that several connections share.
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
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// The reply that a command is writing.
struct UnderWay {
    /// Where it begins.
    position: usize,
    /// It acknowledges a write that must be durable before any of it leaves.
    held: bool,
    /// The sync before its first part failed: the error that becomes of it.
    denied: Option<String>,
}

pub struct Output {
    db: Kvdb,
    sink: Box<dyn Sink>,
    bytes: Vec<u8>,
    send_at: usize,
    /// Replies in `bytes` that acknowledge a write which must be durable first.
    unsynced: Vec<Range<usize>>,
    /// RESP3 instead of RESP2.
    pub resp3: bool,
    /// Nothing leaves: whatever is written may have to be taken back.
    keep: bool,
    /// What is written is dropped instead of sent.
    muted: bool,
    /// What of `bytes` beyond `send_at` is counted there.
    budget: Arc<Budget>,
    charged: usize,
    /// The replies that are held back have exceeded the budget.
    overfull: bool,
    /// Bytes sent so far.
    pub sent: u64,
    /// `None` also when a part of it has left.
    under_way: Option<UnderWay>,
    /// A text under way: where it begins, what was sent by then, and how many bytes are owed.
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

    /// For replies that are read here, by a script: they are kept until they are taken.
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
    /// The replies so far; what is counted of them is given back.
    pub fn take(&mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.bytes);
        self.rewind(0);
        bytes
    }
    /// A reply that was written elsewhere.
    pub fn reply(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The header of a text of `len` bytes, which come in pieces, by `add_to_bulk`.
    pub fn begin_bulk(&mut self, len: u64) {
        self.in_bulk = Some((self.bytes.len(), self.sent, len));
        self.number(b'$', i64::try_from(len).unwrap_or(i64::MAX));
    }
    /// Adds a piece, and sends on what is large; `false` once no more of it is wanted.
    pub fn add_to_bulk(&mut self, piece: &[u8]) -> bool {
        if let Some((.., owed)) = &mut self.in_bulk {
            *owed = owed.saturating_sub(piece.len() as u64);
        }
        self.bytes.extend_from_slice(piece);
        self.send_if_large();
        !self.is_broken()
    }
    /// Ends it, or takes it back, when what was to be read could not be: then the failure is handed
    /// on. Where a part has left by then, the client cannot be told: the connection breaks off.
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
    /// A reply begins. `held`: it acknowledges a write that must be durable before the client reads
    /// any of it, so where it is long, the store is synced before its first part leaves.
    pub fn begin_reply(&mut self, held: bool) {
        self.under_way = Some(UnderWay { position: self.bytes.len(), held, denied: None });
    }
    /// It has ended. `held`: it does acknowledge that.
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
    /// Where the next reply will start; for `rewind`.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }
    /// Takes back what was written since `position`. Only before anything of it was sent: that is,
    /// without `send_if_large` in between.
    pub fn rewind(&mut self, position: usize) {
        self.bytes.truncate(position);
        self.overfull = false;
        self.give_back();
    }
    /// Holds all replies back until `release`, so that `rewind` can take them back. Those that are
    /// large are counted in the budget of all connections until they are sent; when the budget is
    /// exhausted, the output is overfull, and all of them must be taken back.
    pub fn keep(&mut self) {
        self.keep = true;
    }
    pub fn release(&mut self) {
        self.keep = false;
    }
    /// Whether replies are held back. Nothing must wait then for what others do: the client hears
    /// of nothing, and its going away is not seen.
    pub fn is_kept(&self) -> bool {
        self.keep
    }
    /// Has a reply written that leaves as a whole; when it fails, all of it is taken back.
    pub fn whole(&mut self, write: impl FnOnce(&mut Output) -> Outcome) -> Outcome {
        let (position, kept) = (self.position(), self.keep);
        self.keep();
        let written = write(self);
        // In `EXEC` all replies are held back, this one with them.
        self.keep = kept;
        if written.is_err() {
            self.rewind(position);
        }
        written
    }
    /// Whether the replies that are held back exceed the budget.
    pub fn is_overfull(&self) -> bool {
        self.overfull
    }
    /// Counts the bytes that wait now.
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
    /// `true` when enough is ready to be sent.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= self.send_at
    }
    /// Sends what is ready if it is large. Long replies call this between their elements.
    pub fn send_if_large(&mut self) {
        if self.keep {
            self.charge();
        } else if self.is_full() {
            self.flush();
        }
    }
    /// See [`Sink::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        self.sink.deadline()
    }
    /// See [`Sink::check`].
    pub fn check(&self) -> io::Result<()> {
        self.sink.check()
    }
    /// See [`Sink::heard`].
    pub fn heard(&mut self) {
        self.sink.heard();
    }
    /// Why the client gets nothing any more.
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }
    /// See [`Sink::has_ahead`].
    pub fn has_ahead(&self) -> bool {
        self.sink.has_ahead()
    }
    /// See [`Sink::take_ahead`].
    pub fn take_ahead(&mut self, into: &mut Vec<u8>) -> usize {
        self.sink.take_ahead(into)
    }
    /// Sends everything, and waits until the client has taken it or is given up.
    pub fn finish(&mut self) {
        if self.flush() {
            self.sink.finish();
        }
    }
    /// The command under way is about to wait, or to take long: other connections go on.
    pub fn will_wait(&self) {
        self.sink.will_wait();
    }
    /// The client has gone away: nothing need be waited for.
    pub fn is_gone(&self) -> bool {
        self.is_broken() || self.sink.is_gone()
    }
    /// Waits until the bell rings, the client goes away, or so long; `None` is for ever. What was
    /// written before is sent, and the command under way begins its reply anew.
    pub fn wait(&mut self, bell: &Bell, at_most: Option<Duration>) {
        let held = self.under_way.take().is_some_and(|reply| reply.held);
        if self.flush() {
            self.sink.wait(bell, at_most);
        }
        self.begin_reply(held);
    }
    /// `true` once the client is gone, or what is written will be taken back: the writer of a
    /// long reply may stop.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some() || self.overfull || self.denied().is_some()
    }
    /// Nothing has to be sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// What has to be sent owes no sync, and may leave later.
    pub fn may_wait(&self) -> bool {
        self.unsynced.is_empty() && self.broken.is_none()
    }
    /// Sends everything, after a sync where one is owed. `false` once the client is gone.
    pub fn flush(&mut self) -> bool {
        if let Some(position) = self.denied() {
            self.bytes.truncate(position);
            return self.broken.is_none();
        }
        let held = self.under_way.take().filter(|reply| reply.held);
        if held.is_some() || !self.unsynced.is_empty() {
            self.sink.will_wait();
            if let Err(error) = self.db.sync() {
                // What the replies are for is done, and seen by all.
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

    /// Has messages written, and sends them, before the command under way has written anything of
    /// its reply. They leave also where replies are not wanted.
    pub fn aside(&mut self, write: impl FnOnce(&mut Output)) {
        let held = self.under_way.take().is_some_and(|reply| reply.held);
        let muted = self.muted;
        self.unmute();
        write(self);
        self.flush();
        self.muted = muted;
        self.begin_reply(held);
    }

    /// Drops what is written from here on, up to `unmute`.
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

    /// Bytes that are no reply, behind everything that was written so far.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.flush() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.sink.send(bytes)?;
        self.sent += bytes.len() as u64;
        Ok(())
    }

    /// The bytes that the client sends behind the command under way, see [`Sink::receive`].
    pub fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.sink.receive(into)
    }

    /// Turns every reply that waits for the sync into `error`.
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

//! Turns a request of the kernel into a call of a [`Handler`], and its result into an answer.
//!
//! Each request costs a round trip, so this module decides which requests the kernel sends at all:
//!
//! - OPEN, OPENDIR, FLUSH and CREATE are answered ENOSYS, once each: from then on the kernel opens
//!   and closes without a request, keeps pages and directory entries cached across opens, and
//!   creates with MKNOD.
//! - The kernel caches names, missing names and attributes for the time that the policy sets. If
//!   the policy says so, the page cache gathers writes.
//! - The daemon announces that it drops set-user-ID bits (`HANDLE_KILLPRIV_V2`), so that the kernel
//!   requests `security.capability` once for each file and not for each write.
//! - File locks stay in the kernel: the daemon does not announce support for them.
//! - STATX is refused, so that the kernel uses GETATTR, unless the policy shows times of birth.
//!   STATX adds nothing else, and costs one more request per file.

mod answers;
mod arguments;
mod negotiation;
mod resent;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::counters::{Counters, Request};
use crate::fault;
use crate::handler::*;
use crate::kept::{Kept, Slot};
use crate::wire::{self, Answer, Fields, Head};

pub(crate) use negotiation::init;

/// The answer to one request.
pub(crate) enum Outcome {
    /// No answer is sent, because some requests take none.
    Nothing,
    /// The request has to be dispatched again by a thread that may wait.
    Waits,
    Error(Errno),
    /// The content of the `Answer`.
    Answer,
    Data(Bytes),
    /// The reply is the first bytes of the read buffer; the number is their count.
    Filled(usize),
}

/// A handler, and the settings by which requests reach it. All threads share the dispatcher.
pub(crate) struct Dispatcher<H> {
    handler: Arc<H>,
    policy: Policy,
    counters: Arc<Counters>,
    /// The state that outlives this process if it is killed, for a mount that continues then.
    kept: Option<Arc<Kept>>,
}

/// The answer to one request, and its side effects. A thread keeps the buffer between requests, so
/// that most requests allocate nothing.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    pub answer: Answer,
    /// The references that the answer hands to the kernel. If the answer does not arrive, they are
    /// taken back.
    pub handed_out: Vec<NodeId>,
    /// The inodes whose attributes the kernel must request again. The kernel is notified of them
    /// before it gets the answer.
    pub stale_attributes: Vec<NodeId>,
    /// The request was announced.
    pub announced: bool,
    /// The slot in which commits note the requests that they complete.
    slot: Option<Slot>,
}

impl ReplyBuffer {
    /// Records the effects of a change of a file's content on the kernel's cache.
    fn changed(&mut self, node: NodeId, written: &Written) {
        if written.lost_privileges {
            self.stale_attributes.push(node);
        }
    }
}

impl<H: Handler> Dispatcher<H> {
    pub fn new(handler: Arc<H>, policy: Policy, counters: Arc<Counters>) -> Self {
        Dispatcher { handler, policy, counters, kept: None }
    }

    /// Sets the state that outlives this process, for a mount that continues when it is killed.
    pub fn keep(mut self, kept: Option<Arc<Kept>>) -> Self {
        self.kept = kept;
        self
    }

    /// Returns whether a request may take long now.
    pub fn stalls(&self) -> bool {
        self.handler.stalls()
    }

    /// Returns whether requests have to be announced now.
    pub fn wants_announcements(&self) -> bool {
        self.policy.write_back && self.handler.wants_announcements()
    }

    /// Announces a request. It must be called for each request, in their order, if announcements
    /// are wanted.
    pub fn announce(&self, head: &Head, fields: Fields<'_>) {
        if Request::of(head.opcode) == Request::Write
            && let Some(offset) = wire::written_back_at(fields)
        {
            self.handler.announce(head.node, offset);
        }
    }

    /// Answers one request. A panic in the handler is a defect, but must not make all files
    /// inaccessible: the request is answered with EIO, and the panic hook reports the panic.
    ///
    /// A read may put its data into `read_buffer`, which saves an allocation.
    pub fn dispatch(
        &self,
        head: &Head,
        fields: Fields<'_>,
        reply: &mut ReplyBuffer,
        read_buffer: &mut [u8],
    ) -> Outcome {
        reply.answer.0.clear();
        reply.handed_out.clear();
        reply.stale_attributes.clear();
        let request = Request::of(head.opcode);
        let is_left_out = self.counters.is_left_out(request, head.pid);
        if !is_left_out {
            self.counters.count(request);
        }
        let begun = Instant::now();
        let outcome = match &self.kept {
            None => self.guarded(request, head, fields, reply, read_buffer),
            Some(kept) => self.once(kept, request, (head, fields), reply, read_buffer),
        };
        if matches!(outcome, Outcome::Error(_)) {
            // A listing may have failed half way. The kernel does not get the entries before the
            // failure.
            self.forget_handed_out(reply);
            reply.handed_out.clear();
        }
        if let Some(kept) = &self.kept {
            kept.give(head.unique & !wire::UNIQUE_RESEND, &reply.handed_out);
            fault::point("after", head.opcode);
        }
        if !matches!(outcome, Outcome::Waits) && !is_left_out {
            self.counters.took(request, begun.elapsed());
        }
        outcome
    }

    /// Answers a request, even if the handler panics.
    fn guarded(
        &self,
        request: Request,
        head: &Head,
        fields: Fields<'_>,
        reply: &mut ReplyBuffer,
        read_buffer: &mut [u8],
    ) -> Outcome {
        match catch_unwind(AssertUnwindSafe(|| {
            self.answer(request, head, fields, reply, read_buffer)
        })) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Errno::WAITS)) => {
                self.counters.uncount(request);
                Outcome::Waits
            }
            Ok(Err(errno)) => Outcome::Error(errno),
            Err(_) => {
                tracing::error!("{request:?} of inode {} panicked", head.node);
                Outcome::Error(Errno(libc::EIO))
            }
        }
    }

    /// Begins an FSYNC. See [`Handler::begin_fsync`]. If the result says that the FSYNC must be
    /// done alone, the request has to be dispatched.
    pub fn begin_fsync(&self, head: &Head) -> Reply<FSync> {
        if self.handler.is_down() {
            return Err(Errno(libc::EIO));
        }
        let begun = unless_it_panics("FSYNC", || self.handler.begin_fsync(head.node));
        if begun != Ok(FSync::Alone) {
            self.counters.count(Request::of(head.opcode));
        }
        begun
    }

    /// Records that an FSYNC that was begun at `begun` has been answered.
    pub fn ended_fsync(&self, opcode: u32, begun: Instant) {
        self.counters.took(Request::of(opcode), begun.elapsed());
    }

    /// Ends every FSYNC that has begun.
    pub fn sync(&self) -> Reply<()> {
        unless_it_panics("a sync", || self.handler.sync())
    }

    /// Takes back the references in an answer that did not reach the kernel (the request was
    /// interrupted, or failed).
    pub fn take_back(&self, reply: &ReplyBuffer) {
        self.forget_handed_out(reply);
        if let Some(kept) = &self.kept {
            kept.took_back(reply.handed_out.iter().map(|node| (*node, 1)));
        }
    }

    fn forget_handed_out(&self, reply: &ReplyBuffer) {
        for &node in &reply.handed_out {
            self.handler.forget(node, 1);
        }
    }
}

/// Runs `work`. A panic in the handler is a defect, which the panic hook reports; the request is
/// answered with EIO.
fn unless_it_panics<T>(what: &str, work: impl FnOnce() -> Reply<T>) -> Reply<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!("{what} panicked");
        Err(Errno(libc::EIO))
    })
}

#[cfg(test)]
mod tests {
    use kvfs::{Fs, FsOptions, Views};

    use super::*;
    use crate::fuse_adapter::FuseAdapter;

    #[test]
    fn a_listing_that_fails_half_way_hands_out_no_references() {
        let (db, env) = (kvdb::Kvdb::in_memory(), Arc::new(env::Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let first = fs.mknod(ROOT, b"a", FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
        fs.forget(first, 1);
        let mut batch = kvdb::Batch::new();
        let key = [&ROOT.to_be_bytes()[..], b"b"].concat();
        batch.put(db.dictionary("nmap").unwrap(), key, b"malformed".as_slice());
        db.commit(batch, kvdb::Durability::Buffered).unwrap();
        let adapter = Arc::new(FuseAdapter::new(Views::new(db, fs.clone())));
        let dispatcher = Dispatcher::new(adapter, Policy::default(), Arc::default());

        const READDIRPLUS: u32 = 44;
        let head =
            Head { opcode: READDIRPLUS, unique: 1, node: NodeId::ROOT, uid: 0, gid: 0, pid: 1 };
        let mut fields = Answer::default();
        fields.u64(0).u64(0).u32(4096).u32(0).u64(0).u32(0).u32(0);
        let mut reply = ReplyBuffer::default();
        let outcome = dispatcher.dispatch(&head, Fields::of(&fields.0), &mut reply, &mut []);
        assert!(matches!(outcome, Outcome::Error(Errno(libc::EIO))));
        assert!(!fs.is_referenced(first), "the kernel was told of none");
    }
}

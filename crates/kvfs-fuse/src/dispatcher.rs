//! Turns a request of the kernel into a call of a [`Handler`], and its result into an answer.
//!
//! Each request costs a round trip, so this file decides which requests the kernel sends at all:
//!
//! - OPEN, OPENDIR, FLUSH and CREATE are answered ENOSYS, once each: from then on the kernel opens
//!   and closes without a request, keeps pages and directory entries cached across opens, and
//!   creates with MKNOD.
//! - Names, missing names and attributes are cached for as long as the policy says; if it says so,
//!   writes gather in the page cache.
//! - The kernel is told that set-user-ID bits are dropped here (`HANDLE_KILLPRIV_V2`): it then asks
//!   for `security.capability` once a file and not once a write.
//! - File locks stay in the kernel: it is not told that the daemon could be asked about them.
//! - STATX is left to GETATTR, unless the policy wants the time of birth shown: STATX adds nothing
//!   else, and costs one more request per file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use kvfs::Note;

use crate::counters::{Counters, Request};
use crate::fault;
use crate::handler::*;
use crate::ioctl;
use crate::kept::{Kept, Slot};
use crate::wire::{self, Answer, Fields, Head, init, valid};
use crate::{name_parts, node_id};

/// The answer to one request.
pub(crate) enum Outcome {
    /// No answer: some requests take none.
    Nothing,
    /// The request has to be dispatched again by a thread that may wait.
    Waits,
    Error(Errno),
    /// The content of the `Answer`.
    Answer,
    Data(Bytes),
    /// The reply is the first bytes of the read buffer, this many.
    Filled(usize),
}

/// A handler, and the settings by which requests reach it. It is shared by all threads.
pub(crate) struct Dispatcher<H> {
    handler: Arc<H>,
    policy: Policy,
    counters: Arc<Counters>,
    /// The state that outlives this process if it is killed, for a mount that continues then.
    kept: Option<Arc<Kept>>,
}

/// The answer to one request, and its side effects. A thread keeps it between requests, so that
/// most of them allocate nothing.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    pub answer: Answer,
    /// References that the answer hands to the kernel; if the answer does not arrive, they are
    /// taken back.
    pub handed_out: Vec<NodeId>,
    /// Inodes whose attributes the kernel must ask for again, before it gets the answer.
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

    /// Answers one request. A panic in the handler is a defect, but must not take all files away:
    /// it is answered with EIO, and the panic hook reports it.
    ///
    /// Data that is read may be put into `read_buffer`, so that nothing is allocated for it.
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
            // A listing may have failed half way: the kernel is not told of the entries before the
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

    /// Answers a request of a mount that continues when this process is killed: a request that is
    /// done already is not done again.
    fn once(
        &self,
        kept: &Arc<Kept>,
        request: Request,
        (head, fields): (&Head, Fields<'_>),
        reply: &mut ReplyBuffer,
        read_buffer: &mut [u8],
    ) -> Outcome {
        fault::point("before", head.opcode);
        let id = head.unique & !wire::UNIQUE_RESEND;
        if head.unique & wire::UNIQUE_RESEND != 0 {
            for node in kept.take_given(id) {
                self.handler.forget(node, 1);
            }
            if kept.done(id).is_some() {
                let again = || self.answer_again(request, head, fields, reply);
                return unless_it_panics("an answer from the state", again)
                    .unwrap_or_else(Outcome::Error);
            }
        }
        let noted = match request {
            Request::MkNod
            | Request::MkDir
            | Request::SymLink
            | Request::Link
            | Request::Unlink
            | Request::RmDir
            | Request::Rename
            | Request::Rename2
            | Request::SetXattr
            | Request::RemoveXattr => true,
            Request::Write => wire::appends(fields),
            _ => false,
        };
        if noted && reply.slot.is_none() {
            reply.slot = kept.slot();
        }
        match reply.slot.as_ref().filter(|_| noted).map(|slot| slot.number) {
            None => self.guarded(request, head, fields, reply, read_buffer),
            Some(slot) => kvfs::with_note(Note { slot, request: id, value: 0 }, || {
                self.guarded(request, head, fields, reply, read_buffer)
            }),
        }
    }

    /// Answers a request that was done by a process which was killed before it had answered.
    fn answer_again(
        &self,
        request: Request,
        head: &Head,
        mut f: Fields<'_>,
        reply: &mut ReplyBuffer,
    ) -> Reply<Outcome> {
        match request {
            Request::MkNod => drop((f.u32()?, f.u32()?, f.u32()?, f.u32()?)),
            Request::MkDir | Request::Link => drop(f.u64()?),
            Request::SymLink => {}
            Request::Write => {
                let (_fh, _offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                // The file may have lost set-user-ID bits.
                reply.stale_attributes.push(head.node);
                reply.answer.u32(size).u32(0);
                return Ok(Outcome::Answer);
            }
            _ => return done(Ok(())),
        }
        let made = self.handler.lookup(head.node, f.name()?)?.ok_or(Errno(libc::ENOENT))?;
        Ok(self.entry(reply, &made))
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

    /// Begins an FSYNC: see [`Handler::begin_fsync`]. If the FSYNC is to be done alone, it has to
    /// be dispatched.
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

    fn answer(
        &self,
        request: Request,
        head: &Head,
        mut f: Fields<'_>,
        reply: &mut ReplyBuffer,
        read_buffer: &mut [u8],
    ) -> Reply<Outcome> {
        let h = &*self.handler;
        if h.is_down()
            && !matches!(request, Request::Forget | Request::BatchForget | Request::Destroy)
        {
            return Err(Errno(libc::EIO));
        }
        let node = head.node;
        let caller = Caller { uid: head.uid, gid: head.gid, pid: head.pid };
        match request {
            Request::Lookup => match h.lookup(node, f.name()?)? {
                Some(attr) => Ok(self.entry(reply, &attr)),
                None => {
                    reply.answer.no_entry_out(self.policy.entry_ttl.as_secs());
                    Ok(Outcome::Answer)
                }
            },
            Request::Forget => {
                self.forget(node, f.u64()?);
                Ok(Outcome::Nothing)
            }
            Request::BatchForget => {
                let count = f.u32()?;
                f.u32()?;
                for _ in 0..count {
                    self.forget(f.node()?, f.u64()?);
                }
                Ok(Outcome::Nothing)
            }
            Request::GetAttr => Ok(self.attr(reply, &h.getattr(node)?)),
            Request::Statx if self.policy.birth_times => {
                reply.answer.statx_out(&h.getattr(node)?, self.ttl_of(node).1);
                Ok(Outcome::Answer)
            }
            Request::SetAttr => {
                let changes = setattr_in(&mut f, caller)?;
                Ok(self.attr(reply, &h.setattr(node, &changes, caller)?))
            }
            Request::ReadLink => Ok(Outcome::Data(h.readlink(node)?)),
            Request::MkNod => {
                // The kernel has applied the umask already.
                let (mode, rdev, _umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let kind = wire::kind_of(mode).ok_or(Errno(libc::EINVAL))?;
                Ok(self.entry(reply, &h.mknod(node, f.name()?, kind, perm(mode), rdev, caller)?))
            }
            Request::MkDir => {
                let (mode, _umask) = (f.u32()?, f.u32()?);
                Ok(self.entry(reply, &h.mkdir(node, f.name()?, perm(mode), caller)?))
            }
            Request::SymLink => {
                let (name, target) = (f.name()?, f.name()?);
                Ok(self.entry(reply, &h.symlink(node, name, target, caller)?))
            }
            Request::Link => {
                let from = f.node()?;
                Ok(self.entry(reply, &h.link(from, node, f.name()?, caller)?))
            }
            Request::TmpFile => {
                let (_flags, mode, _umask, _open_flags) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let attr = h.tmpfile(node, perm(mode), caller)?;
                self.entry(reply, &attr);
                reply.answer.u64(0).u32(wire::OPEN_KEEP_CACHE).u32(0);
                Ok(Outcome::Answer)
            }
            Request::Unlink => done(h.unlink(node, f.name()?, caller)),
            Request::RmDir => done(h.rmdir(node, f.name()?, caller)),
            Request::Rename => {
                let to = f.node()?;
                done(h.rename((node, f.name()?), (to, f.name()?), RenameFlags::default(), caller))
            }
            Request::Rename2 => {
                let (to, flags, _) = (f.node()?, f.u32()?, f.u32()?);
                let flags = rename_flags(flags)?;
                done(h.rename((node, f.name()?), (to, f.name()?), flags, caller))
            }
            Request::Read => {
                let (_fh, offset, size, _) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
                let (_lock_owner, open_flags, _) = (f.u64()?, f.u32()?, f.u32()?);
                let keep_atime = open_flags & libc::O_NOATIME as u32 != 0;
                let hints = ReadHints { keep_atime };
                match read_buffer.get_mut(..size as usize) {
                    Some(read_buffer) => {
                        Ok(Outcome::Filled(h.read_into(node, offset, read_buffer, hints)?))
                    }
                    None => Ok(Outcome::Data(h.read(node, offset, size, hints)?)),
                }
            }
            Request::Write => {
                let (_fh, offset, size, flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
                let (_lock_owner, open_flags, _) = (f.u64()?, f.u32()?, f.u32()?);
                let data = f.bytes(size as usize)?;
                let hints = WriteHints {
                    unprivileged_group: (flags & wire::WRITE_KILL_SUIDGID != 0)
                        .then_some(caller.gid),
                    from_cache: flags & wire::WRITE_CACHE != 0,
                    announced: reply.announced && flags & wire::WRITE_CACHE != 0,
                    append: open_flags & libc::O_APPEND as u32 != 0,
                };
                let written = h.write(node, offset, data, hints)?;
                reply.changed(node, &written);
                reply.answer.u32(written.bytes as u32).u32(0);
                Ok(Outcome::Answer)
            }
            Request::FSync | Request::FSyncDir => {
                let (_fh, flags) = (f.u64()?, f.u32()?);
                let data_only = flags & wire::FSYNC_DATA_ONLY != 0;
                done(if request == Request::FSync {
                    h.fsync(node, data_only)
                } else {
                    h.fsyncdir(node, data_only)
                })
            }
            Request::ReadDir | Request::ReadDirPlus => {
                self.readdir(request == Request::ReadDirPlus, node, f, reply)
            }
            Request::StatFs => {
                reply.answer.statfs_out(&h.statfs(node)?);
                Ok(Outcome::Answer)
            }
            Request::GetXattr | Request::ListXattr | Request::SetXattr | Request::RemoveXattr
                if !self.policy.xattrs =>
            {
                Err(Errno(libc::ENOSYS))
            }
            Request::GetXattr => {
                let (size, _) = (f.u32()?, f.u32()?);
                xattr(size, h.getxattr(node, f.name()?)?, reply)
            }
            Request::ListXattr => {
                let size = f.u32()?;
                xattr(size, h.listxattr(node, caller)?, reply)
            }
            Request::SetXattr => {
                let (size, flags) = (f.u32()?, f.u32()?);
                let name = f.name()?;
                let mode = match flags as i32 {
                    0 => XattrFlags::Any,
                    libc::XATTR_CREATE => XattrFlags::Create,
                    libc::XATTR_REPLACE => XattrFlags::Replace,
                    _ => return Err(Errno(libc::EINVAL)),
                };
                done(h.setxattr(node, name, f.bytes(size as usize)?, mode, caller))
            }
            Request::RemoveXattr => done(h.removexattr(node, f.name()?, caller)),
            Request::FAllocate => {
                let (_fh, offset, length, mode) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
                let written = h.fallocate(node, offset, length, allocate(mode as i32)?, caller)?;
                reply.changed(node, &written);
                Ok(Outcome::Answer)
            }
            Request::LSeek => {
                let (_fh, offset, whence) = (f.u64()?, f.i64()?, f.u32()?);
                let what = match whence as i32 {
                    libc::SEEK_DATA => Whence::Data,
                    libc::SEEK_HOLE => Whence::Hole,
                    _ => return Err(Errno(libc::EINVAL)),
                };
                let offset = u64::try_from(offset).map_err(|_| Errno(libc::ENXIO))?;
                reply.answer.u64(h.seek(node, offset, what)?);
                Ok(Outcome::Answer)
            }
            Request::CopyFileRange | Request::CopyFileRange64 => {
                let (_fh_in, offset_in, to, _fh_out) = (f.u64()?, f.u64()?, f.node()?, f.u64()?);
                let (offset_out, length) = (f.u64()?, f.u64()?);
                // The older answer has room for 32 bits; callers continue after a short copy.
                let short = request == Request::CopyFileRange;
                let length = if short { length.min(1 << 30) } else { length };
                let copied =
                    h.copy_file_range((node, offset_in), (to, offset_out), length, caller)?;
                reply.changed(to, &copied);
                if short {
                    reply.answer.u32(copied.bytes as u32).u32(0)
                } else {
                    reply.answer.u64(copied.bytes)
                };
                Ok(Outcome::Answer)
            }
            Request::IoCtl => {
                let (_fh, _flags, command, argument) = (f.u64()?, f.u32()?, f.u32()?, f.u64()?);
                match command {
                    ioctl::GOING_DOWN => h.go_down(ioctl::going_down(caller, argument)?)?,
                    _ => return Err(Errno(libc::ENOTTY)),
                }
                reply.answer.ioctl_out();
                Ok(Outcome::Answer)
            }
            // Sent for files that TMPFILE opened, and at the end of the mount.
            Request::Release | Request::ReleaseDir | Request::Destroy => done(Ok(())),
            // Sent for chdir and access(2), and only without `default_permissions`. Then only root
            // can ask, and modes do not bind root, with one exception: a file without any execute
            // bit is not executable for root either. The kernel itself checks that a mount is
            // read-only.
            Request::Access => {
                let (mask, _) = (f.u32()?, f.u32()?);
                if mask & libc::X_OK as u32 == 0 {
                    return done(Ok(()));
                }
                let attr = h.getattr(node)?.attr;
                let executable = attr.kind == FileKind::Dir || attr.perm & 0o111 != 0;
                done(if executable { Ok(()) } else { Err(Errno(libc::EACCES)) })
            }
            // No call takes so long that it would watch for interrupts.
            Request::Open
            | Request::OpenDir
            | Request::Flush
            | Request::Create
            | Request::Interrupt
            | Request::Poll
            | Request::Statx
            | Request::Other => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Handles references that the kernel gives back.
    fn forget(&self, node: NodeId, references: u64) {
        self.handler.forget(node, references);
        if let Some(kept) = &self.kept {
            kept.took_back([(node, references)]);
        }
    }

    fn attr(&self, reply: &mut ReplyBuffer, attr: &NodeAttr) -> Outcome {
        let (_, attr_ttl) = self.ttl_of(attr.node);
        reply.answer.attr_out(attr, attr_ttl);
        Outcome::Answer
    }

    /// Returns for how many seconds the kernel may believe that a name leads to a node, and the
    /// node's attributes.
    fn ttl_of(&self, node: NodeId) -> (u64, u64) {
        match node_id::split(node) {
            (node_id::CONTROL, ino) if name_parts::is_part(ino) => (0, 0),
            _ => (self.policy.entry_ttl.as_secs(), self.policy.attr_ttl.as_secs()),
        }
    }

    fn entry(&self, reply: &mut ReplyBuffer, attr: &NodeAttr) -> Outcome {
        reply.handed_out.push(attr.node);
        let (entry_ttl, attr_ttl) = self.ttl_of(attr.node);
        reply.answer.entry_out(attr, entry_ttl, attr_ttl);
        Outcome::Answer
    }

    fn readdir(
        &self,
        attributes: bool,
        node: NodeId,
        mut f: Fields<'_>,
        reply: &mut ReplyBuffer,
    ) -> Reply<Outcome> {
        let (_fh, cookie, size) = (f.u64()?, f.u64()?, f.u32()? as usize);
        let (entry_ttl, attr_ttl) =
            (self.policy.entry_ttl.as_secs(), self.policy.attr_ttl.as_secs());
        self.handler.readdir(node, cookie, attributes, &mut |entry| {
            if reply.answer.0.len() + wire::dirent_size(entry.name, attributes) > size {
                return false;
            }
            if attributes {
                match &entry.attr {
                    Some(attr) => {
                        reply.answer.entry_out(attr, entry_ttl, attr_ttl);
                        // The kernel counts no references to "." and "..", so none are handed out.
                        if entry.name != b"." && entry.name != b".." {
                            reply.handed_out.push(attr.node);
                        }
                    }
                    None => reply.answer.no_entry_out(0),
                }
            }
            reply.answer.dirent(entry.ino, entry.cookie, entry.kind, entry.name);
            true
        })?;
        Ok(Outcome::Answer)
    }
}

/// Answers INIT: reads the kernel's offer and returns it, and writes the part of it that is
/// accepted. `rings` says whether io_uring is offered. The same offer under the same policy must
/// get the same answer in each version of this program that can take a mount over from another one.
pub(crate) fn init(
    policy: &Policy,
    mut f: Fields<'_>,
    reply: &mut ReplyBuffer,
    rings: bool,
) -> Reply<u64> {
    let (major, _minor, max_readahead, flags) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let offered = u64::from(flags)
        | if u64::from(flags) & init::INIT_EXT != 0 { u64::from(f.u32()?) << 32 } else { 0 };
    if major != wire::MAJOR {
        return Err(Errno(libc::EPROTO));
    }
    let wanted = [
        (init::ASYNC_READ, "asynchronous reads"),
        (init::BIG_WRITES, "big writes"),
        (init::MAX_PAGES, "requests of more than 128 KiB"),
        (init::PARALLEL_DIROPS, "parallel directory operations"),
        (init::EXPORT_SUPPORT, "files that are opened by handle after it has forgotten them"),
        (init::NO_OPEN_SUPPORT, "opening without a request"),
        (init::NO_OPENDIR_SUPPORT, "opening directories without a request"),
        (init::HANDLE_KILLPRIV_V2, "set-user-ID bits dropped by the file system"),
        (init::DO_READDIRPLUS, "directories with attributes"),
        (init::READDIRPLUS_AUTO, "directories with attributes when it pays"),
        (init::CACHE_SYMLINKS, "cached symbolic links"),
        // Attributes live long, so the kernel must not drop pages because a time looks new: it made
        // that time itself.
        (init::EXPLICIT_INVAL_DATA, "pages dropped only when told to"),
    ];
    for (_, what) in wanted.iter().filter(|(bit, _)| offered & bit == 0) {
        tracing::warn!("this kernel's FUSE has no {what}: works, but slower");
    }
    // Asynchronous direct I/O is not requested: when a direct write ends later, the kernel does not
    // drop the pages that were read since it began, and so would show old bytes.
    let take = wanted.iter().fold(init::INIT_EXT, |all, (bit, _)| all | bit);
    let take = (if policy.write_back { take | init::WRITEBACK_CACHE } else { take }) & offered;
    let max_write = policy.max_write.max(4096);
    let max_pages = max_write.div_ceil(4096).min(u32::from(u16::MAX)) as u16;
    let a = &mut reply.answer;
    let rings = if rings { init::OVER_IO_URING & offered } else { 0 };
    let take = take | rings;
    a.u32(wire::MAJOR)
        .u32(wire::MINOR)
        .u32(max_readahead.min(policy.max_readahead))
        .u32(take as u32);
    // Over io_uring a request must not be held back because of the number of others, or it could be
    // overtaken (`queues`).
    let background = if rings != 0 { u16::MAX } else { policy.max_background };
    a.u16(background.max(1)).u16((policy.max_background / 4 * 3).max(1));
    // Times have a granularity of one nanosecond.
    a.u32(max_write).u32(1).u16(max_pages).u16(0).u32((take >> 32) as u32);
    a.0.resize(64, 0);
    Ok(offered)
}

/// Runs `work`. A panic in the handler is a defect, which the panic hook reports; it is answered
/// with EIO.
fn unless_it_panics<T>(what: &str, work: impl FnOnce() -> Reply<T>) -> Reply<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!("{what} panicked");
        Err(Errno(libc::EIO))
    })
}

fn done(result: Reply<()>) -> Reply<Outcome> {
    result.map(|()| Outcome::Answer)
}

fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// Answers a request for an extended attribute; a size of 0 asks for the size of the value.
fn xattr(size: u32, value: Bytes, reply: &mut ReplyBuffer) -> Reply<Outcome> {
    if size == 0 {
        reply.answer.u32(value.len() as u32).u32(0);
        Ok(Outcome::Answer)
    } else if value.len() > size as usize {
        Err(Errno(libc::ERANGE))
    } else {
        Ok(Outcome::Data(value))
    }
}

fn setattr_in(f: &mut Fields<'_>, caller: Caller) -> Reply<SetAttr> {
    let (bits, _, _fh, size, _lock_owner) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?);
    let secs = [f.i64()?, f.i64()?, f.i64()?];
    let nanos = [f.u32()?, f.u32()?, f.u32()?];
    let (mode, _, uid, gid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let has = |bit: u32| bits & bit != 0;
    let time = |i: usize| Timestamp { secs: secs[i], nanos: nanos[i].min(999_999_999) };
    let set = |i: usize, bit, now| {
        has(bit).then(|| if has(now) { TimeSet::Now } else { TimeSet::At(time(i)) })
    };
    Ok(SetAttr {
        mode: has(valid::MODE).then(|| perm(mode)),
        uid: has(valid::UID).then_some(uid),
        gid: has(valid::GID).then_some(gid),
        size: has(valid::SIZE).then_some(size),
        atime: set(0, valid::ATIME, valid::ATIME_NOW),
        mtime: set(1, valid::MTIME, valid::MTIME_NOW),
        ctime: has(valid::CTIME).then(|| time(2)),
        unprivileged_group: has(valid::KILL_SUIDGID).then_some(caller.gid),
    })
}

fn rename_flags(flags: u32) -> Reply<RenameFlags> {
    if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

fn allocate(mode: i32) -> Reply<Allocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let mode = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => AllocateMode::Allocate,
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => AllocateMode::Punch,
        libc::FALLOC_FL_ZERO_RANGE => AllocateMode::Zero,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    Ok(Allocate { mode, keep_size })
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

//! The answer to each kind of request: its arguments are decoded, the handler is called, and the
//! result is encoded.

use bytes::Bytes;

use super::arguments::{allocate, perm, rename_flags, setattr_in};
use super::{Dispatcher, Outcome, ReplyBuffer};
use crate::counters::Request;
use crate::handler::*;
use crate::ioctl;
use crate::wire::{self, Fields, Head};
use crate::{name_parts, node_id};

impl<H: Handler> Dispatcher<H> {
    pub(super) fn answer(
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
                // The answer to the older request has room for 32 bits. Callers continue after a
                // short copy.
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
            // The kernel sends these requests for files that TMPFILE opened, and at the end of the
            // mount.
            Request::Release | Request::ReleaseDir | Request::Destroy => done(Ok(())),
            // The kernel sends ACCESS for chdir and access(2), and only without
            // `default_permissions`. Then only root can call, and modes do not bind root, with one
            // exception: a file without any execute bit is not executable for root either. The
            // kernel itself checks that a mount is read-only.
            Request::Access => {
                let (mask, _) = (f.u32()?, f.u32()?);
                if mask & libc::X_OK as u32 == 0 {
                    return done(Ok(()));
                }
                let attr = h.getattr(node)?.attr;
                let executable = attr.kind == FileKind::Dir || attr.perm & 0o111 != 0;
                done(if executable { Ok(()) } else { Err(Errno(libc::EACCES)) })
            }
            // INTERRUPT is ignored, because no call takes long enough to check for interrupts.
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

    /// Handles the release of references by the kernel.
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

    /// Returns for how many seconds the kernel may cache a name that leads to the node, and the
    /// attributes of the node.
    fn ttl_of(&self, node: NodeId) -> (u64, u64) {
        match node_id::split(node) {
            (node_id::CONTROL, ino) if name_parts::is_part(ino) => (0, 0),
            _ => (self.policy.entry_ttl.as_secs(), self.policy.attr_ttl.as_secs()),
        }
    }

    pub(super) fn entry(&self, reply: &mut ReplyBuffer, attr: &NodeAttr) -> Outcome {
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

pub(super) fn done(result: Reply<()>) -> Reply<Outcome> {
    result.map(|()| Outcome::Answer)
}

/// Answers a request for an extended attribute; a size of 0 requests the size of the value.
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

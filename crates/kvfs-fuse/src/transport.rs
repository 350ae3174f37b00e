//! The transport on `fuser`: its `Filesystem` calls become calls of a [`Handler`].
//!
//! Each request costs a round trip, so what this file decides is which requests there are at all:
//!
//! - OPEN, OPENDIR, FLUSH and CREATE are answered ENOSYS, once each: from then on the kernel opens and closes without a word, keeps
//!   pages and folder entries cached across opens, and creates with MKNOD.
//! - Names, missing names and attributes are cached for as long as the policy says; writes gather in the page cache.
//! - The kernel is told that set-user-ID bits are dropped here (`HANDLE_KILLPRIV_V2`): it then asks for `security.capability` once a
//!   file and not once a write.
//! - File locks stay in the kernel: it is not told that there is anyone else to ask.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request as Header, TimeOrNow, WriteFlags,
};

use crate::counters::{Counters, Request};
use crate::handler::*;

/// Inodes are never reused, so every one is of the first generation.
const GENERATION: Generation = Generation(0);

/// A handler behind `fuser`.
pub(crate) struct Transport<H> {
    handler: Arc<H>,
    policy: Policy,
    counters: Arc<Counters>,
}

impl<H: Handler> Transport<H> {
    pub(crate) fn new(handler: Arc<H>, policy: Policy, counters: Arc<Counters>) -> Self {
        Transport { handler, policy, counters }
    }

    fn entry(&self, reply: ReplyEntry, result: Reply<Attr>) {
        match result {
            Ok(attr) => reply.entry_with_ttls(&self.policy.attr_ttl, &self.policy.entry_ttl, &to_fuser(&attr), GENERATION),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn attr(&self, reply: ReplyAttr, result: Reply<Attr>) {
        match result {
            Ok(attr) => reply.attr(&self.policy.attr_ttl, &to_fuser(&attr)),
            Err(e) => reply.error(errno(e)),
        }
    }
}

fn empty(reply: ReplyEmpty, result: Reply<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

fn xattr(reply: ReplyXattr, size: u32, result: Reply<bytes::Bytes>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(errno(e)),
    }
}

fn errno(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.0)
}

fn caller(header: &Header) -> Caller {
    Caller { uid: header.uid(), gid: header.gid(), pid: header.pid() }
}

/// The kinds that have their own bits in a mode.
fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => FileKind::File,
        libc::S_IFDIR => FileKind::Dir,
        libc::S_IFLNK => FileKind::Symlink,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

fn kind_to_fuser(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn to_fuser(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: to_system_time(attr.atime),
        mtime: to_system_time(attr.mtime),
        ctime: to_system_time(attr.ctime),
        crtime: to_system_time(attr.btime),
        kind: kind_to_fuser(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// Inode 0 says "no such name, and you may remember that"; nothing else of it is looked at.
const NO_ENTRY: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

fn to_system_time(t: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(t.secs.unsigned_abs());
    let second = if t.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|s| s.checked_add(Duration::from_nanos(t.nanos.into()))).unwrap_or(UNIX_EPOCH)
}

fn from_system_time(t: SystemTime) -> Timestamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() },
        Err(before) => {
            // `fuser` 0.18 makes "-secs - nanos" of a kernel time that means "-secs + nanos" (the nanoseconds always count
            // forward); taking its number apart the same way gives back what the kernel said.
            let until = before.duration();
            let secs = i64::try_from(until.as_secs()).map_or(i64::MIN, |s| -s);
            Timestamp { secs, nanos: until.subsec_nanos() }
        }
    }
}

fn time_set(t: TimeOrNow) -> TimeSet {
    match t {
        TimeOrNow::Now => TimeSet::Now,
        TimeOrNow::SpecificTime(t) => TimeSet::At(from_system_time(t)),
    }
}

impl<H: Handler> Filesystem for Transport<H> {
    fn init(&mut self, _header: &Header, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_WRITEBACK_CACHE,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // With long-lived attributes the kernel must not drop pages because a time looks new: it made that time itself.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        ];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::warn!("this kernel's FUSE has no {flag:?}: works, but slower");
            }
        }
        // Each of these gives back the nearest possible value where the wanted one is not possible.
        if let Err(possible) = config.set_max_write(self.policy.max_write) {
            let _ = config.set_max_write(possible);
        }
        if let Err(possible) = config.set_max_readahead(self.policy.max_readahead) {
            let _ = config.set_max_readahead(possible);
        }
        let _ = config.set_max_background(self.policy.max_background.max(1));
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _header: &Header, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.counters.count(Request::Lookup);
        match self.handler.lookup(parent.0, name.as_bytes()) {
            Ok(None) => reply.entry_with_ttls(&Duration::ZERO, &self.policy.entry_ttl, &NO_ENTRY, GENERATION),
            Ok(Some(attr)) => self.entry(reply, Ok(attr)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn forget(&self, _header: &Header, ino: INodeNo, nlookup: u64) {
        self.counters.count(Request::Forget);
        self.handler.forget(ino.0, nlookup);
    }

    fn getattr(&self, _header: &Header, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.counters.count(Request::GetAttr);
        self.attr(reply, self.handler.getattr(ino.0));
    }

    fn setattr(
        &self,
        header: &Header,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.counters.count(Request::SetAttr);
        let changes = SetAttr {
            mode: mode.map(|m| (m & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(time_set),
            mtime: mtime.map(time_set),
            ctime: ctime.map(from_system_time),
            // A change of owner always drops the bits. On truncation the kernel says so in a flag that `fuser` 0.18 does not
            // pass on; it sets it for whoever lacks CAP_FSETID, which is everyone but root.
            kill_suid: uid.is_some() || gid.is_some() || (size.is_some() && header.uid() != 0),
        };
        self.attr(reply, self.handler.setattr(ino.0, &changes, caller(header)));
    }

    fn readlink(&self, _header: &Header, ino: INodeNo, reply: ReplyData) {
        self.counters.count(Request::ReadLink);
        match self.handler.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(&self, header: &Header, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, rdev: u32, reply: ReplyEntry) {
        self.counters.count(Request::MkNod);
        // The kernel has applied the umask already.
        let result = match kind_of_mode(mode) {
            Some(kind) => self.handler.mknod(parent.0, name.as_bytes(), kind, (mode & 0o7777) as u16, rdev, caller(header)),
            None => Err(Errno(libc::EINVAL)),
        };
        self.entry(reply, result);
    }

    fn mkdir(&self, header: &Header, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.counters.count(Request::MkDir);
        self.entry(reply, self.handler.mkdir(parent.0, name.as_bytes(), (mode & 0o7777) as u16, caller(header)));
    }

    fn unlink(&self, header: &Header, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.counters.count(Request::Unlink);
        empty(reply, self.handler.unlink(parent.0, name.as_bytes(), caller(header)));
    }

    fn rmdir(&self, header: &Header, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.counters.count(Request::RmDir);
        empty(reply, self.handler.rmdir(parent.0, name.as_bytes(), caller(header)));
    }

    fn symlink(&self, header: &Header, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.counters.count(Request::SymLink);
        let target = target.as_os_str().as_bytes();
        self.entry(reply, self.handler.symlink(parent.0, name.as_bytes(), target, caller(header)));
    }

    fn rename(
        &self,
        header: &Header,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.counters.count(Request::Rename);
        let known =
            fuser::RenameFlags::RENAME_NOREPLACE | fuser::RenameFlags::RENAME_EXCHANGE | fuser::RenameFlags::RENAME_WHITEOUT;
        if !known.contains(flags) {
            return reply.error(fuser::Errno::EINVAL);
        }
        let flags = RenameFlags {
            no_replace: flags.contains(fuser::RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(fuser::RenameFlags::RENAME_EXCHANGE),
            whiteout: flags.contains(fuser::RenameFlags::RENAME_WHITEOUT),
        };
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        empty(reply, self.handler.rename(from, to, flags, caller(header)));
    }

    fn link(&self, header: &Header, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.counters.count(Request::Link);
        self.entry(reply, self.handler.link(ino.0, newparent.0, newname.as_bytes(), caller(header)));
    }

    fn open(&self, _header: &Header, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.counters.count(Request::Open);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        _header: &Header,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.counters.count(Request::Read);
        match self.handler.read(ino.0, offset, size) {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn write(
        &self,
        _header: &Header,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.counters.count(Request::Write);
        match self.handler.write(ino.0, offset, data, write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)) {
            Ok(written) => reply.written(written),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn flush(&self, _header: &Header, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        self.counters.count(Request::Flush);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _header: &Header,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.counters.count(Request::Release);
        reply.ok();
    }

    fn fsync(&self, _header: &Header, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.counters.count(Request::FSync);
        empty(reply, self.handler.fsync(ino.0, datasync));
    }

    fn opendir(&self, _header: &Header, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.counters.count(Request::OpenDir);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn readdir(&self, _header: &Header, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.counters.count(Request::ReadDir);
        let result = self.handler.readdir(ino.0, offset, false, &mut |entry| {
            !reply.add(INodeNo(entry.ino), entry.cookie, kind_to_fuser(entry.kind), OsStr::from_bytes(entry.name))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdirplus(&self, _header: &Header, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.counters.count(Request::ReadDirPlus);
        let ttl = self.policy.attr_ttl.min(self.policy.entry_ttl);
        let result = self.handler.readdir(ino.0, offset, true, &mut |entry| {
            let attr = match entry.attr {
                Some(attr) => to_fuser(attr),
                // "." and "..": the kernel takes number and kind, and counts no reference.
                None => FileAttr { ino: INodeNo(entry.ino), kind: kind_to_fuser(entry.kind), ..NO_ENTRY },
            };
            !reply.add(INodeNo(entry.ino), entry.cookie, OsStr::from_bytes(entry.name), &ttl, &attr, GENERATION)
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn releasedir(&self, _header: &Header, _ino: INodeNo, _fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.counters.count(Request::ReleaseDir);
        reply.ok();
    }

    fn fsyncdir(&self, _header: &Header, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.counters.count(Request::FSyncDir);
        empty(reply, self.handler.fsyncdir(ino.0, datasync));
    }

    fn statfs(&self, _header: &Header, _ino: INodeNo, reply: ReplyStatfs) {
        self.counters.count(Request::StatFs);
        match self.handler.statfs() {
            Ok(s) => {
                reply.statfs(s.blocks, s.blocks_free, s.blocks_free, s.files, s.files_free, s.block_size, s.name_max, s.block_size)
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(&self, header: &Header, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        self.counters.count(Request::SetXattr);
        if !self.policy.xattrs {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        empty(reply, self.handler.setxattr(ino.0, name.as_bytes(), value, mode, caller(header)));
    }

    fn getxattr(&self, _header: &Header, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.counters.count(Request::GetXattr);
        if !self.policy.xattrs {
            return reply.error(fuser::Errno::ENOSYS);
        }
        xattr(reply, size, self.handler.getxattr(ino.0, name.as_bytes()));
    }

    fn listxattr(&self, _header: &Header, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.counters.count(Request::ListXattr);
        if !self.policy.xattrs {
            return reply.error(fuser::Errno::ENOSYS);
        }
        xattr(reply, size, self.handler.listxattr(ino.0));
    }

    fn removexattr(&self, header: &Header, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.counters.count(Request::RemoveXattr);
        if !self.policy.xattrs {
            return reply.error(fuser::Errno::ENOSYS);
        }
        empty(reply, self.handler.removexattr(ino.0, name.as_bytes(), caller(header)));
    }

    fn access(&self, _header: &Header, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Asked only without `default_permissions`; ENOSYS means "always granted", and is remembered.
        self.counters.count(Request::Access);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn create(&self, _header: &Header, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        self.counters.count(Request::Create);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(&self, _header: &Header, ino: INodeNo, _fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        self.counters.count(Request::FAllocate);
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size },
            _ => return reply.error(fuser::Errno::EOPNOTSUPP),
        };
        empty(reply, self.handler.fallocate(ino.0, offset, length, how));
    }

    fn lseek(&self, _header: &Header, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.counters.count(Request::LSeek);
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        match self.handler.seek(ino.0, offset, what) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn copy_file_range(
        &self,
        _header: &Header,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.counters.count(Request::CopyFileRange);
        // The answer has room for 32 bits; callers go on where a short copy ended.
        let len = len.min(1 << 30);
        match self.handler.copy_file_range((ino_in.0, offset_in), (ino_out.0, offset_out), len) {
            Ok(copied) => reply.written(copied as u32),
            Err(e) => reply.error(errno(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // 0.3 s before the epoch is second -1 and 700,000,000 ns.
        let t = Timestamp { secs: -1, nanos: 700_000_000 };
        assert_eq!(to_system_time(t), UNIX_EPOCH - Duration::from_millis(300));
        // As `fuser` hands over the kernel's (-1, 700,000,000).
        assert_eq!(from_system_time(UNIX_EPOCH - Duration::new(1, 700_000_000)), t);
        assert_eq!(from_system_time(UNIX_EPOCH + Duration::new(5, 6)), Timestamp { secs: 5, nanos: 6 });
    }

    #[test]
    fn no_time_is_out_of_range() {
        for secs in [i64::MIN, i64::MIN + 1, i64::MAX] {
            to_system_time(Timestamp { secs, nanos: 999_999_999 });
        }
    }

    #[test]
    fn every_mode_has_its_kind_or_none() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(libc::S_IFMT), None);
    }
}

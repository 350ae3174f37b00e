//! The messages of the kernel's FUSE protocol, version 7 (`include/uapi/linux/fuse.h`), byte by
//! byte.
//!
//! This module contains only layouts. Messages are read and written field by field in the machine's
//! byte order, and no structure is mapped onto bytes, so a message that is too short only causes an
//! error.

use crate::handler::{Errno, FileKind, NodeAttr, NodeId, Reply, StatFs, Timestamp};

/// The major version of the protocol that this module implements. The kernel uses the older one of
/// this version and its own.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 40;

/// The size of the head of a request, in bytes.
pub const IN_HEADER: usize = 40;
pub const OUT_HEADER: usize = 16;

/// The size of the smallest buffer that the kernel accepts, without the data of the largest write.
pub const REQUEST_ROOM: usize = 8192;

/// The flags that INIT negotiates: bits of `flags` (low half) and `flags2` (high half).
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    /// The kernel supports `INVAL_ENTRY_EXPIRE`. This flag is not requested.
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    /// The kernel resends requests on demand. This flag is not requested.
    pub const HAS_RESEND: u64 = 1 << 39;
    /// The kernel supports io_uring. It offers this flag if its parameter `enable_uring` is on. If
    /// the flag is requested, requests come over io_uring once every queue has a slot.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// The bits of `fuse_setattr_in.valid`.
pub mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// The bit of `fuse_write_in.write_flags` which says that the data is pages that the kernel writes
/// back. The next bit says that set-user-ID and set-group-ID bits are cleared.
pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// The bit of `fuse_fsync_in.fsync_flags` which says that only data must be synced.
pub const FSYNC_DATA_ONLY: u32 = 1;
/// The bit of `fuse_open_out.open_flags` with which the kernel keeps the cached pages of a file.
/// Such bits say how the kernel treats files that it opens without a request.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;

/// The code of the message that drops the pages and attributes of an inode. A message with such a
/// code is not an answer to a request.
pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
pub const NOTIFY_STORE: i32 = 4;
/// Makes the kernel resend all requests that were taken and not answered.
pub const NOTIFY_RESEND: i32 = 7;
/// A bit in the number of a resent request. The bit remains part of the number.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// The bit of `fuse_notify_inval_entry_out.flags` with which the entry is looked up again, and
/// stays if nothing has changed. Without this bit the name is torn out at once, even if programs
/// work in the directory or mounts lie below it.
pub const INVAL_ENTRY_EXPIRE: u32 = 1 << 0;

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub opcode: u32,
    /// Identifies the request in its answer.
    pub unique: u64,
    pub node: NodeId,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// Splits a request into its head and its fields.
pub fn head(request: &[u8]) -> Reply<(Head, Fields<'_>)> {
    let (length, head) = head_fields(Fields::of(request))?;
    if length != request.len() {
        return Err(Errno(libc::EIO));
    }
    Ok((head, Fields::of(&request[IN_HEADER..])))
}

/// Decodes a request that lies in three places: its head, its first argument (`first` has room for
/// the longest one), and the other arguments.
pub fn head_in_slot<'a>(
    head: &[u8],
    first: &'a [u8],
    others: &'a [u8],
) -> Reply<(Head, Fields<'a>)> {
    let (length, head) = head_fields(Fields::of(head))?;
    let first_length = length.checked_sub(IN_HEADER + others.len()).ok_or(Errno(libc::EIO))?;
    let first = first.get(..first_length).ok_or(Errno(libc::EIO))?;
    Ok((head, Fields { first, others }))
}

fn head_fields(mut f: Fields<'_>) -> Reply<(usize, Head)> {
    let length = f.u32()? as usize;
    let (opcode, unique, node, uid, gid, pid) =
        (f.u32()?, f.u64()?, f.node()?, f.u32()?, f.u32()?, f.u32()?);
    f.u32()?;
    Ok((length, Head { opcode, unique, node, uid, gid, pid }))
}

/// Returns the offset of a WRITE with these fields, if it brings pages that the kernel writes back,
/// and `None` if it brings data that a program is writing.
pub fn written_back_at(mut write: Fields<'_>) -> Option<u64> {
    let mut read = || -> Reply<(u64, u32)> {
        let (_fh, offset, _size) = (write.u64()?, write.u64()?, write.u32()?);
        Ok((offset, write.u32()?))
    };
    read().ok().filter(|(_, flags)| flags & WRITE_CACHE != 0).map(|(offset, _)| offset)
}

/// Returns whether a WRITE with these fields is appended at the current end of the file.
pub fn appends(mut write: Fields<'_>) -> bool {
    let mut read = || -> Reply<(u32, u32)> {
        let (_fh, _offset, _size) = (write.u64()?, write.u64()?, write.u32()?);
        let (flags, _lock_owner, open_flags) = (write.u32()?, write.u64()?, write.u32()?);
        Ok((flags, open_flags))
    };
    read().is_ok_and(|(flags, open_flags)| {
        flags & WRITE_CACHE == 0 && open_flags & libc::O_APPEND as u32 != 0
    })
}

/// Returns how many bytes a READ with these fields requests.
pub fn read_size(mut read: Fields<'_>) -> u32 {
    let size: Reply<u32> = (|| {
        let (_fh, _offset) = (read.u64()?, read.u64()?);
        read.u32()
    })();
    size.unwrap_or(0)
}

/// The rest of a request, decoded field by field. A request with too few bytes is an error of the
/// kernel, and is answered with EIO.
///
/// On `/dev/fuse` a request is one piece. Over io_uring, the first argument is separate from the
/// other arguments, and no field spans both pieces.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    first: &'a [u8],
    others: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(bytes: &'a [u8]) -> Fields<'a> {
        Fields { first: bytes, others: &[] }
    }

    /// Returns the bytes from which the next field is decoded.
    fn rest(&mut self) -> &'a [u8] {
        if self.first.is_empty() {
            self.first = std::mem::take(&mut self.others);
        }
        self.first
    }

    fn take<const N: usize>(&mut self) -> Reply<[u8; N]> {
        let (first, rest) = self.rest().split_first_chunk::<N>().ok_or(Errno(libc::EIO))?;
        self.first = rest;
        Ok(*first)
    }
    pub fn u32(&mut self) -> Reply<u32> {
        Ok(u32::from_ne_bytes(self.take()?))
    }
    pub fn u64(&mut self) -> Reply<u64> {
        Ok(u64::from_ne_bytes(self.take()?))
    }
    pub fn i64(&mut self) -> Reply<i64> {
        Ok(i64::from_ne_bytes(self.take()?))
    }
    /// Returns the bytes up to the next zero byte, which is consumed, too.
    pub fn name(&mut self) -> Reply<&'a [u8]> {
        let rest = self.rest();
        let end = rest.iter().position(|&b| b == 0).ok_or(Errno(libc::EIO))?;
        self.first = &rest[end + 1..];
        Ok(&rest[..end])
    }
    pub fn node(&mut self) -> Reply<NodeId> {
        self.u64().map(NodeId)
    }
    pub fn bytes(&mut self, length: usize) -> Reply<&'a [u8]> {
        let (first, rest) = self.rest().split_at_checked(length).ok_or(Errno(libc::EIO))?;
        self.first = rest;
        Ok(first)
    }
}

/// The bytes of an answer after its head.
#[derive(Debug, Default)]
pub struct Answer(pub Vec<u8>);

impl Answer {
    pub fn u16(&mut self, n: u16) -> &mut Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }
    pub fn u32(&mut self, n: u32) -> &mut Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }
    pub fn u64(&mut self, n: u64) -> &mut Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    pub fn node(&mut self, node: NodeId) -> &mut Self {
        self.u64(node.0)
    }

    /// Appends a `fuse_attr`.
    fn attr(&mut self, &NodeAttr { attr: a, .. }: &NodeAttr) {
        self.u64(a.ino).u64(a.size).u64(a.blocks);
        let times = [a.atime, a.mtime, a.ctime];
        for Timestamp { secs, .. } in times {
            self.u64(secs as u64);
        }
        for Timestamp { nanos, .. } in times {
            self.u32(nanos);
        }
        self.u32(mode(a.kind, a.perm))
            .u32(a.nlink)
            .u32(a.uid)
            .u32(a.gid)
            .u32(a.rdev)
            .u32(4096)
            .u32(0);
    }

    /// Appends a `fuse_attr_out`, which the kernel may cache for `ttl` seconds.
    pub fn attr_out(&mut self, a: &NodeAttr, ttl: u64) {
        self.u64(ttl).u32(0).u32(0).attr(a);
    }

    /// Appends a `fuse_statx_out` with all known fields, which the kernel may cache for `ttl`
    /// seconds.
    pub fn statx_out(&mut self, NodeAttr { attr: a, .. }: &NodeAttr, ttl: u64) {
        self.u64(ttl).u32(0).u32(0).u64(0).u64(0);
        self.u32(libc::STATX_BASIC_STATS | libc::STATX_BTIME).u32(4096).u64(0);
        self.u32(a.nlink).u32(a.uid).u32(a.gid).u16(mode(a.kind, a.perm) as u16).u16(0);
        self.u64(a.ino).u64(a.size).u64(a.blocks).u64(0);
        for Timestamp { secs, nanos } in [a.atime, a.btime, a.ctime, a.mtime] {
            self.u64(secs as u64).u32(nanos).u32(0);
        }
        let device = u64::from(a.rdev);
        self.u32(libc::major(device)).u32(libc::minor(device)).u32(0).u32(0);
        self.0.resize(self.0.len() + 14 * 8, 0);
    }

    /// Appends a `fuse_entry_out`.
    pub fn entry_out(&mut self, a: &NodeAttr, entry_ttl: u64, attr_ttl: u64) {
        self.node(a.node).u64(0).u64(entry_ttl).u64(attr_ttl).u32(0).u32(0).attr(a);
    }

    /// Appends a `fuse_entry_out` of inode 0, which says that the entry does not exist; the kernel
    /// may cache its absence. In a listing with attributes, it means that this entry has no
    /// attributes.
    pub fn no_entry_out(&mut self, entry_ttl: u64) {
        self.u64(0).u64(0).u64(entry_ttl);
        self.0.resize(self.0.len() + ENTRY_OUT - 24, 0);
    }

    /// Appends a `fuse_dirent`, padded to a multiple of eight.
    pub fn dirent(&mut self, ino: u64, cookie: u64, kind: FileKind, name: &[u8]) {
        self.u64(ino).u64(cookie).u32(name.len() as u32).u32(mode(kind, 0) >> 12);
        self.0.extend_from_slice(name);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    /// Appends a `fuse_ioctl_out` of a call that has succeeded and returns nothing.
    pub fn ioctl_out(&mut self) {
        self.u32(0).u32(0).u32(0).u32(0);
    }

    /// Appends a `fuse_statfs_out`.
    pub fn statfs_out(&mut self, s: &StatFs) {
        self.u64(s.blocks).u64(s.free).u64(s.free).u64(s.files).u64(s.files_free);
        self.u32(s.block_size).u32(s.name_max).u32(s.block_size);
        self.0.resize(self.0.len() + 7 * 4, 0);
    }
}

/// The size of a `fuse_entry_out`, in bytes.
const ENTRY_OUT: usize = 128;

/// Returns the number of bytes that a directory entry takes in an answer.
pub fn dirent_size(name: &[u8], attributes: bool) -> usize {
    (24 + name.len()).next_multiple_of(8) + if attributes { ENTRY_OUT } else { 0 }
}

/// Returns the kind of file that the type bits of a mode encode.
pub fn kind_of(mode: u32) -> Option<FileKind> {
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

pub fn mode(kind: FileKind, perm: u16) -> u32 {
    let kind = match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Dir => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    };
    kind | u32::from(perm & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Attr;

    const ATTR: Attr = Attr {
        ino: 7,
        kind: FileKind::File,
        perm: 0o644,
        nlink: 1,
        uid: 2,
        gid: 3,
        rdev: 0,
        size: 9,
        blocks: 8,
        atime: Timestamp { secs: -1, nanos: 5 },
        mtime: Timestamp { secs: i64::MIN, nanos: 6 },
        ctime: Timestamp { secs: 0, nanos: 7 },
        btime: Timestamp { secs: 0, nanos: 0 },
    };

    const NODE: NodeAttr = NodeAttr { node: NodeId(7), attr: ATTR };

    #[test]
    fn answers_have_the_sizes_of_the_protocol() {
        let size = |f: &dyn Fn(&mut Answer)| {
            let mut a = Answer::default();
            f(&mut a);
            a.0.len()
        };
        assert_eq!(size(&|a| a.attr(&NODE)), 88);
        assert_eq!(size(&|a| a.attr_out(&NODE, 1)), 104);
        assert_eq!(size(&|a| a.statx_out(&NODE, 1)), 288);
        assert_eq!(size(&|a| a.entry_out(&NODE, 1, 1)), ENTRY_OUT);
        assert_eq!(size(&|a| a.no_entry_out(1)), ENTRY_OUT);
        let room =
            StatFs { block_size: 1, blocks: 2, free: 3, files: 4, files_free: 5, name_max: 6 };
        assert_eq!(size(&|a| a.statfs_out(&room)), 80);
        for name in [&b"a"[..], b"12345678", b"123456789"] {
            assert_eq!(size(&|a| a.dirent(1, 1, FileKind::Dir, name)), dirent_size(name, false));
        }
    }

    #[test]
    fn short_requests_are_errors() {
        assert!(head(&[]).is_err());
        assert!(head(&[0; 40]).is_err(), "its length says 0");
        let mut whole = [0; 40];
        whole[0] = 40;
        let (_, mut rest) = head(&whole).expect("a whole head");
        assert!(rest.u32().is_err());
        assert!(Fields::of(b"abc").name().is_err(), "no end");
        assert_eq!(Fields::of(b"abc\0").name(), Ok(&b"abc"[..]));
        assert!(Fields::of(b"abc").bytes(4).is_err());
    }

    #[test]
    fn a_request_in_a_slot_reads_as_one_in_one_piece() {
        let mut request = vec![0; IN_HEADER];
        request[4] = 35;
        request.extend([7, 0, 0, 0, 9, 0, 0, 0]);
        request.extend(b"name\0value");
        request[0] = request.len() as u8;
        let (front, others) =
            (request[..IN_HEADER + 8].to_vec(), request[IN_HEADER + 8..].to_vec());
        let mut first = [0xff; 128];
        first[..8].copy_from_slice(&front[IN_HEADER..]);
        let apart = head_in_slot(&front[..IN_HEADER], &first, &others).expect("a whole request");
        for (head, mut f) in [head(&request).expect("a whole request"), apart] {
            assert_eq!(head.opcode, 35);
            assert_eq!(
                (f.u32(), f.u32(), f.name(), f.bytes(5)),
                (Ok(7), Ok(9), Ok(&b"name"[..]), Ok(&b"value"[..]))
            );
            assert!(f.bytes(1).is_err());
        }
        // Requests such as LOOKUP have no first argument. Lengths that do not fit are refused.
        request[0] = (IN_HEADER + others.len()) as u8;
        let (_, mut f) =
            head_in_slot(&request[..IN_HEADER], &first, &others).expect("a whole request");
        assert_eq!(f.name(), Ok(&b"name"[..]));
        request[0] = (IN_HEADER + others.len() - 1) as u8;
        assert!(head_in_slot(&request[..IN_HEADER], &first, &others).is_err());
        request[0] = 255;
        assert!(head_in_slot(&request[..IN_HEADER], &first, &others).is_err());
    }

    #[test]
    fn every_kind_has_a_mode_and_back() {
        let kinds =
            [FileKind::File, FileKind::Dir, FileKind::Symlink, FileKind::Fifo, FileKind::Socket];
        for kind in kinds.into_iter().chain([FileKind::CharDevice, FileKind::BlockDevice]) {
            assert_eq!(kind_of(mode(kind, 0o7777)), Some(kind));
        }
        assert_eq!(kind_of(libc::S_IFMT), None);
    }
}

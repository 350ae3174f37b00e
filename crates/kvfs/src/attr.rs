//! Attributes of inodes and arguments of the calls, as callers see them.

use std::time::Duration;

/// An inode number. It is never reused while a file system is open.
pub type Ino = u64;
/// The root directory.
pub const ROOT: Ino = 1;

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A time relative to the Unix epoch; `nanos` is below 10^9 and counts forward, also before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since the epoch, negative before it.
    pub secs: i64,
    /// Nanoseconds that are added to `secs`.
    pub nanos: u32,
}

impl From<Duration> for Timestamp {
    fn from(since_epoch: Duration) -> Self {
        Timestamp { secs: since_epoch.as_secs() as i64, nanos: since_epoch.subsec_nanos() }
    }
}

/// The attributes of an inode, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode's number.
    pub ino: Ino,
    /// The inode's type.
    pub kind: FileKind,
    /// The low twelve bits of the mode.
    pub perm: u16,
    /// The number of names of the inode.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device node, as the kernel encodes it.
    pub rdev: u32,
    /// The number of bytes of a file, the length of the target of a symbolic link, or the number of
    /// entries of a directory.
    pub size: u64,
    /// The number of units of 512 bytes that are stored. Holes do not count.
    pub blocks: u64,
    /// The time of the last access.
    pub atime: Timestamp,
    /// The time of the last change of the content.
    pub mtime: Timestamp,
    /// The time of the last change of the content or the attributes.
    pub ctime: Timestamp,
    /// The time at which the inode was made.
    pub btime: Timestamp,
}

/// The caller of the file system. New inodes get their owner from the caller; the kernel checks
/// permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user, who owns new inodes.
    pub uid: u32,
    /// The group of new inodes, unless the directory passes on its own group.
    pub gid: u32,
    /// The calling thread, as the kernel numbers it.
    pub pid: u32,
}

/// The time that `setattr` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSet {
    /// The time of the call.
    Now,
    /// The given time.
    At(Timestamp),
}

/// Attributes that `setattr` changes. A field that is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The low twelve bits of the mode.
    pub mode: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size in bytes. A file is truncated, or extended by a hole.
    pub size: Option<u64>,
    /// The time of the last access.
    pub atime: Option<TimeSet>,
    /// The time of the last change of the content.
    pub mtime: Option<TimeSet>,
    /// The time of the last change, if a kernel that caches writes supplies it. Such a kernel knows
    /// this time better than the file system.
    pub ctime: Option<Timestamp>,
    /// The group of a caller without CAP_FSETID. A change of size by such a caller clears the
    /// set-uid and set-gid bits. (Set-gid without group execute stays for a member of the file's
    /// group.)
    pub unprivileged_group: Option<u32>,
}

/// Properties of a read other than its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadHints {
    /// The read leaves the access time alone (`O_NOATIME`).
    pub keep_atime: bool,
}

/// Properties of a write other than its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteHints {
    /// The group of a caller without CAP_FSETID. A write by such a caller clears the set-uid and
    /// set-gid bits, as with [`SetAttr::unprivileged_group`].
    pub unprivileged_group: Option<u32>,
    /// The write brings whole pages out of a cache. Programs may have changed only a part of these
    /// pages.
    pub from_cache: bool,
    /// `Fs::announce_cached` was called for this write.
    pub announced: bool,
    /// The write appends to the file. The offset is the end of the file as the caller knows it, and
    /// is ignored. Calls that append to one file must be serialized.
    pub append: bool,
}

/// The result of a change of a file's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of bytes written.
    pub bytes: u64,
    /// The write has cleared the file's set-uid or set-gid bit. A cache of the mode must be
    /// notified before the caller continues.
    pub lost_privileges: bool,
}

/// The flags of `renameat2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fails with EEXIST instead of replacing.
    pub no_replace: bool,
    /// Swaps the two names.
    pub exchange: bool,
    /// Leaves a whiteout (character device 0:0) at the old name.
    pub whiteout: bool,
}

/// An entry as `readdir` emits it.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode's number.
    pub ino: Ino,
    /// The inode's type.
    pub kind: FileKind,
    /// The name of the entry.
    pub name: &'a [u8],
    /// The position after this entry, for the next call.
    pub cookie: u64,
    /// The attributes, which are returned only with `plus`. `None` if the entry was removed since
    /// it was read; then no reference was added.
    pub attr: Option<Attr>,
}

/// The precondition that `setxattr` puts on the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrFlags {
    /// Sets the attribute whether it exists or not.
    #[default]
    Any,
    /// Fails with EEXIST if the attribute exists.
    Create,
    /// Fails with ENODATA if the attribute does not exist.
    Replace,
}

/// The operation of a `fallocate`. `Collapse` stands for every mode that shifts data, and is not
/// supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Extends the file over the range.
    Allocate,
    /// Frees the range and leaves a hole.
    Punch,
    /// Makes the range read as zeros.
    Zero,
    /// Any mode that shifts data; it is refused.
    Collapse,
}

/// The arguments of a `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// The operation on the range.
    pub mode: AllocateMode,
    /// Keeps the size of the file, even if the range exceeds it.
    pub keep_size: bool,
}

/// The target of a `seek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is stored.
    Data,
    /// The next byte of a hole. The end of the file counts as a hole.
    Hole,
}

/// Statistics of the file system as `statfs` shows them, in blocks of `block_size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The size of a block in bytes.
    pub block_size: u32,
    /// The number of blocks of the store.
    pub blocks: u64,
    /// The number of free blocks.
    pub free: u64,
    /// An estimate of the number of inodes, which are limited by space alone.
    pub files: u64,
    /// The number of inodes among `files` that do not exist yet.
    pub files_free: u64,
    /// The length of the longest name in bytes.
    pub name_max: u32,
}

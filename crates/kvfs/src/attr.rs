//! The attributes of an inode and the arguments of the calls, as callers see them.

use std::time::Duration;

/// An inode number. Never reused while a file system is open.
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

/// Since the Unix epoch; `nanos` is below 10^9 and counts forward, also before 1970.
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
    /// How many names it has.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device node, as the kernel encodes it.
    pub rdev: u32,
    /// Bytes of a file, length of a symbolic link's target, number of entries of a directory.
    pub size: u64,
    /// Units of 512 bytes that are really stored: holes do not count.
    pub blocks: u64,
    /// The time of the last access.
    pub atime: Timestamp,
    /// The time of the last change of the content.
    pub mtime: Timestamp,
    /// The time of the last change of the content or the attributes.
    pub ctime: Timestamp,
    /// When the inode was made.
    pub btime: Timestamp,
}

/// Who makes a call. Permission checks are the kernel's; this gives new inodes their owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user, who owns new inodes.
    pub uid: u32,
    /// The group of new inodes, unless the directory passes on its own.
    pub gid: u32,
    /// The calling thread, as the kernel numbers it.
    pub pid: u32,
}

/// The time that `setattr` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSet {
    /// The time of the call.
    Now,
    /// This time.
    At(Timestamp),
}

/// What `setattr` changes; `None` leaves as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The low twelve bits of the mode.
    pub mode: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size in bytes: a file is cut or extended by a hole.
    pub size: Option<u64>,
    /// The time of the last access.
    pub atime: Option<TimeSet>,
    /// The time of the last change of the content.
    pub mtime: Option<TimeSet>,
    /// Given by a kernel that caches writes and so knows the time of the last change better than we
    /// do.
    pub ctime: Option<Timestamp>,
    /// The caller lacks CAP_FSETID, and this is its group: a change of size clears the set-uid and
    /// set-gid bits. (Set-gid without group execute stays for a member of the file's group.)
    pub unprivileged_group: Option<u32>,
}

/// What is known of a read besides its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadHints {
    /// It leaves the time of the last access alone (`O_NOATIME`).
    pub keep_atime: bool,
}

/// What is known of a write besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteHints {
    /// The caller lacks CAP_FSETID, and this is its group: clear the set-uid and set-gid bits, as
    /// [`SetAttr::unprivileged_group`] does.
    pub unprivileged_group: Option<u32>,
    /// Whole pages out of a cache, of which programs have changed a part.
    pub from_cache: bool,
    /// `Fs::announce_cached` was called for it.
    pub announced: bool,
    /// At the end of the file; the offset is where the caller believes that to be, and does not
    /// count. Calls that append to one file must come one after the other.
    pub append: bool,
}

/// What a change of a file's content did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// How many bytes were written.
    pub bytes: u64,
    /// The write has cleared the file's set-uid or set-gid bit. A cache of the mode must be told
    /// before the caller continues.
    pub lost_privileges: bool,
}

/// The flags of `renameat2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with EEXIST instead of replacing.
    pub no_replace: bool,
    /// Swap the two names.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) at the old name.
    pub whiteout: bool,
}

/// One entry as `readdir` emits it.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode's number.
    pub ino: Ino,
    /// The inode's type.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
    /// The position after this entry, for the next call.
    pub cookie: u64,
    /// With `plus` only; absent for an entry that was removed since it was read, and then no
    /// reference was added.
    pub attr: Option<Attr>,
}

/// What `setxattr` expects of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrFlags {
    /// Sets the attribute whether it exists or not.
    #[default]
    Any,
    /// EEXIST when it exists.
    Create,
    /// ENODATA when it does not.
    Replace,
}

/// What `fallocate` does. `Collapse` covers every mode that shifts data, and is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Extends the file over the range.
    Allocate,
    /// Frees the range and leaves a hole.
    Punch,
    /// Makes the range read as zeros.
    Zero,
    /// Any mode that moves data. It is refused.
    Collapse,
}

/// What `fallocate` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// What happens to the range.
    pub mode: AllocateMode,
    /// The size stays, whatever the range.
    pub keep_size: bool,
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is stored.
    Data,
    /// The next byte of a hole; the end of the file is one.
    Hole,
}

/// As `statfs` shows it, in blocks of `block_size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the store.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// An estimate: inodes are limited by space alone.
    pub files: u64,
    /// How many of `files` do not exist yet.
    pub files_free: u64,
    /// Bytes of the longest name.
    pub name_max: u32,
}

//! The plain types of the seam: inode numbers, attributes, callers, errors.

/// An inode number; the root folder is [`ROOT`].
pub type Ino = u64;

pub const ROOT: Ino = 1;

/// A Linux error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// Seconds since 1970 (negative: before) and nanoseconds after that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    pub secs: i64,
    pub nanos: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

/// Who asks. The kernel has checked the permissions already; this decides who owns what is made.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSet {
    Now,
    At(Timestamp),
}

/// The attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeSet>,
    pub mtime: Option<TimeSet>,
    pub ctime: Option<Timestamp>,
    /// The change takes the set-user-ID and set-group-ID bits away.
    pub kill_suid: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct RenameFlags {
    pub no_replace: bool,
    pub exchange: bool,
    pub whiteout: bool,
}

/// One entry of a folder. `cookie` is where reading goes on behind it.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    pub cookie: u64,
    pub kind: FileKind,
    pub name: &'a [u8],
    pub attr: Option<&'a Attr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Set,
    /// Fails if it exists.
    Create,
    /// Fails if it does not exist.
    Replace,
}

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    Reserve { keep_size: bool },
    PunchHole,
    Zero { keep_size: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Room in the file system; blocks are `block_size` bytes.
#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    pub block_size: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
}

//! What FUSE asks of a file system, in plain types: the seam between the two.
//!
//! The threads that read requests (`session` from `/dev/fuse`, `queues` over io_uring) give them to
//! the `dispatcher`, which decodes them, calls a [`Handler`] and encodes what it returns. All three
//! know nothing of KVFS. A handler knows nothing of
//! message layouts, file descriptors or threads: every call may come from any thread, many at once.
//! Policy that concerns the protocol itself (how long the kernel may cache, which requests are
//! answered "do it without me") is in the [`Policy`], for all handlers alike.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use kvfs::{
    Allocate, AllocateMode, Attr, Caller, FSync, FileKind, GoingDown, Ino, ROOT, ReadHints,
    RenameFlags, SetAttr, StatFs, TimeSet, Timestamp, Whence, WriteHints, Written, XattrFlags,
};

/// A Linux error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The call would have to wait for other calls, and [`may_wait`] says that it may not here. It
    /// has changed nothing.
    pub const WAITS: Errno = Errno(i32::MAX);
}

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Whether the calling thread may wait in a call of a handler for something that other calls bring.
/// Where it may not, no other thread could answer these.
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Does `work`, in which the calling thread may not wait for other calls.
pub(crate) fn without_waiting<T>(work: impl FnOnce() -> T) -> T {
    MAY_WAIT.set(false);
    let done = work();
    MAY_WAIT.set(true);
    done
}

/// The number by which the kernel knows an inode: FUSE's `nodeid`. Programs see another one as
/// `st_ino`, the `ino` of [`NodeAttr`] and [`Listed`]. The number that a store gives the inode is
/// an [`Ino`]; several views may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount.
    pub const ROOT: NodeId = NodeId(1);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An inode and its attributes. The number in the attributes is what programs see as `st_ino`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAttr {
    /// The inode.
    pub node: NodeId,
    /// Its attributes.
    pub attr: Attr,
}

/// One entry as `readdir` lists it.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The number that programs see.
    pub ino: u64,
    /// Its type.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
    /// The position after this entry, for the next call.
    pub cookie: u64,
    /// Its attributes, where they are asked for and it still exists.
    pub attr: Option<NodeAttr>,
}

/// The answer to a request.
pub type Reply<T> = Result<T, Errno>;

/// A file system as FUSE sees it: inodes, names relative to a directory, no paths and no open
/// files.
///
/// Every call that returns an entry (`lookup`, `mknod`, `mkdir`, `symlink`, `link`, an entry of
/// `readdir` with attributes) hands the kernel one reference to the inode, which `forget` gives
/// back. An inode with references stays readable and writable after its last name is gone. Offsets
/// and lengths are bytes.
pub trait Handler: Send + Sync + 'static {
    /// The entry `name` of `parent`; `None`: there is none, and the kernel may remember that.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Reply<Option<NodeAttr>>;
    /// Takes back `references` of the kernel to an inode.
    fn forget(&self, node: NodeId, references: u64);
    /// The attributes of an inode.
    fn getattr(&self, node: NodeId) -> Reply<NodeAttr>;
    /// Changes attributes and returns them.
    fn setattr(&self, node: NodeId, changes: &SetAttr, caller: Caller) -> Reply<NodeAttr>;
    /// The target of a symbolic link.
    fn readlink(&self, node: NodeId) -> Reply<Bytes>;
    /// Makes a file or a special file.
    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
        caller: Caller,
    ) -> Reply<NodeAttr>;
    /// Makes a directory.
    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u16, caller: Caller) -> Reply<NodeAttr>;
    /// A file without a name; `link` may give it one.
    fn tmpfile(&self, parent: NodeId, perm: u16, caller: Caller) -> Reply<NodeAttr>;
    /// Makes a symbolic link.
    fn symlink(
        &self,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Reply<NodeAttr>;
    /// Gives an inode one more name.
    fn link(&self, node: NodeId, parent: NodeId, name: &[u8], caller: Caller) -> Reply<NodeAttr>;
    /// Removes a name that is no directory's.
    fn unlink(&self, parent: NodeId, name: &[u8], caller: Caller) -> Reply<()>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8], caller: Caller) -> Reply<()>;
    /// Renames an entry, with the flags of `renameat2`.
    fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
        caller: Caller,
    ) -> Reply<()>;
    /// Up to `length` bytes; fewer only at the end of the file.
    fn read(&self, node: NodeId, offset: u64, length: u32, hints: ReadHints) -> Reply<Bytes>;
    /// Reads into `room`, as many bytes as fit; gives how many there were.
    fn read_into(
        &self,
        node: NodeId,
        offset: u64,
        room: &mut [u8],
        hints: ReadHints,
    ) -> Reply<usize> {
        let data = self.read(node, offset, u32::try_from(room.len()).unwrap_or(u32::MAX), hints)?;
        room.get_mut(..data.len()).ok_or(Errno(libc::EIO))?.copy_from_slice(&data);
        Ok(data.len())
    }
    /// Whether writes out of the kernel's cache are to be announced now.
    fn wants_announcements(&self) -> bool {
        false
    }
    /// A write out of the kernel's cache at this offset has been taken and will come to `write`
    /// soon (`WriteHints::announced`). Called in the order in which the kernel sends them, one at a
    /// time.
    fn announce(&self, _node: NodeId, _offset: u64) {}
    /// Writes all of it, or fails.
    fn write(&self, node: NodeId, offset: u64, data: &[u8], hints: WriteHints) -> Reply<Written>;
    /// On disk when it returns. `data_only`: times may be left out.
    fn fsync(&self, node: NodeId, data_only: bool) -> Reply<()>;
    /// As `fsync`, for a directory.
    fn fsyncdir(&self, node: NodeId, data_only: bool) -> Reply<()>;
    /// What of an FSYNC can be done without waiting for anything; it ends with the next `sync`,
    /// unless this says otherwise.
    fn begin_fsync(&self, _node: NodeId) -> Reply<FSync> {
        Ok(FSync::Alone)
    }
    /// Every FSYNC that has begun before this call is on disk when it returns.
    fn sync(&self) -> Reply<()> {
        Ok(())
    }
    /// Entries behind `cookie` (0: from the start), in a stable order, until `take` returns false:
    /// that entry was not taken. With `attributes` every entry but "." and ".." carries its
    /// attributes, and a reference if taken; one that was removed since carries neither.
    fn readdir(
        &self,
        node: NodeId,
        cookie: u64,
        attributes: bool,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Reply<()>;
    /// The value of an extended attribute.
    fn getxattr(&self, node: NodeId, name: &[u8]) -> Reply<Bytes>;
    /// The names, each ended by a zero byte.
    fn listxattr(&self, node: NodeId, caller: Caller) -> Reply<Bytes>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrFlags,
        caller: Caller,
    ) -> Reply<()>;
    /// Removes an extended attribute.
    fn removexattr(&self, node: NodeId, name: &[u8], caller: Caller) -> Reply<()>;
    /// The size and free space of the file system, as they are where an inode lies.
    fn statfs(&self, node: NodeId) -> Reply<StatFs>;
    /// What fallocate(2) does.
    fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        how: Allocate,
        caller: Caller,
    ) -> Reply<Written>;
    /// The first data or hole at or behind `offset`. ENOSYS: from now on every file is to be taken
    /// for data from start to end.
    fn seek(&self, node: NodeId, offset: u64, what: Whence) -> Reply<u64>;
    /// Whether a call may have to wait for something that only other calls can bring about: then
    /// there must be threads for these.
    fn stalls(&self) -> bool {
        false
    }
    /// Ends all service, with so much made durable before.
    fn go_down(&self, _how: GoingDown) -> Reply<()> {
        Err(Errno(libc::ENOTTY))
    }
    /// Whether it has gone down: then every request but those that take no answer fails with EIO.
    fn is_down(&self) -> bool {
        false
    }
    /// Returns the bytes copied.
    fn copy_file_range(
        &self,
        from: (NodeId, u64),
        to: (NodeId, u64),
        length: u64,
        caller: Caller,
    ) -> Reply<Written>;
}

/// How the kernel may cache, and how many requests may be under way.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How long names, and the absence of names, are believed without asking again. Nothing but
    /// this mount changes the file system, or the [`Invalidator`] is called, so this is long.
    pub entry_ttl: Duration,
    /// How long attributes are believed without asking again.
    pub attr_ttl: Duration,
    /// The largest write in one request, bytes.
    pub max_write: u32,
    /// How far the kernel reads ahead, bytes (above 128 KiB this takes the right to write to
    /// `/sys/class/bdi`).
    pub max_readahead: u32,
    /// Background requests (readahead, write-back) under way at once.
    pub max_background: u16,
    /// Writes gather in the kernel and come when it pleases, or when the file is closed or synced.
    /// Without it a write has been answered when it returns, so that everything that depends on it
    /// is known here: sizes, times, holes, and what a rename is to bring.
    pub write_back: bool,
    /// Extended attributes. With them every file that is written costs one request more, in which
    /// the kernel asks for its capabilities.
    pub xattrs: bool,
    /// The time of birth is shown to those who ask for it, for a request for each file that they
    /// ask about first.
    pub birth_times: bool,
    /// Threads that read requests, each on its own clone of the connection. Over io_uring there is
    /// one for each CPU.
    pub threads: usize,
    /// The way that requests take.
    pub transport: TransportChoice,
}

/// Which way requests shall take from the kernel to us and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// `/dev/fuse`.
    #[default]
    Device,
    /// io_uring; no mount without it.
    Uring,
    /// io_uring where the kernel has it switched on and writes go through, else `/dev/fuse`.
    Auto,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            entry_ttl: Duration::from_secs(24 * 3600),
            attr_ttl: Duration::from_secs(24 * 3600),
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 256,
            write_back: false,
            xattrs: true,
            birth_times: false,
            // One per core serves as many clients as can run; on two cores two were as fast as one
            // for a single client and twice as fast for two, and four were slower.
            threads: std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8),
            transport: TransportChoice::default(),
        }
    }
}

/// Tells the kernel to drop what it caches, for changes that did not come through the mount.
pub trait Invalidator: Send + Sync {
    /// The name (also: the remembered absence of the name) is looked up anew. Who works in the
    /// directory it names goes on doing so.
    fn expire_name(&self, parent: NodeId, name: &[u8]) -> std::io::Result<()>;
    /// The name is no more, nor anything below it: the kernel lets go of all that no program uses.
    fn remove_name(&self, parent: NodeId, name: &[u8]) -> std::io::Result<()>;
    /// Attributes and cached pages of the inode are read anew. If it gathers writes the kernel
    /// keeps size and times of files: it believes itself.
    fn invalidate_inode(&self, node: NodeId) -> std::io::Result<()>;
    /// The file is at least this long, whatever the kernel believed, and `last` is the byte before
    /// that end.
    fn extend_to(&self, node: NodeId, size: u64, last: u8) -> std::io::Result<()>;
}

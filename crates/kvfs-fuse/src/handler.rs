//! The interface between FUSE and a file system: the requests of FUSE in plain types.
//!
//! The threads that read requests (`session` from `/dev/fuse`, `queues` over io_uring) give them to
//! the `dispatcher`, which decodes them, calls a [`Handler`] and encodes its result. These three
//! modules know nothing of KVFS. A handler knows nothing of message layouts, file descriptors or
//! threads: calls may come from any thread, and many may come at the same time. Policy that
//! concerns the protocol itself (how long the kernel may cache, which requests it handles itself)
//! is in the [`Policy`], which is the same for all handlers.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use kvfs::{
    Allocate, AllocateMode, Attr, Caller, FSync, FileKind, GoingDown, Ino, ROOT, ReadHints,
    RenameFlags, SetAttr, StatFs, TimeSet, Timestamp, Whence, WriteHints, Written, XattrFlags,
};

/// A Linux error number, as a positive number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The call would have to wait for other calls, and [`may_wait`] does not allow that on this
    /// thread. It has changed nothing.
    pub const WAITS: Errno = Errno(i32::MAX);
}

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Returns whether the calling thread may wait in a call of a handler for the effects of other
/// calls. A thread may not wait if no other thread could answer these calls.
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Runs `work`, during which the calling thread may not wait for other calls.
pub(crate) fn without_waiting<T>(work: impl FnOnce() -> T) -> T {
    MAY_WAIT.set(false);
    let done = work();
    MAY_WAIT.set(true);
    done
}

/// The number by which the kernel knows an inode: FUSE's `nodeid`. Programs see a different number
/// as `st_ino`: the `ino` of [`NodeAttr`] and [`Listed`]. The number that a store gives the inode
/// is an [`Ino`]; several views may share it.
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

/// An inode and its attributes. Programs see the number in the attributes as `st_ino`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAttr {
    /// The inode.
    pub node: NodeId,
    /// The attributes of the inode.
    pub attr: Attr,
}

/// One entry as `readdir` lists it.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The number that programs see.
    pub ino: u64,
    /// The type of the file.
    pub kind: FileKind,
    /// The name of the entry.
    pub name: &'a [u8],
    /// The position after this entry, for the next call.
    pub cookie: u64,
    /// The attributes of the inode, if they are requested and the inode still exists.
    pub attr: Option<NodeAttr>,
}

/// The answer to a request.
pub type Reply<T> = Result<T, Errno>;

/// A file system as FUSE sees it: inodes, names relative to a directory, no paths and no open
/// files.
///
/// Every call that returns an entry (`lookup`, `mknod`, `mkdir`, `symlink`, `link`, an entry of
/// `readdir` with attributes) gives the kernel one reference to the inode, which `forget` returns.
/// An inode with references stays readable and writable after its last name is removed. Offsets and
/// lengths are bytes.
pub trait Handler: Send + Sync + 'static {
    /// Returns the entry `name` of `parent`, or `None` if the entry does not exist. The kernel may
    /// cache its absence.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Reply<Option<NodeAttr>>;
    /// Takes back `references` of the kernel to an inode.
    fn forget(&self, node: NodeId, references: u64);
    /// Returns the attributes of an inode.
    fn getattr(&self, node: NodeId) -> Reply<NodeAttr>;
    /// Changes the attributes of an inode and returns the new ones.
    fn setattr(&self, node: NodeId, changes: &SetAttr, caller: Caller) -> Reply<NodeAttr>;
    /// Returns the target of a symbolic link.
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
    /// Makes a file without a name; `link` may add one.
    fn tmpfile(&self, parent: NodeId, perm: u16, caller: Caller) -> Reply<NodeAttr>;
    /// Makes a symbolic link.
    fn symlink(
        &self,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Reply<NodeAttr>;
    /// Adds one more name to an inode.
    fn link(&self, node: NodeId, parent: NodeId, name: &[u8], caller: Caller) -> Reply<NodeAttr>;
    /// Removes a name that is not a directory's.
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
    /// Reads up to `length` bytes. Fewer bytes are read only at the end of the file.
    fn read(&self, node: NodeId, offset: u64, length: u32, hints: ReadHints) -> Reply<Bytes>;
    /// Reads into `room`, as many bytes as fit, and returns their number.
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
    /// Returns whether writes out of the kernel's cache have to be announced now.
    fn wants_announcements(&self) -> bool {
        false
    }
    /// Announces that a write out of the kernel's cache at this offset has been taken and will
    /// reach `write` soon (`WriteHints::announced`). The calls are made one at a time, in the order
    /// in which the kernel sends the writes.
    fn announce(&self, _node: NodeId, _offset: u64) {}
    /// Writes all of `data`, or fails.
    fn write(&self, node: NodeId, offset: u64, data: &[u8], hints: WriteHints) -> Reply<Written>;
    /// Makes the data of an inode durable before it returns. With `data_only`, times may be left
    /// out.
    fn fsync(&self, node: NodeId, data_only: bool) -> Reply<()>;
    /// Makes a directory durable, like `fsync`.
    fn fsyncdir(&self, node: NodeId, data_only: bool) -> Reply<()>;
    /// Does the part of an FSYNC that waits for nothing. The FSYNC is complete with the next
    /// `sync`, unless the result says otherwise.
    fn begin_fsync(&self, _node: NodeId) -> Reply<FSync> {
        Ok(FSync::Alone)
    }
    /// Makes every FSYNC that has begun before this call durable before it returns.
    fn sync(&self) -> Reply<()> {
        Ok(())
    }
    /// Lists the entries after `cookie` (0 means from the start), in a stable order, until `take`
    /// returns false. The entry for which `take` returned false is not taken. With `attributes`,
    /// every entry except "." and ".." carries its attributes, and a reference if `take` returns
    /// true. An entry that was removed in the meantime carries neither.
    fn readdir(
        &self,
        node: NodeId,
        cookie: u64,
        attributes: bool,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Reply<()>;
    /// Returns the value of an extended attribute.
    fn getxattr(&self, node: NodeId, name: &[u8]) -> Reply<Bytes>;
    /// Returns the names of the extended attributes, each ended by a zero byte.
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
    /// Returns the size and free space of the file system at an inode.
    fn statfs(&self, node: NodeId) -> Reply<StatFs>;
    /// Performs a fallocate(2).
    fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        how: Allocate,
        caller: Caller,
    ) -> Reply<Written>;
    /// Returns the first data or hole at or after `offset`. ENOSYS tells the kernel to treat every
    /// file as data from start to end from now on.
    fn seek(&self, node: NodeId, offset: u64, what: Whence) -> Reply<u64>;
    /// Returns whether a call may have to wait for an event that only other calls can cause. If so,
    /// threads must be available for those calls.
    fn stalls(&self) -> bool {
        false
    }
    /// Ends all service, after making as much data durable as the argument says.
    fn go_down(&self, _how: GoingDown) -> Reply<()> {
        Err(Errno(libc::ENOTTY))
    }
    /// Returns whether the file system has gone down. If it has, every request that takes an answer
    /// fails with EIO.
    fn is_down(&self) -> bool {
        false
    }
    /// Copies a range and returns the number of bytes copied.
    fn copy_file_range(
        &self,
        from: (NodeId, u64),
        to: (NodeId, u64),
        length: u64,
        caller: Caller,
    ) -> Reply<Written>;
}

/// The policy of the kernel's cache, and of the number of requests in flight.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The time for which the kernel caches names, and the absence of names. Without a call of the
    /// [`Invalidator`], only this mount changes the file system, so the time is long.
    pub entry_ttl: Duration,
    /// The time for which the kernel caches attributes.
    pub attr_ttl: Duration,
    /// The size of the largest write in one request, in bytes.
    pub max_write: u32,
    /// The kernel's read-ahead, in bytes. More than 128 KiB requires the right to write to
    /// `/sys/class/bdi`.
    pub max_readahead: u32,
    /// The maximum number of background requests (readahead, write-back) in flight.
    pub max_background: u16,
    /// The kernel gathers writes, and sends them later, or when the file is closed or synced. If it
    /// does not, the daemon has answered a write when the write returns, so the daemon knows
    /// everything that depends on the write: sizes, times, holes, and the content that a rename
    /// publishes.
    pub write_back: bool,
    /// Extended attributes are supported. Then every file that is written costs one more request,
    /// in which the kernel requests the capabilities of the file.
    pub xattrs: bool,
    /// The time of birth is shown to programs that request it. This costs one request for each file
    /// for which a program requests it.
    pub birth_times: bool,
    /// The number of threads that read requests, each on its own clone of the connection. Over
    /// io_uring there is one for each CPU.
    pub threads: usize,
    /// The transport of requests.
    pub transport: TransportChoice,
}

/// The transport of requests between the kernel and the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Requests come from `/dev/fuse`.
    #[default]
    Device,
    /// Requests come over io_uring. If io_uring is not available, the mount fails.
    Uring,
    /// Requests come over io_uring if the kernel has it switched on and writes work, and otherwise
    /// from `/dev/fuse`.
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
            // One thread per core serves as many clients as can run. On two cores, two threads were
            // as fast as one for a single client and twice as fast for two clients; four threads
            // were slower.
            threads: std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8),
            transport: TransportChoice::default(),
        }
    }
}

/// Tells the kernel to drop cached data after changes that did not come through the mount.
pub trait Invalidator: Send + Sync {
    /// Makes the kernel look up the name (or its cached absence) again. Programs whose working
    /// directory has this name continue to work in it.
    fn expire_name(&self, parent: NodeId, name: &[u8]) -> std::io::Result<()>;
    /// Removes the name and everything below it from the kernel's cache: the kernel forgets all
    /// inodes that no program uses.
    fn remove_name(&self, parent: NodeId, name: &[u8]) -> std::io::Result<()>;
    /// Makes the kernel read attributes and cached pages of the inode again. If the kernel gathers
    /// writes, it keeps its own sizes and times of files.
    fn invalidate_inode(&self, node: NodeId) -> std::io::Result<()>;
    /// Tells the kernel that the file is at least this long, and that `last` is the byte before
    /// that end.
    fn extend_to(&self, node: NodeId, size: u64, last: u8) -> std::io::Result<()>;
}

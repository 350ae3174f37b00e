//! Options for opening a file system.

use std::time::Duration;

use crate::compress::Compress;

/// The effect of a read on the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// A read never changes the access time.
    Never,
    /// As with `relatime`, the access time is updated if it is not newer than the last change, or
    /// older than a day. The new time is kept in memory and reaches the store only with another
    /// change of the inode, so that reading causes no writes.
    Relative,
}

/// The default of [`FsOptions::zone_size`], in bytes: that of BetrFS 0.2 (§4).
pub const ZONE_SIZE: u64 = 512 << 10;

/// Options for opening a file system.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// The file system changes nothing, not even the list of orphans.
    pub read_only: bool,
    /// Limit of uncommitted data in all files together, in bytes.
    pub write_buffer: usize,
    /// Memory for inodes without uncommitted changes, in bytes.
    pub inode_memory: usize,
    /// The longest time from a call until its change is on disk.
    pub flush_interval: Duration,
    /// A server may have lent the mainline to a client ([`crate::Views::lend`]), which continues
    /// with it: its files without a name stay. Otherwise this opening ends that.
    pub lent: bool,
    /// Every change is committed before its call returns. This includes files without a name, whose
    /// nodes are then in the store. With a store whose commits are mirrored
    /// ([`kvdb::OpenOptions::mirror`]), the end of this process loses nothing that a call has done.
    pub write_through: bool,
    /// The effect of a read on the access time.
    pub atime: Atime,
    /// Bytes of small files for which a directory reserves inode numbers, so that its files are
    /// adjacent in the store, where everything is sorted by these numbers. 0: files are numbered in
    /// the order in which they are made, in whatever directory. `None`: the size with which the
    /// file system was made, by default [`ZONE_SIZE`]. A new file system is made with the size
    /// given here.
    pub zone_size: Option<u64>,
    /// The way in which pages are compressed of files without the attribute for it,
    /// [`crate::COMPRESS_ATTRIBUTE`]. Without it the options of the dictionary hold, by which they
    /// are not compressed.
    pub compress: Option<Compress>,
    /// Limit of the hard links to one file.
    pub max_links: u32,
    /// The owner of the root directory when it is made.
    pub root_uid: u32,
    /// The group of the root directory when it is made.
    pub root_gid: u32,
    /// The permissions of the root directory when it is made: the low twelve bits of its mode.
    pub root_perm: u16,
}

impl Default for FsOptions {
    fn default() -> Self {
        FsOptions {
            read_only: false,
            write_buffer: 64 << 20,
            inode_memory: 16 << 20,
            flush_interval: Duration::from_secs(1),
            lent: false,
            write_through: false,
            atime: Atime::Relative,
            zone_size: None,
            compress: None,
            max_links: i32::MAX as u32,
            root_uid: 0,
            root_gid: 0,
            root_perm: 0o755,
        }
    }
}

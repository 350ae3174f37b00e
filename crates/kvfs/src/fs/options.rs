//! How a file system is opened.

use std::time::Duration;

/// What a read does to the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never changed by reading.
    Never,
    /// As `relatime`: moves when it is not newer than the last change or older than a day. The new
    /// time is kept in memory and reaches the store only together with another change of the inode,
    /// so that reading causes no writes.
    Relative,
}

/// What [`FsOptions::zone_size`] is by default, bytes: that of BetrFS 0.2 (§4).
pub const ZONE_SIZE: u64 = 512 << 10;

/// How a file system is opened.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Nothing is changed, not even the orphan list.
    pub read_only: bool,
    /// Bytes of uncommitted data in all files together.
    pub write_buffer: usize,
    /// Bytes for inodes in memory that have nothing uncommitted.
    pub inode_memory: usize,
    /// A change is on disk at most this long after the call.
    pub flush_interval: Duration,
    /// Every change is committed before its call returns, files without a name included, whose
    /// nodes are in the store then. With a store whose commits are mirrored
    /// ([`kvdb::OpenOptions::mirror`]), the end of this process loses nothing that a call has done.
    pub write_through: bool,
    /// What a read does to the access time.
    pub atime: Atime,
    /// Bytes of small files that a directory reserves inode numbers for, so that its files lie
    /// together in the store, in which everything sorts by these numbers. 0: files are numbered in
    /// the order in which they are made, wherever that is. `None`: as the file system was made, by
    /// default [`ZONE_SIZE`]. A file system is made with what is given here.
    pub zone_size: Option<u64>,
    /// Hard links one file may have.
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
            write_through: false,
            atime: Atime::Relative,
            zone_size: None,
            max_links: i32::MAX as u32,
            root_uid: 0,
            root_gid: 0,
            root_perm: 0o755,
        }
    }
}

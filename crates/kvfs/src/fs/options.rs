//! Options for opening a file system.

use std::time::Duration;

use crate::pages::compress::Compress;

/// The effect of a read on the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// A read never changes the access time.
    Never,
    /// The access time is updated, as with `relatime`, if it is not newer than the last change, or
    /// older than a day. The new time is kept in memory and is stored only with another change of
    /// the inode, so that reading causes no writes.
    Relative,
}

/// The default of [`FsOptions::zone_size`], in bytes. BetrFS 0.2 (§4) has the same zone size.
pub const ZONE_SIZE: u64 = 512 << 10;

/// Options for opening a file system.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// The file system changes nothing, not even the list of orphans.
    pub read_only: bool,
    /// The maximum amount of uncommitted data in all files together, in bytes.
    pub write_buffer: usize,
    /// The memory for inodes without uncommitted changes, in bytes.
    pub inode_memory: usize,
    /// The longest time from a call until its change is on disk.
    pub flush_interval: Duration,
    /// A server may have lent the mainline to a client ([`crate::Views::lend`]), and the client
    /// continues to use it, so its files without a name stay. Without this option, the opening ends
    /// the lending.
    pub lent: bool,
    /// Every change is committed before its call returns. This includes changes of files without a
    /// name, whose nodes are then in the store. With a store whose commits are mirrored
    /// ([`kvdb::OpenOptions::mirror`]), no completed call is lost when this process ends.
    pub write_through: bool,
    /// The effect of a read on the access time.
    pub atime: Atime,
    /// The number of bytes of small files for which a directory reserves inode numbers. The store
    /// is sorted by inode numbers, so the files of a directory are adjacent. With 0, files of all
    /// directories are numbered in the order in which they are made. With `None`, the size with
    /// which the file system was made is used, by default [`ZONE_SIZE`]. A new file system is made
    /// with the given size.
    pub zone_size: Option<u64>,
    /// The way of compression for the pages of files without the attribute
    /// [`crate::COMPRESS_ATTRIBUTE`]. With `None`, the options of the dictionary apply, and such
    /// pages are not compressed.
    pub compress: Option<Compress>,
    /// The maximum number of hard links to one file.
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

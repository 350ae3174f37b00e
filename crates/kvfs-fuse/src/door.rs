//! The answers of a KVFS file system: each request becomes one of its calls.

use bytes::Bytes;
use kvfs::{Fs, WriteHints};

use crate::handler::*;

/// A KVFS file system behind the door.
pub struct Door {
    fs: Fs,
}

impl Door {
    pub fn new(fs: Fs) -> Door {
        Door { fs }
    }
}

/// What the kernel is told of an error. Damage and I/O errors are also told to the log: a program only sees a number.
fn errno(error: kvfs::Error) -> Errno {
    let errno = error.errno();
    if errno == libc::EIO {
        tracing::error!("{error}");
    }
    Errno(errno)
}

impl Handler for Door {
    fn lookup(&self, parent: Ino, name: &[u8]) -> Reply<Option<Attr>> {
        match self.fs.lookup(parent, name) {
            Ok(attr) => Ok(Some(attr)),
            Err(kvfs::Error::NotFound) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }
    fn forget(&self, ino: Ino, references: u64) {
        self.fs.forget(ino, references);
    }
    fn getattr(&self, ino: Ino) -> Reply<Attr> {
        self.fs.getattr(ino).map_err(errno)
    }
    fn setattr(&self, ino: Ino, changes: &SetAttr, caller: Caller) -> Reply<Attr> {
        self.fs.setattr(ino, changes, caller).map_err(errno)
    }
    fn readlink(&self, ino: Ino) -> Reply<Bytes> {
        self.fs.readlink(ino).map(Bytes::from).map_err(errno)
    }
    fn mknod(&self, parent: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32, caller: Caller) -> Reply<Attr> {
        self.fs.mknod(parent, name, kind, perm, rdev, caller).map_err(errno)
    }
    fn mkdir(&self, parent: Ino, name: &[u8], perm: u16, caller: Caller) -> Reply<Attr> {
        self.fs.mkdir(parent, name, perm, caller).map_err(errno)
    }
    fn tmpfile(&self, parent: Ino, perm: u16, caller: Caller) -> Reply<Attr> {
        self.fs.tmpfile(parent, perm, caller).map_err(errno)
    }
    fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: Caller) -> Reply<Attr> {
        self.fs.symlink(parent, name, target, caller).map_err(errno)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8], _caller: Caller) -> Reply<Attr> {
        self.fs.link(ino, parent, name).map_err(errno)
    }
    fn unlink(&self, parent: Ino, name: &[u8], _caller: Caller) -> Reply<()> {
        self.fs.unlink(parent, name).map_err(errno)
    }
    fn rmdir(&self, parent: Ino, name: &[u8], _caller: Caller) -> Reply<()> {
        self.fs.rmdir(parent, name).map_err(errno)
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags, _caller: Caller) -> Reply<()> {
        self.fs.rename(from.0, from.1, to.0, to.1, flags).map_err(errno)
    }
    fn read(&self, ino: Ino, offset: u64, length: u32) -> Reply<Bytes> {
        self.fs.read(ino, offset, length).map_err(errno)
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Reply<u32> {
        self.fs.write(ino, offset, data, WriteHints { kill_suid }).map_err(errno)
    }
    fn fsync(&self, ino: Ino, data_only: bool) -> Reply<()> {
        self.fs.fsync(ino, data_only).map_err(errno)
    }
    fn fsyncdir(&self, ino: Ino, _data_only: bool) -> Reply<()> {
        self.fs.fsyncdir(ino).map_err(errno)
    }
    fn readdir(&self, ino: Ino, cookie: u64, attributes: bool, take: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Reply<()> {
        self.fs.readdir(ino, cookie, attributes, take).map_err(errno)
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Reply<Bytes> {
        self.fs.getxattr(ino, name).map(Bytes::from).map_err(errno)
    }
    fn listxattr(&self, ino: Ino) -> Reply<Bytes> {
        self.fs.listxattr(ino).map(Bytes::from).map_err(errno)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrFlags, _caller: Caller) -> Reply<()> {
        self.fs.setxattr(ino, name, value, mode).map_err(errno)
    }
    fn removexattr(&self, ino: Ino, name: &[u8], _caller: Caller) -> Reply<()> {
        self.fs.removexattr(ino, name).map_err(errno)
    }
    fn statfs(&self) -> Reply<StatFs> {
        self.fs.statfs().map_err(errno)
    }
    fn fallocate(&self, ino: Ino, offset: u64, length: u64, how: Allocate) -> Reply<()> {
        self.fs.fallocate(ino, how, offset, length).map_err(errno)
    }
    fn seek(&self, ino: Ino, offset: u64, what: Whence) -> Reply<u64> {
        self.fs.seek(ino, offset, what).map_err(errno)
    }
    fn copy_file_range(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Reply<u64> {
        self.fs.copy_file_range(from.0, from.1, to.0, to.1, length).map_err(errno)
    }
}

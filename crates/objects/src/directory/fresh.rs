//! Files that do not have the name of an object yet. The process that writes such a file holds a
//! lock on it, so that the files of killed processes can be recognized.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use env::{Env, Machine};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::root::Root;
use super::tags;
use crate::object::Tag;

/// The folder with the fresh files, on the file system of the objects.
const FOLDER: &str = ".kvfs~fresh";
/// The number of attempts to find a new name.
const ATTEMPTS: u32 = 100;

#[derive(Debug)]
pub(super) struct FreshFiles {
    folder: OwnedFd,
    random: Machine,
}

/// A fresh file, which is durable except for its name. When it is dropped, its name in the folder
/// of fresh files is removed.
#[derive(Debug)]
pub(super) struct Fresh<'a> {
    files: &'a FreshFiles,
    name: String,
    file: File,
    renamed: bool,
}

impl FreshFiles {
    pub fn open(root: &Root) -> rustix::io::Result<FreshFiles> {
        Ok(FreshFiles { folder: root.make_own_folder(FOLDER)?, random: Machine::default() })
    }

    /// Writes and syncs a file.
    pub fn write(&self, bytes: &[u8], tag: &Tag) -> io::Result<Fresh<'_>> {
        let mut fresh = self.make()?;
        fresh.file.write_all(bytes)?;
        fresh.file.sync_all()?;
        tags::note(&fresh.file, tag);
        Ok(fresh)
    }

    fn make(&self) -> io::Result<Fresh<'_>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for _ in 0..ATTEMPTS {
            let name = format!("{}-{:016x}", std::process::id(), self.random.random());
            let fd = match openat(&self.folder, &name, flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => continue,
                opened => opened?,
            };
            let fresh = Fresh { files: self, name, file: fd.into(), renamed: false };
            // Before the file was locked, another process may have mistaken it for an orphan. Then
            // that process holds the lock, or has removed the name.
            match flock(&fresh.file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => continue,
                locked => locked?,
            }
            if fresh.links()? > 0 {
                return Ok(fresh);
            }
        }
        Err(io::Error::other("another process removes all new files"))
    }

    /// Removes files that no process has locked; returns their number.
    pub fn remove_orphans(&self) -> rustix::io::Result<u64> {
        let mut removed = 0;
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            // A file that cannot be opened belongs to another user, or was removed.
            let Ok(file) = openat(&self.folder, name, flags, Mode::empty()) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && unlinkat(&self.folder, name, AtFlags::empty()).is_ok()
            {
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl Fresh<'_> {
    pub fn folder(&self) -> &OwnedFd {
        &self.files.folder
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of names that the file has.
    pub fn links(&self) -> rustix::io::Result<u64> {
        Ok(fstat(&self.file)?.st_nlink as u64)
    }

    /// Records that the file no longer has a name in the folder of fresh files.
    pub fn was_renamed(&mut self) {
        self.renamed = true;
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // If this fails, the next process that opens the folder removes the name.
            let _ = unlinkat(&self.files.folder, &self.name, AtFlags::empty());
        }
    }
}

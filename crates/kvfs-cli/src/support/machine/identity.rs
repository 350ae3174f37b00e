//! The identity of the file that a path leads to: a name, a symbolic link, a hard link, a loop
//! device of the file and a second node of one device all lead to the same file.

use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use zones::loop_devices::{self, Backing};

use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    File { device: u64, inode: u64 },
    BlockDevice(u64),
}

impl Identity {
    fn of(meta: &Metadata) -> Identity {
        match meta.file_type().is_block_device() {
            true => Identity::of_device(meta.rdev(), None),
            false => Identity::File { device: meta.dev(), inode: meta.ino() },
        }
    }

    /// Returns the identity of a block device: of the file that it is bound to if it is a loop
    /// device. `open` is the device if it is open already.
    fn of_device(device: u64, open: Option<BorrowedFd<'_>>) -> Identity {
        match loop_devices::backing(device, open) {
            Some(Backing::File { device, inode }) => Identity::File { device, inode },
            Some(Backing::BlockDevice(below)) => Identity::BlockDevice(below),
            None => Identity::BlockDevice(device),
        }
    }

    /// Returns the names of loop devices, and of the files that they are bound to, that have this
    /// identity. Each of them has a lock of its own.
    pub fn through_loop_devices(self) -> Vec<PathBuf> {
        let mut names = loop_devices::names();
        names.retain(|name| Identity::of_path(name) == Some(self));
        names
    }

    /// Returns the identity of a path, following symbolic links, or `None` if it does not exist.
    pub fn of_path(path: &Path) -> Option<Identity> {
        std::fs::metadata(path).ok().map(|meta| Identity::of(&meta))
    }

    /// Returns the identity of an open file, such as standard input.
    pub fn of_open(file: impl AsFd) -> Option<Identity> {
        let stat = rustix::fs::fstat(&file).ok()?;
        Some(match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::BlockDevice => {
                Identity::of_device(stat.st_rdev, Some(file.as_fd()))
            }
            _ => Identity::File { device: stat.st_dev, inode: stat.st_ino },
        })
    }

    /// Returns the identity of the entry `name` of an open directory, without following a link, or
    /// `None` if it does not exist.
    pub fn of_entry(directory: impl AsFd, name: &[u8]) -> Option<Identity> {
        let stat =
            rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Identity::File { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns the identity of the store that `target` refers to: its file, or the directory it is
    /// mounted on.
    pub fn of_store(target: &Path) -> Option<Identity> {
        if !target.is_dir() {
            return Identity::of_path(target);
        }
        let path = paths::full_path(target).ok()?;
        let within = |r: &Record| path.starts_with(&r.mount_point);
        // Take the innermost of several nested mounts.
        let record = Record::all()
            .into_iter()
            .filter(within)
            .max_by_key(|r| r.mount_point.as_os_str().len());
        match record {
            Some(record) => Identity::of_path(&record.store),
            None => {
                let mount = kvfs_fuse::mounts::mount_of(&path).ok().flatten()?;
                Identity::of_path(Path::new(&mount.source))
            }
        }
    }
}

/// Returns the living daemon that serves or closes the store at `path`, by whatever name or loop
/// device the store was opened there.
pub fn daemon_of(path: &Path) -> Option<Record> {
    Record::of_store(path).or_else(|| {
        let identity = Identity::of_path(path)?;
        // Stores in files are compared by what was noted of them: a path of somebody else may be on
        // a file system that does not answer.
        let is_it = |record: &Record| match record.store.starts_with("/dev") {
            true => Identity::of_path(&record.store) == Some(identity),
            false => record
                .file
                .is_some_and(|(device, inode)| Identity::File { device, inode } == identity),
        };
        Record::of_living().into_iter().find(is_it)
    })
}

/// Fails if the source of a command, `path`, is the store that is its destination.
pub fn must_be_another(store: &Path, source: Option<Identity>, path: &Path) -> Outcome {
    match (Identity::of_path(store), source) {
        (Some(store), Some(source)) if store == source => {
            let what = format!("{} is the store itself", path.shown());
            Err(Failure::new(Exit::Usage, what).hint("give another file; nothing was written"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_by_every_name_of_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [file, hard, soft, other] =
            ["file", "hard", "soft", "other"].map(|name| directory.path().join(name));
        std::fs::write(&file, "content").expect("a file");
        std::fs::write(&other, "content").expect("a file");
        std::fs::hard_link(&file, &hard).expect("a link");
        std::os::unix::fs::symlink(&file, &soft).expect("a link");
        let it = Identity::of_path(&file);
        assert!(
            it.is_some()
                && Identity::of_path(&hard) == it
                && Identity::of_path(&soft) == it
                && Identity::of_path(&other) != it
        );
    }
}

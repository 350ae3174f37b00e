//! Which file a path leads to, whatever names lead there: no command may write onto what it reads,
//! and a name, a symbolic link, a hard link and a second node of one device are all the same file.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::daemons::Record;
use crate::output::{Exit, Failure, Outcome};
use crate::paths;

/// What files are made with unless asked otherwise: a store, a stream and an archive hold what only
/// its owner may read.
pub const PRIVATE: u32 = 0o600;

/// The permissions of a file that a command makes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct FileMode {
    /// The permissions of the file that is made, octal. It holds what others may not be meant to
    /// read, so by default they cannot.
    #[arg(long, value_name = "MODE", value_parser = parse_mode, default_value = "0600")]
    mode: u32,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let bad = || format!("'{text}' are no permissions: write them as in 0640");
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(bad)
}

impl FileMode {
    /// Gives a file that was made private the permissions that were asked for.
    pub fn apply(self, path: &Path) -> Outcome {
        if self.mode == PRIVATE {
            return Ok(());
        }
        let set = std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode));
        set.map_err(|e| {
            Failure::io(format!("cannot set the permissions of {}", path.display()), &e)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    File { device: u64, inode: u64 },
    BlockDevice(u64),
}

impl Identity {
    fn of(meta: &Metadata) -> Identity {
        match meta.file_type().is_block_device() {
            true => Identity::BlockDevice(meta.rdev()),
            false => Identity::File { device: meta.dev(), inode: meta.ino() },
        }
    }

    /// Of what a path leads to, symbolic links followed; `None`: nothing is there.
    pub fn of_path(path: &Path) -> Option<Identity> {
        std::fs::metadata(path).ok().map(|meta| Identity::of(&meta))
    }

    /// Of an open file, such as standard input.
    pub fn of_open(file: impl AsFd) -> Option<Identity> {
        let stat = rustix::fs::fstat(file).ok()?;
        Some(match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::BlockDevice => Identity::BlockDevice(stat.st_rdev),
            _ => Identity::File { device: stat.st_dev, inode: stat.st_ino },
        })
    }

    /// Of the entry `name` of an open directory itself; `None`: there is none.
    pub fn of_entry(directory: impl AsFd, name: &[u8]) -> Option<Identity> {
        let stat =
            rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Identity::File { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Of the store that `target` means: its file, or the directory it is mounted on.
    pub fn of_store(target: &Path) -> Option<Identity> {
        if !target.is_dir() {
            return Identity::of_path(target);
        }
        let path = paths::full_path(target).ok()?;
        let within = |r: &Record| path.starts_with(&r.mount_point);
        // Of several mounts the innermost.
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

/// Says that what is read must not be written.
fn is_itself(path: &Path, what: &str) -> Failure {
    let what = format!("{} is {what} itself: writing there would destroy it", path.display());
    Failure::new(Exit::Usage, what).hint("give another file; nothing was written")
}

/// Fails when `identity`, the one of `path`, is the store's.
pub fn refuse(store: Option<Identity>, identity: Option<Identity>, path: &Path) -> Outcome {
    match (store, identity) {
        (Some(store), Some(other)) if store == other => Err(is_itself(path, "the store")),
        _ => Ok(()),
    }
}

/// Opens a file to be written from its beginning, private when it is made; never the store that is
/// read. The file that was opened is looked at, not its name, and it is emptied only then.
pub fn create(path: &Path, mode: FileMode, store: Option<Identity>) -> Outcome<File> {
    let cannot = |e: io::Error| Failure::io(format!("cannot write {}", path.display()), &e);
    let open = |new: bool| {
        let mut options = File::options();
        options.write(true).mode(PRIVATE).custom_flags(libc::O_NOCTTY);
        if new { options.create_new(true).open(path) } else { options.create(true).open(path) }
    };
    let (file, made) = match open(true) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (open(false).map_err(cannot)?, false),
        file => (file.map_err(cannot)?, true),
    };
    refuse(store, Identity::of_open(&file), path)?;
    if made {
        if mode.mode != PRIVATE {
            file.set_permissions(std::fs::Permissions::from_mode(mode.mode)).map_err(cannot)?;
        }
    } else if file.metadata().map_err(cannot)?.is_file() {
        file.set_len(0).map_err(cannot)?;
    }
    Ok(file)
}

/// Takes back what was written of a file to be made, for half of it must not pass for the whole.
/// What is no file stays, and so does a symbolic link; what that leads to is emptied.
pub fn discard(file: &File, path: &Path) {
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return;
    }
    let _ = file.set_len(0);
    let named = std::fs::symlink_metadata(path).ok().map(|meta| Identity::of(&meta));
    if named.is_some() && named == Identity::of_open(file) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal() {
        assert_eq!((parse_mode("0644"), parse_mode("600")), (Ok(0o644), Ok(0o600)));
        for bad in ["", "8", "0o644", "rw", "4755", "-1"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

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
        for path in [&file, &hard, &soft] {
            assert!(create(path, FileMode { mode: PRIVATE }, it).is_err());
            assert_eq!(std::fs::read(&file).expect("there"), b"content");
        }
        create(&other, FileMode { mode: PRIVATE }, it).expect("another file");
        assert_eq!(std::fs::read(&other).expect("there"), b"");
    }
}

//! The root folder and the folders in it. Each part of a path is opened without following links, so
//! that no key leads out of the root folder, even if other users create links in it.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use env::sync::Mutex;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, openat};
use rustix::io::Errno;

use crate::error::{ObjectsError, Result};
use crate::key::Key;

/// The flags with which a folder is opened.
pub(super) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The permissions of new folders and files.
const FOLDER_MODE: Mode = Mode::RWXU;
/// The number of folder names that are remembered.
const MOST_SYNCED: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    path: PathBuf,
    /// Folders whose names this process has made durable. This process cannot rely on another
    /// process for this: that process may have created a folder without having synced its name yet.
    synced: Mutex<HashSet<String>>,
}

/// The kind of entry that has a name in a folder.
pub(super) enum Found {
    Nothing,
    Object(File, Stat),
    Folder,
    /// A link, a pipe, or a device.
    Other,
}

impl Root {
    pub fn open(path: &Path) -> Result<Root> {
        let place = format!("dir:{}", path.display());
        // The user may name the folder by a link.
        let flags = FOLDER.difference(OFlags::NOFOLLOW);
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Root { fd, path: path.into(), synced: Mutex::default() }),
            Err(Errno::NOENT) => Err(ObjectsError::NoBucket { place }),
            Err(Errno::NOTDIR) => {
                Err(ObjectsError::Invalid(format!("{place} is no folder; name one")))
            }
            Err(e) => Err(ObjectsError::io(format!("opening {place}"), e)),
        }
    }

    pub fn create(path: &Path) -> Result<()> {
        let failed = |e| ObjectsError::io(format!("creating {}", path.display()), e);
        let missing: Vec<&Path> = path
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .collect();
        for folder in missing.into_iter().rev() {
            use std::os::unix::fs::DirBuilderExt;
            match std::fs::DirBuilder::new().mode(FOLDER_MODE.bits()).create(folder) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
                _ => {}
            }
            let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
            let above = File::open(above.unwrap_or(Path::new("."))).map_err(failed)?;
            above.sync_all().map_err(failed)?;
        }
        Ok(())
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub fn place(&self) -> String {
        format!("dir:{}", self.path.display())
    }

    /// Returns whether the folder was removed after it was opened.
    pub fn is_gone(&self) -> bool {
        fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Opens the folder that contains the file of an object. Returns `NOENT` if the folder does not
    /// exist, and `NOTDIR` if a part of its path is a file or a link.
    pub fn folder_of(&self, key: &Key) -> rustix::io::Result<OwnedFd> {
        let (folders, _) = key.split();
        let mut folder = open_folder(&self.fd, ".")?;
        for part in folders {
            folder = open_folder(&folder, part)?;
        }
        Ok(folder)
    }

    /// Opens the folder that contains the file of an object, and creates it durably if it is
    /// missing.
    pub fn make_folder_of(&self, key: &Key) -> rustix::io::Result<OwnedFd> {
        let (folders, _) = key.split();
        let mut folder = open_folder(&self.fd, ".")?;
        let mut path = String::new();
        for part in folders {
            path.push_str(part);
            path.push('/');
            folder = self.make_folder(&folder, part, &path)?;
        }
        Ok(folder)
    }

    /// Opens a folder that is in the root itself, and creates it if it is missing.
    pub fn make_own_folder(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        self.make_folder(&self.fd, name, name)
    }

    fn make_folder(&self, above: &OwnedFd, part: &str, path: &str) -> rustix::io::Result<OwnedFd> {
        let mut made = false;
        let folder = match open_folder(above, part) {
            Err(Errno::NOENT) => {
                match mkdirat(above, part, FOLDER_MODE) {
                    Ok(()) | Err(Errno::EXIST) => made = true,
                    Err(e) => return Err(e),
                }
                open_folder(above, part)?
            }
            opened => opened?,
        };
        if made || !self.synced.lock().contains(path) {
            rustix::io::retry_on_intr(|| fsync(above))?;
            let mut synced = self.synced.lock();
            if synced.len() >= MOST_SYNCED {
                synced.clear();
            }
            synced.insert(path.into());
        }
        Ok(folder)
    }
}

fn open_folder(above: impl AsFd, part: &str) -> rustix::io::Result<OwnedFd> {
    match openat(above, part, FOLDER, Mode::empty()) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        opened => opened,
    }
}

/// Opens the entry with this name in a folder, if it can be an object.
pub(super) fn find(folder: &OwnedFd, name: &str) -> rustix::io::Result<Found> {
    // Opening a pipe would block until there is a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match openat(folder, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        // It is a link, a socket, or a device that has no driver.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(Found::Other),
        Err(e) => return Err(e),
    };
    let stat = fstat(&fd)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Found::Object(File::from(fd), stat),
        FileType::Directory => Found::Folder,
        _ => Found::Other,
    })
}

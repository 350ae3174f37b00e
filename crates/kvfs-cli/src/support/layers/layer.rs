//! One layer: a directory tree whose files are found by their paths in it, strictly beneath it.
//!
//! Paths are bytes, names joined by `/` without one at either end. The empty path is the directory
//! of the layer itself. No symbolic link is followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crate::support::machine::beneath;
use crate::support::terminal::output::{Failure, Outcome};
use crate::support::terminal::text::{Shown, show};

/// A name of an extended attribute, and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// The extended attributes in which the overlay keeps its own notes. Others belong to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// `trusted.overlay.`, as of an overlay that root has mounted.
    Trusted,
    /// `user.overlay.`, as of an overlay that was mounted with `userxattr`.
    User,
}

impl Marks {
    /// Returns what the names of the notes begin with.
    pub fn prefix(self) -> &'static [u8] {
        match self {
            Marks::Trusted => b"trusted.overlay.",
            Marks::User => b"user.overlay.",
        }
    }

    /// Returns the full name of a note.
    pub fn name(self, note: &[u8]) -> Vec<u8> {
        [self.prefix(), note].concat()
    }

    /// Returns the name that a program in the overlay sees for this name in a layer, or `None` if
    /// it is a note. The overlay stores a program's own `PREFIX.x` as `PREFIX.overlay.x`.
    pub fn seen(self, name: &[u8]) -> Option<Vec<u8>> {
        match name.strip_prefix(self.prefix()) {
            None => Some(name.to_vec()),
            Some(note) => note.strip_prefix(b"overlay.").map(|own| self.name(own)),
        }
    }
}

/// A point in time, in seconds since 1970 and nanoseconds.
pub type Time = (i64, u32);

/// Everything that is known of a file without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub kind: FileType,
    /// The permissions, with the set-ID bits and the sticky bit.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The length in bytes.
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
    pub device: u64,
    pub inode: u64,
    /// The number of a device node.
    pub rdev: u64,
    /// True for a file with several names.
    pub is_linked: bool,
}

impl Attributes {
    fn of(stat: &Stat) -> Attributes {
        Attributes {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
            device: stat.st_dev,
            inode: stat.st_ino,
            rdev: stat.st_rdev,
            is_linked: stat.st_nlink > 1,
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Returns true for the device node by which an overlay removes a name.
    pub fn is_whiteout(&self) -> bool {
        self.kind == FileType::CharacterDevice && self.rdev == 0
    }
}

/// Joins a path in a layer and a name.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// Returns whether a path lies in a directory.
pub fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() && !path.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Splits a path in a layer into its directory and its name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Returns all extended attributes of an open file, as [`Layer::xattrs`] does. It may be open for
/// its path alone.
pub fn xattrs_of(opened: &OwnedFd) -> io::Result<Vec<Xattr>> {
    // The calls for descriptors refuse one that was opened for its path alone.
    let place = format!("/proc/self/fd/{}", opened.as_raw_fd());
    // Linux has at most this many bytes of names, and in a value.
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::listxattr(&*place, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::ACCESS | Errno::PERM) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(e.into()),
    };
    let mut all = Vec::new();
    let mut value = vec![0; 64 << 10];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if let Ok(length) = rustix::fs::getxattr(&*place, name, &mut value[..]) {
            all.push((name.to_vec(), value[..length].to_vec()));
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// An open layer.
pub struct Layer {
    directory: OwnedFd,
    path: PathBuf,
}

impl AsFd for Layer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Layer {
    pub fn open(path: &Path) -> Outcome<Layer> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => Ok(Layer { directory, path: path.to_owned() }),
            Err(e) => Err(Failure::io(format!("cannot open {}", path.shown()), &e.into())),
        }
    }

    /// Opens a directory, for calls that take one and a name in it.
    pub fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.entry(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Returns the failure to report for a file of the layer.
    pub fn failure(&self, doing: &str, path: &[u8], error: &io::Error) -> Failure {
        let (place, name) = (self.path.shown(), show(path));
        Failure::io(format!("{doing} {name} in {place}"), error)
    }

    fn entry(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        Ok(beneath::open(&self.directory, path, flags, Mode::empty())?)
    }

    /// Returns the attributes of a file, or `None` if it does not exist.
    pub fn attributes(&self, path: &[u8]) -> io::Result<Option<Attributes>> {
        let opened = match self.entry(path, OFlags::PATH) {
            Ok(opened) => opened,
            Err(e) => match e.raw_os_error().map(Errno::from_raw_os_error) {
                // A link on the way leads elsewhere: the path is not in this layer.
                Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                _ => return Err(e),
            },
        };
        Ok(Some(Attributes::of(&rustix::fs::fstat(&opened)?)))
    }

    /// Opens a directory for reading.
    pub fn listing(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.entry(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Returns the names in a directory, sorted as bytes.
    pub fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let directory = self.listing(path)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns all extended attributes of a file, the overlay's notes among them, sorted by name.
    /// Those that this user cannot read are left out.
    pub fn xattrs(&self, path: &[u8]) -> io::Result<Vec<Xattr>> {
        xattrs_of(&self.entry(path, OFlags::PATH)?)
    }

    /// Sets an extended attribute of a file, or removes it if the value is `None`.
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let opened = self.entry(path, OFlags::PATH)?;
        let place = format!("/proc/self/fd/{}", opened.as_raw_fd());
        Ok(match value {
            Some(value) => rustix::fs::setxattr(&*place, name, value, XattrFlags::empty()),
            None => rustix::fs::removexattr(&*place, name),
        }?)
    }

    /// Sets the permissions of a file, which is not a symbolic link.
    pub fn set_mode(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let opened = self.entry(path, OFlags::PATH)?;
        let place = format!("/proc/self/fd/{}", opened.as_raw_fd());
        Ok(rustix::fs::chmod(&*place, Mode::from_raw_mode(mode))?)
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, path: &[u8]) -> io::Result<()> {
        let (directory, name) = split(path);
        Ok(rustix::fs::unlinkat(self.directory(directory)?, name, AtFlags::empty())?)
    }

    /// Returns the target of a symbolic link.
    pub fn target(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let link = self.entry(path, OFlags::PATH)?;
        // The empty path is the link that is open.
        Ok(rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes())
    }

    /// Opens a regular file for reading. Fails for all else.
    pub fn file(&self, path: &[u8]) -> io::Result<File> {
        let opened = self.entry(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = rustix::fs::fstat(&opened)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(opened.into()),
            _ => Err(io::Error::other("it is no file")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_the_overlay_is_not_an_attribute_of_the_file() {
        let seen = |name: &[u8]| Marks::Trusted.seen(name);
        assert_eq!(seen(b"trusted.overlay.origin"), None);
        assert_eq!(seen(b"user.overlay.opaque"), Some(b"user.overlay.opaque".to_vec()));
        // The overlay has escaped this one, which a program in it has set.
        let own = seen(b"trusted.overlay.overlay.opaque");
        assert_eq!(own, Some(b"trusted.overlay.opaque".to_vec()));
        assert_eq!(Marks::User.seen(b"user.overlay.opaque"), None);
    }

    #[test]
    fn a_layer_ends_at_its_links_and_above_it() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(directory.path().join("layer/a")).expect("directories");
        std::fs::write(directory.path().join("outside"), "x").expect("a file");
        std::os::unix::fs::symlink("..", directory.path().join("layer/up")).expect("a link");
        let layer = Layer::open(&directory.path().join("layer")).expect("it opens");
        assert_eq!(layer.names(b"").expect("names"), [&b"a"[..], b"up"]);
        assert_eq!(layer.target(b"up").expect("a target"), b"..");
        assert_eq!(layer.attributes(b"up/outside").expect("a look"), None);
        assert!(layer.attributes(b"a").expect("a look").is_some_and(|a| a.is_directory()));
        assert!(layer.file(b"../outside").is_err() && layer.file(b"a").is_err());
    }
}

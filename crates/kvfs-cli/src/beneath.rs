//! Opening what lies in a folder and nowhere else: for paths that come from a store, into folders
//! that others may write to.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens what lies at `path` in an open folder: no symbolic link is followed, on the way or at its
/// end.
pub fn open(folder: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&folder, path, flags, mode, resolve) {
        Err(Errno::NOSYS) => {}
        opened => return opened,
    }
    // Before Linux 5.6: name by name.
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(&folder, ".", way, Mode::empty())?;
    let mut names = path.split(|c| *c == b'/').peekable();
    while let Some(name) = names.next() {
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::XDEV);
        }
        let (flags, mode) =
            if names.peek().is_some() { (way, Mode::empty()) } else { (flags, mode) };
        at = rustix::fs::openat(&at, name, flags, mode)?;
    }
    Ok(at)
}

/// The content of a regular file of at most `most` bytes. Nothing else is opened for reading: a
/// fifo would wait for a writer, and a device may do anything.
pub fn read_file(folder: &Path, path: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let no = |what: &str| io::Error::other(what);
    let folder = rustix::fs::open(
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let it = open(folder, path, OFlags::PATH, Mode::empty())?;
    let stat = rustix::fs::fstat(&it)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || u64::try_from(stat.st_size).is_ok_and(|size| size > most)
    {
        return Err(no("not a file, or too large"));
    }
    // The very file that was looked at.
    let place = format!("/proc/self/fd/{}", it.as_raw_fd());
    let file = rustix::fs::open(
        place,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(no("too large")) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_regular_file_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "content").expect("a file");
        std::fs::create_dir(folder.path().join("folder")).expect("a folder");
        std::os::unix::fs::symlink("file", folder.path().join("link")).expect("a link");
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, Mode::RWXU, 0).expect("a fifo");
        assert_eq!(read_file(folder.path(), b"file", 7).expect("its content"), b"content");
        for (name, most) in [("file", 6), ("folder", 7), ("link", 7), ("fifo", 7), ("../file", 7)] {
            assert!(read_file(folder.path(), name.as_bytes(), most).is_err(), "{name}");
        }
    }
}

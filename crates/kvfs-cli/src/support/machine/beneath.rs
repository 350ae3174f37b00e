//! Opens paths strictly beneath a directory. It is used for paths that come from a store, in
//! directories that others may write to.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::support::terminal::output::{Exit, Failure};

/// Opens `path` in an open directory, or the directory itself if it is `.`. No symbolic link is
/// followed, neither on the way nor at the end.
pub fn open(
    directory: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&directory, path, flags, mode, resolve) {
        // An old kernel, or a path longer than a system call takes: open it name by name.
        Err(Errno::NOSYS | Errno::NAMETOOLONG) => {}
        opened => return opened,
    }
    open_by_names(directory, path, flags, mode)
}

/// Opens a path name by name: before Linux 5.6, or if it is longer than a system call takes.
fn open_by_names(
    directory: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    if path == b"." {
        return rustix::fs::openat(&directory, path, flags, mode);
    }
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(&directory, ".", way, Mode::empty())?;
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

/// Returns the failure to report for a path that could not be opened.
pub fn failure(doing: &str, error: io::Error) -> Failure {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => {
            Failure::new(Exit::Usage, format!("{doing}: a symbolic link is not followed"))
                .hint("name where it leads")
        }
        Some(Errno::XDEV) => {
            Failure::new(Exit::Usage, format!("{doing}: it leads out of the store"))
        }
        _ => Failure::io(doing, &error),
    }
}

/// Opens a regular file for reading. Refuses everything else: a FIFO would wait for a writer, and
/// opening a device may have side effects.
pub fn open_file(directory: &Path, path: &[u8]) -> io::Result<std::fs::File> {
    let directory = rustix::fs::open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let it = open(directory, path, OFlags::PATH, Mode::empty())?;
    let stat = rustix::fs::fstat(&it)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no file"));
    }
    // Reopen the descriptor, so that this is the file that was checked.
    let place = format!("/proc/self/fd/{}", it.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(place, flags, Mode::empty())?.into())
}

/// Returns the content of a regular file of at most `most` bytes.
pub fn read_file(directory: &Path, path: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let file = open_file(directory, path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.len() <= most {
        file.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= most {
            return Ok(bytes);
        }
    }
    Err(io::Error::other("it is too large"))
}

/// Returns the target of the symbolic link at `path` in a directory.
pub fn read_link(directory: &Path, path: &[u8]) -> io::Result<Vec<u8>> {
    let directory = rustix::fs::open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let way = OFlags::PATH;
    let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (
            open(&directory, &path[..at], way | OFlags::DIRECTORY, Mode::empty())?,
            &path[at + 1..],
        ),
        None => (directory, path),
    };
    Ok(rustix::fs::readlinkat(&parent, name, Vec::new())?.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_regular_file_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("file"), "content").expect("a file");
        std::fs::create_dir(directory.path().join("directory")).expect("a directory");
        std::os::unix::fs::symlink("file", directory.path().join("link")).expect("a link");
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, Mode::RWXU, 0).expect("a fifo");
        assert_eq!(read_file(directory.path(), b"file", 7).expect("its content"), b"content");
        for (name, most) in
            [("file", 6), ("directory", 7), ("link", 7), ("fifo", 7), ("../file", 7)]
        {
            assert!(read_file(directory.path(), name.as_bytes(), most).is_err(), "{name}");
        }
    }
    #[test]
    fn by_names_as_in_one_call() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(directory.path().join("a/b")).expect("directories");
        std::fs::write(directory.path().join("a/b/file"), "content").expect("a file");
        std::os::unix::fs::symlink("a", directory.path().join("link")).expect("a link");
        let at = std::fs::File::open(directory.path()).expect("it is there");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let what = |opened: Result<OwnedFd, Errno>| {
            // The error for a link on the way differs between the two.
            opened.and_then(rustix::fs::fstat).map(|stat| stat.st_ino).ok()
        };
        for path in [".", "a", "a/b", "a/b/file", "none", "a/none", "link/b", "link", "a/b/file/x"]
        {
            let by_names = what(open_by_names(&at, path.as_bytes(), flags, Mode::empty()));
            assert_eq!(by_names, what(open(&at, path.as_bytes(), flags, Mode::empty())), "{path}");
        }
        for path in ["..", "a/../..", "/", ""] {
            assert!(open_by_names(&at, path.as_bytes(), flags, Mode::empty()).is_err(), "{path}");
        }
    }
}

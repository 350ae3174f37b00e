//! The file of the lower layer that a file of the upper layer was copied from.
//!
//! When an overlay copies a file up, it notes the handle of the lower file (name_to_handle_at(2))
//! in the copy's attribute `overlay.origin`. A rename moves the copy and leaves the note, so the
//! handle leads to the lower file from wherever the copy is now, and whatever names the lower file
//! has.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::FileType;

use crate::support::layers::layer::Attributes;
use crate::support::layers::reader::Layers;

/// The lower file of a copy, open for its path alone.
pub struct Origin {
    pub file: OwnedFd,
    pub device: u64,
    pub inode: u64,
}

/// Longest handle of a file, in bytes (MAX_HANDLE_SZ).
const MOST: usize = 128;

/// A `struct file_handle`.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: [u8; MOST],
}

/// Second byte of the note.
const MAGIC: u8 = 0xfb;
/// Bytes before the handle in the note: version, magic, length, flags, kind of the handle, and the
/// UUID of the lower file system.
const HEAD: usize = 21;

/// Returns the handle in a note, or `None` if the note has none: it is empty where the kernel could
/// not make a handle, as in a user name space.
fn handle(note: &[u8]) -> Option<Handle> {
    let (head, id) = note.split_at_checked(HEAD)?;
    let is_whole = head[1] == MAGIC && usize::from(head[2]) == note.len();
    if !is_whole || id.is_empty() || id.len() > MOST {
        return None;
    }
    let mut handle = Handle { bytes: id.len() as u32, kind: head[4].into(), id: [0; MOST] };
    handle.id[..id.len()].copy_from_slice(id);
    Some(handle)
}

/// Opens the lower file that a copy at `path` of the upper layer comes from. Returns `None` if that
/// is not known, or if it is no longer a file of the copy's kind.
pub fn open(layers: &Layers, path: &[u8], copy: &Attributes) -> io::Result<Option<Origin>> {
    let name = layers.marks.name(b"origin");
    let notes = layers.upper.xattrs(path)?;
    let note = notes.iter().find(|(one, _)| *one == name).map(|(_, value)| value.as_slice());
    let Some(mut handle) = note.and_then(handle) else { return Ok(None) };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let lower = layers.lower.as_fd().as_raw_fd();
    // SAFETY: the handle is laid out as the call expects it, has as many bytes after its head as it
    // says, and lives until the call returns; the returned descriptor is owned only here.
    let file = unsafe {
        match libc::open_by_handle_at(lower, (&raw mut handle).cast(), flags) {
            -1 => return unknown(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_it = FileType::from_raw_mode(stat.st_mode) == copy.kind && stat.st_nlink > 0;
    Ok(is_it.then_some(Origin { file, device: stat.st_dev, inode: stat.st_ino }))
}

/// Returns that the lower file is not known, if that is what an error of open_by_handle_at(2) says:
/// the user may not open files by their handles, or the handle leads nowhere.
fn unknown(error: io::Error) -> io::Result<Option<Origin>> {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ESTALE | libc::ENOENT | libc::EOPNOTSUPP | libc::ENOSYS) => {
            Ok(None)
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a note as the kernel writes it: for a handle of FUSE, with a UUID of zeroes.
    fn note(id: &[u8]) -> Vec<u8> {
        let head = [0, MAGIC, (HEAD + id.len()) as u8, 4, 0x81];
        [&head[..], &[0; 16], id].concat()
    }

    #[test]
    fn a_handle_is_what_follows_the_head_of_the_note() {
        let id = [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        let handle = handle(&note(&id)).expect("a handle");
        assert_eq!((handle.bytes, handle.kind), (12, 0x81));
        assert_eq!(handle.id[..12], id);
    }

    #[test]
    fn an_error_that_says_nothing_of_the_handle_is_one() {
        for (number, is_unknown) in [(libc::EPERM, true), (libc::ESTALE, true), (libc::EIO, false)]
        {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(unknown(error).is_ok_and(|origin| origin.is_none()), is_unknown);
        }
    }

    #[test]
    fn a_note_that_is_not_whole_has_no_handle() {
        let whole = note(&[7; 12]);
        for len in 0..whole.len() {
            assert!(handle(&whole[..len]).is_none(), "{len} bytes");
        }
        assert!(handle(&note(b"")).is_none());
        assert!(handle(&[whole, vec![0]].concat()).is_none());
    }
}

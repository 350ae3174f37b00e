//! The file whose pages follow all others that the kernel writes back: see `rendezvous`.
//!
//! A page of it is made dirty through a mapping, because that is what the kernel writes back in its own time, in one queue with all other dirty
//! pages, whether it gathers writes or not.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::hidden;

/// Pages that are written; no two lie side by side, so each goes in a request of its own.
const APART: usize = 128 << 10;
/// Its size: room for more pages than there can be threads.
pub(crate) const SIZE: u64 = 160 * APART as u64;
const PAGE: usize = 4096;

/// A mapping, gone when dropped.
struct Mapping(*mut libc::c_void, usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Has the kernel send so many pages, and returns when all have been answered.
pub(crate) fn send_pages(root: &File, pages: usize) -> io::Result<()> {
    /// Since Linux 5.14: touches pages as a write would, and fails where that would get a signal.
    const MADV_POPULATE_WRITE: i32 = 23;
    let path = Path::new(std::ffi::OsStr::new(".kvfs")).join(hidden::BARRIER_NAME);
    let file = File::from(rustix::fs::openat(root, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
    let pages = pages.min(SIZE as usize / APART);
    let length = pages * APART;
    // SAFETY: a new mapping at a place of the kernel's choice; no reference into it is ever made.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapping = Mapping(at, length);
    for page in 0..pages {
        // SAFETY: the page lies in the mapping.
        if unsafe { libc::madvise(mapping.0.byte_add(page * APART), PAGE, MADV_POPULATE_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: it takes a descriptor, which is open, and numbers. A length of 0 means to the end.
    let sent =
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! The file whose pages follow all other pages that the kernel writes back. See `quiesce_barrier`.
//!
//! A page of the file is made dirty through a mapping, because the kernel writes back such pages in
//! its own time, in one queue with all other dirty pages, whether it gathers writes or not.
//!
//! The mapping is in the address space of the threads that answer. munmap(2) writes back dirty
//! pages while it holds the lock of that address space: an answering thread that needs memory would
//! wait for munmap, and munmap for the answer. So no page and no time of the file may be dirty when
//! the mapping is removed, and no page is read in by a fault.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::control_directory;

/// The distance in bytes between the pages that are written. No two pages are adjacent, so the
/// kernel sends each in a separate request.
const APART: usize = 128 << 10;
const PAGE: usize = 4096;

/// A mapping of the file, which is unmapped when this value is dropped.
struct Mapping(*mut libc::c_void, usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping exists.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Makes the kernel send `pages` pages, and returns when all have been answered.
pub(crate) fn send_pages(root: &File, pages: usize) -> io::Result<()> {
    /// Advice for madvise(2), available since Linux 5.14. It touches pages as a write would, and
    /// fails where a write would get a signal.
    const MADV_POPULATE_WRITE: i32 = 23;
    let path = Path::new(std::ffi::OsStr::new(".kvfs")).join(control_directory::BARRIER_NAME);
    let file =
        File::from(rustix::fs::openat(root, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
    let pages = pages.min(control_directory::BARRIER_SIZE as usize / APART);
    let length = pages * APART;
    for page in 0..pages {
        file.read_at(&mut [0], (page * APART) as u64)?;
    }
    // SAFETY: the mapping is new, at a place of the kernel's choice; no reference into it is ever
    // made.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapping = Mapping(at, length);
    let changed = (0..pages).try_for_each(|page| {
        // SAFETY: the page lies in the mapping.
        match unsafe { libc::madvise(mapping.0.byte_add(page * APART), PAGE, MADV_POPULATE_WRITE) }
        {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    // Writes back the pages, and the times if the kernel keeps them, before the mapping is dropped,
    // also after an error.
    file.sync_all().and(changed)
}

//! The file whose pages follow all others that the kernel writes back: see `quiesce_barrier`.
//!
//! A page of it is made dirty through a mapping, because that is what the kernel writes back in its
//! own time, in one queue with all other dirty pages, whether it gathers writes or not.
//!
//! The mapping is in the address space of those who answer. munmap(2) writes back what is dirty
//! while it has that space locked: a thread that answers and wants memory would wait for it, and it
//! for the answer. So nothing may be dirty by then, times included, and no page is read in by a
//! fault.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::control_directory;

/// Pages that are written; no two lie side by side, so each goes in a request of its own.
const APART: usize = 128 << 10;
const PAGE: usize = 4096;

/// A mapping, gone when dropped.
struct Mapping(*mut libc::c_void, usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: there is no reference into it.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Has the kernel send so many pages, and returns when all have been answered.
pub(crate) fn send_pages(root: &File, pages: usize) -> io::Result<()> {
    /// Since Linux 5.14: touches pages as a write would, and fails where that would get a signal.
    const MADV_POPULATE_WRITE: i32 = 23;
    let path = Path::new(std::ffi::OsStr::new(".kvfs")).join(control_directory::BARRIER_NAME);
    let file =
        File::from(rustix::fs::openat(root, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
    let pages = pages.min(control_directory::BARRIER_SIZE as usize / APART);
    let length = pages * APART;
    for page in 0..pages {
        file.read_at(&mut [0], (page * APART) as u64)?;
    }
    // SAFETY: a new mapping at a place of the kernel's choice; no reference into it is ever made.
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
    // Pages, and times where the kernel keeps them; before the mapping goes, after an error as
    // well.
    file.sync_all().and(changed)
}

//! Recall: makes the kernel hand over the data that it holds back of one file.
//!
//! The kernel holds pages that programs have changed and that the daemon has not seen: in all cases
//! the pages of shared mappings, and with write-back caching all data written to a file that is
//! still open. Some requests must be answered according to what programs see, but are sent without
//! these pages: for example LSEEK, and RENAME and LINK, which publish a file's content under its
//! new name. The kernel holds the lock of the file during such a request, so `fsync` on the file
//! would wait for the answer. But sync_file_range(2) takes no lock: it sends the dirty pages and
//! waits until they are written. A thread calls it through the mount, as a program would, with the
//! file opened by its handle.
//!
//! If opening by handle is not permitted (it requires CAP_DAC_READ_SEARCH), or no path leads into
//! the mount (another mount covers it), the daemon tells the kernel to drop the pages of the file.
//! The kernel sends the dirty pages first. Clean pages must be read again afterwards.
//!
//! While one thread waits for a recall, another thread writes the pages. See `blocking_pool`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::handler::{Invalidator, NodeId};
use crate::mount_root::{MountRoot, open_by_handle};
use crate::unshared_thread::UnsharedThread;

pub(crate) struct Recall {
    mount_root: MountRoot,
    invalidator: Arc<dyn Invalidator>,
    thread: UnsharedThread,
    by_handle: AtomicBool,
    /// The kernel gathers all writes, not only writes to mappings.
    pub gathers_writes: bool,
}

impl Recall {
    pub fn start(
        mount_root: MountRoot,
        invalidator: Arc<dyn Invalidator>,
        gathers_writes: bool,
    ) -> io::Result<Recall> {
        Ok(Recall {
            mount_root,
            invalidator,
            thread: UnsharedThread::start("fuse-recall")?,
            by_handle: AtomicBool::new(true),
            gathers_writes,
        })
    }

    /// Makes the kernel hand over everything that programs have written to this inode.
    pub fn file(&self, node: NodeId) -> io::Result<()> {
        if self.by_handle.load(Ordering::Relaxed) {
            let mount_root = self.mount_root.clone();
            match self.thread.ask(move || send_dirty_pages(&mount_root, node))? {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The kernel does not have the inode in memory, so it holds no data of it.
                Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok(()),
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS)
                    ) =>
                {
                    self.by_handle.store(false, Ordering::Relaxed);
                }
                Err(e) => return Err(e),
            }
        }
        self.invalidator.invalidate_inode(node)
    }

    pub fn stop(&self) {
        self.thread.stop();
    }
}

/// Sends the dirty pages of an inode. Returns `false` if no path leads into the mount.
fn send_dirty_pages(mount_root: &MountRoot, node: NodeId) -> io::Result<bool> {
    let Ok(root) = mount_root.open() else { return Ok(false) };
    let file = open_by_handle(&root, node, libc::O_RDONLY)?;
    drop(root);
    send_pages_of(&file).map(|()| true)
}

/// Makes the kernel send the dirty pages of an open file, and waits until they are answered.
pub(crate) fn send_pages_of(file: &File) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes an open descriptor and numbers. A length of 0 means to the end of the
    // file.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, all) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

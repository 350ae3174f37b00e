//! The root of the mount, for the threads of the daemon that use the mount as programs do
//! (`unshared_thread`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::handler::NodeId;
use crate::mounts;

#[derive(Clone)]
pub(crate) struct MountRoot {
    mount_point: PathBuf,
    device: u64,
}

impl MountRoot {
    /// Creates the root of the mount with this number ("major:minor"); another mount may cover it
    /// by now.
    pub fn of(mount_point: &Path, number: &str) -> io::Result<MountRoot> {
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let (major, minor) = number.split_once(':').ok_or_else(malformed)?;
        let part = |text: &str| text.parse().map_err(|_| malformed());
        let device = rustix::fs::makedev(part(major)?, part(minor)?);
        Ok(MountRoot { mount_point: mount_point.to_path_buf(), device })
    }

    pub fn device(&self) -> u64 {
        self.device
    }

    /// Opens the root. The caller must not keep the root open, because an open root keeps the mount
    /// busy.
    pub fn open(&self) -> io::Result<File> {
        let root = File::open(&self.mount_point)?;
        // Another file system may be mounted there by now.
        if root.metadata()?.dev() == self.device {
            Ok(root)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Returns a mount at or below `path` in the mount namespace of this process. `path` is
    /// relative to the root of the file system.
    pub fn mounted_below(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let device =
            format!("{}:{}", rustix::fs::major(self.device), rustix::fs::minor(self.device));
        let all = mounts::mounts()?;
        for (ours, mount) in all.iter().enumerate().filter(|(_, mount)| mount.device == device) {
            let root = mount.root.strip_prefix("/").unwrap_or(&mount.root);
            let at = match path.strip_prefix(root) {
                Ok(inside) => mount.mount_point.join(inside),
                // The mount shows a directory below `path`.
                Err(_) if root.starts_with(path) => mount.mount_point.clone(),
                Err(_) => continue,
            };
            let below = all
                .iter()
                .enumerate()
                .find(|(i, other)| *i != ours && other.mount_point.starts_with(&at));
            if let Some((_, other)) = below {
                return Ok(Some(other.mount_point.clone()));
            }
        }
        Ok(None)
    }
}

/// A `struct file_handle` with the handle of an inode in FUSE: the high and low halves of its
/// number, and its generation, which is always 0.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    ino: [u32; 2],
    generation: u32,
}

/// Opens an inode by its number in the kernel. Fails with ESTALE if the kernel has no such inode.
pub(crate) fn open_by_handle(root: &File, NodeId(ino): NodeId, flags: i32) -> io::Result<File> {
    /// The type FILEID_INO64_GEN of file handles.
    const KIND: i32 = 0x81;
    let mut handle =
        Handle { bytes: 12, kind: KIND, ino: [(ino >> 32) as u32, ino as u32], generation: 0 };
    // SAFETY: the handle has the layout that the call expects, has as many bytes after its head as
    // its head says, and lives until the call returns. Only this function owns the returned
    // descriptor.
    unsafe {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOATIME | libc::O_NONBLOCK;
        match libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), flags) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from(OwnedFd::from_raw_fd(fd))),
        }
    }
}

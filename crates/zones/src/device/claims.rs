//! Claims on the bytes of an open file or block device under its other names. The lock of a file
//! (`flock`) belongs to the inode of the file. A block device has a lock for each of its device
//! nodes, and a loop device shares its bytes with the file to which it is bound.
//!
//! - A writer opens a block device exclusively. The kernel grants this once for each device, and
//!   never while a file system on the device is mounted.
//! - A user of a loop device locks the file to which the device is bound, as a direct user of this
//!   file does.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::{Error, Result, loop_devices};

/// Descriptors with locks and claims, which last until this value is dropped.
#[derive(Debug, Default)]
pub(super) struct Claims(Vec<File>);

impl Claims {
    /// Claims the bytes of an open file or block device. Returns [`Error::Busy`] if another
    /// descriptor has a conflicting claim. A file is skipped if it cannot be opened by its name,
    /// because it lies in another mount namespace or belongs to another user.
    pub fn take(file: &File, path: &Path, how: FlockOperation) -> Result<Claims> {
        let mut claims = Claims::default();
        let mut below = claims.claim(file, path, how)?;
        for _ in 0..loop_devices::MOST {
            let Some((file, path)) = below else { break };
            if flock(&file, how) == Err(Errno::WOULDBLOCK) {
                return Err(Error::Busy(path));
            }
            below = claims.claim(&file, &path, how)?;
            claims.0.push(file);
        }
        Ok(claims)
    }

    /// Opens a block device exclusively for a writer. If the device is a loop device, returns the
    /// file to which it is bound.
    fn claim(
        &mut self,
        file: &File,
        path: &Path,
        how: FlockOperation,
    ) -> Result<Option<(File, PathBuf)>> {
        if !file.metadata().is_ok_and(|meta| meta.file_type().is_block_device()) {
            return Ok(None);
        }
        if how == FlockOperation::NonBlockingLockExclusive {
            // Open the same device again, even if its path now leads to something else.
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            let exclusive = OFlags::EXCL.bits() as i32;
            match File::options().read(true).custom_flags(exclusive).open(name) {
                Ok(claim) => self.0.push(claim),
                Err(e) => match e.kind() {
                    io::ErrorKind::ResourceBusy => return Err(Error::Busy(path.to_path_buf())),
                    // Ignore a missing /proc, and a device that was passed as a descriptor.
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {}
                    _ => return Err(Error::io(format!("opening {}", path.display()), e)),
                },
            }
        }
        Ok(loop_devices::open_backing(file))
    }
}

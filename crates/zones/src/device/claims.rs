//! Claims on the bytes of an open file or block device by its other names. The lock of a file
//! (`flock`) belongs to the file's inode. A block device has one for each of its device nodes, and
//! a loop device shares its bytes with the file to which it is bound.
//!
//! - A writer of a block device opens it exclusively, which the kernel grants once for each device,
//!   and never while a file system on it is mounted.
//! - The user of a loop device locks the file that it is bound to, as a user of that file does.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::{Error, Result, loop_devices};

/// Descriptors whose locks and claims last until this is dropped.
#[derive(Debug, Default)]
pub(super) struct Claims(Vec<File>);

impl Claims {
    /// Claims the bytes of an open file or block device. Fails with [`Error::Busy`] if another
    /// descriptor has a claim that excludes this one. A file that cannot be opened by its name,
    /// because it lies in another mount name space or belongs to another user, is left out.
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

    /// Opens a block device exclusively for a writer. Returns the file that it is bound to, if it
    /// is a loop device.
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
            // The open device, whatever lies at its path by now.
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            let exclusive = OFlags::EXCL.bits() as i32;
            match File::options().read(true).custom_flags(exclusive).open(name) {
                Ok(claim) => self.0.push(claim),
                Err(e) => match e.kind() {
                    io::ErrorKind::ResourceBusy => return Err(Error::Busy(path.to_path_buf())),
                    // Without /proc, or for a device that is passed as a descriptor.
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {}
                    _ => return Err(Error::io(format!("opening {}", path.display()), e)),
                },
            }
        }
        Ok(loop_devices::open_backing(file))
    }
}

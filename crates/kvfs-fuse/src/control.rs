//! The kernel's control files of a FUSE connection. One of these files ends the connection from
//! outside.
//!
//! The files are in a separate file system, `fusectl`, which is usually mounted on
//! `/sys/fs/fuse/connections`. If it is not mounted there, a process that may mount opens it
//! without a mount point.

use std::fs::File;
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Opens `name` of the connection of the mount with this device number ("major:minor").
pub(crate) fn open(device: &str, name: &str, flags: OFlags) -> io::Result<File> {
    // A mount without a block device has major 0, and its connection is named by the minor number.
    let number = device.strip_prefix("0:").ok_or(io::ErrorKind::Unsupported)?;
    let path = format!("{number}/{name}");
    let flags = flags | OFlags::CLOEXEC;
    if let Ok(found) =
        rustix::fs::open(format!("/sys/fs/fuse/connections/{path}"), flags, Mode::empty())
    {
        return Ok(found.into());
    }
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let root =
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(&root, path, flags, Mode::empty())?.into())
}

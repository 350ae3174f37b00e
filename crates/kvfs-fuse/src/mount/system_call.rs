//! The system calls that mount: mount(2) for the whole file system, and the calls that mount one of
//! its directories in its place.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::{Error, MountOptions};

/// Calls mount(2). Returns `None` if this process is not permitted to mount.
pub(super) fn mount_directly(
    mount_point: &Path,
    mode: u32,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, Error> {
    let device = match File::options().read(true).write(true).open("/dev/fuse") {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        opened => opened.map_err(Error::NoFuse)?,
    };
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = std::ffi::CString::new(data)
        .map_err(|e| Error::Mount(mount_point.to_path_buf(), e.into()))?;
    match rustix::mount::mount(
        options.source.as_os_str(),
        mount_point,
        options.fs_type(),
        options.flags(),
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device.into())),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(e) => Err(Error::Mount(mount_point.to_path_buf(), e.into())),
    }
}

/// Mounts one directory of the file system in place of the whole file system, which is then mounted
/// nowhere. No symbolic link is followed: its target would be a directory of this machine.
pub(super) fn narrow(mount_point: &Path, root: &Path) -> io::Result<()> {
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open(mount_point, way, Mode::empty())?;
    for name in root {
        directory = rustix::fs::openat(&directory, name, way, Mode::empty())?;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&directory, "", flags)?;
    drop(directory);
    rustix::mount::unmount(mount_point, UnmountFlags::DETACH)?;
    let from_tree = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, mount_point, from_tree)?)
}

//! The kernel's own files about a FUSE connection: how many requests are under way, and a way to end it from outside.
//!
//! They are in a file system of their own, `fusectl`, usually on `/sys/fs/fuse/connections`. Where it is not, whoever may mount opens it
//! without putting it anywhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Opens `name` of the connection behind the mount with this device number ("major:minor").
pub(crate) fn open(device: &str, name: &str, flags: OFlags) -> io::Result<File> {
    // A mount without a block device has major 0, and its connection is named by the minor number.
    let number = device.strip_prefix("0:").ok_or(io::ErrorKind::Unsupported)?;
    let path = format!("{number}/{name}");
    let flags = flags | OFlags::CLOEXEC;
    if let Ok(found) = rustix::fs::open(format!("/sys/fs/fuse/connections/{path}"), flags, Mode::empty()) {
        return Ok(found.into());
    }
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(&root, path, flags, Mode::empty())?.into())
}

/// Counts the requests that the kernel has made and that are not answered yet.
pub(crate) struct UnderWay(File);

impl UnderWay {
    pub fn of(device: &str) -> io::Result<UnderWay> {
        let waiting = UnderWay(open(device, "waiting", OFlags::RDONLY)?);
        waiting.count().map(|_| waiting)
    }

    /// Those included that are written back in the background and wait for their turn; FORGET, which is not answered, is not.
    pub fn count(&self) -> io::Result<u64> {
        let mut digits = [0; 24];
        let length = self.0.read_at(&mut digits, 0)?;
        let number = std::str::from_utf8(&digits[..length]).ok().and_then(|digits| digits.trim().parse().ok());
        number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel gives no number of requests"))
    }
}

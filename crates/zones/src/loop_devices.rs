//! Loop devices. A write to a loop device is a write to the file to which the device is bound,
//! under another name and another lock.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Opcode};

/// The major number of all loop devices. Their partitions have other major numbers.
const MAJOR: u32 = 7;

/// The largest number of loop devices that are followed if each is bound to the next one.
pub(crate) const MOST: usize = 16;

/// The location of the bytes of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A regular file.
    File {
        /// The number of the device on which the file system of the file lies.
        device: u64,
        /// The inode number of the file.
        inode: u64,
    },
    /// The block device with this number.
    BlockDevice(u64),
}

impl Backing {
    fn of(meta: &Metadata) -> Backing {
        match meta.file_type().is_block_device() {
            true => Backing::BlockDevice(meta.rdev()),
            false => Backing::File { device: meta.dev(), inode: meta.ino() },
        }
    }
}

/// Returns the backing of the block device with this number, after following all loop devices in
/// between, or `None` if it is not a bound loop device. If the device is already open, `open` is
/// its descriptor.
pub fn backing(device: u64, open: Option<BorrowedFd<'_>>) -> Option<Backing> {
    let mut found = next(device, open)?;
    for _ in 0..MOST {
        let Backing::BlockDevice(below) = found else { break };
        let Some(deeper) = next(below, None) else { break };
        found = deeper;
    }
    Some(found)
}

fn next(device: u64, open: Option<BorrowedFd<'_>>) -> Option<Backing> {
    if rustix::fs::major(device) != MAJOR {
        return None;
    }
    let asked = match open {
        Some(open) => status(open),
        None => opened(device).and_then(|file| status(file.as_fd())),
    };
    let asked = asked.map(|status| status.backing);
    // A user who may not open the device can still read the name of the file.
    asked.or_else(|| {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let name = backing_file(Path::new(&format!("/sys/dev/block/{major}:{minor}")))?;
        Some(Backing::of(&std::fs::metadata(name).ok()?))
    })
}

/// Opens the file or block device to which an open loop device is bound, for reading. Returns
/// `None` if `device` is not a bound loop device, or if the file cannot be opened by its name. Also
/// returns `None` if the device begins at an offset in the file, because another store may lie
/// there.
pub(crate) fn open_backing(device: &File) -> Option<(File, PathBuf)> {
    let number = device.metadata().ok().filter(|meta| meta.file_type().is_block_device())?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    if major != MAJOR {
        return None;
    }
    let status = status(device.as_fd())?;
    let name = backing_file(Path::new(&format!("/sys/dev/block/{major}:{minor}")))?;
    // The name may now refer to something else, even to a pipe, for which the program must not
    // wait.
    let waits = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(waits).open(&name).ok()?;
    let is_it = Backing::of(&file.metadata().ok()?) == status.backing;
    (is_it && status.offset == 0).then_some((file, name))
}

/// The state of a bound loop device.
struct Status {
    backing: Backing,
    /// The offset in the backing file at which the device begins, in bytes.
    offset: u64,
}

/// Requests the backing of an open loop device from the kernel. This works even if the name of the
/// file has changed.
fn status(device: BorrowedFd<'_>) -> Option<Status> {
    const LOOP_GET_STATUS64: Opcode = 0x4c05;
    // SAFETY: the device is a loop device, which writes a `loop_info64`: 232 bytes, all values of
    // which are valid integers. The first four are the device of the file, its inode, its number if
    // it is a block device, and the offset.
    let info = unsafe {
        rustix::ioctl::ioctl(device, Getter::<LOOP_GET_STATUS64, [u64; 29]>::new()).ok()?
    };
    let backing = match info[2] {
        0 => Backing::File { device: info[0], inode: info[1] },
        number => Backing::BlockDevice(number),
    };
    Some(Status { backing, offset: info[3] })
}

fn opened(device: u64) -> Option<File> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let names = [format!("/dev/block/{major}:{minor}"), format!("/dev/loop{minor}")];
    names.iter().find_map(|name| {
        let file = File::open(name).ok()?;
        let meta = file.metadata().ok()?;
        (meta.file_type().is_block_device() && meta.rdev() == device).then_some(file)
    })
}

/// Reads the name of the backing file from the directory that the kernel has for a block device.
fn backing_file(directory: &Path) -> Option<PathBuf> {
    let name = std::fs::read(directory.join("loop/backing_file")).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// Returns the names of all bound loop devices and of their backing files. A backing file may have
/// been renamed or replaced, so the caller must check which file a name refers to.
pub fn names() -> Vec<PathBuf> {
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = |device: std::fs::DirEntry| {
        let file = backing_file(&device.path())?;
        Some([Path::new("/dev").join(device.file_name()), file])
    };
    devices.filter_map(|device| names(device.ok()?)).flatten().collect()
}

//! Loop devices: a write to one is a write to the file that it is bound to, under another name and
//! another lock.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Opcode};

/// The major number of all loop devices. Their partitions have others.
const MAJOR: u32 = 7;

/// The most loop devices that are followed if one is bound to the next.
pub(crate) const MOST: usize = 16;

/// The place where the bytes of a loop device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A regular file.
    File {
        /// The device of its file system.
        device: u64,
        /// Its number there.
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

/// Returns the backing of the block device with this number, through all loop devices on the way,
/// or `None` if it is not a bound loop device. `open` is the device if it is open already.
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
/// `None` if `device` is no bound loop device, if it begins within the file, where another store
/// may lie, or if the file cannot be opened by its name.
pub(crate) fn open_backing(device: &File) -> Option<(File, PathBuf)> {
    let number = device.metadata().ok().filter(|meta| meta.file_type().is_block_device())?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    if major != MAJOR {
        return None;
    }
    let status = status(device.as_fd())?;
    let name = backing_file(Path::new(&format!("/sys/dev/block/{major}:{minor}")))?;
    // The name may refer to something else by now, even to a pipe, for which the program must not
    // wait.
    let waits = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(waits).open(&name).ok()?;
    let is_it = Backing::of(&file.metadata().ok()?) == status.backing;
    (is_it && status.offset == 0).then_some((file, name))
}

/// The state of a bound loop device.
struct Status {
    backing: Backing,
    /// The byte of the backing file at which the device begins.
    offset: u64,
}

/// Asks an open loop device for its backing, which is found also if its name has changed.
fn status(device: BorrowedFd<'_>) -> Option<Status> {
    const LOOP_GET_STATUS64: Opcode = 0x4c05;
    // SAFETY: the device is a loop device, which writes a `loop_info64`: 232 bytes, all values of
    // which are valid integers. The first four are the file's device, its inode, its number if it
    // is a block device, and the offset.
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
/// been renamed or replaced, so the caller checks where a name leads.
pub fn names() -> Vec<PathBuf> {
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = |device: std::fs::DirEntry| {
        let file = backing_file(&device.path())?;
        Some([Path::new("/dev").join(device.file_name()), file])
    };
    devices.filter_map(|device| names(device.ok()?)).flatten().collect()
}

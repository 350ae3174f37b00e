//! The kernel's switch for FUSE over io_uring: the parameter `enable_uring` of the module, which
//! applies to the whole machine.
//!
//! The kernel reads the parameter when a file system is mounted and when INIT is answered. So a
//! mount that uses io_uring turns the parameter on for this time, and then restores it. All such
//! mounts lock the file of the parameter, because a mount must not restore the parameter while
//! another mount begins.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::FlockOperation;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns whether the switch is on, or `None` if this kernel has no such switch.
pub fn is_on() -> Option<bool> {
    read(&mut File::open(PARAMETER).ok()?).ok()
}

fn read(file: &mut File) -> io::Result<bool> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.trim() == "Y")
}

/// Keeps the switch on until this value is dropped, and then restores it.
pub(crate) struct On {
    /// The file of the parameter, which is locked while it is open.
    _lock: File,
    was_off: bool,
}

impl On {
    /// Turns the switch on, which requires root. Waits for other processes that have turned it on.
    pub fn turn() -> io::Result<On> {
        let mut lock = File::open(PARAMETER).map_err(|e| missing(&e))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let was_off = !read(&mut lock)?;
        if was_off {
            write(Path::new(PARAMETER), "Y")?;
        }
        Ok(On { _lock: lock, was_off })
    }
}

/// Explains an error of opening the parameter's file.
fn missing(e: &io::Error) -> io::Error {
    let means = match e.kind() {
        io::ErrorKind::NotFound => {
            "the kernel has no such parameter: it takes Linux 6.14 with FUSE over io_uring built in"
        }
        _ => "it cannot be read",
    };
    io::Error::new(e.kind(), format!("{PARAMETER}: {means} ({e})"))
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(value.as_bytes())
}

impl Drop for On {
    fn drop(&mut self) {
        if self.was_off
            && let Err(e) = write(Path::new(PARAMETER), "N")
        {
            tracing::warn!("{PARAMETER} stays on: {e}");
        }
    }
}

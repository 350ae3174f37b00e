//! A file, the loop devices that are bound to it, and all device nodes of these are one store,
//! which has one writer or many readers. The tests return early on a machine without loop devices.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use zones::{Device, Error, FileDevice};

/// A loop device that is bound to a file. It is released with this.
struct Loop(PathBuf);

impl Loop {
    /// Returns `None` where there are no loop devices, as in most containers.
    fn of(file: &Path) -> Option<Loop> {
        let bound = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8_lossy(&bound.stdout).trim().to_string();
        (bound.status.success() && !name.is_empty()).then(|| Loop(name.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// Opens a device. The manager of devices locks one for a moment after it was bound or written.
#[track_caller]
fn open(name: &Path, read_only: bool) -> FileDevice {
    let begun = Instant::now();
    loop {
        match FileDevice::open(name, read_only) {
            Err(Error::Busy(_)) if begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_file_and_its_loop_devices_have_one_writer_or_many_readers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    FileDevice::create(&path).unwrap().grow(1 << 20).unwrap();
    let (Some(one), Some(two)) = (Loop::of(&path), Loop::of(&path)) else { return };
    let names = [&path, &one.0, &two.0];
    let is_busy = |name: &Path, read_only: bool| {
        matches!(FileDevice::open(name, read_only), Err(Error::Busy(_)))
    };
    for opened in names {
        let writer = open(opened, false);
        for name in names {
            assert!(is_busy(name, false), "{name:?} is written next to {opened:?}");
            assert!(is_busy(name, true), "{name:?} is read next to {opened:?}");
        }
        drop(writer);
        let reader = open(opened, true);
        for name in names {
            assert!(is_busy(name, false), "{name:?} is written while {opened:?} is read");
            assert!(!is_busy(name, true), "{name:?} and {opened:?} are both read");
        }
        drop(reader);
    }
}

#[test]
fn a_loop_device_is_bound_to_a_loop_device_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    FileDevice::create(&path).unwrap().grow(1 << 20).unwrap();
    let Some(below) = Loop::of(&path) else { return };
    let Some(above) = Loop::of(&below.0) else { return };
    let writer = open(&above.0, false);
    for name in [&path, &below.0] {
        assert!(matches!(FileDevice::open(name, false), Err(Error::Busy(_))), "{name:?}");
    }
    drop(writer);
    let _writer = open(&path, false);
    assert!(matches!(FileDevice::open(&above.0, false), Err(Error::Busy(_))));
}

#[test]
fn a_block_device_has_one_writer_by_all_nodes_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    FileDevice::create(&path).unwrap().grow(1 << 20).unwrap();
    let Some(bound) = Loop::of(&path) else { return };
    let number = bound.0.metadata().unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let node = directory.path().join("node");
    let mut mknod = Command::new("mknod");
    mknod.arg(&node).arg("b").args([major.to_string(), minor.to_string()]);
    let made = mknod.status();
    // A node may not be made in a container, and not be opened on some file systems.
    if !made.is_ok_and(|status| status.success()) || File::open(&node).is_err() {
        return;
    }
    // Without its name the file below has no lock, so the device itself is all that is claimed.
    fs::remove_file(&path).unwrap();
    let writer = open(&bound.0, false);
    assert!(matches!(FileDevice::open(&node, false), Err(Error::Busy(_))));
    drop(writer);
    drop(open(&node, false));
}

//! Unmounts file systems. [`Unmounter`] is a handle with which any thread can end one particular
//! mount.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::Error;
use crate::fusermount;
use crate::mounts::{self, MountEntry};

/// The ways to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails if a process uses the mount. When the unmount succeeds, the kernel has handed all data
    /// that it held back to the daemon.
    Clean,
    /// Hides the mount at once. The mount ends when its last user leaves.
    Lazy,
    /// Ends the mount at once. Data that the kernel had not yet handed over is lost.
    Forced,
}

/// The time that a clean unmount waits for programs that use the mount only for a moment.
const MOMENT: Duration = Duration::from_millis(500);

/// Unmounts the topmost file system on `mount_point`. A clean unmount of a file system in use fails
/// after half a second. A first refusal does not prove that a program uses the mount: a program
/// between fork(2) and exec(2) has the files of its parent open, and the daemon itself opens the
/// root from time to time.
pub fn unmount(mount_point: &Path, how: Unmount) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match unmount_now(mount_point, how) {
            Err(Error::Unmount(_, e))
                if e.kind() == io::ErrorKind::ResourceBusy
                    && how == Unmount::Clean
                    && begun.elapsed() < MOMENT =>
            {
                std::thread::sleep(MOMENT / 25);
            }
            done => return done,
        }
    }
}

fn unmount_now(mount_point: &Path, how: Unmount) -> Result<(), Error> {
    let flags = UnmountFlags::NOFOLLOW
        | match how {
            Unmount::Clean => UnmountFlags::empty(),
            Unmount::Lazy => UnmountFlags::DETACH,
            // For a FUSE mount this ends the connection to its daemon first.
            Unmount::Forced => UnmountFlags::FORCE | UnmountFlags::DETACH,
        };
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount::unmount(mount_point, how != Unmount::Clean)
            .map_err(|e| Error::Unmount(mount_point.to_path_buf(), e)),
        Err(e) => Err(Error::Unmount(mount_point.to_path_buf(), e.into())),
    }
}

/// Ends one particular mount, from any thread. It never ends another mount that has taken its
/// place.
#[derive(Clone, Debug)]
pub struct Unmounter {
    pub(super) entry: MountEntry,
}

impl Unmounter {
    fn is_mounted(&self) -> bool {
        mounts::mounts().is_ok_and(|all| all.contains(&self.entry))
    }

    /// Unmounts the file system, as [`crate::Mounted::unmount`] does.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        let mount_point = &self.entry.mount_point;
        match mounts::mount_at(mount_point).map_err(|e| Error::Unmount(mount_point.clone(), e))? {
            Some(top) if top == self.entry => unmount(mount_point, how),
            _ if self.is_mounted() => {
                let covered =
                    io::Error::new(io::ErrorKind::ResourceBusy, "something else is mounted on top");
                Err(Error::Unmount(mount_point.clone(), covered))
            }
            _ => Ok(()),
        }
    }

    /// Ends a mount that cannot be unmounted, for example because another one covers it: every
    /// request fails from then on, and the dead mount remains. Data that the kernel holds back is
    /// lost.
    pub fn abort(&self) -> std::io::Result<()> {
        use std::io::Write;
        crate::control::open(&self.entry.device, "abort", rustix::fs::OFlags::WRONLY)?
            .write_all(b"1")
    }

    /// Ends the mount even while it is in use, after the kernel has handed all data that was
    /// written before this call to the daemon.
    pub fn end(&self) -> Result<(), Error> {
        if let Err(e) = self.unmount(Unmount::Clean) {
            tracing::warn!("{e}; ending it under its users");
            if let Ok(directory) = File::open(&self.entry.mount_point) {
                let _ = rustix::fs::syncfs(&directory);
            }
            self.unmount(Unmount::Forced)?;
        }
        Ok(())
    }
}

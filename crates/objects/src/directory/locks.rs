//! Locks of keys. A key selects one of 256 shards by its name. A shard has a lock for the threads
//! of this process, and a file that is locked against other processes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use env::sync::{Mutex, MutexGuard};
use env::{schedule, thread};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::root::Root;
use crate::key::Key;
use crate::object::Hasher;

/// The folder with the files of the locks.
const FOLDER: &str = ".kvfs~locks";
/// The number of shards. Their names are shared by processes of all versions of this program.
const SHARDS: usize = 256;

#[derive(Debug)]
pub(super) struct Locks {
    folder: OwnedFd,
    /// The locks of the shards in this process. Threads wait for these locks rather than for the
    /// files, so that the process determines their order and schedule.
    shards: Vec<Mutex<()>>,
}

/// The lock of a key. The kernel releases the lock of the file when its descriptor is closed, even
/// if the process is killed.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    _file: OwnedFd,
    _thread: MutexGuard<'a, ()>,
}

impl Locks {
    pub fn open(root: &Root) -> rustix::io::Result<Locks> {
        let folder = root.make_own_folder(FOLDER)?;
        Ok(Locks { folder, shards: (0..SHARDS).map(|_| Mutex::new(())).collect() })
    }

    /// Takes the lock of this key, and waits until no other thread or process holds it.
    pub fn of(&self, key: &Key) -> rustix::io::Result<Locked<'_>> {
        let shard = Hasher::over(key.as_str().as_bytes()).digest()[0];
        let thread = self.shards[usize::from(shard)].lock();
        // NFS locks only files that are open for writing.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&self.folder, format!("{shard:02x}"), flags, mode)?;
        lock(&file)?;
        Ok(Locked { _file: file, _thread: thread })
    }
}

fn lock(file: &OwnedFd) -> rustix::io::Result<()> {
    if !schedule::simulated() {
        return rustix::io::retry_on_intr(|| flock(file, FlockOperation::LockExclusive));
    }
    // In a simulated run only one thread runs. If it waited in the kernel, no thread would run.
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(1)),
            outcome => return outcome,
        }
    }
}

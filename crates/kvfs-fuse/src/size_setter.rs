//! Makes the kernel take over the actual size and times of files.
//!
//! The kernel uses its own size of a file until it requests the attributes, and if it gathers
//! writes, it ignores the size in the answer. But the kernel takes over the size in the answer to a
//! change of the size. So a thread opens the file through the mount, by its handle, which succeeds
//! only for files that the kernel has in memory, and sets size and times to their actual values.
//! The adapter recognizes the thread, and answers without changing anything.
//!
//! **Concurrent writes of programs.** A size that is smaller than the kernel's size makes the
//! kernel drop all pages beyond it, including dirty ones. If such a page contains data that a
//! program has written since the change (for example after truncating the file), the data would be
//! lost. So the answer depends on the state of the kernel while it waits for the answer. During
//! that wait the kernel holds the lock of the file, which write(2) takes:
//!
//! 1. Size and times are read, and then dirty pages are sent.
//! 2. The size is set. The adapter reads size and times again. If nothing has changed, no program
//!    has written in the meantime, and no page is dirty. If something has changed, a size that is
//!    at least the kernel's size still drops nothing. For a smaller size the answer is an error,
//!    after which the kernel leaves everything unchanged.
//! 3. After an error the steps are repeated. By then the written data has been sent, so the file is
//!    longer.
//!
//! The kernel's times advance in ticks of a few milliseconds. For a file that was written in the
//! current tick, the setter waits until the tick is over, because a second write in the same tick
//! could not be detected.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, Timespec, Timestamps};
use rustix::time::ClockId;

use crate::handler::{Caller, NodeAttr};
use crate::mount_root::{MountRoot, open_by_handle};
use crate::recall::send_pages_of;
use crate::unshared_thread::UnsharedThread;

/// The number of attempts to set a size while programs write the file.
const ATTEMPTS: usize = 50;
/// The interval at which the setter checks whether the kernel's clock has advanced.
const LOOK: Duration = Duration::from_millis(1);

pub(crate) struct SizeSetter {
    pub thread: UnsharedThread,
    guard: Arc<SizeGuard>,
}

impl SizeSetter {
    pub fn start() -> io::Result<SizeSetter> {
        let (thread, guard) = (UnsharedThread::start("fuse-set-size")?, SizeGuard::default());
        let number = thread.ask(|| rustix::thread::gettid().as_raw_nonzero().get())?;
        guard.thread.store(number.unsigned_abs(), Ordering::Relaxed);
        Ok(SizeSetter { thread, guard: Arc::new(guard) })
    }

    /// Returns the guard with which the adapter answers requests of the thread.
    pub fn guard(&self) -> Arc<SizeGuard> {
        self.guard.clone()
    }

    /// Sets size and times of files to their actual values. The `bool` says whether the size has
    /// changed. The error of a file is `Unsupported` if the file cannot be opened by its handle.
    pub fn set(
        &self,
        mount_root: Option<MountRoot>,
        files: Vec<(NodeAttr, bool)>,
    ) -> io::Result<Vec<io::Result<()>>> {
        let guard = self.guard.clone();
        self.thread.ask(move || {
            // A path to the mount may not exist any more.
            let root = mount_root.and_then(|root| root.open().ok());
            let set = |(file, resized): &(NodeAttr, bool)| match &root {
                Some(root) => guard.set_as_it_is(root, file, *resized),
                None => Err(io::ErrorKind::Unsupported.into()),
            };
            files.iter().map(set).collect()
        })
    }
}

/// The state of a file in the kernel's cache, which is read without a request to the daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

impl Seen {
    fn of(file: impl AsFd, path: &str) -> io::Result<Seen> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
        let stat = rustix::fs::statx(file, path, flags, wanted)?;
        let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        Ok(Seen { size: stat.stx_size, mtime: time(stat.stx_mtime), ctime: time(stat.stx_ctime) })
    }

    /// Waits until a write would change the times.
    fn wait_for_next_tick(&self) {
        let is_now = || {
            let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
            let now = (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0));
            self.mtime == now || self.ctime == now
        };
        while is_now() {
            std::thread::sleep(LOOK);
        }
    }
}

/// The state on which the answer to a change of attributes by the thread depends.
#[derive(Default)]
pub(crate) struct SizeGuard {
    /// The thread's number.
    thread: AtomicU32,
    expected: Mutex<Option<Expected>>,
}

struct Expected {
    /// The descriptor of the file, in the thread's table.
    fd: RawFd,
    seen: Seen,
    /// A program has written in the meantime.
    disturbed: bool,
}

impl SizeGuard {
    /// Returns whether the caller is the thread of the setter.
    pub fn is(&self, caller: Caller) -> bool {
        caller.pid != 0 && caller.pid == self.number()
    }

    pub fn number(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Returns whether the kernel, which has the file locked, loses no data if the answer sets the
    /// file to `size`, the requested size.
    pub fn loses_nothing(&self, size: Option<u64>) -> bool {
        let mut expected = self.expected.lock();
        let Some(expected) = &mut *expected else { return false };
        // The descriptor is not open in the calling thread, but the link refers to the file in any
        // case.
        let link = format!("/proc/self/task/{}/fd/{}", self.number(), expected.fd);
        let Ok(now) = Seen::of(rustix::fs::CWD, &link) else { return false };
        expected.disturbed = now != expected.seen;
        !expected.disturbed || size.is_some_and(|size| now.size <= size)
    }

    /// Sets size and times of a file that the kernel has in memory to their actual values. A
    /// changed size is set in any case. This call waits for programs that are writing, because a
    /// program that appends writes after the end of the file that the kernel knows when the write
    /// begins.
    fn set_as_it_is(
        &self,
        root: &File,
        &NodeAttr { node, attr }: &NodeAttr,
        resized: bool,
    ) -> io::Result<()> {
        let file = open_by_handle(root, node, libc::O_RDONLY)?;
        if resized || file.metadata()?.len() != attr.size {
            let file = open_by_handle(root, node, libc::O_WRONLY)?;
            let mut attempts = ATTEMPTS;
            while let Err(e) = self.set_size(&file, attr.size) {
                attempts -= 1;
                if e.kind() != io::ErrorKind::WouldBlock || attempts == 0 {
                    return Err(e);
                }
            }
            if self.expected.lock().take().is_none_or(|expected| expected.disturbed) {
                // The times are already set by the write of a program.
                return Ok(());
            }
        }
        let seen = Seen::of(&file, "")?;
        let mtime = (attr.mtime.secs, attr.mtime.nanos);
        if seen.mtime != mtime {
            let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
            let times = Timestamps {
                last_access: keep,
                last_modification: Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() },
            };
            self.expect(&file, seen);
            match rustix::fs::futimens(&file, &times) {
                // The times are already set by the write of a program.
                Err(rustix::io::Errno::AGAIN) => {}
                set => set?,
            }
        }
        Ok(())
    }

    fn set_size(&self, file: &File, size: u64) -> io::Result<()> {
        let seen = Seen::of(file, "")?;
        if seen.size > size {
            seen.wait_for_next_tick();
        }
        // Pages that the file system refuses are dropped by the kernel, and no longer dirty.
        let _ = send_pages_of(file);
        self.expect(file, seen);
        file.set_len(size)
    }

    fn expect(&self, file: &File, seen: Seen) {
        let fd = file.as_raw_fd();
        *self.expected.lock() = Some(Expected { fd, seen, disturbed: false });
    }
}

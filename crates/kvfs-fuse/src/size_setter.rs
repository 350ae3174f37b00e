//! Makes the kernel take over the actual size and times of files.
//!
//! The kernel trusts its own size of a file until it asks, and if it gathers writes, even against
//! the answer. But it takes over the size in the answer to a change of the size. So a thread opens
//! the file through the mount, by its handle, which succeeds exactly for those that the kernel has
//! in memory, and sets size and times to their actual values; the adapter knows the thread that
//! asks, and answers without changing anything.
//!
//! **Concurrent writes of programs.** A size that is smaller than the kernel's makes it drop all
//! pages beyond, dirty ones too. If one of these holds data that a program has written since the
//! change (for example after truncating the file), the data would be lost. So the answer depends on
//! the state of the kernel while it waits for the answer, holding the file's lock, which write(2)
//! takes:
//!
//! 1. Size and times are read, and then dirty pages are sent.
//! 2. The size is set. The adapter reads size and times again. If nothing has changed, no program
//!    has written in the meantime, and no page is dirty. If something has changed, a size at or
//!    above the kernel's drops nothing. Otherwise the answer is an error, after which the kernel
//!    leaves everything unchanged.
//! 3. Then it is tried again: the written data has been sent by then, so the file is longer.
//!
//! The kernel's times advance in ticks of a few milliseconds. For a file that was written in the
//! present tick, the setter waits until the tick is over, or another write could not be
//! distinguished from it.

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
/// The interval at which it is checked whether the kernel's clock has advanced.
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

    /// Returns the guard by which the adapter answers the thread.
    pub fn guard(&self) -> Arc<SizeGuard> {
        self.guard.clone()
    }

    /// Sets size and times of files to their actual values. The `bool` says whether the size has
    /// changed. The error of a file is `Unsupported` if it cannot be opened by its handle.
    pub fn set(
        &self,
        mount_root: Option<MountRoot>,
        files: Vec<(NodeAttr, bool)>,
    ) -> io::Result<Vec<io::Result<()>>> {
        let guard = self.guard.clone();
        self.thread.ask(move || {
            // There may be no path to the mount any more.
            let root = mount_root.and_then(|root| root.open().ok());
            let set = |(file, resized): &(NodeAttr, bool)| match &root {
                Some(root) => guard.set_as_it_is(root, file, *resized),
                None => Err(io::ErrorKind::Unsupported.into()),
            };
            files.iter().map(set).collect()
        })
    }
}

/// The state that the kernel has of a file, without asking the daemon.
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

    /// Returns when a write would change the times.
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
    /// Returns whether the caller is this thread.
    pub fn is(&self, caller: Caller) -> bool {
        caller.pid != 0 && caller.pid == self.number()
    }

    pub fn number(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Returns whether the kernel, which has the file locked, loses nothing if the answer gives
    /// this size to the file. `size` is the requested size.
    pub fn loses_nothing(&self, size: Option<u64>) -> bool {
        let mut expected = self.expected.lock();
        let Some(expected) = &mut *expected else { return false };
        // This thread does not have the descriptor, but the link refers to the file nevertheless.
        let link = format!("/proc/self/task/{}/fd/{}", self.number(), expected.fd);
        let Ok(now) = Seen::of(rustix::fs::CWD, &link) else { return false };
        expected.disturbed = now != expected.seen;
        !expected.disturbed || size.is_some_and(|size| now.size <= size)
    }

    /// Sets size and times of a file that the kernel has in memory to their actual values. A size
    /// that has changed is set in any case, which waits for programs that are writing: a program
    /// that appends does so after the end that the kernel knows when the write begins.
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
                // The times are those of the program that has written.
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
                // The times are those of the program that has written.
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

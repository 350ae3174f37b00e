//! Counts the requests of each kind that the kernel sent, and the time to answer them. The number
//! of requests determines the cost of a FUSE file system.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

macro_rules! requests {
    ($($name:ident = $opcode:literal $text:literal),* $(,)?) => {
        /// The kinds of request, as the kernel calls them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Request {
            $(#[doc = $text] $name,)*
            /// Any other kind of request.
            Other,
        }

        impl Request {
            /// Returns the kind with this number in the protocol.
            pub fn of(opcode: u32) -> Request {
                match opcode {
                    $($opcode => Request::$name,)*
                    _ => Request::Other,
                }
            }
        }

        /// The name of every kind, in the order of `Request`.
        const NAMES: &[&str] = &[$($text),*, "OTHER"];
    };
}

requests! {
    Lookup = 1 "LOOKUP", Forget = 2 "FORGET", GetAttr = 3 "GETATTR", SetAttr = 4 "SETATTR", ReadLink = 5 "READLINK",
    SymLink = 6 "SYMLINK", MkNod = 8 "MKNOD", MkDir = 9 "MKDIR", Unlink = 10 "UNLINK", RmDir = 11 "RMDIR", Rename = 12 "RENAME",
    Link = 13 "LINK", Open = 14 "OPEN", Read = 15 "READ", Write = 16 "WRITE", StatFs = 17 "STATFS", Release = 18 "RELEASE",
    FSync = 20 "FSYNC", SetXattr = 21 "SETXATTR", GetXattr = 22 "GETXATTR", ListXattr = 23 "LISTXATTR",
    RemoveXattr = 24 "REMOVEXATTR", Flush = 25 "FLUSH", OpenDir = 27 "OPENDIR", ReadDir = 28 "READDIR", ReleaseDir = 29 "RELEASEDIR",
    FSyncDir = 30 "FSYNCDIR", Access = 34 "ACCESS", Create = 35 "CREATE", Interrupt = 36 "INTERRUPT", Destroy = 38 "DESTROY", IoCtl = 39 "IOCTL", Poll = 40 "POLL",
    BatchForget = 42 "BATCH_FORGET", FAllocate = 43 "FALLOCATE", ReadDirPlus = 44 "READDIRPLUS", Rename2 = 45 "RENAME2",
    LSeek = 46 "LSEEK", CopyFileRange = 47 "COPY_FILE_RANGE", TmpFile = 51 "TMPFILE", Statx = 52 "STATX", CopyFileRange64 = 53 "COPY_FILE_RANGE_64",
}

impl Request {
    /// Returns whether the answer may have to wait for the disk, or for another thread that takes
    /// data of a file which the kernel holds back (`recall`).
    pub(crate) fn waits(self) -> bool {
        use Request::*;
        self.always_waits() || matches!(self, LSeek | Rename | Rename2 | Link)
    }

    /// Returns whether a request of this kind always waits.
    pub(crate) fn always_waits(self) -> bool {
        use Request::*;
        matches!(self, FSync | FSyncDir | IoCtl)
    }
}

/// Requests by kind since the mount.
#[derive(Debug)]
pub struct Counters {
    counts: [AtomicU64; NAMES.len()],
    /// The total time to answer the requests of each kind, in nanoseconds.
    nanos: [AtomicU64; NAMES.len()],
    /// The thread whose requests are not counted ([`Counters::leave_out`]), or 0 for no thread.
    left_out: AtomicU32,
}

impl Default for Counters {
    fn default() -> Self {
        let zeros = || [const { AtomicU64::new(0) }; NAMES.len()];
        Counters { counts: zeros(), nanos: zeros(), left_out: AtomicU32::new(0) }
    }
}

impl Counters {
    /// Excludes the STATFS requests of this thread of the daemon from the counts. The thread sends
    /// them to measure the time of an answer, and a program that reads the counts would otherwise
    /// see the requests that its own reading causes.
    pub(crate) fn leave_out(&self, thread: u32) {
        self.left_out.store(thread, Ordering::Relaxed);
    }

    pub(crate) fn is_left_out(&self, request: Request, thread: u32) -> bool {
        request == Request::StatFs && thread == self.left_out.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, request: Request) {
        // These are only statistics, so the order of other operations does not matter.
        self.counts[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a request was answered in this time.
    pub(crate) fn took(&self, request: Request, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos[request as usize].fetch_add(nanos, Ordering::Relaxed);
    }

    /// Undoes the count of a request that is dispatched again by another thread.
    pub(crate) fn uncount(&self, request: Request) {
        self.counts[request as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of requests of this kind.
    pub fn get(&self, request: Request) -> u64 {
        self.counts[request as usize].load(Ordering::Relaxed)
    }

    /// Returns name and count of every kind that was seen.
    pub fn seen(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|c| c.load(Ordering::Relaxed));
        NAMES.iter().copied().zip(counts).filter(|&(_, n)| n > 0).collect()
    }

    /// Returns name and total time of answering for every kind that was seen. The time that the
    /// kernel adds, and the wait for a free thread, are not included.
    pub fn times(&self) -> Vec<(&'static str, Duration)> {
        let nanos = self.nanos.iter().map(|n| Duration::from_nanos(n.load(Ordering::Relaxed)));
        let seen = |at: usize| self.counts[at].load(Ordering::Relaxed) > 0;
        let all = NAMES.iter().copied().zip(nanos).enumerate();
        all.filter(|(at, _)| seen(*at)).map(|(_, named)| named).collect()
    }

    /// Returns the number of all requests.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.seen().iter().map(|(name, n)| format!("{name} {n}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_under_its_own_name() {
        let c = Counters::default();
        assert_eq!(Request::of(1), Request::Lookup);
        assert_eq!(Request::of(9999), Request::Other);
        c.count(Request::Lookup);
        c.count(Request::Other);
        c.count(Request::Other);
        assert_eq!(c.seen(), [("LOOKUP", 1), ("OTHER", 2)]);
        assert_eq!(c.total(), 3);
        c.took(Request::Other, Duration::from_micros(3));
        c.took(Request::Other, Duration::from_micros(4));
        c.took(Request::Read, Duration::from_micros(5));
        let times = [("LOOKUP", Duration::ZERO), ("OTHER", Duration::from_micros(7))];
        assert_eq!(c.times(), times, "one that comes again was not answered yet");
        assert_eq!(c.to_string(), "LOOKUP 1, OTHER 2");
    }
}

//! How many requests of each kind the kernel sent: the price of a FUSE file system is their number.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! requests {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// The kinds of request, as the kernel calls them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Request { $($name),* }

        /// Every kind's name, in the order of `Request`.
        const NAMES: &[&str] = &[$($text),*];
    };
}

requests! {
    Lookup = "LOOKUP", Forget = "FORGET", GetAttr = "GETATTR", SetAttr = "SETATTR", ReadLink = "READLINK", SymLink = "SYMLINK",
    MkNod = "MKNOD", MkDir = "MKDIR", Unlink = "UNLINK", RmDir = "RMDIR", Rename = "RENAME", Link = "LINK", Open = "OPEN",
    Read = "READ", Write = "WRITE", StatFs = "STATFS", Release = "RELEASE", FSync = "FSYNC", SetXattr = "SETXATTR",
    GetXattr = "GETXATTR", ListXattr = "LISTXATTR", RemoveXattr = "REMOVEXATTR", Flush = "FLUSH", OpenDir = "OPENDIR",
    ReadDir = "READDIR", ReadDirPlus = "READDIRPLUS", ReleaseDir = "RELEASEDIR", FSyncDir = "FSYNCDIR", Access = "ACCESS",
    Create = "CREATE", FAllocate = "FALLOCATE", LSeek = "LSEEK", CopyFileRange = "COPY_FILE_RANGE", Other = "OTHER",
}

/// Requests by kind since the mount.
#[derive(Debug)]
pub struct Counters {
    counts: [AtomicU64; NAMES.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Counters { counts: [const { AtomicU64::new(0) }; NAMES.len()] }
    }
}

impl Counters {
    pub(crate) fn count(&self, request: Request) {
        // Only a statistic: no order with anything else is needed.
        self.counts[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self, request: Request) -> u64 {
        self.counts[request as usize].load(Ordering::Relaxed)
    }

    /// (name, count) of every kind that was seen.
    pub fn seen(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|c| c.load(Ordering::Relaxed));
        NAMES.iter().copied().zip(counts).filter(|&(_, n)| n > 0).collect()
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.seen().iter().map(|(name, n)| format!("{name} {n}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_under_its_own_name() {
        let c = Counters::default();
        c.count(Request::Lookup);
        c.count(Request::Other);
        c.count(Request::Other);
        assert_eq!(c.seen(), [("LOOKUP", 1), ("OTHER", 2)]);
        assert_eq!(c.total(), 3);
        assert_eq!(c.to_string(), "LOOKUP 1, OTHER 2");
    }
}

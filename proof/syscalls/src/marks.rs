//! Files with properties that cannot be compared, shared by all processes of a side.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::{Answer, sys};

const MANY: usize = 4096;

/// In memory that forked processes share.
pub struct Marks {
    /// A store to a shared mapping changes the file's times when its page is first written to after
    /// the kernel has last cleaned it, which is a matter of time. So the times of files that are
    /// mapped so are not compared.
    pub mapped: Inodes,
    /// Inodes that were moved out of a directory, which a listing may have missed.
    pub moved: Inodes,
}

/// Inode numbers. A number that comes back marks the wrong file, which costs a comparison.
pub struct Inodes([AtomicU64; MANY]);

impl Marks {
    pub fn new() -> Answer<&'static Marks> {
        let (both, shared) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let start =
            sys!(libc::mmap(std::ptr::null_mut(), size_of::<Marks>(), both, shared, -1, 0))?;
        // SAFETY: the mapping is as large as the type, zeros are valid atomics, and it is never
        // unmapped.
        Ok(unsafe { &*(start as *const Marks) })
    }

    pub fn clear(&self) {
        self.mapped.clear();
        self.moved.clear();
    }
}

impl Inodes {
    fn clear(&self) {
        self.0.iter().for_each(|mark| mark.store(0, Ordering::Relaxed));
    }

    /// Only one process of a side has its turn at a time.
    pub fn add(&self, inode: u64) {
        if !self.has(inode)
            && let Some(free) = self.0.iter().find(|mark| mark.load(Ordering::Relaxed) == 0)
        {
            free.store(inode, Ordering::Release);
        }
    }

    pub fn has(&self, inode: u64) -> bool {
        self.0
            .iter()
            .map(|mark| mark.load(Ordering::Acquire))
            .take_while(|&mark| mark != 0)
            .any(|mark| mark == inode)
    }
}

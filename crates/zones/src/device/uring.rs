//! Batched reads: many reads are submitted to the host in one call (`io_uring`). An announcement
//! (`posix_fadvise`) for each read would ring the doorbell of the device each time, which costs
//! more than the read on a virtual machine. Batched reads are submitted together and waited for
//! once. They go through the page cache like all reads, so cached data is copied at once.
//!
//! If the host has no `io_uring`, or forbids it, [`Rings::read`] returns `None`, and the caller
//! reads the ranges one after the other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use env::sync::Mutex;
use io_uring::{IoUring, opcode, types};

use super::Reading;

/// The number of requests in flight. A solid-state disk reaches its full rate at half of this
/// number.
const DEPTH: u32 = 64;
/// The number of requests that are submitted at once, so that the device begins while further
/// requests are prepared.
const BEGIN: usize = 16;
/// The number of rings that are kept for later readers. Further rings are created on demand and
/// dropped after use.
const KEPT: usize = 4;

/// The rings of one file, which are created on demand. Each ring is used by one thread at a time.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    refused: AtomicBool,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").field("refused", &self.refused).finish_non_exhaustive()
    }
}

impl Rings {
    fn take(&self) -> Option<IoUring> {
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        if self.refused.load(Relaxed) {
            return None;
        }
        // The thread that waits processes completions, so the completions need no interrupt. Older
        // hosts do not support this.
        let ring =
            IoUring::builder().setup_coop_taskrun().build(DEPTH).or_else(|_| IoUring::new(DEPTH));
        self.refused.store(ring.is_err(), Relaxed);
        ring.ok()
    }

    /// Fills all buffers. Returns the error that a single read would return, or `None`, without
    /// reading anything, if the host has no rings.
    pub fn read(&self, file: &File, reads: &mut [Reading<'_>]) -> Option<io::Result<()>> {
        let mut ring = self.take()?;
        let outcome =
            reads.chunks_mut(DEPTH as usize).try_for_each(|some| read_some(&mut ring, file, some));
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(ring);
        }
        Some(outcome)
    }
}

/// Performs at most [`DEPTH`] reads.
fn read_some(ring: &mut IoUring, file: &File, reads: &mut [Reading<'_>]) -> io::Result<()> {
    let mut got = [0usize; DEPTH as usize];
    let mut pushed = 0;
    for (i, r) in reads.iter_mut().enumerate() {
        // The length of a request has 32 bits. Longer requests, and those for which the ring has no
        // room, are performed below.
        let len = u32::try_from(r.buf.len()).unwrap_or(0);
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), r.buf.as_mut_ptr(), len)
            .offset(r.offset)
            .build()
            .user_data(i as u64);
        // SAFETY: the buffer and the file are borrowed for longer than this function runs (the
        // buffer exclusively), and the function returns only when no request of this ring is in
        // flight, as the loop below ensures.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            break;
        }
        pushed += 1;
        if pushed % BEGIN == 0 {
            // A failed submission is retried below.
            let _ = ring.submit();
        }
    }
    let mut done = 0;
    while done < pushed {
        let failed = ring.submit_and_wait(pushed - done).is_err();
        let before = done;
        for c in ring.completion() {
            if let Some(got) = got.get_mut(c.user_data() as usize) {
                *got = usize::try_from(c.result()).unwrap_or(0);
            }
            done += 1;
        }
        // Retry after an interruption or a lack of memory. After any error the buffers belong to
        // the host until each request is completed.
        if failed && done == before {
            env::thread::sleep(Duration::from_micros(100));
        }
    }
    // Retry failed and short reads as plain reads, which also return the reason of a failure.
    for (r, got) in reads.iter_mut().zip(got) {
        if got < r.buf.len() {
            file.read_exact_at(&mut r.buf[got..], r.offset + got as u64)?;
        }
    }
    Ok(())
}

//! Batched reads: many reads are submitted to the host in one call (`io_uring`). An announcement
//! for each (`posix_fadvise`) would ring the device's doorbell each time, which on a virtual
//! machine costs more than the read; batched reads are submitted together and waited for once. They
//! go through the page cache as all reads do: cached data is copied at once.
//!
//! If the host has no `io_uring`, or forbids it, [`Rings::read`] returns `None` and the caller
//! reads one after the other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use env::sync::Mutex;
use io_uring::{IoUring, opcode, types};

use super::Reading;

/// The requests in flight. A solid-state disk reaches its full rate at half of that.
const DEPTH: u32 = 64;
/// The requests that are submitted at once, so that the device begins while others are prepared.
const BEGIN: usize = 16;
/// The rings kept for the next reader; further ones are made on demand and dropped.
const KEPT: usize = 4;

/// The rings of one file, made on demand. Each is used by one thread at a time.
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
        // The thread that waits processes completions, so they need no interrupt. Older hosts do
        // not support that.
        let ring =
            IoUring::builder().setup_coop_taskrun().build(DEPTH).or_else(|_| IoUring::new(DEPTH));
        self.refused.store(ring.is_err(), Relaxed);
        ring.ok()
    }

    /// Fills all buffers, or fails as a single read would. Returns `None`, with nothing done, if
    /// the host has no rings.
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
        // A request has 32 bits for its length; longer ones, and those that do not fit, are read
        // below.
        let len = u32::try_from(r.buf.len()).unwrap_or(0);
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), r.buf.as_mut_ptr(), len)
            .offset(r.offset)
            .build()
            .user_data(i as u64);
        // SAFETY: the buffer is borrowed exclusively for longer than this function runs, the file
        // for as long, and the function returns only when no request of this ring is in flight: see
        // below.
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
        // An interruption, or a lack of memory, is retried. After any error the buffers belong to
        // the host until each request is completed.
        if failed && done == before {
            env::thread::sleep(Duration::from_micros(100));
        }
    }
    // Failed and short reads are retried as plain reads, which also return the reason.
    for (r, got) in reads.iter_mut().zip(got) {
        if got < r.buf.len() {
            file.read_exact_at(&mut r.buf[got..], r.offset + got as u64)?;
        }
    }
    Ok(())
}

//! Many reads handed to the host in one call (`io_uring`). One announcement for each
//! (`posix_fadvise`) rings the device's doorbell each time, which on a virtual machine costs more
//! than the read; reads that come together are passed on together, and waited for once. Through the
//! page cache, as all reads: what is there already is copied at once.
//!
//! Where the host has no `io_uring`, or forbids it, [`Rings::read`] says so and the caller reads
//! one after the other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use env::sync::Mutex;
use io_uring::{IoUring, opcode, types};

use super::Reading;

/// Requests in the air at a time. A solid-state disk reaches what it can at half of it.
const DEPTH: u32 = 64;
/// So many are handed over at a time, so that the device begins while the others are made ready.
const BEGIN: usize = 16;
/// Rings kept for the next reader; further ones are made when needed and dropped.
const KEPT: usize = 4;

/// The rings of one file, made when first used. Each is used by one thread at a time.
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
        // Completions are taken up by the thread that waits: nobody has to be interrupted for them.
        // Older hosts do not know that.
        let ring =
            IoUring::builder().setup_coop_taskrun().build(DEPTH).or_else(|_| IoUring::new(DEPTH));
        self.refused.store(ring.is_err(), Relaxed);
        ring.ok()
    }

    /// Fills all buffers, or fails as a single read would. `None`: there are no rings here, and
    /// nothing was done.
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

/// At most [`DEPTH`] reads.
fn read_some(ring: &mut IoUring, file: &File, reads: &mut [Reading<'_>]) -> io::Result<()> {
    let mut got = [0usize; DEPTH as usize];
    let mut pushed = 0;
    for (i, r) in reads.iter_mut().enumerate() {
        // A request has 32 bits for its length; what is beyond, and what does not fit, is read
        // below.
        let len = u32::try_from(r.buf.len()).unwrap_or(0);
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), r.buf.as_mut_ptr(), len)
            .offset(r.offset)
            .build()
            .user_data(i as u64);
        // SAFETY: the buffer is borrowed exclusively for longer than this function runs, the file
        // for as long, and the function returns only when no request of this ring is in the air:
        // see below.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            break;
        }
        pushed += 1;
        if pushed % BEGIN == 0 {
            // What fails here is asked for again below.
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
        // Interrupted, or short of memory: asked again. Whatever else it may be, the buffers are
        // the host's until each is answered.
        if failed && done == before {
            env::thread::sleep(Duration::from_micros(100));
        }
    }
    // What failed or came short is asked for once more in the plain way, which also says why.
    for (r, got) in reads.iter_mut().zip(got) {
        if got < r.buf.len() {
            file.read_exact_at(&mut r.buf[got..], r.offset + got as u64)?;
        }
    }
    Ok(())
}

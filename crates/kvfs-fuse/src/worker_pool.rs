//! The threads that answer requests, and help for the case that all of them are blocked.
//!
//! Most answers take microseconds, and one thread for each core is enough. But a call in a
//! serializable transaction may wait for another transaction for seconds, and the program that
//! would end the other transaction needs answers, too. So a supervisor checks from time to time
//! whether every thread has served the same request since the last check, and starts one more
//! thread if so. That thread exits when it is no longer needed.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::interrupt;

/// The maximum number of threads.
const MOST: usize = 64;
/// The interval at which the supervisor checks if a request may wait for a lock. The second
/// interval applies if no request may wait.
const OFTEN: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(500);

/// The state of a thread, as a number that is odd while the thread serves a request, and that
/// differs between requests.
#[derive(Default)]
// The slot has a separate cache line, because it is written with every request.
#[repr(align(64))]
pub(crate) struct WorkerSlot {
    /// The state of the thread. The lowest bit says that the thread serves a request, and the next
    /// bit that this request writes back pages. The other bits count the requests so far.
    doing: AtomicU64,
    thread: OnceLock<ThreadId>,
    /// The kernel's number of the thread.
    number: AtomicI32,
}

const WORKS: u64 = 1;
const WRITES_BACK: u64 = 2;
const ANOTHER: u64 = 4;

impl WorkerSlot {
    /// Registers the calling thread. This must be the first call of the thread.
    pub fn take(&self) {
        let _ = self.thread.set(std::thread::current().id());
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        self.number.store(number, Ordering::Relaxed);
    }

    /// Marks a request as in hand until the returned value is dropped.
    pub fn work(&self, writes_back: bool) -> Working<'_> {
        let before = self.doing.load(Ordering::Relaxed) & !(ANOTHER - 1);
        let what = if writes_back { WORKS | WRITES_BACK } else { WORKS };
        // The ordering is Release, so that a thread that sees this value sees everything that this
        // thread has done before.
        self.doing.store(before.wrapping_add(ANOTHER) | what, Ordering::Release);
        Working(self)
    }

    fn doing(&self) -> u64 {
        self.doing.load(Ordering::Acquire)
    }

    fn works(&self) -> bool {
        self.doing() & WORKS != 0
    }
}

pub(crate) struct Working<'a>(&'a WorkerSlot);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let doing = &self.0.doing;
        doing.store(doing.load(Ordering::Relaxed) & !(ANOTHER - 1), Ordering::Release);
    }
}

/// All threads of one mount that answer requests.
pub(crate) struct WorkerPool {
    /// The number of threads that always exist.
    base: usize,
    slots: Mutex<Vec<Arc<WorkerSlot>>>,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl WorkerPool {
    pub fn new(base: usize) -> WorkerPool {
        WorkerPool { base, slots: Mutex::default(), ended: Mutex::new(false), wake: Condvar::new() }
    }

    /// Adds a thread.
    pub fn join(&self) -> Arc<WorkerSlot> {
        let slot = Arc::new(WorkerSlot::default());
        self.slots.lock().push(slot.clone());
        slot
    }

    pub fn leave(&self, slot: &Arc<WorkerSlot>) {
        self.slots.lock().retain(|s| !Arc::ptr_eq(s, slot));
    }

    /// Removes the calling thread if enough other threads are idle, and returns whether it was
    /// removed. Only a thread that was started to help and serves no request may call this method.
    pub fn leave_if_not_needed(&self, slot: &Arc<WorkerSlot>) -> bool {
        let mut slots = self.slots.lock();
        let idle = slots.iter().filter(|s| !s.works()).count();
        // The idle threads include this thread.
        let leaves = idle > self.base;
        if leaves {
            slots.retain(|s| !Arc::ptr_eq(s, slot));
        }
        leaves
    }

    /// Returns every thread, and whether it serves a request that writes back no page. (A thread
    /// that seems to serve no request may just have taken one.)
    pub fn otherwise_busy(&self) -> Vec<(ThreadId, bool)> {
        let slots = self.slots.lock();
        // A thread that has not begun has taken nothing.
        let begun = slots.iter().filter_map(|s| s.thread.get().map(|thread| (*thread, s.doing())));
        begun.map(|(thread, doing)| (thread, doing & (WORKS | WRITES_BACK) == WORKS)).collect()
    }

    /// Returns whether a thread is writing back pages.
    pub fn writes_back(&self) -> bool {
        self.slots.lock().iter().any(|s| s.doing() & WRITES_BACK != 0)
    }

    /// Ends the call in which a thread waits for a request, for each thread that serves no request.
    pub fn interrupt_idle(&self) {
        let slots = self.slots.lock();
        let idle = slots.iter().filter(|s| !s.works()).map(|s| s.number.load(Ordering::Relaxed));
        idle.filter(|number| *number > 0).for_each(interrupt::thread);
    }

    pub fn threads(&self) -> usize {
        self.slots.lock().len()
    }

    /// Supervises the threads until the end. `stalls` returns whether a request may take long now;
    /// `help` starts one more thread.
    pub fn supervise(&self, stalls: impl Fn() -> bool, mut help: impl FnMut()) {
        let mut before = Vec::new();
        let mut ended = self.ended.lock();
        while !*ended {
            let pause = if stalls() { OFTEN } else { SELDOM };
            self.wake.wait_for(&mut ended, pause);
            let now: Vec<u64> = self.slots.lock().iter().map(|s| s.doing()).collect();
            if !*ended && now == before && now.len() < MOST && now.iter().all(|n| n & WORKS != 0) {
                help();
            }
            before = now;
        }
    }

    pub fn end(&self) {
        *self.ended.lock() = true;
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn help_comes_when_all_are_held_up_and_leaves_when_they_are_not() {
        let pool = Arc::new(WorkerPool::new(2));
        let (a, b) = (pool.join(), pool.join());
        let (call, called) = channel();
        let looking = {
            let pool = pool.clone();
            std::thread::spawn(move || pool.supervise(|| true, || call.send(pool.join()).unwrap()))
        };
        let working = a.work(false);
        assert!(called.recv_timeout(OFTEN * 5).is_err(), "one of them is free");
        let also = b.work(true);
        let helper = called.recv().unwrap();
        assert_eq!(pool.threads(), 3);
        assert!(!pool.leave_if_not_needed(&helper));
        drop(working);
        assert!(!pool.leave_if_not_needed(&helper), "with it there are two");
        drop(also);
        assert!(pool.leave_if_not_needed(&helper));
        assert_eq!(pool.threads(), 2);
        pool.end();
        looking.join().unwrap();
    }
}

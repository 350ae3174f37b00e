//! The threads that answer requests, and what happens when all of them are blocked.
//!
//! Most answers take microseconds, and as many threads as there are cores give them. But a call in
//! a serializable transaction may wait for another transaction, for seconds, and the program that
//! would end that one needs answers, too. So a supervisor looks from time to time: when every
//! thread has had the same request in hand since it looked last, it starts one more. That one exits
//! when it is not needed any more.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::interrupt;

/// Threads at most.
const MOST: usize = 64;
/// How often the supervisor looks: when a request may wait for a lock, and when none may.
const OFTEN: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(500);

/// What a thread says of itself: an odd number while it has a request in hand, and another one for
/// each.
#[derive(Default)]
// A cache line of its own, for it is written with every request.
#[repr(align(64))]
pub(crate) struct WorkerSlot {
    /// The lowest bit: it has a request in hand. The next one: and that writes back pages. Above:
    /// how many it has had.
    doing: AtomicU64,
    thread: OnceLock<ThreadId>,
    /// The kernel's number of the thread.
    number: AtomicI32,
}

const WORKS: u64 = 1;
const WRITES_BACK: u64 = 2;
const ANOTHER: u64 = 4;

impl WorkerSlot {
    /// To be called by the thread itself, first of all.
    pub fn take(&self) {
        let _ = self.thread.set(std::thread::current().id());
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        self.number.store(number, Ordering::Relaxed);
    }

    /// Takes a request up, until what this returns is dropped.
    pub fn work(&self, writes_back: bool) -> Working<'_> {
        let before = self.doing.load(Ordering::Relaxed) & !(ANOTHER - 1);
        let what = if writes_back { WORKS | WRITES_BACK } else { WORKS };
        // Release: a thread that sees this sees all that this thread has done before.
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
    /// Threads there always are.
    base: usize,
    slots: Mutex<Vec<Arc<WorkerSlot>>>,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl WorkerPool {
    pub fn new(base: usize) -> WorkerPool {
        WorkerPool { base, slots: Mutex::default(), ended: Mutex::new(false), wake: Condvar::new() }
    }

    /// A thread joins.
    pub fn join(&self) -> Arc<WorkerSlot> {
        let slot = Arc::new(WorkerSlot::default());
        self.slots.lock().push(slot.clone());
        slot
    }

    pub fn leave(&self, slot: &Arc<WorkerSlot>) {
        self.slots.lock().retain(|s| !Arc::ptr_eq(s, slot));
    }

    /// Leaves if enough others have nothing to do. For a thread that came to help, with nothing in
    /// hand.
    pub fn leave_if_not_needed(&self, slot: &Arc<WorkerSlot>) -> bool {
        let mut slots = self.slots.lock();
        let idle = slots.iter().filter(|s| !s.works()).count();
        // This one is among them.
        let leaves = idle > self.base;
        if leaves {
            slots.retain(|s| !Arc::ptr_eq(s, slot));
        }
        leaves
    }

    /// Every thread, and whether it has a request in hand that writes back no page. (One that seems
    /// to have none may just have taken one.)
    pub fn otherwise_busy(&self) -> Vec<(ThreadId, bool)> {
        let slots = self.slots.lock();
        // One that has not begun has taken nothing.
        let begun = slots.iter().filter_map(|s| s.thread.get().map(|thread| (*thread, s.doing())));
        begun.map(|(thread, doing)| (thread, doing & (WORKS | WRITES_BACK) == WORKS)).collect()
    }

    /// Whether a thread writes back pages just now.
    pub fn writes_back(&self) -> bool {
        self.slots.lock().iter().any(|s| s.doing() & WRITES_BACK != 0)
    }

    /// Ends the call in which a thread waits for a request, if it has none in hand.
    pub fn interrupt_idle(&self) {
        let slots = self.slots.lock();
        let idle = slots.iter().filter(|s| !s.works()).map(|s| s.number.load(Ordering::Relaxed));
        idle.filter(|number| *number > 0).for_each(interrupt::thread);
    }

    pub fn threads(&self) -> usize {
        self.slots.lock().len()
    }

    /// Supervises the threads until the end. `stalls`: whether a request may take long now; `help`
    /// starts one more thread.
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

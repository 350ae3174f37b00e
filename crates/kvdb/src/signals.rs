//! The requests of a store's parts to its background threads (to flush, to merge, to write out the
//! journal), and the notifications to waiting threads (memory is free again, the store is being
//! closed).

use env::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use env::sync::{Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Wanted {
    pub flush: bool,
    pub journal: bool,
    /// The generation to seal.
    pub seal: Option<u64>,
    /// The number of requests for a merge. Each merging thread remembers the number that it has
    /// seen.
    pub compaction: u64,
}

#[derive(Default)]
pub(crate) struct Signals {
    pub wanted: Mutex<Wanted>,
    pub wake_flush: Condvar,
    pub wake_compaction: Condvar,
    pub wake_clock: Condvar,
    pub wake_journal: Condvar,
    /// Is `true` while the journal's thread has an unread request, so that the thread is not
    /// notified again.
    pub journal_asked: AtomicBool,
    /// Notified when a flush has ended or values have been placed, so that memory, and perhaps
    /// journal space, is free again.
    memory_free: Condvar,
    stop: AtomicBool,
    /// Is `true` if the last flush found no space.
    flush_blocked: AtomicBool,
    /// Is `true` if the last write of the journal found no space.
    journal_blocked: AtomicBool,
    /// Is `true` if data was deleted since the last idle flush.
    pub deletions: AtomicBool,
    /// Is `true` if a reclaim may gain space, because data was deleted or flushed since the last
    /// reclaim.
    pub reclaimable: AtomicBool,
}

impl Signals {
    pub(crate) fn flush_wanted(&self) {
        self.wanted.lock().flush = true;
        self.wake_flush.notify_one();
    }

    pub(crate) fn compaction_wanted(&self) {
        self.wanted.lock().compaction += 1;
        self.wake_compaction.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns whether the last flush or the last write of the journal found no space.
    pub(crate) fn blocked(&self) -> bool {
        self.flush_blocked.load(Ordering::Acquire) || self.journal_blocked.load(Ordering::Acquire)
    }

    /// Records that a flush has ended. If the flush found space, the journal may find space, too.
    pub(crate) fn flush_ended(&self, found_space: bool) {
        self.flush_blocked.store(!found_space, Ordering::Release);
        if found_space {
            self.journal_blocked.store(false, Ordering::Release);
        }
    }

    /// Records that a write of the journal has ended. The result does not change the state of
    /// flushes.
    pub(crate) fn journal_ended(&self, found_space: bool) {
        if self.journal_blocked.load(Ordering::Relaxed) == found_space {
            self.journal_blocked.store(!found_space, Ordering::Release);
        }
    }

    /// Requests a write of the pending journal and, if `seal` is not `None`, the seal of generation
    /// `seal`.
    pub(crate) fn journal_wanted(&self, seal: Option<u64>) {
        if seal.is_none() && self.journal_asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut wanted = self.wanted.lock();
        if wanted.seal.is_some() && wanted.seal == seal {
            // The thread already knows of this seal, and may not check for requests before it is
            // notified again. Do not set `journal_asked`, since only that check resets it.
            return;
        }
        self.journal_asked.store(true, Ordering::Release);
        wanted.journal = true;
        wanted.seal = seal.or(wanted.seal);
        drop(wanted);
        self.wake_journal.notify_one();
    }

    /// Waits for memory to become free, for at most `at_most`, and only while `full` holds.
    pub(crate) fn wait_for_memory(&self, at_most: Duration, full: impl Fn() -> bool) {
        let mut wanted = self.wanted.lock();
        if full() {
            self.memory_free.wait_for(&mut wanted, at_most);
        }
    }

    /// Wakes the threads that wait for memory.
    pub(crate) fn memory_is_free(&self) {
        // Take the lock, so that a thread that is about to wait does not miss the wakeup.
        drop(self.wanted.lock());
        self.memory_free.notify_all();
    }

    /// Requests that the threads end at their next check.
    pub(crate) fn stop_soon(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Wakes all threads, so that they see the request to end.
    pub(crate) fn wake_all(&self) {
        // Hold the lock, so that a thread that is about to wait does not miss the wakeup.
        let _wanted = self.wanted.lock();
        self.wake_flush.notify_all();
        self.wake_compaction.notify_all();
        self.wake_clock.notify_all();
        self.wake_journal.notify_all();
        self.memory_free.notify_all();
    }

    /// Records that data was deleted, or is now hidden by newer versions.
    pub(crate) fn deleted(&self) {
        self.deletions.store(true, Ordering::Relaxed);
        self.reclaimable.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the requests, as the journal's thread does when it wakes, before it does the work.
    fn look(signals: &Signals) -> (bool, Option<u64>) {
        let mut wanted = signals.wanted.lock();
        let asked = std::mem::take(&mut wanted.journal);
        signals.journal_asked.store(false, Ordering::Release);
        (asked, wanted.seal)
    }

    /// A commit requests the seal of its generation while this seal is already in progress. The
    /// thread is not woken for this request, so it must be woken for the next one.
    #[test]
    fn the_journal_is_written_for_those_that_ask_after_a_seal_was_asked_for_twice() {
        let signals = Signals::default();
        signals.journal_wanted(Some(1));
        assert_eq!(look(&signals), (true, Some(1)));
        signals.journal_wanted(Some(1));
        signals.wanted.lock().seal = None;
        signals.journal_wanted(None);
        assert_eq!(look(&signals), (true, None), "the thread sleeps on");
    }
}

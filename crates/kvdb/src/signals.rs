//! What the parts of a store ask of its background threads, and what these tell those who wait: a
//! flush, a merge, the journal written out; memory that is free again; that the store is closed.

use env::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use env::sync::{Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Wanted {
    pub flush: bool,
    pub journal: bool,
    /// The generation to be sealed.
    pub seal: Option<u64>,
    /// Grows: each merging thread knows what it has seen of it.
    pub compaction: u64,
}

#[derive(Default)]
pub(crate) struct Signals {
    pub wanted: Mutex<Wanted>,
    pub wake_flush: Condvar,
    pub wake_compaction: Condvar,
    pub wake_clock: Condvar,
    pub wake_journal: Condvar,
    /// The journal's thread was asked for something that it has not looked at yet: it need not be
    /// asked again.
    pub journal_asked: AtomicBool,
    /// A flush has ended, or values have been placed: memory and perhaps journal space are free
    /// again.
    memory_free: Condvar,
    stop: AtomicBool,
    /// The last flush found no space.
    flush_blocked: AtomicBool,
    /// The last write of the journal found no space.
    journal_blocked: AtomicBool,
    /// Something was deleted since the last flush that idleness made.
    pub deletions: AtomicBool,
    /// Space may be gained by a reclaim: something was deleted or flushed since the last one.
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

    /// The last flush, or the last write of the journal, found no space.
    pub(crate) fn blocked(&self) -> bool {
        self.flush_blocked.load(Ordering::Acquire) || self.journal_blocked.load(Ordering::Acquire)
    }

    /// A flush has ended. One that found space may have given the journal some, too.
    pub(crate) fn flush_ended(&self, found_space: bool) {
        self.flush_blocked.store(!found_space, Ordering::Release);
        if found_space {
            self.journal_blocked.store(false, Ordering::Release);
        }
    }

    /// A write of the journal has ended; it says nothing of flushes.
    pub(crate) fn journal_ended(&self, found_space: bool) {
        if self.journal_blocked.load(Ordering::Relaxed) == found_space {
            self.journal_blocked.store(!found_space, Ordering::Release);
        }
    }

    /// What has gathered should be written; `seal`: and this generation closed.
    pub(crate) fn journal_wanted(&self, seal: Option<u64>) {
        if seal.is_none() && self.journal_asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut wanted = self.wanted.lock();
        if wanted.seal.is_some() && wanted.seal == seal {
            // The thread knows of it, and may not look again before it is asked for something
            // else: that it was asked is for it to forget, and so not noted here.
            return;
        }
        self.journal_asked.store(true, Ordering::Release);
        wanted.journal = true;
        wanted.seal = seal.or(wanted.seal);
        drop(wanted);
        self.wake_journal.notify_one();
    }

    /// Waits until memory becomes free, at most so long; not at all unless `full` still holds.
    pub(crate) fn wait_for_memory(&self, at_most: Duration, full: impl Fn() -> bool) {
        let mut wanted = self.wanted.lock();
        if full() {
            self.memory_free.wait_for(&mut wanted, at_most);
        }
    }

    /// Tells those that wait for memory.
    pub(crate) fn memory_is_free(&self) {
        // Under the lock, so that one that is about to wait does not miss it.
        drop(self.wanted.lock());
        self.memory_free.notify_all();
    }

    /// Lets threads end as soon as they look.
    pub(crate) fn stop_soon(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Wakes all threads, so that they see that they are to end.
    pub(crate) fn wake_all(&self) {
        // Under the lock, so that a thread that is about to wait does not miss it.
        let _wanted = self.wanted.lock();
        self.wake_flush.notify_all();
        self.wake_compaction.notify_all();
        self.wake_clock.notify_all();
        self.wake_journal.notify_all();
        self.memory_free.notify_all();
    }

    /// Something was deleted, or is hidden by newer versions now.
    pub(crate) fn deleted(&self) {
        self.deletions.store(true, Ordering::Relaxed);
        self.reclaimable.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the journal's thread does when it wakes, before the work: it takes what is asked for.
    fn look(signals: &Signals) -> (bool, Option<u64>) {
        let mut wanted = signals.wanted.lock();
        let asked = std::mem::take(&mut wanted.journal);
        signals.journal_asked.store(false, Ordering::Release);
        (asked, wanted.seal)
    }

    /// A commit that was in time for the generation asks for its seal when that is under way. The
    /// thread is not woken for it, and so must be woken for what is asked next.
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

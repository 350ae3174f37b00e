//! The commits that views still read. They determine which range tombstones a memtable must keep
//! even though newer ones cover them.
//!
//! A view registers its commit in a free slot by one compare-and-swap; if it finds no free slot, it
//! registers the commit in a map. A writer announces the floor below which it will forget data, and
//! then reads the registered commits; a view registers its commit, and then reads the announced
//! floor. So either the writer sees the commit, or the view sees the floor and retries with a newer
//! commit.
//!
//! A commit stays in its slot while any view needs it: a copy of a view shares the slot of the
//! original. If the copy took its own slot, a writer that reads the slots one by one could read the
//! new slot before it is filled, and the old one after it was released, and so miss the commit.

use env::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use env::sync::Mutex;
use vt_tree::Seq;

use crate::version::Version;

/// Number of views that can be registered without a lock.
const SLOTS: usize = 64;
/// Number of slots that a view tries.
const TRIES: usize = 4;

/// A slot, which has its own cache line.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// The sequence number of the commit plus one, or 0 if the slot is free.
    note: AtomicU64,
    /// Number of views that share the slot.
    pins: AtomicUsize,
}

pub(crate) struct ReadSnapshots {
    slots: [Slot; SLOTS],
    more: Mutex<BTreeMap<Seq, usize>>,
    /// The announced floor: data that is needed only by reads as of earlier commits may be
    /// forgotten.
    announced_floor: AtomicU64,
}

impl Default for ReadSnapshots {
    fn default() -> Self {
        ReadSnapshots {
            slots: std::array::from_fn(|_| Slot::default()),
            more: Mutex::default(),
            announced_floor: AtomicU64::new(0),
        }
    }
}

/// Returns the slot that this thread tries first.
fn first_try() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(TRIES, Ordering::Relaxed));
        }
        mine.get()
    })
}

impl ReadSnapshots {
    fn note(&self, at: Seq) -> Option<usize> {
        let first = first_try();
        for i in 0..TRIES {
            let slot = (first + i) % SLOTS;
            if self.slots[slot]
                .note
                .compare_exchange(0, at + 1, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                self.slots[slot].pins.store(1, Ordering::Relaxed);
                return Some(slot);
            }
        }
        *self.more.lock().entry(at).or_default() += 1;
        None
    }

    /// Adds a pin to a registered commit.
    fn share(&self, at: Seq, slot: Option<usize>) {
        match slot {
            Some(slot) => _ = self.slots[slot].pins.fetch_add(1, Ordering::Relaxed),
            None => *self.more.lock().entry(at).or_default() += 1,
        }
    }

    fn release(&self, at: Seq, slot: Option<usize>) {
        match slot {
            Some(slot) => {
                // Acquire and release: all reads of the views that shared the slot happen before it
                // is freed.
                if self.slots[slot].pins.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.slots[slot].note.store(0, Ordering::Release);
                }
            }
            None => {
                let mut more = self.more.lock();
                if let Some(count) = more.get_mut(&at) {
                    *count -= 1;
                    if *count == 0 {
                        more.remove(&at);
                    }
                }
            }
        }
    }

    /// Pins the newest commit. `visible` is its number, which never decreases.
    pub(crate) fn pin(self: &Arc<Self>, visible: &AtomicU64) -> ReadSnapshot {
        loop {
            let at = visible.load(Ordering::Acquire);
            let slot = self.note(at);
            fence(Ordering::SeqCst);
            if self.announced_floor.load(Ordering::SeqCst) <= at {
                return ReadSnapshot { pins: self.clone(), at, slot };
            }
            self.release(at, slot);
        }
    }

    /// Returns the floor: no view reads, or ever will read, a commit before it. `visible` is the
    /// newest commit.
    pub(crate) fn floor(&self, visible: Seq) -> Seq {
        self.floor_with(visible, |_| ())
    }

    /// Implements [`ReadSnapshots::floor`]. Calls `before` with the number of each slot before the
    /// slot is read, so that a test can act in between.
    fn floor_with(&self, visible: Seq, before: impl FnMut(usize)) -> Seq {
        self.before_with(visible, before).first().copied().unwrap_or(visible)
    }

    /// Returns the commits before `visible`, the newest commit, that views read, ascending. No view
    /// will begin to read any other commit before `visible`.
    pub(crate) fn before(&self, visible: Seq) -> Vec<Seq> {
        self.before_with(visible, |_| ())
    }

    fn before_with(&self, visible: Seq, mut before: impl FnMut(usize)) -> Vec<Seq> {
        self.announced_floor.fetch_max(visible, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let look = |(i, slot): (usize, &Slot)| {
            before(i);
            slot.note.load(Ordering::SeqCst).checked_sub(1)
        };
        let mut noted: Vec<Seq> = self.slots.iter().enumerate().filter_map(look).collect();
        noted.extend(self.more.lock().keys());
        noted.retain(|at| *at < visible);
        noted.sort_unstable();
        noted
    }
}

/// Pins the commit `at` for a reader.
pub(crate) struct ReadSnapshot {
    pins: Arc<ReadSnapshots>,
    pub at: Seq,
    slot: Option<usize>,
}

impl Clone for ReadSnapshot {
    fn clone(&self) -> ReadSnapshot {
        self.pins.share(self.at, self.slot);
        ReadSnapshot { pins: self.pins.clone(), at: self.at, slot: self.slot }
    }
}

impl Drop for ReadSnapshot {
    fn drop(&mut self) {
        self.pins.release(self.at, self.slot);
    }
}

/// A version, and the pin of the commit at which it is read.
#[derive(Clone)]
pub(crate) struct PinnedVersion {
    pub version: Arc<Version>,
    pub pin: ReadSnapshot,
}

impl Deref for PinnedVersion {
    type Target = Version;
    fn deref(&self) -> &Version {
        &self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::sync::atomic::AtomicBool;

    #[test]
    fn the_floor_is_the_oldest_pin_however_many_there_are() {
        let (pins, visible) = (Arc::new(ReadSnapshots::default()), AtomicU64::new(5));
        assert_eq!(pins.floor(5), 5);
        let first = pins.pin(&visible);
        visible.store(9, Ordering::SeqCst);
        let many: Vec<ReadSnapshot> = (0..3 * SLOTS).map(|_| pins.pin(&visible)).collect();
        let again = first.clone();
        assert_eq!((first.at, again.at, many[7].at), (5, 5, 9));
        assert_eq!(pins.floor(9), 5);
        drop(first);
        assert_eq!(pins.floor(12), 5, "its clone is there");
        drop(again);
        visible.store(12, Ordering::SeqCst);
        assert_eq!(pins.floor(12), 9);
        drop(many);
        assert_eq!(pins.floor(12), 12);
    }

    #[test]
    fn a_pin_that_changes_hands_while_the_floor_is_looked_for_is_seen() {
        // The pins made first and dropped again leave free slots before the slot of this pin.
        for kept in [0, 1, 2 * TRIES] {
            for moment in 0..SLOTS {
                let (pins, visible) = (Arc::new(ReadSnapshots::default()), AtomicU64::new(3));
                let mut first: Vec<ReadSnapshot> = (0..kept).map(|_| pins.pin(&visible)).collect();
                let mut pin = pins.pin(&visible);
                first.clear();
                let floor = pins.floor_with(9, |slot| {
                    if slot == moment {
                        // The copy replaces the original.
                        pin = pin.clone();
                    }
                });
                assert_eq!(floor, 3, "behind {kept}, at slot {moment}");
                drop(pin);
                assert_eq!(pins.floor(9), 9, "and it is let go of");
            }
        }
    }

    #[test]
    fn no_view_ever_reads_before_what_was_said() {
        let (pins, visible, stop) =
            (Arc::new(ReadSnapshots::default()), AtomicU64::new(1), AtomicBool::new(false));
        // The floor in force. The writer raises it, and the holder of a pin checks it.
        let floor = AtomicU64::new(0);
        env::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let pin = pins.pin(&visible);
                        for _ in 0..20 {
                            assert!(floor.load(Ordering::SeqCst) <= pin.at);
                        }
                    }
                });
            }
            for seq in 2..50_000 {
                visible.store(seq, Ordering::SeqCst);
                floor.fetch_max(pins.floor(seq), Ordering::SeqCst);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

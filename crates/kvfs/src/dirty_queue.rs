//! The queue of inodes with uncommitted changes, and the account of their bytes against the store's
//! room.

use env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;
use kvdb::PromisedSpace;

use crate::inode::{Inode, InodeState};

/// Room that stays free, so that what was accepted can be committed: the store hands it out by
/// zones, and the ways there (journal, open zones of several streams) take some in between.
pub(crate) const SPACE_MARGIN: u64 = 8 << 20;
/// What a new name with its inode takes of the room.
pub(crate) const NAME_COST: u64 = 1024;
/// A quarter of it may be written before the store is asked again how much room it has.
const LOOK_AGAIN: u64 = 16 << 20;
/// With less left a write may be refused before long.
const TIGHT: u64 = 1 << 30;
/// What so many dirty bytes take of the room: an eighth more for keys, nodes and the journal.
pub(crate) fn cost_of(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 8)
}

/// The inodes with something uncommitted, the longest waiting first.
pub(crate) struct DirtyQueue {
    /// With the time since when. An inode is in it at most once, and may have been
    /// committed since.
    queue: Mutex<VecDeque<(Duration, Arc<Inode>)>>,
    /// Held from taking inodes out of the queue until they are committed: who finds the queue empty
    /// under it knows that everything is committed. The first lock
    /// behind the freeze lock: see `inode`.
    pub flushing: Mutex<()>,
    bytes: AtomicUsize,
    /// Space of the store that is set aside for `bytes` and `room`, so that commits of keys cannot
    /// take it.
    promised: PromisedSpace,
    /// The mainline's: bytes that can be accepted before the store has to be asked for its room
    /// again.
    room: AtomicU64,
    /// The mainline's: the store had less than `TIGHT` bytes left when it was asked last.
    tight: AtomicBool,
}

impl DirtyQueue {
    pub fn new(promised: PromisedSpace) -> DirtyQueue {
        DirtyQueue {
            queue: Mutex::default(),
            flushing: Mutex::default(),
            bytes: AtomicUsize::new(0),
            promised,
            room: AtomicU64::new(0),
            tight: AtomicBool::new(false),
        }
    }

    /// The view has ended: nothing of it is committed any more.
    pub fn release_promised_space(&self) {
        self.promised.give_back();
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many inodes wait.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Puts an inode behind all others; it waits since `now`.
    pub fn push(&self, now: Duration, inode: Arc<Inode>) {
        self.queue.lock().push_back((now, inode));
    }

    /// Takes out the inodes that wait longest, up to `most`, of those that wait since `limit` or
    /// longer.
    pub fn pop(&self, limit: Duration, most: usize) -> Vec<Arc<Inode>> {
        let mut queue = self.queue.lock();
        let old = queue.iter().take(most).take_while(|(since, _)| *since <= limit).count();
        queue.drain(..old).map(|(_, inode)| inode).collect()
    }

    /// Changes what an inode is charged, and what of the store's room is promised to it.
    pub fn charge(&self, state: &mut InodeState, bytes: usize) {
        let (before, now) = (cost_of(state.charged as u64), cost_of(bytes as u64));
        if bytes > state.charged {
            self.bytes.fetch_add(bytes - state.charged, Ordering::Relaxed);
            self.promised.grow(now - before);
        } else {
            self.bytes.fetch_sub(state.charged - bytes, Ordering::Relaxed);
            self.promised.shrink(before - now);
        }
        state.charged = bytes;
    }

    /// Takes `cost` out of the room that can be accepted without asking the store; `false`: there
    /// is less.
    pub fn spend(&self, cost: u64) -> bool {
        let spend = |left: u64| left.checked_sub(cost);
        if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return false;
        }
        // From here on it is promised as dirty data.
        self.promised.shrink(cost);
        true
    }

    /// Asks the store by `free` for its room. A part of it may then be accepted without asking
    /// again. `false`: `cost` does not fit.
    pub fn look_at_space(&self, free: impl FnOnce() -> u64, cost: u64) -> bool {
        self.promised.shrink(self.room.swap(0, Ordering::Relaxed));
        let left = free().checked_sub(cost.saturating_add(SPACE_MARGIN));
        // A quarter, because others take from the same room: but none of what was found here, or it
        // would be accepted in vain.
        let room = left.unwrap_or(0).min(LOOK_AGAIN) / 4;
        self.promised.grow(room);
        self.promised.shrink(self.room.swap(room, Ordering::Relaxed));
        self.tight.store(left.unwrap_or(0) < TIGHT, Ordering::Relaxed);
        left.is_some()
    }

    /// Whether the store had little room when it was asked last.
    pub fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }
}

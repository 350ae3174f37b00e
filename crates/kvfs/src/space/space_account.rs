//! The account of space: the number of dirty bytes of a view, and the part of the store's free
//! space that is promised to them, so that accepted data can be committed.

use env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use kvdb::PromisedSpace;

use crate::inode::InodeState;

/// Space that stays free, so that accepted data can be committed: the store allocates space by
/// zones, and the journal and the open zones of several streams take some in the meantime.
pub(crate) const SPACE_MARGIN: u64 = 8 << 20;
/// The space of a new name with its inode.
pub(crate) const NAME_COST: u64 = 1024;
/// A quarter of this may be written before the store is asked for its free space again.
const REFILL: u64 = 16 << 20;
/// Free space below which a write may soon be refused.
const TIGHT: u64 = 1 << 30;
/// Returns the space that dirty bytes take: an eighth more for keys, nodes and the journal.
pub(crate) fn cost_of(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 8)
}

/// The dirty bytes of a view, and the space that is promised to them.
pub(crate) struct SpaceAccount {
    dirty_bytes: AtomicUsize,
    /// Space of the store that is set aside for `dirty_bytes` and `credit`, so that commits of keys
    /// cannot take it.
    promised: PromisedSpace,
    /// Bytes that can be accepted before the store has to be asked for its free space again. Only
    /// the mainline uses this.
    credit: AtomicU64,
    /// The store had less than `TIGHT` bytes left when it was last asked. Only the mainline uses
    /// this.
    tight: AtomicBool,
}

impl SpaceAccount {
    pub fn new(promised: PromisedSpace) -> SpaceAccount {
        SpaceAccount {
            dirty_bytes: AtomicUsize::new(0),
            promised,
            credit: AtomicU64::new(0),
            tight: AtomicBool::new(false),
        }
    }

    /// Releases the promised space of a view that has ended and commits nothing more.
    pub fn release_promised_space(&self) {
        self.promised.give_back();
    }

    pub fn dirty_bytes(&self) -> usize {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Changes the charge of an inode, and the space that is promised to it.
    pub fn charge(&self, state: &mut InodeState, bytes: usize) {
        let (before, now) = (cost_of(state.charged as u64), cost_of(bytes as u64));
        if bytes > state.charged {
            self.dirty_bytes.fetch_add(bytes - state.charged, Ordering::Relaxed);
            self.promised.grow(now - before);
        } else {
            self.dirty_bytes.fetch_sub(state.charged - bytes, Ordering::Relaxed);
            self.promised.shrink(before - now);
        }
        state.charged = bytes;
    }

    /// Takes `cost` out of the credit. Returns `false` if the credit is smaller.
    pub fn spend(&self, cost: u64) -> bool {
        let spend = |left: u64| left.checked_sub(cost);
        if self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return false;
        }
        // The space is promised to dirty data from here on.
        self.promised.shrink(cost);
        true
    }

    /// Asks the store for its free space by `free`, and makes a part of it the credit. Returns
    /// `false` if `cost` does not fit.
    pub fn refill(&self, free: impl FnOnce() -> u64, cost: u64) -> bool {
        self.promised.shrink(self.credit.swap(0, Ordering::Relaxed));
        let left = free().checked_sub(cost.saturating_add(SPACE_MARGIN));
        // The credit is a quarter of the rest, because other views take from the same space. `cost`
        // is not part of the credit; otherwise it would be spent twice, and writes would be
        // accepted that cannot be committed.
        let credit = left.unwrap_or(0).min(REFILL) / 4;
        self.promised.grow(credit);
        self.promised.shrink(self.credit.swap(credit, Ordering::Relaxed));
        self.tight.store(left.unwrap_or(0) < TIGHT, Ordering::Relaxed);
        left.is_some()
    }

    /// Returns whether the store had little space left when it was last asked.
    pub fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }
}

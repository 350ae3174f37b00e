//! Reclaims space before a full store refuses a commit.

use zones::{Job, ZONE_SIZE};

use super::Admission;
use super::on_demand::none_if_full;
use crate::error::Result;

/// Minimum number of zones that must be free before a reclaim stops.
const ENOUGH: u64 = 4;
/// Maximum number of rounds of a reclaim, as a caller waits for it.
const ROUNDS: usize = 16;

impl Admission {
    /// Frees the space of deleted data: flushes, merges runs with tombstones, and, if zones are
    /// mostly holes, moves the remaining data together, until there is some room or nothing more
    /// can be gained. It runs when a commit finds the store full, before that commit is refused.
    /// Returns `true` if there may be more to gain.
    pub(super) fn reclaim(&self) -> Result<bool> {
        let _job = Job::Reclaiming.begin();
        let mut free = 0;
        for _ in 0..ROUNDS {
            // If there is no room for a flush, merges may free some.
            let flushed = none_if_full(self.flusher.flush_all())?.is_some();
            let alone = self.compactor.merge_alone();
            let settled = none_if_full(self.compactor.settle())?.is_some();
            let moved = none_if_full(self.defragmenter.empty_zones())?.unwrap_or(false);
            drop(alone);
            let space = self.engine.zones.space();
            let enough = (space.zones_total / 16).max(ENOUGH) * ZONE_SIZE;
            if space.free_for_user > enough.saturating_add(self.flusher.unflushed_bytes()) {
                return Ok(moved || !settled);
            }
            let gained = space.zones_free > std::mem::replace(&mut free, space.zones_free);
            if self.engine.signals.stopping() || !gained || (!moved && flushed && settled) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

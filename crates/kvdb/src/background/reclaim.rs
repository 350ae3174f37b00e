//! Reclaiming space: what a full store does before it says so.

use zones::{Job, ZONE_SIZE};

use super::Admission;
use super::on_demand::none_if_full;
use crate::error::Result;

/// Zones that must have become free before a reclaim is content.
const ENOUGH: u64 = 4;
/// Most rounds of a reclaim: a caller that waits for it must go on at last.
const ROUNDS: usize = 16;

impl Admission {
    /// Makes the space of what was deleted free: flushes, merges what has tombstones, and, when
    /// zones are mostly holes, moves the rest of them together, until there is some room or nothing
    /// is left to gain. Done when a commit finds the store full, before it is told so. `true`:
    /// there may be more to gain.
    pub(super) fn reclaim(&self) -> Result<bool> {
        let _job = Job::Reclaiming.begin();
        let mut free = 0;
        for _ in 0..ROUNDS {
            // Without room for a flush, merges may make some.
            let flushed = none_if_full(self.flusher.flush_all())?.is_some();
            let alone = self.compactor.merge_alone();
            let settled = none_if_full(self.compactor.settle())?.is_some();
            let moved = none_if_full(self.defragmenter.empty_zones())?.unwrap_or(false);
            drop(alone);
            let space = self.zones.space();
            let enough = (space.zones_total / 16).max(ENOUGH) * ZONE_SIZE;
            if space.free_for_user > enough.saturating_add(self.flusher.unflushed_bytes()) {
                return Ok(moved || !settled);
            }
            let gained = space.zones_free > std::mem::replace(&mut free, space.zones_free);
            if self.signals.stopping() || !gained || (!moved && flushed && settled) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

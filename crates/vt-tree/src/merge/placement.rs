//! Placement: the decision whether a span of one input that overlaps no other input is stitched
//! (referred to at its present location) or copied (written again). Background jobs differ only in
//! this policy.
//!
//! Blocks and large values are examined separately. A scan reads blocks in key order, so a block
//! moves if too few bytes are contiguous in that order. A scan reads the large values of one window
//! of keys at a time, sorted by address; so a value moves if too few bytes of its window
//! ([`VALUE_WINDOW`]) are contiguous, in whatever order.

use std::collections::BTreeSet;
use std::sync::Arc;

use zones::{ZONE_SIZE, ZoneId};

use super::relocated::Relocated;
use crate::Result;
use crate::index::entry::Entry;
use crate::value::ExtentRef;

/// The value of a stitching threshold that adapts to the lengths of the spans and the cost of a
/// seek.
pub const ADAPTIVE: u64 = u64::MAX - 1;

/// The cost of a seek on solid-state devices, in bytes. See [`Placement::seek_bytes`].
pub const SOLID_STATE_SEEK: u64 = 8 << 10;

/// The number of bytes of large values that are examined together: as many as a scan reads at once.
pub const VALUE_WINDOW: u64 = 16 << 20;

/// Bounds of the adaptive threshold, in units of [`Placement::seek_bytes`]. With the lower bound, a
/// scan spends at most a third of its time on seeks between blocks; with the upper bound, no span
/// is copied to save seeks once they take only a ninth of the time.
const LEAST_SEEKS: u64 = 2;
const MOST_SEEKS: u64 = 8;
/// The adaptive threshold is the average length of the spans divided by this.
const SHORT: u64 = 4;

/// The policy by which a merge stitches or copies data.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The stitching threshold (VT-tree §3.1), bytes of contiguous tuple blocks: shorter spans are
    /// copied. With 0, only data that must be merged is copied (a log-structured file system). With
    /// `u64::MAX`, all data is copied (a plain LSM-tree). With [`ADAPTIVE`], spans much shorter
    /// than usual are copied, within bounds set by `seek_bytes`.
    pub stitch_at: u64,
    /// Large values are moved together if fewer of their bytes than this are contiguous within a
    /// window of keys. With 0, values stay.
    pub values_at: u64,
    /// The size of such a window: the bytes of large values that a scan reads together.
    pub window: u64,
    /// The number of bytes that the device reads in the time of a seek.
    pub seek_bytes: u64,
    /// Large values shorter than this, in bytes, are moved into the blocks of their keys; a block
    /// or subtree that seems to have such values is not stitched. With 0, no value is moved there.
    pub gather_below: u32,
    /// The zones to evacuate by defragmentation. Everything in them is copied, even long spans.
    pub evacuate: Option<Arc<BTreeSet<ZoneId>>>,
    /// Values that were copied to other locations: references to the old locations are replaced.
    /// This is for merges that do not move values otherwise.
    pub relocated: Option<Arc<Relocated>>,
}

impl Default for Placement {
    fn default() -> Self {
        Placement {
            stitch_at: 0,
            values_at: 0,
            window: VALUE_WINDOW,
            seek_bytes: SOLID_STATE_SEEK,
            gather_below: 0,
            evacuate: None,
            relocated: None,
        }
    }
}

impl Placement {
    /// Returns a placement that stitches wherever possible.
    pub fn stitch() -> Self {
        Placement::default()
    }

    /// Returns a placement that copies everything.
    pub fn copy() -> Self {
        Placement::threshold(u64::MAX)
    }

    /// Returns a placement with the same threshold, in bytes, for blocks and values. With
    /// [`ADAPTIVE`], values stay where they are.
    pub fn threshold(stitch_at: u64) -> Self {
        let values_at = if stitch_at == ADAPTIVE { 0 } else { stitch_at };
        Placement { stitch_at, values_at, ..Placement::default() }
    }

    /// Returns whether this block or subtree may be stitched, judging by its zones and large
    /// values.
    pub(crate) fn may_stay(&self, entry: &Entry) -> Result<bool> {
        let together = entry.value_bytes == 0
            || entry.value_bytes / entry.value_spans.max(1) >= self.values_at;
        Ok(together && !self.has_short_values(entry) && !self.must_leave(entry)?)
    }

    /// Returns whether values to be moved into blocks may be beneath `entry`, judging by the mean
    /// length. This misses a few short values among much longer ones, but those hardly slow a scan
    /// down.
    fn has_short_values(&self, entry: &Entry) -> bool {
        entry.value_bytes > 0
            && entry.value_bytes < entry.items.saturating_mul(u64::from(self.gather_below))
    }

    fn must_leave(&self, entry: &Entry) -> Result<bool> {
        let evacuated = self.evacuate.as_deref();
        let left = self.relocated.as_ref().map(|relocated| relocated.zones());
        if evacuated.is_none() && left.is_none() {
            return Ok(false);
        }
        let leaves =
            |zone: ZoneId| [evacuated, left].into_iter().flatten().any(|set| set.contains(&zone));
        Ok(entry.zone_use()?.iter().any(|(zone, _)| leaves(zone)))
    }

    /// Returns whether the policy moves no values at all.
    pub(crate) fn leaves_values(&self) -> bool {
        self.values_at == 0 && self.gather_below == 0 && self.evacuate.is_none()
    }

    /// Returns the reference to a value that is not moved: the new one if the value was relocated.
    pub(crate) fn place_of(&self, e: ExtentRef) -> ExtentRef {
        self.relocated.as_ref().map_or(e, |relocated| relocated.place_of(e))
    }

    /// Returns whether this value is moved into the block of its key.
    pub(crate) fn gathers(&self, e: &ExtentRef) -> bool {
        e.len < self.gather_below
    }

    /// Returns whether a contiguous span of `span` bytes of large values is so short that its
    /// values should be moved next to others.
    pub(crate) fn is_short(&self, span: u64) -> bool {
        // No span is longer than a zone, so a larger threshold could never be met.
        span < self.values_at && (self.moves_all() || span < ZONE_SIZE / 2)
    }

    /// Returns whether every value moves, regardless of its location.
    pub(crate) fn moves_all(&self) -> bool {
        self.values_at == u64::MAX
    }

    /// Returns whether this value must move, regardless of the other values in its window.
    pub(crate) fn moves_value(&self, e: &ExtentRef) -> bool {
        self.gathers(e)
            || self
                .evacuate
                .as_ref()
                .is_some_and(|victims| victims.contains(&ZoneId((e.addr / ZONE_SIZE) as u32)))
    }
}

/// The number and total length of the spans that a merge has seen. The adaptive threshold is
/// derived from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    bytes: u64,
    count: u64,
}

impl Spans {
    /// Records `bytes` of blocks that overlap no other input, in `count` contiguous spans.
    pub fn saw(&mut self, bytes: u64, count: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count = self.count.saturating_add(count);
    }

    pub fn threshold(&self, placement: &Placement) -> u64 {
        if placement.stitch_at != ADAPTIVE {
            return placement.stitch_at;
        }
        let seek = placement.seek_bytes.clamp(1, ZONE_SIZE / MOST_SEEKS);
        (self.bytes / self.count.max(1) / SHORT).clamp(LEAST_SEEKS * seek, MOST_SEEKS * seek)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adaptive_threshold_follows_the_spans_within_bounds() {
        let adaptive = Placement::threshold(ADAPTIVE);
        let at = |bytes, count| {
            let mut spans = Spans::default();
            spans.saw(bytes, count);
            spans.threshold(&adaptive)
        };
        assert_eq!(at(0, 0), 16 << 10, "nothing seen: only what is very short is copied");
        assert_eq!(at(100 << 20, 3200), 16 << 10, "32 KiB each: they stay");
        assert_eq!(at(100 << 20, 800), 32 << 10);
        assert_eq!(at(100 << 20, 12), 64 << 10, "however long they are");
        assert_eq!(at(10 << 20, 1 << 20), 16 << 10, "however short");
        let disk = Placement { seek_bytes: 1 << 20, ..adaptive };
        assert_eq!(Spans::default().threshold(&disk), 2 << 20);
        assert_eq!(Spans::default().threshold(&Placement::copy()), u64::MAX);
    }
}

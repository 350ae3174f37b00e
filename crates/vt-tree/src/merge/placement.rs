//! Placement: for each span of one input that overlaps no other, stitch it (refer to it where it
//! lies) or copy it (append it to the writer). The policy is all that distinguishes the background
//! jobs from one another.
//!
//! Blocks and large values are judged apart. A scan reads blocks in the order of their keys, so
//! what counts for them is how many bytes lie contiguous in that order. Large values it reads by
//! the index, a window of keys at a time, sorted by address; so what counts for them is how many
//! bytes of one window ([`VALUE_WINDOW`]) lie contiguous, in whatever order.

use std::collections::BTreeSet;
use std::sync::Arc;

use zones::{ZONE_SIZE, ZoneId};

use crate::Result;
use crate::index::entry::Entry;
use crate::value::ExtentRef;

/// As a stitching threshold: follow the spans that are there, and what a seek costs.
pub const ADAPTIVE: u64 = u64::MAX - 1;

/// What a seek costs on solid state, see [`Placement::seek_bytes`].
pub const SOLID_STATE_SEEK: u64 = 8 << 10;

/// Bytes of large values that are judged together: what a scan reads at once.
pub const VALUE_WINDOW: u64 = 16 << 20;

/// The adaptive threshold in seeks: a scan spends at most a third of its time on seeks between
/// blocks, and no span is copied for its sake once they are a ninth.
const LEAST_SEEKS: u64 = 2;
const MOST_SEEKS: u64 = 8;
/// Spans shorter than this part of the usual one are copied.
const SHORT: u64 = 4;

/// When a merge stitches.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The stitching threshold (VT-tree §3.1), bytes of contiguous tuple blocks: shorter spans are
    /// copied. 0 never copies what need not be merged (a log-structured file system), `u64::MAX`
    /// always does (a plain LSM-tree), [`ADAPTIVE`] copies what is much shorter than usual, within
    /// bounds that `seek_bytes` sets.
    pub stitch_at: u64,
    /// Large values of which fewer bytes than this lie contiguous within a window of keys are moved
    /// together. 0: values stay.
    pub values_at: u64,
    /// Bytes that the device reads in the time that a seek takes.
    pub seek_bytes: u64,
    /// Defragmentation: whatever lies in these zones is copied, however long its span.
    pub evacuate: Option<Arc<BTreeSet<ZoneId>>>,
}

impl Default for Placement {
    fn default() -> Self {
        Placement { stitch_at: 0, values_at: 0, seek_bytes: SOLID_STATE_SEEK, evacuate: None }
    }
}

impl Placement {
    /// Stitch wherever possible.
    pub fn stitch() -> Self {
        Placement::default()
    }

    /// Copy everything.
    pub fn copy() -> Self {
        Placement::threshold(u64::MAX)
    }

    /// A threshold for blocks and values alike; the adaptive one leaves values where they are.
    pub fn threshold(stitch_at: u64) -> Self {
        let values_at = if stitch_at == ADAPTIVE { 0 } else { stitch_at };
        Placement { stitch_at, values_at, ..Placement::default() }
    }

    /// May this subtree, or this block, be stitched as far as its values are concerned, and what
    /// lies in it?
    pub(crate) fn may_stay(&self, entry: &Entry) -> Result<bool> {
        let together = entry.value_bytes == 0
            || entry.value_bytes / entry.value_spans.max(1) >= self.values_at;
        Ok(together && !self.must_leave(entry)?)
    }

    fn must_leave(&self, entry: &Entry) -> Result<bool> {
        match &self.evacuate {
            None => Ok(false),
            Some(victims) => Ok(entry.zone_use()?.iter().any(|(z, _)| victims.contains(&z))),
        }
    }

    /// `true` when no value is ever moved.
    pub(crate) fn leaves_values(&self) -> bool {
        self.values_at == 0 && self.evacuate.is_none()
    }

    /// Must this value move, of a contiguous span of `span` bytes in its window?
    pub(crate) fn moves_value(&self, e: &ExtentRef, span: u64) -> bool {
        // No span is longer than a zone, so waiting for more is in vain.
        let short = span < self.values_at && (self.values_at == u64::MAX || span < ZONE_SIZE / 2);
        short
            || self
                .evacuate
                .as_ref()
                .is_some_and(|victims| victims.contains(&ZoneId((e.addr / ZONE_SIZE) as u32)))
    }
}

/// The spans that a merge has met, and the threshold in force: the policy's own, or one that
/// follows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    bytes: u64,
    count: u64,
}

impl Spans {
    /// So many bytes of blocks overlap nothing, in so many contiguous spans.
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

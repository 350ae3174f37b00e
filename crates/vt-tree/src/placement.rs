//! Placement: for each stretch of one input that overlaps no other, stitch it (refer to it where it lies) or copy it (append it
//! to the fill). The policy is all that distinguishes the background jobs from one another.

use std::collections::BTreeSet;
use std::sync::Arc;

use zones::{ZONE_SIZE, ZoneId};

use crate::Result;
use crate::entry::Entry;
use crate::item::ExtentRef;

/// When a merge stitches.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The stitching threshold (VT-tree §3.1), bytes of contiguous span: shorter spans are copied. 0 never copies what need not be
    /// merged (a log-structured file system), `u64::MAX` always does (a plain LSM-tree).
    pub stitch_at: u64,
    /// Large values stay where they are, however short their spans: a store short of space cannot have them twice for the sake of
    /// scans, while key blocks weigh little and leave zones nearly empty when they stay behind one by one.
    pub values_stay: bool,
    /// Defragmentation: whatever lies in these zones is copied, however long its span.
    pub evacuate: Option<Arc<BTreeSet<ZoneId>>>,
}

impl Placement {
    /// Stitch wherever possible.
    pub fn stitch() -> Self {
        Placement::default()
    }

    /// Copy everything.
    pub fn copy() -> Self {
        Placement { stitch_at: u64::MAX, ..Placement::default() }
    }

    pub fn threshold(stitch_at: u64) -> Self {
        Placement { stitch_at, ..Placement::default() }
    }

    /// May this subtree be stitched whole?
    pub(crate) fn stitches_subtree(&self, entry: &Entry) -> Result<bool> {
        Ok(self.mean_span(entry) >= self.stitch_at && !self.must_leave(entry)?)
    }

    /// Mean length of the contiguous spans beneath an entry, bytes; of those that may be moved.
    fn mean_span(&self, entry: &Entry) -> u64 {
        if self.values_stay { entry.block_bytes / entry.block_spans.max(1) } else { entry.mean_span() }
    }

    /// What a block beneath this entry adds to a span of blocks: bytes, and seeks beside the first.
    pub(crate) fn weigh(&self, entry: &Entry) -> (u64, u64) {
        if self.values_stay { (entry.block_bytes, 0) } else { (entry.data_bytes(), entry.value_spans) }
    }

    pub(crate) fn must_leave(&self, entry: &Entry) -> Result<bool> {
        match &self.evacuate {
            None => Ok(false),
            Some(victims) => Ok(entry.zone_use()?.iter().any(|(z, _)| victims.contains(&z))),
        }
    }

    /// May a span of large values of `bytes` in all stay where it is?
    pub(crate) fn stitches_values(&self, bytes: u64) -> bool {
        self.values_stay || bytes >= self.stitch_at
    }

    pub(crate) fn value_must_leave(&self, e: &ExtentRef) -> bool {
        self.evacuate.as_ref().is_some_and(|victims| victims.contains(&ZoneId((e.addr / ZONE_SIZE) as u32)))
    }

    /// Bytes of a span after which the decision can only be "stitch"; a span lies in one zone, so waiting for more is in vain.
    pub(crate) fn decided_at(&self) -> u64 {
        if self.values_stay { 0 } else { self.stitch_at.min(ZONE_SIZE) }
    }
}

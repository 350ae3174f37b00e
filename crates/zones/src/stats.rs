//! What the device was asked to do, by purpose: the raw numbers behind write amplification and cost
//! of a scan.

use crate::Purpose;

/// Counted since the store was opened; differences of two of them measure what lies between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurposeStats {
    pub read_ops: u64,
    pub read_bytes: u64,
    /// Ranges that were announced before they were read, each fetched as one; the reads count
    /// besides.
    pub ahead_ops: u64,
    pub ahead_bytes: u64,
    pub write_ops: u64,
    pub write_bytes: u64,
    /// Accesses that did not begin where the one before ended.
    pub seeks: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// In the order of [`Purpose::ALL`].
    pub by_purpose: [PurposeStats; Purpose::ALL.len()],
    pub syncs: u64,
    pub discards: u64,
    pub discarded_bytes: u64,
}

impl IoStats {
    pub fn of(&self, purpose: Purpose) -> &PurposeStats {
        &self.by_purpose[purpose as usize]
    }

    /// All purposes together.
    pub fn total(&self) -> PurposeStats {
        self.by_purpose.iter().fold(PurposeStats::default(), |sum, p| PurposeStats {
            read_ops: sum.read_ops + p.read_ops,
            read_bytes: sum.read_bytes + p.read_bytes,
            ahead_ops: sum.ahead_ops + p.ahead_ops,
            ahead_bytes: sum.ahead_bytes + p.ahead_bytes,
            write_ops: sum.write_ops + p.write_ops,
            write_bytes: sum.write_bytes + p.write_bytes,
            seeks: sum.seeks + p.seeks,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (Purpose, &PurposeStats)> {
        Purpose::ALL.into_iter().zip(&self.by_purpose)
    }
}

//! How a run is written, and what a merge may drop.

use zones::{Lifetime, Priority};

use super::placement::Placement;
use crate::filter::FALSE_POSITIVES;
use crate::item::Seq;
use crate::value::Compression;

/// How a run is written, and what a merge may drop.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    pub placement: Placement,
    /// Nothing older lies below the inputs: tombstones have done their work.
    pub drop_tombstones: bool,
    /// Values of at least this many bytes are placed outside their block.
    pub separate_at: u32,
    /// Sequence numbers up to this one are of no more interest and are written as 0.
    pub old_seq: Seq,
    /// How the tuple blocks written are stored; what is stitched stays as it is.
    pub compression: Compression,
    /// How values are stored that come as bytes and are placed outside their block; what has a
    /// place stays as it is, also when it moves.
    pub compress_values: Compression,
    /// Of ten thousand keys that are not there, so many at most seem to be, by the filters written:
    /// 80 is 0.8%. 0: the blocks written have no filter.
    pub false_positives: u16,
    pub priority: Priority,
    /// Beside what it is laid on the device.
    pub lifetime: Lifetime,
    /// Large values are written while more of the input is read, see
    /// [`zones::ExtentWriter::write_behind`]: for what somebody waits for.
    pub write_behind: bool,
}

impl Default for MergeOptions {
    fn default() -> Self {
        MergeOptions {
            placement: Placement::stitch(),
            drop_tombstones: false,
            separate_at: 2048,
            old_seq: 0,
            compression: Compression::None,
            compress_values: Compression::None,
            false_positives: FALSE_POSITIVES,
            priority: Priority::Merge,
            lifetime: Lifetime::Young,
            write_behind: false,
        }
    }
}

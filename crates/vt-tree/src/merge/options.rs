//! How a run is written, and what a merge may drop.

use zones::{Lifetime, Priority};

use super::placement::Placement;
use crate::filter::FALSE_POSITIVES;
use crate::item::Seq;
use crate::value::Compression;

/// How a run is written, and what a merge may drop.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// When to stitch and when to copy.
    pub placement: Placement,
    /// Drop tombstones. Allowed only if nothing older lies below the inputs.
    pub drop_tombstones: bool,
    /// Values of at least this many bytes are placed outside their block.
    pub separate_at: u32,
    /// Sequence numbers up to this one are written as 0: no reader distinguishes them any more.
    pub old_seq: Seq,
    /// The codec of the tuple blocks written. Stitched blocks keep theirs.
    pub compression: Compression,
    /// The codec of large values that come as bytes. A value that has a place already keeps its
    /// codec, also when it moves.
    pub compress_values: Compression,
    /// The rate of false positives of the filters written, in ten thousandths: 80 is 0.8%. With 0
    /// the blocks written have no filter.
    pub false_positives: u16,
    /// How far into the reserve of free zones the merge may reach.
    pub priority: Priority,
    /// How long the result is expected to live; data of one lifetime shares zones.
    pub lifetime: Lifetime,
    /// Write large values while more input is read, see [`zones::ExtentWriter::write_behind`]: for
    /// merges that a caller waits for.
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

//! The options of a merge: how a run is written, and which items may be dropped.

use std::sync::Arc;

use zones::{Lifetime, Priority};

use super::placement::Placement;
use crate::filter::FALSE_POSITIVES;
use crate::item::Seq;
use crate::value::{ChooseCodec, Compression};

/// The options of a merge: how a run is written, and which items may be dropped.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// The policy by which data is stitched or copied.
    pub placement: Placement,
    /// Drop tombstones. Allowed only if nothing older lies below the inputs.
    pub drop_tombstones: bool,
    /// Values of at least this many bytes are placed outside their block.
    pub separate_at: u32,
    /// Sequence numbers up to this one are written as 0: no reader distinguishes them any more.
    pub old_seq: Seq,
    /// The codec of the tuple blocks written. Stitched blocks keep theirs.
    pub compression: Compression,
    /// The codec of large values that arrive as bytes. A value that already has a place keeps its
    /// codec, also when it moves, and so does a compressed value that an update changes.
    pub compress_values: Compression,
    /// Chooses the codec of each of these values instead.
    pub choice: Option<Arc<dyn ChooseCodec>>,
    /// The rate of false positives of the filters written, in ten thousandths: 80 is 0.8%. With 0
    /// the blocks written have no filter.
    pub false_positives: u16,
    /// The priority of allocations: it decides how far the merge may reach into the reserve of free
    /// zones.
    pub priority: Priority,
    /// The expected lifetime of the result; data of one lifetime shares zones.
    pub lifetime: Lifetime,
    /// Write large values while more input is read. See [`zones::ExtentWriter::write_behind`]. It
    /// is for merges that a caller waits for.
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
            choice: None,
            false_positives: FALSE_POSITIVES,
            priority: Priority::Merge,
            lifetime: Lifetime::Young,
            write_behind: false,
        }
    }
}

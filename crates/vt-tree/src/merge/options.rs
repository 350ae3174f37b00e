//! The options of a merge, which determine how a run is written and which items may be dropped.

use std::sync::Arc;

use zones::{Lifetime, Priority};

use super::placement::Placement;
use crate::filter::FALSE_POSITIVES;
use crate::item::Seq;
use crate::value::{ChooseCodec, Compression};

/// The options of a merge, which determine how a run is written and which items may be dropped.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// The policy that decides which data is stitched and which is copied.
    pub placement: Placement,
    /// True if tombstones are dropped. Allowed only if there is no data older than the inputs.
    pub drop_tombstones: bool,
    /// Values of at least this many bytes are stored outside their block.
    pub separate_at: u32,
    /// Sequence numbers up to this one are written as 0, since no reader distinguishes them any
    /// more.
    pub old_seq: Seq,
    /// The codec of the tuple blocks that are written. Stitched blocks keep their codec.
    pub compression: Compression,
    /// The codec of large values that arrive as bytes. A value that is already on the device keeps
    /// its codec, even if it moves, and so does a compressed value that is updated.
    pub compress_values: Compression,
    /// If set, chooses the codec of each of these values instead of `compress_values`.
    pub choice: Option<Arc<dyn ChooseCodec>>,
    /// The rate of false positives of the filters that are written, in ten thousandths: 80 is 0.8%.
    /// With 0, the blocks that are written have no filter.
    pub false_positives: u16,
    /// The priority of allocations, which determines how much of the reserve of free zones the
    /// merge may use.
    pub priority: Priority,
    /// The expected lifetime of the result. Data of the same lifetime shares zones.
    pub lifetime: Lifetime,
    /// True if large values are written while more input is read, for merges that a caller waits
    /// for. See [`zones::ExtentWriter::write_behind`].
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

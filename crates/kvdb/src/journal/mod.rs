//! The journal has every commit since the last flush, as a stream of records in chunks. The chunks
//! lie in *segments*. A segment is one zone. The manifest lists the segments in order before they
//! are written, and each use of a zone has a new random epoch. When the commits of a segment have
//! reached the runs, its zone is listed again as a new segment at the end. The host has already
//! allocated the space of such a zone, so a synced write costs one flush of the device and no write
//! to the journal of the host's file system.

pub(crate) mod record;
mod writer;

pub(crate) use writer::{Owned, Writer, cost};

use zones::{ZONE_SIZE, ZoneId};

use crate::log::stream::StreamPart;

/// A zone in use by the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The number that determines the segment's order in the stream. A number is never used again.
    pub number: u64,
    pub zone: ZoneId,
    /// The random number that distinguishes the chunks of this use of the zone from chunks of
    /// earlier uses.
    pub epoch: u64,
    /// The position at which the stream leaves this segment, once this position is final.
    /// Everything before the position is durable.
    pub end: Option<u64>,
}

impl Segment {
    pub(crate) fn part(&self) -> StreamPart {
        StreamPart { zone: self.zone, epoch: self.epoch, end: self.end }
    }
}

/// The size of a segment, in bytes.
pub(crate) const SEGMENT_SIZE: u64 = ZONE_SIZE;

//! The journal: every commit since the runs were written, as a stream of records in chunks, laid
//! into *segments*. A segment is one zone; the manifest lists them in order before they are
//! written, each use of a zone with a new random epoch. Zones whose commits have reached the runs
//! are listed anew at the end: their space on the host is there already, so a synced write is one
//! flush and no file system's journal.

pub(crate) mod record;
mod writer;

pub(crate) use writer::{Owned, Writer, cost};

use zones::{ZONE_SIZE, ZoneId};

use crate::log::stream::StreamPart;

/// One use of a zone by the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Order in the stream; never used again.
    pub number: u64,
    pub zone: ZoneId,
    /// Tells this use's chunks from those of an earlier one.
    pub epoch: u64,
    /// Once known for good: the position where the stream leaves this segment. Everything before it
    /// is durable.
    pub end: Option<u64>,
}

impl Segment {
    pub(crate) fn part(&self) -> StreamPart {
        StreamPart { zone: self.zone, epoch: self.epoch, end: self.end }
    }
}

/// Bytes that a segment holds.
pub(crate) const SEGMENT_SIZE: u64 = ZONE_SIZE;

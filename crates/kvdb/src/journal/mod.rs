//! The journal: every commit since the last flush, as a stream of records in chunks, in *segments*.
//! A segment is one zone; the manifest lists the segments in order before they are written, and
//! each use of a zone has a new random epoch. Zones whose commits have reached the runs are listed
//! again at the end: their space is allocated on the host already, so a synced write is one flush
//! of the device, without a write of the host file system's journal.

pub(crate) mod record;
mod writer;

pub(crate) use writer::{Owned, Writer, cost};

use zones::{ZONE_SIZE, ZoneId};

use crate::log::stream::StreamPart;

/// A zone in use by the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its order in the stream; a number is never used again.
    pub number: u64,
    pub zone: ZoneId,
    /// Distinguishes the chunks of this use from those of an earlier one.
    pub epoch: u64,
    /// The position at which the stream leaves this segment, once it is final. Everything before it
    /// is durable.
    pub end: Option<u64>,
}

impl Segment {
    pub(crate) fn part(&self) -> StreamPart {
        StreamPart { zone: self.zone, epoch: self.epoch, end: self.end }
    }
}

/// The size of a segment, bytes.
pub(crate) const SEGMENT_SIZE: u64 = ZONE_SIZE;

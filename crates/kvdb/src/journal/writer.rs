//! Writes the journal's stream: cuts what has gathered since the last write into chunks and lays
//! them into segments. It never touches a sector twice: what a write did not fill stays empty.

use std::collections::VecDeque;
use std::sync::Arc;

use zones::{Purpose, SECTOR, ZonePin, Zones};

use super::{SEGMENT_SIZE, Segment};
use crate::error::Result;
use crate::log::chunk::{self, HEADER, Kind, MAX_PIECE};

/// A segment and what keeps its zone.
pub(crate) struct Owned {
    pub segment: Segment,
    pub pin: ZonePin,
    /// Up to this offset the host has space for it that was written to before, so that a sync of
    /// what is written there does not wait for the host's own journal.
    pub settled: u64,
    /// Its zone may be a segment's again without an allocation.
    pub reusable: bool,
}

impl Owned {
    /// A segment in a zone that was just taken.
    pub(crate) fn new(segment: Segment, pin: ZonePin) -> Owned {
        Owned { segment, pin, settled: 0, reusable: true }
    }

    /// A segment in a zone that was written to from its beginning to its end.
    pub(crate) fn settled(segment: Segment, pin: ZonePin) -> Owned {
        Owned { settled: SEGMENT_SIZE, ..Owned::new(segment, pin) }
    }
}

/// Where syncs are expected, so many bytes ahead of the stream are filled with zeros at once, in a
/// segment that was not prepared: one sync in hundreds waits for the host then.
const SETTLE: u64 = 1 << 20;

pub(crate) struct Writer {
    zones: Arc<Zones>,
    /// Segments that hold parts of the stream, oldest first; the last one is being written.
    used: VecDeque<Owned>,
    /// Segments that the manifest lists and that are still empty.
    ready: VecDeque<Owned>,
    /// Empty segments that a thread prepares or lists while the writer is not locked.
    coming: usize,
    /// Offset in the last used segment where the next chunk goes.
    offset: u64,
    /// Position in the stream where the next chunk begins.
    position: u64,
    /// Position behind the last write that was not cut off in the middle of a record.
    whole: u64,
    /// Zones for values that wait for their place: they go to the device together with the stream.
    pub reserved: Vec<ZonePin>,
    /// Syncs are expected: see [`SETTLE`].
    pub settle: bool,
}

/// Where the writer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub segment: u64,
    pub offset: u64,
    pub position: u64,
}

impl Writer {
    /// A writer that goes on at `position` in the first of the segments that are added to it.
    pub(crate) fn new(zones: Arc<Zones>, position: u64) -> Writer {
        Writer {
            zones,
            used: VecDeque::new(),
            ready: VecDeque::new(),
            coming: 0,
            offset: SEGMENT_SIZE,
            position,
            whole: position,
            reserved: Vec::new(),
            settle: false,
        }
    }

    /// Segments of an earlier life: kept until the runs hold what is in them.
    pub(crate) fn keep_old(&mut self, old: Vec<Owned>) {
        debug_assert!(self.used.is_empty());
        self.used.extend(old);
    }

    /// An empty segment, already durable in the manifest. Given back when a later one was added
    /// before: the stream goes through segments in the order of their numbers.
    #[must_use]
    pub(crate) fn add(&mut self, segment: Owned) -> Option<Owned> {
        let newest = self.ready.back().or(self.used.back()).map(|s| s.segment.number);
        if newest.is_some_and(|newest| newest > segment.segment.number) {
            return Some(segment);
        }
        self.ready.push_back(segment);
        None
    }

    /// Announces at most `most` segments that will be added, so many that no more than `stock` are
    /// empty then; returns how many. The caller calls [`Writer::arrived`] with that number after it
    /// has added them, or given up. Without it, two threads would each see a segment missing, and a
    /// nearly full store would keep one zone more for the journal than it should.
    pub(crate) fn announce(&mut self, stock: usize, most: usize) -> usize {
        let count = stock.saturating_sub(self.ready.len() + self.coming).min(most);
        self.coming += count;
        count
    }

    pub(crate) fn arrived(&mut self, count: usize) {
        self.coming -= count;
    }

    /// Bytes that the segments in use take on the device.
    pub(crate) fn bytes(&self) -> u64 {
        self.used.len() as u64 * SEGMENT_SIZE
    }

    /// Bytes of stream that surely fit into the segments at hand, when written at once.
    pub(crate) fn room(&self) -> usize {
        let left = room_in(SEGMENT_SIZE - self.offset);
        (left + self.ready.len() as u64 * room_in(SEGMENT_SIZE)) as usize
    }

    pub(crate) fn position(&self) -> Written {
        let (segment, offset) = match (self.used.back(), self.ready.front()) {
            (_, Some(next)) if self.offset == SEGMENT_SIZE => (next.segment.number, 0),
            (Some(last), _) => (last.segment.number, self.offset),
            (None, _) => (0, 0),
        };
        Written { segment, offset, position: self.position }
    }

    /// The stream ends with a whole record.
    pub(crate) fn is_whole(&mut self) {
        self.whole = self.position;
    }

    /// Bytes of stream behind the last write that ended with a whole record.
    pub(crate) fn since_whole(&self) -> u64 {
        self.position - self.whole
    }

    /// Writes `buffer`, which is `HEADER` bytes of anything and then the stream's next bytes. The
    /// caller made sure of [`Writer::room`]. `synced`: see [`chunk`]. Not synced.
    pub(crate) fn write(&mut self, buffer: &mut Vec<u8>, synced: u64) -> Result<()> {
        let total = buffer.len() - HEADER;
        let room = SEGMENT_SIZE - self.offset;
        if total <= MAX_PIECE && chunk::size(total) <= room {
            return self.write_chunk(buffer, synced);
        }
        let mut done = 0;
        while done < total {
            if SEGMENT_SIZE - self.offset < SECTOR {
                self.next_segment()?;
            }
            let piece =
                (total - done).min(MAX_PIECE).min((SEGMENT_SIZE - self.offset) as usize - HEADER);
            let mut bytes = Vec::with_capacity(chunk::size(piece) as usize);
            bytes.resize(HEADER, 0);
            bytes.extend_from_slice(&buffer[HEADER + done..HEADER + done + piece]);
            self.write_chunk(&mut bytes, synced)?;
            done += piece;
        }
        Ok(())
    }

    fn write_chunk(&mut self, chunk: &mut Vec<u8>, synced: u64) -> Result<()> {
        let len = (chunk.len() - HEADER) as u64;
        let Some(current) = self.used.back_mut() else {
            return Err(crate::Error::Invalid("the journal has no segment to write to".into()));
        };
        chunk::seal(Kind::Journal, chunk, current.segment.epoch, self.position, synced);
        let start = current.segment.zone.start();
        self.zones.write(Purpose::Journal, start + self.offset, chunk)?;
        self.offset += chunk.len() as u64;
        current.settled = current.settled.max(self.offset);
        if self.settle && current.settled <= self.offset && self.offset < SEGMENT_SIZE {
            let to = (self.offset + SETTLE).min(SEGMENT_SIZE);
            let zeros = vec![0; (to - self.offset) as usize];
            self.zones.write(Purpose::Journal, start + self.offset, &zeros)?;
            current.settled = to;
        }
        self.position += len;
        Ok(())
    }

    fn next_segment(&mut self) -> Result<()> {
        let next = self.ready.pop_front();
        let next = next
            .ok_or_else(|| crate::Error::Invalid("the journal has no segment prepared".into()))?;
        self.used.push_back(next);
        self.offset = 0;
        Ok(())
    }

    /// Lets go of the segments before number `before`, and gives them back for another use.
    pub(crate) fn release(&mut self, before: u64) -> Vec<Owned> {
        let count = self.used.iter().take_while(|s| s.segment.number < before).count();
        debug_assert!(
            count == 0 || count < self.used.len() || self.offset == SEGMENT_SIZE,
            "the segment being written is wanted"
        );
        self.used.drain(..count).collect()
    }

    /// Undoes a [`Writer::release`].
    pub(crate) fn take_back(&mut self, released: Vec<Owned>) {
        for segment in released.into_iter().rev() {
            self.used.push_front(segment);
        }
    }

    /// The ranges of its segments that are not needed once the store is closed, as addresses.
    /// `flushed`: nothing of the stream is.
    pub(crate) fn unneeded(&self, flushed: bool) -> Vec<(u64, u64)> {
        let whole = |owned: &Owned| (owned.segment.zone.start(), owned.segment.zone.end());
        let used = match (flushed, self.used.back()) {
            (true, _) => self.used.iter().map(whole).collect(),
            (false, Some(last)) => vec![(whole(last).0 + self.offset, whole(last).1)],
            (false, None) => Vec::new(),
        };
        let ranges = used.into_iter().chain(self.ready.iter().map(whole));
        ranges.filter(|(start, end)| start < end).collect()
    }

    /// The segment last written to, and the position where the stream stands.
    pub(crate) fn last_used(&self) -> Option<(u64, u64)> {
        self.used.back().map(|s| (s.segment.number, self.position))
    }
}

/// Bytes of stream that fit into `bytes` of a segment: every chunk may waste a header and most of a
/// sector, and the chunks are as long as a whole buffer, except at a segment's end.
fn room_in(bytes: u64) -> u64 {
    bytes.saturating_sub(bytes / (1 << 17) * 64 + 3 * SECTOR)
}

/// How much of [`Writer::room`] a write of `len` bytes takes at most.
pub(crate) fn cost(len: usize) -> usize {
    len + len / (1 << 16) * 64 + 3 * SECTOR as usize
}

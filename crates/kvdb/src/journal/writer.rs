//! Writes the journal's stream. The writer cuts the pending bytes into chunks and writes the chunks
//! into segments. It never writes a sector twice, so the rest of a sector that a write did not fill
//! stays empty.

use std::collections::VecDeque;
use std::sync::Arc;

use zones::{Purpose, SECTOR, ZonePin, Zones};

use super::{SEGMENT_SIZE, Segment};
use crate::error::Result;
use crate::log::chunk::{self, HEADER, Kind, MAX_PIECE};

/// A segment and the pin of its zone.
pub(crate) struct Owned {
    pub segment: Segment,
    pub pin: ZonePin,
    /// The offset up to which the host has allocated and written the space of the segment. A sync
    /// of a write before this offset does not wait for the host's own journal.
    pub settled: u64,
    /// Is `true` if the zone can become a segment again without an allocation.
    pub reusable: bool,
}

impl Owned {
    /// Returns a segment in a newly taken zone.
    pub(crate) fn new(segment: Segment, pin: ZonePin) -> Owned {
        Owned { segment, pin, settled: 0, reusable: true }
    }

    /// Returns a segment in a zone that was written from beginning to end.
    pub(crate) fn settled(segment: Segment, pin: ZonePin) -> Owned {
        Owned { settled: SEGMENT_SIZE, ..Owned::new(segment, pin) }
    }
}

/// The number of bytes ahead of the stream that one write fills with zeros, in a segment that was
/// not prepared, while syncs are expected. With this, only one sync in hundreds waits for the host.
const SETTLE: u64 = 1 << 20;

pub(crate) struct Writer {
    zones: Arc<Zones>,
    /// The segments that hold parts of the stream, the oldest first. The last segment is being
    /// written.
    used: VecDeque<Owned>,
    /// The segments that the manifest lists and that are still empty.
    ready: VecDeque<Owned>,
    /// The number of empty segments that threads are preparing or listing while the writer is not
    /// locked.
    coming: usize,
    /// The offset of the next chunk in the last used segment.
    offset: u64,
    /// The position of the next chunk in the stream.
    position: u64,
    /// The position after the last write that ended with a complete record.
    whole: u64,
    /// The zones for deferred values, which are written to the device together with the stream.
    pub reserved: Vec<ZonePin>,
    /// Is `true` while syncs are expected. See [`SETTLE`].
    pub settle: bool,
}

/// The position of the writer: the segment, the offset in the segment, and the position in the
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub segment: u64,
    pub offset: u64,
    pub position: u64,
}

impl Writer {
    /// Returns a writer that continues at `position`. It writes into the first segment that is
    /// added.
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

    /// Adds segments that were written before the opening. These segments are kept until the runs
    /// hold their commits.
    pub(crate) fn keep_old(&mut self, old: Vec<Owned>) {
        debug_assert!(self.used.is_empty());
        self.used.extend(old);
    }

    /// Adds an empty segment that is already durable in the manifest. Returns the segment if a
    /// segment with a higher number was added before, since the stream passes through segments in
    /// the order of their numbers.
    #[must_use]
    pub(crate) fn add(&mut self, segment: Owned) -> Option<Owned> {
        let newest = self.ready.back().or(self.used.back()).map(|s| s.segment.number);
        if newest.is_some_and(|newest| newest > segment.segment.number) {
            return Some(segment);
        }
        self.ready.push_back(segment);
        None
    }

    /// Announces that up to `most` segments will be added, but not more than are needed for `stock`
    /// empty segments. Returns the number of announced segments. The caller must call
    /// [`Writer::arrived`] with this number after it has added the segments or has failed to add
    /// them. Without the announcement, two threads could add the same missing segment, and a nearly
    /// full store would keep one zone more for the journal than it should.
    pub(crate) fn announce(&mut self, stock: usize, most: usize) -> usize {
        let count = stock.saturating_sub(self.ready.len() + self.coming).min(most);
        self.coming += count;
        count
    }

    pub(crate) fn arrived(&mut self, count: usize) {
        self.coming -= count;
    }

    /// Returns the number of bytes that the segments in use take on the device.
    pub(crate) fn bytes(&self) -> u64 {
        self.used.len() as u64 * SEGMENT_SIZE
    }

    /// Returns the number of bytes of the stream that are certain to fit into the available
    /// segments in one write.
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

    /// Records that the stream currently ends with a complete record.
    pub(crate) fn is_whole(&mut self) {
        self.whole = self.position;
    }

    /// Returns the number of bytes of the stream after the last write that ended with a complete
    /// record.
    pub(crate) fn since_whole(&self) -> u64 {
        self.position - self.whole
    }

    /// Writes `buffer`, which has `HEADER` arbitrary bytes and then the next bytes of the stream.
    /// The caller must ensure that the bytes fit ([`Writer::room`]). See [`chunk`] for `synced`.
    /// Does not sync.
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

    /// Releases the segments before number `before`, and returns them for another use.
    pub(crate) fn release(&mut self, before: u64) -> Vec<Owned> {
        let count = self.used.iter().take_while(|s| s.segment.number < before).count();
        debug_assert!(
            count == 0 || count < self.used.len() || self.offset == SEGMENT_SIZE,
            "the segment being written is wanted"
        );
        self.used.drain(..count).collect()
    }

    /// Takes back segments that [`Writer::release`] has returned.
    pub(crate) fn take_back(&mut self, released: Vec<Owned>) {
        for segment in released.into_iter().rev() {
            self.used.push_front(segment);
        }
    }

    /// Returns the address ranges of the segments that are not needed once the store is closed.
    /// `flushed` is `true` if no part of the stream is needed.
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

    /// Returns the number of the segment that is being written, and the position of the stream.
    pub(crate) fn last_used(&self) -> Option<(u64, u64)> {
        self.used.back().map(|s| (s.segment.number, self.position))
    }
}

/// Returns the number of bytes of the stream that fit into `bytes` bytes of a segment. Every chunk
/// may waste a header and most of a sector, and each chunk except the last of a segment is as long
/// as a whole buffer.
fn room_in(bytes: u64) -> u64 {
    bytes.saturating_sub(bytes / (1 << 17) * 64 + 3 * SECTOR)
}

/// Returns the maximum number of bytes of [`Writer::room`] that a write of `len` bytes takes.
pub(crate) fn cost(len: usize) -> usize {
    len + len / (1 << 16) * 64 + 3 * SECTOR as usize
}

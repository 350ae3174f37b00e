//! Reads a stream of chunks (journal or manifest) back from its zones. A stream can end in three
//! ways: at a given end; in a torn tail, as after a power cut; or before a missing part in its
//! middle, which is corruption. A later chunk distinguishes the last two cases. If it states that
//! everything before a position was synced, a missing part before that position was durable once,
//! and its loss is corruption.
//!
//! Two copies of each chunk of the manifest are written, one after the other. No later chunk states
//! that the last edit was durable, so a flipped bit could otherwise remove that edit unnoticed and
//! restore a state whose journal no longer exists.

use bytes::Bytes;
use zones::{Purpose, SECTOR, ZONE_SIZE, ZoneId, Zones};

use crate::error::{Error, Result};
use crate::log::chunk::{Header, Kind};
use crate::log::read_buffer::ReadBuffer;

/// The part of a stream in one zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPart {
    pub zone: ZoneId,
    pub epoch: u64,
    /// The position at which the stream stops in this zone, even if the zone holds further chunks.
    /// Everything before this position must exist.
    pub end: Option<u64>,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The position after the last byte of valid chunks.
    pub position: u64,
    /// The position before which everything is known to have been durable.
    pub synced: u64,
    /// The number of bytes of chunks after the end. The reader ignores these chunks.
    pub torn: u64,
}

/// Reads the pieces of a stream in order.
pub(crate) struct StreamReader<'a> {
    zones: &'a Zones,
    kind: Kind,
    parts: &'a [StreamPart],
    part: usize,
    /// The offset of the next chunk in the zone of the current part.
    offset: u64,
    /// The position of the next byte to read.
    position: u64,
    /// Is `true` until the first chunk is read. The first chunk may begin before the requested
    /// position.
    first: bool,
    synced: u64,
    buffer: ReadBuffer,
    /// The chunks with one unreadable copy: the device address of this copy, and the position of
    /// the chunk.
    damaged: Vec<(u64, u64)>,
    /// The position of the last chunk that was read.
    last: u64,
    /// Is `true` if reads bypass the host's cache and go to the medium.
    medium: bool,
    /// The result of an unsuccessful search for the next chunk in the rest of a part.
    searched: Option<Searched>,
    /// Is `true` if no further chunk is expected.
    closed: bool,
}

/// The headers with the epoch of a part that an unsuccessful search has found. They are kept so
/// that [`StreamReader::tail`] need not read them again.
struct Searched {
    part: usize,
    /// The offset at which the search started. The search continued to the end of the zone.
    offset: u64,
    /// The headers and their device addresses, in order.
    headers: Vec<(u64, Header)>,
}

impl<'a> StreamReader<'a> {
    /// Returns a reader that begins at `position`. This position lies in the chunk at `offset` of
    /// the first part or, if no chunk is there, in a later part.
    pub(crate) fn new(
        zones: &'a Zones,
        kind: Kind,
        parts: &'a [StreamPart],
        offset: u64,
        position: u64,
    ) -> Self {
        let buffer = ReadBuffer::default();
        let (damaged, last) = (Vec::new(), position);
        StreamReader {
            zones,
            kind,
            parts,
            part: 0,
            offset,
            position,
            first: true,
            synced: position,
            buffer,
            damaged,
            last,
            medium: false,
            searched: None,
            closed: false,
        }
    }

    /// Returns a reader that bypasses caches, for a scrub.
    pub(crate) fn on_medium(
        zones: &'a Zones,
        kind: Kind,
        parts: &'a [StreamPart],
        offset: u64,
        position: u64,
    ) -> Self {
        StreamReader { medium: true, ..StreamReader::new(zones, kind, parts, offset, position) }
    }

    /// Sets whether the stream is known to be read completely. If it is, the reader still returns a
    /// chunk that follows directly, but does not search for one.
    pub(crate) fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Returns the index of the part from which the last piece came.
    pub(crate) fn part(&self) -> usize {
        self.part
    }

    /// Returns the offset after the last piece in the zone of its part.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the position before which everything is known to have been durable, judging by the
    /// chunks read so far.
    pub(crate) fn synced(&self) -> u64 {
        self.synced
    }

    fn purpose(&self) -> Purpose {
        match self.kind {
            Kind::Journal => Purpose::Journal,
            Kind::Manifest => Purpose::Manifest,
        }
    }

    /// Returns the next piece and its position, or `None` at the end. [`StreamReader::tail`] then
    /// determines the kind of the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Bytes)>> {
        while let Some(&part) = self.parts.get(self.part) {
            let ended = part.end.is_some_and(|end| end <= self.position);
            if !ended && let Some((header, piece)) = self.chunk(part)? {
                self.last = header.position;
                // Everything before the given end of a part was made durable.
                self.synced = self.synced.max(header.synced).max(part.end.unwrap_or(0));
                let skip = self.position - header.position;
                let end =
                    (header.position + u64::from(header.len)).min(part.end.unwrap_or(u64::MAX));
                let at = self.position;
                self.first = false;
                self.position = end;
                let len = (end - header.position) as usize;
                return Ok(Some((at, piece.slice(skip as usize..len))));
            }
            if !ended && let Some(end) = part.end {
                return Err(self.missing(
                    part,
                    format!(
                        "its bytes {}..{end} were there when the store was opened last",
                        self.position
                    ),
                ));
            }
            // The next chunk was too large for the rest of this zone, or does not exist.
            if self.part + 1 < self.parts.len() || ended {
                let next = self.parts.get(self.part + 1);
                if !ended && !self.continues_in(next)? {
                    break;
                }
                self.part += 1;
                self.offset = 0;
            } else {
                break;
            }
        }
        Ok(None)
    }

    fn continues_in(&mut self, part: Option<&StreamPart>) -> Result<bool> {
        let Some(&part) = part else { return Ok(false) };
        Ok(self.header(part, 0)?.is_some_and(|h| self.fits(&h)))
    }

    /// Returns `true` if the chunk begins at the requested position or, if no chunk was read yet,
    /// contains this position.
    fn fits(&self, h: &Header) -> bool {
        let end = h.position + u64::from(h.len);
        h.position == self.position
            || (self.first && h.position <= self.position && self.position < end)
    }

    /// Returns the requested chunk if it is the next chunk in this part, and advances past the
    /// chunk.
    fn chunk(&mut self, part: StreamPart) -> Result<Option<(Header, Bytes)>> {
        if self.kind == Kind::Journal {
            let found = self.chunk_here(part)?;
            self.offset += found.as_ref().map_or(0, |(h, _)| h.size());
            return Ok(found);
        }
        let expected = self.offset;
        // If a read fails, the other copy may be readable. If neither copy is readable, the end of
        // the manifest is not known, so return an error instead of an end.
        let mut failed = None;
        let mut or_failed = |read: Result<Option<(Header, Bytes)>>| {
            read.unwrap_or_else(|e| {
                failed.get_or_insert(e);
                None
            })
        };
        if let Some((header, piece)) = or_failed(self.chunk_here(part)) {
            self.offset += header.size();
            let second = self.chunk_here(part).unwrap_or_default();
            if second.is_none_or(|(h, _)| h.position != header.position) {
                self.damaged.push((part.zone.start() + self.offset, header.position));
            }
            self.offset += header.size();
            return Ok(Some((header, piece)));
        }
        if self.closed {
            return failed.map_or(Ok(None), Err);
        }
        let mut headers = Vec::new();
        while self.offset + SECTOR <= ZONE_SIZE {
            match self.header(part, self.offset) {
                Ok(None) => {}
                Ok(Some(header)) => {
                    if let Some((header, piece)) = or_failed(self.chunk_here(part)) {
                        self.damaged.push((part.zone.start() + expected, header.position));
                        self.offset += header.size();
                        return Ok(Some((header, piece)));
                    }
                    headers.push((part.zone.start() + self.offset, header));
                }
                Err(e) => _ = or_failed(Err(e)),
            }
            self.offset += SECTOR;
        }
        self.offset = expected;
        if let Some(e) = failed {
            return Err(e);
        }
        self.searched = Some(Searched { part: self.part, offset: expected, headers });
        Ok(None)
    }

    /// Returns the header at `offset` of a part, if a header with the part's epoch is there.
    fn header(&mut self, part: StreamPart, offset: u64) -> Result<Option<Header>> {
        let (kind, purpose, addr) = (self.kind, self.purpose(), part.zone.start() + offset);
        let sector = self.buffer.get(self.zones, self.medium, purpose, part.zone, addr, SECTOR)?;
        Ok(Header::read(kind, sector).filter(|h| h.epoch == part.epoch))
    }

    /// Returns the device addresses of unreadable copies of chunks whose other copy was read, for a
    /// check. The last chunk is included only if `closed` is `true`, because a crash can leave one
    /// copy of it unreadable.
    pub(crate) fn damaged(&self, closed: bool) -> Vec<u64> {
        self.damaged
            .iter()
            .filter(|(_, position)| closed || *position != self.last)
            .map(|(addr, _)| *addr)
            .collect()
    }

    fn chunk_here(&mut self, part: StreamPart) -> Result<Option<(Header, Bytes)>> {
        if self.offset + SECTOR > ZONE_SIZE {
            return Ok(None);
        }
        let Some(header) = self.header(part, self.offset)? else { return Ok(None) };
        if !self.fits(&header) || self.offset + header.size() > ZONE_SIZE {
            return Ok(None);
        }
        let (addr, purpose) = (part.zone.start() + self.offset, self.purpose());
        let bytes =
            self.buffer.get(self.zones, self.medium, purpose, part.zone, addr, header.size())?;
        Ok(header.piece(bytes).map(|piece| (header, Bytes::copy_from_slice(piece))))
    }

    fn missing(&self, part: StreamPart, why: String) -> Error {
        let name = self.purpose().name();
        let addr = part.zone.start() + self.offset;
        Error::Corrupt(format!(
            "the {name} has a hole at device address {addr:#x}, in {}: {why}",
            part.zone
        ))
    }

    /// Returns the end of the stream, or an error if the stream has a hole in the middle instead of
    /// a torn tail. This must be called after [`StreamReader::next`] has returned `None`.
    pub(crate) fn tail(&mut self) -> Result<Tail> {
        let parts = self.parts;
        let mut torn = 0;
        if self.closed {
            return Ok(Tail { position: self.position, synced: self.synced, torn });
        }
        for (i, part) in parts.iter().enumerate().skip(self.part) {
            if part.end.is_some_and(|end| end <= self.position) {
                continue;
            }
            let offset = if i == self.part { self.offset } else { 0 };
            for (addr, h) in self.headers_from(i, offset)? {
                if h.synced > self.position {
                    let why = format!("a later write at {addr:#x} tells that it was durable once");
                    return Err(self.missing(parts[self.part.min(parts.len() - 1)], why));
                }
                torn += u64::from(h.len);
            }
        }
        Ok(Tail { position: self.position, synced: self.synced, torn })
    }

    /// Returns the headers with the part's epoch in all sectors from `offset` to the end of the
    /// zone. Sectors that a header covers are searched, too, because the write of the chunk may
    /// have been torn, so that these sectors still hold older chunks.
    fn headers_from(&mut self, i: usize, offset: u64) -> Result<Vec<(u64, Header)>> {
        if let Some(searched) = self.searched.take_if(|s| (s.part, s.offset) == (i, offset)) {
            return Ok(searched.headers);
        }
        let part = self.parts[i];
        let mut headers = Vec::new();
        for offset in (offset..=ZONE_SIZE - SECTOR).step_by(SECTOR as usize) {
            let header = self.header(part, offset)?;
            headers.extend(header.map(|h| (part.zone.start() + offset, h)));
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Owned, SEGMENT_SIZE, Segment, Writer, cost};
    use crate::log::chunk::HEADER;
    use env::Random;
    use std::sync::Arc;
    use zones::{FormatOptions, MemoryDevice, Priority};

    struct Written {
        device: Arc<MemoryDevice>,
        zones: Arc<Zones>,
        writer: Writer,
        segments: Vec<Segment>,
        /// The bytes of the stream.
        bytes: Vec<u8>,
    }

    impl Written {
        fn new() -> Written {
            let device = Arc::new(MemoryDevice::new());
            let zones =
                Zones::format_as(device.clone(), FormatOptions::default(), [1; 16]).unwrap();
            let writer = Writer::new(zones.clone(), 1000);
            Written { device, zones, writer, segments: Vec::new(), bytes: Vec::new() }
        }

        fn add_segment(&mut self) {
            let (zone, pin) = self.zones.take_zone(Purpose::Journal, Priority::Log).unwrap();
            let number = self.segments.len() as u64;
            let segment = Segment { number, zone, epoch: 77 + number, end: None };
            self.segments.push(segment);
            assert!(self.writer.add(Owned::new(segment, pin)).is_none());
        }

        fn write(&mut self, len: usize, random: &mut Random, synced: u64) {
            let mut buffer = vec![0; HEADER + len];
            random.fill(&mut buffer[HEADER..]);
            self.bytes.extend_from_slice(&buffer[HEADER..]);
            self.writer.write(&mut buffer, synced).unwrap();
        }

        fn read(&self, segments: &[Segment]) -> Result<(Vec<u8>, Tail)> {
            let parts: Vec<StreamPart> = segments.iter().map(Segment::part).collect();
            let mut reader = StreamReader::new(&self.zones, Kind::Journal, &parts, 0, 1000);
            let mut bytes = Vec::new();
            while let Some((at, piece)) = reader.next()? {
                assert_eq!(at, 1000 + bytes.len() as u64);
                bytes.extend_from_slice(&piece);
            }
            Ok((bytes, reader.tail()?))
        }

        /// Returns the device address of each chunk.
        fn chunks(&self) -> Vec<u64> {
            let mut found = Vec::new();
            for s in &self.segments {
                for offset in (0..SEGMENT_SIZE).step_by(SECTOR as usize) {
                    let mut head = [0; HEADER];
                    self.zones.read(Purpose::Journal, s.zone.start() + offset, &mut head).unwrap();
                    found.extend(
                        Header::read(Kind::Journal, &head).map(|_| s.zone.start() + offset),
                    );
                }
            }
            found
        }
    }

    /// A write takes no more of `room` than its `cost`. Commits rely on this invariant.
    #[test]
    fn what_has_room_can_be_written_and_reads_back_over_any_number_of_segments() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut w = Written::new();
            for _ in 0..60 {
                let bits = 1 + random.below(22);
                let len = 1 + random.below(1 << bits) as usize;
                while w.writer.room() < len {
                    w.add_segment();
                }
                let left = w.writer.room().saturating_sub(cost(len));
                w.write(len, &mut random, 0);
                assert!(
                    w.writer.room() >= left,
                    "seed {seed}: {len} bytes cost more than {}",
                    cost(len)
                );
            }
            let (bytes, tail) = w.read(&w.segments).unwrap();
            assert!(bytes == w.bytes, "seed {seed}");
            assert_eq!(tail, Tail { position: 1000 + bytes.len() as u64, synced: 1000, torn: 0 });
        }
    }

    #[test]
    fn a_missing_chunk_ends_the_stream_unless_a_later_one_vouches_for_it() {
        for vouched in [false, true] {
            let mut random = Random::new(1);
            let mut w = Written::new();
            w.add_segment();
            for _ in 0..3 {
                w.write(100, &mut random, 1000);
            }
            w.write(100, &mut random, if vouched { 1200 } else { 1100 });
            let chunks = w.chunks();
            assert_eq!(chunks.len(), 4);
            w.device.flip_bit(chunks[1] + HEADER as u64 + 7, 0);
            match w.read(&w.segments) {
                Ok((bytes, tail)) => {
                    assert!(!vouched);
                    assert_eq!(bytes, w.bytes[..100]);
                    assert_eq!((tail.position, tail.torn), (1100, 300));
                }
                Err(e) => assert!(vouched && matches!(e, Error::Corrupt(_)), "{e}"),
            }
        }
    }

    #[test]
    fn an_ended_segment_gives_all_up_to_its_end_and_nothing_beyond() {
        let mut random = Random::new(2);
        let mut w = Written::new();
        w.add_segment();
        for _ in 0..4 {
            w.write(100, &mut random, 1000);
        }
        let ended = |end| vec![Segment { end: Some(end), ..w.segments[0] }];
        assert_eq!(w.read(&ended(1250)).unwrap().0, w.bytes[..250]);
        assert_eq!(w.read(&ended(1400)).unwrap().0, w.bytes);
        assert!(matches!(w.read(&ended(1401)), Err(Error::Corrupt(_))), "it was there once");
        let mut other = ended(1400);
        other[0].epoch += 1;
        assert!(
            matches!(w.read(&other), Err(Error::Corrupt(_))),
            "bytes of another life are not its"
        );
    }
}

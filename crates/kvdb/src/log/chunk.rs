//! Chunks, which are the layout of the journal and the manifest on the device.
//!
//! The journal and the manifest are streams of bytes that only grow. The place of a byte in its
//! stream is its *position* (u64, never used twice in one part of the stream). A chunk is one
//! write: a header, a piece of the stream, and zeros up to the next sector. A chunk fills whole
//! sectors, so that no later write touches a sector that was synced. The header has its own
//! checksum, so that a header can be found without reading the piece.
//!
//! ```text
//!  0  u32  magic: "KVJC" journal, "KVMC" manifest
//!  4  u32  length of the piece, bytes (at least 1)
//!  8  u64  epoch: random, of the zone's present use; tells the chunks of an earlier use apart
//! 16  u64  position of the piece's first byte in the stream
//! 24  u64  synced: every byte before this position was durable when this chunk was written, as far
//!          as was known
//! 32  u32  CRC-32C of everything behind the header: piece and padding
//! 36  u32  CRC-32C of bytes 0..36
//! 40  the piece, then zeros to a multiple of 4096
//! ```

use zones::{SECTOR, crc32c};

/// The number of bytes of a chunk before its piece.
pub(crate) const HEADER: usize = 40;
/// The maximum length of the piece of one chunk, in bytes.
pub(crate) const MAX_PIECE: usize = (1 << 20) - HEADER;

/// The stream to which a chunk belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Journal,
    Manifest,
}

impl Kind {
    fn magic(self) -> u32 {
        match self {
            Kind::Journal => u32::from_le_bytes(*b"KVJC"),
            Kind::Manifest => u32::from_le_bytes(*b"KVMC"),
        }
    }
}

/// The header of a chunk, whose checksum was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub len: u32,
    pub epoch: u64,
    pub position: u64,
    pub synced: u64,
    pub crc: u32,
}

/// Returns the number of bytes that a chunk with a piece of `len` bytes takes on the device.
pub(crate) fn size(len: usize) -> u64 {
    ((HEADER + len) as u64).next_multiple_of(SECTOR)
}

/// Completes `chunk`, which holds `HEADER` arbitrary bytes and then the piece, by filling in the
/// header and adding the padding.
pub(crate) fn seal(kind: Kind, chunk: &mut Vec<u8>, epoch: u64, position: u64, synced: u64) {
    debug_assert!(chunk.len() > HEADER && chunk.len() <= HEADER + MAX_PIECE);
    let len = chunk.len() - HEADER;
    chunk.resize(size(len) as usize, 0);
    chunk[0..4].copy_from_slice(&kind.magic().to_le_bytes());
    chunk[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    chunk[8..16].copy_from_slice(&epoch.to_le_bytes());
    chunk[16..24].copy_from_slice(&position.to_le_bytes());
    chunk[24..32].copy_from_slice(&synced.to_le_bytes());
    let body = crc32c(&chunk[HEADER..]);
    chunk[32..36].copy_from_slice(&body.to_le_bytes());
    let head = crc32c(&chunk[..36]);
    chunk[36..40].copy_from_slice(&head.to_le_bytes());
}

impl Header {
    /// Returns the header at the start of `bytes`, or `None` if no valid header is there. Any
    /// `bytes` are allowed.
    pub(crate) fn read(kind: Kind, bytes: &[u8]) -> Option<Header> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if u32_at(0)? != kind.magic() || u32_at(36)? != crc32c(&bytes[..36]) {
            return None;
        }
        let h = Header {
            len: u32_at(4)?,
            epoch: u64_at(8)?,
            position: u64_at(16)?,
            synced: u64_at(24)?,
            crc: u32_at(32)?,
        };
        (h.len as usize <= MAX_PIECE
            && h.len > 0
            && h.position.checked_add(u64::from(h.len)).is_some())
        .then_some(h)
    }

    /// Returns the size of the whole chunk on the device, in bytes.
    pub(crate) fn size(&self) -> u64 {
        size(self.len as usize)
    }

    /// Returns the piece of the chunk in `bytes`, if the checksum matches.
    pub(crate) fn piece<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let chunk = bytes.get(..self.size() as usize)?;
        (crc32c(&chunk[HEADER..]) == self.crc).then(|| &chunk[HEADER..HEADER + self.len as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(piece: &[u8]) -> Vec<u8> {
        let mut c = vec![0; HEADER];
        c.extend_from_slice(piece);
        seal(Kind::Journal, &mut c, 7, 1000, 900);
        c
    }

    #[test]
    fn a_chunk_is_whole_sectors_and_reads_back() {
        let c = chunk(b"hello");
        assert_eq!(c.len() as u64, SECTOR);
        let h = Header::read(Kind::Journal, &c).unwrap();
        assert_eq!((h.epoch, h.position, h.synced, h.len), (7, 1000, 900, 5));
        assert_eq!(h.piece(&c).unwrap(), b"hello");
        assert_eq!(chunk(&vec![1; SECTOR as usize]).len() as u64, 2 * SECTOR);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let c = chunk(b"some bytes");
        for bit in 0..c.len() * 8 {
            let mut bad = c.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read =
                Header::read(Kind::Journal, &bad).and_then(|h| h.piece(&bad).map(<[u8]>::to_vec));
            assert_eq!(read, None, "bit {bit}");
        }
    }

    #[test]
    fn the_other_stream_and_short_bytes_are_no_chunk() {
        let c = chunk(b"x");
        assert!(Header::read(Kind::Manifest, &c).is_none());
        for len in 0..HEADER {
            assert!(Header::read(Kind::Journal, &c[..len]).is_none());
        }
        assert!(Header::read(Kind::Journal, &c).unwrap().piece(&c[..100]).is_none());
    }
}

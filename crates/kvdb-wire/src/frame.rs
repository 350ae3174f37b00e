//! Frames, which carry messages. A frame has a length, a checksum of everything after the checksum,
//! a number that pairs a request with its answer, a kind, and a body that `request` or `reply`
//! decodes.
//!
//! A frame that is truncated, corrupt or too long ends the connection, since the start of the next
//! frame is then unknown. Memory is allocated as bytes arrive, and never for the length that a
//! frame claims.

use std::io::{self, Read, Write};

use bytes::Bytes;
use zones::crc32c;

use crate::error::{Error, Result};

/// The version of the protocol.
pub const VERSION: u16 = 6;
/// Bytes of a frame apart from its body: length, checksum, number, kind.
pub const FRAME_OVERHEAD: usize = 4 + 4 + 8 + 1;
/// Limit of the bytes of a frame after its length and its checksum.
pub const MAX_FRAME: usize = 8 << 20;
/// Limit of the same bytes if the client may only read. The longest request of such a client has
/// keys of 1 MiB.
pub(crate) const MAX_FRAME_OF_READER: usize = 2 << 20;
/// Bytes that the length counts in addition to the body.
const NUMBER_AND_KIND: usize = 8 + 1;
/// Step by which the memory for a frame grows while it arrives.
const STEP: usize = 64 << 10;

/// A decoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Pairs an answer with its request.
    pub number: u64,
    /// The kind of the body. See `docs/wire.md`.
    pub kind: u8,
    /// The encoded message.
    pub body: Bytes,
}

/// Encodes a frame. Fails before anything is sent if the body is too large, which is a mistake of
/// the caller.
pub fn encode(number: u64, kind: u8, body: &[u8]) -> Result<Vec<u8>> {
    let counted = NUMBER_AND_KIND + body.len();
    if counted > MAX_FRAME {
        return Err(Error::Malformed("a message too large for a frame"));
    }
    let mut out = Vec::with_capacity(8 + counted);
    out.extend_from_slice(&(counted as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&number.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    let sum = crc32c(&out[8..]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// Writes a frame with one call, and returns the number of bytes written.
pub fn write_frame(to: &mut impl Write, number: u64, kind: u8, body: &[u8]) -> Result<usize> {
    let bytes = encode(number, kind, body)?;
    to.write_all(&bytes)?;
    to.flush()?;
    Ok(bytes.len())
}

/// Reads the next frame. Returns `Closed` if the other side has ended the connection between two
/// frames.
pub fn read_frame(from: &mut impl Read) -> Result<Frame> {
    read_frame_of(from, MAX_FRAME)
}

/// Reads the next frame. Fails if it has more than `most` bytes after its checksum.
pub(crate) fn read_frame_of(from: &mut impl Read, most: usize) -> Result<Frame> {
    let mut head = [0; 8];
    match read_first(from, &mut head)? {
        0 => return Err(Error::Closed),
        have => from.read_exact(&mut head[have..])?,
    }
    let counted = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
    let sum = u32::from_le_bytes(head[4..].try_into().expect("4 bytes"));
    if !(NUMBER_AND_KIND..=most).contains(&counted) {
        return Err(Error::Malformed("the length of a frame"));
    }
    let mut bytes = Vec::with_capacity(counted.min(STEP));
    while bytes.len() < counted {
        let have = bytes.len();
        bytes.resize(counted.min(have + STEP.max(have)), 0);
        from.read_exact(&mut bytes[have..])?;
    }
    if crc32c(&bytes) != sum {
        return Err(Error::Malformed("the checksum of a frame"));
    }
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let kind = bytes[8];
    Ok(Frame { number, kind, body: Bytes::from(bytes).slice(NUMBER_AND_KIND..) })
}

/// Reads some bytes. Returns 0 at the end of the stream.
fn read_first(from: &mut impl Read, room: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(room) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_is_as_the_document_shows_it() {
        let bytes = encode(0x0102, 3, b"ab").unwrap();
        assert_eq!(bytes[..4], [11, 0, 0, 0]);
        assert_eq!(bytes[8..], [2, 1, 0, 0, 0, 0, 0, 0, 3, b'a', b'b']);
        assert_eq!(bytes.len(), FRAME_OVERHEAD + 2);
    }

    #[test]
    fn a_length_is_believed_only_as_far_as_bytes_arrive() {
        let mut bytes = (MAX_FRAME as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[0; 20]);
        assert!(matches!(read_frame(&mut &bytes[..]), Err(Error::Io(_))));
        let mut bytes = (MAX_FRAME as u32 + 1).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[0; 20]);
        assert!(matches!(read_frame(&mut &bytes[..]), Err(Error::Malformed(_))));
        let largest = vec![7; MAX_FRAME - NUMBER_AND_KIND];
        assert!(encode(1, 1, &largest).is_ok());
        assert!(encode(1, 1, &[&largest[..], &[7]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn frames_survive_the_way_there(
            frames in proptest::collection::vec(
                (any::<u64>(), any::<u8>(), proptest::collection::vec(any::<u8>(), 0..300)), 1..5)
        ) {
            let mut bytes = Vec::new();
            for (number, kind, body) in &frames {
                write_frame(&mut bytes, *number, *kind, body).unwrap();
            }
            let mut rest = &bytes[..];
            for (number, kind, body) in &frames {
                let frame = read_frame(&mut rest).unwrap();
                prop_assert_eq!((frame.number, frame.kind, &frame.body[..]), (*number, *kind, &body[..]));
            }
            prop_assert!(matches!(read_frame(&mut rest), Err(Error::Closed)));
        }

        #[test]
        fn a_frame_that_is_cut_or_flipped_is_an_error(
            body in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<proptest::sample::Index>(),
            bit in 0u8..8,
        ) {
            let bytes = encode(5, 6, &body).unwrap();
            let at = at.index(bytes.len());
            prop_assert!(read_frame(&mut &bytes[..at]).is_err());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            prop_assert!(read_frame(&mut &flipped[..]).is_err());
        }
    }
}

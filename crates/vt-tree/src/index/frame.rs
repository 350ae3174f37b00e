//! The frame around every block of a run: its kind, its address, and a checksum over all of it.
//!
//! The frame repeats its own address, so that a misdirected write or read is detected even if the
//! bytes themselves are intact. The pointer to a block has the same checksum, so that an older
//! block once written at the same address is detected as well.
//!
//! Layout (little endian): crc32c u32 of everything after it · kind u8 · codec u8 · level u16 ·
//! address u64 · payload, compressed if the codec is not 0. Only tuple blocks are compressed. The
//! checksum is that of the stored bytes.

use bytes::Bytes;
use zones::crc32c;

use crate::value::compression::unpack;
use crate::{Error, Result};

/// Bytes before the payload.
pub const FRAME_HEADER: usize = 16;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Tuples = 1,
    Node = 2,
    Filter = 3,
}

/// A pointer to a frame: its address, its length and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FramePointer {
    /// Device address, bytes.
    pub addr: u64,
    /// Length with the header, bytes.
    pub len: u32,
    pub crc: u32,
}

impl FramePointer {
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(u64::from(self.len))
    }
}

/// Completes a frame in place: `frame` is room for the header followed by the payload. Returns its
/// checksum.
pub fn seal(frame: &mut [u8], kind: FrameKind, level: u16, codec: u8, addr: u64) -> u32 {
    frame[4] = kind as u8;
    frame[5] = codec;
    frame[6..8].copy_from_slice(&level.to_le_bytes());
    frame[8..16].copy_from_slice(&addr.to_le_bytes());
    let crc = crc32c(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Checks a frame that was read from `at` and returns its payload.
pub fn open(frame: Bytes, kind: FrameKind, level: u16, at: FramePointer) -> Result<Bytes> {
    let fault = |what: &str| -> Result<Bytes> {
        Err(Error::Corrupt { what: format!("{kind:?} block: {what}"), addr: at.addr })
    };
    if frame.len() != at.len as usize || frame.len() < FRAME_HEADER {
        return fault("wrong length");
    }
    let crc = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
    if crc32c(&frame[4..]) != crc {
        return fault("checksum does not match its bytes");
    }
    if crc != at.crc {
        return fault("intact, but not the block that its index entry refers to");
    }
    let addr = u64::from_le_bytes([
        frame[8], frame[9], frame[10], frame[11], frame[12], frame[13], frame[14], frame[15],
    ]);
    if addr != at.addr {
        return fault(&format!("belongs at address {addr}"));
    }
    if frame[4] != kind as u8 || u16::from_le_bytes([frame[6], frame[7]]) != level {
        return fault("kind or level differs from its index entry");
    }
    match frame[5] {
        0 => Ok(frame.slice(FRAME_HEADER..)),
        codec if kind == FrameKind::Tuples => unpack(codec, &frame[FRAME_HEADER..]).or_else(fault),
        _ => fault("compressed, but no tuple block"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let mut frame = vec![0u8; FRAME_HEADER];
        frame.extend_from_slice(b"some payload");
        let crc = seal(&mut frame, FrameKind::Tuples, 0, 0, 4096);
        let at = FramePointer { addr: 4096, len: frame.len() as u32, crc };
        assert_eq!(
            open(Bytes::from(frame.clone()), FrameKind::Tuples, 0, at).unwrap(),
            Bytes::from_static(b"some payload")
        );
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(Bytes::from(bad), FrameKind::Tuples, 0, at).is_err(), "bit {bit}");
        }
    }

    /// A lost write leaves an intact older frame on the device, of the same kind, level, length and
    /// address.
    #[test]
    fn what_lay_at_the_same_place_before_is_refused() {
        let sealed = |payload: &[u8]| {
            let mut frame = [&[0u8; FRAME_HEADER], payload].concat();
            let crc = seal(&mut frame, FrameKind::Tuples, 0, 0, 4096);
            let at = FramePointer { addr: 4096, len: frame.len() as u32, crc };
            (Bytes::from(frame), at)
        };
        let ((older, of_older), (_, at)) = (sealed(b"older"), sealed(b"newer"));
        assert_eq!(
            open(older.clone(), FrameKind::Tuples, 0, of_older).unwrap(),
            Bytes::from_static(b"older")
        );
        assert!(open(older, FrameKind::Tuples, 0, at).is_err());
    }

    #[test]
    fn a_block_from_elsewhere_is_refused() {
        let mut frame = vec![0u8; FRAME_HEADER + 4];
        let crc = seal(&mut frame, FrameKind::Node, 2, 0, 8192);
        let at = FramePointer { addr: 4096, len: frame.len() as u32, crc };
        assert!(open(Bytes::from(frame.clone()), FrameKind::Node, 2, at).is_err());
        assert!(
            open(Bytes::from(frame), FrameKind::Node, 1, FramePointer { addr: 8192, ..at })
                .is_err()
        );
    }
}

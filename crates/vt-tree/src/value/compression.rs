//! Compression of tuple blocks and large values. Each block or value is compressed as a whole
//! before it is written, and decompressed when it is read; merges copy large values as stored. Data
//! that hardly compresses is stored uncompressed.

use bytes::Bytes;
use std::cell::RefCell;
use zones::ZONE_SIZE;

use crate::value::SMALL_ALIGN;

/// The codec of tuple blocks or large values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4: fast; text shrinks to about half its size.
    Lz4,
    /// Zstandard: text shrinks to about a third of its size, for several times the CPU time.
    Zstd,
}

impl Compression {
    /// Returns the number of the codec in the storage format.
    pub fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        }
    }

    /// Returns the codec with this number.
    pub fn of_code(code: u8) -> Option<Compression> {
        [Compression::None, Compression::Lz4, Compression::Zstd]
            .into_iter()
            .find(|c| c.code() == code)
    }
}

/// The Zstandard level. Higher levels make blocks of a few KiB only slightly smaller.
const LEVEL: i32 = 1;
/// The size in bytes of the length field that precedes the compressed payload.
const LENGTH: usize = 4;

/// Compresses blocks and values, reusing its buffers.
#[derive(Default)]
pub struct Packer {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    out: Vec<u8>,
}

impl Packer {
    /// Compresses the payload of a block, and returns the codec and the bytes to store. Returns
    /// `None` if `payload` itself is to be stored.
    pub(crate) fn pack(&mut self, compression: Compression, payload: &[u8]) -> Option<(u8, &[u8])> {
        let len = u32::try_from(payload.len()).ok()?;
        let stored = LENGTH + self.compress(compression, payload)?;
        self.out[..LENGTH].copy_from_slice(&len.to_le_bytes());
        (stored <= worth(payload.len())).then(|| (compression.code(), &self.out[..stored]))
    }

    /// Compresses a large value, whose length and codec are stored in its reference. Returns `None`
    /// if `value` itself is to be stored, because compression would save no unit of the device.
    pub(crate) fn pack_value(&mut self, compression: Compression, value: &[u8]) -> Option<&[u8]> {
        let stored = self.compress(compression, value)?;
        let units = |len: usize| len.div_ceil(SMALL_ALIGN as usize);
        (stored <= worth(value.len()) && units(stored) < units(value.len()))
            .then(|| &self.out[LENGTH..LENGTH + stored])
    }

    /// Compresses into `out`, after space for a length. Returns the compressed length.
    fn compress(&mut self, compression: Compression, payload: &[u8]) -> Option<usize> {
        let most = match compression {
            Compression::None => return None,
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(payload.len()),
            Compression::Zstd => zstd::zstd_safe::compress_bound(payload.len()),
        };
        self.out.resize(LENGTH + most, 0);
        let to = &mut self.out[LENGTH..];
        match compression {
            Compression::None => None,
            Compression::Lz4 => lz4_flex::block::compress_into(payload, to).ok(),
            Compression::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(LEVEL).ok();
                }
                self.zstd.as_mut()?.compress_to_buffer(payload, to).ok()
            }
        }
    }
}

/// Returns the length to which `len` bytes must shrink: an eighth less. Otherwise compression is
/// not worth the time that every reader spends on it.
fn worth(len: usize) -> usize {
    len / 8 * 7
}

thread_local! {
    static UNPACKER: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses the payload of a frame with a codec other than 0. An error describes the defect.
/// Allocates no more than the longest payload takes.
pub(crate) fn unpack(codec: u8, stored: &[u8]) -> Result<Bytes, &'static str> {
    let (len, packed) = stored.split_first_chunk::<LENGTH>().ok_or("too short for its codec")?;
    let codec = Compression::of_code(codec).ok_or("unknown codec")?;
    decompress(codec, packed, u32::from_le_bytes(*len) as usize)
}

/// Decompresses a large value of `len` bytes. An error describes the defect. Allocates at most
/// `len` bytes.
pub(crate) fn unpack_value(
    codec: Compression,
    stored: Bytes,
    len: u32,
) -> Result<Bytes, &'static str> {
    match codec {
        Compression::None if stored.len() == len as usize => Ok(stored),
        Compression::None => Err("its length differs from that on the device"),
        codec => decompress(codec, &stored, len as usize),
    }
}

fn decompress(codec: Compression, packed: &[u8], len: usize) -> Result<Bytes, &'static str> {
    if len as u64 > ZONE_SIZE {
        return Err("longer than a zone when decompressed");
    }
    let mut payload = vec![0; len];
    let unpacked = match codec {
        Compression::Lz4 => lz4_flex::block::decompress_into(packed, &mut payload).ok(),
        Compression::Zstd => UNPACKER.with_borrow_mut(|unpacker| {
            if unpacker.is_none() {
                *unpacker = zstd::bulk::Decompressor::new().ok();
            }
            unpacker.as_mut().and_then(|u| u.decompress_to_buffer(packed, &mut payload[..]).ok())
        }),
        Compression::None => return Err("unknown codec"),
    };
    if unpacked != Some(len) {
        return Err("does not decompress to its recorded length");
    }
    Ok(Bytes::from(payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_gets_smaller_and_comes_back_and_noise_stays() {
        let text = b"the quick brown fox jumps over the lazy dog; ".repeat(200);
        let mut x = 1u64;
        let noise: Vec<u8> = (0..8192)
            .map(|_| {
                x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (x >> 56) as u8
            })
            .collect();
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut packer = Packer::default();
            for _ in 0..2 {
                let (codec, stored) = packer.pack(compression, &text).unwrap();
                assert!(stored.len() < text.len() / 4);
                assert_eq!(unpack(codec, stored).unwrap(), text);
                assert_eq!(packer.pack(compression, &noise), None);
                assert_eq!(packer.pack(compression, b""), None);
            }
        }
        assert_eq!(Packer::default().pack(Compression::None, &text), None);
    }

    #[test]
    fn a_length_that_lies_is_an_error() {
        let text = b"abc".repeat(1000);
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut packer = Packer::default();
            let (codec, stored) = packer.pack(compression, &text).unwrap();
            for len in [0, 1, 2999, 3001, 8 << 20, (8 << 20) + 1, u32::MAX] {
                let mut bad = stored.to_vec();
                bad[..4].copy_from_slice(&len.to_le_bytes());
                assert!(unpack(codec, &bad).is_err(), "{len}");
            }
            assert!(unpack(codec, &stored[..stored.len() - 1]).is_err());
            assert!(unpack(0, stored).is_err() && unpack(9, stored).is_err());
        }
    }

    #[test]
    fn a_value_is_packed_when_that_saves_a_unit_of_the_device() {
        let text = b"the quick brown fox jumps over the lazy dog; ".repeat(200);
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut packer = Packer::default();
            let stored =
                Bytes::copy_from_slice(packer.pack_value(compression, &text[..4096]).unwrap());
            assert!(stored.len() < 1024);
            assert_eq!(unpack_value(compression, stored.clone(), 4096).unwrap(), text[..4096]);
            for len in [0, 4095, 4097, 8 << 20, (8 << 20) + 1, u32::MAX] {
                assert!(unpack_value(compression, stored.clone(), len).is_err(), "{len}");
            }
            assert_eq!(packer.pack_value(compression, &text[..500]), None, "one unit either way");
            assert!(unpack_value(Compression::None, stored.clone(), 4096).is_err());
        }
        assert_eq!(
            unpack_value(Compression::None, Bytes::from_static(b"abc"), 3).unwrap(),
            &b"abc"[..]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn foreign_bytes_are_refused_or_read_without_panic(
            codec in 0u8..4,
            len in 0u32..20_000,
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        ) {
            let mut bad = len.to_le_bytes().to_vec();
            bad.extend_from_slice(&bytes);
            if let Ok(payload) = unpack(codec, &bad) {
                prop_assert_eq!(payload.len(), len as usize);
            }
            let compression = Compression::of_code(codec).unwrap_or_default();
            let mut packer = Packer::default();
            if let Some((codec, stored)) = packer.pack(compression, &bytes.repeat(20)) {
                let mut bad = stored.to_vec();
                for (at, byte) in &changes {
                    let at = at.index(bad.len());
                    bad[at] = *byte;
                }
                let _ = unpack(codec, &bad);
            }
        }
    }
}

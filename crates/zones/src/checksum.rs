//! CRC-32C (Castagnoli; "CRC-32/ISCSI"), the only checksum of the on-disk format.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A CRC-32C that is computed in parts. It equals [`crc32c`] of the concatenated parts.
#[derive(Clone, Debug)]
pub struct Checksum(Digest);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Checksum {
    /// Creates the checksum of no bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// Returns the checksum of the bytes so far.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_castagnolis_polynomial() {
        // Compare with the check value of the catalogue, and with the vectors of RFC 3720 B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&[]), 0);
    }

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 63, 64, 500, 1000] {
            assert_eq!(
                Checksum::new().update(&bytes[..cut]).update(&bytes[cut..]).finish(),
                crc32c(&bytes),
                "cut at {cut}"
            );
        }
    }
}

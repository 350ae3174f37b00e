//! Binary content in the format of `git apply`: a deflated literal in base 85, under git's names
//! for contents.
//!
//! The deflate blocks are stored, not compressed: a patch is mostly compressed in transport anyway,
//! and a few lines of code are easier to trust than a compressor.

use sha1::{Digest, Sha1};

/// Bytes on one line.
const LINE: usize = 52;
/// The largest stored block, in bytes.
const BLOCK: usize = 0xffff;
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// The name of absent content.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000";

/// Returns git's name for a file's content.
pub(super) fn name(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the content in the format of zlib (RFC 1950), in stored blocks.
fn deflated(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let blocks = content.len().div_ceil(BLOCK).max(1);
    for at in 0..blocks {
        let block = &content[at * BLOCK..content.len().min((at + 1) * BLOCK)];
        let len = block.len() as u16;
        out.push(u8::from(at + 1 == blocks));
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(block);
    }
    let (mut a, mut b) = (1u32, 0u32);
    for byte in content {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    out.extend_from_slice(&(b << 16 | a).to_be_bytes());
    out
}

/// Returns the patch lines that set a file to this content.
pub(super) fn literal(content: &[u8]) -> String {
    let mut out = format!("GIT binary patch\nliteral {}\n", content.len());
    for line in deflated(content).chunks(LINE) {
        let len = line.len() as u8;
        out.push(char::from(if len <= 26 { b'A' + len - 1 } else { b'a' + len - 27 }));
        for four in line.chunks(4) {
            let mut word = four.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
            word <<= 8 * (4 - four.len());
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[word as usize % 85];
                word /= 85;
            }
            out.extend(digits.map(char::from));
        }
        out.push('\n');
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_the_names_that_git_gives_them() {
        assert_eq!(name(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(name(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn what_is_deflated_ends_in_its_checksum() {
        // The published example of Adler-32, the checksum of RFC 1950: "Wikipedia".
        assert_eq!(deflated(b"Wikipedia")[16..], 0x11e6_0398u32.to_be_bytes());
        assert_eq!(deflated(b""), [0x78, 1, 1, 0, 0, 0xff, 0xff, 0, 0, 0, 1]);
        let long = deflated(&[7; BLOCK + 1]);
        assert_eq!((long[2], long[2 + 5 + BLOCK]), (0, 1), "only the last block says so");
    }
}

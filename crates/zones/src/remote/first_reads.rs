//! The bytes of zones that a store reads first. A published state has them with it, so that whoever
//! opens it needs no further request before the first answer.

use bytes::Bytes;

use crate::varint::{get_bytes, get_u64, put_bytes, put_u64};
use crate::{Error, Result};

/// The most bytes of zones that a state has with it.
pub(crate) const MOST_FIRST: u64 = 512 << 10;
/// A gap of at most so many bytes between two ranges is taken along.
const GAP: u64 = 256;

/// Ranges of bytes by device address. All of them are as the zone table of the same state has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstReads {
    /// Ascending by address, disjoint, none of them empty.
    ranges: Vec<(u64, Bytes)>,
}

impl FirstReads {
    /// The bytes of these ranges (address, length) as `read` has them, without those that are too
    /// many.
    pub(crate) fn read(
        mut ranges: Vec<(u64, u64)>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<FirstReads> {
        ranges.sort_unstable();
        let mut merged = Vec::<(u64, u64)>::new();
        for (addr, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
            let end = addr.saturating_add(len);
            match merged.last_mut() {
                Some((_, last)) if addr <= last.saturating_add(GAP) => *last = end.max(*last),
                _ => merged.push((addr, end)),
            }
        }
        let mut first = FirstReads::default();
        for (addr, end) in merged {
            if first.len() + (end - addr) > MOST_FIRST {
                break;
            }
            let mut bytes = vec![0; (end - addr) as usize];
            read(addr, &mut bytes)?;
            first.ranges.push((addr, bytes.into()));
        }
        Ok(first)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Returns the bytes of a range that is among these as a whole.
    pub(crate) fn find(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let after = self.ranges.partition_point(|(start, _)| *start <= addr);
        let (start, bytes) = self.ranges.get(after.checked_sub(1)?)?;
        let from = usize::try_from(addr - start).ok()?;
        bytes.get(from..from.checked_add(len)?)
    }

    /// Appends them: their number, then for each the distance from the end of the one before, the
    /// length, and the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.ranges.len() as u64);
        let mut end = 0;
        for (addr, bytes) in &self.ranges {
            put_u64(out, addr - end);
            put_bytes(out, bytes);
            end = addr + bytes.len() as u64;
        }
    }

    /// Decodes what [`FirstReads::encode`] has appended, and advances `input`.
    pub fn decode(input: &mut &[u8]) -> Result<FirstReads> {
        let corrupt = || Error::corrupt("the list of the first reads is malformed", 0);
        let (mut first, mut end, mut total) = (FirstReads::default(), 0u64, 0);
        for _ in 0..get_u64(input)? {
            let addr = end.checked_add(get_u64(input)?).ok_or_else(corrupt)?;
            let bytes = get_bytes(input)?;
            total += bytes.len() as u64;
            if bytes.is_empty() || total > MOST_FIRST {
                return Err(corrupt());
            }
            end = addr.checked_add(bytes.len() as u64).ok_or_else(corrupt)?;
            first.ranges.push((addr, Bytes::copy_from_slice(bytes)));
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64)]) -> FirstReads {
        let fill = |addr: u64, buf: &mut [u8]| {
            (addr..).zip(buf).for_each(|(at, byte)| *byte = at as u8);
            Ok(())
        };
        FirstReads::read(ranges.to_vec(), fill).expect("reads do not fail")
    }

    #[test]
    fn a_range_is_found_if_all_of_it_is_there() {
        let first = of(&[(9000, 10), (5000, 0), (100, 50), (120, 60), (3000, 100)]);
        assert_eq!(first.len(), 190);
        assert_eq!(first.find(110, 3), Some(&[110, 111, 112][..]));
        assert_eq!(first.find(100, 80).map(<[u8]>::len), Some(80));
        assert_eq!(first.find(9009, 1), Some(&[9009u64 as u8][..]));
        for (addr, len) in [(0, 1), (99, 2), (179, 2), (180, 1), (9009, 2), (u64::MAX, 1)] {
            assert_eq!(first.find(addr, len), None, "{len} bytes at {addr}");
        }
        assert_eq!(FirstReads::default().find(0, 0), None);
        assert_eq!(
            of(&[(0, MOST_FIRST), (2 * MOST_FIRST, 1)]).len(),
            MOST_FIRST,
            "no more than are taken back"
        );
    }

    #[test]
    fn they_come_back_and_damage_is_an_error() {
        let first = of(&[(9000, 10), (100, 50), (3000, 100)]);
        let mut bytes = Vec::new();
        first.encode(&mut bytes);
        bytes.push(7);
        let mut rest = &bytes[..];
        assert_eq!(FirstReads::decode(&mut rest).unwrap(), first);
        assert_eq!(rest, [7]);
        for cut in 0..bytes.len() - 1 {
            assert!(FirstReads::decode(&mut &bytes[..cut]).is_err(), "cut to {cut}");
        }
        for bad in [&[1, 5, 0][..], &[2, 5, 1, 0, 0xff], &[1, 0xff, 0xff, 0xff]] {
            assert!(FirstReads::decode(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}

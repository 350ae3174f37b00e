//! The first bytes of zones that a program reads when it opens a store. A published state includes
//! them, so that no further request is needed before the first read is answered.

use bytes::Bytes;

use crate::varint::{get_bytes, get_u64, put_bytes, put_u64};
use crate::{Error, Result};

/// The largest number of bytes of zones that a state includes.
pub(crate) const MOST_FIRST: u64 = 512 << 10;
/// The largest number of ranges that these bytes form.
const MOST_RANGES: usize = 8192;

/// Ranges of bytes by device address. They equal the bytes to which the zone table of the same
/// state refers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstReads {
    /// The ranges, in ascending order of addresses. They are disjoint and not empty.
    ranges: Vec<(u64, Bytes)>,
}

impl FirstReads {
    /// Builds the ranges from bytes with their addresses, in any order. Bytes beyond the limits are
    /// omitted.
    pub(crate) fn of(mut read: Vec<(u64, Vec<u8>)>) -> FirstReads {
        read.sort_unstable_by_key(|(addr, bytes)| (*addr, bytes.len()));
        let mut joined = Vec::<(u64, Vec<u8>)>::new();
        for (addr, bytes) in read.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            match joined.last_mut() {
                Some((start, last)) if addr <= *start + last.len() as u64 => {
                    let known = (*start + last.len() as u64 - addr) as usize;
                    last.extend_from_slice(bytes.get(known..).unwrap_or_default());
                }
                _ => joined.push((addr, bytes)),
            }
        }
        let mut first = FirstReads::default();
        for (addr, bytes) in joined {
            if first.len() + bytes.len() as u64 > MOST_FIRST || first.ranges.len() == MOST_RANGES {
                break;
            }
            first.ranges.push((addr, bytes.into()));
        }
        first
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Returns the bytes of a range if one of the ranges contains it completely.
    pub(crate) fn find(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let after = self.ranges.partition_point(|(start, _)| *start <= addr);
        let (start, bytes) = self.ranges.get(after.checked_sub(1)?)?;
        let from = usize::try_from(addr - start).ok()?;
        bytes.get(from..from.checked_add(len)?)
    }

    /// Appends the ranges: their number, then for each range the distance from the end of the
    /// previous range, the length, and the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.ranges.len() as u64);
        let mut end = 0;
        for (addr, bytes) in &self.ranges {
            put_u64(out, addr - end);
            put_bytes(out, bytes);
            end = addr + bytes.len() as u64;
        }
    }

    /// Decodes ranges encoded by [`FirstReads::encode`], and advances `input`.
    pub fn decode(input: &mut &[u8]) -> Result<FirstReads> {
        let corrupt = || Error::corrupt("the list of the first reads is malformed", 0);
        let (mut first, mut end, mut total) = (FirstReads::default(), 0u64, 0);
        let count = get_u64(input)?;
        if count > MOST_RANGES as u64 {
            return Err(corrupt());
        }
        for _ in 0..count {
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
        let bytes = |addr: u64, len: u64| (addr..addr + len).map(|at| at as u8).collect();
        FirstReads::of(ranges.iter().map(|&(addr, len)| (addr, bytes(addr, len))).collect())
    }

    #[test]
    fn a_range_is_found_if_all_of_it_is_there() {
        let first = of(&[(9000, 10), (5000, 0), (120, 60), (100, 50), (110, 5), (3000, 100)]);
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
        let mut many = Vec::new();
        put_u64(&mut many, MOST_RANGES as u64 + 1);
        (0..=MOST_RANGES).for_each(|_| many.extend_from_slice(&[1, 1, 7]));
        assert!(FirstReads::decode(&mut &many[..]).is_err());
        for bad in [&[1, 5, 0][..], &[2, 5, 1, 0, 0xff], &[1, 0xff, 0xff, 0xff]] {
            assert!(FirstReads::decode(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}

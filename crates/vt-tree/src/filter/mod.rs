//! The quotient filter of a leaf index node. It decides whether a key may be in the blocks of the
//! node or certainly is not.
//!
//! A filter is a sorted set of *fingerprints*. A fingerprint is the top `bits` bits of the hash of
//! a key. It is split into a quotient, which is encoded by position, and a remainder of `low` bits,
//! which is stored. This is the idea of the quotient filter in the static form of Elias and Fano,
//! because a run never changes. For each quotient, a unary code has the number of its remainders (a
//! one for each remainder, then a zero). A directory has the offset of the code of every 128th
//! quotient. A lookup reads one directory entry, a few words of the code, and one or two
//! remainders.
//!
//! Two filters are merged by their fingerprints, without the keys. Fingerprints are prefixes of the
//! same hash, so longer ones are cut to the length of the shortest in the merge. The number of bits
//! to keep depends on the later merges:
//!
//! - A filter of `n` fingerprints of `bits` bits has false positives at a rate of `n / 2^bits`.
//! - A filter built from keys keeps the smallest number of bits for which this rate is below three
//!   eighths of the target rate, but at least the number of bits with which 2^15 keys stay below
//!   the target rate itself. For the default of 0.8%, these are 0.3% and 22 bits. So a merge of `k`
//!   filters of one size has a rate of at most `k × 0.3%`. The target of 0.8% still holds for two
//!   to five filters of full leaf nodes (a merged node is never larger than a node, so `k` stays
//!   small), and for any number of small filters with up to 2^15 keys together.
//! - A merge never keeps more bits than a build from keys would, so filters do not grow.
//!
//! At 0.8%, a key costs a remainder, a one and about one zero of the code, and a quarter of a bit
//! of the directory. In total these are 10.4 to 11.4 bits if there are at least 8192 keys. With
//! fewer keys the 22 bits cost more: three more bits per key at 1000 keys, which are 400 bytes in
//! total.
//!
//! `docs/format.md`, "Quotient filter", has the byte layout.

use crate::{Error, Result};
use bytes::Bytes;
use std::iter;
use zones::crc32c;

/// Returns the hash of a key that filters use. The hash is part of the format: XXH3 (64 bits, as of
/// xxHash 0.8, seed 0).
pub fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// The version of the encoding.
const VERSION: u8 = 1;
/// The size of the header in bytes. Its fields are checksum, version, bits, low, zero, count, and
/// zeros.
const HEADER: usize = 16;
/// The number of quotients per entry of the directory.
const STRIDE: u64 = 128;
/// The largest number of bits of a fingerprint.
const BITS_MAX: u32 = 48;

/// The default rate of false positives of a filter, in ten thousandths. See
/// [`crate::MergeOptions::false_positives`].
pub const FALSE_POSITIVES: u16 = 80;

/// The number of keys up to which small filters may be merged without exceeding the target rate.
const TOGETHER: u64 = 1 << 15;

/// Returns the smallest number of bits with which `n` fingerprints have false positives at three
/// eighths of `rate`, and [`TOGETHER`] fingerprints at `rate`.
fn bits_for(n: u64, rate: u16) -> u32 {
    let rate = u64::from(rate.clamp(1, 10_000));
    // The rate is 3/8 of `rate` / 10,000, and 10,000 / (3/8) is 80,000 / 3.
    let alone = (n.max(1) * 80_000).div_ceil(3 * rate);
    let merged = (TOGETHER * 10_000).div_ceil(rate);
    alone.max(merged).next_power_of_two().trailing_zeros().min(BITS_MAX)
}

/// Returns the number of bits of the remainder in the smallest filter of `n` fingerprints of `bits`
/// bits.
fn low_for(n: u64, bits: u32) -> u32 {
    (0..bits).min_by_key(|low| n * *low as u64 + (1 << (bits - low))).unwrap_or(0)
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Builds a filter from hashes of keys and from other filters.
pub struct FilterBuilder {
    /// The hashes, and fingerprints that are shifted to the top bits like hashes.
    hashes: Vec<u64>,
    /// The number of leading bits that are known for every hash, or 0 if all bits are known.
    bits: u32,
    /// The rate of false positives. See [`FALSE_POSITIVES`].
    rate: u16,
}

impl FilterBuilder {
    /// Creates a builder for a filter with a rate of false positives of `rate` ten thousandths. See
    /// [`FALSE_POSITIVES`].
    pub fn new(rate: u16) -> FilterBuilder {
        FilterBuilder { hashes: Vec::new(), bits: 0, rate }
    }

    /// Adds a key by its `hash`.
    pub fn add(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// Adds all keys of `filter`.
    pub fn add_all(&mut self, filter: &Filter) {
        if filter.count > 0 {
            self.bits = if self.bits == 0 { filter.bits } else { self.bits.min(filter.bits) };
            self.hashes.extend(filter.fingerprints().map(|f| f << (64 - filter.bits)));
        }
    }

    /// Returns the number of hashes and fingerprints that were added, including duplicates.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns the bytes of the filter, for [`Filter::parse`]. The builder is then empty.
    pub fn finish(&mut self) -> Vec<u8> {
        let known = if self.bits == 0 { BITS_MAX } else { self.bits };
        self.hashes.iter_mut().for_each(|h| *h >>= 64 - known);
        if self.bits == 0 {
            self.hashes.sort_unstable();
        } else {
            // The hashes consist of an ascending sequence for each filter, which the stable sort
            // detects and merges.
            self.hashes.sort();
        }
        self.hashes.dedup();
        let bits = known.min(bits_for(self.hashes.len() as u64, self.rate));
        self.hashes.iter_mut().for_each(|h| *h >>= known - bits);
        self.hashes.dedup();
        let bytes = encode(&self.hashes, bits);
        self.hashes.clear();
        self.bits = 0;
        bytes
    }
}

/// The number of quotients and the byte offsets of the parts of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FilterLayout {
    quotients: u64,
    /// The byte offset of the remainders.
    remainders: usize,
    /// The byte offset of the unary code.
    code: usize,
    /// The byte offset of the end of the filter.
    end: usize,
}

impl FilterLayout {
    /// Computes the layout. Returns `None` if no filter can have these parameters.
    fn new(count: u32, bits: u32, low: u32) -> Option<FilterLayout> {
        if bits > BITS_MAX || low >= bits || bits == 0 {
            return None;
        }
        let quotients = 1u64 << (bits - low);
        let words = |bits: u64| bits.div_ceil(64) * 8;
        // There are at most 2^48 quotients and 2^32 remainders of 48 bits, so no sum comes near an
        // overflow.
        let remainders = HEADER as u64 + words(quotients.div_ceil(STRIDE) * 32);
        let code = remainders + words(count as u64 * low as u64);
        let end = code + words(quotients + count as u64);
        let at = |x: u64| usize::try_from(x).ok();
        Some(FilterLayout {
            quotients,
            remainders: at(remainders)?,
            code: at(code)?,
            end: at(end)?,
        })
    }
}

/// Encodes a filter of `fingerprints`, which must ascend.
fn encode(fingerprints: &[u64], bits: u32) -> Vec<u8> {
    let n = fingerprints.len() as u64;
    let low = low_for(n, bits);
    let count = u32::try_from(n).expect("a leaf index node has fewer than 2^32 keys");
    let l =
        FilterLayout::new(count, bits, low).expect("bits and low are chosen within their bounds");
    let mut out = vec![0; l.end];
    out[4..8].copy_from_slice(&[VERSION, bits as u8, low as u8, 0]);
    out[8..12].copy_from_slice(&count.to_le_bytes());
    for (i, f) in fingerprints.iter().enumerate() {
        let at = i as u64 * low as u64;
        // At most 48 bits, shifted by at most 7, fit into eight bytes. Writing a whole word is safe
        // because at least one word of the code follows the remainders.
        let byte = l.remainders + (at / 8) as usize;
        let word = &mut out[byte..byte + 8];
        let old = u64::from_le_bytes((&*word).try_into().expect("eight bytes"));
        word.copy_from_slice(&(old | (f & mask(low)) << (at % 8)).to_le_bytes());
    }
    for (i, f) in fingerprints.iter().enumerate() {
        // The position is preceded by `i` ones, and a zero for each smaller quotient.
        let at = i as u64 + (f >> low);
        out[l.code + (at / 8) as usize] |= 1 << (at % 8);
    }
    let mut below = fingerprints.iter().enumerate().map(|(i, f)| (i, f >> low)).peekable();
    for d in 0..l.quotients.div_ceil(STRIDE) {
        while below.next_if(|(_, q)| *q < d * STRIDE).is_some() {}
        let rank = below.peek().map_or(count, |(i, _)| *i as u32);
        out[HEADER + d as usize * 4..][..4].copy_from_slice(&rank.to_le_bytes());
    }
    let crc = crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// A set of fingerprints, which is read from its encoded bytes without decoding.
#[derive(Clone, Debug)]
pub struct Filter {
    bytes: Bytes,
    count: u32,
    bits: u32,
    low: u32,
    layout: FilterLayout,
}

impl Filter {
    /// Reads the bytes of [`FilterBuilder::finish`] in one pass.
    ///
    /// # Errors
    /// Returns [`Error::Corrupt`](crate::Error::Corrupt) with address 0 for all other bytes, even
    /// if only one bit differs.
    pub fn parse(bytes: Bytes) -> Result<Filter> {
        let bad = |what: &str| Error::corrupt(format!("quotient filter: {what}"), 0);
        let Some(header) = bytes.get(..HEADER) else { return Err(bad("shorter than its header")) };
        let word =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if word(0) != crc32c(&bytes[4..]) {
            return Err(bad("wrong checksum"));
        }
        if header[4] != VERSION || header[7] != 0 || word(12) != 0 {
            return Err(bad("unknown version"));
        }
        let (bits, low, count) = (header[5] as u32, header[6] as u32, word(8));
        let layout = FilterLayout::new(count, bits, low)
            .filter(|l| l.end == bytes.len())
            .ok_or_else(|| bad("wrong length"))?;
        let filter = Filter { bytes, count, bits, low, layout };
        // Check that the code has a one for each fingerprint and a zero for each quotient and ends
        // with a zero, and that the directory is right.
        let (mut ones, mut zeros) = (0, 0);
        let mut stride = 0;
        for at in (layout.code..layout.end).step_by(8) {
            let word = filter.word(at);
            // Every 128th zero has an entry in the directory, and so has the beginning. A word of
            // 64 bits has the ends of at most two strides.
            while stride * STRIDE < layout.quotients
                && stride * STRIDE <= zeros + word.count_zeros() as u64
            {
                let skip = stride * STRIDE - zeros;
                let before = if skip == 0 { 0 } else { select(!word, skip as u32 - 1) + 1 };
                if filter.rank(stride) != ones + before as u64 - skip {
                    return Err(bad("wrong directory"));
                }
                stride += 1;
            }
            ones += word.count_ones() as u64;
            zeros += word.count_zeros() as u64;
        }
        let used = layout.quotients + count as u64;
        let spare = (layout.end - layout.code) as u64 * 8 - used;
        let last = filter.word(layout.end - 8);
        if ones != count as u64
            || stride * STRIDE < layout.quotients
            || last.leading_zeros() as u64 <= spare
        {
            return Err(bad("wrong unary code"));
        }
        Ok(filter)
    }

    /// Returns `false` only if no key with this `hash` was added.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let fingerprint = hash >> (64 - self.bits);
        let quotient = fingerprint >> self.low;
        let remainder = fingerprint & mask(self.low);
        let mut at = self.begin(quotient);
        let mut i = at - quotient;
        while self.code_bit(at) {
            let r = self.remainder(i);
            if r >= remainder {
                return r == remainder;
            }
            at += 1;
            i += 1;
        }
        false
    }

    /// Prefetches the part of the directory that a lookup of `hash` reads first.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let d = (hash >> (64 - self.bits) >> self.low) / STRIDE;
        prefetch(&self.bytes, HEADER + d as usize * 4);
    }

    /// Prefetches the code and the remainders that a lookup of `hash` reads next. Their offsets are
    /// estimated from the directory, because they are spread evenly within a stride.
    #[inline]
    pub(crate) fn prefetch_rest(&self, hash: u64) {
        let quotient = hash >> (64 - self.bits) >> self.low;
        let (d, skip) = (quotient / STRIDE, quotient % STRIDE);
        let (rank, strides) = (self.rank(d), self.layout.quotients.div_ceil(STRIDE));
        let next = if d + 1 < strides { self.rank(d + 1) } else { u64::from(self.count) };
        let i = rank + next.saturating_sub(rank) * skip / STRIDE;
        // The code is read from the beginning of the stride, which may be in the previous cache
        // line.
        prefetch(&self.bytes, self.layout.code + ((d * STRIDE + rank) / 8) as usize);
        prefetch(&self.bytes, self.layout.code + ((quotient + i) / 8) as usize);
        prefetch(&self.bytes, self.layout.remainders + (i * u64::from(self.low) / 8) as usize);
    }

    /// Returns the number of fingerprints. Keys that share a fingerprint count once.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether the filter has no key.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the size of the filter, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of bits of a fingerprint.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Returns the fingerprints, which are the top `bits` bits of the hashes, in ascending order.
    pub fn fingerprints(&self) -> impl Iterator<Item = u64> {
        let (mut at, mut i) = (0u64, 0u64);
        iter::from_fn(move || {
            if i == self.count as u64 {
                return None;
            }
            // Skip the zeros before the next one bit, a word at a time.
            loop {
                let word = self.word(self.layout.code + (at / 64 * 8) as usize) >> (at % 64);
                if word != 0 {
                    at += word.trailing_zeros() as u64;
                    break;
                }
                at = (at / 64 + 1) * 64;
            }
            let f = (at - i) << self.low | self.remainder(i);
            at += 1;
            i += 1;
            Some(f)
        })
    }

    /// Returns the eight bytes at `at`, which `parse` has checked to be within the filter.
    #[inline]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Returns the number of fingerprints in the strides of quotients before stride `d`.
    #[inline]
    fn rank(&self, d: u64) -> u64 {
        let at = HEADER + d as usize * 4;
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes")) as u64
    }

    #[inline]
    fn code_bit(&self, at: u64) -> bool {
        self.bytes[self.layout.code + (at / 8) as usize] >> (at % 8) & 1 == 1
    }

    #[inline]
    fn remainder(&self, i: u64) -> u64 {
        let at = i * self.low as u64;
        self.word(self.layout.remainders + (at / 8) as usize) >> (at % 8) & mask(self.low)
    }

    /// Returns the bit offset in the code at which the code of `quotient` begins.
    #[inline]
    fn begin(&self, quotient: u64) -> u64 {
        let d = quotient / STRIDE;
        let mut at = d * STRIDE + self.rank(d);
        let mut skip = (quotient % STRIDE) as u32;
        if skip == 0 {
            return at;
        }
        // The code of the quotient begins after the `skip`th zero from here.
        let mut zeros =
            !self.word(self.layout.code + (at / 64 * 8) as usize) & u64::MAX << (at % 64);
        at = at / 64 * 64;
        loop {
            let n = zeros.count_ones();
            if n >= skip {
                return at + select(zeros, skip - 1) as u64 + 1;
            }
            skip -= n;
            at += 64;
            zeros = !self.word(self.layout.code + (at / 8) as usize);
        }
    }
}

/// Prefetches the cache line of `bytes` at `at`.
#[inline]
fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint that does not access memory, and the address is inside
        // `bytes`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

/// Returns the position of one bit number `n`, counted from 0, in `word`, which must have more than
/// `n` one bits.
#[inline]
fn select(mut word: u64, mut n: u32) -> u32 {
    let mut at = 0;
    // Avoid branches, because the half that contains the bit cannot be predicted.
    for half in [32, 16, 8, 4, 2, 1] {
        let ones = (word & mask(half)).count_ones();
        let above = u32::from(n >= ones);
        n -= ones * above;
        word >>= half * above;
        at += half * above;
    }
    at
}

#[cfg(test)]
mod tests;

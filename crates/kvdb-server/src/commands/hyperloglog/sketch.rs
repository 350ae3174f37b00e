//! The representation of a HyperLogLog in a string. It is byte for byte the same as in Redis: a
//! header of 16 bytes, and 16,384 registers, either of 6 bits each (dense), or as runs of equal
//! registers (sparse).
//!
//! A sparse representation has three kinds of runs: `00llllll` is 1 to 64 registers of zero,
//! `01llllll llllllll` is 1 to 16,384 of them, and `1vvvvvll` is 1 to 4 registers with a value of
//! 1 to 32. It becomes dense when it takes more than 3,000 bytes, or when a register exceeds 32.

/// The string is not a valid HyperLogLog.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken;

const REGISTERS: usize = 16_384;
const HEADER: usize = 16;
/// Number of bits of a register in a dense representation.
const BITS: usize = 6;
/// Largest value of a register in a dense representation.
const MOST: u8 = 63;
/// Length of a dense string, in bytes.
pub const DENSE: usize = HEADER + REGISTERS * BITS / 8;
/// Length up to which a string remains sparse, in bytes.
const MOST_SPARSE: usize = 3000;
/// Largest value of a register in a sparse representation.
const MOST_VALUE: u8 = 32;
/// Longest run of registers with the same value in a sparse representation.
const MOST_VALUES: usize = 4;
/// Longest run of zeros in a sparse representation that takes one byte.
const MOST_ZEROS: usize = 64;
/// Number of bits of an element's hash after the bits that select the register.
const REST: u32 = 50;

const MAGIC: &[u8; 4] = b"HYLL";
/// Position of the encoding in the header.
const ENCODING: usize = 4;
/// The encoding of a dense representation.
const IS_DENSE: u8 = 0;
/// The encoding of a sparse representation.
const IS_SPARSE: u8 = 1;
/// Position of the number of elements in the header: 8 bytes, little-endian. The highest bit is
/// set if the number must be computed again.
const COUNT: usize = 8;
const OUTDATED: u8 = 1 << 7;

/// A run of registers in a sparse representation.
#[derive(Clone, Copy)]
struct Run {
    value: u8,
    len: usize,
    /// Number of bytes of the run.
    bytes: usize,
}

impl Run {
    /// Reads the run at the beginning of `bytes`, which is not empty. As in Redis, a byte that is
    /// missing at the end counts as zero.
    fn read(bytes: &[u8]) -> Run {
        let first = bytes[0];
        let len = usize::from(first & 0x3f);
        match first >> 6 {
            0 => Run { value: 0, len: len + 1, bytes: 1 },
            1 => {
                let low = bytes.get(1).copied().unwrap_or(0);
                Run { value: 0, len: (len << 8 | usize::from(low)) + 1, bytes: 2 }
            }
            _ => Run { value: (first >> 2 & 0x1f) + 1, len: usize::from(first & 3) + 1, bytes: 1 },
        }
    }

    fn is_value(self) -> bool {
        self.value > 0
    }

    fn write_zeros(len: usize, to: &mut Vec<u8>) {
        let len_minus_one = len - 1;
        if len > MOST_ZEROS {
            to.push(0x40 | (len_minus_one >> 8) as u8);
        }
        to.push((len_minus_one & 0xff) as u8);
    }

    fn write_values(value: u8, len: usize, to: &mut Vec<u8>) {
        to.push(value_byte(value, len));
    }
}

fn value_byte(value: u8, len: usize) -> u8 {
    0x80 | (value - 1) << 2 | (len - 1) as u8
}

/// The registers of the union of several HyperLogLogs: for each register, the largest value in
/// any of them.
pub struct Registers(Box<[u8; REGISTERS]>);

impl Default for Registers {
    fn default() -> Self {
        Registers(Box::new([0; REGISTERS]))
    }
}

impl Registers {
    pub fn merge(&mut self, other: &Sketch) -> Result<(), Broken> {
        other.each(|at, value| self.0[at] = self.0[at].max(value))
    }

    pub fn values(&self) -> &[u8] {
        &self.0[..]
    }

    /// Returns the estimated number of distinct elements.
    pub fn count(&self) -> u64 {
        let mut histogram = [0; MOST as usize + 1];
        self.0.iter().for_each(|value| histogram[usize::from(*value & MOST)] += 1);
        estimate(&histogram)
    }
}

/// A HyperLogLog.
pub struct Sketch(Vec<u8>);

impl Default for Sketch {
    fn default() -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[ENCODING] = IS_SPARSE;
        Run::write_zeros(REGISTERS, &mut bytes);
        Sketch(bytes)
    }
}

impl Sketch {
    pub fn new(bytes: &[u8]) -> Result<Sketch, Broken> {
        let is_one = bytes.len() >= HEADER
            && bytes.starts_with(MAGIC)
            && match bytes[ENCODING] {
                IS_DENSE => bytes.len() == DENSE,
                encoding => encoding == IS_SPARSE,
            };
        if is_one { Ok(Sketch(bytes.to_vec())) } else { Err(Broken) }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn is_dense(&self) -> bool {
        self.0[ENCODING] == IS_DENSE
    }

    /// Returns the runs of a sparse representation, in the notation of Redis, or `None` for a dense
    /// one.
    pub fn runs(&self) -> Option<String> {
        if self.is_dense() {
            return None;
        }
        let (mut rest, mut shown) = (&self.0[HEADER..], Vec::new());
        while !rest.is_empty() {
            let Run { value, len, bytes } = Run::read(rest);
            shown.push(match (value, bytes) {
                (0, 1) => format!("z:{len}"),
                (0, _) => format!("Z:{len}"),
                (value, _) => format!("v:{value},{len}"),
            });
            rest = rest.get(bytes..).unwrap_or_default();
        }
        Some(shown.join(" "))
    }

    /// Marks the number of elements in the header as outdated.
    pub fn touch(&mut self) {
        self.0[COUNT + 7] |= OUTDATED;
    }

    /// Returns the estimated number of distinct elements.
    pub fn count(&self) -> Result<u64, Broken> {
        let kept: [u8; 8] = self.0[COUNT..COUNT + 8].try_into().unwrap_or_default();
        if kept[7] & OUTDATED == 0 {
            return Ok(u64::from_le_bytes(kept));
        }
        let mut histogram = [0; MOST as usize + 1];
        let mut zeros = REGISTERS;
        self.each(|_, value| {
            histogram[usize::from(value)] += 1;
            zeros -= 1;
        })?;
        histogram[0] += zeros as u32;
        Ok(estimate(&histogram))
    }

    /// Passes the index and the value of each register that is not zero to `take`.
    fn each(&self, mut take: impl FnMut(usize, u8)) -> Result<(), Broken> {
        if self.is_dense() {
            for at in 0..REGISTERS {
                let value = self.register(at);
                if value > 0 {
                    take(at, value);
                }
            }
            return Ok(());
        }
        let (mut rest, mut at) = (&self.0[HEADER..], 0);
        while !rest.is_empty() {
            let run = Run::read(rest);
            if run.is_value() {
                if at + run.len > REGISTERS {
                    return Err(Broken);
                }
                (at..at + run.len).for_each(|at| take(at, run.value));
            }
            at += run.len;
            rest = rest.get(run.bytes..).unwrap_or_default();
        }
        if at == REGISTERS { Ok(()) } else { Err(Broken) }
    }

    /// Adds an element. Returns whether a register was changed.
    pub fn add(&mut self, element: &[u8]) -> Result<bool, Broken> {
        let hash = hash(element);
        let at = hash as usize & (REGISTERS - 1);
        // The run of zeros ends after `REST` bits at the latest.
        let value = (hash >> (64 - REST) | 1 << REST).trailing_zeros() as u8 + 1;
        self.raise(at, value)
    }

    /// Raises this HyperLogLog's registers to the values of `registers` that are not zero.
    pub fn raise_all(&mut self, registers: &Registers) -> Result<(), Broken> {
        for (at, value) in registers.0.iter().enumerate().filter(|(_, value)| **value > 0) {
            self.raise(at, *value)?;
        }
        Ok(())
    }

    /// Sets a register to `value`, unless its value is at least as large. Returns whether the
    /// register was changed.
    fn raise(&mut self, at: usize, value: u8) -> Result<bool, Broken> {
        if !self.is_dense() {
            match (value <= MOST_VALUE).then(|| self.raise_sparse(at, value)).transpose()? {
                Some(Raised::Yes) => {
                    self.touch();
                    return Ok(true);
                }
                Some(Raised::No) => return Ok(false),
                Some(Raised::TooLong) | None => self.make_dense()?,
            }
        }
        let raised = self.register(at) < value;
        if raised {
            self.set_register(at, value);
        }
        Ok(raised)
    }

    /// Returns the value of a register of a dense representation.
    fn register(&self, at: usize) -> u8 {
        let (byte, bit) = (HEADER + at * BITS / 8, (at * BITS) & 7);
        let next = self.0.get(byte + 1).copied().unwrap_or(0);
        ((u16::from_le_bytes([self.0[byte], next]) >> bit) as u8) & MOST
    }

    fn set_register(&mut self, at: usize, value: u8) {
        let (byte, bit) = (HEADER + at * BITS / 8, (at * BITS) & 7);
        let (mask, value) = (u16::from(MOST) << bit, u16::from(value) << bit);
        let ([low_mask, high_mask], [low, high]) = (mask.to_le_bytes(), value.to_le_bytes());
        self.0[byte] = self.0[byte] & !low_mask | low;
        if let Some(next) = self.0.get_mut(byte + 1) {
            *next = *next & !high_mask | high;
        }
    }

    pub fn make_dense(&mut self) -> Result<(), Broken> {
        if self.is_dense() {
            return Ok(());
        }
        let mut bytes = vec![0; DENSE];
        bytes[..HEADER].copy_from_slice(&self.0[..HEADER]);
        bytes[ENCODING] = IS_DENSE;
        let mut dense = Sketch(bytes);
        self.each(|at, value| dense.set_register(at, value))?;
        *self = dense;
        Ok(())
    }

    /// Sets a register in a sparse representation by the same steps as Redis: the run that
    /// contains the register is split, and some runs around it are merged. Other steps would
    /// represent the same registers by different bytes.
    fn raise_sparse(&mut self, at: usize, value: u8) -> Result<Raised, Broken> {
        let (mut place, mut before, mut first) = (HEADER, None, 0);
        let run = loop {
            let rest = self.0.get(place..).filter(|rest| !rest.is_empty()).ok_or(Broken)?;
            let run = Run::read(rest);
            if at < first + run.len {
                break run;
            }
            (before, place, first) = (Some(place), place + run.bytes, first + run.len);
        };
        if run.is_value() && run.value >= value {
            return Ok(Raised::No);
        }
        if run.len == 1 && run.bytes == 1 {
            self.0[place] = value_byte(value, 1);
        } else {
            let (left, right) = (at - first, first + run.len - 1 - at);
            let mut split = Vec::with_capacity(5);
            let rest_of_run = |len: usize, split: &mut Vec<u8>| match (len, run.is_value()) {
                (0, _) => {}
                (_, true) => Run::write_values(run.value, len, split),
                (_, false) => Run::write_zeros(len, split),
            };
            rest_of_run(left, &mut split);
            Run::write_values(value, 1, &mut split);
            rest_of_run(right, &mut split);
            if split.len() > run.bytes && self.0.len() + split.len() - run.bytes > MOST_SPARSE {
                return Ok(Raised::TooLong);
            }
            let end = (place + run.bytes).min(self.0.len());
            self.0.splice(place..end, split);
        }
        self.merge_around(before.unwrap_or(HEADER));
        Ok(Raised::Yes)
    }

    /// Merges runs of equal values among the five runs from `place` on.
    fn merge_around(&mut self, mut place: usize) {
        for _ in 0..5 {
            let Some(rest) = self.0.get(place..).filter(|rest| !rest.is_empty()) else { return };
            let run = Run::read(rest);
            if run.is_value()
                && let Some(next) = rest.get(1).map(|_| Run::read(&rest[1..]))
                && next.is_value()
                && next.value == run.value
                && next.len + run.len <= MOST_VALUES
            {
                self.0[place + 1] = value_byte(run.value, next.len + run.len);
                self.0.remove(place);
                continue;
            }
            place += run.bytes;
        }
    }
}

/// The outcome of setting a register in a sparse representation.
enum Raised {
    Yes,
    No,
    /// The representation would be too long.
    TooLong,
}

/// MurmurHash2 in 64 bits, with the seed that Redis uses.
fn hash(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut h = 0xadc8_3b19 ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut k = u64::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        h = (h ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        h = (h ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    h = (h ^ h >> R).wrapping_mul(M);
    h ^ h >> R
}

/// Estimates the number of elements from the number of registers of each value ("New cardinality
/// estimation algorithms for HyperLogLog sketches", Otmar Ertl, arXiv:1702.01284).
fn estimate(histogram: &[u32; MOST as usize + 1]) -> u64 {
    /// The constant `0.5 / ln(2)`.
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    let m = REGISTERS as f64;
    let mut z = m * tau((m - f64::from(histogram[REST as usize + 1])) / m);
    for value in (1..=REST as usize).rev() {
        z = (z + f64::from(histogram[value])) * 0.5;
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    (ALPHA * m * m / z).round() as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_and_a_dense_one_have_the_same_registers() {
        let (mut sparse, mut dense) = (Sketch::default(), Sketch::default());
        dense.make_dense().expect("sound");
        for i in 0..20_000u32 {
            let element = i.to_string();
            let changed = sparse.add(element.as_bytes()).expect("sound");
            assert_eq!(dense.add(element.as_bytes()), Ok(changed), "{i}");
            if i.is_multiple_of(997) {
                dense.touch();
                assert_eq!(sparse.count(), dense.count(), "{i}");
                let mut registers = Registers::default();
                registers.merge(&sparse).expect("sound");
                assert_eq!(Ok(registers.count()), sparse.count(), "{i}");
            }
        }
        assert!(sparse.is_dense());
        sparse.touch();
        let count = sparse.count().expect("sound");
        assert!((19_600..20_400).contains(&count), "{count}");
        assert_eq!(sparse.into_bytes()[HEADER..], dense.into_bytes()[HEADER..]);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as u8
        };
        for round in 0..2000usize {
            let mut bytes = Sketch::default().into_bytes();
            bytes.truncate(HEADER);
            bytes[COUNT + 7] = OUTDATED;
            bytes.extend((0..round % 40).map(|_| next()));
            let mut sketch = Sketch::new(&bytes).expect("a header");
            let _ = (sketch.count(), Registers::default().merge(&sketch));
            let _ = sketch.add(&bytes);
            let _ = sketch.make_dense();
        }
        assert!(Sketch::new(b"HYLL").is_err() && Sketch::new(&[0; 20]).is_err());
    }
}

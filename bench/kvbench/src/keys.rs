//! Keys and values. They are the same for every engine, cheap to make, and determined by a number:
//! tuple `i` of a data set always has the same key, so that reads need no list of the written keys.

/// The paper's number of ranges for RANDOM-APPEND (§4.1).
pub const RANGES: u64 = 2040;

pub const KEY_BYTES: usize = 16;

/// A key; only `missing` makes one of 17 bytes.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; KEY_BYTES + 1],
    len: usize,
}

impl Key {
    fn of(high: u64, low: u64) -> Key {
        let mut bytes = [0; KEY_BYTES + 1];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..16].copy_from_slice(&low.to_be_bytes());
        Key { bytes, len: KEY_BYTES }
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// How the keys of a data set lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Ascending numbers.
    Sequential,
    /// 16 random bytes.
    Random,
    /// This many ranges, each ascending. Tuple `i` is in range `i % ranges`.
    Append { ranges: u64 },
}

/// One to one on 64 bits (the finalizer of splitmix64): numbers in, random numbers out, none twice.
pub fn mix(i: u64) -> u64 {
    let mut z = i.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Shape {
    /// The key of tuple `i`.
    pub fn key(self, i: u64) -> Key {
        match self {
            Shape::Sequential => Key::of(0, i),
            Shape::Random => Key::of(mix(i), mix(!i)),
            Shape::Append { ranges } => Key::of(mix(i % ranges), i / ranges),
        }
    }

    /// A missing key that lies among the existing ones. `i` is as for `key`, and `count` is the
    /// number of tuples.
    pub fn missing(self, i: u64, count: u64) -> Key {
        match self {
            Shape::Random => self.key(count + i),
            _ => Key { len: KEY_BYTES + 1, ..self.key(i) },
        }
    }
}

/// A small fast generator (xorshift64*), the same sequence for every engine.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed) | 1)
    }
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(n)) >> 64) as u64
    }
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Values are cut from a buffer of noise, so that making one costs nothing and none compresses.
pub struct Values {
    noise: Vec<u8>,
    len: usize,
}

impl Values {
    const PLACES: u64 = 1 << 17;

    pub fn new(len: usize) -> Values {
        let mut dice = Dice::new(7);
        let words = (Self::PLACES as usize + len).div_ceil(8);
        Values { noise: (0..words).flat_map(|_| dice.number().to_le_bytes()).collect(), len }
    }

    /// Version `version` of the value of tuple `i`.
    pub fn of(&self, i: u64, version: u64) -> &[u8] {
        let at = (mix(i ^ version.rotate_left(48)) % Self::PLACES) as usize;
        &self.noise[at..at + self.len]
    }
}

/// Zipf's distribution with exponent 0.99 over `0..n`, most popular first, as YCSB draws it (Gray
/// et al., SIGMOD '94).
pub struct Zipf {
    n: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    pub fn new(n: u64) -> Zipf {
        // The tail of the sum beyond a million terms is its integral.
        let exact = n.min(1 << 20);
        let mut zeta: f64 = (1..=exact).map(|i| (i as f64).powf(-Self::THETA)).sum();
        if n > exact {
            let e = 1.0 - Self::THETA;
            zeta += ((n as f64).powf(e) - (exact as f64).powf(e)) / e;
        }
        let zeta2 = 1.0 + 0.5f64.powf(Self::THETA);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - Self::THETA)) / (1.0 - zeta2 / zeta);
        Zipf { n, zeta, alpha: 1.0 / (1.0 - Self::THETA), eta }
    }

    pub fn draw(&self, dice: &mut Dice) -> u64 {
        let u = dice.fraction();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(Self::THETA) {
            return 1.min(self.n - 1);
        }
        ((self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64).min(self.n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_key_comes_twice_and_missing_keys_are_missing() {
        for shape in [Shape::Sequential, Shape::Random, Shape::Append { ranges: 7 }] {
            let keys: HashSet<Vec<u8>> = (0..10_000).map(|i| shape.key(i).to_vec()).collect();
            assert_eq!(keys.len(), 10_000);
            assert!((0..10_000).all(|i| !keys.contains(&*shape.missing(i, 10_000))));
        }
    }

    #[test]
    fn zipf_prefers_the_first() {
        let (zipf, mut dice) = (Zipf::new(1000), Dice::new(1));
        let mut seen = [0u32; 1000];
        (0..100_000).for_each(|_| seen[zipf.draw(&mut dice) as usize] += 1);
        // 1/zeta(1000, 0.99) is 0.13; the second half as likely.
        assert!((11_000..15_000).contains(&seen[0]), "{}", seen[0]);
        assert!(seen[0] > seen[1] && seen[1] > seen[10] && seen[10] > seen[500]);
    }
}

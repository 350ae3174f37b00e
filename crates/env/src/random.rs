//! Random numbers from a seed, for tests, simulated devices and schedules: a seed gives the same
//! numbers on every machine.

use std::sync::atomic::{AtomicU64, Ordering};

/// A SplitMix64 generator, which must not be used for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns the next number, of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number in `0..n`; 0 when `n` is 0. (The bias of the multiplication is below 2⁻³²
    /// for the sizes used here.)
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(n)) >> 64) as u64
    }

    /// Returns `true` with a probability of 1 to `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the items, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    /// Fills `bytes` with random ones.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let noise = self.number().to_le_bytes();
            piece.copy_from_slice(&noise[..piece.len()]);
        }
    }
}

/// Draws the next number of a SplitMix64 generator (Steele, Lea, Flood 2014), by one addition and
/// three mixes. The generator must not be used for secrets.
pub(crate) fn split_mix(state: &AtomicU64) -> u64 {
    mix(state
        .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        .wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// Performs the mixing step of SplitMix64: a bijection that maps counters to random numbers.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[random.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.pick::<u8>(&[]), None);
    }

    #[test]
    fn a_seed_gives_the_same_noise() {
        let (mut a, mut b) = ([0; 33], [0; 33]);
        Random::new(5).fill(&mut a);
        Random::new(5).fill(&mut b);
        assert_eq!(a, b);
        assert_ne!(a, [0; 33]);
    }
}

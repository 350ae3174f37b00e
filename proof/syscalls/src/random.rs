//! Random numbers of a seed (SplitMix64).

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03),
        )
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Draws one of several, with a frequency given by its weight.
    pub fn weighted<T: Copy>(&mut self, all: &[(u64, T)]) -> T {
        let mut at = self.below(all.iter().map(|w| w.0).sum());
        for &(weight, what) in all {
            if at < weight {
                return what;
            }
            at -= weight;
        }
        all[0].1
    }
}

//! Latencies in logarithmic buckets: 32 for each doubling, so that a quantile is right within 3%,
//! and recording costs a few nanoseconds. The largest value is kept exactly.

const PER_DOUBLING_BITS: u32 = 5;
const PER_DOUBLING: u64 = 1 << PER_DOUBLING_BITS;
const BUCKETS: usize = ((64 - PER_DOUBLING_BITS + 1) as usize) << PER_DOUBLING_BITS;

/// Counts of latencies, in nanoseconds.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0, max: 0 }
    }
}

/// Values below 32 have a bucket each; from there on the five bits below the leading one choose it.
fn bucket(v: u64) -> usize {
    if v < PER_DOUBLING {
        return v as usize;
    }
    let shift = 63 - v.leading_zeros() - PER_DOUBLING_BITS;
    ((u64::from(shift) << PER_DOUBLING_BITS) + (v >> shift)) as usize
}

/// The largest value that `bucket` puts into bucket `b`.
fn upper(b: usize) -> u64 {
    let b = b as u64;
    if b < PER_DOUBLING {
        return b;
    }
    let shift = (b >> PER_DOUBLING_BITS) - 1;
    let low = ((b & (PER_DOUBLING - 1)) | PER_DOUBLING) << shift;
    low + ((1 << shift) - 1)
}

impl Histogram {
    pub fn record(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The value that a share `q` of all values does not exceed, nanoseconds; 0 when nothing was
    /// recorded.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = ((self.total as f64 * q).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (b, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return upper(b).min(self.max);
            }
        }
        self.max
    }

    pub fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_that_is_three_percent_wide() {
        for v in (0..64)
            .flat_map(|s| [1u64 << s, (1 << s) + 1, (1 << s) - 1, (1u64 << s) + (1 << s) / 3])
            .chain([u64::MAX])
        {
            let up = upper(bucket(v));
            assert!(up >= v && up - v <= v / 32, "{v}: {up}");
        }
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile(0.5), 0);
        (1..=1000).for_each(|v| h.record(v * 100));
        assert_eq!(h.max(), 100_000);
        assert!(h.quantile(0.5).abs_diff(50_000) <= 1600);
        assert!(h.quantile(0.999).abs_diff(99_900) <= 3200);
        assert_eq!(h.quantile(1.0), 100_000);
    }
}

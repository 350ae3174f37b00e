//! The rate limit of a scrub.

use std::time::Duration;

/// Limits the rate of reading, by returning the time to wait before each read.
pub(crate) struct Pace {
    bytes_per_second: Option<u64>,
    since: Duration,
    read: u64,
}

impl Pace {
    pub(crate) fn new(bytes_per_second: Option<u64>, now: Duration) -> Pace {
        Pace { bytes_per_second, since: now, read: 0 }
    }

    pub(crate) fn read(&mut self, bytes: u64) {
        self.read += bytes;
    }

    /// Returns the time to wait before the next read.
    pub(crate) fn owed(&mut self, now: Duration) -> Duration {
        let Some(rate) = self.bytes_per_second.map(|rate| rate.max(1)) else {
            return Duration::ZERO;
        };
        let due = Duration::from_secs_f64(self.read as f64 / rate as f64);
        let owed = (self.since + due).saturating_sub(now);
        if owed.is_zero() {
            // Restart the measurement, so that idle time does not accumulate and allow a burst.
            (self.since, self.read) = (now, 0);
        }
        owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_holds_at_every_moment() {
        let mut pace = Pace::new(Some(1 << 20), Duration::from_secs(7));
        let (mut now, mut read) = (Duration::from_secs(7), 0);
        for i in 0..1000u64 {
            let piece = 1 + i * 7919 % (64 << 10);
            pace.read(piece);
            read += piece;
            // Simulate the time that the device takes.
            now += Duration::from_micros(i % 300);
            now += pace.owed(now);
            let allowed = (now - Duration::from_secs(7)).as_secs_f64() * f64::from(1 << 20);
            assert!(read as f64 <= allowed + 1.0, "{read} bytes in {now:?}");
        }
    }

    #[test]
    fn a_pause_is_not_saved_up() {
        let mut pace = Pace::new(Some(1000), Duration::ZERO);
        assert_eq!(pace.owed(Duration::from_secs(3600)), Duration::ZERO);
        pace.read(1000);
        assert_eq!(pace.owed(Duration::from_secs(3600)), Duration::from_secs(1));
        assert_eq!(Pace::new(None, Duration::ZERO).owed(Duration::ZERO), Duration::ZERO);
    }
}

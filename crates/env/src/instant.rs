//! Moments of a clock that never goes back, with the interface of `std::time::Instant`. In a
//! simulated run the clock is virtual, so the waits and sleeps of the run advance it to each
//! deadline.

use std::ops::Add;
use std::time::Duration;

use crate::schedule;

/// A moment. It can be compared with other moments of the same run or, outside of runs, of the same
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the current moment.
    pub fn now() -> Instant {
        Instant(schedule::now())
    }

    /// Returns the time that has elapsed since this moment.
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is the later moment.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the moment `time` after this one, or `None` if the clock cannot represent it.
    pub fn checked_add(&self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }

    /// Returns the moment `time` before this one, or `None` if the clock cannot represent it.
    pub fn checked_sub(&self, time: Duration) -> Option<Instant> {
        self.0.checked_sub(time).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn a_deadline_comes_by_sleeping_in_a_run_and_outside() {
        let sleeps = |time: Duration| {
            let begun = Instant::now();
            let deadline = begun + time;
            assert!(deadline > begun && begun.checked_add(time) == Some(deadline));
            assert_eq!(deadline.checked_sub(time), Some(begun));
            thread::sleep(time);
            assert!(Instant::now() >= deadline && begun.elapsed() >= time);
            assert_eq!(begun.saturating_duration_since(deadline), Duration::ZERO);
        };
        sleeps(Duration::from_millis(1));
        let began = std::time::Instant::now();
        schedule::run(1, move || sleeps(Duration::from_secs(3600))).unwrap();
        assert!(began.elapsed() < Duration::from_secs(60), "virtual time takes none");
    }
}

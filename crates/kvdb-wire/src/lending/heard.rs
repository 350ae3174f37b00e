//! The time for which the server has not heard of the client that holds the lease. The client
//! counts as present while one of its requests is in progress: a sync may take longer than the
//! lease, and the client cannot renew the lease while all threads of its connection work on its
//! requests.

use std::time::Duration;

use env::Instant;
use env::sync::Mutex;

/// When the client that holds the lease was last heard of.
pub(super) struct Heard(Mutex<Last>);

struct Last {
    epoch: u64,
    at: Instant,
    /// Number of its requests that are in progress.
    under_way: usize,
}

/// A request of the client that is in progress, until this is dropped.
pub(crate) struct UnderWay<'a> {
    heard: &'a Heard,
    epoch: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.heard.0.lock().ends(self.epoch, Instant::now());
    }
}

impl Heard {
    pub fn of(epoch: u64) -> Heard {
        Heard(Mutex::new(Last::of(epoch)))
    }

    /// Begins to count for the lease of this epoch.
    pub fn begins(&self, epoch: u64) {
        *self.0.lock() = Last::of(epoch);
    }

    /// Notes that the client is present.
    pub fn hears(&self) {
        self.0.lock().at = Instant::now();
    }

    /// Counts a request of the client that has, or had, the lease of this epoch.
    pub fn under_way(&self, epoch: u64) -> UnderWay<'_> {
        self.0.lock().comes(epoch);
        UnderWay { heard: self, epoch }
    }

    /// Returns the time for which the client was not heard of.
    pub fn silent(&self) -> Duration {
        self.0.lock().silent(Instant::now())
    }
}

impl Last {
    fn of(epoch: u64) -> Last {
        Last { epoch, at: Instant::now(), under_way: 0 }
    }

    fn comes(&mut self, epoch: u64) {
        if self.epoch == epoch {
            self.under_way += 1;
        }
    }

    fn ends(&mut self, epoch: u64, now: Instant) {
        // The request of an earlier epoch no longer counts.
        if self.epoch == epoch {
            self.under_way = self.under_way.saturating_sub(1);
            self.at = now;
        }
    }

    fn silent(&self, now: Instant) -> Duration {
        match self.under_way {
            0 => now.saturating_duration_since(self.at),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_heard_of_until_the_last_of_its_requests_has_ended() {
        let mut last = Last::of(7);
        let (begun, second) = (last.at, Duration::from_secs(1));
        let after = |seconds: u32| begun + second * seconds;
        assert_eq!(last.silent(after(1)), second);
        last.comes(7);
        last.comes(7);
        assert_eq!(last.silent(after(100)), Duration::ZERO);
        last.ends(7, after(100));
        assert_eq!(last.silent(after(200)), Duration::ZERO);
        last.ends(7, after(300));
        assert_eq!(last.silent(after(301)), second);
    }

    #[test]
    fn a_request_of_an_epoch_that_is_over_is_not_one_of_the_next_client() {
        let mut last = Last::of(7);
        last.comes(7);
        last = Last::of(8);
        let (begun, second) = (last.at, Duration::from_secs(1));
        last.ends(7, begun + second * 5);
        last.comes(7);
        assert_eq!(last.silent(begun + second * 9), second * 9);
    }
}

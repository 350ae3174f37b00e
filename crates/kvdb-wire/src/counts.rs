//! Counts of the traffic of each kind of request.

use env::sync::atomic::{AtomicU64, Ordering};

use crate::request::NAMES;

/// Counts of the requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Number of requests.
    pub requests: u64,
    /// Bytes of the frames of these requests.
    pub asked: u64,
    /// Bytes of the frames with their answers.
    pub answered: u64,
}

#[derive(Default)]
struct Counter {
    requests: AtomicU64,
    asked: AtomicU64,
    answered: AtomicU64,
}

/// The counts of one side of the wire.
#[derive(Default)]
pub(crate) struct ByRequest([Counter; NAMES.len()]);

impl ByRequest {
    fn of(&self, kind: u8) -> Option<&Counter> {
        self.0.get(usize::from(kind).checked_sub(1)?)
    }

    pub fn asked(&self, kind: u8, bytes: usize) {
        if let Some(counter) = self.of(kind) {
            counter.requests.fetch_add(1, Ordering::Relaxed);
            counter.asked.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub fn answered(&self, kind: u8, bytes: usize) {
        if let Some(counter) = self.of(kind) {
            counter.answered.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Returns the names and counts of the kinds that have occurred.
    pub fn counts(&self) -> Vec<(&'static str, RequestCounts)> {
        let one = |(name, counter): (&&'static str, &Counter)| {
            let counts = RequestCounts {
                requests: counter.requests.load(Ordering::Relaxed),
                asked: counter.asked.load(Ordering::Relaxed),
                answered: counter.answered.load(Ordering::Relaxed),
            };
            (*name, counts)
        };
        NAMES.iter().zip(&self.0).map(one).filter(|(_, counts)| counts.requests > 0).collect()
    }
}

//! Counts the requests to object storage, by purpose.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::Purpose;

/// The statistics of the requests of a store to object storage since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// The number of requests for parts of zones, by [`Purpose`] in the order of [`Purpose::ALL`].
    pub gets: [u64; Purpose::ALL.len()],
    /// The number of bytes that these requests have fetched, in the same order.
    pub got_bytes: [u64; Purpose::ALL.len()],
    /// The number of reads that had to wait for a request.
    pub waits: u64,
    /// The number of requests that were sent a second time because the first one took long. They
    /// are not included in `gets`.
    pub second_gets: u64,
    /// The number of zones that were evicted to make room for other zones.
    pub given_up: u64,
    /// The number of bytes of zones in object storage that are also in the local file.
    pub cached_bytes: u64,
    /// The number of zones that lie in object storage.
    pub zones: u64,
    /// `true` if the last request was not answered and is being retried.
    pub waiting: bool,
}

#[derive(Default)]
pub(crate) struct Counters {
    gets: [AtomicU64; Purpose::ALL.len()],
    got_bytes: [AtomicU64; Purpose::ALL.len()],
    waits: AtomicU64,
    given_up: AtomicU64,
    waiting: AtomicBool,
}

impl Counters {
    pub(super) fn asked(&self, purpose: Purpose) {
        self.gets[purpose as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn got(&self, purpose: Purpose, bytes: u64) {
        self.got_bytes[purpose as usize].fetch_add(bytes, Relaxed);
    }

    pub(super) fn waited(&self) {
        self.waits.fetch_add(1, Relaxed);
    }

    pub(super) fn gave_up(&self) {
        self.given_up.fetch_add(1, Relaxed);
    }

    /// Records that a request failed and is retried. Of consecutive failures only the first is
    /// logged.
    pub(super) fn waits(&self, place: &str, error: &std::io::Error) {
        if !self.waiting.swap(true, Relaxed) {
            tracing::warn!("{place} is not to be reached, and is waited for: {error}");
        }
    }

    /// Records that a request was answered after earlier failures.
    pub(super) fn reached(&self) {
        if self.waiting.swap(false, Relaxed) {
            tracing::info!("object storage is to be reached again");
        }
    }

    pub(super) fn stats(&self, cached_bytes: u64, zones: u64) -> RemoteStats {
        RemoteStats {
            gets: self.gets.each_ref().map(|n| n.load(Relaxed)),
            got_bytes: self.got_bytes.each_ref().map(|n| n.load(Relaxed)),
            waits: self.waits.load(Relaxed),
            second_gets: 0,
            given_up: self.given_up.load(Relaxed),
            cached_bytes,
            zones,
            waiting: self.waiting.load(Relaxed),
        }
    }
}

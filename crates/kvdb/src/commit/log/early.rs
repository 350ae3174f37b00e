//! Early writes: pending data is written before a sync asks for it.
//!
//! A sync writes everything that was committed before it, since commits keep their order. So while
//! callers wait for syncs from time to time, the journal's buffer is written whenever it fills a
//! few sectors, and deferred values are placed when they amount to a MiB. That leaves little work
//! for a sync.
//!
//! The stream is cut where a chunk of it fills whole sectors, even in the middle of a record, so
//! that no byte is written that would not be written later. The rest stays in the buffer. (The
//! whole stream is still written as often as without early writes.)

use std::time::Duration;

use env::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zones::SECTOR;

use super::deferred::Pending;
use super::{Log, Pipeline};
use crate::commit::Applied;
use crate::log::chunk::HEADER;

/// The pending bytes that trigger an early write. With the last record and the padding of its
/// chunk, a sync of a few bytes writes at most 16 KiB more than this.
pub(crate) const EARLY: usize = 3 * SECTOR as usize;

/// The pending bytes that trigger an early write if the last one was less than a [`PAUSE`] ago: a
/// disk does a limited number of writes a second.
pub(super) const EARLY_AT_ONCE: usize = 15 * SECTOR as usize;
const PAUSE: Duration = Duration::from_millis(1);

/// The size of the pending stream, in bytes, from which on commits write it themselves.
const MOST_PENDING: usize = 128 << 10;

/// Number of flush intervals after an awaited sync during which the next one is expected.
const INTERVALS: u32 = 10;

/// Tells whether syncs are expected.
#[derive(Default)]
pub(crate) struct ExpectedSyncs {
    /// The remaining flush intervals in which a sync is expected.
    intervals: AtomicU32,
    /// The time of the last early write, in nanoseconds of the clock.
    written: AtomicU64,
}

impl ExpectedSyncs {
    /// Notes that a caller waits for a sync.
    pub(super) fn awaited(&self) {
        if self.intervals.load(Ordering::Relaxed) != INTERVALS {
            self.intervals.store(INTERVALS, Ordering::Relaxed);
        }
    }

    /// Notes that a flush interval is over.
    fn interval_is_over(&self) {
        let less = |n: u32| n.checked_sub(1);
        let _ = self.intervals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn any(&self) -> bool {
        self.intervals.load(Ordering::Relaxed) > 0
    }

    /// Notes that an early write has ended.
    pub(super) fn written(&self, now: Duration) {
        self.written.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns whether the last early write was long enough ago for a short one.
    fn paused(&self, now: Duration) -> bool {
        now.saturating_sub(Duration::from_nanos(self.written.load(Ordering::Relaxed))) >= PAUSE
    }
}

impl Log {
    /// Notes that a flush interval is over.
    pub(crate) fn interval_is_over(&self) {
        self.expected_syncs.interval_is_over();
    }

    /// Returns whether pending data is written before a sync asks for it.
    pub(crate) fn writes_early(&self) -> bool {
        self.journal && self.expected_syncs.any()
    }

    /// Returns whether a commit has left enough pending data for an early write.
    pub(super) fn is_early(&self, applied: &Applied) -> bool {
        applied.cost >= self.shares.early_values
            || applied.pending >= EARLY_AT_ONCE
            || applied.pending >= EARLY && self.expected_syncs.paused(self.engine.env.monotonic())
    }

    /// Returns whether a commit has left so much for the next sync that it should write that
    /// itself.
    pub(crate) fn leaves_much(&self, applied: &Applied) -> bool {
        self.writes_early() && !applied.sync_follows && applied.pending >= MOST_PENDING
    }

    /// Returns the memory of deferred values above which commits are slowed down until these are
    /// placed; for the one above which they wait see [`Log::most_deferred`]. It is smaller while
    /// syncs are expected, since a sync has to wait for all data that is on its way to the device.
    pub(crate) fn window(&self) -> usize {
        match self.writes_early() {
            true => self.shares.window.min(2 * self.shares.early_values as usize),
            false => self.shares.window.max(self.held_at_most()),
        }
    }

    /// Returns the memory of deferred values above which commits wait: a window more than
    /// [`Log::window`], which fills while the oldest values are written.
    pub(crate) fn most_deferred(&self) -> usize {
        let window = self.window();
        window + window.min(self.shares.window)
    }
}

impl Pending {
    /// Cuts the stream where a chunk of it fills whole sectors, and returns the rest. All values
    /// must have been placed.
    pub(super) fn cut_to_sectors(&mut self) -> Vec<u8> {
        debug_assert!(self.values.is_empty());
        let whole = self.stream.len() / SECTOR as usize * SECTOR as usize;
        self.stream.split_off(whole.max(HEADER))
    }
}

impl Pipeline {
    /// Puts back the part that was cut off, in front of the commits since.
    pub(super) fn put_back_cut(&mut self, cut: Vec<u8>) {
        self.position -= cut.len() as u64;
        self.pending.cuts.iter_mut().for_each(|later| later.len += cut.len());
        self.pending.values.iter_mut().flat_map(|v| &mut v.at).for_each(|at| *at += cut.len());
        self.pending.stream.splice(HEADER..HEADER, cut);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::Simulated;
    use zones::MemoryDevice;

    use super::*;
    use crate::{CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};

    /// The reference must be filled in at its offset after the cut part is back in front of it.
    #[test]
    fn values_that_came_since_the_cut_get_their_places() {
        let device = Arc::new(MemoryDevice::new());
        let open = OpenOptions { threads: false, ..OpenOptions::default() };
        let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let env = Arc::new(Simulated::new(1));
        let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        db.put(dict, b"small", b"value", Durability::Buffered).unwrap();
        let commits = db.pipeline();
        let mut taken = {
            let writer = commits.log.writer.lock();
            commits.log.pipeline.lock().take(&writer)
        };
        db.put(dict, b"large", &[3; 5000], Durability::Buffered).unwrap();
        let cut = taken.cut_to_sectors();
        assert!(taken.is_empty() && !cut.is_empty(), "less than a sector");
        commits.log.pipeline.lock().put_back_cut(cut);
        db.sync().unwrap();
        let image = Arc::new(MemoryDevice::clone(&device));
        let (again, _) = Kvdb::open(image, env, open).unwrap();
        assert_eq!(again.get(dict, b"small").unwrap().unwrap(), b"value"[..]);
        assert_eq!(again.get(dict, b"large").unwrap().unwrap(), [3; 5000][..]);
    }

    #[test]
    fn what_is_cut_off_comes_before_what_was_committed_since() {
        for len in [0, 1, 4055, 4056, 4057, 20_000] {
            let mut pipeline = Pipeline::new(1, 0);
            let stream: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut taken = Pending::new(Vec::new());
            taken.stream.extend_from_slice(&stream);
            pipeline.position += len;
            pipeline.pending.stream.extend_from_slice(b"later");
            let cut = taken.cut_to_sectors();
            assert!(cut.len() < SECTOR as usize);
            let whole = taken.stream.len().is_multiple_of(SECTOR as usize);
            assert!(taken.is_empty() || whole, "{len}");
            pipeline.put_back_cut(cut);
            assert_eq!(pipeline.position, taken.len() as u64);
            assert_eq!(pipeline.end(), len + 5);
            let both = [&taken.stream[HEADER..], &pipeline.pending.stream[HEADER..]].concat();
            assert_eq!(both, [&stream[..], b"later"].concat());
        }
    }

    #[test]
    fn syncs_are_expected_for_some_intervals_after_one() {
        let expected = ExpectedSyncs::default();
        assert!(!expected.any());
        expected.interval_is_over();
        expected.awaited();
        for _ in 0..INTERVALS {
            assert!(expected.any());
            expected.interval_is_over();
        }
        assert!(!expected.any());
    }
}

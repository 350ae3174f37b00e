//! Detects sequential reads. A reader that had to wait for several places, each closely after the
//! previous one, is expected to continue in this way, as programs do that list and read a tree of
//! files. The data that follows on the device is then announced, in windows that grow.
//!
//! Cursors announce their own reads, which they know from the index. The detection is for data that
//! is read key by key: the nodes and the pages of the files of a directory, and the names of a
//! listing, where each call has its own cursor. This data is stored in the order in which it is
//! read, so it is enough to examine addresses.
//!
//! Only reads that had to wait are counted. Reads of data that is in memory, or was announced,
//! cause no announcement. So apart from the first window, at most four times the bytes read before
//! are announced in vain. Random reads within a few hundred KiB also come closely after one
//! another, but they come closely before one another just as often. If that happens, nothing is
//! announced for a while.
//!
//! A caller that knows how much it will read from one place on, such as the listing of a large
//! directory, declares this with [`read_onward`], so that no read has to wait first.

use std::cell::Cell;

use env::sync::Mutex;
use zones::{Purpose, ZONE_SIZE};

use super::BlockCache;

/// The number of sequential readers at different places that are tracked for each purpose.
const SEQUENCES: usize = 8;
/// The number of reads that must have waited, each closely after the previous one, before anything
/// is announced.
const STREAK: u32 = 2;
/// The largest gap, in bytes, between two places that are close to each other, unless a seek costs
/// more.
const GAP: u64 = 64 << 10;
/// The weight of a read closely before another one. It reduces the confidence in the order as much
/// as this many reads closely after another one restore it.
const DOUBT: u32 = 4;
/// The largest doubt, which limits the number of reads that restore the confidence.
const DOUBT_MAX: u32 = 16;
/// The number of waits after which announced data must have arrived, or was dropped by the host.
const ON_ITS_WAY: u64 = 64;
/// The first window that is announced, in bytes.
const WINDOW_MIN: u64 = 128 << 10;
/// The largest window that is announced, in bytes.
const WINDOW_MAX: u64 = 4 << 20;
/// The factor by which the window grows.
const GROWTH: u64 = 4;

thread_local! {
    static EXPECTED: Cell<u64> = const { Cell::new(0) };
}

/// Runs `work`, which will read about `bytes` bytes of tuples in sequence from each of its starting
/// places. The first read of such a sequence on this thread that misses the cache fetches this
/// number of bytes.
pub fn read_onward<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    struct Before(u64);
    impl Drop for Before {
        fn drop(&mut self) {
            EXPECTED.set(self.0);
        }
    }
    let _before = Before(EXPECTED.replace(bytes));
    work()
}

/// A sequential reader.
#[derive(Clone, Copy, Default)]
struct Sequence {
    /// The start of the range that was read or announced last.
    start: u64,
    end: u64,
    streak: u32,
    window: u64,
    /// The time of the last read, counted in reads of this purpose that had to wait.
    used: u64,
}

impl Sequence {
    /// Returns whether the reader has read or announced this place.
    fn holds(&self, addr: u64) -> bool {
        self.used > 0 && addr >= self.start && addr < self.end
    }
}

#[derive(Default)]
struct OfPurpose {
    sequences: [Sequence; SEQUENCES],
    clock: u64,
    /// The doubt that the last reads form a sequence. Nothing is announced until the doubt is 0
    /// again.
    doubt: u32,
}

/// The sequential readers of a store, by purpose.
#[derive(Default)]
pub(super) struct SequentialReads([Mutex<OfPurpose>; Purpose::ALL.len()]);

impl SequentialReads {
    /// Records a read that had to wait, and announces the data after it if this data is likely to
    /// be read next.
    pub fn note_wait(&self, cache: &BlockCache, purpose: Purpose, addr: u64, len: u64) {
        // Skip the index: it is small, so random gets read places close to one another in it.
        if purpose == Purpose::Index {
            return;
        }
        let (end, gap) = (addr.saturating_add(len), GAP.max(cache.seek_bytes()));
        let mut guard = self.0[purpose as usize].lock();
        let state = &mut *guard;
        state.clock += 1;
        let now = state.clock;
        // Ignore a wait for data that was announced and has not arrived yet, because it does not
        // indicate a sequence.
        if state.sequences.iter().any(|s| s.holds(addr) && now - s.used <= ON_ITS_WAY) {
            return;
        }
        let precedes = |s: &Sequence| s.used > 0 && addr < s.start && s.start - addr <= GAP;
        if state.sequences.iter().any(precedes) {
            state.doubt = (state.doubt + DOUBT).min(DOUBT_MAX);
        }
        let follows = |s: &Sequence| s.used > 0 && addr >= s.end && addr - s.end <= gap;
        let Some(sequence) =
            state.sequences.iter_mut().filter(|s| follows(s)).max_by_key(|s| s.end)
        else {
            if let Some(oldest) = state.sequences.iter_mut().min_by_key(|s| s.used) {
                *oldest = Sequence { start: addr, end, used: now, ..Sequence::default() };
            }
            return;
        };
        (sequence.start, sequence.end, sequence.used) = (addr, end, now);
        sequence.streak += 1;
        let long = sequence.streak >= STREAK;
        if state.doubt > 0 || !long {
            state.doubt = state.doubt.saturating_sub(1);
            return;
        }
        let first = cache.first_window(WINDOW_MIN);
        sequence.window = (sequence.window * GROWTH).clamp(first, WINDOW_MAX.max(first));
        sequence.end = within(addr, end.saturating_add(sequence.window)).max(end);
        let announced = sequence.end;
        drop(guard);
        if announced > end {
            cache.zones.will_read(purpose, end, announced - end);
        }
    }

    /// Announces the data that is about to be read on a thread that has declared how much it will
    /// read, unless the place has already been announced.
    pub fn expect(&self, cache: &BlockCache, purpose: Purpose, addr: u64, len: u64) {
        let expected = EXPECTED.get().min(WINDOW_MAX);
        if expected == 0 || purpose != Purpose::Tuples {
            return;
        }
        let end = within(addr, addr.saturating_add(expected)).max(addr.saturating_add(len));
        let mut state = self.0[purpose as usize].lock();
        if state.sequences.iter().any(|s| s.holds(addr)) {
            return;
        }
        state.clock += 1;
        let now = state.clock;
        if let Some(oldest) = state.sequences.iter_mut().min_by_key(|s| s.used) {
            *oldest = Sequence { start: addr, end, streak: STREAK, window: expected, used: now };
        }
        drop(state);
        cache.zones.will_read(purpose, addr, end - addr);
    }
}

/// Limits `end` to the zone of `addr`: data in the next zone was written at another time.
fn within(addr: u64, end: u64) -> u64 {
    end.min((addr / ZONE_SIZE).saturating_add(1).saturating_mul(ZONE_SIZE))
}

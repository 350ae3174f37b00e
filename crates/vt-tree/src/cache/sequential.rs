//! Sequential reads: a reader that had to wait for several places one close behind the other, which
//! is how a tree of files is listed and read, will go on so. What follows on the device is then
//! announced, first little, then more and more.
//!
//! Cursors announce what they will read by themselves, from the index. This is for what is read key
//! by key: nodes of a directory's files, their pages, and the names of a listing, of which each
//! call has a cursor of its own. They are stored in the order in which they are read, so it is
//! enough to look at addresses.
//!
//! Only reads that had to wait are looked at: what is in memory, or was announced, costs nothing
//! here. So what is announced in vain is at most four times what was read before, but for the first
//! window. Reads in no order of a place of a few hundred KiB come close behind one another, too,
//! but as often close before: where that happens, nothing is announced for a while.
//!
//! A caller that knows how much it is going to read from one place on, as the listing of a large
//! directory does, says so ([`read_onward`]): then nothing has to be waited for first.

use std::cell::Cell;

use env::sync::Mutex;
use zones::{Purpose, ZONE_SIZE};

use super::BlockCache;

/// Readers that go on at different places, of each purpose.
const SEQUENCES: usize = 8;
/// Reads that had to wait, each close behind the one before, before anything is announced.
const STREAK: u32 = 2;
/// A place is close behind another one if the gap is at most this, or a seek, bytes.
const GAP: u64 = 64 << 10;
/// A read close before another one takes as much away from the belief in order as this many reads
/// close behind another one give back.
const DOUBT: u32 = 4;
const DOUBT_MAX: u32 = 16;
/// Waits after which what was announced must have come, or was forgotten by the host again.
const ON_ITS_WAY: u64 = 64;
/// What is announced at first and at most, bytes, and how it grows.
const WINDOW_MIN: u64 = 128 << 10;
const WINDOW_MAX: u64 = 4 << 20;
const GROWTH: u64 = 4;

thread_local! {
    static EXPECTED: Cell<u64> = const { Cell::new(0) };
}

/// Runs `work`, which will read about so many bytes of tuples, each time from one place on: what it
/// comes to first on this thread and is not in the cache is fetched with as much behind it.
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

/// One reader.
#[derive(Clone, Copy, Default)]
struct Sequence {
    /// What was read or announced last.
    start: u64,
    end: u64,
    streak: u32,
    window: u64,
    /// When it went on last, in reads of this purpose that had to wait.
    used: u64,
}

impl Sequence {
    /// Whether it has read or announced this place.
    fn holds(&self, addr: u64) -> bool {
        self.used > 0 && addr >= self.start && addr < self.end
    }
}

#[derive(Default)]
struct OfPurpose {
    sequences: [Sequence; SEQUENCES],
    clock: u64,
    /// How little the last reads looked like a sequence; none is announced before it is 0 again.
    doubt: u32,
}

/// What is known of the readers of a store.
#[derive(Default)]
pub(super) struct SequentialReads([Mutex<OfPurpose>; Purpose::ALL.len()]);

impl SequentialReads {
    /// Takes notice of a read that had to wait, and announces what follows if that is likely to be
    /// read next.
    pub fn note_wait(&self, cache: &BlockCache, purpose: Purpose, addr: u64, len: u64) {
        // The index is small: gets in no order come close to one another in it.
        if purpose == Purpose::Index {
            return;
        }
        let (end, gap) = (addr.saturating_add(len), GAP.max(cache.seek_bytes()));
        let mut guard = self.0[purpose as usize].lock();
        let state = &mut *guard;
        state.clock += 1;
        let now = state.clock;
        // A wait for what is on its way says nothing.
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

    /// Before a read on a thread that has said how much it is going to read: announces that, unless
    /// the place was announced.
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

/// As far as the zone of `addr` reaches: what lies in the next one was written at another time.
fn within(addr: u64, end: u64) -> u64 {
    end.min((addr / ZONE_SIZE).saturating_add(1).saturating_mul(ZONE_SIZE))
}

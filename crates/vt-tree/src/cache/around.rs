//! Reading around: after a read had to wait for the device, its neighbourhood on the device is
//! fetched as well, provided that the whole store fits into the memory that the host could use for
//! it. So a store that was just opened is in memory after each region was read once, in pieces of a
//! size that suits the device instead of tuple by tuple.
//!
//! Nothing is fetched twice, so at most the size of the store is fetched in vain. Nothing is
//! fetched if the store is larger than half of that memory, because the neighbourhood of a tuple
//! would then evict data that was requested. Cursors announce their own reads, so only the index is
//! read around for them.
//!
//! A caller that will not read the neighbourhood of a large value reads the value alone
//! ([`read_alone`]).

use std::cell::Cell;
use std::collections::HashMap;

use env::sync::Mutex;
use zones::{Purpose, ZONE_SIZE, Zones};

/// The length in bytes of the aligned pieces that are fetched around a read. A zone has 32 of them.
const PIECE: u64 = ZONE_SIZE / 32;
/// The largest number of pieces that are fetched at once. The number of pieces is a power of two,
/// and grows with the number of pieces fetched so far divided by `SHARE`. Each read that waits
/// costs the time of half a piece, so a program that needs only a few tuples must not fetch many
/// pieces.
const PIECES_MOST: u64 = 8;
/// The divisor that determines how fast the number of pieces grows. See [`PIECES_MOST`].
const SHARE: u64 = 8;
/// The number of fetched bytes after which the cache checks again whether the store fits into
/// memory.
const LOOK: u64 = 64 << 20;
/// The number of reads for which nothing is fetched after the store did not fit into memory.
const PASS: u32 = 4096;

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without fetching anything around the large values that `work` reads on this thread.
/// The index is still read around, because all later reads need it.
pub fn read_alone<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _before = Before(ALONE.replace(true));
    work()
}

/// Returns whether this thread is inside a call of [`read_alone`].
pub(super) fn reads_alone() -> bool {
    ALONE.get()
}

#[derive(Default)]
pub(crate) struct ReadAround(Mutex<ReadAroundState>);

#[derive(Default)]
struct ReadAroundState {
    /// The pieces that were fetched from each zone, by zone number, with one bit for each piece.
    fetched: HashMap<u64, u32>,
    /// The number of pieces that were fetched.
    pieces: u64,
    /// The number of bytes that may be fetched before the cache checks again whether the store fits
    /// into memory.
    left: u64,
    pass: u32,
}

impl ReadAround {
    /// Fetches the neighbourhood of `addr` after a read at `addr` had to wait. Returns `false` if
    /// the caller reads alone or the store does not fit into memory.
    pub fn fetch(&self, zones: &Zones, purpose: Purpose, addr: u64) -> bool {
        if purpose == Purpose::Pages && reads_alone() {
            return false;
        }
        let mut state = self.0.lock();
        if state.pass > 0 {
            state.pass -= 1;
            return false;
        }
        let (zone, piece) = (addr / ZONE_SIZE, addr % ZONE_SIZE / PIECE);
        let bits = state.fetched.get(&zone).copied().unwrap_or(0);
        if bits >> piece & 1 == 1 {
            return true;
        }
        let n = (state.pieces / SHARE).clamp(1, PIECES_MOST);
        let n = 1 << n.ilog2();
        if state.left < n * PIECE {
            if !fits(zones, &state) {
                state.pass = PASS;
                return false;
            }
            state.left = LOOK;
        }
        let first = piece / n * n;
        let wanted = (((1u64 << n) - 1) << first) as u32 & !bits;
        let pieces = u64::from(wanted.count_ones());
        state.left -= pieces * PIECE;
        state.pieces += pieces;
        state.fetched.insert(zone, bits | wanted);
        drop(state);
        for i in (first..first + n).filter(|i| wanted >> i & 1 == 1) {
            zones.will_read(purpose, zone * ZONE_SIZE + i * PIECE, PIECE);
        }
        true
    }

    /// Fetches the neighbourhoods of these places, one after the other, until about `most` bytes
    /// were fetched. Returns the number of processed places, or `None` if the store does not fit
    /// into memory.
    pub fn fetch_many(
        &self,
        zones: &Zones,
        purpose: Purpose,
        addresses: impl Iterator<Item = u64>,
        most: u64,
    ) -> Option<usize> {
        let pieces = || self.0.lock().pieces;
        let before = pieces();
        let mut places = 0;
        for addr in addresses {
            let fetched = pieces().saturating_sub(before) * PIECE;
            if fetched >= most || !self.fetch(zones, purpose, addr) {
                break;
            }
            places += 1;
        }
        (places > 0).then_some(places)
    }
}

/// Returns whether the rest of the store fits into half of the host's memory.
fn fits(zones: &Zones, state: &ReadAroundState) -> bool {
    let Some(memory) = zones.host_memory() else { return false };
    let space = zones.space();
    let all = (space.zones_total - space.zones_free) * ZONE_SIZE;
    all.saturating_sub(state.pieces * PIECE) <= memory / 2
}

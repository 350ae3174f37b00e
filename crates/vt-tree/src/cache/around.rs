//! Reading around: when a read had to wait for the device, what lies beside it is fetched as well,
//! as long as the whole store fits into the memory that the host could use for it. A store just
//! opened is then in memory after each of its places was read once, in pieces that the device
//! likes, and not tuple by tuple.
//!
//! Nothing is fetched twice, so that what is fetched in vain is never more than the store; and
//! nothing at all where the store is larger than half of that memory: there, what is beside a tuple
//! would push out what was asked for. Cursors announce by themselves what they will read; of what
//! they come to, only the index is read around.
//!
//! Where a caller knows that it will not come to what lies beside a large value, the value is read
//! alone ([`read_alone`]).

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use env::sync::Mutex;
use zones::{Purpose, ZONE_SIZE, Zones};

/// What is fetched around a read: a piece of so much, aligned. A zone has 32 of these.
const PIECE: u64 = ZONE_SIZE / 32;
/// Or more of them, a power of two, as more was fetched: an eighth of that, up to so many. Each
/// read that waits costs the time of half a piece; who has come for a few tuples only shall not
/// fetch many.
const PIECES_MOST: u64 = 8;
const SHARE: u64 = 8;
/// After so many bytes it is asked again whether the store fits.
const LOOK: u64 = 64 << 20;
/// Reads that are let pass after it did not fit.
const PASS: u32 = 4096;

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`; around large values that it reads on this thread nothing else is fetched. The
/// index, which is what a later read comes to wherever it goes, is read as ever.
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

#[derive(Default)]
pub(crate) struct ReadAround(Mutex<ReadAroundState>);

#[derive(Default)]
struct ReadAroundState {
    /// By zone number a bit for each piece of it that was fetched.
    fetched: HashMap<u64, u32>,
    /// Pieces that were fetched.
    pieces: u64,
    /// Bytes that may be fetched before it is asked again.
    left: u64,
    pass: u32,
}

impl ReadAround {
    /// `true` when a read of `len` bytes took so long that the host cannot have had them in memory.
    pub fn waited(begun: Instant, len: u64) -> bool {
        begun.elapsed() > Duration::from_nanos(8_000 + len / 4)
    }

    /// A read at `addr` had to wait.
    pub fn fetch(&self, zones: &Zones, purpose: Purpose, addr: u64) {
        if purpose == Purpose::Pages && ALONE.get() {
            return;
        }
        let mut state = self.0.lock();
        if state.pass > 0 {
            state.pass -= 1;
            return;
        }
        let (zone, piece) = (addr / ZONE_SIZE, addr % ZONE_SIZE / PIECE);
        let bits = state.fetched.get(&zone).copied().unwrap_or(0);
        if bits >> piece & 1 == 1 {
            return;
        }
        let n = (state.pieces / SHARE).clamp(1, PIECES_MOST);
        let n = 1 << n.ilog2();
        if state.left < n * PIECE {
            if !fits(zones, &state) {
                state.pass = PASS;
                return;
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
    }
}

/// Whether what was not fetched so far fits into half of the host's memory.
fn fits(zones: &Zones, state: &ReadAroundState) -> bool {
    let Some(memory) = zones.host_memory() else { return false };
    let space = zones.space();
    let all = (space.zones_total - space.zones_free) * ZONE_SIZE;
    all.saturating_sub(state.pieces * PIECE) <= memory / 2
}

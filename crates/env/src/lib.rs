//! The lowest floor: what a program takes from its surroundings, so that every floor above can run
//! on the machine or on a simulated one that a seed reproduces. Time, randomness and the choice
//! between threads and steps taken inline stand behind one trait; locks, atomics and threads are
//! those of the machine, or points of a schedule that the seed decides.

mod random;
pub mod schedule;
pub mod sync;
pub mod thread;

pub use random::Random;

use random::split_mix;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The surroundings of a store.
pub trait Env: Send + Sync + 'static {
    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Time since the Unix epoch, as file times show it: of the kernel's coarse clock (a tick is
    /// some milliseconds), so that a file made here and written to at once has no other time in the
    /// kernel's eyes, which then has none to send.
    fn wall(&self) -> Duration;
    /// A random number; from a seed in the simulation.
    fn random(&self) -> u64;
    /// `true`: start no threads; the owner of the store calls its `step` functions, so that a seed
    /// reproduces every schedule.
    fn inline(&self) -> bool;
}

/// The machine we run on.
#[derive(Debug)]
pub struct Machine {
    start: Instant,
    state: AtomicU64,
}

impl Default for Machine {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Machine {
            start: Instant::now(),
            state: AtomicU64::new(wall.as_nanos() as u64 ^ u64::from(std::process::id())),
        }
    }
}

impl Env for Machine {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
    fn wall(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or(0),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        )
    }
    fn random(&self) -> u64 {
        split_mix(&self.state)
    }
    fn inline(&self) -> bool {
        false
    }
}

/// A fixed date (2026-01-01) keeps simulated file times plausible.
const SIMULATED_DATE: Duration = Duration::from_secs(1_767_225_600);

/// A world of its own: time moves only when told to, randomness comes from a seed, nothing runs by
/// itself.
#[derive(Debug)]
pub struct Simulated {
    nanos: AtomicU64,
    state: AtomicU64,
}

impl Simulated {
    pub fn new(seed: u64) -> Self {
        Simulated { nanos: AtomicU64::new(0), state: AtomicU64::new(seed) }
    }
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Env for Simulated {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
    fn wall(&self) -> Duration {
        SIMULATED_DATE + self.monotonic()
    }
    fn random(&self) -> u64 {
        split_mix(&self.state)
    }
    fn inline(&self) -> bool {
        true
    }
}

/// The world of a simulated run of [`schedule`]: virtual time, the seed's randomness, and threads
/// whose order the seed decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scheduled;

impl Env for Scheduled {
    fn monotonic(&self) -> Duration {
        schedule::now()
    }
    fn wall(&self) -> Duration {
        SIMULATED_DATE + schedule::now()
    }
    fn random(&self) -> u64 {
        schedule::random().expect("only threads of a simulated run use its environment")
    }
    fn inline(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_reproduces_the_same_world() {
        let (a, b) = (Simulated::new(7), Simulated::new(7));
        assert_eq!(
            (0..100).map(|_| a.random()).collect::<Vec<_>>(),
            (0..100).map(|_| b.random()).collect::<Vec<_>>()
        );
        a.advance(Duration::from_secs(3));
        assert_eq!(a.monotonic(), Duration::from_secs(3));
        assert_eq!(b.monotonic(), Duration::ZERO);
    }
}

//! The environment of a program in a form that can be simulated: time, randomness, threads, locks
//! and atomics. Code that takes them from this crate runs on the machine or, reproducibly from a
//! seed, in a simulation.
//!
//! - [`Env`] is a clock, a source of random numbers, and the choice between threads and steps that
//!   the caller runs inline. [`Machine`] uses the real machine, and [`Simulated`] simulates it.
//! - [`thread`] and [`sync`] have the interface of `std` and `parking_lot`. In builds with debug
//!   assertions, each operation is a point at which a simulated run of [`schedule`] may switch
//!   threads; the seed of the run decides.
//! - [`Instant`] is a moment, for deadlines, of the machine or of a simulated run.
//! - [`Random`] is a seeded generator for tests.
//!
//! ```
//! use std::sync::Arc;
//! use env::sync::Mutex;
//! use env::{schedule, thread};
//!
//! // Two threads under the schedule of seed 7, which is the same in every run.
//! let count = || {
//!     let sum = Arc::new(Mutex::new(0));
//!     let other = sum.clone();
//!     let adder = thread::spawn(move || *other.lock() += 1);
//!     *sum.lock() += 1;
//!     adder.join().unwrap();
//!     *sum.lock()
//! };
//! let (a, b) = (schedule::run(7, count)?, schedule::run(7, count)?);
//! assert_eq!((a.value, b.value), (2, 2));
//! assert_eq!(a.trace, b.trace);
//! # Ok::<(), schedule::Failure>(())
//! ```

#![warn(missing_docs)]

mod instant;
mod random;
pub mod schedule;
pub mod sync;
pub mod thread;

pub use instant::Instant;
pub use random::Random;

use random::split_mix;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment of a store.
pub trait Env: Send + Sync + 'static {
    /// Returns the time since some fixed point; never decreases.
    fn monotonic(&self) -> Duration;
    /// Returns the time since the Unix epoch, for file times. The time comes from the kernel's
    /// coarse clock (a tick is a few milliseconds). A file that is created and written at once then
    /// has the time that the kernel would set, and the kernel does not send another time.
    fn wall(&self) -> Duration;
    /// Returns the time since the Unix epoch to the microsecond, for deadlines that other machines
    /// compare with their own clocks.
    fn exact_wall(&self) -> Duration {
        self.wall()
    }
    /// Returns a random number; in a simulation it comes from a seed.
    fn random(&self) -> u64;
    /// Returns whether no threads may be started. In that case the owner of the store calls its
    /// `step` functions, so that a seed reproduces every schedule.
    fn inline(&self) -> bool;
}

/// The environment of the machine that the program runs on.
#[derive(Debug)]
pub struct Machine {
    start: std::time::Instant,
    state: AtomicU64,
}

impl Default for Machine {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Machine {
            start: std::time::Instant::now(),
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
    fn exact_wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
    fn random(&self) -> u64 {
        split_mix(&self.state)
    }
    fn inline(&self) -> bool {
        false
    }
}

/// A fixed date (2026-01-01), so that simulated file times are plausible.
const SIMULATED_DATE: Duration = Duration::from_secs(1_767_225_600);

/// A simulated environment without threads: time advances only on request, and randomness comes
/// from a seed.
#[derive(Debug)]
pub struct Simulated {
    nanos: AtomicU64,
    state: AtomicU64,
}

impl Simulated {
    /// Creates an environment with the random numbers of `seed`, at time 0.
    pub fn new(seed: u64) -> Self {
        Simulated { nanos: AtomicU64::new(0), state: AtomicU64::new(seed) }
    }
    /// Advances the clock.
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

/// The environment of a simulated run of [`schedule`]: virtual time, random numbers from the seed,
/// and threads whose order the seed decides.
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
    fn deadlines_go_by_the_clock_that_others_have() {
        let since_1970 =
            || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
        let machine = Machine::default();
        let (coarse, before) = (machine.wall(), since_1970());
        let exact = machine.exact_wall();
        assert!(coarse <= before && before <= exact && exact <= since_1970());
    }

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

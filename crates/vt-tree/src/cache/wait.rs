//! Whether a read had to wait for the device, by the time that it took: what the host has in memory
//! is copied much faster.

use std::time::{Duration, Instant};

/// `true` if a bare read of `len` bytes took so long that the host cannot have had them in memory.
pub(super) fn read_waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(8_000 + len / 4)
}

/// `true` if getting a value of `len` bytes since `begun` took so long that the host cannot have
/// had them in memory. The time of checking and unpacking it is in that, which the limit allows
/// for.
pub fn value_waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(25_000 + len / 4)
}

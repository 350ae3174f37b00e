//! Tells by the duration of a read whether it had to wait for the device: data in the host's memory
//! is copied much faster.

use std::time::{Duration, Instant};

/// Returns whether a bare read of `len` bytes took so long that the host cannot have had them in
/// memory.
pub(super) fn read_waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(8_000 + len / 4)
}

/// Returns whether getting a value of `len` bytes since `begun` took so long that the host cannot
/// have had them in memory. The limit allows for the time of checking and unpacking the value.
pub fn value_waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(25_000 + len / 4)
}

//! Determines from the duration of a read whether the read had to wait for the device. Data in the
//! memory of the host is copied much faster.

use std::time::{Duration, Instant};

/// Returns whether a plain read of `len` bytes took so long that the host cannot have had the bytes
/// in memory.
pub(super) fn read_waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(8_000 + len / 4)
}

/// Returns whether reading a value of `len` bytes since `begun` took so long that the host cannot
/// have had the value in memory. The limit includes the time for checking and unpacking the value.
pub fn value_waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(25_000 + len / 4)
}

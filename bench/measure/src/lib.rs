//! Programs that measure what the library costs, one for each question (`src/bin`). They share
//! numbers to make keys of, and the time that a thread has been running.

/// A number that looks random, another one for each `i`.
pub fn mix(i: u64) -> u64 {
    let x = (i ^ i >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let x = (x ^ x >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    x ^ x >> 33
}

/// Nanoseconds that this thread has been running.
pub fn ran() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")
        .expect("Linux tells how long a thread ran");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number of nanoseconds")
}

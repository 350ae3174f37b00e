//! The name of this machine, which tells others which machine has a store open.

/// Returns the name of this machine if it is known.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().chars().take(64).collect()
}

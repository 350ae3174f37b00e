//! The space of a store.

/// Free and used space at one moment. Zone 0 counts in `zones_total` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes to which the store may grow, or `None` if only the host limits it.
    pub capacity: Option<u64>,
    /// The length of the device, bytes.
    pub device_len: u64,
    /// The zones of the device.
    pub zones_total: u64,
    /// Free zones of the device, including the reserve and those given back to the host.
    pub zones_free: u64,
    /// Zones with at least one pin.
    pub zones_pinned: u64,
    /// Bytes alive: the sum over all zones of the bytes that pins count there, at most a zone each.
    pub live_bytes: u64,
    /// Free zones that user data must leave for flushes, merges and deletions.
    pub reserve: u32,
    /// Bytes that user data can still take: free zones and the growth that the host allows, less
    /// the reserve and `promised`.
    pub free_for_user: u64,
    /// Bytes of data not yet written for which space was promised.
    pub promised: u64,
}

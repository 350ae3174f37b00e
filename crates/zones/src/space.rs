//! How full a store is.

/// Zones and bytes at one moment. Zone 0 counts in `zones_total` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes the store may grow to; `None` is as far as the host lets it.
    pub capacity: Option<u64>,
    pub device_len: u64,
    pub zones_total: u64,
    /// Zones of the device that can be taken, the reserve and what was given back included.
    pub zones_free: u64,
    pub zones_pinned: u64,
    /// Bytes alive: the sum over zones of what pins name, at most a zone each.
    pub live_bytes: u64,
    /// Zones kept back for flushing, merging and deleting.
    pub reserve: u32,
    /// Bytes that user data can still take: free zones and what the device can grow by, less the
    /// reserve and what is promised.
    pub free_for_user: u64,
    /// Bytes of data that room was promised for.
    pub promised: u64,
}

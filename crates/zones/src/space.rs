//! Statistics of the space of a store.

/// The free and used space at one moment. Zone 0 is counted only in `zones_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The number of bytes to which the store may grow, or `None` if only the host limits it.
    pub capacity: Option<u64>,
    /// The length of the device, in bytes.
    pub device_len: u64,
    /// The number of zones of the device.
    pub zones_total: u64,
    /// The number of free zones of the device, including the reserve and the zones that were given
    /// back to the host.
    pub zones_free: u64,
    /// The number of zones with at least one pin.
    pub zones_pinned: u64,
    /// The number of bytes alive: the sum over all zones of the bytes that pins count there, which
    /// is at most the size of the zone for each zone.
    pub live_bytes: u64,
    /// The number of free zones that user data must leave for flushes, merges and deletions.
    pub reserve: u32,
    /// The number of bytes that user data can still take: free zones and the growth that the host
    /// allows, minus the reserve and `promised`.
    pub free_for_user: u64,
    /// The number of bytes not yet written for which space was promised.
    pub promised: u64,
}

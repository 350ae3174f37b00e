//! Descriptions of zones, for callers that list all zones.

use crate::Purpose;

/// The use of a zone at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Zone 0, with the superblock pair.
    Superblock,
    /// A stream appends to the zone.
    Open,
    /// Data in the zone is alive, or a writer uses the zone exclusively.
    Held,
    /// The zone can be taken.
    Free,
    /// The zone can be taken, but the host has its space until then.
    GivenBack,
}

/// A zone at one moment; see [`Zones::map`](crate::Zones::map).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// The use of the zone.
    pub state: ZoneState,
    /// The number of bytes alive in the zone, as pins count them, limited to the size of a zone.
    /// Pins may count the same bytes more than once.
    pub live: u64,
    /// The purpose for which the zone was taken, or `None` if the zone is free, or was taken before
    /// the store was opened.
    pub purpose: Option<Purpose>,
    /// The number of zones that were taken after this zone, which is 0 for the newest one, or
    /// `None` if the zone is free, or was taken before the store was opened.
    pub age: Option<u64>,
}

//! Descriptions of zones for callers that list all of them.

use crate::Purpose;

/// The use of a zone at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Zone 0, with the superblock pair.
    Superblock,
    /// A stream appends to it.
    Open,
    /// Data in it is alive, or a writer has it to itself.
    Held,
    /// It can be taken.
    Free,
    /// It can be taken; until then the host has its space.
    GivenBack,
}

/// A zone at one moment; see [`Zones::map`](crate::Zones::map).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// The use of the zone.
    pub state: ZoneState,
    /// Bytes alive in it, at most a zone: the bytes that pins count there, some perhaps more than
    /// once.
    pub live: u64,
    /// The purpose that it was taken for, or `None` if it is free, or was taken before the store
    /// was opened.
    pub purpose: Option<Purpose>,
    /// The number of zones taken after it, 0 for the newest, or `None` if it is free, or was taken
    /// before the store was opened.
    pub age: Option<u64>,
}

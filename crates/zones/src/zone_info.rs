//! What a zone looks like to those who look at all of them.

use crate::Purpose;

/// What a zone is used for at one moment.
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
    /// It can be taken, and its space is the host's until then.
    GivenBack,
}

/// A zone at one moment; see [`Zones::map`](crate::Zones::map).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// What it is used for.
    pub state: ZoneState,
    /// Bytes alive in it, at most a zone: what pins count there, some of it perhaps more than once.
    pub live: u64,
    /// Whose data it was taken for. `None`: it is free, or that was before the store was opened.
    pub purpose: Option<Purpose>,
    /// How many zones were taken after it: 0 is the newest. `None`: it is free, or was taken before
    /// the store was opened.
    pub age: Option<u64>,
}

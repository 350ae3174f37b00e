//! A log-structured device: one file or block device cut into zones of 8 MiB, each written
//! append-only and freed whole.
//!
//! [`Zones`] is the store. Whoever writes opens an [`ExtentWriter`] on one of the streams
//! ([`Purpose`]) and places objects; it ends as a [`ZonePin`], which keeps the zones it names from
//! being reused until it is dropped. Reads go by address. The superblock pair in zone 0 carries an
//! opaque root for the floor above. Below is a [`Device`]: a file, memory, or one of the devices
//! that break on purpose ([`CrashDevice`], [`FaultDevice`]).
//!
//! What must hold, everywhere: no sector of 4096 bytes that holds durable bytes is written again
//! before its zone was freed; nothing read from the device can cause a panic; a failed sync is
//! final.

mod allocator;
mod checksum;
mod device;
mod error;
mod extent_writer;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod pin;
mod space;
mod stats;
mod store;
mod stream;
mod superblock;
pub mod varint;
mod zone_use;

pub use checksum::{Checksum, crc32c};
pub use device::{
    CountDevice, CrashDevice, Device, Fault, FaultDevice, FaultKind, FileDevice, MemoryDevice,
    Operation, Reading,
};
pub use error::{Error, Result};
pub use extent_writer::ExtentWriter;
pub use pin::ZonePin;
pub use space::Space;
pub use stats::{IoStats, PurposeStats};
pub use store::{FormatOptions, Zones};
pub use superblock::{FORMAT_VERSION, MAX_ROOT, Superblock};
pub use zone_use::ZoneUse;

use std::fmt;

/// Bytes in a zone.
pub const ZONE_SIZE: u64 = 8 << 20;

/// No durable byte ever shares a sector of this size with a later write.
pub const SECTOR: u64 = 4096;

/// Zone `z` is the bytes `z * ZONE_SIZE .. (z + 1) * ZONE_SIZE` of the device. Zone 0 holds the
/// superblock pair only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneId(pub u32);

impl ZoneId {
    /// A zone no device has: what an impossible address belongs to, so that pinning it is refused.
    pub const NOWHERE: ZoneId = ZoneId(u32::MAX);

    /// The zone an address lies in; [`ZoneId::NOWHERE`] for addresses past every possible device.
    pub fn of(addr: u64) -> ZoneId {
        u32::try_from(addr / ZONE_SIZE).map_or(ZoneId::NOWHERE, ZoneId)
    }

    /// The address of its first byte.
    pub fn start(self) -> u64 {
        u64::from(self.0) * ZONE_SIZE
    }

    /// The address after its last byte.
    pub fn end(self) -> u64 {
        self.start() + ZONE_SIZE
    }
}

impl fmt::Display for ZoneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {}", self.0)
    }
}

/// What bytes are for. Every stream fills zones of its own, so that what dies together lies
/// together; statistics and injected faults go by it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    Superblock,
    Journal,
    Manifest,
    /// Tuple blocks.
    Tuples,
    /// Index nodes and filters.
    Index,
    /// Large values, raw and aligned.
    Pages,
}

impl Purpose {
    pub const ALL: [Purpose; 6] = [
        Purpose::Superblock,
        Purpose::Journal,
        Purpose::Manifest,
        Purpose::Tuples,
        Purpose::Index,
        Purpose::Pages,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Superblock => "superblock",
            Purpose::Journal => "journal",
            Purpose::Manifest => "manifest",
            Purpose::Tuples => "tuples",
            Purpose::Index => "index",
            Purpose::Pages => "pages",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How long what is written is expected to live. Each lifetime of a purpose fills zones of its own:
/// what a flush writes is merged away soon, what is merged into the bottom stays, and a zone that
/// had both would stay for the sake of a few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Flushes, and all that is too little for zones of its own.
    #[default]
    Young,
    /// Merges between levels.
    Middle,
    /// Merges into the bottom.
    Old,
}

impl Lifetime {
    pub const ALL: [Lifetime; 3] = [Lifetime::Young, Lifetime::Middle, Lifetime::Old];
}

/// How deep an allocation may reach into the reserve, the free zones that keep a full store able to
/// flush, merge and delete. Later variants may take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// User data: fails with [`Error::NoSpace`] rather than dip into the reserve, or take what was
    /// promised ([`Zones::promise`]).
    User,
    /// User data that room was promised for: where the journal may go. What journal, flushes and
    /// merges have taken of its room since, it takes of theirs.
    Promised,
    /// The journal, deletions: may take half of the reserve, but leaves 4 zones of a large one.
    Log,
    /// Merges, which turn deletions into space: may take four zones of the reserve, three quarters
    /// of a small one.
    Merge,
    /// Flushes, without which merges do not get to see deletions: leave one zone.
    Flush,
    /// What a store needs to be opened at all, and gives back at once: may take the last zone.
    Last,
}

impl Priority {
    /// Free zones that must be left over, of a reserve of so many, when so many are promised.
    fn floor(self, reserve: u32, promised: u32) -> u32 {
        match self {
            Priority::User => reserve.saturating_add(promised),
            Priority::Promised | Priority::Log => (reserve / 2).min(4),
            Priority::Merge => reserve.saturating_sub(4).max(reserve / 4).min(4),
            Priority::Flush => (reserve / 4).min(1),
            Priority::Last => 0,
        }
    }
}

/// The next multiple of `align` (a power of two) at or after `n`; saturates at the last one.
pub(crate) fn round_up(n: u64, align: u64) -> u64 {
    match n.checked_add(align - 1) {
        Some(sum) => sum & !(align - 1),
        None => !(align - 1),
    }
}

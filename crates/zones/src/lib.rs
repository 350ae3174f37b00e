//! A log-structured device: one file or block device divided into zones of 8 MiB, each written
//! append-only and freed as a whole.
//!
//! [`Zones`] is the store. A writer opens an [`ExtentWriter`] on one of the streams ([`Purpose`])
//! and places objects; [`ExtentWriter::finish`] returns a [`ZonePin`], which prevents the zones of
//! these objects from being reused until the pin is dropped. Objects are read by address. The
//! superblock pair in zone 0 has an opaque root for the user of the crate. The store lies on a
//! [`Device`]: a file, memory, or a device that fails on purpose ([`CrashDevice`],
//! [`FaultDevice`]).
//!
//! Invariants: no sector of 4096 bytes with durable bytes is written again before its zone is
//! freed; nothing read from the device can cause a panic; a failed sync is final.
//!
//! ```
//! use std::sync::Arc;
//! use zones::{FormatOptions, MemoryDevice, Priority, Purpose, Zones};
//!
//! # fn main() -> Result<(), zones::Error> {
//! let device = Arc::new(MemoryDevice::new());
//! let zones = Zones::format(device.clone(), FormatOptions::default())?;
//! let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
//! let addr = writer.place(8, 5, |_, bytes| bytes.copy_from_slice(b"hello"))?;
//! let pin = writer.finish()?;
//! // Makes the object durable, then the root that refers to it.
//! zones.set_root(&addr.to_le_bytes())?;
//! let uses = pin.uses().clone();
//! drop((pin, zones));
//!
//! let zones = Zones::open(device)?;
//! let root = zones.superblock().root;
//! // What the root refers to is pinned before zones may be allocated.
//! let _pin = zones.pin(&uses)?;
//! zones.start();
//! let mut bytes = [0; 5];
//! zones.read(Purpose::Pages, u64::from_le_bytes(root.try_into().unwrap()), &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod allocator;
mod checksum;
mod device;
mod error;
mod extent_writer;
mod job;
pub mod loop_devices;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod pin;
pub mod remote;
mod space;
mod stats;
mod store;
mod stream;
mod superblock;
pub mod varint;
mod zone_info;
mod zone_use;

pub use checksum::{Checksum, crc32c};
pub use device::{
    CountDevice, CrashDevice, Device, Fault, FaultDevice, FaultKind, FileDevice, MemoryDevice,
    Operation, Reading, SlowSyncDevice, Watch, WatchedDevice,
};
pub use error::{Error, Result};
pub use extent_writer::ExtentWriter;
pub use job::{AtJob, Job};
pub use pin::ZonePin;
pub use space::Space;
pub use stats::{IoStats, PurposeStats};
pub use store::{FormatOptions, Rehearsal, Zones};
pub use superblock::{FORMAT_VERSION, MAX_ROOT, Profile, REMOTE_VERSION, Superblock};
pub use zone_info::{ZoneInfo, ZoneState};
pub use zone_use::ZoneUse;

use std::fmt;

/// The size of a zone, in bytes.
pub const ZONE_SIZE: u64 = 8 << 20;

/// The size of a sector, in bytes. A durable byte never shares a sector with a later write.
pub const SECTOR: u64 = 4096;

/// The number of a zone. Zone `z` has the bytes `z * ZONE_SIZE .. (z + 1) * ZONE_SIZE` of the
/// device. Zone 0 holds only the superblock pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneId(pub u32);

impl ZoneId {
    /// The zone of addresses beyond every device. No device has this zone, so pinning it fails.
    pub const NOWHERE: ZoneId = ZoneId(u32::MAX);

    /// Returns the zone that contains an address, or [`ZoneId::NOWHERE`] for addresses beyond every
    /// possible device.
    pub fn of(addr: u64) -> ZoneId {
        u32::try_from(addr / ZONE_SIZE).map_or(ZoneId::NOWHERE, ZoneId)
    }

    /// Returns the address of the first byte of the zone.
    pub fn start(self) -> u64 {
        u64::from(self.0) * ZONE_SIZE
    }

    /// Returns the address after the last byte of the zone.
    pub fn end(self) -> u64 {
        self.start() + ZONE_SIZE
    }
}

impl fmt::Display for ZoneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {}", self.0)
    }
}

/// The purpose of bytes on the device. Each purpose has a stream for each lifetime, which fills
/// zones of its own, so that data that dies together lies together. Statistics and injected faults
/// distinguish purposes, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// The superblock pair.
    Superblock,
    /// The log of commits.
    Journal,
    /// The log of edits to the structure of the store.
    Manifest,
    /// Tuple blocks.
    Tuples,
    /// Index nodes and filters.
    Index,
    /// Large values, which are raw and aligned.
    Pages,
}

impl Purpose {
    /// All variants, in order.
    pub const ALL: [Purpose; 6] = [
        Purpose::Superblock,
        Purpose::Journal,
        Purpose::Manifest,
        Purpose::Tuples,
        Purpose::Index,
        Purpose::Pages,
    ];

    /// Returns the name of the purpose in metrics and messages.
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

/// The expected lifetime of data. Each lifetime of a purpose fills zones of its own: the output of
/// a flush is soon merged away, and the output of a merge into the bottom level stays. If a zone
/// had both, a few remaining bytes would prevent the zone from being freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Data of flushes, and data that is too little to fill zones of its own.
    #[default]
    Young,
    /// Data of merges between levels.
    Middle,
    /// Data of merges into the bottom level.
    Old,
}

impl Lifetime {
    /// All variants, in order.
    pub const ALL: [Lifetime; 3] = [Lifetime::Young, Lifetime::Middle, Lifetime::Old];
}

/// The priority of an allocation, which decides how much of the reserve it may use. The reserve is
/// the free zones that allow a full store to flush, merge and delete. Later variants may take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// User data. The allocation fails with [`Error::NoSpace`] rather than take zones of the
    /// reserve or space that was promised ([`Zones::promise`]).
    User,
    /// User data for which space was promised. The allocation may take as much of the reserve as
    /// the journal may, because the journal, flushes and merges may have used the promised space.
    Promised,
    /// The journal and deletions. They leave half of the reserve, but at most 4 zones.
    Log,
    /// Merges, which turn deletions into space. They leave all but four zones of the reserve, but
    /// at least a quarter of it and at most 4 zones.
    Merge,
    /// Flushes, without which deletions do not reach a merge. They leave one zone.
    Flush,
    /// Zones that are needed to open a store and are given back at once. Such an allocation may
    /// take the last zone.
    Last,
}

impl Priority {
    /// Returns the number of free zones that an allocation must leave, for a number of zones in the
    /// reserve and a number of promised zones.
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

/// Returns the next multiple of `align` (a power of two) at or after `n`, or the last multiple if
/// that would overflow.
pub(crate) fn round_up(n: u64, align: u64) -> u64 {
    match n.checked_add(align - 1) {
        Some(sum) => sum & !(align - 1),
        None => !(align - 1),
    }
}

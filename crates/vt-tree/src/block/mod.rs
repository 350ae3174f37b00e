//! Tuple blocks: sorted items, prefix-compressed, with restart points.
//!
//! The payload consists of the items, the offset (u32) of each restart point, and the number of
//! restart points (u32; its highest bit says that there are extent runs). An item consists of:
//! shared key bytes (varint, 0 at a restart point) · further key bytes (varint) · kind and flags
//! (u8) · the further key bytes · sequence number (varint, when flagged; absent means 0, "old") ·
//! body. A body is one of: inline value (varint length, bytes; with flag 16 an update, see
//! `update`, instead of a value); extent (varint address, varint length, crc u32); an extent that
//! follows the previous one (crc u32; the extent has the same length and lies directly after the
//! previous one); a compressed extent (varint address, varint length of the value, u8 codec, varint
//! length on the device, crc u32), or a compressed extent that follows the previous one (varint
//! length on the device, crc u32); nothing (delete); the end of a deleted range (varint length,
//! bytes); an extent run (see `extent_run`), which stands alone between two restart points.
//!
//! Readers see *restart intervals*: the items between two restart points, or [`PART`] items of an
//! extent run.

mod builder;
mod counter;
mod decoder;
mod extent_run;
mod reader;
pub(crate) mod restart_interval;
pub(crate) mod sparse_index;
#[cfg(test)]
mod tests;

pub use builder::BlockBuilder;
pub use reader::Block;

/// The largest number of items between two restart points.
const INTERVAL: usize = 16;
/// The number of bytes at which a restart interval with `INTERVAL_LEAST` items ends early. A search
/// reads half of an interval, and a get by a sparse index reads all of it. The additional restart
/// points cost 1.2% of space at 80 bytes a tuple.
const INTERVAL_BYTES: usize = 512;
const INTERVAL_LEAST: usize = 4;
/// The largest number of items of an extent run that are decoded at once.
const PART: usize = 64;

/// The largest number of bytes that the keys of an extent run or an index node may take if each key
/// is counted with the prefix that it shares with the previous key. A writer stays below this
/// number, because a frame is no longer than a zone and a node is closed at four entries. A larger
/// number is damage, and must not determine the size of an allocation.
pub(crate) const KEYS_MOST: u64 = 8 * zones::ZONE_SIZE;

const KIND: u8 = 0x07;
const HAS_SEQ: u8 = 0x08;
/// The flag of an `INLINE` item whose bytes are an update rather than a value.
const UPDATE: u8 = 0x10;
/// The flag of an extent run in which the sequence number of each item is one more than that of the
/// previous item.
const ASCENDS: u8 = 0x10;
/// The flag of an extent run in which some values are compressed.
const HAS_PACKED: u8 = 0x20;
const INLINE: u8 = 0;
const EXTENT: u8 = 1;
const FOLLOWS: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const EXTENT_RUN: u8 = 5;
const PACKED: u8 = 6;
const PACKED_FOLLOWS: u8 = 7;

/// The flag in the number of restart points that says that the block has extent runs.
const HAS_EXTENT_RUNS: u32 = 1 << 31;

//! Tuple blocks: sorted items, prefix-compressed, with restart points.
//!
//! Payload: the items; then the offset (u32) of each restart point; then their number (u32; its
//! highest bit says that there are extent runs). An item: shared key bytes (varint, 0 at a restart
//! point) · further key bytes (varint) · kind and flags (u8) · the further key bytes · sequence
//! number (varint, when flagged; absent means 0, "old") · body. A body is: inline value (varint
//! length, bytes; with flag 16 an update, see `update`, instead of a value); extent (varint
//! address, varint length, crc u32); an extent that follows the previous one (crc u32: it has the
//! same length and lies directly after it); a compressed extent (varint address, varint length of
//! the value, u8 codec, varint length on the device, crc u32), or one that follows (varint length
//! on the device, crc u32); nothing (delete); the end of a deleted range (varint length, bytes); an
//! extent run (see `extent_run`), which stands alone between two restart points.
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

/// The most items between two restart points.
const INTERVAL: usize = 16;
/// A restart interval that has `INTERVAL_LEAST` items ends early at this many bytes: a search reads
/// half of an interval, and a get by a sparse index all of it. The additional restart points cost
/// 1.2% of space at 80 bytes a tuple.
const INTERVAL_BYTES: usize = 512;
const INTERVAL_LEAST: usize = 4;
/// The most items of an extent run that are decoded at once.
const PART: usize = 64;

/// The most bytes that the keys of an extent run or an index node may take, each with the prefix
/// that it shares with the previous key. A writer stays below this, since a frame is no longer than
/// a zone and a node is closed at four entries. A larger number is damage, and must not size an
/// allocation.
pub(crate) const KEYS_MOST: u64 = 8 * zones::ZONE_SIZE;

const KIND: u8 = 0x07;
const HAS_SEQ: u8 = 0x08;
/// Flag of `INLINE`: the bytes are an update rather than a value.
const UPDATE: u8 = 0x10;
/// Flag of an extent run: each item's sequence number is one more than that of the item before.
const ASCENDS: u8 = 0x10;
/// Flag of an extent run: some of its values are compressed.
const HAS_PACKED: u8 = 0x20;
const INLINE: u8 = 0;
const EXTENT: u8 = 1;
const FOLLOWS: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const EXTENT_RUN: u8 = 5;
const PACKED: u8 = 6;
const PACKED_FOLLOWS: u8 = 7;

/// Flag in the number of restart points.
const HAS_EXTENT_RUNS: u32 = 1 << 31;

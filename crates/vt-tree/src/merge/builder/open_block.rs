//! The tuple block that is being filled, with the sums for its index entry.

use bytes::Bytes;
use zones::ZoneUse;

use super::gap::is_gap;
use super::{BLOCK_SIZE, RunBuilder, encoded, place_frame};
use crate::Result;
use crate::block::BlockBuilder;
use crate::filter::hash;
use crate::index::entry::Entry;
use crate::index::frame::FrameKind;
use crate::item::{BodyRef, Seq};
use crate::value::{ExtentRef, ValueRef, contiguous};

/// The open tuple block, and the sums over its items.
#[derive(Default)]
pub(super) struct OpenBlock {
    pub builder: BlockBuilder,
    low: Bytes,
    high: Vec<u8>,
    items: u64,
    max_seq: Seq,
    tombstones: bool,
    range_tombstones: bool,
    value_bytes: u64,
    value_spans: u64,
    last_extent: Option<ExtentRef>,
    zones: ZoneUse,
    /// True if the previous block was closed because it was full, so that this one continues it.
    after_full: bool,
    /// The number of key hashes that were collected before this block.
    hashes_before: usize,
}

impl OpenBlock {
    /// Returns whether the gap before `key` is much wider than the key range of the block, as
    /// between two files or two ranges that are appended to. A block across the gap would overlap
    /// every later append to the first range; a block that ends at the gap is stitched by every
    /// merge.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        let least = if self.after_full { BLOCK_SIZE / 16 } else { BLOCK_SIZE / 4 };
        self.builder.size() >= least && self.items > 1 && is_gap(&self.low, &self.high, key)
    }
}

impl RunBuilder {
    pub(super) fn add(&mut self, key: &[u8], seq: Seq, body: BodyRef<'_>) -> Result<()> {
        if self.block.ends_before(key) {
            self.close_block()?;
            self.after_full = false;
        }
        let b = &mut self.block;
        if b.builder.is_empty() {
            b.low = Bytes::copy_from_slice(key);
            b.after_full = self.after_full;
            b.hashes_before = self.hashes.len();
        }
        b.builder.add(key, seq, body);
        b.items += 1;
        b.max_seq = b.max_seq.max(seq);
        b.high.clear();
        if let BodyRef::DeleteRange { end } = body {
            b.high.extend_from_slice(end);
            b.range_tombstones = true;
        } else {
            b.high.extend_from_slice(key);
            b.high.push(0);
            self.hashes.push(hash(key));
        }
        match body {
            BodyRef::Put(ValueRef::Extent(e)) => {
                b.value_bytes += u64::from(e.stored);
                b.value_spans +=
                    u64::from(!b.last_extent.is_some_and(|last| contiguous(&last, &e)));
                e.add_room(b.last_extent.as_ref(), &mut b.zones);
                b.last_extent = Some(e);
            }
            BodyRef::Delete => b.tombstones = true,
            _ => {}
        }
        if b.builder.size() >= BLOCK_SIZE {
            self.after_full = true;
            return self.close_block();
        }
        Ok(())
    }

    pub(super) fn close_block(&mut self) -> Result<()> {
        if self.block.builder.is_empty() {
            return Ok(());
        }
        let mut b = std::mem::take(&mut self.block);
        let (payload, extent_runs) = b.builder.finish();
        let unfiltered = extent_runs || self.false_positives == 0;
        if unfiltered {
            self.hashes.truncate(b.hashes_before);
        }
        // Blocks of checksums are not compressible.
        let packed = if extent_runs { None } else { self.packer.pack(self.compression, payload) };
        let compressed = packed.is_some();
        let (codec, stored) = packed.unwrap_or((0, payload));
        let at = place_frame(&mut self.tuples, FrameKind::Tuples, 0, codec, stored)?;
        // Reuse the memory for the next block.
        b.builder.clear();
        self.block.builder = b.builder;
        self.stats.blocks_written += u64::from(at.len);
        b.zones.add_extent(at.addr, u64::from(at.len));
        self.push_entry(
            0,
            Entry {
                low: b.low,
                high: Bytes::from(b.high),
                at,
                filter: None,
                tombstones: b.tombstones,
                range_tombstones: b.range_tombstones,
                unfiltered,
                compressed,
                items: b.items,
                max_seq: b.max_seq,
                block_bytes: u64::from(at.len),
                block_spans: 1,
                value_bytes: b.value_bytes,
                value_spans: b.value_spans,
                zones: encoded(&b.zones),
            },
        )
    }
}

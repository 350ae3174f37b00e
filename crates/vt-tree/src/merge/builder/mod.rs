//! Builds a run in key order from items, which are written to new blocks, and from index entries of
//! blocks or whole subtrees, which stay where they are. Only the index above these is new.

mod gap;
mod large_values;
mod leaf_filter;
mod open_block;
mod stitches;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use zones::{ExtentWriter, Purpose, ZonePin, ZoneUse};

use self::leaf_filter::BorrowedFilter;
use self::open_block::OpenBlock;
use crate::Result;
use crate::cache::BlockCache;
use crate::index::entry::{Entry, MAX_SUM};
use crate::index::frame::{FRAME_HEADER, FrameKind, FramePointer, seal};
use crate::index::node::NodeBuilder;
use crate::item::{Body, BodyRef, Item, ItemRef, Lookup};
use crate::merge::options::MergeOptions;
use crate::merge::placement::Placement;
use crate::merge::relocation_window::RelocationWindow;
use crate::run::Run;
use crate::value::{ChooseCodec, Compression, Packer, Value, ValueRef};

/// A tuple block is closed when its payload reaches this size, bytes.
pub(crate) const BLOCK_SIZE: usize = 8 << 10;
/// An index node is closed when its entries (not counting zone lists) reach this size, bytes.
const NODE_SIZE: usize = 8 << 10;
/// A leaf index node is closed at this many items, so that its filter can be read quickly.
const LEAF_ITEMS: u64 = 16 << 10;

/// Statistics of a merge, in bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Blocks and values that stayed where they were.
    pub stitched: u64,
    /// Tuple blocks written.
    pub blocks_written: u64,
    /// Large values written, either for the first time or as copies.
    pub values_written: u64,
    /// Index nodes and filters written.
    pub index_written: u64,
    /// Tuple blocks read.
    pub blocks_read: u64,
    /// Large values read in order to move them.
    pub values_read: u64,
    /// Index entries and subtrees stitched (a count).
    pub stitches: u64,
    /// Bytes that range tombstones have hidden, which were dropped without being read.
    pub pruned: u64,
}

impl MergeStats {
    /// Returns the bytes written: tuple blocks, large values and index.
    pub fn written(&self) -> u64 {
        self.blocks_written + self.values_written + self.index_written
    }
}

pub(crate) struct RunBuilder {
    cache: Arc<BlockCache>,
    placement: Placement,
    separate_at: u32,
    /// The rate of [`MergeOptions::false_positives`].
    false_positives: u16,
    compression: Compression,
    compress_values: Compression,
    /// The codec chooser of [`MergeOptions::choice`].
    choice: Option<Arc<dyn ChooseCodec>>,
    packer: Packer,
    tuples: ExtentWriter,
    index: ExtentWriter,
    pages: ExtentWriter,
    block: OpenBlock,
    /// Items held back until the window has decided which of their large values move.
    window: RelocationWindow,
    /// The open nodes: `open[l]` collects entries of level `l`. Level 0 has blocks, level 1 leaf
    /// index nodes.
    open: Vec<NodeBuilder>,
    /// The hashes of the keys written to the open leaf.
    hashes: Vec<u64>,
    borrowed: Vec<BorrowedFilter>,
    /// True if the last block was closed because it was full.
    after_full: bool,
    pub stats: MergeStats,
}

impl RunBuilder {
    pub fn new(cache: &Arc<BlockCache>, options: &MergeOptions) -> Self {
        let (zones, priority, lifetime) = (cache.zones(), options.priority, options.lifetime);
        let mut pages = zones.extent_writer_for(Purpose::Pages, lifetime, priority);
        if options.write_behind {
            pages.write_behind();
        }
        RunBuilder {
            placement: options.placement.clone(),
            separate_at: options.separate_at.max(1),
            false_positives: options.false_positives,
            compression: options.compression,
            compress_values: options.compress_values,
            choice: options.choice.clone(),
            packer: Packer::default(),
            tuples: zones.extent_writer_for(Purpose::Tuples, lifetime, priority),
            index: zones.extent_writer_for(Purpose::Index, lifetime, priority),
            pages,
            cache: cache.clone(),
            block: OpenBlock::default(),
            window: RelocationWindow::default(),
            open: vec![NodeBuilder::default()],
            hashes: Vec::new(),
            borrowed: Vec::new(),
            after_full: false,
            stats: MergeStats::default(),
        }
    }

    /// Appends one item. A large value is written if it arrives as bytes; otherwise the placement
    /// decides whether it stays or moves.
    pub fn push_item(&mut self, item: Item) -> Result<()> {
        self.push(item.borrow())
    }

    /// Appends a borrowed item. The item is copied only if it must be held back in the relocation
    /// window.
    #[inline]
    pub fn push(&mut self, item: ItemRef<'_>) -> Result<()> {
        match item.body {
            BodyRef::Put(ValueRef::Inline(v, _)) if v.len() >= self.separate_at as usize => {
                self.push_large(item, v, Compression::None)
            }
            BodyRef::Put(ValueRef::Extent(extent)) if self.placement.leaves_values() => {
                self.stats.stitched += u64::from(extent.stored);
                let extent = self.placement.place_of(extent);
                self.add(item.key, item.seq, BodyRef::Put(ValueRef::Extent(extent)))
            }
            // The value that the update applies to is known. Apply the update, since a run cannot
            // store both.
            BodyRef::Update { base: Some(e), .. } => {
                let value = self.cache.resolve(Lookup::of(item.seq, item.body.to_body())?)?;
                self.stats.values_read += u64::from(e.stored);
                match value {
                    Some(Value::Inline(v)) if v.len() >= self.separate_at as usize => {
                        self.push_large(item, &v, e.codec)
                    }
                    value => {
                        let body = value.map_or(Body::Delete, Body::Put);
                        let key = Bytes::copy_from_slice(item.key);
                        self.push_item(Item { key, seq: item.seq, body })
                    }
                }
            }
            // Items after an undecided value are held back as well, within bounds, to keep the
            // order.
            BodyRef::Put(ValueRef::Extent(_)) => self.wait(item.to_item(), false),
            _ if !self.window.is_empty() => self.wait(item.to_item(), false),
            _ => self.add(item.key, item.seq, item.body),
        }
    }

    fn push_entry(&mut self, level: usize, entry: Entry) -> Result<()> {
        if self.open.len() <= level {
            self.open.resize_with(level + 1, NodeBuilder::default);
        }
        self.open[level].push(entry);
        let open = &self.open[level];
        // Entries with long keys or many zones can exceed the size of a node. A node has at least
        // four entries, so that the tree converges to one root.
        let full = (open.size >= NODE_SIZE && open.entries.len() >= 4)
            || (level == 0 && open.filtered >= LEAF_ITEMS);
        if full { self.close_node(level) } else { Ok(()) }
    }

    /// Writes the open node of `level` entries, and adds an entry for it to the level above.
    fn close_node(&mut self, level: usize) -> Result<()> {
        let node = std::mem::take(&mut self.open[level]);
        let (Some(first), Some(last)) = (node.entries.first(), node.entries.last()) else {
            return Ok(());
        };
        let filter = if level == 0 { self.close_filter(&node)? } else { None };
        let at =
            place_frame(&mut self.index, FrameKind::Node, level as u16 + 1, 0, &node.payload())?;
        self.stats.index_written += u64::from(at.len);
        let mut entry = Entry {
            low: first.low.clone(),
            high: last.high.clone(),
            at,
            filter,
            tombstones: false,
            range_tombstones: false,
            unfiltered: false,
            compressed: false,
            items: 0,
            max_seq: 0,
            block_bytes: 0,
            block_spans: 0,
            value_bytes: 0,
            value_spans: 0,
            zones: Bytes::new(),
        };
        let mut zones = ZoneUse::new();
        let mut block_end = None;
        // Bound the total: in a damaged run only each single sum is bounded, and their total may
        // overflow.
        let sum = |a: u64, b: u64| (a + b).min(MAX_SUM);
        for e in &node.entries {
            entry.tombstones |= e.tombstones;
            entry.range_tombstones |= e.range_tombstones;
            entry.unfiltered |= e.unfiltered;
            entry.items = sum(entry.items, e.items);
            entry.max_seq = entry.max_seq.max(e.max_seq);
            entry.block_bytes = sum(entry.block_bytes, e.block_bytes);
            let joined = level == 0 && block_end.is_some_and(|end| follows_block(end, e));
            entry.block_spans = sum(entry.block_spans, if joined { 0 } else { e.block_spans });
            entry.value_bytes = sum(entry.value_bytes, e.value_bytes);
            entry.value_spans = sum(entry.value_spans, e.value_spans);
            zones.merge(&e.zone_use()?);
            block_end = Some(e.at.end());
        }
        for p in [Some(at), filter].into_iter().flatten() {
            zones.add_extent(p.addr, u64::from(p.len));
        }
        entry.zones = encoded(&zones);
        self.push_entry(level + 1, entry)
    }

    /// Returns whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.block.builder.is_empty()
            && self.window.is_empty()
            && self.open.iter().all(|n| n.entries.is_empty())
    }

    /// Returns the bytes written so far.
    pub fn written(&self) -> u64 {
        self.stats.written()
    }

    /// Writes all open blocks and nodes, and returns the run, which is not synced. Returns `None`
    /// if nothing was appended.
    pub fn finish(mut self) -> Result<(Option<Arc<Run>>, MergeStats)> {
        self.end_window()?;
        self.close_block()?;
        let mut level = 0;
        let root = loop {
            let Some(node) = self.open.get(level) else { break None };
            let top = self.open[level + 1..].iter().all(|n| n.entries.is_empty());
            if top && level > 0 && node.entries.len() == 1 {
                break node.entries.first().cloned().map(|e| (e, level as u16));
            }
            self.close_node(level)?;
            level += 1;
        };
        let mut writers = ZonePin::default();
        for writer in [self.tuples, self.index, self.pages] {
            writers.merge(writer.finish()?);
        }
        let run = match root {
            Some((entry, level)) => Some(Run::open(&self.cache, entry, level)?),
            None => None,
        };
        // From here on the run itself pins its zones. Only now may the writers release theirs.
        drop(writers);
        Ok((run, self.stats))
    }
}

fn encoded(zones: &ZoneUse) -> Bytes {
    let mut out = Vec::new();
    zones.encode(&mut out);
    Bytes::from(out)
}

/// Returns whether the block of `entry` is directly after a block that ends at `end`.
pub(crate) fn follows_block(end: u64, entry: &Entry) -> bool {
    entry.at.addr >= end && entry.at.addr - end < zones::SECTOR
}

fn place_frame(
    writer: &mut ExtentWriter,
    kind: FrameKind,
    level: u16,
    codec: u8,
    payload: &[u8],
) -> Result<FramePointer> {
    let len = FRAME_HEADER + payload.len();
    let mut crc = 0;
    let addr = writer.place(8, len, |addr, buf| {
        buf[FRAME_HEADER..].copy_from_slice(payload);
        crc = seal(buf, kind, level, codec, addr);
    })?;
    Ok(FramePointer { addr, len: len as u32, crc })
}

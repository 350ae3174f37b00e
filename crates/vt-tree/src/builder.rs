//! Building a run from the left to the right out of two kinds of pieces: items, which go to the fill, and index entries of
//! blocks or whole subtrees that stay where they are. Only the index above the pieces is new.

use std::sync::Arc;

use bytes::Bytes;
use zones::{Fill, Hold, Purpose, ZoneUse};

use crate::block::{BlockBuilder, contiguous};
use crate::compression::Packer;
use crate::entry::Entry;
use crate::filter::{FilterBuilder, hash};
use crate::frame::{FRAME_HEADER, FrameKind, FramePointer, seal};
use crate::group::Group;
use crate::item::{Body, BodyRef, ExtentRef, Item, ItemRef, Seq, Value, ValueRef};
use crate::merge::MergeOptions;
use crate::node::NodeBuilder;
use crate::placement::Placement;
use crate::run::Run;
use crate::store::{Store, place_value};
use crate::window::Window;
use crate::{Error, Result};

/// A tuple block is closed when its payload reaches this, bytes.
pub(crate) const BLOCK_SIZE: usize = 8 << 10;
/// An index node is closed when its entries (zone lists aside) reach this, bytes.
const NODE_SIZE: usize = 8 << 10;
/// A leaf index node is closed at this many items, so that its filter stays a small read.
const LEAF_ITEMS: u64 = 16 << 10;

/// A gap between keys is one when it is this much wider than what the block before it covers.
const GAP: u64 = 16;

/// What a merge did, bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Blocks and values that stayed where they were.
    pub stitched: u64,
    /// Tuple blocks written.
    pub blocks_written: u64,
    /// Large values written (placed for the first time or copied).
    pub values_written: u64,
    /// Index nodes and filters written.
    pub index_written: u64,
    /// Tuple blocks read.
    pub blocks_read: u64,
    /// Large values read in order to move them.
    pub values_read: u64,
    /// Index entries and subtrees stitched (a count).
    pub stitches: u64,
    /// Bytes that range tombstones dropped without reading them.
    pub pruned: u64,
}

/// Sums over the open tuple block.
#[derive(Default)]
struct OpenBlock {
    builder: BlockBuilder,
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
    /// The block before was closed because it was full: this one goes on where it ended.
    after_full: bool,
    /// How many hashes of keys before this block's there are.
    hashes_before: usize,
}

impl OpenBlock {
    /// `true` when a gap between keys lies before `key` that is much wider than all that the block covers, as between two files or
    /// two ranges that are appended to. A block that reached across it would overlap every later append to the first range; one
    /// that ends there is stitched by every merge.
    fn ends_before(&self, key: &[u8]) -> bool {
        let least = if self.after_full { BLOCK_SIZE / 16 } else { BLOCK_SIZE / 4 };
        self.builder.size() >= least && self.items > 1 && is_gap(&self.low, &self.high, key)
    }
}

/// `true` when `key` is much further from `high` than `high` is from `low`, as numbers: of bytes, or of digits where keys are written
/// so, since 0999 and 1000 are neighbours.
fn is_gap(low: &[u8], high: &[u8], key: &[u8]) -> bool {
    let shared = low.iter().zip(key).take_while(|(a, b)| a == b).count();
    let rest = |k| <[u8]>::get(k, shared..).unwrap_or_default();
    let (low, high, key) = (rest(low), rest(high), rest(key));
    let wide = |number: &dyn Fn(&[u8]) -> u64| {
        let (low, high, key) = (number(low), number(high), number(key));
        key.saturating_sub(high) / GAP > high.saturating_sub(low)
    };
    let digits = |radix: u32| {
        // As many as a number of 64 bits has.
        let most = if radix == 10 { 19 } else { 16 };
        move |k: &[u8]| {
            let digit = |i: usize| k.get(i).and_then(|&b| char::from(b).to_digit(radix)).unwrap_or(0);
            (0..most).fold(0u64, |n, i| n * u64::from(radix) + u64::from(digit(i)))
        }
    };
    let bytes = |k: &[u8]| match k.first_chunk::<8>() {
        Some(b) => u64::from_be_bytes(*b),
        None => (0..8).fold(0u64, |n, i| n << 8 | u64::from(k.get(i).copied().unwrap_or(0))),
    };
    let written = |radix: u32| {
        [low, &high[..high.len().saturating_sub(1)], key].iter().all(|k| k.iter().take(16).all(|&b| char::from(b).is_digit(radix)))
    };
    // Digits make no gap wider.
    wide(&bytes)
        && match () {
            () if written(10) => wide(&digits(10)),
            () if written(16) => wide(&digits(16)),
            () => true,
        }
}

/// A leaf index node some of whose blocks were stitched into the open leaf: its filter stands for their keys.
struct Borrowed {
    filter: FramePointer,
    /// Items that came along.
    taken: u64,
    blocks: Vec<FramePointer>,
}

pub(crate) struct RunBuilder {
    store: Arc<Store>,
    placement: Placement,
    separate_at: u32,
    /// See [`MergeOptions::false_positives`].
    false_positives: u16,
    packer: Packer,
    tuples: Fill,
    index: Fill,
    pages: Fill,
    block: OpenBlock,
    /// Large values, and what lies between them, until it is known which of them stay.
    window: Window,
    /// `open[l]` collects entries of level `l`: blocks at 0, leaf index nodes at 1.
    open: Vec<NodeBuilder>,
    /// Keys of the open leaf that were written by us, hashed.
    hashes: Vec<u64>,
    borrowed: Vec<Borrowed>,
    /// The last block was closed because it was full.
    after_full: bool,
    pub stats: MergeStats,
}

impl RunBuilder {
    pub fn new(store: &Arc<Store>, options: &MergeOptions) -> Self {
        let (zones, reserve) = (store.zones(), options.reserve);
        RunBuilder {
            placement: options.placement.clone(),
            separate_at: options.separate_at.max(1),
            false_positives: options.false_positives,
            packer: Packer::new(options.compression),
            tuples: zones.fill(Purpose::Tuples, reserve),
            index: zones.fill(Purpose::Index, reserve),
            pages: zones.fill(Purpose::Pages, reserve),
            store: store.clone(),
            block: OpenBlock::default(),
            window: Window::default(),
            open: vec![NodeBuilder::default()],
            hashes: Vec::new(),
            borrowed: Vec::new(),
            after_full: false,
            stats: MergeStats::default(),
        }
    }

    /// Appends one item to the fill. A large value is placed, kept where it is, or moved, as the placement says.
    pub fn push_item(&mut self, item: Item) -> Result<()> {
        self.push(item.borrow())
    }

    /// The same with an item that lies elsewhere: it is copied only when it must wait for a decision.
    #[inline]
    pub fn push(&mut self, item: ItemRef<'_>) -> Result<()> {
        match item.body {
            BodyRef::Put(ValueRef::Inline(v, _)) if v.len() >= self.separate_at as usize => {
                self.end_window()?;
                let extent = self.write_value(v)?;
                self.add(item.key, item.seq, BodyRef::Put(ValueRef::Extent(extent)))
            }
            BodyRef::Put(ValueRef::Extent(extent)) if self.placement.leaves_values() => {
                self.stats.stitched += u64::from(extent.len);
                self.add(item.key, item.seq, item.body)
            }
            // Order must hold: what comes behind an undecided value waits with it, though not for ever.
            BodyRef::Put(ValueRef::Extent(_)) => self.wait(item.to_item()),
            _ if !self.window.is_empty() => self.wait(item.to_item()),
            _ => self.add(item.key, item.seq, item.body),
        }
    }

    fn wait(&mut self, item: Item) -> Result<()> {
        self.window.push(item);
        if self.window.is_full() { self.end_window() } else { Ok(()) }
    }

    /// Decides what is waiting.
    fn end_window(&mut self) -> Result<()> {
        if self.window.is_empty() {
            return Ok(());
        }
        for (moves, items) in self.window.judge(&self.placement) {
            if moves {
                self.move_values(items)?;
                continue;
            }
            for i in items {
                if let Body::Put(Value::Extent(e)) = &i.body {
                    self.stats.stitched += u64::from(e.len);
                }
                self.add(&i.key, i.seq, i.body.borrow())?;
            }
        }
        Ok(())
    }

    /// Copies the large values among `items` to the fill, in the order of their keys, and adds all of them.
    fn move_values(&mut self, items: Vec<Item>) -> Result<()> {
        let of = |i: &Item| if let Body::Put(Value::Extent(e)) = i.body { Some(e) } else { None };
        // Read in the order of the device.
        let mut extents: Vec<(ExtentRef, usize)> = items.iter().enumerate().filter_map(|(at, i)| Some((of(i)?, at))).collect();
        extents.sort_unstable_by_key(|(e, at)| (e.addr, *at));
        let places: Vec<ExtentRef> = extents.iter().map(|(e, _)| *e).collect();
        let mut values = vec![None; items.len()];
        for ((e, at), value) in extents.iter().zip(self.store.read_values(&places)?) {
            self.stats.values_read += u64::from(e.len);
            values[*at] = Some(value);
        }
        for (i, value) in items.iter().zip(values) {
            match value {
                Some(v) => {
                    let extent = self.write_value(&v)?;
                    self.add(&i.key, i.seq, BodyRef::Put(ValueRef::Extent(extent)))?;
                }
                None if of(i).is_some() => return Err(Error::corrupt("a value is missing from a group that was read", 0)),
                None => self.add(&i.key, i.seq, i.body.borrow())?,
            }
        }
        Ok(())
    }

    fn write_value(&mut self, data: &[u8]) -> Result<ExtentRef> {
        self.stats.values_written += data.len() as u64;
        place_value(&mut self.pages, data)
    }

    fn add(&mut self, key: &[u8], seq: Seq, body: BodyRef<'_>) -> Result<()> {
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
                b.value_bytes += u64::from(e.len);
                b.value_spans += u64::from(!b.last_extent.is_some_and(|last| contiguous(&last, &e)));
                b.last_extent = Some(e);
                b.zones.add_extent(e.addr, u64::from(e.len));
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

    fn close_block(&mut self) -> Result<()> {
        if self.block.builder.is_empty() {
            return Ok(());
        }
        let mut b = std::mem::take(&mut self.block);
        let (payload, series) = b.builder.finish();
        let unfiltered = series || self.false_positives == 0;
        if unfiltered {
            self.hashes.truncate(b.hashes_before);
        }
        // Checksums do not get smaller.
        let packed = if series { None } else { self.packer.pack(payload) };
        let compressed = packed.is_some();
        let (codec, stored) = packed.unwrap_or((0, payload));
        let at = place_frame(&mut self.tuples, FrameKind::Tuples, 0, codec, stored)?;
        // Its memory serves the next block.
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

    fn push_entry(&mut self, level: usize, entry: Entry) -> Result<()> {
        if self.open.len() <= level {
            self.open.resize_with(level + 1, NodeBuilder::default);
        }
        self.open[level].push(entry);
        let open = &self.open[level];
        // Entries can be longer than a node should be: long keys, many zones. Four at least let the tree end in one root.
        let full = (open.size >= NODE_SIZE && open.entries.len() >= 4) || (level == 0 && open.filtered >= LEAF_ITEMS);
        if full { self.close_node(level) } else { Ok(()) }
    }

    /// Writes the open node of `level` entries and hands a pointer to it to the level above.
    fn close_node(&mut self, level: usize) -> Result<()> {
        let node = std::mem::take(&mut self.open[level]);
        let (Some(first), Some(last)) = (node.entries.first(), node.entries.last()) else { return Ok(()) };
        let filter = if level == 0 { self.close_filter(&node)? } else { None };
        let at = place_frame(&mut self.index, FrameKind::Node, level as u16 + 1, 0, &node.payload())?;
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
        for e in &node.entries {
            entry.tombstones |= e.tombstones;
            entry.range_tombstones |= e.range_tombstones;
            entry.unfiltered |= e.unfiltered;
            entry.items += e.items;
            entry.max_seq = entry.max_seq.max(e.max_seq);
            entry.block_bytes += e.block_bytes;
            let joined = level == 0 && block_end.is_some_and(|end| follows_block(end, e));
            entry.block_spans += if joined { 0 } else { e.block_spans };
            entry.value_bytes += e.value_bytes;
            entry.value_spans += e.value_spans;
            zones.merge(&e.zone_use()?);
            block_end = Some(e.at.end());
        }
        for p in [Some(at), filter].into_iter().flatten() {
            zones.add_extent(p.addr, u64::from(p.len));
        }
        entry.zones = encoded(&zones);
        self.push_entry(level + 1, entry)
    }

    /// The filter of the open leaf: our own keys, and the fingerprints of the filters that stand for stitched blocks.
    fn close_filter(&mut self, leaf: &NodeBuilder) -> Result<Option<FramePointer>> {
        let mut builder = FilterBuilder::new(self.false_positives.max(1));
        for h in self.hashes.drain(..) {
            builder.add(h);
        }
        // A borrowed filter also stands for keys that did not come along, or were gone before; when these would be more than the leaf's
        // own, the keys of the blocks are read instead.
        let mut borrowed = Vec::new();
        let mut stale = 0;
        for b in std::mem::take(&mut self.borrowed) {
            let filter = self.store.filter(b.filter)?;
            stale += (filter.len() as u64).saturating_sub(b.taken);
            borrowed.push((b, filter));
        }
        for (b, filter) in borrowed {
            if stale <= leaf.filtered || b.taken * 2 >= filter.len() as u64 {
                builder.add_all(&filter);
                continue;
            }
            for at in b.blocks {
                self.stats.blocks_read += u64::from(at.len);
                let block = self.store.block_once(at)?;
                let mut group = Group::default();
                for g in 0..block.groups() {
                    block.group_into(g, &mut group)?;
                    for i in (0..group.len()).filter_map(|i| group.item(i)) {
                        if !matches!(i.body, BodyRef::DeleteRange { .. }) {
                            builder.add(hash(i.key));
                        }
                    }
                }
            }
        }
        if builder.is_empty() {
            return Ok(None);
        }
        let at = place_frame(&mut self.index, FrameKind::Filter, 0, 0, &builder.finish())?;
        self.stats.index_written += u64::from(at.len);
        Ok(Some(at))
    }

    /// `true` when closing the open nodes below `level` leaves none nearly empty, so that a subtree of that level may follow.
    pub fn takes_subtree(&self, level: u16, entry: &Entry) -> bool {
        if (entry.at.len as usize) < NODE_SIZE / 4 {
            return self.is_empty();
        }
        // Each node that would be closed early must be empty, with nothing below it, or well filled already.
        let mut below = !self.block.builder.is_empty() || !self.window.is_empty();
        for l in 0..usize::from(level) {
            // A level that is not open yet would be opened for what closes below it, and closed with that one entry.
            let (size, items) = self.open.get(l).map_or((0, 0), |node| (node.size, node.filtered));
            if (below || size > 0) && size < NODE_SIZE / 4 && (l > 0 || items < LEAF_ITEMS / 4) {
                return false;
            }
            below |= size > 0;
        }
        true
    }

    /// `true` when a span of stitched blocks that begins with this one may follow without leaving a nearly empty block behind.
    pub fn takes_block(&self, entry: &Entry) -> bool {
        let open = &self.block;
        // A compressed one held more than it takes.
        let least = if entry.compressed { BLOCK_SIZE / 16 } else { BLOCK_SIZE / 4 };
        let closes = open.builder.is_empty() || open.builder.size() >= BLOCK_SIZE / 4 || open.ends_before(&entry.low);
        entry.at.len as usize >= least && closes
    }

    /// `true` when nothing was pushed yet.
    pub fn is_empty(&self) -> bool {
        self.block.builder.is_empty() && self.window.is_empty() && self.open.iter().all(|n| n.entries.is_empty())
    }

    /// Appends a whole subtree by its pointer. `level` is that of the node it points to.
    pub fn push_subtree(&mut self, level: u16, entry: Entry) -> Result<()> {
        self.end_window()?;
        self.close_block()?;
        // Closing a level may open the one above, which must be closed as well: what comes before the subtree lies below no node
        // that also has keys behind it.
        let mut l = 0;
        while l < self.open.len().min(usize::from(level)) {
            self.close_node(l)?;
            l += 1;
        }
        self.stats.stitched += entry.data_bytes();
        self.stats.stitches += 1;
        self.push_entry(usize::from(level), entry)
    }

    /// Appends tuple blocks by their pointers; all come from the leaf index node whose filter is given.
    pub fn push_blocks(&mut self, entries: &[Entry], filter: Option<FramePointer>) -> Result<()> {
        self.end_window()?;
        self.close_block()?;
        for e in entries {
            if let Some(filter) = filter.filter(|_| !e.unfiltered) {
                let source = match self.borrowed.iter().position(|b| b.filter == filter) {
                    Some(at) => &mut self.borrowed[at],
                    None => {
                        self.borrowed.push(Borrowed { filter, taken: 0, blocks: Vec::new() });
                        // Just pushed, so there is a last one.
                        let last = self.borrowed.len() - 1;
                        &mut self.borrowed[last]
                    }
                };
                source.taken += e.items;
                source.blocks.push(e.at);
            }
            self.stats.stitched += e.data_bytes();
            self.stats.stitches += 1;
            self.push_entry(0, e.clone())?;
        }
        Ok(())
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.stats.blocks_written + self.stats.values_written + self.stats.index_written
    }

    /// Writes what is open. `None` when nothing was pushed. The run is on the device, but not synced.
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
        let mut fills = Hold::default();
        for fill in [self.tuples, self.index, self.pages] {
            fills.merge(fill.finish()?);
        }
        let run = match root {
            Some((entry, level)) => Some(Run::open(&self.store, entry, level)?),
            None => None,
        };
        // The run holds its zones itself from here on; only now may the fills let go.
        drop(fills);
        Ok((run, self.stats))
    }
}

fn encoded(zones: &ZoneUse) -> Bytes {
    let mut out = Vec::new();
    zones.encode(&mut out);
    Bytes::from(out)
}

/// `true` when the block of `entry` lies directly behind a block that ends at `end`.
pub(crate) fn follows_block(end: u64, entry: &Entry) -> bool {
    entry.at.addr >= end && entry.at.addr - end < zones::SECTOR
}

fn place_frame(fill: &mut Fill, kind: FrameKind, level: u16, codec: u8, payload: &[u8]) -> Result<FramePointer> {
    let len = FRAME_HEADER + payload.len();
    let mut crc = 0;
    let addr = fill.place(8, len, |addr, buf| {
        buf[FRAME_HEADER..].copy_from_slice(payload);
        crc = seal(buf, kind, level, codec, addr);
    })?;
    Ok(FramePointer { addr, len: len as u32, crc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zones::{FormatOptions, MemoryDevice, Reserve, Zones};

    #[test]
    fn gaps_lie_between_ranges_and_not_between_neighbours() {
        let behind = |k: &str| [k.as_bytes(), &[0]].concat();
        let gap = |low: &str, high: &str, key: &str| is_gap(low.as_bytes(), &behind(high), key.as_bytes());
        assert!(!gap("00085", "00099", "00100") && !gap("00985", "00999", "01000") && !gap("98985", "98999", "99000"));
        assert!(!gap("000cc", "000ff", "00100") && !gap("00fcc", "00fff", "01000"));
        assert!(gap("file7/00100", "file7/00190", "file8/00000"));
        assert!(gap("00085", "00099", "00500"));
        let number = |n: u64| n.to_be_bytes();
        assert!(!is_gap(&number(0x1_ff00), &[&number(0x1_ffff)[..], &[0]].concat(), &number(0x2_0000)));
        assert!(is_gap(&number(0x1_ff00), &[&number(0x1_ffff)[..], &[0]].concat(), &number(0x9_0000)));
        assert!(!is_gap(b"", b"", b"") && !is_gap(b"a", b"a\0", b"a\0"));
    }

    #[test]
    fn small_items_behind_an_undecided_value_do_not_pile_up() {
        let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default()).expect("a fresh store");
        zones.start();
        let mut fill = zones.fill(Purpose::Pages, Reserve::Use);
        let extent = place_value(&mut fill, &[7; 4096]).expect("there is room");
        let _hold = fill.finish().expect("it is written");
        let store = Store::new(zones, 1 << 20);
        let mut b = RunBuilder::new(
            &store,
            &MergeOptions { placement: Placement::threshold(1 << 20), reserve: Reserve::Use, ..MergeOptions::default() },
        );
        let put = |key: u64, v| Item { key: key.to_be_bytes().to_vec().into(), seq: 1, body: Body::Put(v) };
        b.push_item(put(0, Value::Extent(extent))).expect("a reference is taken");
        for i in 1..20_000 {
            b.push_item(put(i, Value::Inline(Bytes::from(vec![0; 1000])))).expect("there is room");
            assert!(b.window.len() < 10_000);
        }
        let (run, _) = b.finish().expect("there is room");
        assert_eq!(run.expect("something was pushed").stats().items, 20_000);
    }

    /// Fingerprints in all filters of a run, and items beneath them.
    fn filtered(run: &Run) -> (u64, u64) {
        fn walk(store: &Store, entry: &Entry, level: u16, sum: &mut (u64, u64)) {
            if let Some(f) = entry.filter {
                sum.0 += store.filter(f).expect("it is whole").len() as u64;
                sum.1 += entry.items;
            } else {
                let node = store.node(entry.at, level).expect("it is whole");
                node.entries.iter().for_each(|e| walk(store, e, level - 1, sum));
            }
        }
        let mut sum = (0, 0);
        let (root, level) = run.root();
        walk(run.store(), root, level, &mut sum);
        sum
    }

    #[test]
    fn fingerprints_of_keys_that_are_gone_stay_few() {
        let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default()).expect("a fresh store");
        zones.start();
        let store = Store::new(zones, 1 << 20);
        let key = |i: u64| i.to_be_bytes();
        let flush = |keys: &mut dyn Iterator<Item = u64>, delete: bool| {
            let m = Arc::new(crate::Memtable::new());
            for i in keys {
                if delete {
                    m.delete(&key(i), i + 1);
                } else {
                    m.put(&key(i), i + 1, Value::Inline(Bytes::from_static(&[7; 100])));
                }
            }
            let all = crate::KeyRange::all();
            crate::merge(&store, &[crate::Input::Memtable(m)], &all, MergeOptions::default())
                .expect("there is room")
                .expect("items")
        };
        let mut run = flush(&mut (0..60_000), false);
        // Again and again stretches are deleted, so that what is left is stitched, piece by piece, out of ever more leaves.
        for round in 0..12u64 {
            let gone = flush(&mut (0..60_000).filter(|i| (i / 700 + round * 5) % 17 == 0), true);
            let options = MergeOptions { drop_tombstones: true, ..MergeOptions::default() };
            let inputs = [crate::Input::Run(gone), crate::Input::Run(run)];
            run = crate::merge(&store, &inputs, &crate::KeyRange::all(), options).expect("there is room").expect("items");
            let (fingerprints, items) = filtered(&run);
            assert_eq!(items, run.stats().items);
            assert!(fingerprints <= 2 * items + 100, "round {round}: {fingerprints} fingerprints for {items} items");
        }
        assert!(run.stats().items < 30_000);
    }
}

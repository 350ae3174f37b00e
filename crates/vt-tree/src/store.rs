//! What every tree of a store shares: the device below and the block cache.
//!
//! The cache is keyed by device address and checksum. Stitching moves pointers and leaves blocks where they are, so a block stays
//! warm through any number of merges; and a zone that is freed and written anew can never serve its former content.
//!
//! Index nodes, filters, and the tuple blocks that hold nothing but references to large values have the first claim on the budget: a
//! read then costs the device one access, for the tuple itself. Tuple blocks have what is left, an eighth at least.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use zones::{Fill, Purpose, ZONE_SIZE, Zones, crc32c};

use crate::block::{Block, contiguous};
use crate::compression::{Compression, Packer, unpack_value};
use crate::fences::{Fences, Target};
use crate::filter::Filter;
use crate::frame::{self, FrameKind, FramePointer};
use crate::item::{ExtentRef, Value};
use crate::node::Node;
use crate::{Error, Result};

/// Longest single read along contiguous extents, bytes.
const READ_MOST: u64 = 1 << 20;
/// Two stretches with a gap below this are announced as one: reading that much takes less than a second request.
pub(crate) const GAP: u64 = 16 << 10;

/// What is kept of an index, and before anything else: without it each read of a tuple would cost several of the device.
#[derive(Clone)]
enum Upper {
    Fences(Arc<Fences>),
    Filter(Arc<Filter>),
    /// A tuple block that mostly refers to large values.
    Block(Arc<Block>),
}

/// An address and the checksum of what lies there.
type Key = (u64, u32);

/// Stands for the cache's own bookkeeping of an entry, bytes.
const BOOKKEEPING: u64 = 64;

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Upper> for Weight {
    fn weight(&self, _: &Key, v: &Upper) -> u64 {
        BOOKKEEPING
            + match v {
                Upper::Block(b) => b.weight(),
                Upper::Fences(f) => f.weight(),
                Upper::Filter(f) => size_of::<Filter>() + f.size(),
            } as u64
    }
}

impl Weighter<Key, Arc<Block>> for Weight {
    fn weight(&self, _: &Key, b: &Arc<Block>) -> u64 {
        BOOKKEEPING + b.weight() as u64
    }
}

/// Device and block cache; one for all trees of a store.
pub struct Store {
    zones: Arc<Zones>,
    /// The budget of both caches together, bytes.
    budget: u64,
    /// May take nearly all of the budget; tuple blocks get what it leaves.
    upper: Cache<Key, Upper, Weight>,
    blocks: Cache<Key, Arc<Block>, Weight>,
    ahead: AtomicUsize,
}

impl Store {
    /// `cache_bytes`: the budget of the block cache.
    pub fn new(zones: Arc<Zones>, cache_bytes: usize) -> Arc<Store> {
        let items = (cache_bytes / 8192).max(64);
        let budget = cache_bytes as u64;
        Arc::new(Store {
            zones,
            budget,
            upper: Cache::with_weighter(items, budget - budget / 8, Weight),
            blocks: Cache::with_weighter(items, budget, Weight),
            ahead: AtomicUsize::new(0),
        })
    }

    pub fn zones(&self) -> &Arc<Zones> {
        &self.zones
    }

    /// Bytes that the block cache holds now.
    pub fn cache_bytes(&self) -> u64 {
        self.upper.weight() + self.blocks.weight()
    }

    fn keep_upper(&self, at: FramePointer, value: Upper) {
        self.upper.insert((at.addr, at.crc), value);
        // The tuple blocks make room, in steps that are worth it.
        let left = self.budget.saturating_sub(self.upper.weight()).max(self.budget / 8);
        if left.abs_diff(self.blocks.capacity()) > self.budget / 64 {
            self.blocks.set_capacity(left);
        }
    }

    fn read_frame(&self, kind: FrameKind, level: u16, at: FramePointer) -> Result<Bytes> {
        let purpose = if kind == FrameKind::Tuples { Purpose::Tuples } else { Purpose::Index };
        frame::open(self.read_raw(purpose, at.addr, u64::from(at.len))?, kind, level, at)
    }

    fn read_raw(&self, purpose: Purpose, addr: u64, len: u64) -> Result<Bytes> {
        if len > ZONE_SIZE {
            return Err(Error::Corrupt { what: format!("a block of {len} bytes is longer than a zone"), addr });
        }
        let mut buf = vec![0u8; len as usize];
        self.zones.read(purpose, addr, &mut buf)?;
        Ok(Bytes::from(buf))
    }

    /// A tuple block, if it is in the cache.
    #[inline]
    pub(crate) fn cached_block(&self, at: Target) -> Option<Arc<Block>> {
        let key = (at.at.addr, at.at.crc);
        if !at.refers {
            return self.blocks.get(&key);
        }
        match self.upper.get(&key) {
            Some(Upper::Block(b)) => Some(b),
            _ => None,
        }
    }

    /// The same without counting or marking it as used.
    pub(crate) fn has_block(&self, at: Target) -> bool {
        let key = (at.at.addr, at.at.crc);
        if at.refers { self.upper.contains_key(&key) } else { self.blocks.contains_key(&key) }
    }

    /// A tuple block from the device, into the cache.
    pub(crate) fn read_block(&self, at: Target) -> Result<Arc<Block>> {
        let block = Arc::new(Block::parse(self.read_frame(FrameKind::Tuples, 0, at.at)?, at.at.addr)?);
        match at.refers {
            true => self.keep_upper(at.at, Upper::Block(block.clone())),
            false => self.blocks.insert((at.at.addr, at.at.crc), block.clone()),
        }
        Ok(block)
    }

    /// A tuple block.
    pub(crate) fn block(&self, at: Target) -> Result<Arc<Block>> {
        match self.cached_block(at) {
            Some(block) => Ok(block),
            None => self.read_block(at),
        }
    }

    /// The same for a merge, which reads each block once: it takes what is cached and does not push other blocks out.
    pub(crate) fn block_once(&self, at: FramePointer) -> Result<Arc<Block>> {
        let key = (at.addr, at.crc);
        let cached = self.blocks.peek(&key).or_else(|| match self.upper.peek(&key) {
            Some(Upper::Block(b)) => Some(b),
            _ => None,
        });
        match cached {
            Some(b) => Ok(b),
            None => Ok(Arc::new(Block::parse(self.read_frame(FrameKind::Tuples, 0, at)?, at.addr)?)),
        }
    }

    /// An index node with all that a merge wants to know. Merges read each once, so it is not kept.
    pub(crate) fn node(&self, at: FramePointer, level: u16) -> Result<Node> {
        Node::parse(self.read_frame(FrameKind::Node, level, at)?, level, at.addr)
    }

    /// An index node as reads need it.
    pub(crate) fn fences(&self, at: FramePointer, level: u16) -> Result<Arc<Fences>> {
        if let Some(Upper::Fences(f)) = self.upper.get(&(at.addr, at.crc))
            && f.level == level
        {
            return Ok(f);
        }
        let fences = Arc::new(Fences::of(&self.node(at, level)?));
        self.keep_upper(at, Upper::Fences(fences.clone()));
        Ok(fences)
    }

    pub(crate) fn has_fences(&self, at: FramePointer) -> bool {
        self.upper.contains_key(&(at.addr, at.crc))
    }

    pub(crate) fn filter(&self, at: FramePointer) -> Result<Arc<Filter>> {
        if let Some(Upper::Filter(f)) = self.upper.get(&(at.addr, at.crc)) {
            return Ok(f);
        }
        let filter = Arc::new(Filter::parse(self.read_frame(FrameKind::Filter, 0, at)?)?);
        self.keep_upper(at, Upper::Filter(filter.clone()));
        Ok(filter)
    }

    /// The bytes of a value; large ones are checked against their reference.
    pub fn read_value(&self, value: &Value) -> Result<Bytes> {
        match value {
            Value::Inline(b) => Ok(b.clone()),
            Value::Extent(e) => {
                let data = self.read_raw(Purpose::Pages, e.addr, u64::from(e.stored))?;
                check_extent(e, &data)?;
                unpack_extent(e, data)
            }
        }
    }

    /// The bytes of many large values, read with one request for each stretch that lies contiguous on the device. When the first
    /// has to be waited for, all others are announced: the device then has them in the air together.
    pub fn read_values(&self, extents: &[ExtentRef]) -> Result<Vec<Bytes>> {
        let mut values = self.read_stored(extents)?;
        for (e, value) in extents.iter().zip(&mut values) {
            *value = unpack_extent(e, std::mem::take(value))?;
        }
        Ok(values)
    }

    /// The same as they lie on the device, checked, perhaps compressed.
    pub(crate) fn read_stored(&self, extents: &[ExtentRef]) -> Result<Vec<Bytes>> {
        let mut out = Vec::with_capacity(extents.len());
        let mut i = 0;
        while i < extents.len() {
            let start = extents[i].addr;
            let mut j = i + 1;
            while j < extents.len() && contiguous(&extents[j - 1], &extents[j]) && extents[j].end() - start <= READ_MOST {
                j += 1;
            }
            let len = extents[j - 1].end() - start;
            let begun = Instant::now();
            let data = self.read_raw(Purpose::Pages, start, len)?;
            if i == 0 && waited(begun, len) {
                self.announce(extents[j..].to_vec());
            }
            for e in &extents[i..j] {
                let from = (e.addr - start) as usize;
                let value = data.slice(from..from + e.stored as usize);
                check_extent(e, &value)?;
                out.push(value);
            }
            i = j;
        }
        Ok(out)
    }

    /// Tells the device that these values will be read: stretches of neighbours as one, small gaps included.
    pub fn announce(&self, mut extents: Vec<ExtentRef>) {
        extents.sort_unstable_by_key(|e| e.addr);
        self.announce_sorted(Purpose::Pages, extents.iter().map(|e| (e.addr, e.end())));
    }

    /// The same for tuple blocks, by address and length.
    pub fn announce_blocks(&self, mut blocks: Vec<(u64, u32)>) {
        blocks.sort_unstable();
        self.announce_sorted(Purpose::Tuples, blocks.iter().map(|&(addr, len)| (addr, addr.saturating_add(u64::from(len)))));
    }

    /// The same for ranges in ascending order.
    pub(crate) fn announce_sorted(&self, purpose: Purpose, ranges: impl Iterator<Item = (u64, u64)>) {
        let mut stretch: Option<(u64, u64)> = None;
        for (start, end) in ranges {
            stretch = match stretch {
                Some((from, to)) if start.saturating_sub(to) < GAP => Some((from, to.max(end))),
                before => {
                    if let Some((from, to)) = before {
                        self.zones.will_read(purpose, from, to - from);
                    }
                    Some((start, end))
                }
            };
        }
        if let Some((from, to)) = stretch {
            self.zones.will_read(purpose, from, to - from);
        }
    }

    /// Memory that cursors take for tuples read ahead, all together: kept by those who take it.
    pub fn ahead(&self) -> &AtomicUsize {
        &self.ahead
    }

    /// The budget of the caches, bytes.
    pub fn cache_budget(&self) -> u64 {
        self.budget
    }
}

/// `true` when reading `len` bytes took so long that the host did not have them in memory.
pub fn waited(begun: Instant, len: u64) -> bool {
    begun.elapsed() > Duration::from_nanos(25_000 + len / 4)
}

fn check_extent(e: &ExtentRef, data: &[u8]) -> Result<()> {
    if crc32c(data) == e.crc {
        return Ok(());
    }
    Err(Error::Corrupt { what: format!("value of {} bytes: checksum does not match its bytes", e.len), addr: e.addr })
}

fn unpack_extent(e: &ExtentRef, stored: Bytes) -> Result<Bytes> {
    unpack_value(e.codec, stored, e.len)
        .map_err(|what| Error::Corrupt { what: format!("value of {} bytes: {what}", e.len), addr: e.addr })
}

/// Writes a large value to its final place: raw, aligned, with its checksum in the reference only.
pub fn place_value(fill: &mut Fill, data: &[u8]) -> Result<ExtentRef> {
    place_stored(fill, ExtentRef::plain(0, data.len() as u32, crc32c(data)), data)
}

/// The same, compressed if that makes it enough shorter.
pub fn place_packed(fill: &mut Fill, packer: &mut Packer, compression: Compression, data: &[u8]) -> Result<ExtentRef> {
    let packed = packer.pack_value(compression, data).and_then(|stored| {
        Some((ExtentRef::packed(0, data.len() as u32, stored.len() as u32, crc32c(stored), compression)?, stored))
    });
    match packed {
        Some((e, stored)) => place_stored(fill, e, stored),
        None => place_value(fill, data),
    }
}

/// Writes the bytes that the device is to have of a value; `e` tells of them everything but the place.
pub(crate) fn place_stored(fill: &mut Fill, e: ExtentRef, stored: &[u8]) -> Result<ExtentRef> {
    let addr = fill.place(e.align(), stored.len(), |_, buf| buf.copy_from_slice(stored))?;
    Ok(ExtentRef { addr, ..e })
}

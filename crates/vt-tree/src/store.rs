//! What every tree of a store shares: the device below and the block cache.
//!
//! The cache is keyed by device address and checksum. Stitching moves pointers and leaves blocks where they are, so a block stays
//! warm through any number of merges; and a zone that is freed and written anew can never serve its former content.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use zones::{Fill, Purpose, ZONE_SIZE, Zones, crc32c};

use crate::block::{Block, contiguous, extent_align};
use crate::filter::Filter;
use crate::frame::{self, FrameKind, FramePointer};
use crate::item::{ExtentRef, Value};
use crate::node::Node;
use crate::{Error, Result};

/// Longest single read along contiguous extents, bytes.
const READ_AHEAD: u64 = 1 << 20;

#[derive(Clone)]
enum Cached {
    Block(Arc<Block>),
    Node(Arc<Node>),
    Filter(Arc<Filter>),
}

#[derive(Clone)]
struct Weight;

impl Weighter<(u64, u32), Cached> for Weight {
    fn weight(&self, _: &(u64, u32), v: &Cached) -> u64 {
        // 64 bytes stand for the cache's own bookkeeping of an entry.
        64 + match v {
            Cached::Block(b) => b.weight(),
            Cached::Node(n) => n.weight(),
            Cached::Filter(f) => size_of::<Filter>() + f.len() * f.bits() as usize / 8,
        } as u64
    }
}

/// Device and block cache; one for all trees of a store.
pub struct Store {
    zones: Arc<Zones>,
    cache: Cache<(u64, u32), Cached, Weight>,
}

impl Store {
    /// `cache_bytes`: the budget of the block cache.
    pub fn new(zones: Arc<Zones>, cache_bytes: usize) -> Arc<Store> {
        let items = (cache_bytes / 8192).max(64);
        Arc::new(Store { zones, cache: Cache::with_weighter(items, cache_bytes as u64, Weight) })
    }

    pub fn zones(&self) -> &Arc<Zones> {
        &self.zones
    }

    /// Bytes that the block cache holds now.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// (hits, misses) of the block cache.
    pub fn cache_counts(&self) -> (u64, u64) {
        (self.cache.hits(), self.cache.misses())
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

    /// The tuple block at `at`.
    pub(crate) fn block(&self, at: FramePointer) -> Result<Arc<Block>> {
        let key = (at.addr, at.crc);
        if let Some(Cached::Block(b)) = self.cache.get(&key) {
            return Ok(b);
        }
        let block = Arc::new(Block::parse(self.read_frame(FrameKind::Tuples, 0, at)?, at.addr)?);
        self.cache.insert(key, Cached::Block(block.clone()));
        Ok(block)
    }

    /// The same for a merge, which reads each block once: it takes what is cached and does not push other blocks out.
    pub(crate) fn block_once(&self, at: FramePointer) -> Result<Arc<Block>> {
        match self.cache.peek(&(at.addr, at.crc)) {
            Some(Cached::Block(b)) => Ok(b),
            _ => Ok(Arc::new(Block::parse(self.read_frame(FrameKind::Tuples, 0, at)?, at.addr)?)),
        }
    }

    pub(crate) fn node(&self, at: FramePointer, level: u16) -> Result<Arc<Node>> {
        let key = (at.addr, at.crc);
        if let Some(Cached::Node(n)) = self.cache.get(&key) {
            return Ok(n);
        }
        let node = Arc::new(Node::parse(self.read_frame(FrameKind::Node, level, at)?, level, at.addr)?);
        self.cache.insert(key, Cached::Node(node.clone()));
        Ok(node)
    }

    pub(crate) fn filter(&self, at: FramePointer) -> Result<Arc<Filter>> {
        let key = (at.addr, at.crc);
        if let Some(Cached::Filter(f)) = self.cache.get(&key) {
            return Ok(f);
        }
        let filter = Arc::new(Filter::parse(self.read_frame(FrameKind::Filter, 0, at)?)?);
        self.cache.insert(key, Cached::Filter(filter.clone()));
        Ok(filter)
    }

    /// The bytes of a value; large ones are checked against their reference.
    pub fn read_value(&self, value: &Value) -> Result<Bytes> {
        match value {
            Value::Inline(b) => Ok(b.clone()),
            Value::Extent(e) => {
                let data = self.read_raw(Purpose::Pages, e.addr, u64::from(e.len))?;
                check_extent(e, &data)?;
                Ok(data)
            }
        }
    }

    /// The bytes of many large values, read with one request for each stretch that lies contiguous on the device.
    pub fn read_values(&self, extents: &[ExtentRef]) -> Result<Vec<Bytes>> {
        let mut out = Vec::with_capacity(extents.len());
        let mut i = 0;
        while i < extents.len() {
            let start = extents[i].addr;
            let mut j = i + 1;
            while j < extents.len()
                && contiguous(&extents[j - 1], &extents[j])
                && extents[j].addr + u64::from(extents[j].len) - start <= READ_AHEAD
            {
                j += 1;
            }
            let last = extents[j - 1];
            let data = self.read_raw(Purpose::Pages, start, last.addr + u64::from(last.len) - start)?;
            for e in &extents[i..j] {
                let from = (e.addr - start) as usize;
                let value = data.slice(from..from + e.len as usize);
                check_extent(e, &value)?;
                out.push(value);
            }
            i = j;
        }
        Ok(out)
    }
}

fn check_extent(e: &ExtentRef, data: &[u8]) -> Result<()> {
    if crc32c(data) == e.crc {
        return Ok(());
    }
    Err(Error::Corrupt { what: format!("value of {} bytes: checksum does not match its bytes", e.len), addr: e.addr })
}

/// Writes a large value to its final place: raw, aligned, with its checksum in the reference only.
pub fn place_value(fill: &mut Fill, data: &[u8]) -> Result<ExtentRef> {
    let addr = fill.place(extent_align(data.len()), data.len(), |_, buf| buf.copy_from_slice(data))?;
    Ok(ExtentRef { addr, len: data.len() as u32, crc: crc32c(data) })
}

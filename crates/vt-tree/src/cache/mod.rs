//! The block cache and reader that all trees of a store share.
//!
//! The cache is keyed by device address and checksum. Stitching moves pointers and leaves blocks in
//! place, so a block stays cached through any number of merges. The cache never returns the former
//! content of a zone that was freed and rewritten.
//!
//! Index nodes, filters, and tuple blocks that mostly refer to large values have priority in the
//! budget, so that a read costs one device access, for the tuple itself. Other tuple blocks have
//! the rest of the budget, which is at least an eighth.

mod again;
mod announce;
mod around;
mod by_place;
mod medium;
mod reader_seeks;
mod sequential;
mod values;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use zones::{Purpose, ZONE_SIZE, Zones};

use self::around::ReadAround;
use self::reader_seeks::ReaderSeeks;
use self::sequential::SequentialReads;
use crate::block::Block;
use crate::block::sparse_index::SparseIndex;
use crate::filter::Filter;
use crate::index::entry::Entry;
use crate::index::frame::{self, FRAME_HEADER, FrameKind, FramePointer};
use crate::index::index_node::{ChildPointer, FilterPin, IndexNode};
use crate::index::node::Node;
use crate::item::{Body, Seq};
use crate::{Error, Result};

pub use around::read_alone;
pub use sequential::read_onward;
pub(crate) use values::unpack_extent;
pub use wait::value_waited;

/// The divisor of the budget that defines a long scan. A cursor that has read more than the
/// quotient no longer fills the cache.
const LONG_WAY: u64 = 2;
/// The number of cached blocks per miss that determines `soon`. A block in the host's page cache
/// replaces a cached block if it is requested twice within a number of misses, which is one miss
/// for this many blocks in the cache. If all blocks are requested equally often, replacing one
/// block by another gains nothing.
const SOON: usize = 16;
/// The divisor of the bytes that a seek costs. The quotient is the first window that a scan
/// announces.
const FIRST_SHARE: u64 = 4;
/// The divisor of the budget. Sparse indexes may take the quotient.
const SPARSE_INDEXES: u64 = 4;

/// The way in which data that is not in memory is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    Alone,
    /// Reads the data and announces the data that follows on the device if reads continue there.
    /// See [`SequentialReads`].
    Onward,
    /// Reads the data and fetches its neighbourhood on the device (see [`ReadAround`]) if that
    /// suits the store. Otherwise does the same as `Onward`.
    Around,
}

/// Data of an index, which has priority in the cache. Without it, each read of a tuple would cost
/// several device accesses.
#[derive(Clone)]
enum IndexData {
    Node(Arc<IndexNode>),
    Filter(Arc<Filter>),
    /// A tuple block that mostly refers to large values.
    Block(Arc<Block>),
}

/// A device address and the checksum of the data there.
type CacheKey = (u64, u32);

/// An estimate of the overhead of the cache for an entry, in bytes.
const BOOKKEEPING: u64 = 64;

#[derive(Clone)]
struct CacheWeight;

impl Weighter<CacheKey, IndexData> for CacheWeight {
    fn weight(&self, _: &CacheKey, v: &IndexData) -> u64 {
        BOOKKEEPING
            + match v {
                IndexData::Block(block) => block.weight(),
                IndexData::Node(node) => node.weight(),
                IndexData::Filter(filter) => size_of::<Filter>() + filter.size(),
            } as u64
    }
}

/// Notifies sparse indexes that the cache has evicted a block.
#[derive(Clone, Default)]
struct EvictionListener;

impl Lifecycle<CacheKey, Arc<Block>> for EvictionListener {
    type RequestState = ();

    fn on_evict(&self, _: &mut (), _: CacheKey, block: Arc<Block>) {
        SparseIndex::evict(&block);
    }
}

impl Weighter<CacheKey, Arc<Block>> for CacheWeight {
    fn weight(&self, _: &CacheKey, b: &Arc<Block>) -> u64 {
        BOOKKEEPING + b.weight() as u64
    }
}

/// The device and the block cache, which all trees of a store share.
pub struct BlockCache {
    zones: Arc<Zones>,
    /// The budget of both caches together, in bytes.
    budget: u64,
    /// The cached index data. It may take seven eighths of the budget; tuple blocks get the rest.
    index: Cache<CacheKey, IndexData, CacheWeight>,
    blocks: Cache<CacheKey, Arc<Block>, CacheWeight, DefaultHashBuilder, EvictionListener>,
    ahead: AtomicUsize,
    pinned: Arc<AtomicU64>,
    sparse_bytes: Arc<AtomicU64>,
    /// The number of requested tuple blocks that were not cached.
    misses: AtomicU32,
    /// The number of misses within which a block must be requested again to replace another block,
    /// or 0 while the cache has room.
    soon: AtomicU32,
    around: ReadAround,
    sequential: SequentialReads,
    reader_seeks: ReaderSeeks,
    /// The number of bytes that the device reads in the time of a seek, or 0 if seeks are cheap.
    seek_bytes: AtomicU64,
}

/// Allocates memory for the `len` bytes at `addr`. A single read is at most as long as a zone. A
/// greater length is damage, and must not determine the size of an allocation.
fn room(what: &str, addr: u64, len: u64) -> Result<Vec<u8>> {
    if len > ZONE_SIZE {
        return Err(Error::corrupt(format!("{what} of {len} bytes is longer than a zone"), addr));
    }
    Ok(vec![0; len as usize])
}

/// Returns the error for a tuple block with keys outside its fences.
pub(crate) fn outside(addr: u64) -> Error {
    Error::corrupt("tuple block: keys outside its fences", addr)
}

impl BlockCache {
    /// Creates a cache with a budget of `cache_bytes` bytes over `zones`.
    pub fn new(zones: Arc<Zones>, cache_bytes: usize) -> Arc<BlockCache> {
        let items = (cache_bytes / 8192).max(64);
        let budget = cache_bytes as u64;
        Arc::new(BlockCache {
            zones,
            budget,
            index: Cache::with_weighter(items, budget - budget / 8, CacheWeight),
            blocks: Cache::with(
                items,
                budget,
                CacheWeight,
                DefaultHashBuilder::default(),
                EvictionListener,
            ),
            ahead: AtomicUsize::new(0),
            pinned: Arc::default(),
            sparse_bytes: Arc::default(),
            misses: AtomicU32::new(0),
            soon: AtomicU32::new(0),
            around: ReadAround::default(),
            sequential: SequentialReads::default(),
            reader_seeks: ReaderSeeks::default(),
            seek_bytes: AtomicU64::new(0),
        })
    }

    /// Sets the number of bytes that the device reads in the time of a seek. Reads pass over gaps
    /// that cost less than a seek, and read-ahead begins with a share of this number.
    pub fn set_seek_bytes(&self, bytes: u64) {
        self.seek_bytes.store(bytes, Relaxed);
    }

    /// Returns the value that was set by [`BlockCache::set_seek_bytes`].
    pub fn seek_bytes(&self) -> u64 {
        self.seek_bytes.load(Relaxed)
    }

    /// Returns the number of bytes that a scan announces first. This is the number that costs a
    /// quarter of a seek, because the announcement may be in vain, but at least `least`.
    pub fn first_window(&self, least: u64) -> u64 {
        least.max(self.seek_bytes() / FIRST_SHARE)
    }

    /// Returns the store of zones that the cache reads.
    pub fn zones(&self) -> &Arc<Zones> {
        &self.zones
    }

    /// Returns the number of bytes that the block cache currently holds.
    pub fn cache_bytes(&self) -> u64 {
        self.index.weight() + self.blocks.weight()
    }

    fn keep_index_data(&self, at: FramePointer, value: IndexData) {
        self.index.insert((at.addr, at.crc), value);
        // Shrink the share of the tuple blocks, in steps that are large enough to be worthwhile.
        let index =
            self.index.weight() + self.pinned.load(Relaxed) + self.sparse_bytes.load(Relaxed);
        let left = self.budget.saturating_sub(index).max(self.budget / 8);
        if left.abs_diff(self.blocks.capacity()) > self.budget / 64 {
            self.blocks.set_capacity(left);
        }
    }

    /// Reads a frame of the index.
    fn read_frame(
        &self,
        kind: FrameKind,
        level: u16,
        at: FramePointer,
        how: ReadMode,
    ) -> Result<Bytes> {
        let (frame, _) = self.read_raw(Purpose::Index, at.addr, u64::from(at.len), how)?;
        self.checked(Purpose::Index, at.addr, frame, |frame| frame::open(frame, kind, level, at))
    }

    /// Reads a tuple block from the device. Also returns whether the read had to wait for the
    /// device.
    fn read_tuples(&self, at: FramePointer, how: ReadMode) -> Result<(Arc<Block>, bool)> {
        let (frame, waited) = self.read_raw(Purpose::Tuples, at.addr, u64::from(at.len), how)?;
        let open = |frame| frame::open(frame, FrameKind::Tuples, 0, at);
        let payload = self.checked(Purpose::Tuples, at.addr, frame, open)?;
        Ok((Arc::new(Block::parse(payload, at.addr)?), waited))
    }

    /// Reads `len` bytes at `addr`. Also returns whether the read had to wait for the device.
    fn read_raw(
        &self,
        purpose: Purpose,
        addr: u64,
        len: u64,
        how: ReadMode,
    ) -> Result<(Bytes, bool)> {
        let mut buf = room("a block", addr, len)?;
        let waited = self.read_into(purpose, addr, &mut buf, how)?;
        Ok((Bytes::from(buf), waited))
    }

    /// Fills `buf` with the bytes at `addr`. Returns whether the read had to wait for the device.
    fn read_into(
        &self,
        purpose: Purpose,
        addr: u64,
        buf: &mut [u8],
        how: ReadMode,
    ) -> Result<bool> {
        if how != ReadMode::Alone {
            self.sequential.expect(self, purpose, addr, buf.len() as u64);
        }
        let begun = Instant::now();
        self.zones.read(purpose, addr, buf)?;
        let waited = wait::read_waited(begun, buf.len() as u64);
        if waited {
            // Merges do not count as readers. They read their blocks alone, but read the index like
            // readers.
            if how != ReadMode::Alone && purpose != Purpose::Index {
                self.note_reader(begun);
            }
            self.go_on(purpose, addr, buf.len() as u64, how);
        }
        Ok(waited)
    }

    /// After a read that had to wait, fetches the data that is likely to be read next.
    fn go_on(&self, purpose: Purpose, addr: u64, len: u64, how: ReadMode) {
        let around = match how {
            ReadMode::Alone => return,
            ReadMode::Around => self.around.fetch(&self.zones, purpose, addr),
            ReadMode::Onward => false,
        };
        if !(around || purpose == Purpose::Pages && around::reads_alone()) {
            self.sequential.note_wait(self, purpose, addr, len);
        }
    }

    /// Returns a tuple block if it is cached.
    #[inline]
    pub(crate) fn cached_block(&self, at: ChildPointer) -> Option<Arc<Block>> {
        let key = (at.at.addr, at.at.crc);
        if !at.refers {
            return self.blocks.get(&key);
        }
        match self.index.get(&key) {
            Some(IndexData::Block(b)) => Some(b),
            _ => None,
        }
    }

    /// Returns whether a tuple block is cached. The call does not count as a use of the block.
    pub(crate) fn has_block(&self, at: ChildPointer) -> bool {
        let key = (at.at.addr, at.at.crc);
        if at.refers { self.index.contains_key(&key) } else { self.blocks.contains_key(&key) }
    }

    /// Returns whether the tuple block is cached, as index data or as tuples.
    pub(crate) fn has_tuples(&self, at: FramePointer) -> bool {
        let key = (at.addr, at.crc);
        self.blocks.contains_key(&key) || self.index.contains_key(&key)
    }

    /// Reads a tuple block from the device into the cache.
    fn read_block(&self, at: ChildPointer, how: ReadMode) -> Result<Arc<Block>> {
        let (block, _) = self.read_tuples(at.at, how)?;
        self.keep_block(at, block.clone());
        Ok(block)
    }

    /// Returns a tuple block for a cursor, which announces its own reads. `read` is the number of
    /// bytes that the cursor has read so far. A long scan does not change the cache, because it
    /// will not soon return to the blocks that it read last.
    pub(crate) fn block_in_passing(&self, at: ChildPointer, read: u64) -> Result<Arc<Block>> {
        if at.refers {
            return self.read_block(at, ReadMode::Around);
        }
        let (block, _) = self.read_tuples(at.at, ReadMode::Onward)?;
        if read <= self.budget / LONG_WAY {
            self.keep_block(at, block.clone());
        }
        Ok(block)
    }

    /// Returns a tuple block, which is cached if it was not yet.
    pub(crate) fn block(&self, at: ChildPointer) -> Result<Arc<Block>> {
        match self.cached_block(at) {
            Some(block) => Ok(block),
            None => self.read_block(at, ReadMode::Around),
        }
    }

    /// Looks up `key` in the block of entry `i` of a leaf index node.
    #[inline]
    pub(crate) fn find(
        &self,
        leaf: &IndexNode,
        i: usize,
        key: &[u8],
    ) -> Result<Option<(Seq, Body)>> {
        let sparse = leaf.sparse_index(i);
        if let Some((found, tell)) = sparse.and_then(|sparse| sparse.find_cached(key)) {
            if tell {
                self.cached_block(leaf.child_pointer(i));
            }
            return found;
        }
        self.find_below(leaf, i, sparse, key)
    }

    /// Looks up `key` in a block to which no sparse index refers.
    fn find_below(
        &self,
        leaf: &IndexNode,
        i: usize,
        sparse: Option<&Arc<SparseIndex>>,
        key: &[u8],
    ) -> Result<Option<(Seq, Body)>> {
        let child = leaf.child_pointer(i);
        // One of two concurrent increments may be lost, but the clock need not be exact.
        let now = self.misses.load(Relaxed).wrapping_add(1);
        self.misses.store(now, Relaxed);
        let soon = self.soon.load(Relaxed);
        if let Some(sparse) = sparse.filter(|sparse| sparse.suits(now, soon) && soon > 0) {
            let payload = child.at.addr + FRAME_HEADER as u64;
            let found = sparse.find(key, |at, interval| {
                if self.read_into(
                    Purpose::Tuples,
                    payload + at as u64,
                    interval,
                    ReadMode::Around,
                )? {
                    sparse.set_slow(true);
                }
                Ok(())
            });
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let (block, waited) = match self.cached_block(child) {
            Some(block) => (block, None),
            None => {
                let (block, waited) = self.read_tuples(child.at, ReadMode::Around)?;
                (block, Some(waited))
            }
        };
        // The restart intervals of a compressed block cannot be read separately.
        let plain = block.bytes().len() + FRAME_HEADER == child.at.len as usize;
        let mut seen = sparse;
        if sparse.is_none()
            && plain
            && !child.refers
            && let Some(new) = SparseIndex::of(&block, now)
        {
            leaf.keep_sparse_index(i, new, &self.sparse_bytes, self.budget / SPARSE_INDEXES);
            seen = leaf.sparse_index(i);
        }
        if let Some(waited) = waited {
            sparse.inspect(|sparse| sparse.set_slow(waited));
            // The host has the block in memory, and the block was requested only once so far, so it
            // does not replace other blocks.
            if sparse.is_none() && seen.is_some() && !waited && soon > 0 {
                return block.find(key);
            }
            self.keep_block(child, block.clone());
        }
        seen.inspect(|sparse| sparse.keep(&block));
        block.find(key)
    }

    fn keep_block(&self, at: ChildPointer, block: Arc<Block>) {
        if at.refers {
            return self.keep_index_data(at.at, IndexData::Block(block));
        }
        self.blocks.insert((at.at.addr, at.at.crc), block);
        let full = self.blocks.weight() + self.budget / 32 > self.blocks.capacity();
        self.soon.store(if full { (self.blocks.len() / SOON).max(1) as u32 } else { 0 }, Relaxed);
    }

    /// Returns a tuple block for a merge. A merge reads each block once, so a block that is not
    /// cached is read without being cached, and evicts no other block.
    pub(crate) fn block_once(&self, at: FramePointer) -> Result<Arc<Block>> {
        let key = (at.addr, at.crc);
        let cached = self.blocks.peek(&key).or_else(|| match self.index.peek(&key) {
            Some(IndexData::Block(b)) => Some(b),
            _ => None,
        });
        match cached {
            Some(b) => Ok(b),
            None => Ok(self.read_tuples(at, ReadMode::Alone)?.0),
        }
    }

    /// Returns the block of an entry for a merge, after checking that the keys begin within the
    /// fences of the entry.
    pub(crate) fn block_beneath(&self, above: &Entry) -> Result<Arc<Block>> {
        let block = self.block_once(above.at)?;
        match block.ends()? {
            Some((first, last)) if first < above.low.as_ref() || last >= above.high.as_ref() => {
                Err(outside(above.at.addr))
            }
            _ => Ok(block),
        }
    }

    /// Returns the index node of an entry with all its sums, for a merge. A merge reads each node
    /// once, so the node is not cached.
    pub(crate) fn node(&self, above: &Entry, level: u16) -> Result<Node> {
        let node = self.read_node(above.at, level)?;
        node.belongs(above)?;
        Ok(node)
    }

    /// Reads an index node without checking its fences. The caller must check them.
    pub(crate) fn read_node(&self, at: FramePointer, level: u16) -> Result<Node> {
        Node::parse(self.read_frame(FrameKind::Node, level, at, ReadMode::Around)?, level, at.addr)
    }

    /// Returns an index node in the form that reads use.
    pub(crate) fn index_node(&self, at: FramePointer, level: u16) -> Result<Arc<IndexNode>> {
        if let Some(IndexData::Node(node)) = self.index.get(&(at.addr, at.crc))
            && node.level == level
        {
            return Ok(node);
        }
        let node = Arc::new(IndexNode::of(&self.read_node(at, level)?));
        self.keep_index_data(at, IndexData::Node(node.clone()));
        Ok(node)
    }

    /// Stores a reference to a node in its parent, where the node is found without a lookup in the
    /// cache. Such nodes and filters share an eighth of the budget. The cache itself eventually
    /// evicts the node, because the node is no longer requested there.
    pub(crate) fn keep_beneath(&self, above: &IndexNode, i: usize, node: &Arc<IndexNode>) {
        above.keep_child(i, node.clone(), &self.pinned, self.budget / 8);
    }

    pub(crate) fn has_index_node(&self, at: FramePointer) -> bool {
        self.index.contains_key(&(at.addr, at.crc))
    }

    pub(crate) fn filter(&self, at: FramePointer) -> Result<Arc<Filter>> {
        if let Some(IndexData::Filter(f)) = self.index.get(&(at.addr, at.crc)) {
            return Ok(f);
        }
        let filter = Arc::new(Filter::parse(self.read_frame(
            FrameKind::Filter,
            0,
            at,
            ReadMode::Around,
        )?)?);
        self.keep_index_data(at, IndexData::Filter(filter.clone()));
        Ok(filter)
    }

    /// Stores a reference to a filter in its node, where the filter is found without a lookup in
    /// the cache. Such filters stay within an eighth of the budget. The cache holds the filter as
    /// well, so that the next run with the same subtree finds it.
    pub(crate) fn pin(&self, filter: &Filter) -> Option<FilterPin> {
        FilterPin::keep(filter, &self.pinned, self.budget / 8)
    }

    /// Returns the counter of the memory, in bytes, that all cursors together use for tuples read
    /// ahead. Cursors that use memory update the counter.
    pub fn ahead(&self) -> &AtomicUsize {
        &self.ahead
    }

    /// Returns the budget of the caches, in bytes.
    pub fn cache_budget(&self) -> u64 {
        self.budget
    }
}

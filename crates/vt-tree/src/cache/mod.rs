//! The block cache and reader that all trees of a store share.
//!
//! The cache is keyed by device address and checksum. Stitching moves pointers and leaves blocks
//! where they are, so a block stays cached through any number of merges; and a zone that is freed
//! and rewritten never serves its former content.
//!
//! Index nodes, filters, and tuple blocks that hold little but references to large values have the
//! first claim on the budget, so that a read costs the device one access, for the tuple itself.
//! Tuple blocks have the rest, at least an eighth.

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

/// A cursor that has read more than the budget divided by this no longer fills the cache.
const LONG_WAY: u64 = 2;
/// A block in the host's page cache replaces a cached one if it is requested twice within a number
/// of misses: one miss for this many blocks in the cache. If all blocks are requested equally
/// often, replacing one by another gains nothing.
const SOON: usize = 16;
/// The first window that a scan announces costs a seek divided by this.
const FIRST_SHARE: u64 = 4;
/// Sparse indexes may take the budget divided by this.
const SPARSE_INDEXES: u64 = 4;

/// The way in which data that is not in memory is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    Alone,
    /// Announces the data that follows on the device, if reads continue there. See
    /// [`SequentialReads`].
    Onward,
    /// Fetches the neighbourhood on the device as well, see [`ReadAround`], if that suits the
    /// store; otherwise does the same as `Onward`.
    Around,
}

/// The parts of an index that are cached before anything else: without them each read of a tuple
/// would cost several device accesses.
#[derive(Clone)]
enum IndexData {
    Node(Arc<IndexNode>),
    Filter(Arc<Filter>),
    /// A tuple block that mostly refers to large values.
    Block(Arc<Block>),
}

/// A device address and the checksum of the data there.
type CacheKey = (u64, u32);

/// An estimate of the cache's own overhead for an entry, bytes.
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

/// Tells sparse indexes which blocks the cache has evicted.
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

/// The device and the block cache; one for all trees of a store.
pub struct BlockCache {
    zones: Arc<Zones>,
    /// The budget of both caches together, bytes.
    budget: u64,
    /// The cached index data. It may take seven eighths of the budget; tuple blocks get the rest.
    index: Cache<CacheKey, IndexData, CacheWeight>,
    blocks: Cache<CacheKey, Arc<Block>, CacheWeight, DefaultHashBuilder, EvictionListener>,
    ahead: AtomicUsize,
    pinned: Arc<AtomicU64>,
    sparse_bytes: Arc<AtomicU64>,
    /// The number of tuple blocks requested that were not cached.
    misses: AtomicU32,
    /// A block that is requested again after fewer misses than this replaces another one; 0 while
    /// the cache has room.
    soon: AtomicU32,
    around: ReadAround,
    sequential: SequentialReads,
    reader_seeks: ReaderSeeks,
    /// The number of bytes that the device reads in the time of a seek; 0 if seeks are cheap.
    seek_bytes: AtomicU64,
}

/// Allocates memory for `len` bytes that lie at `addr`. Nothing longer than a zone is read in one
/// go: a greater length is damage, and must not size an allocation.
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

    /// Sets the number of bytes that the device reads in the time of a seek: reads pass over gaps
    /// that cost less, and read-ahead begins with a share of it.
    pub fn set_seek_bytes(&self, bytes: u64) {
        self.seek_bytes.store(bytes, Relaxed);
    }

    /// Returns the value set by [`BlockCache::set_seek_bytes`].
    pub fn seek_bytes(&self) -> u64 {
        self.seek_bytes.load(Relaxed)
    }

    /// Returns how many bytes a scan announces first: as many as cost a quarter of a seek, since
    /// they may be announced in vain, but at least `least`.
    pub fn first_window(&self, least: u64) -> u64 {
        least.max(self.seek_bytes() / FIRST_SHARE)
    }

    /// Returns the zones that the cache reads.
    pub fn zones(&self) -> &Arc<Zones> {
        &self.zones
    }

    /// Returns the bytes that the block cache holds now.
    pub fn cache_bytes(&self) -> u64 {
        self.index.weight() + self.blocks.weight()
    }

    fn keep_index_data(&self, at: FramePointer, value: IndexData) {
        self.index.insert((at.addr, at.crc), value);
        // Shrinks the share of the tuple blocks, in steps that are large enough to be worth it.
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

    /// Reads a tuple block from the device, and returns whether it had to wait for the device.
    fn read_tuples(&self, at: FramePointer, how: ReadMode) -> Result<(Arc<Block>, bool)> {
        let (frame, waited) = self.read_raw(Purpose::Tuples, at.addr, u64::from(at.len), how)?;
        let open = |frame| frame::open(frame, FrameKind::Tuples, 0, at);
        let payload = self.checked(Purpose::Tuples, at.addr, frame, open)?;
        Ok((Arc::new(Block::parse(payload, at.addr)?), waited))
    }

    /// Reads `len` bytes at `addr`, and returns whether it had to wait for the device.
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

    /// Fills `buf` with the bytes at `addr`, and returns whether it had to wait for the device.
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
            // Merges do not count as readers: they read their blocks alone, but the index as
            // readers do.
            if how != ReadMode::Alone && purpose != Purpose::Index {
                self.note_reader(begun);
            }
            self.go_on(purpose, addr, buf.len() as u64, how);
        }
        Ok(waited)
    }

    /// Fetches the data that is likely to be read next, after a read that had to wait.
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

    /// Returns whether a tuple block is cached; does not count as a use.
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

    /// Returns a tuple block for a cursor, which announces by itself what it will read. `read` is
    /// the number of bytes it has read so far: a long scan leaves the cache as it is, since it does
    /// not soon return to the blocks read last.
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

    /// Returns a tuple block.
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

    /// Looks up `key` in a block to which no sparse index has a reference.
    fn find_below(
        &self,
        leaf: &IndexNode,
        i: usize,
        sparse: Option<&Arc<SparseIndex>>,
        key: &[u8],
    ) -> Result<Option<(Seq, Body)>> {
        let child = leaf.child_pointer(i);
        // One of two concurrent increments may be lost: the clock need not be exact.
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
        // The restart intervals of a compressed block cannot be read by themselves.
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
            // The host has the block, and it was requested only once so far: it does not replace
            // other blocks.
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

    /// Returns a tuple block for a merge, which reads each block once: a cached one is used, but
    /// one that is read is not cached, so that it evicts no other.
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

    /// Returns the block of an entry, for a merge, after a check that its keys begin within the
    /// entry's fences.
    pub(crate) fn block_beneath(&self, above: &Entry) -> Result<Arc<Block>> {
        let block = self.block_once(above.at)?;
        match block.ends()? {
            Some((first, last)) if first < above.low.as_ref() || last >= above.high.as_ref() => {
                Err(outside(above.at.addr))
            }
            _ => Ok(block),
        }
    }

    /// Returns the index node of an entry with all its sums, for a merge. Merges read each node
    /// once, so it is not cached.
    pub(crate) fn node(&self, above: &Entry, level: u16) -> Result<Node> {
        let node = self.read_node(above.at, level)?;
        node.belongs(above)?;
        Ok(node)
    }

    /// Reads an index node without a check of its fences, which is up to the caller.
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

    /// Keeps a node in memory at its parent, where it is found without a lookup in the cache,
    /// within an eighth of the budget that nodes and filters share. The cache evicts the node in
    /// time, since it is no longer requested there.
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

    /// Keeps a filter in memory at its node, where it is found without a lookup in the cache,
    /// within an eighth of the budget. The cache holds the filter as well, so that the next run
    /// with the same subtree finds it.
    pub(crate) fn pin(&self, filter: &Filter) -> Option<FilterPin> {
        FilterPin::keep(filter, &self.pinned, self.budget / 8)
    }

    /// Returns the memory that all cursors together use for tuples read ahead, in bytes. The
    /// cursors that use memory keep the number up to date.
    pub fn ahead(&self) -> &AtomicUsize {
        &self.ahead
    }

    /// Returns the budget of the caches, bytes.
    pub fn cache_budget(&self) -> u64 {
        self.budget
    }
}

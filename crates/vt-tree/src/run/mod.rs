//! A run: an immutable sorted sequence of items, stored as a tree of index nodes over tuple blocks
//! (the paper's SSTable). Runs may share blocks and whole subtrees. Each run pins every zone that
//! contains a byte of it.

mod announced;
mod block_walk;
mod cursor;
mod index_levels;
mod path;
mod values_in_zones;
mod zone_weights;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use zones::{ZonePin, ZoneUse, varint};

use crate::cache::BlockCache;
use crate::filter::Filter;
use crate::index::entry::Entry;
use crate::index::index_node::{ChildPointer, FilterPin, IndexNode};
use crate::item::Lookup;
use crate::{Error, Result};

pub use block_walk::BlockWalk;
pub use cursor::RunCursor;
pub use index_levels::IndexLeaves;
pub use zone_weights::ZoneWeight;

/// Maximum number of index levels of a run. A node has four entries or more, except at the end of a
/// run and before a stitched subtree, so real runs have far fewer levels.
const MAX_LEVEL: u16 = 40;

/// After this many successive gets that found their key, the following ones skip the filter: if
/// nearly all keys are present, the filter costs more than it saves. The first absent key ends
/// this.
const SURE: u32 = 64;
/// One get in this many is counted, so that readers seldom write to the shared cache line.
const COUNTED: u64 = 8;

/// An immutable sorted sequence of items on the device. It pins its zones, so they are not reused
/// while the run exists.
pub struct Run {
    cache: Arc<BlockCache>,
    root: Entry,
    /// The level of the root node. It is 1 if the root is a leaf index node.
    level: u16,
    /// The root node, once it has been read. It is kept because every read needs it.
    top: OnceLock<Arc<IndexNode>>,
    /// The filter of the root, if the root is a leaf index node.
    root_filter: OnceLock<FilterPin>,
    /// The number of successive counted gets that found their key, at most [`SURE`].
    found: AtomicU32,
    uses: ZoneUse,
    _zones: ZonePin,
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Number of items.
    pub items: u64,
    /// Bytes of tuple blocks.
    pub block_bytes: u64,
    /// Contiguous spans of tuple blocks on the device.
    pub block_spans: u64,
    /// Bytes of large values on the device.
    pub value_bytes: u64,
    /// Contiguous spans of large values on the device.
    pub value_spans: u64,
    /// All bytes, including index and filters.
    pub bytes: u64,
    /// Number of levels of index nodes.
    pub height: u16,
    /// The newest sequence number, or 0 if all items are old.
    pub max_seq: u64,
    /// True if the run has tombstones of single keys.
    pub tombstones: bool,
    /// True if the run has range tombstones.
    pub range_tombstones: bool,
}

impl Run {
    /// Opens the run with this root, and pins its zones.
    pub(crate) fn open(cache: &Arc<BlockCache>, root: Entry, level: u16) -> Result<Arc<Run>> {
        let uses = root.zone_use()?;
        let pin = cache.zones().pin(&uses)?;
        Ok(Run::holding(cache, root, level, uses, pin))
    }

    fn holding(
        cache: &Arc<BlockCache>,
        root: Entry,
        level: u16,
        uses: ZoneUse,
        pin: ZonePin,
    ) -> Arc<Run> {
        Arc::new(Run {
            cache: cache.clone(),
            root,
            level,
            top: OnceLock::new(),
            root_filter: OnceLock::new(),
            found: AtomicU32::new(0),
            uses,
            _zones: pin,
        })
    }

    /// Appends the root pointer, as stored in a manifest, to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put_u64(out, u64::from(self.level));
        let mut entry = Vec::new();
        self.root.encode(&[], &mut entry);
        varint::put_u64(out, entry.len() as u64);
        out.extend_from_slice(&entry);
    }

    /// Decodes the root pointer of a run from the front of `data`. Reads nothing from the device
    /// yet.
    pub fn decode(cache: &Arc<BlockCache>, data: &mut &[u8]) -> Result<Arc<Run>> {
        let (root, level) = Run::decode_root(data)?;
        Run::open(cache, root, level)
    }

    /// Decodes a run like [`Run::decode`], but does not pin its zones. This is for a store that is
    /// not written to and may lack some of these zones.
    pub fn decode_unpinned(cache: &Arc<BlockCache>, data: &mut &[u8]) -> Result<Arc<Run>> {
        let (root, level) = Run::decode_root(data)?;
        Ok(Run::holding(cache, root, level, ZoneUse::new(), ZonePin::default()))
    }

    fn decode_root(data: &mut &[u8]) -> Result<(Entry, u16)> {
        let corrupt = || Error::corrupt("run: its root pointer does not decode", 0);
        let level = varint::get_u64(data).map_err(|_| corrupt())?;
        let len = varint::get_u64(data).map_err(|_| corrupt())? as usize;
        if level == 0 || level > u64::from(MAX_LEVEL) || len > data.len() {
            return Err(corrupt());
        }
        let (entry, rest) = data.split_at(len);
        *data = rest;
        let mut at = 0;
        let root = Entry::decode(&bytes::Bytes::copy_from_slice(entry), &mut at, &[])
            .filter(|_| at == len)
            .ok_or_else(corrupt)?;
        Ok((root, level as u16))
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    pub(crate) fn root(&self) -> (&Entry, u16) {
        (&self.root, self.level)
    }

    /// Returns the bytes of the run, by zone.
    pub fn uses(&self) -> &ZoneUse {
        &self.uses
    }

    /// Returns the fences `(low, high)`: every key is in `[low, high)`.
    pub fn fences(&self) -> (&[u8], &[u8]) {
        (&self.root.low, &self.root.high)
    }

    /// Returns the sums over the run, as stored in its root entry.
    pub fn stats(&self) -> RunStats {
        let r = &self.root;
        RunStats {
            items: r.items,
            block_bytes: r.block_bytes,
            block_spans: r.block_spans,
            value_bytes: r.value_bytes,
            value_spans: r.value_spans,
            bytes: self.uses.total_bytes(),
            height: self.level,
            max_seq: r.max_seq,
            tombstones: r.tombstones,
            range_tombstones: r.range_tombstones,
        }
    }

    /// Looks up `key`, whose [`crate::hash`] is `hash`. At most one tuple block is read.
    pub fn get(&self, key: &[u8], hash: u64) -> Result<Lookup> {
        match self.probe(key, hash)? {
            Some(probe) => probe.get(key, hash),
            None => Ok(Lookup::Absent),
        }
    }

    /// Returns `false` only if the run has no item that covers `key`. Reads no tuple block.
    pub fn may_have(&self, key: &[u8], hash: u64) -> Result<bool> {
        let Some(probe) = self.probe_with(key, hash, false)? else { return Ok(false) };
        Ok(probe.locate(key, hash)?.is_some())
    }

    /// Returns the address and length of the tuple block that a `get` of `key` would have to read,
    /// if any.
    pub fn wants(&self, key: &[u8], hash: u64) -> Result<Option<(u64, u32)>> {
        let Some(probe) = self.probe_with(key, hash, false)? else { return Ok(None) };
        Ok(probe
            .locate(key, hash)?
            .filter(|t| !self.cache.has_block(*t))
            .map(|t| (t.at.addr, t.at.len)))
    }

    /// Performs the first part of a [`Run::get`], up to the filter, whose memory is prefetched. A
    /// lookup in several runs first probes all of them, so that it waits for memory once instead of
    /// once for each run. Returns `None` if the run cannot have the key.
    pub fn probe(&self, key: &[u8], hash: u64) -> Result<Option<Probe<'_>>> {
        self.probe_with(key, hash, self.sure())
    }

    /// Probes like [`Run::probe`], but skips the filter if `sure` is set.
    fn probe_with(&self, key: &[u8], hash: u64, sure: bool) -> Result<Option<Probe<'_>>> {
        if key < self.root.low.as_ref() || key >= self.root.high.as_ref() {
            return Ok(None);
        }
        let mut node = NodeRef::Borrowed(self.root_node()?);
        let mut probe = loop {
            let Some(at) = node.covering(key) else { return Ok(None) };
            if node.level <= 2 {
                break Probe { run: self, node, at, filter: None, sure };
            }
            node = match &node {
                NodeRef::Borrowed(above) => self.beneath(above, at)?,
                NodeRef::Shared(above) => NodeRef::Shared(
                    self.cache.index_node(above.child_pointer(at).at, above.level - 1)?,
                ),
            };
        };
        if probe.sure {
            return Ok(Some(probe));
        }
        let (filter, pinned) = match probe.node.level {
            2 => (probe.node.filter(probe.at), probe.node.pins.get(probe.at)),
            _ => (self.root.filter, Some(&self.root_filter)),
        };
        if let Some(f) = filter {
            let have = pinned.and_then(OnceLock::get).map(FilterPin::filter);
            match have {
                Some(filter) => filter.prefetch(hash),
                None => {
                    let filter = self.cache.filter(f)?;
                    match pinned.zip(self.cache.pin(&filter)) {
                        // Another thread may have set it first.
                        Some((slot, pin)) => slot.get_or_init(|| pin).filter().prefetch(hash),
                        None => {
                            filter.prefetch(hash);
                            probe.filter = Some(filter);
                        }
                    }
                }
            }
        }
        Ok(Some(probe))
    }

    /// Returns whether requested keys are nearly always present.
    fn sure(&self) -> bool {
        self.found.load(Relaxed) >= SURE
    }

    /// Counts a get. `found` tells whether it has found its key.
    fn count(&self, found: bool, hash: u64) {
        let before = self.found.load(Relaxed);
        let after = match found {
            true if before < SURE && hash.is_multiple_of(COUNTED) => before + 1,
            false => 0,
            true => before,
        };
        if after != before {
            self.found.store(after, Relaxed);
        }
    }

    /// Returns the node beneath entry `i` of `above`.
    fn beneath<'a>(&self, above: &'a IndexNode, i: usize) -> Result<NodeRef<'a>> {
        if let Some(node) = above.child(i) {
            return Ok(NodeRef::Borrowed(node));
        }
        let node = self.cache.index_node(above.child_pointer(i).at, above.level - 1)?;
        self.cache.keep_beneath(above, i, &node);
        Ok(NodeRef::Shared(node))
    }

    fn root_node(&self) -> Result<&Arc<IndexNode>> {
        if let Some(top) = self.top.get() {
            return Ok(top);
        }
        let top = self.cache.index_node(self.root.at, self.level)?;
        Ok(self.top.get_or_init(|| top))
    }

    /// Returns a reference to the root node.
    pub(crate) fn top(&self) -> Result<Arc<IndexNode>> {
        self.root_node().cloned()
    }
}

/// A node that is borrowed if possible, because counting references costs more than a search in it.
enum NodeRef<'a> {
    Borrowed(&'a IndexNode),
    Shared(Arc<IndexNode>),
}

impl std::ops::Deref for NodeRef<'_> {
    type Target = IndexNode;
    fn deref(&self) -> &IndexNode {
        match self {
            NodeRef::Borrowed(node) => node,
            NodeRef::Shared(node) => node,
        }
    }
}

/// The state of a [`Run::get`] after its first part. See [`Run::probe`].
pub struct Probe<'a> {
    run: &'a Run,
    /// The parent of the leaf index node, or that node itself if it is the root; and the index of
    /// the entry that covers the key.
    node: NodeRef<'a>,
    at: usize,
    /// The filter, if it is not kept with the node.
    filter: Option<Arc<Filter>>,
    /// True if the filter is skipped.
    sure: bool,
}

impl Probe<'_> {
    fn filter(&self) -> Option<&Filter> {
        if self.sure {
            return None;
        }
        match (&self.filter, self.node.level) {
            (Some(filter), _) => Some(filter),
            (None, 2) => self.node.pins.get(self.at)?.get().map(FilterPin::filter),
            (None, _) => self.run.root_filter.get().map(FilterPin::filter),
        }
    }

    /// Prefetches the rest of the filter's memory. `hash` must be the one given to [`Run::probe`].
    pub fn advance(&self, hash: u64) {
        if let Some(filter) = self.filter() {
            filter.prefetch_rest(hash);
        }
    }

    /// Performs the second part of [`Run::get`], with the same key and hash as the first.
    pub fn get(&self, key: &[u8], hash: u64) -> Result<Lookup> {
        let found = match self.leaf_entry(key, hash)? {
            None => None,
            Some(LeafEntry::Here) => self.run.cache.find(&self.node, self.at, key)?,
            Some(LeafEntry::Below(leaf, i)) => self.run.cache.find(&leaf, i, key)?,
        };
        self.run.count(found.is_some(), hash);
        found.map_or(Ok(Lookup::Absent), |(seq, body)| Lookup::of(seq, body))
    }

    /// Returns the one block that may cover `key`, or `None` if none does.
    fn locate(&self, key: &[u8], hash: u64) -> Result<Option<ChildPointer>> {
        Ok(self.leaf_entry(key, hash)?.map(|entry| match entry {
            LeafEntry::Here => self.node.child_pointer(self.at),
            LeafEntry::Below(leaf, i) => leaf.child_pointer(i),
        }))
    }

    /// Returns the entry of the leaf index node that may cover `key`, or `None` if none does.
    fn leaf_entry(&self, key: &[u8], hash: u64) -> Result<Option<LeafEntry<'_>>> {
        let no = self.filter().is_some_and(|f| !f.may_contain(hash));
        // If the filter excludes the key, only blocks whose keys are in no filter and blocks with
        // range tombstones can cover it.
        let left = |unfiltered: bool, range_tombstones: bool| !no || unfiltered || range_tombstones;
        let child = self.node.child_pointer(self.at);
        if self.node.level == 1 {
            let root = &self.run.root;
            let may_cover = left(root.unfiltered, root.range_tombstones)
                && left(child.unfiltered, child.range_tombstones);
            return Ok(may_cover.then_some(LeafEntry::Here));
        }
        if !left(child.unfiltered, child.range_tombstones) {
            return Ok(None);
        }
        let leaf = self.run.beneath(&self.node, self.at)?;
        let Some(i) = leaf.covering(key) else { return Ok(None) };
        let t = leaf.child_pointer(i);
        Ok(left(t.unfiltered, t.range_tombstones).then_some(LeafEntry::Below(leaf, i)))
    }
}

/// The location of an entry of a leaf index node.
enum LeafEntry<'a> {
    /// The entry is in the probe's own node, which is the root.
    Here,
    /// The entry is in a leaf index node beneath it, at this index.
    Below(NodeRef<'a>, usize),
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("root", &self.root.at)
            .field("level", &self.level)
            .field("stats", &self.stats())
            .finish()
    }
}

//! A run: an immutable sorted sequence of items, stored as a tree of index nodes over tuple blocks
//! (the paper's SSTable). Runs share blocks and whole subtrees freely; each holds every zone in
//! which a byte of it lies.

mod cursor;
mod path;
mod zone_weights;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use zones::{ZonePin, ZoneUse, varint};

use crate::cache::BlockCache;
use crate::filter::Filter;
use crate::index::entry::Entry;
use crate::index::index_node::{ChildPointer, FilterPin, IndexNode};
use crate::item::{Body, Lookup};
use crate::{Error, Result};

pub use cursor::RunCursor;
pub use zone_weights::ZoneWeight;

/// Index levels that any run can need: a node has at least two entries but for the seams.
const MAX_LEVEL: u16 = 40;

/// After so many gets in a row that found their key, those that come are taken for such as well,
/// and ask no filter: where nearly all keys are there, it costs more than it saves. The first that
/// is not there ends it.
const SURE: u32 = 64;
/// One get in so many is counted, so that readers seldom write to the same place.
const COUNTED: u64 = 8;

pub struct Run {
    cache: Arc<BlockCache>,
    root: Entry,
    /// Level of the root node; 1 when it is a leaf index node.
    level: u16,
    /// The root node, once it was read: the one index node that every read needs.
    top: OnceLock<Arc<IndexNode>>,
    /// The filter of a root that is a leaf.
    pin: OnceLock<FilterPin>,
    /// Gets in a row, of those that were counted, that found their key here; as far as [`SURE`].
    found: AtomicU32,
    uses: ZoneUse,
    _pin: ZonePin,
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    pub items: u64,
    pub block_bytes: u64,
    pub block_spans: u64,
    pub value_bytes: u64,
    pub value_spans: u64,
    /// All bytes, index and filters included.
    pub bytes: u64,
    /// Levels of index nodes.
    pub height: u16,
    pub max_seq: u64,
    pub tombstones: bool,
    pub range_tombstones: bool,
}

impl Run {
    /// A run by its root; its zones are held from here on.
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
            pin: OnceLock::new(),
            found: AtomicU32::new(0),
            uses,
            _pin: pin,
        })
    }

    /// The root pointer, for a manifest.
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put_u64(out, u64::from(self.level));
        let mut entry = Vec::new();
        self.root.encode(&[], &mut entry);
        varint::put_u64(out, entry.len() as u64);
        out.extend_from_slice(&entry);
    }

    /// Takes up a run that a manifest names. Nothing is read yet.
    pub fn decode(cache: &Arc<BlockCache>, data: &mut &[u8]) -> Result<Arc<Run>> {
        let (root, level) = Run::decode_root(data)?;
        Run::open(cache, root, level)
    }

    /// The same without keeping its zones: for a store that nobody writes to, and that may lack
    /// some of them.
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

    /// Its bytes by zone.
    pub fn uses(&self) -> &ZoneUse {
        &self.uses
    }

    /// Every key lies in `[low, high)`.
    pub fn fences(&self) -> (&[u8], &[u8]) {
        (&self.root.low, &self.root.high)
    }

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

    /// What this run knows of `key`; `hash` is [`crate::hash`] of it. At most one tuple block is
    /// read.
    pub fn get(&self, key: &[u8], hash: u64) -> Result<Lookup> {
        match self.probe(key, hash)? {
            Some(probe) => probe.get(key, hash),
            None => Ok(Lookup::Absent),
        }
    }

    /// `false`: the run has nothing at `key`. Tuple blocks are not read for it.
    pub fn may_have(&self, key: &[u8], hash: u64) -> Result<bool> {
        let Some(probe) = self.probe_with(key, hash, false)? else { return Ok(false) };
        Ok(probe.locate(key, hash)?.is_some())
    }

    /// The block that a `get` of `key` would have to read, where it lies.
    pub fn wants(&self, key: &[u8], hash: u64) -> Result<Option<(u64, u32)>> {
        let Some(probe) = self.probe_with(key, hash, false)? else { return Ok(None) };
        Ok(probe
            .locate(key, hash)?
            .filter(|t| !self.cache.has_block(*t))
            .map(|t| (t.at.addr, t.at.len)))
    }

    /// The first part of a [`Run::get`], up to the filter: its memory is on its way to the
    /// processor then. Whoever looks into several runs begins with all of them, so that it waits
    /// for memory once and not once for each. `None`: the run cannot have the key.
    pub fn probe(&self, key: &[u8], hash: u64) -> Result<Option<Probe<'_>>> {
        self.probe_with(key, hash, self.sure())
    }

    /// `sure`: no filter is asked.
    fn probe_with(&self, key: &[u8], hash: u64, sure: bool) -> Result<Option<Probe<'_>>> {
        if key < self.root.low.as_ref() || key >= self.root.high.as_ref() {
            return Ok(None);
        }
        let mut node = NodeRef::Top(self.root_node()?);
        let mut probe = loop {
            let Some(at) = node.covering(key) else { return Ok(None) };
            if node.level <= 2 {
                break Probe { run: self, node, at, filter: None, sure };
            }
            node = match &node {
                NodeRef::Top(above) => self.beneath(above, at)?,
                NodeRef::Below(above) => NodeRef::Below(
                    self.cache.index_node(above.child_pointer(at).at, above.level - 1)?,
                ),
            };
        };
        if probe.sure {
            return Ok(Some(probe));
        }
        let (filter, pinned) = match probe.node.level {
            2 => (probe.node.filter(probe.at), probe.node.pins.get(probe.at)),
            _ => (self.root.filter, Some(&self.pin)),
        };
        if let Some(f) = filter {
            let have = pinned.and_then(OnceLock::get).map(FilterPin::filter);
            match have {
                Some(filter) => filter.prefetch(hash),
                None => {
                    let filter = self.cache.filter(f)?;
                    match pinned.zip(self.cache.pin(&filter)) {
                        // Somebody else may have been quicker.
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

    /// Whether keys that are asked for are nearly always here.
    fn sure(&self) -> bool {
        self.found.load(Relaxed) >= SURE
    }

    /// Counts a get that did or did not find its key here.
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

    /// The node beneath an entry of another.
    fn beneath<'a>(&self, above: &'a IndexNode, i: usize) -> Result<NodeRef<'a>> {
        if let Some(node) = above.child(i) {
            return Ok(NodeRef::Top(node));
        }
        let node = self.cache.index_node(above.child_pointer(i).at, above.level - 1)?;
        self.cache.keep_beneath(above, i, &node);
        Ok(NodeRef::Below(node))
    }

    fn root_node(&self) -> Result<&Arc<IndexNode>> {
        if let Some(top) = self.top.get() {
            return Ok(top);
        }
        let top = self.cache.index_node(self.root.at, self.level)?;
        Ok(self.top.get_or_init(|| top))
    }

    /// The root node.
    pub(crate) fn top(&self) -> Result<Arc<IndexNode>> {
        self.root_node().cloned()
    }
}

/// A node that is borrowed where it can be: counting references costs more than a search in it.
enum NodeRef<'a> {
    Top(&'a IndexNode),
    Below(Arc<IndexNode>),
}

impl std::ops::Deref for NodeRef<'_> {
    type Target = IndexNode;
    fn deref(&self) -> &IndexNode {
        match self {
            NodeRef::Top(node) => node,
            NodeRef::Below(node) => node,
        }
    }
}

/// A [`Run::get`] that has come to the filter.
pub struct Probe<'a> {
    run: &'a Run,
    /// The node above the leaf index node, or that itself where it is the root; and the entry that
    /// covers the key.
    node: NodeRef<'a>,
    at: usize,
    /// The filter, when it is not pinned beside the node.
    filter: Option<Arc<Filter>>,
    /// No filter is asked.
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
            (None, _) => self.run.pin.get().map(FilterPin::filter),
        }
    }

    /// Brings what is left of the filter's memory on its way.
    pub fn advance(&self, hash: u64) {
        if let Some(filter) = self.filter() {
            filter.prefetch_rest(hash);
        }
    }

    /// The second part of [`Run::get`].
    pub fn get(&self, key: &[u8], hash: u64) -> Result<Lookup> {
        let found = match self.lead(key, hash)? {
            None => None,
            Some(Lead::Here) => self.run.cache.find(&self.node, self.at, key)?,
            Some(Lead::Below(leaf, i)) => self.run.cache.find(&leaf, i, key)?,
        };
        self.run.count(found.is_some(), hash);
        Ok(match found {
            None => Lookup::Absent,
            Some((seq, Body::Put(value))) => Lookup::Found(seq, value),
            Some((seq, Body::Delete | Body::DeleteRange { .. })) => Lookup::Deleted(seq),
        })
    }

    /// The one block that can cover `key`, unless it is known that none does.
    fn locate(&self, key: &[u8], hash: u64) -> Result<Option<ChildPointer>> {
        Ok(self.lead(key, hash)?.map(|lead| match lead {
            Lead::Here => self.node.child_pointer(self.at),
            Lead::Below(leaf, i) => leaf.child_pointer(i),
        }))
    }

    /// The same by its leaf index node.
    fn lead(&self, key: &[u8], hash: u64) -> Result<Option<Lead<'_>>> {
        let no = self.filter().is_some_and(|f| !f.may_contain(hash));
        // When the filter says no, what is left are blocks whose keys are in no filter, and those
        // with range tombstones.
        let left = |unfiltered: bool, range_tombstones: bool| !no || unfiltered || range_tombstones;
        let child = self.node.child_pointer(self.at);
        if self.node.level == 1 {
            let root = &self.run.root;
            let any = left(root.unfiltered, root.range_tombstones)
                && left(child.unfiltered, child.range_tombstones);
            return Ok(any.then_some(Lead::Here));
        }
        if !left(child.unfiltered, child.range_tombstones) {
            return Ok(None);
        }
        let leaf = self.run.beneath(&self.node, self.at)?;
        let Some(i) = leaf.covering(key) else { return Ok(None) };
        let t = leaf.child_pointer(i);
        Ok(left(t.unfiltered, t.range_tombstones).then_some(Lead::Below(leaf, i)))
    }
}

/// Where a probe leads: to an entry of a leaf index node.
enum Lead<'a> {
    /// The probe's own.
    Here,
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

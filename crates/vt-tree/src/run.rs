//! A run: an immutable sorted sequence of items, stored as a tree of index nodes over tuple blocks (the paper's SSTable). Runs
//! share blocks and whole subtrees freely; each holds every zone in which a byte of it lies.

use std::sync::{Arc, OnceLock};

use zones::{Hold, ZoneUse, varint};

use crate::entry::Entry;
use crate::fences::{Fences, Target};
use crate::frame::FramePointer;
use crate::item::{Body, Lookup};
use crate::store::Store;
use crate::{Error, Result};

/// Index levels that any run can need: a node has at least two entries but for the seams.
const MAX_LEVEL: u16 = 40;

pub struct Run {
    store: Arc<Store>,
    root: Entry,
    /// Level of the root node; 1 when it is a leaf index node.
    level: u16,
    /// The root node, once it was read: the one index node that every read needs.
    top: OnceLock<Arc<Fences>>,
    uses: ZoneUse,
    _hold: Hold,
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
    pub(crate) fn open(store: &Arc<Store>, root: Entry, level: u16) -> Result<Arc<Run>> {
        let uses = root.zone_use()?;
        let hold = store.zones().pin(&uses)?;
        Ok(Arc::new(Run { store: store.clone(), root, level, top: OnceLock::new(), uses, _hold: hold }))
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
    pub fn decode(store: &Arc<Store>, data: &mut &[u8]) -> Result<Arc<Run>> {
        let corrupt = || Error::corrupt("run: its root pointer does not decode", 0);
        let level = varint::get_u64(data).map_err(|_| corrupt())?;
        let len = varint::get_u64(data).map_err(|_| corrupt())? as usize;
        if level == 0 || level > u64::from(MAX_LEVEL) || len > data.len() {
            return Err(corrupt());
        }
        let (entry, rest) = data.split_at(len);
        *data = rest;
        let mut at = 0;
        let root = Entry::decode(&bytes::Bytes::copy_from_slice(entry), &mut at, &[]).filter(|_| at == len).ok_or_else(corrupt)?;
        Run::open(store, root, level as u16)
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
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

    /// What this run knows of `key`; `hash` is [`crate::hash`] of it. At most one tuple block is read.
    pub fn get(&self, key: &[u8], hash: u64) -> Result<Lookup> {
        let Some(block) = self.locate(key, hash)? else { return Ok(Lookup::Absent) };
        Ok(match self.store.block(block)?.find(key)? {
            None => Lookup::Absent,
            Some((seq, Body::Put(value))) => Lookup::Found(seq, value),
            Some((seq, Body::Delete | Body::DeleteRange { .. })) => Lookup::Deleted(seq),
        })
    }

    /// The block that a `get` of `key` would have to read, where it lies.
    pub fn wants(&self, key: &[u8], hash: u64) -> Result<Option<(u64, u32)>> {
        Ok(self.locate(key, hash)?.filter(|t| !self.store.has_block(*t)).map(|t| (t.at.addr, t.at.len)))
    }

    /// The one block that can cover `key`, unless it is known that none does.
    fn locate(&self, key: &[u8], hash: u64) -> Result<Option<Target>> {
        if key < self.root.low.as_ref() || key >= self.root.high.as_ref() {
            return Ok(None);
        }
        // The filter says no: what is left are blocks whose keys are in no filter, and those with range tombstones.
        let unfiltered = |unfiltered: bool, range_tombstones: bool| unfiltered || range_tombstones;
        let mut only_unfiltered = false;
        if self.level == 1 && self.filtered(self.root.filter, hash)? {
            if !unfiltered(self.root.unfiltered, self.root.range_tombstones) {
                return Ok(None);
            }
            only_unfiltered = true;
        }
        let mut inner;
        let mut node: &Fences = self.root_fences()?;
        loop {
            let Some(i) = node.covering(key) else { return Ok(None) };
            let target = node.target(i);
            match node.level - 1 {
                0 => return Ok(Some(target).filter(|t| !only_unfiltered || unfiltered(t.unfiltered, t.range_tombstones))),
                level => {
                    if level == 1 && self.filtered(node.filter(i), hash)? {
                        if !unfiltered(target.unfiltered, target.range_tombstones) {
                            return Ok(None);
                        }
                        only_unfiltered = true;
                    }
                    inner = self.store.fences(target.at, level)?;
                    node = &inner;
                }
            }
        }
    }

    /// `true` when the filter of a leaf index node proves that `key` is no point beneath.
    fn filtered(&self, filter: Option<FramePointer>, hash: u64) -> Result<bool> {
        match filter {
            Some(f) => Ok(!self.store.filter(f)?.may_contain(hash)),
            None => Ok(false),
        }
    }

    fn root_fences(&self) -> Result<&Arc<Fences>> {
        if let Some(top) = self.top.get() {
            return Ok(top);
        }
        let top = self.store.fences(self.root.at, self.level)?;
        Ok(self.top.get_or_init(|| top))
    }

    /// The root node.
    pub(crate) fn top(&self) -> Result<Arc<Fences>> {
        self.root_fences().cloned()
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("root", &self.root.at).field("level", &self.level).field("stats", &self.stats()).finish()
    }
}

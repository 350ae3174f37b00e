//! The write set of a transaction, which has its uncommitted changes. For each dictionary, the
//! write set has a stack of parts, which are memtables and runs, like a separate tree above the
//! tree that the transaction reads. A memtable that has grown large is spilled: a run takes its
//! place (`transactions::spill`). A transaction may therefore exceed memory. The commit takes over
//! the runs as they are. Large values are thus written once, and small values about twice, since a
//! large number of runs is merged into fewer runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::Mutex;
use vt_tree::{BodyRef, Input, ItemRef, Lookup, Memtable, RunCursor, Seq, Source, Value};
use zones::{ZonePin, ZoneUse};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::Op;

/// The number of bytes in memory at which a small transaction spills. The commit has to write only
/// the part in memory, so this number bounds the commit's latency.
const SPILL_AT: usize = 1 << 20;
/// The divisor of the size of a large transaction's runs. The transaction spills when the part in
/// memory reaches this fraction of the size.
const GROWTH: u64 = 32;
/// The approximate memory of a change in addition to its key and value, in bytes.
const OVERHEAD: usize = 32;

/// A part of the changes to one dictionary.
#[derive(Clone)]
pub(crate) enum Part {
    Memtable(Arc<Memtable>),
    Run(Arc<vt_tree::Run>),
}

impl Part {
    fn get(&self, key: &[u8], at: Seq) -> Result<Lookup> {
        Ok(match self {
            Part::Memtable(m) => m.get(key, at),
            Part::Run(run) => run.get(key, vt_tree::hash(key))?,
        })
    }

    pub(crate) fn items(&self) -> u64 {
        match self {
            Part::Memtable(m) => m.len() as u64,
            Part::Run(run) => run.stats().items,
        }
    }

    /// Returns a cursor at the first item of the part.
    pub(crate) fn source(&self, at: Seq) -> Result<Box<dyn Source>> {
        let mut source: Box<dyn Source> = match self {
            Part::Memtable(m) => Box::new(m.cursor(at)),
            Part::Run(run) => Box::new(RunCursor::new(run.clone())),
        };
        source.first()?;
        Ok(source)
    }

    /// Returns the part as an input of a cursor or a merge.
    pub(crate) fn input(&self) -> Input {
        match self {
            Part::Memtable(m) => Input::Memtable(m.clone()),
            Part::Run(run) => Input::Run(run.clone()),
        }
    }
}

/// The parts of one dictionary, the newest last. Only the last part may be empty, if it is a
/// memtable that was not written to yet. A count of non-empty parts therefore marks a position in
/// the stack that stays valid when further parts are added.
pub(crate) type Parts = Vec<Part>;

/// Removes the last part if it is an empty memtable.
fn trim(parts: &mut Parts) {
    if parts.last().is_some_and(|part| part.items() == 0) {
        parts.pop();
    }
    debug_assert!(parts.iter().all(|part| part.items() > 0), "an empty part has others above it");
}

/// The changes of a transaction up to a certain change. Clones share the parts.
#[derive(Clone, Default)]
pub(crate) struct WriteSet {
    pub trees: Arc<BTreeMap<DictionaryId, Parts>>,
    /// The number of the last change of the transaction that is visible.
    pub at: Seq,
    /// The write set below this write set, which does not change. For a nested batch, it is the
    /// write set of the transaction as of the beginning of the batch. For the state that a nested
    /// transaction reads, it is the write set around the enclosing transaction.
    beneath: Option<Arc<WriteSet>>,
    /// Pins the places of values that were already stored when the transaction put them under other
    /// keys.
    places: Arc<Mutex<ZonePin>>,
    /// The memory of the memtables, in bytes, when it was last measured.
    looked: usize,
    /// The number of bytes of changes since the memory was last measured.
    unseen: usize,
    /// The number of bytes of the runs after the last spill.
    spilled: u64,
}

impl WriteSet {
    pub(crate) fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Lookup> {
        let mut lookup = Lookup::Absent;
        for part in self.trees.get(&dict).into_iter().flatten().rev() {
            lookup = lookup.over(part.get(key, self.at)?);
            if lookup.is_final() {
                return Ok(lookup);
            }
        }
        match &self.beneath {
            Some(beneath) => Ok(lookup.over(beneath.get(dict, key)?)),
            None => Ok(lookup),
        }
    }

    /// Returns the inputs that a cursor reads above the tree of the store, the newest first. Each
    /// input has the number of the last change that is read from it.
    pub(crate) fn inputs(&self, dict: DictionaryId) -> Vec<(Input, Seq)> {
        let parts =
            self.trees.get(&dict).into_iter().flatten().rev().map(|part| (part.input(), self.at));
        parts.chain(self.beneath.iter().flat_map(|beneath| beneath.inputs(dict))).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.trees.values().flatten().all(|p| p.items() == 0)
    }

    /// Returns whether all changes are in memtables.
    pub(crate) fn in_memory(&self) -> bool {
        self.trees.values().flatten().all(|p| matches!(p, Part::Memtable(_)))
    }

    /// Returns `true` if the write set writes or deletes a key of `[start, end)`. Updates that
    /// commute with the changes of other commits do not count.
    pub(crate) fn touches(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<bool> {
        for part in self.trees.get(&dict).into_iter().flatten() {
            let mut source = part.source(self.at)?;
            source.seek(start)?;
            while let Some(item) = source.item().filter(|item| item.key < end) {
                let update = matches!(item.body, BodyRef::Update { .. });
                if !update || !self.commutes(dict, item.key)? {
                    return Ok(true);
                }
                source.next()?;
            }
        }
        Ok(false)
    }

    /// Returns `true` if only updates that commute with the changes of other commits change `key`.
    /// Such updates apply to any value that the key has at the commit.
    pub(crate) fn commutes(&self, dict: DictionaryId, key: &[u8]) -> Result<bool> {
        Ok(match self.get(dict, key)? {
            Lookup::Updated { base: None, update, .. } => update.commutes(),
            _ => false,
        })
    }

    /// Returns the memory of the memtables, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let memtables = self
            .trees
            .values()
            .flatten()
            .filter_map(|p| if let Part::Memtable(m) = p { Some(m.bytes()) } else { None });
        memtables.sum()
    }

    /// Returns the number of bytes that the runs take on the device, including data that they share
    /// with other runs.
    pub(crate) fn run_bytes(&self) -> u64 {
        let runs = self
            .trees
            .values()
            .flatten()
            .filter_map(|p| if let Part::Run(r) = p { Some(r.stats().bytes) } else { None });
        runs.sum()
    }

    /// Returns the number of bytes that the runs use in each zone, including data that they share
    /// with other runs.
    pub(crate) fn run_uses(&self) -> ZoneUse {
        let mut all = ZoneUse::new();
        for part in self.trees.values().flatten() {
            if let Part::Run(run) = part {
                all.merge(run.uses());
            }
        }
        all
    }

    fn tree_mut(&mut self, dict: DictionaryId) -> &mut Parts {
        Arc::make_mut(&mut self.trees).entry(dict).or_default()
    }

    /// Returns the memtable that takes the changes of a dictionary, and adds a memtable if
    /// necessary.
    fn newest(&mut self, dict: DictionaryId) -> &Arc<Memtable> {
        if !matches!(self.trees.get(&dict).and_then(|parts| parts.last()), Some(Part::Memtable(_)))
        {
            self.tree_mut(dict).push(Part::Memtable(Arc::new(Memtable::new())));
        }
        match self.trees.get(&dict).and_then(|parts| parts.last()) {
            Some(Part::Memtable(memtable)) => memtable,
            _ => unreachable!("it was pushed right before"),
        }
    }

    /// Applies a single put.
    pub(crate) fn put(&mut self, dict: DictionaryId, key: &[u8], value: &[u8]) {
        self.at += 1;
        let seq = self.at;
        self.unseen += key.len() + value.len() + OVERHEAD;
        self.newest(dict).writer().put_slice(key, seq, value);
    }

    /// Applies changes in order. `pin` pins the places to which the changes refer.
    pub(crate) fn write(&mut self, changes: &[(DictionaryId, Op)], pin: ZonePin) {
        if !pin.uses().is_empty() {
            self.places.lock().merge(pin);
        }
        let mut seq = self.at;
        self.unseen += changes.iter().map(|(_, op)| op.bytes() + OVERHEAD).sum::<usize>();
        for of_one in changes.chunk_by(|a, b| a.0 == b.0) {
            let mut writer = self.newest(of_one[0].0).writer();
            for (_, op) in of_one {
                seq += 1;
                match op {
                    // Copy the value, since its bytes may be a slice of a much larger buffer.
                    Op::Put(key, Value::Inline(value)) | Op::PutDeferred(key, value, _) => {
                        writer.put_slice(key, seq, value)
                    }
                    Op::Put(key, value) => writer.put(key, seq, value.clone()),
                    Op::Update(key, update) => writer.update(key, seq, update),
                    // Discarded values occur only in the journal of the store.
                    Op::PutDiscarded(..) => {}
                    Op::Delete(key) => writer.delete(key, seq),
                    Op::DeleteRange(start, end) => writer.delete_range(start, end, seq),
                }
            }
        }
        self.at = seq;
    }

    /// Adds a run as the newest part of a dictionary.
    pub(crate) fn adopt(&mut self, dict: DictionaryId, run: Arc<vt_tree::Run>) {
        self.at += run.stats().items;
        let parts = self.tree_mut(dict);
        trim(parts);
        parts.push(Part::Run(run));
    }

    /// Returns a copy that can be changed without changing this write set.
    pub(crate) fn fork(&self) -> WriteSet {
        let mut fork = self.clone();
        for parts in Arc::make_mut(&mut fork.trees).values_mut() {
            trim(parts);
            parts.push(Part::Memtable(Arc::default()));
        }
        fork
    }

    /// Returns an empty write set above the current state of this write set. Later changes to this
    /// write set are not visible through the new one, although they go into the same memtables.
    pub(crate) fn above(&self) -> WriteSet {
        WriteSet {
            beneath: Some(Arc::new(self.clone())),
            places: self.places.clone(),
            ..WriteSet::default()
        }
    }

    /// Returns this write set above another write set, which does not change.
    pub(crate) fn over(self, beneath: Option<Arc<WriteSet>>) -> WriteSet {
        WriteSet { beneath, ..self }
    }

    /// Returns whether a dictionary was written to, in this write set or in a write set below.
    pub(crate) fn knows(&self, dict: DictionaryId) -> bool {
        self.trees.contains_key(&dict)
            || self.beneath.as_ref().is_some_and(|beneath| beneath.knows(dict))
    }

    /// Returns the non-empty parts that were added after a mark.
    pub(crate) fn since(
        &self,
        mark: &BTreeMap<DictionaryId, usize>,
    ) -> BTreeMap<DictionaryId, Parts> {
        let newer = |(dict, parts): (&DictionaryId, &Parts)| {
            let from = mark.get(dict).copied().unwrap_or(0);
            let parts = parts.iter().skip(from).filter(|part| part.items() > 0);
            (*dict, parts.cloned().collect())
        };
        self.trees.iter().map(newer).collect()
    }

    /// Returns the number of parts of each dictionary as a mark. Later changes go into new parts.
    pub(crate) fn mark(&mut self) -> BTreeMap<DictionaryId, usize> {
        let mut depths = BTreeMap::new();
        for (dict, parts) in Arc::make_mut(&mut self.trees) {
            trim(parts);
            depths.insert(*dict, parts.len());
            parts.push(Part::Memtable(Arc::new(Memtable::new())));
        }
        depths
    }

    /// Removes the parts that were added after a mark.
    pub(crate) fn cut(&mut self, mark: &BTreeMap<DictionaryId, usize>) {
        self.looked = 0;
        for (dict, parts) in Arc::make_mut(&mut self.trees) {
            parts.truncate(mark.get(dict).copied().unwrap_or(0));
        }
    }

    /// Replaces all parts with the parts that a spill has made from them.
    pub(crate) fn replace(&mut self, trees: BTreeMap<DictionaryId, Parts>) {
        self.trees = Arc::new(trees);
        self.spilled = self.run_bytes();
        (self.looked, self.unseen) = (0, 0);
    }

    /// Returns whether the memtables are large enough to be spilled. The limit grows with the
    /// number of bytes already spilled, so that the number of runs stays small, but never exceeds
    /// `share`.
    pub(crate) fn is_full(&mut self, share: usize) -> bool {
        let limit = ((self.spilled / GROWTH) as usize).max(SPILL_AT).min(share);
        self.estimate() >= limit
    }

    /// Returns a cheap estimate of [`WriteSet::memory`], which may be slightly too low.
    pub(crate) fn estimate(&mut self) -> usize {
        /// The number of bytes of changes after which the memory is measured again. It is not
        /// measured more often because this visits all parts.
        const NOW_AND_THEN: usize = 4 << 10;
        if self.looked == 0 || self.unseen >= NOW_AND_THEN {
            (self.looked, self.unseen) = (self.memory(), 0);
        }
        self.looked + self.unseen
    }

    /// Calls `visit` for all items. The parts of each dictionary are visited from the oldest to the
    /// newest, so that applying the items in this order makes the same changes.
    pub(crate) fn for_each(
        &self,
        mut visit: impl FnMut(DictionaryId, ItemRef) -> Result<()>,
    ) -> Result<()> {
        for (&dict, parts) in &*self.trees {
            for part in parts.iter().filter(|p| p.items() > 0) {
                let mut source = part.source(self.at)?;
                while let Some(item) = source.item() {
                    visit(dict, item)?;
                    source.next()?;
                }
            }
        }
        Ok(())
    }
}

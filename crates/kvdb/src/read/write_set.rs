//! What a transaction has written and no other sees: for each dictionary a stack of parts,
//! memtables and runs, like a tree of its own above the one that it reads. A memtable that grows is
//! written out as a run in its place, so that a transaction may be larger than memory. The commit
//! takes the runs as they are; so large values are written once, and small ones about twice, since
//! many runs of them are made fewer.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::Mutex;
use vt_tree::{
    BlockCache, BodyRef, Input, ItemRef, KeyRange, Lookup, Memtable, Merge, MergeOptions,
    Placement, RunCursor, Seq, Source, Value,
};
use zones::{Priority, ZonePin};

use crate::counters::Counters;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::Op;
use crate::read::version_set::VersionSet;

/// Bytes in memory after which a small transaction writes a run. What is in memory is all that a
/// commit has to write: it makes the time that this takes.
const SPILL_AT: usize = 1 << 20;
/// A large one waits for this part of what it has written.
const GROWTH: u64 = 32;
/// What a change takes in addition to its key and value, about.
const OVERHEAD: usize = 32;
/// Runs of one dictionary after which the young ones are made one.
const RUNS: usize = 32;
/// An older run joins them when it is at most so many times as large as they are together: so each
/// tuple is merged once for each time that its transaction grows by this much or more, and a
/// transaction has few runs however large it is.
const OLDER: u64 = 2;

/// A part of what was written to one dictionary.
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

    /// Its items, from the first one on.
    pub(crate) fn source(&self, at: Seq) -> Result<Box<dyn Source>> {
        let mut source: Box<dyn Source> = match self {
            Part::Memtable(m) => Box::new(m.cursor(at)),
            Part::Run(run) => Box::new(RunCursor::new(run.clone())),
        };
        source.first()?;
        Ok(source)
    }

    fn input(&self) -> Input {
        match self {
            Part::Memtable(m) => Input::Memtable(m.clone()),
            Part::Run(run) => Input::Run(run.clone()),
        }
    }
}

/// Parts of one dictionary, the newest last. None of them is empty, but the last one may be a
/// memtable that nothing has been written to yet; so a number of parts that have something in them
/// is a place between parts, which stays the same whatever comes behind it.
pub(crate) type Parts = Vec<Part>;

/// Takes the memtable away to which nothing has been written.
fn trim(parts: &mut Parts) {
    if parts.last().is_some_and(|part| part.items() == 0) {
        parts.pop();
    }
    debug_assert!(parts.iter().all(|part| part.items() > 0), "an empty part has others above it");
}

/// What a transaction has written, as of one of its own changes. Clones share the parts.
#[derive(Clone, Default)]
pub(crate) struct WriteSet {
    pub trees: Arc<BTreeMap<DictionaryId, Parts>>,
    /// The transaction's changes up to this one are seen.
    pub at: Seq,
    /// What lies under it and stays as it is: of a nested batch, the transaction as it was when
    /// that began; of one that others began within, that which it began within itself.
    beneath: Option<Arc<WriteSet>>,
    /// Keeps the places of values that were stored before it put them under other keys.
    places: Arc<Mutex<ZonePin>>,
    /// Memory of what is not in runs when it was last looked at, and bytes changed since.
    looked: usize,
    unseen: usize,
    /// Bytes of runs, as of the last spill.
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

    /// What a cursor reads above the tree beneath, newest first, each with the number up to which
    /// it is read.
    pub(crate) fn inputs(&self, dict: DictionaryId) -> Vec<(Input, Seq)> {
        let parts =
            self.trees.get(&dict).into_iter().flatten().rev().map(|part| (part.input(), self.at));
        parts.chain(self.beneath.iter().flat_map(|beneath| beneath.inputs(dict))).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.trees.values().flatten().all(|p| p.items() == 0)
    }

    /// Nothing of it is in runs.
    pub(crate) fn in_memory(&self) -> bool {
        self.trees.values().flatten().all(|p| matches!(p, Part::Memtable(_)))
    }

    /// `true` when something is written at a key of `[start, end)`, or deleted there; updates that
    /// commute with what others do are left out.
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

    /// `true` when `key` is changed only by updates that commute with what others do: they apply to
    /// whatever its value is when they are committed.
    pub(crate) fn commutes(&self, dict: DictionaryId, key: &[u8]) -> Result<bool> {
        Ok(match self.get(dict, key)? {
            Lookup::Updated { base: None, update, .. } => update.commutes(),
            _ => false,
        })
    }

    /// Memory of what is not in runs, bytes.
    pub(crate) fn memory(&self) -> usize {
        let memtables = self
            .trees
            .values()
            .flatten()
            .filter_map(|p| if let Part::Memtable(m) = p { Some(m.bytes()) } else { None });
        memtables.sum()
    }

    /// Bytes that its runs take on the device, those shared with other runs included.
    pub(crate) fn run_bytes(&self) -> u64 {
        let runs = self
            .trees
            .values()
            .flatten()
            .filter_map(|p| if let Part::Run(r) = p { Some(r.stats().bytes) } else { None });
        runs.sum()
    }

    fn tree_mut(&mut self, dict: DictionaryId) -> &mut Parts {
        Arc::make_mut(&mut self.trees).entry(dict).or_default()
    }

    /// The memtable that takes changes of a dictionary.
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

    /// One put.
    pub(crate) fn put(&mut self, dict: DictionaryId, key: &[u8], value: &[u8]) {
        self.at += 1;
        let seq = self.at;
        self.unseen += key.len() + value.len() + OVERHEAD;
        self.newest(dict).writer().put_slice(key, seq, value);
    }

    /// Writes changes one behind the other. `pin` keeps the places that they refer to.
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
                    // Copied: the bytes may be a slice of something much larger.
                    Op::Put(key, Value::Inline(value)) | Op::PutDeferred(key, value, _) => {
                        writer.put_slice(key, seq, value)
                    }
                    Op::Put(key, value) => writer.put(key, seq, value.clone()),
                    Op::Update(key, update) => writer.update(key, seq, update),
                    // Only the journal of the store has these.
                    Op::PutDiscarded(..) => {}
                    Op::Delete(key) => writer.delete(key, seq),
                    Op::DeleteRange(start, end) => writer.delete_range(start, end, seq),
                }
            }
        }
        self.at = seq;
    }

    /// Takes a run as the newest part of a dictionary.
    pub(crate) fn adopt(&mut self, dict: DictionaryId, run: Arc<vt_tree::Run>) {
        self.at += run.stats().items;
        let parts = self.tree_mut(dict);
        trim(parts);
        parts.push(Part::Run(run));
    }

    /// A copy, to be changed without changing this one.
    pub(crate) fn fork(&self) -> WriteSet {
        let mut fork = self.clone();
        for parts in Arc::make_mut(&mut fork.trees).values_mut() {
            trim(parts);
            parts.push(Part::Memtable(Arc::default()));
        }
        fork
    }

    /// Nothing, above what there is now. What is written to this one later is not seen there,
    /// though it goes into the same memtables.
    pub(crate) fn above(&self) -> WriteSet {
        WriteSet {
            beneath: Some(Arc::new(self.clone())),
            places: self.places.clone(),
            ..WriteSet::default()
        }
    }

    /// This one above another one, which stays as it is.
    pub(crate) fn over(self, beneath: Option<Arc<WriteSet>>) -> WriteSet {
        WriteSet { beneath, ..self }
    }

    /// Something was written to a dictionary, here or beneath.
    pub(crate) fn knows(&self, dict: DictionaryId) -> bool {
        self.trees.contains_key(&dict)
            || self.beneath.as_ref().is_some_and(|beneath| beneath.knows(dict))
    }

    /// The parts that have come since a mark, and have something in them.
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

    /// How many parts there are of each dictionary. What is written from here on goes into new
    /// ones.
    pub(crate) fn mark(&mut self) -> BTreeMap<DictionaryId, usize> {
        let mut depths = BTreeMap::new();
        for (dict, parts) in Arc::make_mut(&mut self.trees) {
            trim(parts);
            depths.insert(*dict, parts.len());
            parts.push(Part::Memtable(Arc::new(Memtable::new())));
        }
        depths
    }

    /// Forgets the parts that have come since a mark.
    pub(crate) fn cut(&mut self, mark: &BTreeMap<DictionaryId, usize>) {
        self.looked = 0;
        for (dict, parts) in Arc::make_mut(&mut self.trees) {
            parts.truncate(mark.get(dict).copied().unwrap_or(0));
        }
    }

    /// Writes memtables out as runs in their places. `keep`: so many parts of each dictionary, from
    /// the oldest on, stay apart.
    pub(crate) fn spill(
        &mut self,
        to: &RunWriter<'_>,
        keep: &BTreeMap<DictionaryId, usize>,
    ) -> Result<()> {
        self.write_out(to, keep, (RUNS, OLDER))
    }

    /// The same, with all that does not stay apart as one run: what was overwritten or deleted is
    /// gone then.
    pub(crate) fn gather(
        &mut self,
        to: &RunWriter<'_>,
        keep: &BTreeMap<DictionaryId, usize>,
    ) -> Result<()> {
        self.write_out(to, keep, (1, u64::MAX))
    }

    /// `most`: runs of a dictionary after which the young ones are made one, see [`RUNS`]; `older`:
    /// how large an older one may be to join them, see [`OLDER`].
    fn write_out(
        &mut self,
        to: &RunWriter<'_>,
        keep: &BTreeMap<DictionaryId, usize>,
        (most, older): (usize, u64),
    ) -> Result<()> {
        let version = to.versions.load_full();
        // Made next to the old parts, so that an error changes nothing.
        let mut trees = BTreeMap::new();
        for (dict, parts) in &*self.trees {
            let options =
                version.trees.get(dict).map(|t| t.info().options.clone()).unwrap_or_default();
            let options = MergeOptions {
                // A commit may come behind others: what it deletes must stay deleted.
                drop_tombstones: false,
                old_seq: Seq::MAX,
                priority: Priority::User,
                // The writer of the transaction waits for this.
                write_behind: true,
                ..options.storage(Placement::stitch())
            };
            let keep = keep.get(dict).copied().unwrap_or(0);
            let mut next = Vec::with_capacity(parts.len());
            for part in parts.iter().filter(|p| p.items() > 0) {
                next.extend(match part {
                    Part::Memtable(_) => merged(to, std::slice::from_ref(part), &options)?,
                    Part::Run(_) => Some(part.clone()),
                });
            }
            if next.len() > keep + most {
                let mut from = next.len();
                let mut together = 0;
                while from > keep
                    && (from + 2 > next.len()
                        || bytes(&next[from - 1]) <= older.saturating_mul(together))
                {
                    from -= 1;
                    together += bytes(&next[from]);
                }
                let one = merged(to, &next[from..], &options)?;
                next.truncate(from);
                next.extend(one);
            }
            trees.insert(*dict, next);
        }
        self.trees = Arc::new(trees);
        self.spilled = self.run_bytes();
        (self.looked, self.unseen) = (0, 0);
        Ok(())
    }

    /// Whether there is enough in memory to be written out: more when much was written already, so
    /// that there are few runs, but never more than `share`.
    pub(crate) fn is_full(&mut self, share: usize) -> bool {
        let limit = ((self.spilled / GROWTH) as usize).max(SPILL_AT).min(share);
        self.estimate() >= limit
    }

    /// Whether a dictionary has so many parts above the oldest `keep` that a spill should make them
    /// fewer.
    pub(crate) fn is_stacked(&self, dict: DictionaryId, keep: usize) -> bool {
        self.trees.get(&dict).is_some_and(|parts| parts.len() > keep + RUNS)
    }

    /// [`WriteSet::memory`], or a little less.
    pub(crate) fn estimate(&mut self) -> usize {
        /// Looked at now and then: it takes a walk over all parts.
        const NOW_AND_THEN: usize = 4 << 10;
        if self.looked == 0 || self.unseen >= NOW_AND_THEN {
            (self.looked, self.unseen) = (self.memory(), 0);
        }
        self.looked + self.unseen
    }

    /// Each dictionary that is wanted as one part.
    pub(crate) fn merged(
        &self,
        to: &RunWriter<'_>,
        wanted: impl Fn(DictionaryId) -> bool,
    ) -> Result<Vec<(DictionaryId, Part)>> {
        let options = MergeOptions {
            drop_tombstones: false,
            old_seq: Seq::MAX,
            priority: Priority::User,
            ..MergeOptions::default()
        };
        let mut out = Vec::new();
        for (&dict, parts) in self.trees.iter().filter(|(dict, _)| wanted(**dict)) {
            let parts: Vec<Part> = parts.iter().filter(|p| p.items() > 0).cloned().collect();
            let one = match parts.len() {
                0 | 1 => parts.into_iter().next(),
                _ => merged(to, &parts, &options)?,
            };
            out.extend(one.map(|part| (dict, part)));
        }
        Ok(out)
    }

    /// Shows all items to `visit`, of each dictionary those of the oldest part first: one behind
    /// the other they make the same changes.
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

fn bytes(part: &Part) -> u64 {
    match part {
        Part::Memtable(m) => m.bytes() as u64,
        Part::Run(run) => run.stats().bytes,
    }
}

/// What writing parts of a write set as runs needs.
pub(crate) struct RunWriter<'a> {
    pub versions: &'a VersionSet,
    pub cache: &'a Arc<BlockCache>,
    pub counters: &'a Counters,
}

/// One run of parts, which stand the oldest first.
fn merged(to: &RunWriter<'_>, parts: &[Part], options: &MergeOptions) -> Result<Option<Part>> {
    let inputs: Vec<Input> = parts.iter().rev().map(Part::input).collect();
    let mut merge = Merge::new(to.cache, &inputs, &KeyRange::all(), options.clone())?;
    while !merge.step(u64::MAX)? {}
    let (run, stats) = merge.finish()?;
    to.counters.merged(&stats);
    Ok(run.map(Part::Run))
}

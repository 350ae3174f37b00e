//! A dictionary as part of a version: its memtables, newest first, and its open runs, level by
//! level. A clone shares the runs of its snapshot. It also shares its [`Own`] parts with other
//! clones until it is written to.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use vt_tree::{BlockCache, Input, Lookup, MergeOptions, Placement, Probe, Run, Seq, Value};

use crate::dictionary::Described;
use crate::error::Result;
use crate::ids::RunId;
use crate::manifest::DictionaryState;
use crate::short_values::ShortValues;
use crate::version::generation::Layer;

/// Number of runs that a lookup probes at a time.
const TOGETHER: usize = 16;

/// A run with its number in the manifest.
#[derive(Clone)]
pub(crate) struct NumberedRun {
    pub id: RunId,
    pub run: Arc<Run>,
}

/// The open runs of a dictionary, level by level.
pub(crate) type Levels = Arc<Vec<Vec<NumberedRun>>>;

/// The levels made so far while a version follows the manifest, keyed by the address of the run
/// list in the manifest.
pub(super) type Opened = HashMap<*const BTreeMap<RunId, (u32, Bytes)>, Levels>;

/// A dictionary as part of a version.
#[derive(Clone)]
pub(crate) struct Tree {
    /// The entry in the manifest: the name and options of the dictionary, and the runs that are
    /// open in `levels`.
    pub entry: Arc<DictionaryState>,
    /// The runs by level. `levels[0]` is the youngest level; within a level the newest run comes
    /// first. A clone shares the levels of its snapshot until it gets runs of its own.
    pub levels: Levels,
    own: Arc<Own>,
}

/// The parts of a dictionary that clones share until they are written to or rolled back.
#[derive(Clone)]
pub(crate) struct Own {
    /// The layers, newest first, of the generations in which the dictionary was written to.
    pub layers: Vec<Layer>,
    /// The last commit that the last rollback undid: memtables with commits up to this one are
    /// void. 0 if there was no rollback.
    pub since: Seq,
    /// The placement of short values, shared by all versions of this dictionary.
    pub short: Arc<ShortValues>,
}

impl Deref for Tree {
    type Target = Own;

    fn deref(&self) -> &Own {
        &self.own
    }
}

impl Tree {
    /// Makes an empty dictionary.
    pub(crate) fn new(info: Described) -> Tree {
        Tree::empty(Arc::new(DictionaryState::new(info)))
    }

    fn empty(entry: Arc<DictionaryState>) -> Tree {
        let own = nothing_own(entry.info.branch.is_empty());
        Tree { entry, levels: no_levels(), own }
    }

    /// Returns the dictionary without its memtables.
    pub(crate) fn without_layers(&self) -> Tree {
        let mut tree = self.clone();
        if !tree.layers.is_empty() {
            tree.own_mut().layers = Vec::new();
        }
        tree
    }

    /// Returns the dictionary with the rollback mark `since`.
    pub(super) fn with_since(mut self, since: Seq) -> Tree {
        if self.since != since {
            self.own_mut().since = since;
        }
        self
    }

    pub(super) fn own_mut(&mut self) -> &mut Own {
        Arc::make_mut(&mut self.own)
    }

    /// Makes the dictionary that the manifest describes by `entry`, without memtables. It shares
    /// the levels of a dictionary in `opened` that has the same run list.
    pub(super) fn of(
        entry: &Arc<DictionaryState>,
        opened: &mut Opened,
        open: &mut OpenRun<'_>,
    ) -> Result<Tree> {
        let mut tree = Tree::empty(entry.clone());
        if entry.runs.is_empty() {
            return Ok(tree);
        }
        let list = Arc::as_ptr(&entry.runs);
        match opened.get(&list).cloned().or_else(|| open.levels_like(entry)) {
            Some(levels) => tree.levels = levels,
            None => tree.follow(entry, open)?,
        }
        opened.insert(list, tree.levels.clone());
        Ok(tree)
    }

    /// Updates the runs and options to those in the manifest. Memtables are kept.
    pub(crate) fn follow(
        &mut self,
        entry: &Arc<DictionaryState>,
        open: &mut OpenRun<'_>,
    ) -> Result<()> {
        if self.entry.info.branch.is_empty() != entry.info.branch.is_empty() {
            self.own_mut().short = nothing_own(entry.info.branch.is_empty()).short.clone();
        }
        if Arc::ptr_eq(&self.entry.runs, &entry.runs) && !self.levels.is_empty() {
            self.entry = entry.clone();
            return Ok(());
        }
        let before: HashMap<RunId, Arc<Run>> =
            self.runs().map(|numbered| (numbered.id, numbered.run.clone())).collect();
        let unchanged = |id, root: &Bytes| {
            let same = self.entry.runs.get(&id).is_some_and(|(_, before)| before == root);
            before.get(&id).filter(|_| same).cloned()
        };
        let mut levels: Vec<Vec<NumberedRun>> = Vec::new();
        // Ids ascend, so within a level each run is newer than those before it.
        for (&id, (level, root)) in entry.runs.iter() {
            let run = match unchanged(id, root) {
                Some(run) => run,
                None => open.open(id, root)?,
            };
            let level = *level as usize;
            if levels.len() <= level {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[level].push(NumberedRun { id, run });
        }
        levels.iter_mut().for_each(|level| level.reverse());
        self.levels = if levels.is_empty() { no_levels() } else { Arc::new(levels) };
        self.entry = entry.clone();
        Ok(())
    }

    /// Returns the name and the options of the dictionary.
    pub(crate) fn info(&self) -> &Described {
        &self.entry.info
    }

    /// Returns the newest value of `key` among commits up to `at`. `cache` is used to read values
    /// that an update applies to.
    pub(crate) fn get(&self, cache: &BlockCache, key: &[u8], at: Seq) -> Result<Option<Value>> {
        Ok(cache.resolve(self.lookup(key, at)?)?)
    }

    /// Looks up `key` in memtables and runs among commits up to `at`. No large value is read.
    pub(crate) fn lookup(&self, key: &[u8], at: Seq) -> Result<Lookup> {
        let mut found = Lookup::Absent;
        for layer in &self.layers {
            // A memtable is marked as not empty before its first commit becomes visible, so a
            // reader that sees the commit searches the memtable.
            if !layer.memtable.is_empty() {
                found = found.over(layer.memtable.get(key, at));
                if found.is_final() {
                    return Ok(found);
                }
            }
            for run in &layer.bound {
                found = found.over(run.get(key, vt_tree::hash(key))?);
                if found.is_final() {
                    return Ok(found);
                }
            }
        }
        let hash = vt_tree::hash(key);
        if let Some(only) = self.only_run() {
            return Ok(found.over(only.run.get(key, hash)?));
        }
        // Prefetch all filters into the CPU's cache before the first one is read.
        let mut runs = self.runs();
        loop {
            let mut probes: [Option<Probe<'_>>; TOGETHER] = [const { None }; TOGETHER];
            let mut n = 0;
            while n < TOGETHER
                && let Some(numbered) = runs.next()
            {
                if let Some(probe) = numbered.run.probe(key, hash)? {
                    probes[n] = Some(probe);
                    n += 1;
                }
            }
            probes.iter().flatten().for_each(|probe| probe.advance(hash));
            for probe in probes.iter().flatten() {
                found = found.over(probe.get(key, hash)?);
                if found.is_final() {
                    return Ok(found);
                }
            }
            if n < TOGETHER {
                return Ok(found);
            }
        }
    }

    /// Announces to the device the blocks that `get` is likely to read for these keys (ascending).
    pub(crate) fn announce<'k>(
        &self,
        cache: &BlockCache,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<()> {
        let mut blocks = Vec::new();
        for key in keys {
            let hash = vt_tree::hash(key);
            for numbered in self.runs() {
                if let Some(block) = numbered.run.wants(key, hash)? {
                    blocks.push(block);
                    break;
                }
            }
        }
        // A single block is read immediately anyway.
        if blocks.len() > 1 {
            cache.announce_blocks(blocks);
        }
        Ok(())
    }

    /// Announces to the device the blocks that `get` of `key` reads, as far as they are known
    /// without waiting for the device. If no run has the key, the caller probably scans a range
    /// from it, most of which is in the oldest run: announce its block there.
    pub(crate) fn announce_without_wait(&self, key: &[u8]) -> Result<()> {
        let hash = vt_tree::hash(key);
        let (mut may_have_it, mut oldest) = (false, None);
        for numbered in self.runs() {
            may_have_it |= numbered.run.announce(key, Some(hash))?;
            oldest = Some(&numbered.run);
        }
        if let Some(run) = oldest.filter(|_| !may_have_it) {
            run.announce(key, None)?;
        }
        Ok(())
    }

    /// Returns the only run, or `None` if there are more or none.
    fn only_run(&self) -> Option<&NumberedRun> {
        let mut runs = self.runs();
        runs.next().filter(|_| runs.next().is_none())
    }

    /// Returns all runs, newest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &NumberedRun> {
        self.levels.iter().flatten()
    }

    /// Returns all runs with their levels, newest first.
    pub(crate) fn by_level(&self) -> impl Iterator<Item = (usize, &NumberedRun)> {
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(level, runs)| runs.iter().map(move |p| (level, p)))
    }

    /// Returns all memtables and runs that a cursor reads, newest first.
    pub(crate) fn inputs(&self) -> Vec<Input> {
        self.layers
            .iter()
            .flat_map(Layer::inputs)
            .chain(self.runs().map(|p| Input::Run(p.run.clone())))
            .collect()
    }

    /// Returns the minimum length in bytes of values that are currently stored outside of their
    /// block.
    pub(crate) fn separate_at(&self) -> u32 {
        self.short.separate_at(self.info())
    }

    /// Returns the options for flushes and merges of this dictionary with the given placement.
    pub(crate) fn storage(&self, placement: Placement) -> MergeOptions {
        MergeOptions { separate_at: self.separate_at(), ..self.info().options.storage(placement) }
    }

    /// Returns the bytes of the runs, including dead data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.runs().map(|p| p.run.stats()).map(|s| s.block_bytes + s.value_bytes).sum()
    }

    pub(crate) fn memtable_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.memtable.bytes()).sum()
    }
}

/// Returns the parts of a new dictionary that was never written to. Clones do not adapt the
/// placement of their short values, so they all share one empty account.
fn nothing_own(of_main: bool) -> Arc<Own> {
    static OF_CLONES: LazyLock<Arc<Own>> = LazyLock::new(new);
    fn new() -> Arc<Own> {
        Arc::new(Own { layers: Vec::new(), since: 0, short: Arc::default() })
    }
    if of_main { new() } else { OF_CLONES.clone() }
}

/// Returns the levels of a dictionary without runs. They are shared, since a clone may have
/// thousands of such dictionaries.
fn no_levels() -> Levels {
    static NONE: LazyLock<Levels> = LazyLock::new(Levels::default);
    NONE.clone()
}

/// A source of open runs for the roots that the manifest names.
pub(crate) trait OpenRuns {
    /// Returns the open run with this id and root.
    fn open(&mut self, id: RunId, root: &Bytes) -> Result<Arc<Run>>;

    /// Returns the levels of another dictionary that has exactly the runs of `new`, if one is open.
    fn levels_like(&self, new: &DictionaryState) -> Option<Levels> {
        let _ = new;
        None
    }
}

impl<F: FnMut(RunId, &Bytes) -> Result<Arc<Run>>> OpenRuns for F {
    fn open(&mut self, id: RunId, root: &Bytes) -> Result<Arc<Run>> {
        self(id, root)
    }
}

pub(crate) type OpenRun<'a> = dyn OpenRuns + 'a;

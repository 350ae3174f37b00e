//! A version: the content of the store at one moment, immutable and swapped as a whole. For each
//! dictionary it has the memtables, newest first, and then the runs, level by level, newest first.
//! A reader pins a version and needs no lock; everything that the version refers to lives as long
//! as the pin.
//!
//! A dictionary has a memtable in a generation from its first commit there on. That commit installs
//! a new version ([`Version::came_with`]), so a reader that sees the commit also has the memtable.
//! Later commits need no new version until the generation is sealed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use vt_tree::{BlockCache, Input, Lookup, MergeOptions, Placement, Probe, Run, Seq, Value};
use zones::remote::TableHold;

use crate::dictionary::{Described, DictionaryId};
use crate::error::{Error, Result};
use crate::ids::RunId;
use crate::manifest::{BranchedDictionaries, DictionaryState, ManifestState, OfBranch};
use crate::persistent_map::PersistentMap;
use crate::read::generation::{Generation, Layer};
use crate::short_values::ShortValues;

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

/// The levels that were made while a version follows the manifest, by the address of the list of
/// runs in the manifest.
type Opened = HashMap<*const BTreeMap<RunId, (u32, Bytes)>, Levels>;

/// A dictionary as part of a version.
#[derive(Clone)]
pub(crate) struct Tree {
    /// The entry in the manifest: name and options of the dictionary, and the runs that are open in
    /// `levels`.
    pub entry: Arc<DictionaryState>,
    /// `levels[0]` is the youngest; within a level the newest run comes first. A clone shares the
    /// levels of its snapshot until it gets runs of its own.
    pub levels: Levels,
    own: Arc<Own>,
}

/// The parts of a dictionary that clones share until they are written to or rolled back.
#[derive(Clone)]
pub(crate) struct Own {
    /// Layers, newest first, only for those generations in which the dictionary was written to.
    pub layers: Vec<Layer>,
    /// The last rollback undid commits up to this one, so their memtables are void. 0 if there was
    /// no rollback.
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

    /// Returns the dictionary with this mark of the last rollback.
    fn with_since(mut self, since: Seq) -> Tree {
        if self.since != since {
            self.own_mut().since = since;
        }
        self
    }

    fn own_mut(&mut self) -> &mut Own {
        Arc::make_mut(&mut self.own)
    }

    /// Makes the dictionary that the manifest describes by `entry`, without memtables. It shares
    /// its levels with one in `opened` that has the same list of runs.
    fn of(
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

    /// Brings the runs and options in line with the manifest; memtables stay.
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
        // Numbers ascend, so within a level each run is newer than those before it.
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

    /// Returns the newest value of `key` among commits up to `at`. `cache` reads values that an
    /// update is applied to.
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

    /// Announces to the device the blocks that `get` of these keys (ascending) is likely to read.
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
        // A single block is read at once anyway.
        if blocks.len() > 1 {
            cache.announce_blocks(blocks);
        }
        Ok(())
    }

    /// Returns the run if there is exactly one.
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

    /// Returns the length in bytes from which values are currently stored outside of their block.
    pub(crate) fn separate_at(&self) -> u32 {
        self.short.separate_at(self.info())
    }

    /// Returns the options for flushes and merges of this dictionary with the given placement.
    pub(crate) fn storage(&self, placement: Placement) -> MergeOptions {
        MergeOptions { separate_at: self.separate_at(), ..self.info().options.storage(placement) }
    }

    /// Returns the bytes of the runs, dead data included.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.runs().map(|p| p.run.stats()).map(|s| s.block_bytes + s.value_bytes).sum()
    }

    pub(crate) fn memtable_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.memtable.bytes()).sum()
    }
}

/// Returns the parts of a new dictionary that was not written to. Clones do not adapt the placement
/// of their short values, so they all share one empty account.
fn nothing_own(of_main: bool) -> Arc<Own> {
    static OF_CLONES: LazyLock<Arc<Own>> = LazyLock::new(new);
    fn new() -> Arc<Own> {
        Arc::new(Own { layers: Vec::new(), since: 0, short: Arc::default() })
    }
    if of_main { new() } else { OF_CLONES.clone() }
}

/// Returns the levels of a dictionary without runs. A clone may have thousands of them.
fn no_levels() -> Levels {
    static NONE: LazyLock<Levels> = LazyLock::new(Levels::default);
    NONE.clone()
}

/// Opens the runs that the manifest names.
pub(crate) trait OpenRuns {
    /// Returns the open run of this number and root.
    fn open(&mut self, id: RunId, root: &Bytes) -> Result<Arc<Run>>;

    /// Returns the levels of a dictionary that has exactly the runs of this new one, if they are
    /// open.
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

/// The value of [`Version::installed`] in the version of a snapshot. No version of the store has
/// this number.
const OF_SNAPSHOT: u64 = u64::MAX;

/// Dictionaries by number.
pub(crate) type Trees = PersistentMap<DictionaryId, Arc<Tree>>;

/// The content of the whole store, see the module's comment.
#[derive(Clone)]
pub(crate) struct Version {
    pub trees: Trees,
    /// The dictionaries of branches, from which snapshots of them are made. Those of clones that
    /// have numbers only ([`BranchedDictionaries::has_numbers_only`]) are left out, and collected
    /// when a snapshot is made. Empty in the version of a snapshot.
    by_branch: PersistentMap<Arc<str>, Trees>,
    /// The dictionaries that have layers.
    in_memory: PersistentMap<DictionaryId, ()>,
    /// The entries of the dictionaries in the manifest when the version last followed it.
    pub entries: BranchedDictionaries,
    /// The generation that takes commits.
    pub generation: Arc<Generation>,
    /// The newest commit that this version came with: one whose changes are in the version itself,
    /// and not in memtables that it shares with the version before. 0 if there was none since the
    /// store was opened.
    pub came_with: Seq,
    /// Incremented whenever the version follows the manifest or gets the runs of a transaction. If
    /// two versions have the same number, all commits between them are in layers of the newer one.
    pub installed: u64,
    /// The branches in the manifest other than the main one, each with the snapshot that it was
    /// cloned from.
    pub branches: PersistentMap<Arc<str>, Arc<str>>,
    /// The limits of branches in bytes of their own, for those that have one.
    pub limits: PersistentMap<String, u64>,
    /// The limits of branches in files of their own, for those that have one.
    pub limits_of_files: PersistentMap<String, u64>,
    /// The zone table of a store in object storage that follows published states.
    pub table: TableHold,
}

impl Version {
    /// Makes the version of a store without dictionaries.
    pub(crate) fn empty(generation: Arc<Generation>) -> Version {
        Version {
            trees: Trees::default(),
            by_branch: PersistentMap::default(),
            in_memory: PersistentMap::default(),
            entries: BranchedDictionaries::default(),
            generation,
            came_with: 0,
            installed: 0,
            branches: PersistentMap::default(),
            limits: PersistentMap::default(),
            limits_of_files: PersistentMap::default(),
            table: TableHold::default(),
        }
    }

    /// Makes a version of empty dictionaries without branches, which follows no manifest.
    pub(crate) fn of(infos: impl IntoIterator<Item = Described>) -> Version {
        let mut version = Version::empty(Generation::first());
        infos.into_iter().for_each(|info| version.set(Tree::new(info)));
        version
    }

    /// Makes the version of a snapshot, which has the dictionaries of one branch. `nothing` is the
    /// generation of versions that take no commits.
    pub(crate) fn of_snapshot(
        trees: Trees,
        entries: OfBranch,
        nothing: Arc<Generation>,
    ) -> Version {
        let entries = BranchedDictionaries::of_snapshot(entries);
        Version { trees, entries, installed: OF_SNAPSHOT, ..Version::empty(nothing) }
    }

    /// Returns whether it is the version of a snapshot, which has one branch, whatever its name.
    pub(crate) fn is_of_snapshot(&self) -> bool {
        self.installed == OF_SNAPSHOT
    }

    /// Adds a dictionary, or replaces the one with the same number.
    fn set(&mut self, tree: Tree) {
        let (id, branch) = (tree.info().id, tree.info().branch.clone());
        match tree.layers.is_empty() {
            true => _ = self.in_memory.remove(&id),
            false => _ = self.in_memory.insert(id, ()),
        }
        let tree = Arc::new(tree);
        let before = self.trees.insert(id, tree.clone());
        if let Some(before) = before.filter(|before| before.info().branch != branch) {
            self.remove_of_branch(&before.info().branch, id);
        }
        match self.by_branch.get_mut(&*branch) {
            Some(trees) => _ = trees.insert(id, tree),
            None if self.entries.has_numbers_only(&branch) => {}
            None => {
                let mut trees = self.collected(&branch);
                trees.insert(id, tree);
                self.by_branch.insert(branch, trees);
            }
        }
    }

    fn remove(&mut self, id: DictionaryId) {
        self.in_memory.remove(&id);
        if let Some(gone) = self.trees.remove(&id) {
            self.remove_of_branch(&gone.info().branch, id);
        }
    }

    fn remove_of_branch(&mut self, branch: &str, id: DictionaryId) {
        if let Some(trees) = self.by_branch.get_mut(branch) {
            trees.remove(&id);
            if trees.is_empty() {
                self.by_branch.remove(branch);
            }
        }
    }

    /// Returns the dictionaries of a branch.
    pub(crate) fn of_branch(&self, branch: &str) -> Trees {
        self.by_branch.get(branch).cloned().unwrap_or_else(|| self.collected(branch))
    }

    /// Collects the dictionaries that a branch has in the manifest.
    fn collected(&self, branch: &str) -> Trees {
        let of_branch = self.entries.of_branch(branch);
        of_branch.keys().filter_map(|id| Some((*id, self.trees.get(id)?.clone()))).collect()
    }

    /// Returns the dictionaries of a branch without their memtables.
    pub(crate) fn runs_of_branch(&self, branch: &str) -> Trees {
        let mut trees = self.of_branch(branch);
        for (id, tree) in self.in_memory().filter(|(_, tree)| &*tree.info().branch == branch) {
            trees.insert(id, Arc::new(tree.without_layers()));
        }
        trees
    }

    /// Returns the dictionaries that have layers in memory.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = (DictionaryId, &Arc<Tree>)> {
        self.in_memory.keys().filter_map(|id| Some((*id, self.trees.get(id)?)))
    }

    /// Returns the layer of a dictionary that takes commits. Returns `None` if the dictionary was
    /// not written to in this generation.
    pub(crate) fn active<'t>(&self, tree: &'t Tree) -> Option<&'t Layer> {
        tree.layers.first().filter(|layer| Arc::ptr_eq(&layer.generation, &self.generation))
    }

    /// Returns the layer that takes commits of the dictionary with this number, like
    /// [`Version::active`].
    pub(crate) fn active_of(&self, dict: DictionaryId) -> Option<&Layer> {
        self.active(self.trees.get(&dict)?)
    }

    /// Returns whether there is a branch of this name. The main branch has the empty name.
    pub(crate) fn has_branch(&self, name: &str) -> bool {
        name.is_empty() || self.branches.contains_key(name)
    }

    /// Brings the version in line with the manifest. This is the only place that applies edits for
    /// readers, at run time and at recovery. Memtables stay, except those of a dictionary that was
    /// rolled back, which are void. `open` opens runs that the version does not have yet. After an
    /// error the version must not be used.
    ///
    /// Only dictionaries whose entry in the manifest has changed are visited.
    pub(crate) fn follow(&mut self, state: &ManifestState, open: &mut OpenRun<'_>) -> Result<()> {
        self.installed += 1;
        self.branches = state.branches.clone();
        self.limits = state.limits.clone();
        self.limits_of_files = state.limits_of_files.clone();
        let before = std::mem::replace(&mut self.entries, state.dictionaries.clone());
        let (mut changed, mut opened) = (Vec::new(), Opened::new());
        before.difference(&state.dictionaries, |id, old, new| match (old, new) {
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => {}
            (_, new) => changed.push((*id, new)),
        });
        for (id, entry) in changed {
            let Some(entry) = entry else {
                self.remove(id);
                continue;
            };
            let tree = match self.trees.get(&id) {
                Some(tree) => {
                    let mut tree = Tree::clone(tree);
                    tree.follow(entry, open)?;
                    tree
                }
                None => {
                    let since = state.since.get(&id).copied().unwrap_or(0);
                    Tree::of(entry, &mut opened, open)?.with_since(since)
                }
            };
            self.set(tree);
        }
        for (id, &since) in &state.since {
            let rolled_back = self.trees.get(id).is_some_and(|tree| tree.since < since);
            if let Some(entry) = state.dictionaries.get(id).filter(|_| rolled_back) {
                self.set(Tree::of(entry, &mut opened, open)?.with_since(since));
            }
        }
        Ok(())
    }

    /// Finds a dictionary by name in a branch.
    pub(crate) fn find(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        if !self.entries.is_empty() {
            return self.entries.find(branch, name);
        }
        // A version that follows no manifest has no index.
        let mut infos = self.trees.values().map(|tree| tree.info());
        infos.find(|info| info.name == name && &*info.branch == branch).map(|info| info.id)
    }

    /// Lowers the rollback marks to `seq`, since no later commit is known to exist.
    pub(crate) fn lower_since(&mut self, seq: Seq) {
        let due = self.trees.iter().filter(|(_, tree)| tree.since > seq);
        let due: Vec<DictionaryId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.change(id, |own| own.since = seq));
    }

    /// Drops the memtables of generations up to `upto`, whose content is in runs.
    pub(crate) fn drop_layers(&mut self, upto: u64) {
        let has = |tree: &Tree| tree.layers.iter().any(|l| l.generation.number <= upto);
        let due = self.in_memory().filter(|(_, tree)| has(tree));
        let due: Vec<DictionaryId> = due.map(|(id, _)| id).collect();
        for id in due {
            self.change(id, |own| own.layers.retain(|l| l.generation.number > upto));
        }
    }

    pub(crate) fn tree(&self, dict: DictionaryId) -> Result<&Arc<Tree>> {
        self.trees.get(&dict).ok_or_else(|| Error::NoDictionary(format!("{} (by number)", dict.0)))
    }

    /// Changes one tree. Does nothing if the dictionary was dropped.
    fn change(&mut self, dict: DictionaryId, change: impl FnOnce(&mut Own)) {
        if let Some(tree) = self.trees.get(&dict) {
            let mut tree = Tree::clone(tree);
            change(tree.own_mut());
            self.set(tree);
        }
    }

    /// Begins a new generation. A dictionary gets its memtable there with the first commit that
    /// changes it, so this costs the same however large the store is.
    pub(crate) fn seal(&mut self) {
        self.generation = self.generation.next();
    }

    /// Adds layers of the current generation on top of dictionaries that do not have one yet.
    pub(crate) fn add_layers(&mut self, layers: impl IntoIterator<Item = (DictionaryId, Layer)>) {
        for (dict, layer) in layers {
            self.change(dict, |own| own.layers.insert(0, layer));
        }
    }

    /// Adds the runs of a transaction on top of all data, in a version whose generation is new.
    /// Runs of dropped dictionaries are skipped.
    pub(crate) fn add_runs(&mut self, runs: &[(DictionaryId, Vec<Arc<Run>>)]) {
        self.installed += 1;
        let generation = self.generation.clone();
        let layer = |bound: &Vec<_>| Layer { bound: bound.clone(), ..generation.layer() };
        self.add_layers(runs.iter().map(|(dict, bound)| (*dict, layer(bound))));
    }

    /// Returns whether nothing waits for a flush.
    pub(crate) fn is_flushed(&self) -> bool {
        self.in_memory().all(|(_, tree)| tree.layers.iter().all(Layer::is_empty))
    }

    /// Returns the bytes of all memtables, sealed ones included.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.in_memory().map(|(_, tree)| tree.memtable_bytes()).sum()
    }
}

/// Reads a value, inline or stored by place.
pub(crate) fn read(cache: &BlockCache, value: Value) -> Result<Bytes> {
    match value {
        Value::Inline(bytes) => Ok(bytes),
        extent => Ok(cache.read_value(&extent)?),
    }
}

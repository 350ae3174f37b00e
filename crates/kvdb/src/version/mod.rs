//! Versions and their parts.
//!
//! - `generation`: the memtables between two seals; `tree`: the layers and levels of one
//!   dictionary;
//! - `version_set`: the current version, and how edits of the manifest change it;
//! - `snapshot_set`: the snapshots, which follow the manifest in the same way;
//! - `read_snapshots`: the commits that views read.
//!
//! A version is the content of the store at one moment. It is immutable, and swapped as a whole.
//! For each dictionary it has the memtables, newest first, and then the runs, level by level,
//! newest first. A reader pins a version and needs no lock. Everything that the version refers to
//! stays alive as long as the pin.
//!
//! A dictionary gets a memtable in a generation with its first commit there. That commit installs a
//! new version ([`Version::came_with`]), so a reader that sees the commit also has the memtable.
//! Later commits need no new version until the generation is sealed.

pub(crate) mod generation;
pub(crate) mod read_snapshots;
pub(crate) mod snapshot_set;
pub(crate) mod tree;
pub(crate) mod version_set;

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BlockCache, Run, Seq, Value};
use zones::remote::TableHold;

use self::generation::{Generation, Layer};
use self::tree::{OpenRun, Opened, Own, Tree};
use crate::dictionary::{Described, DictionaryId};
use crate::error::{Error, Result};
use crate::manifest::{BranchedDictionaries, ManifestState, OfBranch};
use crate::persistent_map::PersistentMap;

/// The value of [`Version::installed`] in the version of a snapshot. No version of the store has
/// this number.
const OF_SNAPSHOT: u64 = u64::MAX;

/// Dictionaries keyed by number.
pub(crate) type Trees = PersistentMap<DictionaryId, Arc<Tree>>;

/// The content of the whole store. See the module documentation.
#[derive(Clone)]
pub(crate) struct Version {
    pub trees: Trees,
    /// The dictionaries of the main branch, which are also in `trees`. They are looked up here
    /// first ([`Version::get`]), so that the cost of a commit to one of them does not depend on the
    /// number of clones. Empty in the version of a snapshot.
    main: Trees,
    /// The dictionaries of the other branches, from which snapshots are made. Clones that have
    /// numbers only ([`BranchedDictionaries::has_numbers_only`]) are left out; their dictionaries
    /// are collected when a snapshot is made. Empty in the version of a snapshot.
    by_branch: PersistentMap<Arc<str>, Trees>,
    /// The dictionaries that have layers.
    in_memory: PersistentMap<DictionaryId, ()>,
    /// The manifest entries of the dictionaries as of the last [`Version::follow`].
    pub entries: BranchedDictionaries,
    /// The generation that receives commits.
    pub generation: Arc<Generation>,
    /// The newest commit whose changes are in the version itself, and not in memtables that it
    /// shares with the previous version. 0 if there was none since the store was opened.
    pub came_with: Seq,
    /// A number incremented whenever the version follows the manifest or gets the runs of a
    /// transaction. If two versions have the same number, all commits between them are in layers of
    /// the newer one.
    pub installed: u64,
    /// The branches in the manifest except the main branch, each with the snapshot that it was
    /// cloned from.
    pub branches: PersistentMap<Arc<str>, Arc<str>>,
    /// The limits on the bytes that branches have of their own, for branches with such a limit.
    pub limits: PersistentMap<String, u64>,
    /// The limits on the files that branches have of their own, for branches with such a limit.
    pub limits_of_files: PersistentMap<String, u64>,
    /// The zone table, for a store that follows published states in object storage.
    pub table: TableHold,
}

impl Version {
    /// Makes the version of a store without dictionaries.
    pub(crate) fn empty(generation: Arc<Generation>) -> Version {
        Version {
            trees: Trees::default(),
            main: Trees::default(),
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
    /// generation used by versions that receive no commits.
    pub(crate) fn of_snapshot(
        trees: Trees,
        entries: OfBranch,
        nothing: Arc<Generation>,
    ) -> Version {
        let entries = BranchedDictionaries::of_snapshot(entries);
        Version { trees, entries, installed: OF_SNAPSHOT, ..Version::empty(nothing) }
    }

    /// Returns whether this is the version of a snapshot. Such a version has one branch, whatever
    /// its name.
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
        if branch.is_empty() {
            if self.main.is_empty() {
                self.main = self.collected("");
            }
            self.main.insert(id, tree);
            return;
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
        if branch.is_empty() {
            self.main.remove(&id);
        } else if let Some(trees) = self.by_branch.get_mut(branch) {
            trees.remove(&id);
            if trees.is_empty() {
                self.by_branch.remove(branch);
            }
        }
    }

    /// Returns the dictionaries of a branch.
    pub(crate) fn of_branch(&self, branch: &str) -> Trees {
        let known = match branch.is_empty() {
            true => Some(&self.main).filter(|main| !main.is_empty()),
            false => self.by_branch.get(branch),
        };
        known.cloned().unwrap_or_else(|| self.collected(branch))
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

    /// Returns the layer of a dictionary that receives commits, or `None` if the dictionary was not
    /// written to in this generation.
    pub(crate) fn active<'t>(&self, tree: &'t Tree) -> Option<&'t Layer> {
        tree.layers.first().filter(|layer| Arc::ptr_eq(&layer.generation, &self.generation))
    }

    /// Returns the layer that receives commits of the dictionary with this number, like
    /// [`Version::active`].
    pub(crate) fn active_of(&self, dict: DictionaryId) -> Option<&Layer> {
        self.active(self.get(dict)?)
    }

    /// Returns whether there is a branch with this name. The main branch has the empty name.
    pub(crate) fn has_branch(&self, name: &str) -> bool {
        name.is_empty() || self.branches.contains_key(name)
    }

    /// Updates the version to the state of the manifest. This is the only place that applies edits
    /// for readers, at run time and at recovery. Memtables are kept, except those of a dictionary
    /// that was rolled back, which are void. `open` opens runs that the version does not have yet.
    /// After an error the version must not be used.
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
        // A version that follows no manifest has no index by name.
        let mut infos = self.trees.values().map(|tree| tree.info());
        infos.find(|info| info.name == name && &*info.branch == branch).map(|info| info.id)
    }

    /// Lowers the rollback marks to at most `seq`, because no later commit is known to exist.
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

    /// Returns the dictionary with this number in any branch. The cost of finding a dictionary of
    /// the main branch does not depend on the number of clones.
    pub(crate) fn get(&self, dict: DictionaryId) -> Option<&Arc<Tree>> {
        self.main.get(&dict).or_else(|| self.trees.get(&dict))
    }

    /// Returns whether the main branch has a dictionary with this number.
    pub(crate) fn has_in_main(&self, dict: DictionaryId) -> bool {
        self.main.contains_key(&dict)
    }

    pub(crate) fn tree(&self, dict: DictionaryId) -> Result<&Arc<Tree>> {
        self.get(dict).ok_or_else(|| Error::NoDictionary(format!("{} (by number)", dict.0)))
    }

    /// Changes one tree. Does nothing if the dictionary was dropped.
    fn change(&mut self, dict: DictionaryId, change: impl FnOnce(&mut Own)) {
        if let Some(tree) = self.trees.get(&dict) {
            let mut tree = Tree::clone(tree);
            change(tree.own_mut());
            self.set(tree);
        }
    }

    /// Begins a new generation. A dictionary gets its memtable with the first commit that changes
    /// it, so the cost of this does not depend on the size of the store.
    pub(crate) fn seal(&mut self) {
        self.generation = self.generation.next();
    }

    /// Adds layers of the current generation to dictionaries that do not have one yet.
    pub(crate) fn add_layers(&mut self, layers: impl IntoIterator<Item = (DictionaryId, Layer)>) {
        for (dict, layer) in layers {
            self.change(dict, |own| own.layers.insert(0, layer));
        }
    }

    /// Adds the runs of a transaction as the newest data, in a version whose generation has just
    /// begun. Runs of dropped dictionaries are skipped.
    pub(crate) fn add_runs(&mut self, runs: &[(DictionaryId, Vec<Arc<Run>>)]) {
        self.installed += 1;
        let generation = self.generation.clone();
        let layer = |bound: &Vec<_>| Layer { bound: bound.clone(), ..generation.layer() };
        self.add_layers(runs.iter().map(|(dict, bound)| (*dict, layer(bound))));
    }

    /// Returns whether no data waits for a flush.
    pub(crate) fn is_flushed(&self) -> bool {
        self.in_memory().all(|(_, tree)| tree.layers.iter().all(Layer::is_empty))
    }

    /// Returns the bytes of all memtables, including sealed ones.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.in_memory().map(|(_, tree)| tree.memtable_bytes()).sum()
    }
}

/// Reads a value that is inline or stored elsewhere.
pub(crate) fn read(cache: &BlockCache, value: Value) -> Result<Bytes> {
    match value {
        Value::Inline(bytes) => Ok(bytes),
        extent => Ok(cache.read_value(&extent)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Kvdb;

    /// Fails unless `Version::main` has exactly the dictionaries whose branch is the main branch.
    fn check(db: &Kvdb, when: &str) {
        let version = db.version_set().load_full();
        let of_main = |tree: &&Arc<Tree>| tree.info().branch.is_empty();
        let all: Vec<&Arc<Tree>> = version.trees.values().filter(of_main).collect();
        assert_eq!(version.main.len(), all.len(), "{when}");
        for tree in all {
            let (id, name) = (tree.info().id, &tree.info().name);
            let found = version.main.get(&id).is_some_and(|found| Arc::ptr_eq(found, tree));
            assert!(found && db.has_dictionary(id), "{when}: {name}");
            assert_eq!(version.find("", name), Some(id), "{when}: {name}");
        }
    }

    #[test]
    fn a_dictionary_of_the_main_branch_is_not_looked_up_among_those_of_clones() {
        let db = Kvdb::in_memory();
        let d = db.open_dictionary("d").unwrap();
        d.insert("k", "old").unwrap();
        check(&db, "written");
        db.flush().unwrap();
        db.snapshot("s").unwrap();
        for n in 0..100 {
            db.clone_snapshot("s", &format!("c{n}")).unwrap();
        }
        check(&db, "cloned");
        assert_eq!(db.version_set().load().main.len(), 1, "the clones have 100 more");
        let later = db.open_dictionary("later").unwrap();
        let of_clone = db.open_dictionary_in("c3", "d").unwrap();
        of_clone.insert("k", "of the clone").unwrap();
        d.insert("k", "new").unwrap();
        check(&db, "changed");
        assert!(db.has_dictionary(later.id()) && !db.has_dictionary(of_clone.id()));
        assert_eq!(of_clone.get("k").unwrap().unwrap(), "of the clone");
        assert_eq!(d.get("k").unwrap().unwrap(), "new");
        db.flush().unwrap();
        check(&db, "flushed");
        db.rollback("s").unwrap();
        check(&db, "rolled back");
        assert_eq!(d.get("k").unwrap().unwrap(), "old");
        assert!(!db.has_dictionary(later.id()));
        db.drop_branch("c3").unwrap();
        db.drop_dictionary(d.id()).unwrap();
        check(&db, "dropped");
        assert!(!db.has_dictionary(d.id()) && db.dictionary("d").is_none());
    }
}

//! Repairs a store with damaged blocks. Runs that cannot be read completely are rewritten without
//! the unreadable parts, and the lost data is deleted and listed. The caller can put stand-ins in
//! place of the lost data ([`Deletion`]). Stand-ins exist in all states that share the run,
//! including branches and snapshots. The caller can then change other tuples to make its own
//! structures consistent. The whole repair takes effect atomically: a new manifest replaces the old
//! runs with the new runs in all dictionaries, branches and snapshots. Until the superblock refers
//! to the new manifest, the store is unchanged.
//!
//! Unreadable copies of the superblock and of the manifest need no repair, since opening the store
//! for writing restores them. A store that cannot be opened because its manifest or journal is
//! incomplete cannot be repaired. See [`crate::Salvage`].

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Input, KeyRange, Merge, MergeOptions, Placement, PutInstead, Run, Value};
use zones::Priority;

use crate::commit::batch::{Batch, BatchChange};
use crate::commit::write_memtables;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::Op;
use crate::read::view::View;
use crate::scrub::{FaultKeys, ScrubFault};
use crate::version::Version;
use crate::version::tree::Tree;
use crate::version::version_set::VersionEdit;
use crate::version::version_set::encode_run;

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The data that could not be read and was deleted.
    pub removed: Vec<ScrubFault>,
    /// The number of runs that were rewritten.
    pub runs: u64,
    /// The number of further changes that the caller has made.
    pub changes: u64,
}

/// Keys that a repair deletes from a run because their tuples or values cannot be read.
pub struct Deletion<'a> {
    /// The deleted keys: the keys of a block or of a part of the tree, or the key of a large value.
    pub keys: &'a FaultKeys,
    /// The states that have the run.
    pub states: &'a [StateOfRun],
    put: &'a mut PutInstead<'a>,
}

impl Deletion<'_> {
    /// Puts a stand-in into the run: a tuple that takes the place of a lost tuple in all states
    /// that have the run. Newer runs hide the stand-in as they hid the lost tuple. The keys must be
    /// among the deleted keys and must ascend; any other key is ignored.
    pub fn put(&mut self, key: &[u8], value: impl Into<Bytes>) {
        (self.put)(key, value.into());
    }
}

/// A state that has a damaged run: the newest state of a branch, or a snapshot.
pub struct StateOfRun {
    /// The state as it was before the repair. Reads of damaged data fail.
    pub view: View,
    /// The branch in `view`. The name is empty for the main branch and for a snapshot.
    branch: Arc<str>,
}

impl StateOfRun {
    /// Finds a dictionary of the state by name.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.view.dictionary_in(&self.branch, name)
    }
}

impl Database {
    fn repair<E: From<Error>>(
        &self,
        mut stand_in: impl FnMut(&mut Deletion<'_>),
        mend: impl FnOnce(&View, &[ScrubFault]) -> std::result::Result<Batch, E>,
    ) -> std::result::Result<RepairReport, E> {
        if !self.engine.inline {
            return Err(Error::Invalid(
                "a store is repaired without threads, and while nothing else uses it".into(),
            )
            .into());
        }
        self.engine.health.writable()?;
        self.flusher.flush_all()?;
        let _alone = self.compactor.merge_alone();
        let mut report = RepairReport::default();
        let mut change = VersionEdit::default();
        let instead = self.rewrite_damaged(&mut stand_in, &mut report, &mut change)?;

        let mut state = self.engine.versions.manifest()?.state().clone();
        state.replace_runs(&instead);
        // Show the caller the repaired store, so that it can make its own structures consistent.
        let view = self.engine.versions.preview(&state, &change)?;
        let batch = mend(&view, &report.removed)?;
        report.changes = batch.len() as u64;
        if report.runs == 0 && batch.is_empty() {
            return Ok(report);
        }
        let added = self.write_above(&view.version, batch)?;
        self.engine.zones.sync().map_err(Error::from)?;

        for (dict, run) in added {
            let root = encode_run(&run);
            state.add_newest(dict, root.clone())?;
            change.knows(root, run);
        }
        state.streams = self.engine.zones.positions();
        state.closed = false;
        self.engine.versions.replace(state, &change)?;
        Ok(report)
    }

    /// Rewrites each run that cannot be read completely. The lost data is added to `report`, and
    /// the new runs to `change`. Returns the root of each damaged run with the root of the run that
    /// replaces it, or with `None` if nothing of the run is left.
    fn rewrite_damaged(
        &self,
        stand_in: &mut dyn FnMut(&mut Deletion<'_>),
        report: &mut RepairReport,
        change: &mut VersionEdit,
    ) -> Result<HashMap<Bytes, Option<Bytes>>> {
        let mut instead = HashMap::new();
        for (tree, run, place) in self.all_runs() {
            let mut whole = true;
            vt_tree::check_run(&run, &mut |_| whole = false, &mut |_| {});
            if whole {
                continue;
            }
            let options = MergeOptions {
                priority: Priority::Flush,
                ..tree.info().options.storage(Placement::stitch())
            };
            let name = tree.info().name.clone();
            let states = self.states_with(&run);
            let new = vt_tree::rewrite(&run, &options, &mut |damage, put| {
                let keys = FaultKeys {
                    dictionary: name.clone(),
                    start: Bytes::copy_from_slice(&damage.start),
                    end: Bytes::copy_from_slice(&damage.end),
                };
                stand_in(&mut Deletion { keys: &keys, states: &states, put });
                report.removed.push(ScrubFault {
                    place: place.clone(),
                    what: damage.what,
                    keys: Some(keys),
                });
            });
            let new = new.map_err(Error::from)?;
            report.runs += 1;
            let root = new.as_deref().map(encode_run);
            root.iter().zip(new).for_each(|(root, new)| change.knows(root.clone(), new));
            instead.insert(encode_run(&run), root);
        }
        Ok(instead)
    }

    /// Returns each run once, with a dictionary that has the run and with the name of the run in
    /// messages.
    fn all_runs(&self) -> Vec<(Arc<Tree>, Arc<Run>, String)> {
        let mut seen = BTreeSet::new();
        let mut runs = Vec::new();
        let version = self.engine.versions.load_full();
        let kept: Vec<_> = self
            .engine
            .snapshots
            .list()
            .into_iter()
            .map(|s| (format!("snapshot {}, ", s.label.name), s.version()))
            .collect();
        for (of, version) in std::iter::once((String::new(), version)).chain(kept) {
            for tree in version.trees.values() {
                for numbered in tree.runs().filter(|p| seen.insert(Arc::as_ptr(&p.run))) {
                    let branch = if tree.info().branch.is_empty() {
                        String::new()
                    } else {
                        format!("branch {}, ", tree.info().branch)
                    };
                    let place = format!(
                        "{of}{branch}dictionary {}, run {}",
                        tree.info().name,
                        numbered.id.0
                    );
                    runs.push((tree.clone(), numbered.run.clone(), place));
                }
            }
        }
        runs
    }

    /// Returns the states that have a run.
    fn states_with(&self, run: &Arc<Run>) -> Vec<StateOfRun> {
        let root = encode_run(run);
        let has = |tree: &Tree| {
            tree.runs().any(|p| Arc::ptr_eq(&p.run, run) || encode_run(&p.run) == root)
        };
        let newest = self.engine.versions.view();
        let mut states = Vec::new();
        for tree in newest.version.trees.values().filter(|tree| has(tree)) {
            states.push(StateOfRun { view: newest.clone(), branch: tree.info().branch.clone() });
        }
        for snapshot in self.engine.snapshots.list() {
            if snapshot.version().trees.values().any(|tree| has(tree)) {
                let view = self.snapshotter.open(&snapshot);
                states.push(StateOfRun { view, branch: Arc::from("") });
            }
        }
        states
    }

    /// Writes the changes of a batch into new runs above all existing runs. Each new run is newer
    /// than the runs before it in the result.
    fn write_above(
        &self,
        version: &Version,
        batch: Batch,
    ) -> Result<Vec<(DictionaryId, Arc<Run>)>> {
        // The values may be as large as the lost data, and a memtable copies them. To bound the
        // memory, fill one memtable at a time and write it as a run above the earlier runs.
        let mut changes = batch.changes.into_iter().map(op_of).peekable();
        let mut runs = Vec::new();
        while changes.peek().is_some() {
            let (mut piece, mut bytes) = (Vec::new(), 0);
            while bytes < PIECE
                && let Some((dict, op)) = changes.next()
            {
                bytes += match &op {
                    Op::Put(key, Value::Inline(value)) => key.len() + value.len(),
                    _ => 0,
                } + size_of::<Op>();
                piece.push((dict, op));
            }
            let mut memory = Version::of(version.trees.values().map(|t| t.info().clone()));
            let written = write_memtables(&memory, 1, &piece, &mut |_| {});
            memory.add_layers(written.fresh);
            for (&dict, tree) in &memory.trees {
                let inputs: Vec<Input> = tree.inputs();
                if inputs.is_empty() {
                    continue;
                }
                let storage = tree.info().options.storage(Placement::stitch());
                let options =
                    MergeOptions { old_seq: u64::MAX, priority: Priority::Flush, ..storage };
                let mut merge = Merge::new(&self.engine.cache, &inputs, &KeyRange::all(), options)?;
                while !merge.step(1 << 20)? {}
                runs.extend(merge.finish()?.0.map(|run| (dict, run)));
            }
        }
        Ok(runs)
    }
}

/// The number of bytes of changes that a memtable of [`Database::write_above`] may have.
const PIECE: usize = 16 << 20;

fn op_of(change: BatchChange) -> (DictionaryId, Op) {
    match change {
        BatchChange::Put(d, k, v) => (d, Op::Put(k, Value::Inline(v))),
        BatchChange::PutStored(d, k, v) => (d, Op::Put(k, v.value)),
        BatchChange::Update(d, k, update) => (d, Op::Update(k, update)),
        BatchChange::Delete(d, k) => (d, Op::Delete(k)),
        BatchChange::DeleteRange(d, start, end) => (d, Op::DeleteRange(start, end)),
    }
}

impl crate::Kvdb {
    /// Makes a store with damaged blocks usable again. Unreadable data is deleted and listed in the
    /// report; all other data is kept. `stand_in` is called with each deletion, in the order of the
    /// report, and can put tuples in place of the lost data. These tuples then exist in every
    /// branch and snapshot that had the lost data. `mend` gets a view of the store without the
    /// unreadable data and the list of deletions, and returns the changes that make the structures
    /// of the layer above consistent again. The repair takes effect atomically; if any step fails,
    /// the store is unchanged. The store must be opened without threads and must have no other
    /// user. It should be closed directly after the repair.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let report = db.repair(
    ///     |_deletion| {},
    ///     |_view, _removed| Ok::<_, kvdb::Error>(kvdb::Batch::new()),
    /// )?;
    /// assert_eq!(report, kvdb::RepairReport::default(), "nothing was damaged");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn repair<E: From<Error>>(
        &self,
        stand_in: impl FnMut(&mut Deletion<'_>),
        mend: impl FnOnce(&View, &[ScrubFault]) -> std::result::Result<Batch, E>,
    ) -> std::result::Result<RepairReport, E> {
        self.db.repair(stand_in, mend)
    }
}

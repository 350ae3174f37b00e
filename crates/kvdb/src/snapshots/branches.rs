//! Branches: clones of snapshots, rollbacks, and what ends them. Each is one edit of the manifest,
//! and moves no data.

use env::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Snapshotter;
use crate::commit::SpaceClaim;
use crate::commit::number_alone;
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::journal::record;
use crate::manifest::{Edit, ManifestState};
use crate::read::snapshot_set::Snapshot;
use crate::read::version_set::VersionEdit;

/// Lets a change name the runs of a snapshot.
fn know(change: &mut VersionEdit, state: &ManifestState, snapshot: &Snapshot) {
    let version = snapshot.version();
    let entries = state.snapshots.get(&snapshot.label.name).map(|s| &s.dictionaries);
    for (id, entry) in entries.into_iter().flatten() {
        for numbered in version.trees.get(id).iter().flat_map(|tree| tree.runs()) {
            if let Some((_, root)) = entry.runs.get(&numbered.id) {
                change.knows(root.clone(), numbered.run.clone());
            }
        }
    }
}

impl Snapshotter {
    pub(crate) fn clone_snapshot(&self, snapshot: &str, branch: &str) -> Result<()> {
        let of = self.snapshots.get(snapshot).ok_or_else(|| Error::NoSnapshot(snapshot.into()))?;
        self.clone_exactly(&of, branch)
    }

    /// Makes a branch of this snapshot, and of no other one that has its name by now.
    pub(crate) fn clone_exactly(&self, of: &Arc<Snapshot>, branch: &str) -> Result<()> {
        self.health.writable()?;
        let _naming = self.settled()?;
        let snapshot = &of.label.name;
        if !self.snapshots.get(snapshot).is_some_and(|now| Arc::ptr_eq(&now, of)) {
            return Err(Error::NoSnapshot(snapshot.clone()));
        }
        if self.versions.load().has_branch(branch) {
            return Err(Error::Exists(format!("branch {branch}")));
        }
        self.versions.install(|state| {
            let first = state.next_dictionary;
            let edit = Edit::Clone { snapshot: snapshot.clone(), branch: branch.into(), first };
            let mut change = VersionEdit::of([edit]);
            know(&mut change, state, of);
            change
        })
    }

    pub(crate) fn create_branch(&self, name: &str) -> Result<()> {
        self.health.writable()?;
        let _naming = self.snapshots.naming.lock();
        if self.versions.load().has_branch(name) {
            return Err(Error::Exists(format!("branch {name}")));
        }
        let edit = Edit::Branch { name: name.into(), of: String::new() };
        self.versions.install(|_| VersionEdit::of([edit]))
    }

    pub(crate) fn drop_branch(&self, name: &str) -> Result<()> {
        self.health.writable()?;
        // A snapshot of it that was made before has its dictionaries.
        let naming = self.settled()?;
        if name.is_empty() || !self.versions.load().has_branch(name) {
            return Err(Error::NoBranch(name.into()));
        }
        self.versions.install(|_| VersionEdit::of([Edit::DropBranch(name.into())]))?;
        drop(naming);
        self.signals.reclaimable.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives a branch the state of one of its snapshots. `lock` locks dictionaries against
    /// transactions until what it gives is dropped.
    pub(crate) fn roll_back<L>(
        &self,
        snapshot: &str,
        lock: impl FnOnce(&BTreeSet<DictionaryId>) -> Result<L>,
    ) -> Result<()> {
        self.health.writable()?;
        // Serializable transactions that have read or changed what is replaced end here, and none
        // looks at it before all is done. Before the locks that follow: a call of one that must end
        // may wait for these.
        let to = self.snapshots.get(snapshot).ok_or_else(|| Error::NoSnapshot(snapshot.into()))?;
        let branch = to.label.branch.clone();
        let mut dicts: BTreeSet<DictionaryId> = to.version().trees.keys().copied().collect();
        dicts.extend(
            self.versions
                .load()
                .trees
                .values()
                .filter(|t| t.info.branch == branch)
                .map(|t| t.info.id),
        );
        let locked = lock(&dicts)?;
        // While space can still be looked for.
        drop(self.commits.enter(
            &*self.admission,
            record::size(&number_alone()),
            0,
            SpaceClaim::default(),
        )?);
        // Nothing that is under way may add to what is replaced.
        let alone = self.compactor.merge_alone();
        let flushing = self.flusher.lock();
        let naming = loop {
            let naming = self.snapshots.naming.lock();
            if self.snapshots.next_pending().is_none() {
                break naming;
            }
            drop(naming);
            self.flusher.flush_sealed_locked()?;
            self.health.check()?;
        };
        if !self.snapshots.get(snapshot).is_some_and(|now| Arc::ptr_eq(&now, &to)) {
            return Err(Error::NoSnapshot(snapshot.into()));
        }
        // What was rolled back cannot be undone any more, nor can what was committed before: what
        // that would bring back has other things under its numbers.
        let around: Vec<String> =
            self.undoable_of(&branch).iter().map(|s| s.label.name.clone()).collect();
        let gone = {
            // Every commit is before or after: those before are void, in memory and in the journal.
            // It has a number of its own, so that transactions which began before it can tell.
            let mut pipeline = self.commits.enter_at_once(record::size(&number_alone()))?;
            let seq = pipeline.next_seq;
            let plan = |state: &ManifestState| {
                let mut infos = state.dictionaries.values().map(|d| &d.info);
                let made =
                    |info: &&DictionaryInfo| info.branch == branch && !dicts.contains(&info.id);
                if let Some(new) = infos.find(made) {
                    return Err(Error::Locked(format!(
                        "dictionary {} was made during the rollback: try again",
                        new.name
                    )));
                }
                let mut change =
                    VersionEdit::of([Edit::RollBack { snapshot: snapshot.into(), seq }]);
                change.edits.extend(around.iter().cloned().map(Edit::DropSnapshot));
                know(&mut change, state, &to);
                Ok(change)
            };
            self.commits.install_commit(&mut pipeline, |_| None, plan)?
        };
        drop((naming, flushing, alone, locked, gone));
        self.signals.reclaimable.store(true, Ordering::Release);
        self.flusher.flushed();
        Ok(())
    }

    /// The states around commits to a branch, which nothing can undo once it is replaced.
    fn undoable_of(&self, branch: &str) -> Vec<Arc<Snapshot>> {
        let around = self.snapshots.around_commits().into_iter().flatten();
        around.filter(|_| branch.is_empty()).collect()
    }

    /// Lets the branch `from`, which takes no more writes, take the place of `to`, without its
    /// dictionary `but`, and makes a snapshot of it: all in one edit, so that an error leaves the
    /// branch as it is.
    pub(crate) fn adopt(
        &self,
        from: &str,
        to: &str,
        label: Label,
        but: &str,
        replaced: &BTreeSet<DictionaryId>,
    ) -> Result<()> {
        self.flusher.flush_all()?;
        let naming = self.settled()?;
        if self.snapshots.get(&label.name).is_some() {
            return Err(Error::Exists(format!("snapshot {}", label.name)));
        }
        let label = Label { seq: self.versions.visible.load(Ordering::Acquire), ..label };
        let undoable = self.undoable_of(to);
        let mut fresh = None;
        let plan = |state: &ManifestState| {
            // Made since the others were locked.
            let mut of_branch =
                state.dictionaries.values().map(|d| &d.info).filter(|info| info.branch == to);
            fresh =
                of_branch.find(|info| !replaced.contains(&info.id)).map(|info| info.name.clone());
            if fresh.is_some() {
                return VersionEdit::default();
            }
            let below = state.next_dictionary;
            let infos = state.dictionaries.values().map(|d| &d.info);
            let left_out = infos.filter(|info| info.branch == from && info.name == but);
            let mut edits: Vec<Edit> = left_out.map(|info| Edit::DropDictionary(info.id)).collect();
            edits.push(Edit::Adopt { from: from.into(), to: to.into() });
            edits.push(Edit::Snapshot { label, below });
            edits.extend(undoable.iter().map(|s| Edit::DropSnapshot(s.label.name.clone())));
            VersionEdit::of(edits)
        };
        self.versions.install(plan)?;
        drop(naming);
        // Their runs are let go outside of all locks.
        drop(undoable);
        if to.is_empty() {
            self.feed.lose(|| self.env.random());
        }
        if let Some(name) = fresh {
            return Err(Error::Locked(format!(
                "dictionary {name} was made while the stream ended: try again"
            )));
        }
        self.signals.reclaimable.store(true, Ordering::Release);
        Ok(())
    }
}

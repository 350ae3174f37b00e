//! Branches: clones of snapshots, rollbacks, and drops. Each is one edit of the manifest, and moves
//! no data.

use env::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use vt_tree::Seq;
use zones::Priority;

use super::Snapshotter;
use crate::commit::SpaceClaim;
use crate::commit::number_alone;
use crate::commit::order::Changed;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::journal::record;
use crate::lock_order::MutexGuard;
use crate::manifest::{Edit, ManifestState};
use crate::version::snapshot_set::Snapshot;
use crate::version::version_set::VersionEdit;

/// Registers the runs of a snapshot with a change, whose edits may name them.
pub(super) fn know(change: &mut VersionEdit, state: &ManifestState, snapshot: &Snapshot) {
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

/// Returns the edit that rolls the branch of the snapshot `to` back to it, and drops the snapshots
/// in `around`. The rollback is commit `seq`. Fails if the branch has a dictionary that is not
/// among the locked ones, `dicts`.
fn rolling_back(
    state: &ManifestState,
    to: &Snapshot,
    seq: Seq,
    dicts: &BTreeSet<DictionaryId>,
    around: &[String],
) -> Result<VersionEdit> {
    let of_branch = state.dictionaries.of_branch(&to.label.branch);
    let mut infos = of_branch.values().map(|d| &d.info);
    if let Some(new) = infos.find(|info| !dicts.contains(&info.id)) {
        return Err(Error::Locked(format!(
            "dictionary {} was made during the rollback: try again",
            new.name
        )));
    }
    let snapshot = to.label.name.clone();
    let mut change = VersionEdit::of([Edit::RollBack { snapshot, seq }]);
    change.edits.extend(around.iter().cloned().map(Edit::DropSnapshot));
    know(&mut change, state, to);
    Ok(change)
}

impl Snapshotter {
    pub(crate) fn clone_snapshot(&self, snapshot: &str, branch: &str) -> Result<()> {
        let of = self
            .engine
            .snapshots
            .get(snapshot)
            .ok_or_else(|| Error::NoSnapshot(snapshot.into()))?;
        self.clone_exactly(&of, branch)
    }

    /// Makes a branch of exactly this snapshot, and not of a different one that has its name by
    /// now.
    pub(crate) fn clone_exactly(&self, of: &Arc<Snapshot>, branch: &str) -> Result<()> {
        self.engine.health.writable()?;
        self.commits.flush_before_edit(&*self.admission)?;
        let _naming = self.settled()?;
        let snapshot = &of.label.name;
        if !self.engine.snapshots.get(snapshot).is_some_and(|now| Arc::ptr_eq(&now, of)) {
            return Err(Error::NoSnapshot(snapshot.clone()));
        }
        if self.engine.versions.load().has_branch(branch) {
            return Err(Error::Exists(format!("branch {branch}")));
        }
        self.commits.install(|state| {
            let first = state.next_dictionary;
            let edit = Edit::Clone { snapshot: snapshot.clone(), branch: branch.into(), first };
            let mut change = VersionEdit::of([edit]);
            know(&mut change, state, of);
            change
        })
    }

    pub(crate) fn create_branch(&self, name: &str) -> Result<()> {
        self.engine.health.writable()?;
        self.commits.flush_before_edit(&*self.admission)?;
        let _naming = self.engine.snapshots.naming.lock();
        if self.engine.versions.load().has_branch(name) {
            return Err(Error::Exists(format!("branch {name}")));
        }
        let edit = Edit::Branch { name: name.into(), of: String::new() };
        self.commits.install(|_| VersionEdit::of([edit]))
    }

    /// Drops a branch. `lock` locks its dictionaries against transactions until its result is
    /// dropped.
    pub(crate) fn drop_branch<L>(
        &self,
        name: &str,
        lock: impl FnOnce(&BTreeSet<DictionaryId>) -> Result<L>,
    ) -> Result<()> {
        self.engine.health.writable()?;
        if name.is_empty() || !self.engine.versions.load().has_branch(name) {
            return Err(Error::NoBranch(name.into()));
        }
        let locked = lock(&self.dictionaries_of(name))?;
        self.prepare_drop()?;
        // A snapshot of the branch that was made before must include its dictionaries.
        let naming = self.settled()?;
        let undoable = self.undoable_of(name);
        let entered = self.commits.enter_in_order(Priority::Flush)?;
        let plan = |state: &ManifestState| {
            if !state.branches.contains_key(name) {
                return Err(Error::NoBranch(name.into()));
            }
            let mut edits = self.drops_with(state, name);
            edits.push(Edit::DropBranch(name.into()));
            edits.extend(undoable.iter().map(|s| Edit::DropSnapshot(s.label.name.clone())));
            Ok(VersionEdit::of(edits))
        };
        let installed =
            self.commits.install_commit(entered, Changed::Unlisted([name.into()].into()), plan)?;
        drop((naming, locked));
        // Release their runs outside of all locks.
        drop(undoable);
        self.limits.forget(name);
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        installed.finish(&*self.admission)
    }

    /// Makes room for the record of a drop that becomes a commit; a full store flushes for this.
    /// Must be called before any lock is taken.
    pub(crate) fn prepare_drop(&self) -> Result<()> {
        self.commits.flush_before_edit(&*self.admission)?;
        drop(self.commits.enter_to_delete(&*self.admission, record::size(&number_alone()))?);
        Ok(())
    }

    pub(super) fn dictionaries_of(&self, branch: &str) -> BTreeSet<DictionaryId> {
        self.engine.versions.load().entries.of_branch(branch).keys().copied().collect()
    }

    /// Rolls a branch back to the state of one of its snapshots. `lock` locks dictionaries against
    /// transactions until its result is dropped.
    pub(crate) fn roll_back<L>(
        &self,
        snapshot: &str,
        lock: impl FnOnce(&BTreeSet<DictionaryId>) -> Result<L>,
    ) -> Result<()> {
        self.engine.health.writable()?;
        // Serializable transactions that have read or changed the replaced data are aborted here,
        // and no other one reads it before the rollback is done. This must precede the locks below:
        // a call of a transaction that must end may wait for them.
        let to = self
            .engine
            .snapshots
            .get(snapshot)
            .ok_or_else(|| Error::NoSnapshot(snapshot.into()))?;
        let branch = to.label.branch.clone();
        let mut dicts: BTreeSet<DictionaryId> = to.version().trees.keys().copied().collect();
        dicts.extend(self.dictionaries_of(&branch));
        let locked = lock(&dicts)?;
        self.commits.flush_before_edit(&*self.admission)?;
        // Do this while space can still be reclaimed.
        drop(self.commits.enter(
            &*self.admission,
            record::size(&number_alone()),
            0,
            SpaceClaim::default(),
        )?);
        // No merge or flush in progress may add to the data that is replaced.
        let alone = self.compactor.merge_alone();
        let flushing = self.flusher.lock();
        let naming = self.settled_locked()?;
        if !self.engine.snapshots.get(snapshot).is_some_and(|now| Arc::ptr_eq(&now, &to)) {
            return Err(Error::NoSnapshot(snapshot.into()));
        }
        // Commits before the rollback cannot be undone any more, whether or not they were rolled
        // back: the states before them have other data under the same numbers.
        let around: Vec<String> =
            self.undoable_of(&branch).iter().map(|s| s.label.name.clone()).collect();
        let installed = {
            // Every commit is either before or after the rollback: those before are void, in memory
            // and in the journal. The rollback has a commit number of its own, by which
            // transactions that began before it detect it.
            let entered = self.commits.enter_in_order(Priority::Log)?;
            let seq = entered.seq();
            let changed = Changed::Unlisted([branch.clone()].into());
            self.commits.install_commit(entered, changed, |state: &ManifestState| {
                rolling_back(state, &to, seq, &dicts, &around)
            })?
        };
        drop((naming, flushing, alone, locked));
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        self.flusher.flushed();
        installed.finish(&*self.admission)
    }

    /// Does the same as [`Snapshotter::settled`] for a caller that holds the flusher's lock.
    fn settled_locked(&self) -> Result<MutexGuard<'_, ()>> {
        loop {
            let naming = self.engine.snapshots.naming.lock();
            if self.engine.snapshots.next_pending().is_none() {
                return Ok(naming);
            }
            drop(naming);
            self.flusher.flush_sealed_locked()?;
            self.engine.health.check()?;
        }
    }

    /// Returns the snapshots around commits to a branch, which cannot be undone once the branch is
    /// replaced.
    fn undoable_of(&self, branch: &str) -> Vec<Arc<Snapshot>> {
        let around = self.engine.snapshots.around_commits().into_iter().flatten();
        around.filter(|snapshot| snapshot.label.branch == branch).collect()
    }

    /// Replaces the branch `to` by the branch `from`, which takes no more writes, without its
    /// dictionary `but`, and makes a snapshot of the result. All of this is one edit, so that an
    /// error leaves the branch unchanged.
    pub(crate) fn adopt(
        &self,
        from: &str,
        to: &str,
        label: Label,
        but: &str,
        replaced: &BTreeSet<DictionaryId>,
    ) -> Result<()> {
        self.flusher.flush_all()?;
        self.prepare_drop()?;
        let naming = self.settled()?;
        if self.engine.snapshots.get(&label.name).is_some() {
            return Err(Error::Exists(format!("snapshot {}", label.name)));
        }
        let undoable = self.undoable_of(to);
        // This is a commit, so transactions that have read the replaced data detect it.
        let entered = self.commits.enter_in_order(Priority::Flush)?;
        let label = Label { seq: entered.seq(), ..label };
        let plan = |state: &ManifestState| {
            // This dictionary was created since the others were locked.
            let of_branch = state.dictionaries.of_branch(to);
            let mut infos = of_branch.values().map(|d| &d.info);
            if let Some(fresh) = infos.find(|info| !replaced.contains(&info.id)) {
                return Err(Error::Locked(format!(
                    "dictionary {} was made while the stream ended: try again",
                    fresh.name
                )));
            }
            let below = state.next_dictionary;
            let left_out = state.dictionaries.find(from, but);
            let mut edits: Vec<Edit> = left_out.into_iter().map(Edit::DropDictionary).collect();
            edits.extend(self.drops_with(state, to));
            edits.push(Edit::Adopt { from: from.into(), to: to.into() });
            edits.push(Edit::Snapshot { label, below });
            edits.extend(undoable.iter().map(|s| Edit::DropSnapshot(s.label.name.clone())));
            Ok(VersionEdit::of(edits))
        };
        let installed = self.commits.install_commit(
            entered,
            Changed::Unlisted([from.into(), to.into()].into()),
            plan,
        )?;
        drop(naming);
        // Release their runs outside of all locks.
        drop(undoable);
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        installed.finish(&*self.admission)
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use zones::MemoryDevice;

    use super::*;
    use crate::{CreateOptions, Kvdb, OpenOptions};

    #[test]
    fn clones_share_the_open_runs_of_their_snapshot_however_many_dictionaries_it_has() {
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), env.clone(), options).expect("made");
        for n in 0..100 {
            let d = db.open_dictionary(&format!("d{n}")).expect("made");
            d.insert("k", "v").expect("put");
        }
        db.snapshot("s").expect("made");
        (0..2).for_each(|n| db.clone_snapshot("s", &format!("b{n}")).expect("made"));
        let check = |db: &Kvdb, when: &str| {
            let version = db.version_set().load_full();
            for n in 0..100 {
                let levels = |branch: &str| {
                    let id = version.find(branch, &format!("d{n}")).expect("there");
                    version.trees[&id].levels.clone()
                };
                let (one, other) = (levels("b0"), levels("b1"));
                assert!(!one.is_empty() && Arc::ptr_eq(&one, &other), "d{n}, {when}");
            }
        };
        check(&db, "cloned");
        let mut before = db;
        for when in ["opened again", "opened from a checkpoint"] {
            before.close().expect("closed");
            drop(before);
            let opened = Kvdb::open(device.clone(), env.clone(), open.clone()).expect("opened");
            before = opened.0;
            check(&before, when);
        }
    }
}

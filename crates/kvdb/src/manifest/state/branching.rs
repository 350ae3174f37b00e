//! Applies the edits of snapshots and branches.

use std::sync::Arc;

use vt_tree::Seq;

use super::{DictionaryState, ManifestState, SnapshotState, contradiction};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::Label;
use crate::manifest::Edit;

impl ManifestState {
    /// Keeps the contents of a snapshot under an additional label.
    pub(crate) fn keep_as(&mut self, label: Label, of: &SnapshotState) -> Result<()> {
        self.keep(SnapshotState { label, dictionaries: of.dictionaries.clone() })
    }

    /// Applies an edit that concerns snapshots or branches.
    pub(super) fn apply_branching(&mut self, edit: Edit) -> Result<()> {
        match edit {
            Edit::Snapshot { label, below } => {
                self.forget_origin(&label.name);
                let mut dictionaries = self.dictionaries.of_branch(&label.branch);
                // The dictionaries with other numbers were made after the snapshot.
                dictionaries.remove_from(below);
                self.keep(SnapshotState { label, dictionaries })?;
            }
            Edit::DropSnapshot(name) => {
                self.snapshot(&name)?;
                self.snapshots.remove(&name);
            }
            Edit::RenameSnapshot { from, to } => {
                let state = self.snapshot(&from)?;
                self.snapshots.remove(&from);
                let label = Label { name: to.clone(), ..state.label.clone() };
                self.keep(SnapshotState { label, dictionaries: state.dictionaries.clone() })?;
                if let Some(count) = self.clones.remove(&*from) {
                    self.clones.insert(to.as_str().into(), count);
                    self.origin_is(&from, &to);
                }
            }
            Edit::Clone { snapshot, branch, first } => self.clone_of(snapshot, branch, first)?,
            Edit::Branch { name, of } => drop(self.add_branch(name, of)?),
            Edit::Limit { branch, bytes } => {
                if !self.branches.contains_key(&*branch) {
                    return Err(contradiction(format!("branch {branch:?} does not exist")));
                }
                match bytes {
                    0 => _ = self.limits.remove(&branch),
                    bytes => _ = self.limits.insert(branch, bytes),
                }
            }
            Edit::LimitFiles { branch, below } => {
                if !self.branches.contains_key(&*branch) {
                    return Err(contradiction(format!("branch {branch:?} does not exist")));
                }
                match below.checked_sub(1) {
                    None => _ = self.limits_of_files.remove(&branch),
                    Some(files) => _ = self.limits_of_files.insert(branch, files),
                }
            }
            Edit::DropBranch(name) => {
                self.remove_branch(&name)?;
                self.dictionaries.remove_branch(&name);
            }
            Edit::RollBack { snapshot, seq } => self.roll_back(&snapshot, seq)?,
            Edit::Since { dict, seq } => _ = self.since.insert(dict, seq),
            Edit::Adopt { from, to } => self.adopt(&from, to)?,
            Edit::KeptRun(run) => self.kept.runs.push(run),
            Edit::KeptDictionary(info, runs) => {
                let mut state = DictionaryState::new(info.into());
                for kept in runs {
                    let (id, run) = self.kept_run(kept)?;
                    state.runs_mut().insert(id, run);
                }
                if let Some((&newest, _)) = state.runs.last_key_value() {
                    self.kept.lists.insert((state.runs.len(), newest), state.runs.clone());
                }
                self.kept.dictionaries.push(Arc::new(state));
            }
            Edit::KeptSnapshot(label, numbers) => {
                let dictionaries = self.kept_dictionaries(&label.name, numbers)?;
                self.keep(SnapshotState { label, dictionaries })?;
            }
            Edit::AddKeptRun(dict, kept) => {
                let (id, run) = self.kept_run(kept)?;
                if self.change(dict, |d| d.runs_mut().insert(id, run))?.is_some() {
                    return Err(contradiction(format!("run {} is added twice", id.0)));
                }
                self.kept.filled = Some(dict);
            }
            // `apply` handles all other edits.
            _ => {}
        }
        Ok(())
    }

    /// Makes a branch from a snapshot. The dictionaries of the branch get numbers from `first` on.
    fn clone_of(&mut self, snapshot: String, branch: String, first: u32) -> Result<()> {
        let of = self.snapshot(&snapshot)?;
        let branch = self.add_branch(branch, snapshot)?;
        for (n, d) in of.dictionaries.values().enumerate() {
            let id = first.checked_add(n as u32).map(DictionaryId);
            let id =
                id.ok_or_else(|| contradiction(format!("a clone is numbered from {first} on")))?;
            let info = d.info.in_branch(id, branch.clone());
            self.insert(DictionaryState { info, runs: d.runs.clone() })?;
        }
        Ok(())
    }

    /// Replaces the contents of the snapshot's branch with the contents of the snapshot.
    fn roll_back(&mut self, snapshot: &str, seq: Seq) -> Result<()> {
        let to = self.snapshot(snapshot)?;
        let branch = &to.label.branch;
        self.know_branch(branch);
        self.dictionaries.remove_branch(branch);
        for (id, d) in &to.dictionaries {
            if self.dictionaries.insert(d.clone()).is_some() {
                return Err(contradiction(format!("dictionary {} is of two branches", id.0)));
            }
            self.since.insert(*id, seq);
        }
        Ok(())
    }

    /// Replaces the branch `to` with the branch `from`.
    fn adopt(&mut self, from: &str, to: String) -> Result<()> {
        self.remove_branch(from)?;
        // The limits of the replaced branch apply to the new branch, which is not a clone.
        let limit = self.limits.get(&to).copied();
        let of_files = self.limits_of_files.get(&to).copied();
        if self.branches.contains_key(&*to) {
            self.remove_branch(&to)?;
        }
        self.know_branch(&to);
        limit.map(|limit| self.limits.insert(to.clone(), limit));
        of_files.map(|limit| self.limits_of_files.insert(to.clone(), limit));
        self.dictionaries.remove_branch(&to);
        let name = match self.branches.get_key_value(&*to) {
            Some((name, _)) => name.clone(),
            None => to.into(),
        };
        for d in self.dictionaries.remove_branch(from).values() {
            let mut d = DictionaryState::clone(d);
            d.info.branch = name.clone();
            self.dictionaries.insert(Arc::new(d));
        }
        Ok(())
    }

    fn snapshot(&self, name: &str) -> Result<Arc<SnapshotState>> {
        self.snapshots
            .get(name)
            .cloned()
            .ok_or_else(|| contradiction(format!("snapshot {name} does not exist")))
    }

    fn keep(&mut self, snapshot: SnapshotState) -> Result<()> {
        let name = snapshot.label.name.clone();
        match self.snapshots.insert(name, Arc::new(snapshot)) {
            None => Ok(()),
            Some(twice) => {
                Err(contradiction(format!("snapshot {} is made twice", twice.label.name)))
            }
        }
    }

    /// Removes the origin of the clones of an earlier snapshot with this name, since a new snapshot
    /// with the name is about to be made.
    fn forget_origin(&mut self, name: &str) {
        if self.clones.remove(name).is_some() {
            self.origin_is(name, "");
        }
    }

    /// Changes the origin of all clones of the snapshot `before` to `now`.
    fn origin_is(&mut self, before: &str, now: &str) {
        let of_it = self.branches.iter().filter(|(_, of)| &***of == before);
        let of_it: Vec<Arc<str>> = of_it.map(|(branch, _)| branch.clone()).collect();
        let now: Arc<str> = match self.clones.get_key_value(now) {
            Some((now, _)) => now.clone(),
            None => now.into(),
        };
        of_it.into_iter().for_each(|branch| _ = self.branches.insert(branch, now.clone()));
    }

    /// Returns the number of branches that were cloned from the snapshot with this name.
    pub(crate) fn clones_of(&self, snapshot: &str) -> usize {
        self.clones.get(snapshot).copied().unwrap_or(0)
    }

    /// Adds a branch, and returns its name in the form that its dictionaries share. All clones of a
    /// snapshot share one copy of the snapshot's name.
    fn add_branch(&mut self, name: String, of: String) -> Result<Arc<str>> {
        if name.is_empty() || self.branches.contains_key(&*name) {
            return Err(contradiction(format!("branch {name:?} is made twice")));
        }
        let (of, before) = match self.clones.get_key_value(&*of) {
            Some((of, before)) => (of.clone(), *before),
            None => (of.into(), 0),
        };
        if !of.is_empty() {
            self.clones.insert(of.clone(), before + 1);
        }
        let name: Arc<str> = name.into();
        self.branches.insert(name.clone(), of);
        Ok(name)
    }

    /// Adds a branch with this name if it does not exist.
    fn know_branch(&mut self, name: &str) {
        if !name.is_empty() && !self.branches.contains_key(name) {
            self.branches.insert(name.into(), "".into());
        }
    }

    fn remove_branch(&mut self, name: &str) -> Result<()> {
        self.limits.remove(name);
        self.limits_of_files.remove(name);
        let of = self.branches.remove(name);
        let of = of.ok_or_else(|| contradiction(format!("branch {name:?} does not exist")))?;
        match self.clones.get_mut(&*of) {
            Some(clones) if *clones > 1 => *clones -= 1,
            _ => _ = self.clones.remove(&*of),
        }
        Ok(())
    }
}

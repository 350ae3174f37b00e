//! The edits of snapshots and branches.

use std::sync::Arc;

use super::{Dictionaries, DictionaryState, ManifestState, SnapshotState, contradiction};
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::Result;
use crate::manifest::Edit;

impl ManifestState {
    /// The edits of snapshots and branches.
    pub(super) fn apply_branching(&mut self, edit: Edit) -> Result<()> {
        match edit {
            Edit::Snapshot { label, below } => {
                self.forget_origin(&label.name);
                let of = |d: &DictionaryState| d.info.branch == label.branch && d.info.id.0 < below;
                let dictionaries = self
                    .dictionaries
                    .iter()
                    .filter(|(_, d)| of(d))
                    .map(|(id, d)| (*id, d.clone()))
                    .collect();
                self.keep(SnapshotState { label, dictionaries })?;
            }
            Edit::DropSnapshot(name) => {
                self.snapshot(&name)?;
                Arc::make_mut(&mut self.snapshots).remove(&name);
            }
            Edit::Clone { snapshot, branch, first } => {
                let of = self.snapshot(&snapshot)?;
                self.add_branch(branch.clone(), snapshot)?;
                for (n, d) in of.dictionaries.values().enumerate() {
                    let id = first.checked_add(n as u32).map(DictionaryId);
                    let id = id.ok_or_else(|| {
                        contradiction(format!("a clone is numbered from {first} on"))
                    })?;
                    let info = DictionaryInfo { id, branch: branch.clone(), ..d.info.clone() };
                    self.insert(DictionaryState { info, runs: d.runs.clone() })?;
                }
            }
            Edit::Branch { name, of } => self.add_branch(name, of)?,
            Edit::DropBranch(name) => {
                self.remove_branch(&name)?;
                self.dictionaries.retain(|_, d| d.info.branch != name);
            }
            Edit::RollBack { snapshot, seq } => {
                let to = self.snapshot(&snapshot)?;
                let branch = &to.label.branch;
                if !branch.is_empty() {
                    Arc::make_mut(&mut self.branches).entry(branch.clone()).or_default();
                }
                self.dictionaries.retain(|_, d| d.info.branch != *branch);
                for (id, d) in &to.dictionaries {
                    if self.dictionaries.insert(*id, d.clone()).is_some() {
                        return Err(contradiction(format!(
                            "dictionary {} is of two branches",
                            id.0
                        )));
                    }
                    self.since.insert(*id, seq);
                }
            }
            Edit::Since { dict, seq } => _ = self.since.insert(dict, seq),
            Edit::Adopt { from, to } => {
                self.remove_branch(&from)?;
                if !to.is_empty() {
                    Arc::make_mut(&mut self.branches).entry(to.clone()).or_default();
                }
                self.dictionaries.retain(|_, d| d.info.branch != to);
                for d in self.dictionaries.values_mut().filter(|d| d.info.branch == from) {
                    Arc::make_mut(d).info.branch.clone_from(&to);
                }
            }
            Edit::KeptRun(run) => self.kept.runs.push(run),
            Edit::KeptDictionary(info, runs) => {
                let mut state = DictionaryState::new(info);
                for kept in runs {
                    let (id, run) = self.kept_run(kept)?;
                    state.runs.insert(id, run);
                }
                self.kept.dictionaries.push(Arc::new(state));
            }
            Edit::KeptSnapshot(label, numbers) => {
                let mut dictionaries = Dictionaries::new();
                for n in numbers {
                    let state = usize::try_from(n).ok().and_then(|n| self.kept.dictionaries.get(n));
                    let state = state.ok_or_else(|| {
                        contradiction(format!(
                            "snapshot {} has a dictionary that is not there",
                            label.name
                        ))
                    })?;
                    dictionaries.insert(state.info.id, state.clone());
                }
                self.keep(SnapshotState { label, dictionaries })?;
            }
            Edit::AddKeptRun(dict, kept) => {
                let (id, run) = self.kept_run(kept)?;
                if self.dictionary(dict)?.runs.insert(id, run).is_some() {
                    return Err(contradiction(format!("run {} is added twice", id.0)));
                }
            }
            // The others have their place in `apply`.
            _ => {}
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
        match Arc::make_mut(&mut self.snapshots).insert(name, Arc::new(snapshot)) {
            None => Ok(()),
            Some(twice) => {
                Err(contradiction(format!("snapshot {} is made twice", twice.label.name)))
            }
        }
    }

    /// A snapshot is about to be made: what was cloned from an earlier one of that name was not
    /// cloned from this one.
    fn forget_origin(&mut self, name: &str) {
        if !name.is_empty() && self.branches.values().any(|of| of == name) {
            let all = Arc::make_mut(&mut self.branches).values_mut();
            all.filter(|of| *of == name).for_each(String::clear);
        }
    }

    fn add_branch(&mut self, name: String, of: String) -> Result<()> {
        if name.is_empty() || Arc::make_mut(&mut self.branches).insert(name.clone(), of).is_some() {
            return Err(contradiction(format!("branch {name:?} is made twice")));
        }
        Ok(())
    }

    fn remove_branch(&mut self, name: &str) -> Result<()> {
        let gone = Arc::make_mut(&mut self.branches).remove(name);
        gone.map(drop).ok_or_else(|| contradiction(format!("branch {name:?} does not exist")))
    }
}

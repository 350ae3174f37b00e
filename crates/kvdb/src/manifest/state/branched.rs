//! The dictionaries of all branches: by number, and those of each branch by number and by name. A
//! snapshot of a branch has the branch's map, shared.

use std::ops::Deref;
use std::sync::Arc;

use super::{Dictionaries, DictionaryState};
use crate::dictionary::DictionaryId;
use crate::persistent_map::PersistentMap;

/// The dictionaries of one branch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfBranch {
    dictionaries: Dictionaries,
    names: PersistentMap<String, DictionaryId>,
}

/// The dictionaries of all branches, read as one map by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BranchedDictionaries {
    all: Dictionaries,
    /// By the name of the branch; none that is empty.
    branches: PersistentMap<String, OfBranch>,
}

impl Deref for BranchedDictionaries {
    type Target = Dictionaries;

    fn deref(&self) -> &Dictionaries {
        &self.all
    }
}

impl BranchedDictionaries {
    /// The dictionary of that name in a branch.
    pub(crate) fn find(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.branches.get(branch)?.names.get(name).copied()
    }

    /// The dictionaries of a branch.
    pub(crate) fn of_branch(&self, branch: &str) -> Dictionaries {
        self.branches.get(branch).map(|of| of.dictionaries.clone()).unwrap_or_default()
    }

    /// Adds a dictionary; gives the one that had its number, which stays.
    pub(crate) fn insert(&mut self, state: Arc<DictionaryState>) -> Option<Arc<DictionaryState>> {
        let info = &state.info;
        if let Some(there) = self.all.get(&info.id) {
            return Some(there.clone());
        }
        if !self.branches.contains_key(&info.branch) {
            self.branches.insert(info.branch.clone(), OfBranch::default());
        }
        if let Some(of) = self.branches.get_mut(&info.branch) {
            of.dictionaries.insert(info.id, state.clone());
            // Of two that damaged bytes give one name the first one is found.
            if !of.names.contains_key(&info.name) {
                of.names.insert(info.name.clone(), info.id);
            }
        }
        self.all.insert(info.id, state.clone());
        None
    }

    pub(crate) fn remove(&mut self, id: DictionaryId) -> Option<Arc<DictionaryState>> {
        let gone = self.all.remove(&id)?;
        let info = &gone.info;
        if let Some(of) = self.branches.get_mut(&info.branch) {
            of.dictionaries.remove(&id);
            if of.names.get(&info.name) == Some(&id) {
                of.names.remove(&info.name);
            }
            if of.dictionaries.is_empty() {
                self.branches.remove(&info.branch);
            }
        }
        Some(gone)
    }

    /// Removes the dictionaries of a branch, and gives them.
    pub(crate) fn remove_branch(&mut self, branch: &str) -> Dictionaries {
        let gone = self.branches.remove(branch).unwrap_or_default().dictionaries;
        gone.keys().for_each(|id| _ = self.all.remove(id));
        gone
    }

    /// Changes a dictionary, but for its number, its branch and its name. `None`: there is none.
    pub(crate) fn change<T>(
        &mut self,
        id: DictionaryId,
        change: impl FnOnce(&mut DictionaryState) -> T,
    ) -> Option<T> {
        let mut state = self.all.get(&id)?.clone();
        let changed = change(Arc::make_mut(&mut state));
        if let Some(of) = self.branches.get_mut(&state.info.branch) {
            of.dictionaries.insert(id, state.clone());
        }
        self.all.insert(id, state);
        Some(changed)
    }
}

impl FromIterator<Arc<DictionaryState>> for BranchedDictionaries {
    fn from_iter<I: IntoIterator<Item = Arc<DictionaryState>>>(all: I) -> Self {
        let mut dictionaries = BranchedDictionaries::default();
        all.into_iter().for_each(|state| _ = dictionaries.insert(state));
        dictionaries
    }
}

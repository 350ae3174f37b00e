//! The dictionaries of all branches by number, and those of each branch by number and by name. A
//! snapshot of a branch shares the branch's maps.

use std::ops::Deref;
use std::sync::Arc;

use super::{Dictionaries, DictionaryState};
use crate::dictionary::DictionaryId;
use crate::persistent_map::PersistentMap;

/// The number of dictionaries up to which a name is looked up without an index. Most branches have
/// no more, and without an index an idle clone takes half of the memory.
const FEW: usize = 16;

/// The dictionaries of one branch, or of a snapshot of it. Dereferences to a map by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfBranch {
    dictionaries: Dictionaries,
    /// The index by name. Empty while there are few dictionaries.
    names: PersistentMap<String, DictionaryId>,
}

impl PartialEq for OfBranch {
    /// Compares the dictionaries only, from which the index follows.
    fn eq(&self, other: &OfBranch) -> bool {
        self.dictionaries == other.dictionaries
    }
}

impl Eq for OfBranch {}

impl Deref for OfBranch {
    type Target = Dictionaries;

    fn deref(&self) -> &Dictionaries {
        &self.dictionaries
    }
}

impl OfBranch {
    /// Adds a dictionary, or replaces the one with its number.
    pub(crate) fn insert(&mut self, state: Arc<DictionaryState>) {
        let info = &state.info;
        if self.dictionaries.get(&info.id).is_some_and(|there| there.info.name != info.name) {
            self.remove(info.id);
        }
        let (id, name) = (info.id, info.name.clone());
        self.dictionaries.insert(id, state);
        if self.names.is_empty() {
            self.index_if_many();
        } else if !self.names.contains_key(&name) {
            // If damaged bytes give two dictionaries one name, the first one is found.
            self.names.insert(name, id);
        }
    }

    fn index_if_many(&mut self) {
        if self.dictionaries.len() > FEW {
            for (id, state) in self.dictionaries.iter() {
                if !self.names.contains_key(&state.info.name) {
                    self.names.insert(state.info.name.clone(), *id);
                }
            }
        }
    }

    /// Returns the dictionary of that name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<DictionaryState>> {
        if !self.names.is_empty() {
            return self.dictionaries.get(self.names.get(name)?);
        }
        self.dictionaries.values().find(|state| state.info.name == name)
    }

    pub(crate) fn remove(&mut self, id: DictionaryId) {
        if let Some(gone) = self.dictionaries.remove(&id)
            && self.names.get(&gone.info.name) == Some(&id)
        {
            self.names.remove(&gone.info.name);
        }
    }

    /// Removes the dictionaries with numbers from `below` on, which were made later.
    pub(crate) fn remove_from(&mut self, below: u32) {
        while let Some((&id, _)) = self.dictionaries.last_key_value()
            && id.0 >= below
        {
            self.remove(id);
        }
    }
}

impl FromIterator<Arc<DictionaryState>> for OfBranch {
    fn from_iter<I: IntoIterator<Item = Arc<DictionaryState>>>(all: I) -> Self {
        let mut of = OfBranch::default();
        all.into_iter().for_each(|state| of.insert(state));
        of
    }
}

impl<'a> IntoIterator for &'a OfBranch {
    type Item = (&'a DictionaryId, &'a Arc<DictionaryState>);
    type IntoIter = crate::persistent_map::Iter<'a, DictionaryId, Arc<DictionaryState>>;

    fn into_iter(self) -> Self::IntoIter {
        self.dictionaries.iter()
    }
}

/// The dictionaries of all branches. Dereferences to one map by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BranchedDictionaries {
    all: Dictionaries,
    /// The dictionaries of each branch by its name; no entry is empty.
    branches: PersistentMap<Arc<str>, OfBranch>,
}

impl Deref for BranchedDictionaries {
    type Target = Dictionaries;

    fn deref(&self) -> &Dictionaries {
        &self.all
    }
}

impl BranchedDictionaries {
    /// Returns the dictionaries of a snapshot, as those of the main branch.
    pub(crate) fn of_snapshot(of: OfBranch) -> BranchedDictionaries {
        let all = of.dictionaries.clone();
        BranchedDictionaries { all, branches: [("".into(), of)].into_iter().collect() }
    }

    /// Returns the dictionary of that name in a branch.
    pub(crate) fn find(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.branches.get(branch)?.named(name).map(|state| state.info.id)
    }

    /// Returns the dictionaries of a branch.
    pub(crate) fn of_branch(&self, branch: &str) -> OfBranch {
        self.branches.get(branch).cloned().unwrap_or_default()
    }

    /// Adds a dictionary. If its number is taken, returns the existing one, which stays.
    pub(crate) fn insert(&mut self, state: Arc<DictionaryState>) -> Option<Arc<DictionaryState>> {
        let info = &state.info;
        if let Some(there) = self.all.get(&info.id) {
            return Some(there.clone());
        }
        if !self.branches.contains_key(&info.branch) {
            self.branches.insert(info.branch.clone(), OfBranch::default());
        }
        if let Some(of) = self.branches.get_mut(&info.branch) {
            of.insert(state.clone());
        }
        self.all.insert(info.id, state.clone());
        None
    }

    pub(crate) fn remove(&mut self, id: DictionaryId) -> Option<Arc<DictionaryState>> {
        let gone = self.all.remove(&id)?;
        let branch = &gone.info.branch;
        if let Some(of) = self.branches.get_mut(branch) {
            of.remove(id);
            if of.is_empty() {
                self.branches.remove(branch);
            }
        }
        Some(gone)
    }

    /// Removes the dictionaries of a branch, and returns them.
    pub(crate) fn remove_branch(&mut self, branch: &str) -> Dictionaries {
        let gone = self.branches.remove(branch).unwrap_or_default().dictionaries;
        gone.keys().for_each(|id| _ = self.all.remove(id));
        gone
    }

    /// Changes a dictionary, except its number, branch and name. Returns `None` if it does not
    /// exist.
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

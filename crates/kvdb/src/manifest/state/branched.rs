//! Maps of dictionaries: one map has the dictionaries of all branches by number, and each branch
//! can have maps of its dictionaries by number and by name. A snapshot of a branch shares the
//! branch's maps. A clone needs no maps while the numbers of its dictionaries are consecutive, that
//! is, until a dictionary is created or dropped in the clone. The maps of the main branch are
//! separate from the maps of clones. Each command of a client looks up names in the main branch,
//! and this must not take longer in a store with many clones.

use std::ops::Deref;
use std::sync::Arc;

use super::{Dictionaries, DictionaryState};
use crate::dictionary::DictionaryId;
use crate::persistent_map::PersistentMap;

/// The number of dictionaries up to which a clone looks up names without an index. Most clones have
/// at most this number of dictionaries, and an idle clone takes half of the memory without an
/// index.
const FEW: usize = 16;

/// The dictionaries of one branch or of one snapshot. Dereferences to a map by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfBranch {
    dictionaries: Dictionaries,
    /// The index by name, which is empty while a clone has few dictionaries.
    names: PersistentMap<String, DictionaryId>,
}

impl PartialEq for OfBranch {
    /// Compares only the dictionaries, since the index follows from them.
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
    /// Adds a dictionary, or replaces the dictionary with the same number.
    pub(crate) fn insert(&mut self, state: Arc<DictionaryState>) {
        let info = &state.info;
        if self.dictionaries.get(&info.id).is_some_and(|there| there.info.name != info.name) {
            self.remove(info.id);
        }
        let (id, name) = (info.id, info.name.clone());
        self.dictionaries.insert(id, state);
        if self.names.is_empty() {
            if self.dictionaries.len() > FEW {
                self.index();
            }
        } else if !self.names.contains_key(&name) {
            // Two dictionaries can have the same name only in a damaged manifest. The index then
            // refers to the first one.
            self.names.insert(name, id);
        }
    }

    /// Adds a dictionary of a branch that has an index even if it has few dictionaries.
    fn insert_indexed(&mut self, state: Arc<DictionaryState>) {
        self.insert(state);
        if self.names.is_empty() {
            self.index();
        }
    }

    fn index(&mut self) {
        for (id, state) in self.dictionaries.iter() {
            if !self.names.contains_key(&state.info.name) {
                self.names.insert(state.info.name.clone(), *id);
            }
        }
    }

    /// Returns the dictionary with this name.
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

    /// Removes the dictionaries whose numbers are at least `below`, which were made later.
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

/// A range of consecutive dictionary numbers.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    first: u32,
    count: u32,
}

impl Numbers {
    fn of(id: DictionaryId) -> Numbers {
        Numbers { first: id.0, count: 1 }
    }

    /// Returns the range extended by `id`, if `id` is the next number and the range stays small.
    fn with(self, id: DictionaryId) -> Option<Numbers> {
        let is_next = self.first.checked_add(self.count) == Some(id.0);
        let few = (self.count as usize) < FEW;
        (is_next && few).then_some(Numbers { count: self.count + 1, ..self })
    }

    fn iter(self) -> impl Iterator<Item = DictionaryId> {
        (0..self.count).map(move |n| DictionaryId(self.first + n))
    }

    /// Returns the dictionaries in `all` that have these numbers.
    fn of_all(self, all: &Dictionaries) -> OfBranch {
        self.iter().filter_map(|id| all.get(&id).cloned()).collect()
    }
}

/// The dictionaries of one clone.
#[derive(Clone, Debug)]
enum Members {
    /// The dictionaries that have these numbers in the map of all branches.
    Numbers(Numbers),
    Maps(OfBranch),
}

/// The dictionaries of all branches. Dereferences to one map by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct BranchedDictionaries {
    all: Dictionaries,
    /// The dictionaries of the main branch, which its snapshots share. They always have an index,
    /// since each command of a client may look up a name that does not exist.
    main: OfBranch,
    /// The dictionaries of each clone, by the clone's name. No entry is empty.
    clones: PersistentMap<Arc<str>, Members>,
}

impl PartialEq for BranchedDictionaries {
    /// Compares only the dictionaries, since the branches follow from them.
    fn eq(&self, other: &BranchedDictionaries) -> bool {
        self.all == other.all
    }
}

impl Eq for BranchedDictionaries {}

impl Deref for BranchedDictionaries {
    type Target = Dictionaries;

    fn deref(&self) -> &Dictionaries {
        &self.all
    }
}

impl BranchedDictionaries {
    /// Returns the dictionaries of a snapshot as if they were the main branch.
    pub(crate) fn of_snapshot(of: OfBranch) -> BranchedDictionaries {
        let all = of.dictionaries.clone();
        BranchedDictionaries { all, main: of, clones: PersistentMap::default() }
    }

    /// Returns the number of the dictionary with this name in a branch.
    pub(crate) fn find(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        let of = match branch.is_empty() {
            true => &self.main,
            false => match self.clones.get(branch)? {
                Members::Numbers(numbers) => {
                    let is_it = |state: &Arc<DictionaryState>| state.info.name == name;
                    return numbers.iter().find(|id| self.all.get(id).is_some_and(is_it));
                }
                Members::Maps(of) => of,
            },
        };
        of.named(name).map(|state| state.info.id)
    }

    /// Returns the dictionaries of a branch.
    pub(crate) fn of_branch(&self, branch: &str) -> OfBranch {
        if branch.is_empty() {
            return self.main.clone();
        }
        match self.clones.get(branch) {
            Some(Members::Numbers(numbers)) => numbers.of_all(&self.all),
            Some(Members::Maps(of)) => of.clone(),
            None => OfBranch::default(),
        }
    }

    /// Returns whether a branch is a clone without maps, whose dictionaries are found by their
    /// numbers.
    pub(crate) fn has_numbers_only(&self, branch: &str) -> bool {
        matches!(self.clones.get(branch), Some(Members::Numbers(_)))
    }

    /// Returns the number of the branch's first dictionary, if a new clone of a snapshot with the
    /// dictionaries `of` would have exactly the dictionaries of the branch.
    pub(super) fn cloned_from(&self, branch: &str, of: &OfBranch) -> Option<u32> {
        let there = self.of_branch(branch);
        let first = there.keys().next()?.0;
        let pairs = there.iter().zip(of.values());
        let same = (0..).zip(pairs).all(|(n, ((id, state), like))| {
            first.checked_add(n) == Some(id.0)
                && Arc::ptr_eq(&state.runs, &like.runs)
                && state.info.is_like(&like.info)
        });
        (same && there.len() == of.len()).then_some(first)
    }

    /// Adds a dictionary. If its number is already in use, returns the existing dictionary and
    /// changes nothing.
    pub(crate) fn insert(&mut self, state: Arc<DictionaryState>) -> Option<Arc<DictionaryState>> {
        let info = &state.info;
        if let Some(there) = self.all.get(&info.id) {
            return Some(there.clone());
        }
        if info.branch.is_empty() {
            self.main.insert_indexed(state.clone());
        } else {
            self.insert_in_clone(&state);
        }
        self.all.insert(info.id, state);
        None
    }

    /// Adds a dictionary to the clone to which it belongs.
    fn insert_in_clone(&mut self, state: &Arc<DictionaryState>) {
        let info = &state.info;
        match self.clones.get_mut(&info.branch) {
            Some(Members::Maps(of)) => of.insert(state.clone()),
            Some(members) => {
                if let Members::Numbers(numbers) = *members {
                    *members = match numbers.with(info.id) {
                        Some(more) => Members::Numbers(more),
                        None => {
                            let mut of = numbers.of_all(&self.all);
                            of.insert(state.clone());
                            Members::Maps(of)
                        }
                    };
                }
            }
            None => {
                let members = Members::Numbers(Numbers::of(info.id));
                self.clones.insert(info.branch.clone(), members);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: DictionaryId) -> Option<Arc<DictionaryState>> {
        let gone = self.all.remove(&id)?;
        let branch = &gone.info.branch;
        if branch.is_empty() {
            self.main.remove(id);
        } else if let Some(members) = self.clones.get_mut(branch) {
            let is_empty = match members {
                Members::Numbers(numbers) => {
                    // In a damaged manifest, a dictionary of another branch may get the number
                    // later, so the clone gets maps.
                    let of = numbers.of_all(&self.all);
                    let is_empty = of.is_empty();
                    *members = Members::Maps(of);
                    is_empty
                }
                Members::Maps(of) => {
                    of.remove(id);
                    of.is_empty()
                }
            };
            if is_empty {
                self.clones.remove(branch);
            }
        }
        Some(gone)
    }

    /// Removes the dictionaries of a branch, and returns them.
    pub(crate) fn remove_branch(&mut self, branch: &str) -> Dictionaries {
        let gone = match branch.is_empty() {
            true => std::mem::take(&mut self.main).dictionaries,
            false => {
                let gone = self.of_branch(branch).dictionaries;
                self.clones.remove(branch);
                gone
            }
        };
        gone.keys().for_each(|id| _ = self.all.remove(id));
        gone
    }

    /// Changes a dictionary, except its number, branch and name. Returns `None` if the dictionary
    /// does not exist.
    pub(crate) fn change<T>(
        &mut self,
        id: DictionaryId,
        change: impl FnOnce(&mut DictionaryState) -> T,
    ) -> Option<T> {
        let mut state = self.all.get(&id)?.clone();
        let changed = change(Arc::make_mut(&mut state));
        if state.info.branch.is_empty() {
            self.main.dictionaries.insert(id, state.clone());
        } else if !self.has_numbers_only(&state.info.branch)
            && let Some(Members::Maps(of)) = self.clones.get_mut(&state.info.branch)
        {
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

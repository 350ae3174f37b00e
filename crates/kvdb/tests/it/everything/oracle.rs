//! The expected content of a store: named branches and snapshots with their dictionaries, and the
//! effect of changes on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvdb::{Kvdb, Update, View};

use super::possible::Possible;

/// The dictionary that fills small stores. It is not compared.
pub const BALLAST: &str = "ballast";

pub type Tuples = BTreeMap<Vec<u8>, Vec<u8>>;
/// Dictionaries by name. Tables are shared until they change.
pub type Branch = BTreeMap<String, Arc<Tuples>>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestState {
    /// The main one is `""`.
    pub branches: BTreeMap<String, Branch>,
    /// Each snapshot has the name of its branch next to its content.
    pub snapshots: BTreeMap<String, (String, Branch)>,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Put(Vec<u8>, Vec<u8>),
    Update(Vec<u8>, Update),
    Delete(Vec<u8>),
    /// The end is not in it.
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// A change, with its branch and dictionary.
#[derive(Clone, Debug)]
pub struct Change {
    pub branch: String,
    pub dict: String,
    pub kind: Kind,
}

impl Change {
    /// The keys from here up to there are touched.
    fn span(&self) -> (Vec<u8>, Vec<u8>) {
        match &self.kind {
            Kind::Put(key, _) | Kind::Update(key, _) | Kind::Delete(key) => {
                (key.clone(), [&key[..], &[0]].concat())
            }
            Kind::DeleteRange(start, end) => (start.clone(), end.clone()),
        }
    }

    /// Returns whether the store must have space for the change.
    pub fn adds(&self) -> bool {
        matches!(self.kind, Kind::Put(..) | Kind::Update(..))
    }

    /// Returns whether the change is an update of a key that `all`, the changes of its transaction,
    /// change only by updates that commute with those of others.
    pub fn commutes(&self, all: &[Change]) -> bool {
        matches!(self.kind, Kind::Update(..))
            && all
                .iter()
                .filter(|change| change.meets(self))
                .all(|change| matches!(&change.kind, Kind::Update(_, u) if u.commutes()))
    }

    /// Returns whether an addition to the value of the key in this state would have an effect.
    pub fn is_of_number(&self, state: &ManifestState) -> bool {
        let (key, _) = self.span();
        let value = state.table(&self.branch, &self.dict).and_then(|table| table.get(&key));
        value.is_none_or(|value| Update::add(1).apply(Some(value)) != value[..])
    }

    /// Returns whether the change touches any key at all.
    pub fn is_any(&self) -> bool {
        let (start, end) = self.span();
        start < end
    }

    /// Returns whether both changes touch some key.
    pub fn meets(&self, other: &Change) -> bool {
        let ((a, b), (c, d)) = (self.span(), other.span());
        self.branch == other.branch && self.dict == other.dict && a < d && c < b && a < b && c < d
    }
}

impl ManifestState {
    pub fn table(&self, branch: &str, dict: &str) -> Option<&Tuples> {
        self.branches.get(branch)?.get(dict).map(|table| &**table)
    }

    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let Some(table) =
                self.branches.get_mut(&change.branch).and_then(|b| b.get_mut(&change.dict))
            else {
                continue;
            };
            let table = Arc::make_mut(table);
            match &change.kind {
                Kind::Put(key, value) => drop(table.insert(key.clone(), value.clone())),
                Kind::Update(key, update) => {
                    let value = update.apply(table.get(key).map(Vec::as_slice));
                    table.insert(key.clone(), value.to_vec());
                }
                Kind::Delete(key) => drop(table.remove(key)),
                Kind::DeleteRange(start, end) => table.retain(|key, _| key < start || key >= end),
            }
        }
    }

    /// Describes the differences, for a message.
    pub fn differs(&self, other: &ManifestState) -> String {
        let names = |s: &ManifestState| {
            (
                s.branches.keys().cloned().collect::<Vec<_>>(),
                s.snapshots.keys().cloned().collect::<Vec<_>>(),
            )
        };
        if names(self) != names(other) {
            return format!("branches and snapshots are {:?}, not {:?}", names(self), names(other));
        }
        let all = |s: &ManifestState| -> Vec<(String, Branch)> {
            let branches =
                s.branches.iter().map(|(name, b)| (format!("branch {name:?}"), b.clone()));
            branches
                .chain(
                    s.snapshots
                        .iter()
                        .map(|(name, (of, b))| (format!("snapshot {name:?} of {of:?}"), b.clone())),
                )
                .collect()
        };
        for ((name, a), (other_name, b)) in all(self).into_iter().zip(all(other)) {
            if name != other_name || a.keys().ne(b.keys()) {
                return format!("{name} with {:?}, not {other_name} with {:?}", a.keys(), b.keys());
            }
            for (dict, a) in &a {
                if let Some(key) =
                    a.keys().chain(b[dict].keys()).find(|key| a.get(*key) != b[dict].get(*key))
                {
                    let shown =
                        |v: Option<&Vec<u8>>| v.map(|v| (v.len(), v[..v.len().min(8)].to_vec()));
                    let key_shown = String::from_utf8_lossy(key);
                    return format!(
                        "{name}, dictionary {dict}, key {key_shown}: {:?}, not {:?}",
                        shown(a.get(key)),
                        shown(b[dict].get(key))
                    );
                }
            }
        }
        "nothing".into()
    }
}

/// All tuples of a dictionary in a view.
pub fn tuples(view: &View, dict: kvdb::DictionaryId) -> kvdb::Result<Tuples> {
    Ok(view
        .scan(dict, b"", b"", usize::MAX)?
        .into_iter()
        .map(|(k, v)| (k.to_vec(), v.to_vec()))
        .collect())
}

/// The dictionaries of one branch in a view, except for ballast.
pub fn branch_of(view: &View, branch: &str) -> kvdb::Result<Branch> {
    let all = view.dictionaries().into_iter().filter(|d| d.branch == branch && d.name != BALLAST);
    all.map(|d| Ok((d.name, Arc::new(tuples(view, d.id)?)))).collect()
}

/// The content of the branches of `state` in a view.
pub fn seen(view: &View, state: &ManifestState) -> kvdb::Result<ManifestState> {
    let branches = state
        .branches
        .keys()
        .map(|name| Ok((name.clone(), branch_of(view, name)?)))
        .collect::<kvdb::Result<_>>()?;
    Ok(ManifestState { branches, snapshots: BTreeMap::new() })
}

/// Everything in a store.
pub fn observe(db: &Kvdb) -> kvdb::Result<ManifestState> {
    let view = db.view();
    let names = std::iter::once(String::new()).chain(db.branches().into_iter().map(|b| b.name));
    let mut state = ManifestState::default();
    for name in names {
        let branch = branch_of(&view, &name)?;
        state.branches.insert(name, branch);
    }
    for info in db.snapshots() {
        // The dictionaries of a snapshot are listed as those of the main branch, whichever branch
        // it is of.
        let branch = branch_of(&db.open_snapshot(&info.name)?, "")?;
        state.snapshots.insert(info.name, (info.branch, branch));
    }
    Ok(state)
}

/// The states that may be found when the power returns.
pub type History = Possible<ManifestState>;

impl History {
    /// The state before the last attempt.
    pub fn before_newest(&self) -> &ManifestState {
        &self.states[self.states.len().saturating_sub(2)]
    }

    /// Checks that the found state is one of the possible states.
    pub fn found(&mut self, state: ManifestState, when: &str) {
        let n = self.len();
        let newest = state.differs(self.newest());
        self.keep(|s| *s == state).unwrap_or_else(|| {
            panic!("{when}: none of {n} possible states; what differs from the newest: {newest}")
        });
    }
}

//! The whole content of a store, which is branches, snapshots and durable transactions, and the
//! comparison with what is found after a power cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvdb::{Kvdb, TransactionId};
use kvfs::{Ino, ViewId, Views};

use super::found::{Exactly, Found, Matched, is, keys_in, keys_of, look};
use super::possible::Possible;
use super::tree::{Id, Node, Overlay, Tree};

#[derive(Clone, Debug, Default)]
pub struct State {
    /// The mainline is `""`.
    pub branches: BTreeMap<String, Arc<Tree>>,
    /// Each snapshot has the name of its branch next to its tree.
    pub snapshots: BTreeMap<String, (String, Arc<Tree>)>,
    /// The changes of open durable transactions, by label.
    pub durable: BTreeMap<String, Arc<Overlay>>,
}

pub type History = Possible<State>;
/// The states that durable transactions read, by label.
pub type Bases = BTreeMap<String, Arc<Tree>>;

/// The branch that a transaction is of, which is in its label.
pub fn branch_in(label: &str) -> &str {
    label.split_once('@').map_or("", |(_, branch)| branch)
}

#[derive(Default)]
pub struct FoundState {
    pub branches: BTreeMap<String, Found>,
    pub snapshots: BTreeMap<String, (String, Found)>,
    pub durable: BTreeMap<String, (TransactionId, Found)>,
}

/// Everything in a store.
pub fn observe(db: &Kvdb, views: &Views) -> kvfs::Result<FoundState> {
    let mut all = FoundState::default();
    let main = Found { keys: keys_in(db, "")?, ..look(views.mainline())? };
    all.branches.insert(String::new(), main);
    for info in views.clones() {
        let fs = views.fs(&ViewId::Clone(info.name.clone()))?;
        let found = Found { keys: keys_in(db, &info.name)?, ..look(&fs)? };
        all.branches.insert(info.name, found);
    }
    for info in views.snapshots() {
        let keys = keys_of(&db.open_snapshot(&info.name)?, "")?;
        let found = Found { keys, ..look(&views.fs(&ViewId::Snapshot(info.name.clone()))?)? };
        all.snapshots.insert(info.name, (info.branch, found));
    }
    for info in views.list().into_iter().filter(|info| info.durable) {
        let keys = keys_of(&views.transaction(info.id)?.view()?, "")?;
        let found = Found { keys, ..look(&views.fs(&ViewId::Transaction(info.id))?)? };
        all.durable.insert(info.label, (info.id, found));
    }
    Ok(all)
}

fn same<A, B>(what: &str, a: &BTreeMap<String, A>, b: &BTreeMap<String, B>) -> Result<(), String> {
    if a.keys().eq(b.keys()) {
        return Ok(());
    }
    Err(format!(
        "{what}: {:?} there, not {:?}",
        b.keys().collect::<Vec<_>>(),
        a.keys().collect::<Vec<_>>()
    ))
}

/// A found tree, of which no data waits in memory.
fn collapse(tree: &Tree, matched: &Matched) -> Tree {
    let mut tree = tree.clone();
    for (id, (_, own)) in matched {
        if let Some(node) = tree.nodes.get_mut(id) {
            *node = Arc::new(Node { possible: vec![own.clone()], ..(**node).clone() });
        }
    }
    tree
}

impl State {
    /// Compares this state with the one that was found. Returns the found state with its inode
    /// numbers, or the reason why the two differ.
    pub fn matches(
        &self,
        found: &FoundState,
        bases: &Bases,
        how: Exactly,
        inos: &BTreeMap<Id, Ino>,
    ) -> Result<(State, BTreeMap<Id, Ino>), String> {
        same("branches", &self.branches, &found.branches)?;
        same("snapshots", &self.snapshots, &found.snapshots)?;
        let (mut state, mut numbers) = (self.clone(), BTreeMap::new());
        let mut note = |matched: &Matched| {
            matched.iter().try_for_each(|(id, (ino, _))| match numbers.insert(*id, *ino) {
                Some(other) if other != *ino => {
                    Err(format!("node {id} is inode {ino} here and {other} there"))
                }
                _ => Ok(()),
            })
        };
        for (name, tree) in &mut state.branches {
            let matched = is(tree, &found.branches[name], how, inos)
                .map_err(|e| format!("branch {name:?}: {e}"))?;
            note(&matched)?;
            *tree = Arc::new(collapse(tree, &matched));
        }
        for (name, (branch, tree)) in &mut state.snapshots {
            let (of, found) = &found.snapshots[name];
            if of != branch {
                return Err(format!("snapshot {name}: of {of:?}, not {branch:?}"));
            }
            let matched =
                is(tree, found, how, inos).map_err(|e| format!("snapshot {name}: {e}"))?;
            note(&matched)?;
            *tree = Arc::new(collapse(tree, &matched));
        }
        if how == Exactly::Now {
            return Ok((state, numbers));
        }
        same("durable transactions", &self.durable, &found.durable)?;
        for (label, over) in &mut state.durable {
            let tree = bases[label].with(over);
            let matched = is(&tree, &found.durable[label].1, how, inos)
                .map_err(|e| format!("transaction {label}: {e}"))?;
            note(&matched)?;
            let tree = collapse(&tree, &matched);
            let over = Arc::make_mut(over);
            for (id, node) in over.nodes.iter_mut().filter(|(_, node)| node.is_some()) {
                *node = tree.nodes.get(id).cloned();
            }
        }
        Ok((state, numbers))
    }
}

//! Opens the states that a fork has in common with the stores that it was forked from.

use super::Snapshotter;
use crate::manifest::fork_bases::{name_of, stores_in};
use crate::read::view::View;

/// The state of the main branch that a fork has in common with a store that it was forked from.
#[derive(Clone)]
pub struct ForkBase {
    /// The state.
    pub state: View,
    /// The number of its last commit, in the original store: no later state of that store has a
    /// smaller number.
    pub commit: u64,
}

impl Snapshotter {
    /// Returns the stores that this one is a fork of, the most recent first.
    pub(crate) fn fork_origins(&self) -> Vec<[u8; 16]> {
        stores_in(self.engine.snapshots.list().iter().map(|snapshot| &snapshot.label))
    }

    /// Returns the state that this store has in common with a store that it is a fork of.
    pub(crate) fn fork_base(&self, store: &[u8; 16]) -> Option<ForkBase> {
        let snapshot = self.engine.snapshots.get(&name_of(store))?;
        Some(ForkBase { state: self.open(&snapshot), commit: snapshot.label.seq })
    }
}

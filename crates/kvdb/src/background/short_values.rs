//! Decides when short values are gathered into their blocks: once the store is idle, or once
//! cursors have read more of them from outside than were committed. The accounting is in
//! `crate::short_values`.

use std::sync::Arc;

use super::on_demand::none_if_full;
use super::{Compactor, Flusher};
use crate::error::Result;
use crate::short_values::ShortValues;
use crate::version::tree::Tree;

/// Minimum bytes of short values that scans must have read from outside.
const LEAST_SCANNED: u64 = 1 << 20;

/// Returns whether new short values of the dictionary are written outside.
fn are_outside(tree: &Tree) -> bool {
    tree.short.are_outside(tree.info())
}

impl Compactor {
    /// Ends the writing of short values outside for the dictionaries that call for it, or for all
    /// if the store is `idle`. Returns `false` if there are none.
    pub(crate) fn gather_short_values(&self, flusher: &Flusher, idle: bool) -> Result<bool> {
        let due =
            |tree: &Tree| idle || tree.short.should_be_gathered(tree.data_bytes(), LEAST_SCANNED);
        let due: Vec<Arc<ShortValues>> = {
            let version = self.engine.versions.load();
            let candidates = self.candidates.outside(&version);
            let trees = candidates.iter().filter_map(|id| version.trees.get(id));
            let trees = trees.filter(|tree| are_outside(tree) && due(tree));
            trees.map(|tree| tree.short.clone()).collect()
        };
        // Flush first, so that the merge finds the values outside.
        if due.is_empty() || none_if_full(flusher.flush_all())?.is_none() {
            return Ok(false);
        }
        due.iter().for_each(|short| short.gather(!idle));
        self.engine.signals.compaction_wanted();
        Ok(true)
    }

    /// Returns whether no dictionary waits for the store to become idle.
    pub(super) fn short_values_at_rest(&self) -> bool {
        let version = self.engine.versions.load();
        let candidates = self.candidates.outside(&version);
        !candidates.iter().filter_map(|id| version.trees.get(id)).any(|tree| are_outside(tree))
    }
}

//! When short values are brought into their blocks: once the store is idle, or once cursors have
//! read more of them from outside than were committed. What decides it is in `crate::short_values`.

use std::sync::Arc;

use super::on_demand::none_if_full;
use super::{Compactor, Flusher};
use crate::error::Result;
use crate::read::version::Tree;
use crate::short_values::ShortValues;

/// Bytes of short values that scans must read from outside, at the least.
const LEAST_SCANNED: u64 = 1 << 20;

/// New short values of the dictionary go outside.
fn are_outside(tree: &Tree) -> bool {
    tree.short.are_outside(tree.info())
}

impl Compactor {
    /// Ends the time outside for short values of the dictionaries that call for it, all if the
    /// store is `idle`. `false`: of none.
    pub(crate) fn gather_short_values(&self, flusher: &Flusher, idle: bool) -> Result<bool> {
        let due =
            |tree: &Tree| idle || tree.short.should_be_gathered(tree.data_bytes(), LEAST_SCANNED);
        let due: Vec<Arc<ShortValues>> = {
            let version = self.versions.load();
            let candidates = self.candidates.outside(&version);
            let trees = candidates.iter().filter_map(|id| version.trees.get(id));
            let trees = trees.filter(|tree| are_outside(tree) && due(tree));
            trees.map(|tree| tree.short.clone()).collect()
        };
        // First, so that the merge finds what lies outside.
        if due.is_empty() || none_if_full(flusher.flush_all())?.is_none() {
            return Ok(false);
        }
        due.iter().for_each(|short| short.gather(!idle));
        self.signals.compaction_wanted();
        Ok(true)
    }

    /// No dictionary waits for the store to be idle.
    pub(super) fn short_values_at_rest(&self) -> bool {
        let version = self.versions.load();
        let candidates = self.candidates.outside(&version);
        !candidates.iter().filter_map(|id| version.trees.get(id)).any(|tree| are_outside(tree))
    }
}

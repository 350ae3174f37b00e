//! Rounds that keep the order of values. The merges of an evacuation write what is left in a zone
//! in the order of keys. Where values lie in an order that the user of the store supplies, this
//! would undo it, round by round. So such values are moved before, in the order of their addresses:
//! those that lay next to each other still do, without the holes between them.
//!
//! The order itself is not asked for, since it would have to be walked through for each round. A
//! value that was never laid stays as far from its neighbours as it was; the next pass finds it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use vt_tree::{ExtentRef, Placement, Relocation};
use zones::{Priority, ZoneId};

use super::victims::Victims;
use super::{Defragmenter, STEP};
use crate::background::policy::{BOTTOM, lifetime};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::view::View;

impl Defragmenter {
    /// Moves the values of dictionaries that have an order of their own out of the victims, in the
    /// order of their addresses. A value to which several runs refer is copied once. `between` is
    /// called with the bytes that were written since the last call, and returns whether to
    /// continue; otherwise copies to which nothing refers yet are dropped. They are also dropped
    /// when the store runs short of space, since the evacuation can do without them.
    pub(super) fn keep_order(
        &self,
        victims: &Victims,
        between: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let Some((_, dictionaries)) = self.value_order() else { return Ok(()) };
        // The view pins the old places until their references were replaced.
        let view = self.engine.versions.view();
        let values = values_in(&view, &dictionaries, &victims.zones)?;
        if values.is_empty() || !self.leaves_room() {
            return Ok(());
        }
        // The view also keeps what other merges leave, and `between` may wait for long.
        let mut goes_on = |moved| between(moved) && self.leaves_room();
        let trees = dictionaries.iter().filter_map(|dict| view.version.trees.get(dict));
        let lifetime = lifetime(&self.engine.zones, trees.flat_map(|tree| tree.runs()), BOTTOM);
        let evacuate = Some(Arc::new(victims.zones.clone()));
        let placement = Placement { evacuate, window: STEP, ..Placement::stitch() };
        let mut relocation =
            Relocation::new(&self.engine.cache, placement, Priority::Merge, lifetime);
        let mut told = 0;
        for e in values {
            relocation.push(e)?;
            let written = relocation.stats().written();
            if written >= told + STEP {
                if !goes_on(written - told) {
                    return Ok(());
                }
                told = written;
            }
        }
        self.replace_references(relocation, &dictionaries, &mut goes_on)?;
        Ok(())
    }

    /// Returns whether commits and flushes have room without the space that a round pins.
    fn leaves_room(&self) -> bool {
        let needed = self.flusher.unflushed_bytes().saturating_add(STEP);
        self.engine.zones.space().free_for_user > needed
    }
}

/// Returns the values of these dictionaries that lie in `zones`, in the order of their addresses,
/// each place once.
fn values_in(
    view: &View,
    dictionaries: &BTreeSet<DictionaryId>,
    zones: &BTreeSet<ZoneId>,
) -> Result<Vec<ExtentRef>> {
    let (mut values, mut seen) = (Vec::new(), HashSet::new());
    let trees = dictionaries.iter().filter_map(|dict| view.version.trees.get(dict));
    // Clones share runs.
    for numbered in trees.flat_map(|tree| tree.runs()).filter(|p| seen.insert(Arc::as_ptr(&p.run)))
    {
        if numbered.run.uses().iter().any(|(zone, _)| zones.contains(&zone)) {
            numbered.run.values_in(zones, &mut |e| values.push(e))?;
        }
    }
    values.sort_unstable_by_key(|e: &ExtentRef| e.addr);
    values.dedup_by_key(|e| e.addr);
    Ok(values)
}

//! Defragmentation in an order that the user of the store supplies. A file system reads the pages of
//! its files in the order of their names, but their keys have the order in which the files were
//! made. Values are references, so they can be laid in any order without a change of keys.
//!
//! A pass asks the [`ValueOrder`] for ranges of keys, in the order in which they are read, and
//! copies the scattered ones among their values in that order. Then each run that refers to the old
//! places is merged alone, part by part, as an evacuation does it: references are replaced, and
//! everything else is stitched. A crash between two parts leaves runs that refer to new places and
//! runs that refer to old ones; both are whole.
//!
//! A pass may leave long spans among holes, which the rounds would move in the order of keys. So a
//! second pass evacuates these zones in the order of the user. Nothing that a pass has laid is
//! scattered for the next one, so a second defragmentation moves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use vt_tree::{Placement, Relocation, TreeCursor, ValueRef};
use zones::{Priority, ZONE_SIZE, ZoneId};

use super::evacuate::{OtherMerges, RunMerges};
use super::{DefragOptions, Defragmenter, PART, READ_TOGETHER, TOGETHER};
use crate::background::policy::{BOTTOM, lifetime};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::view::View;

/// The most values and bytes that are copied before references are replaced: their new places are
/// kept in memory, and each time the key blocks that refer to them are written again.
const MOST_VALUES: usize = 128 << 10;
const MOST_BYTES: u64 = 512 << 20;
/// Key blocks that are short compared with their values may be written again for the sake of the
/// values: at most one byte of blocks for this many bytes of values.
const SMALL_ENOUGH: u64 = 2;
/// The key blocks of clones, which follow the values that they share, are written again as long as
/// they have at most one byte for this many bytes of all data.
const CLONES: u64 = 8;
/// The alignment of values, bytes: each unit has a bit in [`Places`].
const UNIT: u64 = 512;
/// The most zones of which the visited places are kept: their bits take 32 MiB.
const MOST_ZONES: usize = 16 << 10;

/// Called with a dictionary and a range of its keys, by its first key and the key after it.
pub type VisitRange<'a> = dyn FnMut(DictionaryId, &[u8], &[u8]) -> Result<ControlFlow<()>> + 'a;

/// The order in which the large values of some dictionaries are read, if it is not that of their
/// keys. A defragmentation that a caller has requested without a limit of its rate lays the values
/// in this order, see [`crate::Kvdb::set_value_order`].
pub trait ValueOrder: Send + Sync {
    /// Returns the dictionaries whose values have this order. Their values are not laid in the
    /// order of keys.
    fn dictionaries(&self, view: &View) -> Vec<DictionaryId>;

    /// Calls `visit` with ranges of keys of these dictionaries, each by its first key and the key
    /// after it, in the order in which their values are read, until `visit` breaks. Values of
    /// ranges that are left out stay where they are.
    fn visit(&self, view: &View, visit: &mut VisitRange<'_>) -> Result<()>;
}

/// The places that a pass has visited. Several keys may refer to one value, as after a clone of a
/// file, and the first one determines its place.
#[derive(Default)]
struct Places {
    zones: BTreeMap<ZoneId, Vec<u64>>,
}

impl Places {
    /// Adds a place. Returns `false` if it was added before.
    fn insert(&mut self, addr: u64) -> bool {
        let zone = ZoneId::of(addr);
        // A place that is forgotten may be laid once more, which costs bytes and nothing else.
        if self.zones.len() >= MOST_ZONES && !self.zones.contains_key(&zone) {
            self.zones.clear();
        }
        let units = (ZONE_SIZE / UNIT) as usize;
        let bits = self.zones.entry(zone).or_insert_with(|| vec![0; units / 64]);
        let unit = (addr % ZONE_SIZE / UNIT) as usize;
        let (word, bit) = (unit / 64, 1u64 << (unit % 64));
        let new = bits[word] & bit == 0;
        bits[word] |= bit;
        new
    }
}

impl Defragmenter {
    pub(crate) fn set_value_order(&self, order: Arc<dyn ValueOrder>) {
        *self.order.lock() = Some(order);
    }

    /// Returns the order of values, and the dictionaries whose values have it.
    pub(super) fn value_order(&self) -> Option<(Arc<dyn ValueOrder>, BTreeSet<DictionaryId>)> {
        let order = self.order.lock().clone()?;
        let dictionaries = order.dictionaries(&self.engine.versions.view());
        Some((order, dictionaries.into_iter().collect()))
    }

    /// Lays values in their order, if there is one and the rate is not limited.
    pub(super) fn lay_values(&self, options: DefragOptions) -> Result<()> {
        let Some((order, dictionaries)) = self.value_order() else { return Ok(()) };
        if options.bytes_per_second.is_some() || self.is_to_stop() {
            return Ok(());
        }
        self.flusher.flush_all()?;
        let followers = self.followers();
        let dictionaries: BTreeSet<DictionaryId> =
            dictionaries.intersection(&followers).copied().collect();
        if !self.may_be_laid(&dictionaries) {
            return Ok(());
        }
        let pass = |evacuate| self.pass(&*order, &dictionaries, &followers, evacuate);
        if pass(None)? == 0 {
            return Ok(());
        }
        let victims = self.victims(u64::MAX, u64::from(options.fullest_percent.min(99)))?;
        if victims.gain() > 0 && !self.is_to_stop() {
            pass(Some(Arc::new(victims.zones)))?;
        }
        Ok(())
    }

    /// Returns the dictionaries whose references are replaced: those of the main branch, and those
    /// of clones as long as it costs little. The other clones keep the old places, as snapshots do,
    /// and so do clones with a limit, since values that were copied count towards it.
    fn followers(&self) -> BTreeSet<DictionaryId> {
        let mut left = self.holes().live / CLONES;
        let version = self.engine.versions.load();
        let mut followers = BTreeSet::new();
        for (&dict, tree) in version.trees.iter() {
            let blocks: u64 = tree.runs().map(|p| p.run.stats().block_bytes).sum();
            let branch = &tree.info().branch;
            if branch.is_empty() {
                followers.insert(dict);
            } else if blocks <= left && !version.limits.contains_key(&**branch) {
                left -= blocks;
                followers.insert(dict);
            }
        }
        followers
    }

    /// Returns whether there is room for the values once more, all of them can be read here, and
    /// the key blocks that must be written again are short compared with them.
    fn may_be_laid(&self, dictionaries: &BTreeSet<DictionaryId>) -> bool {
        let version = self.engine.versions.load();
        let (mut blocks, mut values) = (0u64, 0u64);
        let trees = dictionaries.iter().filter_map(|dict| version.trees.get(dict));
        for numbered in trees.flat_map(|tree| tree.runs()) {
            blocks = blocks.saturating_add(numbered.run.stats().block_bytes);
            values = values.saturating_add(numbered.run.stats().value_bytes);
            if !numbered.run.uses().iter().all(|(zone, _)| self.engine.zones.is_here_whole(zone)) {
                return false;
            }
        }
        // Clones share most of their values, so the sum of all is more than there is.
        let live = values.saturating_add(blocks).min(self.holes().live);
        let needed = live.saturating_add(self.flusher.unflushed_bytes());
        values > 0
            && blocks <= values / SMALL_ENOUGH
            && self.engine.zones.space().free_for_user > needed
    }

    /// Lays scattered values of these dictionaries, and all in the zones to evacuate, in their
    /// order, and lets `followers` refer to their new places. Returns the bytes of values that it
    /// has copied.
    fn pass(
        &self,
        order: &dyn ValueOrder,
        dictionaries: &BTreeSet<DictionaryId>,
        followers: &BTreeSet<DictionaryId>,
        evacuate: Option<Arc<BTreeSet<ZoneId>>>,
    ) -> Result<u64> {
        // The view pins all places until their references were replaced.
        let view = self.engine.versions.view();
        let trees = dictionaries.iter().filter_map(|dict| view.version.trees.get(dict));
        let lifetime = lifetime(&self.engine.zones, trees.flat_map(|tree| tree.runs()), BOTTOM);
        let placement = Placement {
            values_at: TOGETHER,
            window: READ_TOGETHER,
            evacuate,
            ..Placement::stitch()
        };
        let begin =
            || Relocation::new(&self.engine.cache, placement.clone(), Priority::Merge, lifetime);
        let (mut relocation, mut visited, mut copied) = (begin(), Places::default(), 0);
        let mut open: Option<(DictionaryId, TreeCursor)> = None;
        order.visit(&view, &mut |dict, start, end| {
            if self.is_to_stop() {
                return Ok(ControlFlow::Break(()));
            }
            if !dictionaries.contains(&dict) {
                return Ok(ControlFlow::Continue(()));
            }
            let mut cursor = match open.take() {
                Some((of, cursor)) if of == dict => cursor,
                _ => {
                    let mut cursor = view.tree_cursor(dict, view.inputs(dict)?);
                    // An update does not change where the value lies that it applies to.
                    cursor.keep_updates();
                    cursor
                }
            };
            cursor.seek(start);
            while cursor.advance()?
                && let Some(tuple) = cursor.current()
                && tuple.key < end
            {
                if let ValueRef::Extent(e) = tuple.value
                    && visited.insert(e.addr)
                {
                    relocation.push(e)?;
                }
            }
            open = Some((dict, cursor));
            if relocation.copied() >= MOST_VALUES || relocation.stats().written() >= MOST_BYTES {
                let full = std::mem::replace(&mut relocation, begin());
                copied += self.replace_references(full, followers)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        copied += self.replace_references(relocation, followers)?;
        Ok(copied)
    }

    /// Replaces the references of `followers` to all values that were copied. Returns the bytes of
    /// these.
    fn replace_references(
        &self,
        relocation: Relocation,
        followers: &BTreeSet<DictionaryId>,
    ) -> Result<u64> {
        let (relocated, pin, stats) = relocation.finish()?;
        if relocated.is_empty() {
            return Ok(0);
        }
        self.engine.counters.merged(&stats);
        let mut merges = RunMerges {
            zones: Arc::new(relocated.zones().clone()),
            placement: Placement { relocated: Some(Arc::new(relocated)), ..Placement::stitch() },
            only: Some(followers.clone()),
            done: BTreeSet::new(),
        };
        loop {
            let part = PART.min(self.compactor.part_size());
            let before = merges.done.len();
            self.merge_runs(&mut merges, part, OtherMerges::Running, &mut |_| !self.is_to_stop())?;
            // A run that another merge has made from some of them may refer to the old places, too.
            if merges.done.len() == before || self.is_to_stop() {
                break;
            }
        }
        drop(pin);
        Ok(stats.values_written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_visited_once_whatever_else_is_visited() {
        let mut places = Places::default();
        assert!(places.insert(0) && places.insert(UNIT) && places.insert(ZONE_SIZE));
        assert!(!places.insert(0) && !places.insert(UNIT) && !places.insert(ZONE_SIZE));
        assert!(places.insert(ZONE_SIZE - UNIT) && !places.insert(ZONE_SIZE - UNIT));
    }
}

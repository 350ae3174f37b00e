//! Defragmentation in an order that the user of the store supplies. A file system reads the pages
//! of its files in the order of their names, but their keys have the order in which the files were
//! made. Values are references, so they can be laid in any order without a change of keys.
//!
//! A pass asks the [`ValueOrder`] for ranges of keys, in the order in which they are read, and
//! copies the scattered ones among their values in that order. Then each run that refers to the old
//! places is merged alone, part by part, as an evacuation does it: references are replaced, and
//! everything else is stitched. A crash between two parts leaves runs that refer to new places and
//! runs that refer to old ones; both are whole.
//!
//! Long spans stay among holes, and the rounds would move them in the order of keys. So a second
//! pass evacuates these zones in the order of the user, if that gains enough. Nothing that a pass
//! has laid is scattered for the next one, so a second defragmentation moves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use vt_tree::{Placement, Relocation, TreeCursor, ValueRef};
use zones::{Lifetime, Priority, ZONE_SIZE, ZoneId};

use super::evacuate::{OtherMerges, RunMerges};
use super::{DefragOptions, Defragmenter, PART, READ_TOGETHER, TOGETHER, was_worth_it};
use crate::background::policy::{BOTTOM, lifetime};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::view::View;

/// The values and bytes that are copied before references are replaced: their new places are kept
/// in memory, and each time the key blocks that refer to them are written again. Where the blocks
/// or the memory of the store are large, it is more.
const PORTION_VALUES: usize = 128 << 10;
const PORTION_BYTES: u64 = 512 << 20;
/// The part of the memory of the store that new places may take, the bytes that one takes, and the
/// most of them.
const PLACES_PART: usize = 8;
const PLACE_BYTES: usize = 64;
const MOST_VALUES: usize = 4 << 20;
/// Key blocks that are short compared with their values may be written again for the sake of the
/// values: at most one byte of blocks for this many bytes of values.
const SMALL_ENOUGH: u64 = 2;
/// The key blocks of clones, which follow the values that they share, are written again as long as
/// they have at most one byte for this many bytes of all data. Each of them is also synced alone,
/// so their number is bounded, too.
const CLONES: u64 = 8;
const MOST_CLONES: usize = 64;
/// The part of the store that a pass leaves free for others while it pins the old places.
const FREE_PART: u64 = 16;
/// The values that are visited, and the bytes that are copied, between checks whether to continue.
const VISITS: usize = 256;
const COPIES: u64 = 16 << 20;
/// The number of further searches for references, in runs that other merges have made since.
const ATTEMPTS: usize = 4;
/// The alignment of values, bytes: each unit has a bit in [`Places`].
const UNIT: u64 = 512;
/// The most zones of which the visited places are kept: their bits take 32 MiB.
const MOST_ZONES: usize = 16 << 10;

/// Called with a dictionary and a range of its keys, by its first key and the key after it.
pub type VisitRange<'a> = dyn FnMut(DictionaryId, &[u8], &[u8]) -> Result<ControlFlow<()>> + 'a;

/// The order in which the large values of some dictionaries are read, if it is not that of their
/// keys. A defragmentation that a caller has requested without a limit of its rate lays the values
/// in this order. See [`crate::Kvdb::set_value_order`]. The store holds its order, so an order must
/// not hold a [`crate::Kvdb`] of the same store, which would never be dropped.
pub trait ValueOrder: Send + Sync {
    /// Returns the dictionaries whose values have this order. Their values are not laid in the
    /// order of keys.
    fn dictionaries(&self, view: &View) -> Vec<DictionaryId>;

    /// Calls `visit` with ranges of keys of these dictionaries, each by its first key and the key
    /// after it, in the order in which their values are read, until `visit` breaks. Values of
    /// ranges that are left out stay where they are. An order that takes long to find the next
    /// range asks with empty ones whether to continue.
    fn visit(&self, view: &View, visit: &mut VisitRange<'_>) -> Result<()>;
}

/// The bounds of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The values and bytes of a portion, after which references are replaced.
    values: usize,
    bytes: u64,
    /// The number of portions. The rest is left to the next defragmentation, which finds these in
    /// order.
    portions: u64,
    /// The bytes of all portions, which are the live ones. More bytes would be copies of earlier
    /// copies.
    all: u64,
}

impl Bounds {
    /// Returns the bounds for dictionaries with these bytes of key blocks and of values, of which
    /// `live` bytes exist, or `None` if the blocks are not short enough compared with the values.
    /// Each portion may write all blocks again, so the portions, which have at least `portion`
    /// bytes, grow with them, and the blocks that all portions write are short compared with the
    /// values.
    fn of(blocks: u64, values: u64, live: u64, memory: usize, portion: u64) -> Option<Bounds> {
        let portions = (values / SMALL_ENOUGH).checked_div(blocks.max(1)).filter(|n| *n > 0)?;
        Some(Bounds {
            values: (memory / PLACES_PART / PLACE_BYTES).clamp(PORTION_VALUES, MOST_VALUES),
            bytes: portion.max(blocks.saturating_mul(2 * SMALL_ENOUGH)),
            portions,
            all: live,
        })
    }
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
        // A place that is forgotten may be laid once more: that costs bytes, within `Bounds::all`,
        // and nothing else.
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

/// The way in which a pass goes through its order.
pub(super) struct Course<'a> {
    /// Zones whose values are copied, wherever their neighbours lie.
    pub evacuate: Option<Arc<BTreeSet<ZoneId>>>,
    /// Zones whose values stay where they are.
    pub kept: BTreeSet<ZoneId>,
    /// The number of ranges at the beginning of the order that are passed over.
    pub skip: u64,
    /// Returns whether the pass is to copy no more values.
    pub ends: &'a dyn Fn() -> bool,
    /// Returns whether references to values that were copied are not to be replaced, either.
    pub gives_up: &'a dyn Fn() -> bool,
    /// Called with the bytes of values that were copied since the last call.
    pub tell: &'a dyn Fn(u64),
}

/// The result of a pass.
pub(super) struct Laid {
    /// Bytes of values that were copied.
    pub copied: u64,
    /// The number of ranges that it has passed or passed over, if it has ended before the end of
    /// the order.
    pub reached: Option<u64>,
}

/// A pass in progress.
struct Pass<'a> {
    of: &'a Defragmenter,
    /// Pins all places until their references were replaced.
    view: &'a View,
    dictionaries: &'a BTreeSet<DictionaryId>,
    placement: Placement,
    lifetime: Lifetime,
    bounds: Bounds,
    course: Course<'a>,
    relocation: Relocation,
    visited: Places,
    /// The ranges that were passed.
    passed: u64,
    open: Option<(DictionaryId, TreeCursor)>,
    /// The portions that are done, and the bytes of values that they have copied.
    portions: u64,
    copied: u64,
    /// The bytes that were copied when the free space was last measured.
    looked_at: u64,
    /// The store needs the remaining space for other work.
    full: bool,
    /// The pass has ended before the end of the order.
    ended: bool,
}

impl<'a> Pass<'a> {
    fn new(
        of: &'a Defragmenter,
        view: &'a View,
        dictionaries: &'a BTreeSet<DictionaryId>,
        bounds: Bounds,
        course: Course<'a>,
    ) -> Pass<'a> {
        let trees = dictionaries.iter().filter_map(|dict| view.version.trees.get(dict));
        let lifetime = lifetime(&of.engine.zones, trees.flat_map(|tree| tree.runs()), BOTTOM);
        let placement = Placement {
            values_at: TOGETHER,
            window: READ_TOGETHER,
            evacuate: course.evacuate.clone(),
            ..Placement::stitch()
        };
        let relocation = begin(of, &placement, lifetime);
        Pass {
            of,
            view,
            dictionaries,
            placement,
            lifetime,
            bounds,
            course,
            relocation,
            visited: Places::default(),
            passed: 0,
            open: None,
            portions: 0,
            copied: 0,
            looked_at: 0,
            full: false,
            ended: false,
        }
    }

    /// Lays the values of `[start, end)`. Breaks if the pass is to end.
    fn lay(&mut self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<ControlFlow<()>> {
        if self.is_to_end() {
            return Ok(ControlFlow::Break(()));
        }
        if start >= end || !self.dictionaries.contains(&dict) {
            return Ok(ControlFlow::Continue(()));
        }
        if self.passed < self.course.skip {
            self.passed += 1;
            return Ok(ControlFlow::Continue(()));
        }
        let mut cursor = match self.open.take() {
            Some((of, cursor)) if of == dict => cursor,
            _ => {
                let mut cursor = self.view.tree_cursor(dict, self.view.inputs(dict)?);
                // An update does not change where the value lies that it applies to.
                cursor.keep_updates();
                cursor
            }
        };
        cursor.seek(start);
        let mut visits = 0usize;
        while cursor.advance()?
            && let Some(tuple) = cursor.current()
            && tuple.key < end
        {
            if let ValueRef::Extent(e) = tuple.value
                && !self.course.kept.contains(&ZoneId::of(e.addr))
                && self.visited.insert(e.addr)
            {
                self.relocation.push(e)?;
            }
            visits += 1;
            if !visits.is_multiple_of(VISITS) {
                continue;
            }
            if self.is_portion() {
                self.replace_references()?;
            }
            // A range may be a file of any length.
            if self.is_to_end() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.open = Some((dict, cursor));
        self.passed += 1;
        if self.is_portion() {
            self.replace_references()?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns whether enough was copied to replace references.
    fn is_portion(&self) -> bool {
        self.relocation.copied() >= self.bounds.values
            || self.relocation.stats().written() >= self.bounds.bytes
    }

    fn is_to_end(&mut self) -> bool {
        let copied = self.copied.saturating_add(self.relocation.stats().written());
        if copied >= self.looked_at.saturating_add(COPIES) {
            self.looked_at = copied;
            self.full = !self.of.has_room(0);
        }
        let ends = self.full
            || copied >= self.bounds.all
            || self.portions >= self.bounds.portions
            || (self.course.ends)();
        self.ended |= ends;
        ends
    }

    fn replace_references(&mut self) -> Result<()> {
        let next = begin(self.of, &self.placement, self.lifetime);
        let portion = std::mem::replace(&mut self.relocation, next);
        let gives_up = self.course.gives_up;
        let mut between = |_: u64| !gives_up();
        let copied = self.of.replace_references(portion, self.dictionaries, &mut between)?;
        (self.course.tell)(copied);
        self.copied += copied;
        self.portions += 1;
        Ok(())
    }

    /// Replaces the references to the values that were copied last. If the pass is abandoned,
    /// copies to which nothing refers yet are dropped.
    fn finish(mut self) -> Result<Laid> {
        if !(self.course.gives_up)() {
            self.replace_references()?;
        }
        // A pass that ends among the ranges that it passes over has taken none of them back.
        let reached = self.passed.max(self.course.skip);
        Ok(Laid { copied: self.copied, reached: self.ended.then_some(reached) })
    }
}

/// Returns a relocation of values that were not copied yet. It takes no space of the reserve, which
/// merges and flushes need.
fn begin(of: &Defragmenter, placement: &Placement, lifetime: Lifetime) -> Relocation {
    Relocation::new(&of.engine.cache, placement.clone(), Priority::User, lifetime)
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
        let dictionaries = self.followers(&dictionaries);
        let Some(bounds) = self.bounds(&dictionaries, u64::MAX, PORTION_BYTES) else {
            return Ok(());
        };
        let stop = || self.is_to_stop();
        let tell = |copied: u64| self.update(|progress| progress.bytes_moved += copied);
        let pass = |evacuate| {
            let kept = BTreeSet::new();
            let course =
                Course { evacuate, kept, skip: 0, ends: &stop, gives_up: &stop, tell: &tell };
            self.pass(&*order, &dictionaries, bounds, course)
        };
        pass(None)?;
        if self.is_to_stop() {
            return Ok(());
        }
        let fullest = u64::from(options.fullest_percent.min(99));
        let victims = self.victims(u64::MAX, fullest)?;
        let all = victims.zones.len() as u64 * ZONE_SIZE;
        let gains = victims.gain() > 0 && was_worth_it(victims.live, all, fullest);
        if gains && self.has_room(victims.live) {
            pass(Some(Arc::new(victims.zones)))?;
        }
        Ok(())
    }

    /// Makes a pass over these dictionaries.
    pub(super) fn pass(
        &self,
        order: &dyn ValueOrder,
        dictionaries: &BTreeSet<DictionaryId>,
        bounds: Bounds,
        course: Course<'_>,
    ) -> Result<Laid> {
        let view = self.engine.versions.view();
        let mut pass = Pass::new(self, &view, dictionaries, bounds, course);
        let visited = order.visit(&view, &mut |dict, start, end| pass.lay(dict, start, end));
        // An order that cannot be read to its end is no reason to copy the first values again.
        let laid = pass.finish()?;
        visited.map(|()| laid)
    }

    /// Returns those dictionaries of `ordered` whose values are laid and whose references are
    /// replaced: those of the main branch, and those of clones as long as it costs little. The
    /// other clones keep the old places, as snapshots do, and so do clones with a limit, since
    /// values that were copied count towards it.
    pub(super) fn followers(&self, ordered: &BTreeSet<DictionaryId>) -> BTreeSet<DictionaryId> {
        let (mut left, mut clones) = (self.holes().live / CLONES, MOST_CLONES);
        let version = self.engine.versions.load();
        let mut followers = BTreeSet::new();
        for &dict in ordered {
            let Some(tree) = version.trees.get(&dict) else { continue };
            let blocks: u64 = tree.runs().map(|p| p.run.stats().block_bytes).sum();
            let branch: &str = &tree.info().branch;
            if branch.is_empty() {
                followers.insert(dict);
            } else if clones > 0 && blocks <= left && !version.limits.contains_key(branch) {
                (left, clones) = (left - blocks, clones - 1);
                followers.insert(dict);
            }
        }
        followers
    }

    /// Returns the bounds of a pass over these dictionaries that copies at most `most` bytes of
    /// values, in portions of at least `portion` bytes. Returns `None` if there is no room for the
    /// values once more, some of them cannot be read here, or the key blocks that must be written
    /// again are not short compared with them.
    pub(super) fn bounds(
        &self,
        dictionaries: &BTreeSet<DictionaryId>,
        most: u64,
        portion: u64,
    ) -> Option<Bounds> {
        let version = self.engine.versions.load();
        let (mut blocks, mut values) = (0u64, 0u64);
        let trees = dictionaries.iter().filter_map(|dict| version.trees.get(dict));
        for numbered in trees.flat_map(|tree| tree.runs()) {
            blocks = blocks.saturating_add(numbered.run.stats().block_bytes);
            values = values.saturating_add(numbered.run.stats().value_bytes);
            if !numbered.run.uses().iter().all(|(zone, _)| self.engine.zones.is_here_whole(zone)) {
                return None;
            }
        }
        // Clones share most of their values, so the sum of all is more than there is.
        let live = values.saturating_add(blocks).min(self.holes().live).min(most);
        let memory = self.engine.options.memory;
        let bounds = Bounds::of(blocks, values.min(live), live, memory, portion)?;
        self.has_room(live).then_some(bounds)
    }

    /// Returns whether `bytes` more can be written, and enough is left for others.
    fn has_room(&self, bytes: u64) -> bool {
        let space = self.engine.zones.space();
        let others = space.zones_total / FREE_PART * ZONE_SIZE;
        let needed = bytes.saturating_add(self.flusher.unflushed_bytes()).saturating_add(others);
        space.free_for_user > needed
    }

    /// Replaces the references of `dictionaries` to all values that were copied. `between` is
    /// called after each part with the bytes that it wrote, and returns whether to continue.
    /// Returns the bytes of the values.
    pub(super) fn replace_references(
        &self,
        relocation: Relocation,
        dictionaries: &BTreeSet<DictionaryId>,
        between: &mut dyn FnMut(u64) -> bool,
    ) -> Result<u64> {
        let (relocated, pin, stats) = relocation.finish()?;
        if relocated.is_empty() {
            return Ok(0);
        }
        self.engine.counters.merged(&stats);
        let mut merges = RunMerges {
            zones: Arc::new(relocated.zones().clone()),
            placement: Placement { relocated: Some(Arc::new(relocated)), ..Placement::stitch() },
            only: Some(dictionaries.clone()),
            done: BTreeSet::new(),
        };
        let mut goes_on = true;
        // A run that another merge has made from some of them may refer to the old places, too. A
        // busy store makes such runs all the time; what they still refer to then stays there.
        for _ in 0..ATTEMPTS {
            let part = PART.min(self.compactor.part_size());
            let before = merges.done.len();
            let mut after_part = |moved| {
                goes_on = between(moved);
                goes_on
            };
            self.merge_runs(&mut merges, part, OtherMerges::Running, &mut after_part)?;
            if merges.done.len() == before || !goes_on {
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
    use crate::Kvdb;

    /// Visits this number of ranges of a dictionary.
    struct Ranges(DictionaryId, u64);

    impl ValueOrder for Ranges {
        fn dictionaries(&self, _: &View) -> Vec<DictionaryId> {
            vec![self.0]
        }

        fn visit(&self, _: &View, visit: &mut VisitRange<'_>) -> Result<()> {
            for _ in 0..self.1 {
                if visit(self.0, b"a", b"b")?.is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    #[test]
    fn a_pass_that_ends_before_the_ranges_that_are_left_has_lost_nothing() {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").expect("a fresh store").id();
        let bounds = Bounds::of(1, 1 << 30, 1 << 30, 0, PORTION_BYTES).expect("small blocks");
        let reached = |ranges: u64, skip: u64, most: u32| {
            let asked = std::cell::Cell::new(0);
            let ends = || asked.replace(asked.get() + 1) >= most;
            let course = Course {
                evacuate: None,
                kept: BTreeSet::new(),
                skip,
                ends: &ends,
                gives_up: &|| true,
                tell: &|_| {},
            };
            let dictionaries = BTreeSet::from([dict]);
            let order = Ranges(dict, ranges);
            let laid = db.defragmenter().pass(&order, &dictionaries, bounds, course);
            laid.expect("there is nothing to lay").reached
        };
        assert_eq!(reached(9, 0, 4), Some(4));
        assert_eq!(reached(9, 6, 4), Some(6), "it is still among those that are passed over");
        assert_eq!(reached(9, 6, 7), Some(7));
        assert_eq!(reached(9, 6, 100), None);
        assert_eq!(reached(9, 20, 100), None, "there are fewer by now");
    }

    #[test]
    fn a_place_is_visited_once_whatever_else_is_visited() {
        let mut places = Places::default();
        assert!(places.insert(0) && places.insert(UNIT) && places.insert(ZONE_SIZE));
        assert!(!places.insert(0) && !places.insert(UNIT) && !places.insert(ZONE_SIZE));
        assert!(places.insert(ZONE_SIZE - UNIT) && !places.insert(ZONE_SIZE - UNIT));
    }

    #[test]
    fn portions_grow_with_the_key_blocks_that_each_of_them_writes_again() {
        let (mib, gib) = (1u64 << 20, 1u64 << 30);
        let of =
            |blocks, values| Bounds::of(blocks, values, values + blocks, 256 << 20, PORTION_BYTES);
        let small = of(10 * mib, gib).expect("small blocks");
        assert_eq!((small.values, small.bytes), (512 << 10, PORTION_BYTES));
        for (blocks, values) in [(10 * mib, gib), (400 * mib, 40 * gib), (4 * gib, 400 * gib)] {
            let bounds = of(blocks, values).expect("small blocks");
            assert!(bounds.portions * blocks <= values / SMALL_ENOUGH, "{bounds:?}");
            assert!(bounds.portions * bounds.bytes >= values, "{bounds:?}: all is laid at once");
        }
        assert_eq!(of(gib, gib), None, "the blocks weigh as much as the values");
        assert_eq!(of(0, 0), None, "there are no values");
        assert!(of(0, gib).is_some());
        for (memory, values) in [(0, PORTION_VALUES), (usize::MAX, MOST_VALUES)] {
            let bounds = Bounds::of(1, gib, gib, memory, PORTION_BYTES);
            assert_eq!(bounds.map(|bounds| bounds.values), Some(values));
        }
    }
}

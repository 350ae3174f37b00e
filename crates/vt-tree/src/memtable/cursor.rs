//! A cursor over a memtable. It presents points and range tombstones as one ascending sequence of
//! disjoint items, as of one sequence number.
//!
//! The cursor copies a batch of items under the read lock and moves on the copy. A batch has *all*
//! items of one key range `[lo, hi)`, and the next batch begins at the key where it ends. So
//! concurrent writes do not disturb the cursor.
//!
//! A range tombstone is cut around newer points, and appears as several tombstones between them.
//! Older points under it are skipped, a whole leaf at a time if the leaf has nothing newer. The
//! work under the lock is bounded: a tombstone that takes longer to cut is divided in two, which is
//! equivalent.

use super::arena::Place;
use super::batch::Batch;
use super::tree::Pos;
use super::versions::{Stamp, Version};
use super::{Memtable, MemtableState};
use crate::key::successor;
use crate::source::Holding;
use crate::{ItemRef, Result, Seq, Source};
use std::borrow::Cow;
use std::sync::Arc;

/// The number of items in the first batch after a seek unless more are expected, and the maximum
/// for any batch. The number doubles from batch to batch.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 128;
/// Maximum number of tree leaves, and of tombstone fragments per leaf, that are visited in one
/// batch under the lock.
const LEAVES_MAX: usize = if cfg!(test) { 2 } else { 256 };
const FRAGMENTS_PER_LEAF: usize = if cfg!(test) { 2 } else { 32 };

/// A cursor over the items of a memtable. See [`Source`].
pub struct MemtableCursor {
    memtable: Arc<Memtable>,
    at: Seq,
    /// All items of the key range `[lo, hi)`.
    batch: Batch,
    lo: Vec<u8>,
    /// The upper bound of the batch, or `None` if there is none.
    hi: Option<Vec<u8>>,
    /// The index of the current item in `batch`, or `None` beyond either end or if not positioned.
    here: Option<usize>,
    /// The number of items in the next batch.
    size: usize,
    /// The number of items in the first batch after a seek.
    first_size: usize,
    /// The exclusive upper bound of the keys that are read, or `None` if there is none.
    end: Option<Vec<u8>>,
}

/// A walk over the points of a memtable, as of one sequence number.
struct Walk {
    at: Seq,
    /// The next point, or `None` after the last one.
    point: Option<Pos>,
    /// The remaining amount of work under the lock. A leaf counts as [`FRAGMENTS_PER_LEAF`].
    work: usize,
}

impl Walk {
    /// Moves from `here` to the next point.
    #[inline]
    fn pass(&mut self, state: &MemtableState, here: Pos) {
        self.point = state.tree.next(here);
        if self.point.is_none_or(|next| next.leaf != here.leaf) {
            self.work = self.work.saturating_sub(FRAGMENTS_PER_LEAF);
        }
    }
}

/// Returns `true` if `key` is below `end`. An `end` of `None` means no upper bound.
#[inline]
fn is_below(key: &[u8], end: Option<&[u8]>) -> bool {
    end.is_none_or(|end| key < end)
}

impl MemtableState {
    /// Returns the start of the item that covers `key` if that item begins before `key`, and `key`
    /// otherwise. No item crosses the result.
    fn item_start(&self, key: &[u8], at: Seq) -> Vec<u8> {
        let Some((start, fragment)) = self.fragments.covering(key) else { return key.to_vec() };
        let Some(tombstone) = fragment.visible(at) else { return key.to_vec() };
        let mut pos = self.tree.seek_before(&self.arena, Some(key));
        for _ in 0..LEAVES_MAX {
            let Some(p) = pos else { return start.to_vec() };
            if self.tree.leaf_newest(p) < tombstone.seq {
                let first = self.arena.get(self.tree.leaf_first(&self.arena, p));
                if first < &start[..] {
                    return start.to_vec();
                }
                pos = self.tree.prev_leaf(p);
                continue;
            }
            let mut here = p;
            loop {
                let k = self.arena.get(self.tree.key(&self.arena, here));
                if k < &start[..] {
                    return start.to_vec();
                }
                if self.tree.version(&self.arena, here, at).is_some_and(|v| v.stamp() > tombstone) {
                    return successor(k);
                }
                pos = self.tree.prev(here);
                match pos {
                    Some(before) if before.leaf == p.leaf => here = before,
                    _ => break,
                }
            }
        }
        // The work limit is reached: cut the tombstone at this key, which it covers.
        let Some(p) = pos else { return start.to_vec() };
        let k = successor(self.arena.get(self.tree.key(&self.arena, p)));
        if k[..] < start[..] { start.to_vec() } else { k }
    }

    /// Adds the items of `[lo, hi)` to `out` until it has `size` items. No item may cross `lo`.
    /// Returns the key at which it stopped.
    fn items(
        &self,
        lo: &[u8],
        hi: Option<&[u8]>,
        at: Seq,
        size: usize,
        out: &mut Batch,
    ) -> Option<Vec<u8>> {
        let point = self.tree.seek(&self.arena, lo);
        let mut walk = Walk { at, point, work: LEAVES_MAX * FRAGMENTS_PER_LEAF };
        let mut fragments = self.fragments.from(lo).peekable();
        // Invariant: all items below `reached` have been added.
        let mut reached = Cow::Borrowed(lo);
        loop {
            // Add the points before the next tombstone.
            let edge = fragments.peek().map(|(s, _)| &s[..]).filter(|s| is_below(s, hi)).or(hi);
            if let Some(stopped) = self.points(&mut walk, edge, size, out) {
                return Some(stopped.to_vec());
            }
            let Some((start, fragment)) = fragments.next() else { return hi.map(<[u8]>::to_vec) };
            if !is_below(start, hi) {
                return hi.map(<[u8]>::to_vec);
            }
            let Some(tombstone) = fragment.visible(at) else {
                // The tombstone is not visible: the points under it are added with those before the
                // next one.
                if walk.work == 0 && reached[..] < start[..] {
                    return Some(start.to_vec());
                }
                walk.work = walk.work.saturating_sub(1);
                continue;
            };
            let end = &fragment.end;
            if reached[..] < start[..] {
                reached = Cow::Owned(start.to_vec());
            }
            let edge = hi.map_or(&end[..], |h| h.min(&end[..]));
            // Add the parts of the tombstone between newer points.
            loop {
                if out.len() >= size || walk.work == 0 {
                    return Some(reached.into_owned());
                }
                let (stop, newer) = self.newer_point(&mut walk, tombstone, edge);
                if &reached[..] < stop {
                    out.range(&reached, stop, tombstone.seq);
                    reached = Cow::Owned(stop.to_vec());
                }
                let (Some((place, v)), Some(p)) = (newer, walk.point) else {
                    if stop == edge {
                        break;
                    }
                    continue;
                };
                out.point(self, self.arena.get(place), v.seq, v.value);
                reached = Cow::Owned(successor(self.arena.get(place)));
                walk.point = self.tree.next(p);
            }
        }
    }

    /// Adds the points before `edge` to `out`. Stops early if there are `size` items or the work
    /// limit is reached, and then returns the key at which it stopped.
    #[inline]
    fn points(
        &self,
        walk: &mut Walk,
        edge: Option<&[u8]>,
        size: usize,
        out: &mut Batch,
    ) -> Option<&[u8]> {
        while let Some(p) = walk.point {
            self.tree.passing(&self.arena, p);
            let (key, version) = self.tree.entry(&self.arena, p, walk.at);
            if !is_below(key, edge) {
                break;
            }
            if out.len() >= size || walk.work == 0 {
                return Some(key);
            }
            if let Some(v) = version {
                out.point(self, key, v.seq, v.value);
            }
            walk.pass(self, p);
        }
        None
    }

    /// Moves to the first point before `edge` that is newer than the tombstone. Returns the key up
    /// to which the tombstone hides everything, and the point if there is one. Without a point, the
    /// key is `edge`, or the key at which the work limit was reached.
    #[inline]
    fn newer_point<'a>(
        &'a self,
        walk: &mut Walk,
        tombstone: Stamp,
        edge: &'a [u8],
    ) -> (&'a [u8], Option<(Place, Version)>) {
        while let Some(p) = walk.point {
            let place = self.tree.key(&self.arena, p);
            let key = self.arena.get(place);
            if key >= edge {
                break;
            }
            if walk.work == 0 {
                return (key, None);
            }
            if self.tree.leaf_newest(p) < tombstone.seq {
                // The whole leaf is older than the tombstone: skip it. If this leads beyond the
                // edge, go back to the first key at or after the edge.
                walk.point = self.tree.next_leaf(p);
                walk.work = walk.work.saturating_sub(FRAGMENTS_PER_LEAF);
                let first = |n| self.arena.get(self.tree.leaf_first(&self.arena, n));
                if walk.point.is_none_or(|n| first(n) > edge) {
                    walk.point = self.tree.seek(&self.arena, edge);
                }
                continue;
            }
            let version = self.tree.version(&self.arena, p, walk.at);
            if let Some(v) = version.filter(|v| v.stamp() > tombstone) {
                return (key, Some((place, v)));
            }
            walk.pass(self, p);
        }
        (edge, None)
    }

    /// Returns the start of a range of about `size` items that ends before `hi`.
    fn span_before(&self, hi: Option<&[u8]>, at: Seq, size: usize) -> Vec<u8> {
        let mut point = self.tree.seek_before(&self.arena, hi);
        for _ in 1..size {
            let Some(p) = point else { break };
            point = self.tree.prev(p);
        }
        let fragment = self.fragments.before(hi).nth(size / 2).map(|(start, _)| &start[..]);
        let point = point.map(|p| self.arena.get(self.tree.key(&self.arena, p)));
        // Use the nearer of the two, or the smallest key if there is neither.
        match point.max(fragment) {
            Some(lo) => self.item_start(lo, at),
            None => Vec::new(),
        }
    }
}

impl MemtableCursor {
    pub(super) fn new(memtable: Arc<Memtable>, at: Seq) -> MemtableCursor {
        MemtableCursor {
            memtable,
            at,
            batch: Batch::default(),
            lo: Vec::new(),
            hi: None,
            here: None,
            size: BATCH_MIN,
            first_size: BATCH_MIN,
            end: None,
        }
    }

    /// Reads the memtable as if it had nothing at or after `end`.
    pub(crate) fn end_at(&mut self, end: &[u8]) {
        self.end = Some(end.to_vec());
    }

    /// Makes each following seek copy about this many items in its first batch.
    pub(crate) fn will_visit(&mut self, items: usize) {
        self.first_size = items.clamp(BATCH_MIN, BATCH_MAX);
    }

    fn grow(&mut self) {
        self.size = (self.size * 2).min(BATCH_MAX);
    }

    /// Moves to the first item at or after `lo`. No item may cross `lo`.
    fn forward(&mut self, mut lo: Vec<u8>) {
        loop {
            self.batch.begin(self.size);
            let s = self.memtable.state.read();
            let hi = s.items(&lo, self.end.as_deref(), self.at, self.size, &mut self.batch);
            drop(s);
            self.batch.seal();
            self.grow();
            self.here = (!self.batch.is_empty()).then_some(0);
            match hi.filter(|hi| self.end.as_ref().is_none_or(|end| hi < end)) {
                Some(hi) if self.batch.is_empty() => lo = hi,
                hi => {
                    (self.lo, self.hi) = (lo, hi);
                    return;
                }
            }
        }
    }

    /// Moves to the last item before `hi`. No item may cross `hi`.
    fn backward(&mut self, mut hi: Option<Vec<u8>>) {
        loop {
            self.batch.begin(self.size);
            let s = self.memtable.state.read();
            let lo = s.span_before(hi.as_deref(), self.at, self.size);
            let mut from = lo.clone();
            // One round suffices, unless the work limit is reached because a tombstone hides many
            // points.
            while let Some(stop) =
                s.items(&from, hi.as_deref(), self.at, usize::MAX, &mut self.batch)
            {
                if hi.as_deref() == Some(&stop[..]) {
                    break;
                }
                from = stop;
            }
            drop(s);
            self.batch.seal();
            self.grow();
            self.here = self.batch.len().checked_sub(1);
            if !self.batch.is_empty() || lo.is_empty() {
                (self.lo, self.hi) = (lo, hi);
                return;
            }
            hi = Some(lo);
        }
    }
}

impl Source for MemtableCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.size = self.first_size;
        let lo = self.memtable.state.read().item_start(key, self.at);
        self.forward(lo);
        while self.item().is_some_and(|i| i.ends_before(key)) {
            self.next()?;
        }
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.seek(key)?;
        match self.item() {
            None => self.last(),
            Some(i) if i.key < key => Ok(()),
            Some(_) => self.prev(),
        }
    }

    fn first(&mut self) -> Result<()> {
        self.size = self.first_size;
        self.forward(Vec::new());
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.size = self.first_size;
        self.backward(self.end.clone());
        Ok(())
    }

    #[inline]
    fn item(&self) -> Option<ItemRef<'_>> {
        self.batch.item(self.here?)
    }

    fn next(&mut self) -> Result<()> {
        match self.here {
            None => {}
            Some(i) if i + 1 < self.batch.len() => self.here = Some(i + 1),
            Some(_) => match self.hi.take() {
                Some(hi) => self.forward(hi),
                None => self.here = None,
            },
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        match self.here {
            None => {}
            Some(0) if self.lo.is_empty() => self.here = None,
            Some(0) => {
                let lo = std::mem::take(&mut self.lo);
                self.backward(Some(lo));
            }
            Some(i) => self.here = Some(i - 1),
        }
        Ok(())
    }
}

impl Holding for MemtableCursor {
    #[inline]
    fn here(&self) -> Option<usize> {
        self.here
    }

    #[inline]
    fn held(&self) -> usize {
        self.batch.len()
    }

    #[inline]
    fn held_item(&self, i: usize) -> Option<ItemRef<'_>> {
        self.batch.item(i)
    }

    #[inline]
    fn stand_on(&mut self, i: usize) {
        self.here = Some(i);
    }
}

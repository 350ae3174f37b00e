//! A cursor on a memtable: points and range tombstones as one ascending sequence of disjoint items,
//! as of one sequence number.
//!
//! The cursor copies a batch of items under the read lock and walks on the copy. Its batch is *all*
//! items of one span of keys `[lo, hi)`, and the next batch begins where the span ends, by key; so
//! it does not matter what was written in between.
//!
//! A range tombstone is cut around newer points and shows as pieces between them; points under it
//! that are older are passed, a whole leaf at a time where the leaf holds nothing newer. The work
//! under the lock is bounded: where a piece would be longer than the bound allows it is cut in two,
//! which says the same.

use super::batch::Batch;
use super::tree::Pos;
use super::{Memtable, MemtableState};
use crate::{ItemRef, Result, Seq, Source};
use std::sync::Arc;

/// Items in the first batch after a seek, and in the longest; in between they double.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 128;
/// What may be looked at under the lock in one go: tree leaves, and for a batch the fragments of
/// range tombstones too.
const LEAVES_MAX: usize = if cfg!(test) { 2 } else { 256 };
const FRAGMENTS_PER_LEAF: usize = if cfg!(test) { 2 } else { 32 };

/// A position on the items of a memtable, see `Source`.
pub struct MemtableCursor {
    memtable: Arc<Memtable>,
    at: Seq,
    /// All items in `[lo, hi)`.
    batch: Batch,
    lo: Vec<u8>,
    /// `None`: no end.
    hi: Option<Vec<u8>>,
    /// Index into `batch`; `None`: beyond either end or not positioned.
    here: Option<usize>,
    /// Items in the next batch.
    size: usize,
}

/// The first key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut k = Vec::with_capacity(key.len() + 1);
    k.extend_from_slice(key);
    k.push(0);
    k
}

impl MemtableState {
    /// The start of the item that covers `key` if one begins before it and reaches over it, `key`
    /// otherwise: no item crosses the result.
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
        // Enough looked at: cut here, at a key that the tombstone covers.
        let Some(p) = pos else { return start.to_vec() };
        let k = successor(self.arena.get(self.tree.key(&self.arena, p)));
        if k[..] < start[..] { start.to_vec() } else { k }
    }

    /// Adds the items of `[lo, hi)` to `out`, until there are `size`; no item may cross `lo`.
    /// Returns where it stopped.
    fn items(
        &self,
        lo: &[u8],
        hi: Option<&[u8]>,
        at: Seq,
        size: usize,
        out: &mut Batch,
    ) -> Option<Vec<u8>> {
        let mut point = self.tree.seek(&self.arena, lo);
        let mut fragments = self.fragments.from(lo).peekable();
        // Everything below `reached` is done.
        let mut reached = lo.to_vec();
        let mut work = LEAVES_MAX * FRAGMENTS_PER_LEAF;
        let leaf_work = |here: Pos, next: Option<Pos>| {
            if next.is_some_and(|n| n.leaf == here.leaf) { 0 } else { FRAGMENTS_PER_LEAF }
        };
        let below = |key: &[u8], hi: Option<&[u8]>| hi.is_none_or(|h| key < h);
        loop {
            // Points up to the next tombstone.
            let edge = fragments.peek().map(|(s, _)| &s[..]).filter(|s| below(s, hi)).or(hi);
            while let Some(p) = point {
                self.tree.passing(&self.arena, p);
                let place = self.tree.key(&self.arena, p);
                let key = self.arena.get(place);
                if !below(key, edge) {
                    break;
                }
                if out.len() >= size || work == 0 {
                    return Some(key.to_vec());
                }
                if let Some(v) = self.tree.version(&self.arena, p, at) {
                    out.point(self, place, v.seq, v.value);
                }
                point = self.tree.next(p);
                work = work.saturating_sub(leaf_work(p, point));
            }
            let Some((start, fragment)) = fragments.next() else { return hi.map(<[u8]>::to_vec) };
            if !below(start, hi) {
                return hi.map(<[u8]>::to_vec);
            }
            let Some(tombstone) = fragment.visible(at) else {
                // The points under it are those before the next one.
                if work == 0 && reached[..] < start[..] {
                    return Some(start.to_vec());
                }
                work = work.saturating_sub(1);
                continue;
            };
            let end = &fragment.end;
            if reached[..] < start[..] {
                reached = start.to_vec();
            }
            let edge = hi.map_or(&end[..], |h| h.min(&end[..]));
            // The tombstone in pieces, around the newer points.
            loop {
                if out.len() >= size || work == 0 {
                    return Some(reached);
                }
                let mut stop = edge;
                let mut newer = None;
                while let Some(p) = point {
                    let place = self.tree.key(&self.arena, p);
                    let key = self.arena.get(place);
                    if key >= edge {
                        break;
                    }
                    if work == 0 {
                        stop = key;
                        break;
                    }
                    if self.tree.leaf_newest(p) < tombstone.seq {
                        // All of this leaf is older. Of the keys that are beyond the edge, go back
                        // to the first.
                        point = self.tree.next_leaf(p);
                        work = work.saturating_sub(FRAGMENTS_PER_LEAF);
                        if point.is_none_or(|n| {
                            self.arena.get(self.tree.leaf_first(&self.arena, n)) > edge
                        }) {
                            point = self.tree.seek(&self.arena, edge);
                        }
                        continue;
                    }
                    if let Some(v) =
                        self.tree.version(&self.arena, p, at).filter(|v| v.stamp() > tombstone)
                    {
                        stop = key;
                        newer = Some((place, v));
                        break;
                    }
                    point = self.tree.next(p);
                    work = work.saturating_sub(leaf_work(p, point));
                }
                if &reached[..] < stop {
                    out.range(&reached, stop, tombstone.seq);
                    reached = stop.to_vec();
                }
                let (Some((place, v)), Some(p)) = (newer, point) else {
                    if stop == edge {
                        break;
                    }
                    continue;
                };
                out.point(self, place, v.seq, v.value);
                reached = successor(self.arena.get(place));
                point = self.tree.next(p);
            }
        }
    }

    /// Where a span of about `size` items that ends before `hi` begins.
    fn span_before(&self, hi: Option<&[u8]>, at: Seq, size: usize) -> Vec<u8> {
        let mut point = self.tree.seek_before(&self.arena, hi);
        for _ in 1..size {
            let Some(p) = point else { break };
            point = self.tree.prev(p);
        }
        let fragment = self.fragments.before(hi).nth(size / 2).map(|(start, _)| &start[..]);
        let point = point.map(|p| self.arena.get(self.tree.key(&self.arena, p)));
        // The nearer of the two; none is as far away as can be.
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
        }
    }

    fn grow(&mut self) {
        self.size = (self.size * 2).min(BATCH_MAX);
    }

    /// To the first item from `lo` on, which no item crosses.
    fn forward(&mut self, mut lo: Vec<u8>) {
        loop {
            self.batch.clear();
            let s = self.memtable.state.read();
            let hi = s.items(&lo, None, self.at, self.size, &mut self.batch);
            drop(s);
            self.batch.seal();
            self.grow();
            self.here = (!self.batch.is_empty()).then_some(0);
            match hi {
                Some(hi) if self.batch.is_empty() => lo = hi,
                hi => {
                    (self.lo, self.hi) = (lo, hi);
                    return;
                }
            }
        }
    }

    /// To the last item before `hi`, which no item crosses.
    fn backward(&mut self, mut hi: Option<Vec<u8>>) {
        loop {
            self.batch.clear();
            let s = self.memtable.state.read();
            let lo = s.span_before(hi.as_deref(), self.at, self.size);
            let mut from = lo.clone();
            // The span is short, except where its points hide under a tombstone: then it takes
            // several rounds.
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
        self.size = BATCH_MIN;
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
        self.size = BATCH_MIN;
        self.forward(Vec::new());
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.size = BATCH_MIN;
        self.backward(None);
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

//! Visits the tuples next to the current one that one source holds in memory, without moving the
//! whole cursor for each tuple.

use std::ops::{ControlFlow, Range};

use super::{Direction, SourceCursor, TreeCursor};
use crate::item::{BodyRef, ItemRef};
use crate::source::Holding;
use crate::value::ValueRef;

impl TreeCursor {
    /// Calls `visit` with the tuples that follow the current one in the direction of the last move.
    /// Stops at a tuple that is not in memory next to the previous one, at an item of another
    /// source, at a value that is not small, or when `visit` breaks. So there may be no tuple to
    /// visit. The last visited tuple is then the current one. After [`TreeCursor::advance`] only
    /// tuples below `bound` are visited, where an empty `bound` is the end; after
    /// [`TreeCursor::retreat`] only tuples at or after `bound` are visited.
    pub fn visit_near<B>(
        &mut self,
        bound: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        // The result of an update is kept until the next step, so do not visit anything after it.
        let stands = self.handed && self.updated.is_none();
        let Some((&front, others)) = self.order.split_first().filter(|_| stands) else {
            return ControlFlow::Continue(());
        };
        let other = others.first().map(|&other| &self.sources[other as usize]);
        let source = &self.sources[front as usize];
        let forward = self.direction == Direction::Forward;
        let near = if forward {
            let other = other.and_then(SourceCursor::key);
            source.near(forward, |key| {
                other.is_none_or(|other| key < other) && (bound.is_empty() || key < bound)
            })
        } else {
            let other = other.and_then(SourceCursor::item);
            source.near(forward, |key| {
                key >= bound && other.is_none_or(|other| other.ends_before(key))
            })
        };
        match &mut self.sources[front as usize] {
            SourceCursor::Memtable(c) => visit_held(&mut **c, forward, near, visit),
            SourceCursor::Run(c) => visit_held(&mut **c, forward, near, visit),
        }
    }
}

impl SourceCursor {
    fn near(&self, forward: bool, is_within: impl Fn(&[u8]) -> bool) -> Range<usize> {
        match self {
            SourceCursor::Memtable(c) => near(&**c, forward, is_within),
            SourceCursor::Run(c) => near(&**c, forward, is_within),
        }
    }
}

/// Returns the items in memory that follow the current item, up to the first item whose key is not
/// within a bound. No later item is within the bound. Usually either all items are within the
/// bound, or not even the first one.
fn near(cursor: &impl Holding, forward: bool, is_within: impl Fn(&[u8]) -> bool) -> Range<usize> {
    let is_within = |i: usize| cursor.held_item(i).is_some_and(|item| is_within(item.key));
    let Some(here) = cursor.here() else { return 0..0 };
    if forward {
        let (first, mut end) = (here + 1, cursor.held());
        if first >= end || !is_within(first) {
            return first..first;
        }
        if is_within(end - 1) {
            return first..end;
        }
        let mut start = first;
        while start < end {
            let middle = (start + end) / 2;
            if is_within(middle) { start = middle + 1 } else { end = middle }
        }
        return first..start;
    }
    if here == 0 || !is_within(here - 1) {
        return here..here;
    }
    if is_within(0) {
        return 0..here;
    }
    let (mut start, mut end) = (0, here);
    while start < end {
        let middle = (start + end) / 2;
        if is_within(middle) { end = middle } else { start = middle + 1 }
    }
    start..here
}

/// Calls `visit` with the items of `near` until an item is not a small value or `visit` breaks. The
/// last visited item is then the current item.
fn visit_held<B>(
    cursor: &mut impl Holding,
    forward: bool,
    near: Range<usize>,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
) -> ControlFlow<B> {
    for step in 0..near.len() {
        let i = if forward { near.start + step } else { near.end - 1 - step };
        let Some(ItemRef { key, body: BodyRef::Put(ValueRef::Inline(value, _)), .. }) =
            cursor.held_item(i)
        else {
            break;
        };
        let shown = visit(key, value);
        cursor.stand_on(i);
        shown?;
    }
    ControlFlow::Continue(())
}

//! The difference of two states of a tree, in time proportional to the difference and not to the
//! tree.
//!
//! Runs share blocks and whole subtrees. Both sides are walked together in key order. A pointer
//! that both sides have leads to the same bytes and is skipped without being read. Any other
//! pointer is opened, one level at a time. Then only items of memtables remain, and items of blocks
//! that only one side has. Their keys are looked up on both sides; for a range tombstone, the range
//! is read on both sides. An item that both sides have cannot be skipped: a merge may have moved
//! it, but it may also have been written again on one side, above an item that hides it on the
//! other side.
//!
//! Equal pointers must be found together. The walk proceeds in the order of lower fences, with
//! higher levels first. So when the walk reaches a pointer, everything above it on the other side
//! has been opened or is shared.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::cache::BlockCache;
use crate::cursor::{TreeCursor, TreeTuple};
use crate::filter::hash;
use crate::index::entry::Entry;
use crate::index::index_node::ChildPointer;
use crate::input::{Input, KeyRange};
use crate::item::{Body, Item, Lookup, Seq};
use crate::memtable::{Memtable, MemtableCursor};
use crate::source::Source;
use crate::value::Value;

/// A key that has different values on the two sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The key that has changed.
    pub key: Bytes,
    /// The value before the change, or `None` if the key did not exist.
    pub before: Option<Value>,
    /// The value after the change, or `None` if the key no longer exists.
    pub after: Option<Value>,
}

/// The remaining items of one source.
enum RemainingItems {
    /// The items of a block, in descending order.
    Block(Vec<Item>),
    Memtable(Box<MemtableCursor>),
}

impl RemainingItems {
    fn next(&mut self) -> Result<Option<Item>> {
        match self {
            RemainingItems::Block(items) => Ok(items.pop()),
            RemainingItems::Memtable(cursor) => {
                let item = cursor.item().map(|i| i.to_item());
                cursor.next()?;
                Ok(item)
            }
        }
    }
}

enum PendingElement {
    /// An unopened block (level 0) or index node.
    Subtree(Box<Entry>, u16),
    /// An item, and the items that follow it.
    Item(Item, RemainingItems),
}

/// An element of one side that has not been compared yet, with its lower bound.
struct Pending {
    key: Bytes,
    side: usize,
    content: PendingElement,
}

impl Pending {
    /// Sorts subtrees before items, and higher subtrees before lower ones. Equal subtrees become
    /// neighbours.
    fn rank(&self) -> (u16, u64, u32, usize) {
        match &self.content {
            PendingElement::Subtree(e, level) => {
                (u16::MAX - 1 - level, e.at.addr, e.at.crc, self.side)
            }
            PendingElement::Item(..) => (u16::MAX, 0, 0, self.side),
        }
    }

    fn is_same(&self, other: &Pending) -> bool {
        match (&self.content, &other.content) {
            (PendingElement::Subtree(a, x), PendingElement::Subtree(b, y)) => {
                self.side != other.side && x == y && a.at == b.at && a.high == b.high
            }
            _ => false,
        }
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Pending) -> Ordering {
        self.key.cmp(&other.key).then_with(|| self.rank().cmp(&other.rank()))
    }
}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Pending) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Pending) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pending {}

/// Compares ranges tuple by tuple.
struct RangeComparison {
    /// The end of the range that is being compared, or of the last compared range.
    end: Bytes,
    /// The cursors of the two sides. They stay at the end of each range and continue from there, so
    /// that many adjacent tombstones take one walk.
    cursors: [TreeCursor; 2],
    /// The next tuple of each side in the range.
    heads: [Option<TreeTuple>; 2],
    /// `true` while a range is being compared.
    under_way: bool,
}

/// One state of a tree: its memtables and runs, newest first, with the sequence number as of which
/// each memtable is read.
pub type Side = Vec<(Input, Seq)>;

/// An iterator over the changes from one state of a tree to another, in key order.
pub struct Difference {
    cache: Arc<BlockCache>,
    sides: [Side; 2],
    pending: BinaryHeap<Reverse<Pending>>,
    /// The key below which all keys have been compared.
    done: Bytes,
    /// The first key that is not compared, or `None` if the comparison has no end.
    end: Option<Bytes>,
    range: Option<RangeComparison>,
    opened: u64,
}

/// Returns whether the other side has the same memtable and sees the same content in it.
fn is_shared(memtable: &Arc<Memtable>, at: Seq, others: &Side) -> bool {
    let same = |(input, other): &(Input, Seq)| match input {
        Input::Memtable(m) => {
            Arc::ptr_eq(m, memtable) && (*other == at || m.max_seq() <= at.min(*other))
        }
        Input::Run(_) => false,
    };
    others.iter().any(same)
}

impl Difference {
    /// Begins a comparison of the states `before` and `after`.
    pub fn new(cache: &Arc<BlockCache>, before: Side, after: Side) -> Result<Difference> {
        Difference::between(cache, before, after, &KeyRange::all())
    }

    /// Begins a comparison of the states `before` and `after` in `range`. Nothing outside of the
    /// range is read.
    pub fn between(
        cache: &Arc<BlockCache>,
        before: Side,
        after: Side,
        range: &KeyRange,
    ) -> Result<Difference> {
        let mut pending = BinaryHeap::new();
        let sides = [before, after];
        for (side, inputs) in sides.iter().enumerate() {
            for (input, at) in inputs {
                match input {
                    Input::Memtable(m) if m.is_empty() || is_shared(m, *at, &sides[1 - side]) => {}
                    Input::Memtable(m) => {
                        let mut cursor = m.cursor(*at);
                        cursor.seek(&range.start)?;
                        push(&mut pending, side, RemainingItems::Memtable(Box::new(cursor)))?;
                    }
                    Input::Run(run) => {
                        let (root, level) = run.root();
                        let content = PendingElement::Subtree(Box::new(root.clone()), level);
                        pending.push(Reverse(Pending { key: root.low.clone(), side, content }));
                    }
                }
            }
        }
        Ok(Difference {
            cache: cache.clone(),
            sides,
            pending,
            done: range.start.clone(),
            end: range.end.clone(),
            range: None,
            opened: 0,
        })
    }

    /// Returns the number of blocks and index nodes that were opened so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Returns the next change, or `None` at the end. After an error the iterator must be dropped.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<KeyChange>> {
        loop {
            if self.range.as_ref().is_some_and(|range| range.under_way) {
                match self.next_in_range()? {
                    Some(change) => return Ok(Some(change)),
                    None => continue,
                }
            }
            let Some(Reverse(first)) = self.pending.pop() else { return Ok(None) };
            // All other elements begin at this key or later.
            if self.end.as_ref().is_some_and(|end| first.key >= end) {
                self.pending.clear();
                return Ok(None);
            }
            match first.content {
                PendingElement::Subtree(entry, level) => {
                    let first = Pending { content: PendingElement::Subtree(entry, level), ..first };
                    if self.pending.peek().is_some_and(|Reverse(next)| next.is_same(&first)) {
                        self.pending.pop();
                    } else if let PendingElement::Subtree(entry, level) = first.content
                        && entry.high > self.done
                    {
                        self.open(&entry, level, first.side)?;
                    }
                }
                PendingElement::Item(item, rest) => {
                    if let Some(change) = self.item(first.side, item, rest)? {
                        return Ok(Some(change));
                    }
                }
            }
        }
    }

    fn open(&mut self, entry: &Entry, level: u16, side: usize) -> Result<()> {
        self.opened += 1;
        if level > 0 {
            for e in self.cache.node(entry, level)?.entries {
                let key = e.low.clone();
                self.pending.push(Reverse(Pending {
                    key,
                    side,
                    content: PendingElement::Subtree(Box::new(e), level - 1),
                }));
            }
            return Ok(());
        }
        // Read the block through the cache, because keys that differ are looked up again at once.
        let block = self.cache.block(ChildPointer::of(entry))?;
        let mut items = Vec::new();
        for interval in 0..block.intervals() {
            items.extend(block.interval(interval)?);
        }
        items.reverse();
        push(&mut self.pending, side, RemainingItems::Block(items))
    }

    /// Compares the key of `item`, together with all other pending items at this key.
    fn item(&mut self, side: usize, item: Item, rest: RemainingItems) -> Result<Option<KeyChange>> {
        push(&mut self.pending, side, rest)?;
        let key = item.key.clone();
        let mut here = [Vec::new(), Vec::new()];
        here[side].push(item.body);
        while let Some(Reverse(next)) = self.pending.peek()
            && next.key == key
        {
            // Subtrees that begin at this key have already been opened.
            let Some(Reverse(Pending { side, content: PendingElement::Item(item, rest), .. })) =
                self.pending.pop()
            else {
                break;
            };
            here[side].push(item.body);
            push(&mut self.pending, side, rest)?;
        }
        let ends = here
            .iter()
            .flatten()
            .filter_map(|body| if let Body::DeleteRange { end } = body { Some(end) } else { None });
        if let Some(end) = ends.max().filter(|end| **end > self.done) {
            self.begin_range(key, end.clone())?;
            return Ok(None);
        }
        if key < self.done {
            return Ok(None);
        }
        let (before, after) = (self.lookup(0, &key)?, self.lookup(1, &key)?);
        Ok(self.is_change(&before, &after)?.then_some(KeyChange { key, before, after }))
    }

    fn begin_range(&mut self, start: Bytes, end: Bytes) -> Result<()> {
        let start = start.max(self.done.clone());
        let end = self.end.iter().fold(end, |end, last| end.min(last.clone()));
        let (cache, [a, b]) = (&self.cache, &self.sides);
        let range = self.range.get_or_insert_with(|| RangeComparison {
            end: Bytes::new(),
            cursors: [a, b].map(|side| TreeCursor::as_of(cache, side.iter().cloned())),
            heads: [None, None],
            under_way: false,
        });
        for (cursor, head) in range.cursors.iter_mut().zip(&mut range.heads) {
            if start != range.end {
                cursor.seek(&start);
            }
            *head = cursor.next_below(&end)?;
        }
        (range.end, range.under_way) = (end, true);
        Ok(())
    }

    fn next_in_range(&mut self) -> Result<Option<KeyChange>> {
        loop {
            let Some(range) = &mut self.range else { return Ok(None) };
            let Some(key) = range.heads.iter().flatten().map(|t| t.key.clone()).min() else {
                self.done = range.end.clone();
                range.under_way = false;
                return Ok(None);
            };
            let mut values = [None, None];
            for ((cursor, head), value) in
                range.cursors.iter_mut().zip(&mut range.heads).zip(&mut values)
            {
                if let Some(tuple) = head.take_if(|t| t.key == key) {
                    *value = Some(tuple.value);
                    *head = cursor.next_below(&range.end)?;
                }
            }
            let [before, after] = values;
            if self.is_change(&before, &after)? {
                return Ok(Some(KeyChange { key, before, after }));
            }
        }
    }

    /// Returns the value of a key on one side.
    fn lookup(&self, side: usize, key: &[u8]) -> Result<Option<Value>> {
        let hash = hash(key);
        let mut all = Lookup::Absent;
        for (input, at) in &self.sides[side] {
            all = all.over(match input {
                Input::Memtable(m) => m.get(key, *at),
                Input::Run(run) => run.get(key, hash)?,
            });
            if all.is_final() {
                break;
            }
        }
        self.cache.resolve(all)
    }

    /// Returns whether the values differ. Values at the same address are equal. Other values are
    /// read if their lengths are equal.
    fn is_change(&self, before: &Option<Value>, after: &Option<Value>) -> Result<bool> {
        let (Some(a), Some(b)) = (before, after) else {
            return Ok(before.is_some() || after.is_some());
        };
        if a == b || a.len() != b.len() {
            return Ok(a != b);
        }
        match (a, b) {
            (Value::Inline(_), Value::Inline(_)) => Ok(true),
            _ => Ok(self.cache.read_value(a)? != self.cache.read_value(b)?),
        }
    }
}

fn push(
    pending: &mut BinaryHeap<Reverse<Pending>>,
    side: usize,
    mut items: RemainingItems,
) -> Result<()> {
    if let Some(item) = items.next()? {
        pending.push(Reverse(Pending {
            key: item.key.clone(),
            side,
            content: PendingElement::Item(item, items),
        }));
    }
    Ok(())
}

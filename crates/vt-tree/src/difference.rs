//! What two states of a tree differ in, in a time that follows the difference and not what there
//! is.
//!
//! Runs share blocks and whole subtrees. Both sides are walked together in the order of keys: a
//! pointer that both have leads to the same bytes and is passed by, unread; any other is opened,
//! one level at a time. What is left are the items of blocks that one side alone has, and of
//! memtables. Their keys are looked up on both sides; where one is a range tombstone, its range is
//! read on both. That both sides have an item alike does not say that a merge has only moved it: on
//! one side it may have been put again above what hides it on the other.
//!
//! A pointer of one level can only meet its like: the walk goes by the lower fence, higher levels
//! first, so when a pointer comes up, everything above the same place on the other side has been
//! opened or was shared.

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
use crate::input::Input;
use crate::item::{Body, Item, Lookup, Seq};
use crate::memtable::{Memtable, MemtableCursor};
use crate::source::Source;
use crate::value::Value;

/// A key that the two sides have different values for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub key: Bytes,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// Where the items of one source lie.
enum Items {
    /// Of a block, the next one last.
    Block(Vec<Item>),
    Memtable(Box<MemtableCursor>),
}

impl Items {
    fn next(&mut self) -> Result<Option<Item>> {
        match self {
            Items::Block(items) => Ok(items.pop()),
            Items::Memtable(cursor) => {
                let item = cursor.item().map(|i| i.to_item());
                cursor.next()?;
                Ok(item)
            }
        }
    }
}

enum Content {
    /// An unopened block (level 0) or node.
    Subtree(Box<Entry>, u16),
    /// An item, and what comes behind it.
    Item(Item, Items),
}

/// Something that begins at a key, on one side.
struct Pending {
    key: Bytes,
    side: usize,
    content: Content,
}

impl Pending {
    /// Subtrees first, the higher ones first; those that are the same stand together.
    fn rank(&self) -> (u16, u64, u32, usize) {
        match &self.content {
            Content::Subtree(e, level) => (u16::MAX - 1 - level, e.at.addr, e.at.crc, self.side),
            Content::Item(..) => (u16::MAX, 0, 0, self.side),
        }
    }

    fn is_same(&self, other: &Pending) -> bool {
        match (&self.content, &other.content) {
            (Content::Subtree(a, x), Content::Subtree(b, y)) => {
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

/// A range that is compared tuple by tuple.
struct RangeComparison {
    end: Bytes,
    cursors: [TreeCursor; 2],
    /// The next tuple of each side inside the range.
    heads: [Option<TreeTuple>; 2],
}

/// What one source has of a side, each memtable as of a sequence number of its own; newest first.
pub type Side = Vec<(Input, Seq)>;

/// The changes from one state to another, in the order of their keys.
pub struct Difference {
    cache: Arc<BlockCache>,
    sides: [Side; 2],
    pending: BinaryHeap<Reverse<Pending>>,
    /// Everything before this key was compared.
    done: Bytes,
    range: Option<RangeComparison>,
    opened: u64,
}

/// Both sides have the same in the memtable.
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
    pub fn new(cache: &Arc<BlockCache>, before: Side, after: Side) -> Result<Difference> {
        let mut pending = BinaryHeap::new();
        let sides = [before, after];
        for (side, inputs) in sides.iter().enumerate() {
            for (input, at) in inputs {
                match input {
                    Input::Memtable(m) if m.is_empty() || is_shared(m, *at, &sides[1 - side]) => {}
                    Input::Memtable(m) => {
                        let mut cursor = m.cursor(*at);
                        cursor.first()?;
                        push(&mut pending, side, Items::Memtable(Box::new(cursor)))?;
                    }
                    Input::Run(run) => {
                        let (root, level) = run.root();
                        let content = Content::Subtree(Box::new(root.clone()), level);
                        pending.push(Reverse(Pending { key: root.low.clone(), side, content }));
                    }
                }
            }
        }
        Ok(Difference {
            cache: cache.clone(),
            sides,
            pending,
            done: Bytes::new(),
            range: None,
            opened: 0,
        })
    }

    /// Blocks and index nodes that were opened to find out.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// The next change; `None` at the end. After an error there is nothing more to be had.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<KeyChange>> {
        loop {
            if self.range.is_some() {
                match self.next_in_range()? {
                    Some(change) => return Ok(Some(change)),
                    None => continue,
                }
            }
            let Some(Reverse(first)) = self.pending.pop() else { return Ok(None) };
            match first.content {
                Content::Subtree(entry, level) => {
                    let first = Pending { content: Content::Subtree(entry, level), ..first };
                    if self.pending.peek().is_some_and(|Reverse(next)| next.is_same(&first)) {
                        self.pending.pop();
                    } else if let Content::Subtree(entry, level) = first.content
                        && entry.high > self.done
                    {
                        self.open(&entry, level, first.side)?;
                    }
                }
                Content::Item(item, rest) => {
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
                    content: Content::Subtree(Box::new(e), level - 1),
                }));
            }
            return Ok(());
        }
        // Through the cache: what is different is looked up again at once.
        let block = self.cache.block(ChildPointer::of(entry))?;
        let mut items = Vec::new();
        for interval in 0..block.intervals() {
            items.extend(block.interval(interval)?);
        }
        items.reverse();
        push(&mut self.pending, side, Items::Block(items))
    }

    /// All items at the key of the one that comes first.
    fn item(&mut self, side: usize, item: Item, rest: Items) -> Result<Option<KeyChange>> {
        push(&mut self.pending, side, rest)?;
        let key = item.key.clone();
        let mut here = [Vec::new(), Vec::new()];
        here[side].push(item.body);
        while let Some(Reverse(next)) = self.pending.peek()
            && next.key == key
        {
            // Subtrees that begin here were opened before.
            let Some(Reverse(Pending { side, content: Content::Item(item, rest), .. })) =
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
        let (before, after) = (lookup(&self.sides[0], &key)?, lookup(&self.sides[1], &key)?);
        Ok(self.is_change(&before, &after)?.then_some(KeyChange { key, before, after }))
    }

    fn begin_range(&mut self, start: Bytes, end: Bytes) -> Result<()> {
        let start = start.max(self.done.clone());
        let [a, b] = &self.sides;
        let mut cursors =
            [TreeCursor::as_of(a.iter().cloned()), TreeCursor::as_of(b.iter().cloned())];
        let mut heads = [None, None];
        for (cursor, head) in cursors.iter_mut().zip(&mut heads) {
            cursor.seek(&start);
            *head = cursor.next()?.filter(|t| t.key < end);
        }
        self.range = Some(RangeComparison { end, cursors, heads });
        Ok(())
    }

    fn next_in_range(&mut self) -> Result<Option<KeyChange>> {
        loop {
            let Some(range) = &mut self.range else { return Ok(None) };
            let Some(key) = range.heads.iter().flatten().map(|t| t.key.clone()).min() else {
                self.done = range.end.clone();
                self.range = None;
                return Ok(None);
            };
            let mut values = [None, None];
            for ((cursor, head), value) in
                range.cursors.iter_mut().zip(&mut range.heads).zip(&mut values)
            {
                if let Some(tuple) = head.take_if(|t| t.key == key) {
                    *value = Some(tuple.value);
                    *head = cursor.next()?.filter(|t| t.key < range.end);
                }
            }
            let [before, after] = values;
            if self.is_change(&before, &after)? {
                return Ok(Some(KeyChange { key, before, after }));
            }
        }
    }

    /// Values in one place are the same; others are read when their lengths are.
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

fn push(pending: &mut BinaryHeap<Reverse<Pending>>, side: usize, mut items: Items) -> Result<()> {
    if let Some(item) = items.next()? {
        pending.push(Reverse(Pending {
            key: item.key.clone(),
            side,
            content: Content::Item(item, items),
        }));
    }
    Ok(())
}

/// The value of a key on one side.
fn lookup(side: &Side, key: &[u8]) -> Result<Option<Value>> {
    let hash = hash(key);
    for (input, at) in side {
        let found = match input {
            Input::Memtable(m) => m.get(key, *at),
            Input::Run(run) => run.get(key, hash)?,
        };
        match found {
            Lookup::Absent => {}
            Lookup::Deleted(_) => return Ok(None),
            Lookup::Found(_, value) => return Ok(Some(value)),
        }
    }
    Ok(None)
}

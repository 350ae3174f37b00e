//! The position of a merge in one input: at an item, or before a block or subtree that is not
//! opened yet and may never have to be.

use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::block::Block;
use crate::block::restart_interval::RestartInterval;
use crate::cache::outside;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;
use crate::index::node::Node;
use crate::item::{BodyRef, Item, ItemRef};
use crate::memtable::{Memtable, MemtableCursor};
use crate::run::Run;
use crate::source::Source;

use super::read_ahead::MergeReadAhead;

/// The element of an input at the position of its cursor.
pub(crate) enum Element<'a> {
    Item(ItemRef<'a>),
    /// An unopened tuple block (level 0) or index node.
    Subtree(&'a Entry, u16),
}

struct OpenNode {
    node: Arc<Node>,
    at: usize,
    /// The filter of the node, if the node is a leaf index node.
    filter: Option<FramePointer>,
}

struct OpenTupleBlock {
    block: Arc<Block>,
    /// An upper bound of the keys in the block.
    high: Bytes,
    addr: u64,
    /// The next restart interval to decode.
    interval: usize,
    /// The items of the last decoded restart interval, and the index of the current one.
    items: RestartInterval,
    at: usize,
}

enum MergeSource {
    Run {
        run: Arc<Run>,
        /// True if the cursor is before the root, which has not been opened.
        root: bool,
        path: Vec<OpenNode>,
        block: Option<OpenTupleBlock>,
        ahead: MergeReadAhead,
    },
    Memtable(MemtableCursor),
}

pub(crate) struct MergeCursor {
    source: MergeSource,
    /// The rest of the current item, a range tombstone that was cut. It replaces the item.
    cut: Option<Item>,
    /// Bytes of tuple blocks that were read.
    pub blocks_read: u64,
    /// Bytes of data that were skipped without being read.
    pub pruned: u64,
}

impl MergeCursor {
    pub fn run(run: Arc<Run>) -> Self {
        MergeCursor {
            source: MergeSource::Run {
                run,
                root: true,
                path: Vec::new(),
                block: None,
                ahead: MergeReadAhead::default(),
            },
            cut: None,
            blocks_read: 0,
            pruned: 0,
        }
    }

    pub fn memtable(memtable: &Arc<Memtable>) -> Result<Self> {
        let mut cursor = memtable.cursor(u64::MAX);
        cursor.first()?;
        Ok(MergeCursor {
            source: MergeSource::Memtable(cursor),
            cut: None,
            blocks_read: 0,
            pruned: 0,
        })
    }

    /// Returns the current item. Returns `None` before an unopened block or subtree, and at the end
    /// of the input.
    #[inline(always)]
    fn item(&self) -> Option<ItemRef<'_>> {
        match (&self.cut, &self.source) {
            (Some(cut), _) => Some(cut.borrow()),
            (None, MergeSource::Memtable(cursor)) => cursor.item(),
            (None, MergeSource::Run { block, .. }) => {
                block.as_ref().and_then(|open| open.items.item(open.at))
            }
        }
    }

    /// Returns the current element, or `None` at the end of the input.
    #[inline(always)]
    pub fn element(&self) -> Option<Element<'_>> {
        if let Some(item) = self.item() {
            return Some(Element::Item(item));
        }
        match &self.source {
            MergeSource::Memtable(_) => None,
            MergeSource::Run { run, root: true, .. } => {
                Some(Element::Subtree(run.root().0, run.root().1))
            }
            MergeSource::Run { path, .. } => {
                let step = path.last()?;
                step.node.entries.get(step.at).map(|e| Element::Subtree(e, step.node.level - 1))
            }
        }
    }

    /// Returns whether the cursor is before a whole run whose root is not opened yet.
    pub fn at_root(&self) -> bool {
        matches!(self.source, MergeSource::Run { root: true, .. })
    }

    /// Returns the lower bound of the current element, or `None` at the end of the input.
    pub fn low(&self) -> Option<&[u8]> {
        self.element().map(|p| match p {
            Element::Item(i) => i.key,
            Element::Subtree(e, _) => e.low.as_ref(),
        })
    }

    /// Returns the entries of the current block and of those after it in the same leaf index node,
    /// and the filter of that node.
    pub fn blocks(&self) -> Option<(&[Entry], Option<FramePointer>)> {
        match &self.source {
            MergeSource::Run { root: false, path, block: None, .. } => {
                let step = path.last().filter(|s| s.node.level == 1)?;
                Some((&step.node.entries[step.at..], step.filter))
            }
            _ => None,
        }
    }

    /// Returns whether the run has entries after the current index node.
    pub fn goes_on(&self) -> bool {
        match &self.source {
            MergeSource::Run { path, .. } => {
                path.iter().rev().skip(1).any(|s| s.at + 1 < s.node.entries.len())
            }
            _ => false,
        }
    }

    /// Opens the current block or node.
    pub fn descend(&mut self) -> Result<()> {
        let MergeSource::Run { run, root, path, block, ahead } = &mut self.source else {
            return Ok(());
        };
        if block.is_some() {
            return Ok(());
        }
        let (entry, level) = if *root {
            run.root()
        } else {
            let Some(e) =
                path.last().and_then(|s| s.node.entries.get(s.at).map(|e| (e, s.node.level - 1)))
            else {
                return Ok(());
            };
            e
        };
        *root = false;
        if level == 0 {
            self.blocks_read += u64::from(entry.at.len);
            if let Some(step) = path.last() {
                ahead.opens(run.cache(), &step.node.entries[step.at..]);
            }
            let (opened, high) = (run.cache().block_beneath(entry)?, entry.high.clone());
            *block = Some(OpenTupleBlock {
                block: opened,
                high,
                addr: entry.at.addr,
                interval: 0,
                items: RestartInterval::default(),
                at: 0,
            });
            self.next_item()
        } else {
            let (node, filter) = (Arc::new(run.cache().node(entry, level)?), entry.filter);
            path.push(OpenNode { node, at: 0, filter });
            self.settle();
            Ok(())
        }
    }

    /// Moves to the next item of the open block, or leaves the block.
    #[inline]
    fn next_item(&mut self) -> Result<()> {
        self.cut = None;
        let MergeSource::Run { block: Some(open), .. } = &mut self.source else { return Ok(()) };
        open.at += 1;
        if open.at < open.items.len() { Ok(()) } else { self.next_interval() }
    }

    fn next_interval(&mut self) -> Result<()> {
        let MergeSource::Run { block, .. } = &mut self.source else { return Ok(()) };
        let Some(open) = block else { return Ok(()) };
        while open.interval < open.block.intervals() {
            open.block.interval_into(open.interval, &mut open.items)?;
            open.interval += 1;
            let last = open.items.len().checked_sub(1).and_then(|last| open.items.item(last));
            if last.is_some_and(|last| !last.ends_before(&open.high)) {
                return Err(outside(open.addr));
            }
            open.at = 0;
            if !open.items.is_empty() {
                return Ok(());
            }
        }
        *block = None;
        self.next_entry();
        Ok(())
    }

    fn next_entry(&mut self) {
        if let MergeSource::Run { path, root, .. } = &mut self.source {
            if *root {
                // The whole run was stitched or skipped without opening its root.
                *root = false;
            } else if let Some(step) = path.last_mut() {
                step.at += 1;
            }
        }
        self.settle();
    }

    /// Leaves all nodes whose entries are exhausted.
    fn settle(&mut self) {
        if let MergeSource::Run { path, .. } = &mut self.source {
            while path.last().is_some_and(|s| s.at >= s.node.entries.len()) {
                path.pop();
                if let Some(above) = path.last_mut() {
                    above.at += 1;
                }
            }
        }
    }

    /// Moves past the current element.
    pub fn advance(&mut self) -> Result<()> {
        match &mut self.source {
            MergeSource::Memtable(cursor) => {
                self.cut = None;
                cursor.next()
            }
            MergeSource::Run { block: Some(_), .. } => self.next_item(),
            MergeSource::Run { ahead, .. } => {
                ahead.passes();
                self.next_entry();
                Ok(())
            }
        }
    }

    /// Moves past `count` block entries of the current leaf index node.
    pub fn advance_blocks(&mut self, count: usize) {
        if let MergeSource::Run { path, ahead, .. } = &mut self.source
            && let Some(step) = path.last_mut()
        {
            ahead.passes();
            step.at += count;
        }
        self.settle();
    }

    /// Cuts the current item, a range tombstone, so that the rest of it begins at `key`.
    pub fn cut_range(&mut self, key: &[u8]) {
        self.cut = self.item().map(|i| Item { key: Bytes::copy_from_slice(key), ..i.to_item() });
    }

    /// Skips everything below `key`. Elements wholly below `key` are not read; a range tombstone
    /// that contains `key` is cut.
    pub fn skip_to(&mut self, key: &[u8]) -> Result<()> {
        let behind = self.item().is_some_and(|i| i.ends_before(key));
        if let MergeSource::Memtable(cursor) = &mut self.source
            && behind
        {
            self.cut = None;
            cursor.seek(key)?;
        }
        loop {
            let (ends, begins, bytes) = match self.element() {
                None => return Ok(()),
                Some(Element::Item(i)) => (i.ends_before(key), i.key < key, 0),
                Some(Element::Subtree(e, _)) => {
                    (e.high.as_ref() <= key, e.low.as_ref() < key, e.data_bytes())
                }
            };
            if ends {
                self.pruned += bytes;
                self.advance()?;
            } else if !begins {
                return Ok(());
            } else {
                match self.item().map(|i| i.body) {
                    Some(BodyRef::DeleteRange { .. }) => self.cut_range(key),
                    // This cannot happen: a point below `key` has ended before `key`, which is
                    // checked above.
                    Some(_) => return Ok(()),
                    None => self.descend()?,
                }
            }
        }
    }
}

//! Reads the readable parts of a damaged run: its items in order and, between them, the key ranges
//! whose block or index node cannot be read. No data is trusted: data outside the fences above it
//! is ignored, so that a damaged tree cannot yield a key twice or be walked forever.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::block::Block;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;
use crate::index::node::Node;
use crate::item::{Body, Item};
use crate::key::successor;
use crate::run::Run;

/// An element returned by [`SalvageCursor`]: an item or a gap.
#[derive(Clone, Debug)]
pub enum Salvaged {
    /// An item.
    Item(Item),
    /// A gap: the keys in `[start, end)` cannot be read.
    Gap {
        /// The first key of the gap.
        start: Bytes,
        /// The first key after the gap.
        end: Bytes,
        /// The reason why the keys cannot be read.
        what: String,
    },
}

/// A cache for a limited number of nodes and blocks, so that many short walks do not read the same
/// ones again.
#[derive(Default)]
pub struct SalvageCache {
    nodes: HashMap<FramePointer, Arc<Node>>,
    blocks: HashMap<FramePointer, Arc<Block>>,
}

impl SalvageCache {
    const NODES: usize = 64;
    const BLOCKS: usize = 32;

    fn node(&mut self, run: &Run, at: FramePointer, level: u16) -> Result<Arc<Node>> {
        if let Some(node) = self.nodes.get(&at).filter(|node| node.level == level) {
            return Ok(node.clone());
        }
        let node = Arc::new(run.cache().read_node(at, level)?);
        if self.nodes.len() >= SalvageCache::NODES {
            self.nodes.clear();
        }
        self.nodes.insert(at, node.clone());
        Ok(node)
    }

    fn block(&mut self, run: &Run, at: FramePointer) -> Result<Arc<Block>> {
        if let Some(block) = self.blocks.get(&at) {
            return Ok(block.clone());
        }
        let block = run.cache().block_once(at)?;
        if self.blocks.len() >= SalvageCache::BLOCKS {
            self.blocks.clear();
        }
        self.blocks.insert(at, block.clone());
        Ok(block)
    }
}

/// An open node: its next entry, and the fences that its entries must respect.
struct SalvageNode {
    node: Arc<Node>,
    next: usize,
    low: Bytes,
    high: Bytes,
}

/// A cursor over the items and gaps of a damaged run, which are disjoint and ascend by key.
pub struct SalvageCursor {
    run: Arc<Run>,
    /// True if the root has not been opened yet.
    root: bool,
    path: Vec<SalvageNode>,
    /// Items and gaps of the open block, in descending order.
    ready: Vec<Salvaged>,
    from: Bytes,
}

impl SalvageCursor {
    /// Creates a cursor over the items and gaps that end above `from`.
    pub fn new(run: &Arc<Run>, from: &[u8]) -> SalvageCursor {
        let from = Bytes::copy_from_slice(from);
        SalvageCursor { run: run.clone(), root: true, path: Vec::new(), ready: Vec::new(), from }
    }

    /// Returns the next item or gap, or `None` at the end.
    pub fn next(&mut self, recent: &mut SalvageCache) -> Option<Salvaged> {
        loop {
            if let Some(piece) = self.ready.pop() {
                return Some(piece);
            }
            let run = self.run.clone();
            if std::mem::take(&mut self.root) {
                let (root, level) = run.root();
                self.open(root, level, recent);
                continue;
            }
            let step = self.path.last_mut()?;
            let Some(entry) = step.node.entries.get(step.next) else {
                self.path.pop();
                continue;
            };
            step.next += 1;
            // Entries ascend and are disjoint. An entry outside the fences of its node does not
            // belong to the tree.
            if entry.low < step.low || entry.high > step.high {
                continue;
            }
            let (entry, level) = (entry.clone(), step.node.level - 1);
            self.open(&entry, level, recent);
        }
    }

    fn open(&mut self, entry: &Entry, level: u16, recent: &mut SalvageCache) {
        if entry.high <= self.from {
            return;
        }
        let opened =
            if level == 0 { self.block(entry, recent) } else { self.node(entry, level, recent) };
        if let Err(e) = opened {
            self.ready = vec![Salvaged::Gap {
                start: entry.low.clone(),
                end: entry.high.clone(),
                what: e.to_string(),
            }];
        }
    }

    fn node(&mut self, entry: &Entry, level: u16, recent: &mut SalvageCache) -> Result<()> {
        let node = recent.node(&self.run, entry.at, level)?;
        let next = node.position(&self.from);
        self.path.push(SalvageNode {
            node,
            next,
            low: entry.low.clone(),
            high: entry.high.clone(),
        });
        Ok(())
    }

    fn block(&mut self, entry: &Entry, recent: &mut SalvageCache) -> Result<()> {
        let block = recent.block(&self.run, entry.at)?;
        let mut end = entry.low.clone();
        for interval in block.interval_of(&self.from)?..block.intervals() {
            let items = match block.interval(interval) {
                Ok(items) => items,
                Err(e) => {
                    if end < entry.high {
                        self.ready.push(Salvaged::Gap {
                            start: end,
                            end: entry.high.clone(),
                            what: e.to_string(),
                        });
                    }
                    break;
                }
            };
            for item in items {
                let next = match &item.body {
                    Body::DeleteRange { end } => end.clone(),
                    _ => Bytes::from(successor(&item.key)),
                };
                if item.key < end || next <= item.key || next > entry.high {
                    continue;
                }
                if next > self.from {
                    self.ready.push(Salvaged::Item(item));
                }
                end = next;
            }
        }
        self.ready.reverse();
        Ok(())
    }
}

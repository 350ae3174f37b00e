//! Stitching: adds blocks and whole subtrees to the run by their index entries.

use super::leaf_filter::BorrowedFilter;
use super::{BLOCK_SIZE, LEAF_ITEMS, NODE_SIZE, RunBuilder};
use crate::Result;
use crate::filter::hash;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;

/// Returns the keys of a block that has one or two items, which are known from its fences. They can
/// be added to the filter without reading the block or another filter. Otherwise, where each tuple
/// fills a block, as a page of a file does, merges would read every block that they stitch.
fn keys_of(block: &Entry) -> Option<impl Iterator<Item = &[u8]>> {
    let (first, last) = (&block.low[..], block.high.strip_suffix(&[0])?);
    let known = !block.range_tombstones
        && match block.items {
            1 => first == last,
            2 => first < last,
            _ => false,
        };
    known.then(|| std::iter::once(first).chain((block.items == 2).then_some(last)))
}

impl RunBuilder {
    /// Returns whether a subtree of `level` may be appended: closing the open nodes below that
    /// level leaves none of them nearly empty.
    pub fn takes_subtree(&self, level: u16, entry: &Entry) -> bool {
        if (entry.at.len as usize) < NODE_SIZE / 4 {
            return self.is_empty();
        }
        // Each node that would be closed early must be well filled, or empty with nothing open
        // below it.
        let mut below = !self.block.builder.is_empty() || !self.window.is_empty();
        for l in 0..usize::from(level) {
            // A level that is not open yet would be opened for the node closed below it, and be
            // closed with only that entry.
            let (size, items) = self.open.get(l).map_or((0, 0), |node| (node.size, node.filtered));
            if (below || size > 0) && size < NODE_SIZE / 4 && (l > 0 || items < LEAF_ITEMS / 4) {
                return false;
            }
            below |= size > 0;
        }
        true
    }

    /// Returns whether a span of stitched blocks that begins with this one may be appended: the
    /// block is not too small, and the open block that would be closed before it is not nearly
    /// empty.
    pub fn takes_block(&self, entry: &Entry) -> bool {
        let open = &self.block;
        // A compressed block contains more data than its size suggests.
        let least = if entry.compressed { BLOCK_SIZE / 16 } else { BLOCK_SIZE / 4 };
        let closes = open.builder.is_empty()
            || open.builder.size() >= BLOCK_SIZE / 4
            || open.ends_before(&entry.low);
        entry.at.len as usize >= least && closes
    }

    /// Appends a whole subtree by its entry. `level` is the level of the node that `entry` points
    /// to.
    pub fn push_subtree(&mut self, level: u16, entry: Entry) -> Result<()> {
        self.end_window()?;
        self.close_block()?;
        // Closing a level may open the one above, which must be closed as well: no node may have
        // entries both before and after the subtree.
        let mut l = 0;
        while l < self.open.len().min(usize::from(level)) {
            self.close_node(l)?;
            l += 1;
        }
        self.stats.stitched += entry.data_bytes();
        self.stats.stitches += 1;
        self.push_entry(usize::from(level), entry)
    }

    /// Appends tuple blocks by their entries, which all come from the leaf index node with this
    /// filter.
    pub fn push_blocks(&mut self, entries: &[Entry], filter: Option<FramePointer>) -> Result<()> {
        self.end_window()?;
        self.close_block()?;
        for e in entries {
            if e.unfiltered {
                // The keys of this block are in no filter.
            } else if let Some(keys) = keys_of(e) {
                self.hashes.extend(keys.map(hash));
            } else if let Some(filter) = filter {
                let source = match self.borrowed.iter().position(|b| b.filter == filter) {
                    Some(at) => &mut self.borrowed[at],
                    None => {
                        self.borrowed.push(BorrowedFilter { filter, taken: 0, blocks: Vec::new() });
                        // The index is valid, since the source was just pushed.
                        let last = self.borrowed.len() - 1;
                        &mut self.borrowed[last]
                    }
                };
                source.taken += e.items;
                source.blocks.push(e.at);
            }
            self.stats.stitched += e.data_bytes();
            self.stats.stitches += 1;
            self.push_entry(0, e.clone())?;
        }
        Ok(())
    }
}

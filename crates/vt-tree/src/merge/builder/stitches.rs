//! What stays where it is: blocks and whole subtrees join the run by their pointers.

use super::leaf_filter::BorrowedFilter;
use super::{BLOCK_SIZE, LEAF_ITEMS, NODE_SIZE, RunBuilder};
use crate::Result;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;

impl RunBuilder {
    /// `true` when closing the open nodes below `level` leaves none nearly empty, so that a subtree
    /// of that level may follow.
    pub fn takes_subtree(&self, level: u16, entry: &Entry) -> bool {
        if (entry.at.len as usize) < NODE_SIZE / 4 {
            return self.is_empty();
        }
        // Each node that would be closed early must be empty, with nothing below it, or well filled
        // already.
        let mut below = !self.block.builder.is_empty() || !self.window.is_empty();
        for l in 0..usize::from(level) {
            // A level that is not open yet would be opened for what closes below it, and closed
            // with that one entry.
            let (size, items) = self.open.get(l).map_or((0, 0), |node| (node.size, node.filtered));
            if (below || size > 0) && size < NODE_SIZE / 4 && (l > 0 || items < LEAF_ITEMS / 4) {
                return false;
            }
            below |= size > 0;
        }
        true
    }

    /// `true` when a span of stitched blocks that begins with this one may follow without leaving a
    /// nearly empty block behind.
    pub fn takes_block(&self, entry: &Entry) -> bool {
        let open = &self.block;
        // A compressed one held more than it takes.
        let least = if entry.compressed { BLOCK_SIZE / 16 } else { BLOCK_SIZE / 4 };
        let closes = open.builder.is_empty()
            || open.builder.size() >= BLOCK_SIZE / 4
            || open.ends_before(&entry.low);
        entry.at.len as usize >= least && closes
    }

    /// Appends a whole subtree by its pointer. `level` is that of the node it points to.
    pub fn push_subtree(&mut self, level: u16, entry: Entry) -> Result<()> {
        self.end_window()?;
        self.close_block()?;
        // Closing a level may open the one above, which must be closed as well: what comes before
        // the subtree lies below no node that also has keys behind it.
        let mut l = 0;
        while l < self.open.len().min(usize::from(level)) {
            self.close_node(l)?;
            l += 1;
        }
        self.stats.stitched += entry.data_bytes();
        self.stats.stitches += 1;
        self.push_entry(usize::from(level), entry)
    }

    /// Appends tuple blocks by their pointers; all come from the leaf index node whose filter is
    /// given.
    pub fn push_blocks(&mut self, entries: &[Entry], filter: Option<FramePointer>) -> Result<()> {
        self.end_window()?;
        self.close_block()?;
        for e in entries {
            if let Some(filter) = filter.filter(|_| !e.unfiltered) {
                let source = match self.borrowed.iter().position(|b| b.filter == filter) {
                    Some(at) => &mut self.borrowed[at],
                    None => {
                        self.borrowed.push(BorrowedFilter { filter, taken: 0, blocks: Vec::new() });
                        // Just pushed, so there is a last one.
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

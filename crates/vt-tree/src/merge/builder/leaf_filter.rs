//! Builds the filter of a leaf index node from the keys that were written, and from the filters of
//! the nodes whose blocks were stitched.

use super::{RunBuilder, place_frame};
use crate::Result;
use crate::block::restart_interval::RestartInterval;
use crate::filter::{FilterBuilder, hash};
use crate::index::frame::{FrameKind, FramePointer};
use crate::index::node::NodeBuilder;
use crate::item::BodyRef;

/// The filter of another leaf index node some of whose blocks were stitched into the open leaf. It
/// contains the keys of these blocks.
pub(super) struct BorrowedFilter {
    pub filter: FramePointer,
    /// The number of items in the stitched blocks.
    pub taken: u64,
    pub blocks: Vec<FramePointer>,
}

impl RunBuilder {
    /// Writes the filter of the open leaf, which has the keys that were written and the
    /// fingerprints of the borrowed filters.
    pub(super) fn close_filter(&mut self, leaf: &NodeBuilder) -> Result<Option<FramePointer>> {
        let mut builder = FilterBuilder::new(self.false_positives.max(1));
        for h in self.hashes.drain(..) {
            builder.add(h);
        }
        // A borrowed filter also has keys of blocks that were not stitched or no longer exist. If
        // these keys would outnumber the leaf's own, the stitched blocks are read for their keys
        // instead.
        let mut borrowed = Vec::new();
        let mut stale = 0;
        for b in std::mem::take(&mut self.borrowed) {
            let filter = self.cache.filter(b.filter)?;
            stale += (filter.len() as u64).saturating_sub(b.taken);
            borrowed.push((b, filter));
        }
        for (b, filter) in borrowed {
            if stale <= leaf.filtered || b.taken * 2 >= filter.len() as u64 {
                builder.add_all(&filter);
                continue;
            }
            for at in b.blocks {
                self.stats.blocks_read += u64::from(at.len);
                let block = self.cache.block_once(at)?;
                let mut interval = RestartInterval::default();
                for g in 0..block.intervals() {
                    block.interval_into(g, &mut interval)?;
                    for i in (0..interval.len()).filter_map(|i| interval.item(i)) {
                        if !matches!(i.body, BodyRef::DeleteRange { .. }) {
                            builder.add(hash(i.key));
                        }
                    }
                }
            }
        }
        if builder.is_empty() {
            return Ok(None);
        }
        let at = place_frame(&mut self.index, FrameKind::Filter, 0, 0, &builder.finish())?;
        self.stats.index_written += u64::from(at.len);
        Ok(Some(at))
    }
}

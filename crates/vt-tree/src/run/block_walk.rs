//! Walks over the index of a run without reading its tuple blocks, to prepare later reads.

use std::sync::Arc;

use zones::Purpose;

use super::Run;
use crate::Result;
use crate::cache::BlockCache;
use crate::index::frame::FramePointer;

/// Iterates over the locations of the tuple blocks of a run, one leaf of the index at a time.
pub struct BlockWalk {
    run: Arc<Run>,
    /// The nodes that were not visited yet, with their levels. The next node is last.
    nodes: Vec<(FramePointer, u16)>,
    /// The filters of the leaves found so far, until they are taken.
    filters: Vec<(u64, u32)>,
}

impl BlockWalk {
    /// Creates a walk that begins with the first block.
    pub fn new(run: Arc<Run>) -> BlockWalk {
        let (root, level) = run.root();
        let nodes = vec![(root.at, level)];
        let filters = root.filter.iter().map(|at| (at.addr, at.len)).collect();
        BlockWalk { run, nodes, filters }
    }

    /// Returns the cache through which the run is read.
    pub fn cache(&self) -> &Arc<BlockCache> {
        self.run.cache()
    }

    /// Returns the addresses and lengths of the filters of leaves that were found since the last
    /// call. After the last leaf, all filters of the run have been returned.
    pub fn take_filters(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.filters)
    }

    /// Returns the addresses and lengths of the blocks of the next leaf, or `None` after the last
    /// leaf. Reads the nodes on the way, and announces their children to the device.
    pub fn next_leaf(&mut self) -> Result<Option<Vec<(u64, u32)>>> {
        while let Some((at, level)) = self.nodes.pop() {
            let cache = self.run.cache();
            let node = cache.index_node(at, level)?;
            let children = (0..node.len()).map(|i| node.child_pointer(i).at);
            if level <= 1 {
                return Ok(Some(children.map(|at| (at.addr, at.len)).collect()));
            }
            let filters = (0..node.len()).filter_map(|i| node.filter(i));
            self.filters.extend(filters.map(|at| (at.addr, at.len)));
            let before = self.nodes.len();
            self.nodes.extend(children.map(|at| (at, level - 1)));
            let mut places: Vec<_> =
                self.nodes[before..].iter().map(|(at, _)| (at.addr, u64::from(at.len))).collect();
            places.sort_unstable();
            let ranges = places.into_iter().map(|(addr, len)| (addr, addr.saturating_add(len)));
            cache.announce_sorted(Purpose::Index, ranges);
            self.nodes[before..].reverse();
        }
        Ok(None)
    }
}

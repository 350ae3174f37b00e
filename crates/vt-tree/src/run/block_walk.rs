//! Walks over the index of a run without reading any of its tuple blocks, to prepare later reads.

use std::sync::Arc;

use zones::Purpose;

use super::Run;
use crate::Result;
use crate::cache::BlockCache;
use crate::index::frame::FramePointer;

/// The places of the tuple blocks of a run, one leaf of the index after the other.
pub struct BlockWalk {
    run: Arc<Run>,
    /// The nodes that were not visited yet, with their levels; the next one last.
    nodes: Vec<(FramePointer, u16)>,
}

impl BlockWalk {
    /// Creates a walk that begins with the first block.
    pub fn new(run: Arc<Run>) -> BlockWalk {
        let (root, level) = run.root();
        let nodes = vec![(root.at, level)];
        BlockWalk { run, nodes }
    }

    /// Returns the cache by which the run is read.
    pub fn cache(&self) -> &Arc<BlockCache> {
        self.run.cache()
    }

    /// Returns the addresses and lengths of the blocks of the next leaf; `None` after the last one.
    /// Nodes on the way are read, and their children announced to the device.
    pub fn next_leaf(&mut self) -> Result<Option<Vec<(u64, u32)>>> {
        while let Some((at, level)) = self.nodes.pop() {
            let cache = self.run.cache();
            let node = cache.index_node(at, level)?;
            let children = (0..node.len()).map(|i| node.child_pointer(i).at);
            if level <= 1 {
                return Ok(Some(children.map(|at| (at.addr, at.len)).collect()));
            }
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

impl Run {
    /// Returns the bytes of the index, with its filters, or `None` if they are more than `most`. Of
    /// the index, no leaf is read.
    pub fn index_len(&self, most: u64) -> Result<Option<u64>> {
        let (root, level) = self.root();
        let mut nodes = vec![(root.at, level)];
        let mut bytes = u64::from(root.at.len) + root.filter.map_or(0, |at| u64::from(at.len));
        while let Some((at, level)) = nodes.pop().filter(|_| bytes <= most) {
            if level <= 1 {
                continue;
            }
            let node = self.cache().index_node(at, level)?;
            for i in 0..node.len() {
                let child = node.child_pointer(i).at;
                bytes += u64::from(child.len) + node.filter(i).map_or(0, |at| u64::from(at.len));
                nodes.push((child, level - 1));
            }
        }
        Ok(Some(bytes).filter(|bytes| *bytes <= most))
    }

    /// Reads the index: all nodes, and then all filters.
    pub fn read_index(&self) -> Result<()> {
        let (root, level) = self.root();
        let cache = self.cache();
        let mut nodes = vec![(root.at, level)];
        let mut filters: Vec<FramePointer> = root.filter.into_iter().collect();
        while let Some((at, level)) = nodes.pop() {
            let node = cache.index_node(at, level)?;
            if level <= 1 {
                continue;
            }
            for i in 0..node.len() {
                nodes.push((node.child_pointer(i).at, level - 1));
                filters.extend(node.filter(i));
            }
        }
        filters.into_iter().try_for_each(|at| cache.filter(at).map(drop))
    }
}

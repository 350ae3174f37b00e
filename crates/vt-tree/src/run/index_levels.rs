//! Reads the index of a run level by level, to bring it into a cache from which later reads are
//! fast. The nodes above the leaf index nodes are few. The leaf index nodes take hundreds of bytes
//! for each tuple block. The filters take most of the index if tuples are small.

use super::Run;
use crate::Result;
use crate::index::frame::FramePointer;

/// The locations of the leaf index nodes and the filters of a run.
pub struct IndexLeaves {
    nodes: Vec<FramePointer>,
    filters: Vec<FramePointer>,
}

impl IndexLeaves {
    /// Returns the bytes of the leaf index nodes.
    pub fn node_bytes(&self) -> u64 {
        bytes_of(&self.nodes)
    }

    /// Returns the bytes of the filters.
    pub fn filter_bytes(&self) -> u64 {
        bytes_of(&self.filters)
    }
}

fn bytes_of(frames: &[FramePointer]) -> u64 {
    frames.iter().map(|at| u64::from(at.len)).sum()
}

impl Run {
    /// Reads the nodes above the leaf index nodes, from the root down. Subtracts the bytes of each
    /// level from `room`. At the first level that is larger than the remaining `room`, stops and
    /// returns `None`.
    pub fn read_upper_index(&self, room: &mut u64) -> Result<Option<IndexLeaves>> {
        let (root, top) = self.root();
        let mut nodes = vec![root.at];
        let mut filters: Vec<FramePointer> = root.filter.into_iter().collect();
        for level in (2..=top).rev() {
            let Some(left) = room.checked_sub(bytes_of(&nodes)) else { return Ok(None) };
            *room = left;
            let mut below = Vec::new();
            for at in nodes {
                let node = self.cache().index_node(at, level)?;
                below.extend((0..node.len()).map(|i| node.child_pointer(i).at));
                filters.extend((0..node.len()).filter_map(|i| node.filter(i)));
            }
            nodes = below;
        }
        Ok(Some(IndexLeaves { nodes, filters }))
    }

    /// Reads the leaf index nodes.
    pub fn read_leaf_nodes(&self, leaves: &IndexLeaves) -> Result<()> {
        leaves.nodes.iter().try_for_each(|&at| self.cache().index_node(at, 1).map(drop))
    }

    /// Reads the filters.
    pub fn read_filters(&self, leaves: &IndexLeaves) -> Result<()> {
        leaves.filters.iter().try_for_each(|&at| self.cache().filter(at).map(drop))
    }
}

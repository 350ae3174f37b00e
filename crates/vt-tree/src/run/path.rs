//! The path from the root of a run to one tuple block, and on to its neighbours.

use std::sync::Arc;

use crate::Result;
use crate::block::Block;
use crate::index::index_node::{ChildPointer, IndexNode};
use crate::run::Run;

/// The index nodes from the root down, and the index of the entry chosen in each. The path is empty
/// if there is no position.
#[derive(Clone, Default)]
pub(crate) struct Path {
    steps: Vec<(Arc<IndexNode>, usize)>,
}

impl Path {
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Descends from the root to a block. `choose` selects an entry at every node. If it selects
    /// none, the path becomes empty.
    pub fn descend(
        &mut self,
        run: &Run,
        choose: impl Fn(&IndexNode) -> Option<usize>,
    ) -> Result<()> {
        self.clear();
        let mut node = run.top()?;
        loop {
            let Some(i) = choose(&node).filter(|&i| i < node.len()) else {
                self.clear();
                return Ok(());
            };
            let (child, level) = (node.child_pointer(i), node.level - 1);
            self.steps.push((node, i));
            if level == 0 {
                return Ok(());
            }
            let child = run.cache().index_node(child.at, level)?;
            if let Some((above, i)) = self.steps.last() {
                above.admit(*i, &child)?;
            }
            node = child;
        }
    }

    /// Checks that the current block is within the fences of its entry.
    pub fn admit(&self, block: &Block) -> Result<()> {
        self.steps.last().map_or(Ok(()), |(leaf, i)| leaf.admit_block(*i, block))
    }

    /// Returns the pointer to the current block.
    pub fn here(&self) -> Option<ChildPointer> {
        self.steps.last().map(|(node, i)| node.child_pointer(*i))
    }

    /// Moves to the neighbouring block. At the end of the run, returns `false` and leaves the path
    /// empty. Calls `entered` for each leaf index node that is entered, with its parent and its
    /// index there.
    pub fn move_to_neighbour(
        &mut self,
        run: &Run,
        forward: bool,
        mut entered: impl FnMut(&IndexNode, usize),
    ) -> Result<bool> {
        let neighbour = |node: &IndexNode, i: usize| {
            if forward { Some(i + 1).filter(|&n| n < node.len()) } else { i.checked_sub(1) }
        };
        loop {
            let Some((node, i)) = self.steps.last_mut() else { return Ok(false) };
            if let Some(n) = neighbour(node, *i) {
                *i = n;
                break;
            }
            self.steps.pop();
        }
        while let Some((node, i)) = self.steps.last().filter(|(node, _)| node.level > 1) {
            let (at, level) = (node.child_pointer(*i).at, node.level - 1);
            if level == 1 {
                entered(node, *i);
            }
            let child = run.cache().index_node(at, level)?;
            node.admit(*i, &child)?;
            let n = if forward { 0 } else { child.len().saturating_sub(1) };
            self.steps.push((child, n));
        }
        Ok(true)
    }
}

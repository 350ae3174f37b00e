//! The order in which the copies of a tree are numbered: depth first, with the children of a
//! directory together and in the order of their names, which is the order in which programs read a
//! tree. This module also reads the originals in that order, though they are stored in another one.
//!
//! Where both orders agree, the originals are read in stored order. Otherwise those of some
//! thousands of copies are read together in one pass over the original, and kept in memory until
//! their turn.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use kvdb::{DictionaryId, StoredTuple};

use crate::attr::{FileKind, Ino};
use crate::error::{Error, Result};
use crate::trees::tree::{Node, Numbered, Tree, for_each_of, for_each_until};

/// The most inodes whose tuples are read together, and the number at the start.
const MOST_TOGETHER: usize = 64 << 10;
const FIRST_TOGETHER: usize = 4096;
/// The maximum memory for tuples that were read together, in bytes. The limit is small in builds
/// with assertions, so that small trees reach it.
const MEMORY: usize = if cfg!(debug_assertions) { 16 << 10 } else { 8 << 20 };
/// Approximate memory of a tuple in addition to its key and value, in bytes.
const OVERHEAD: usize = 80;
/// Ascending originals are read in stored order if there are at least `LEAST_SEQUENCE` of them,
/// with at most `OTHERS` times as many others of the tree between them.
const LEAST_SEQUENCE: usize = 64;
const OTHERS: usize = 4;

/// The mapping between the inodes of a tree and their positions among the copies, which count from
/// 0.
pub(crate) struct TreeOrder {
    /// The index of the inode in [`Tree::inodes`], by position.
    inodes: Vec<u32>,
    /// The position, by that index.
    positions: Vec<u32>,
}

impl TreeOrder {
    pub fn of(tree: &Tree) -> Result<TreeOrder> {
        let count = tree.inodes.len();
        let (mut inodes, mut positions) = (Vec::with_capacity(count), vec![u32::MAX; count]);
        let mut place = |at: usize| {
            // An inode with several names has the position of the first of them.
            if positions[at] == u32::MAX {
                positions[at] = inodes.len() as u32;
                inodes.push(at as u32);
            }
        };
        let top = tree.inodes.iter().find(|node| node.parent == 0).map_or(0, |node| node.ino);
        place(find(&tree.inodes, top)?);
        let mut dirs = vec![top];
        while let Some(dir) = dirs.pop() {
            let at = tree.dirs.binary_search_by_key(&dir, |dir| dir.ino);
            let names = at.map_or(0..0, |at| tree.dirs[at].names.clone());
            let first = dirs.len();
            for name in &tree.names[names] {
                place(find(&tree.inodes, name.ino)?);
                // The kind in the entry counts: a directory has only one entry that names it as a
                // directory. In a damaged store other entries may have another kind, even within
                // the directory.
                if name.kind == FileKind::Dir {
                    dirs.push(name.ino);
                }
            }
            dirs[first..].reverse();
        }
        match inodes.len() == count {
            true => Ok(TreeOrder { inodes, positions }),
            false => Err(Error::Corrupt { ino: top, what: "a tree that is not one".into() }),
        }
    }

    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Returns the index of the inode at a position.
    pub fn at(&self, position: usize) -> usize {
        self.inodes[position] as usize
    }

    /// Returns the position of an inode of the tree.
    pub fn position_of(&self, tree: &Tree, ino: Ino) -> Result<usize> {
        find(&tree.inodes, ino).map(|at| self.positions[at] as usize)
    }

    /// Calls `visit` with the tuples of the inodes at these positions, by position and key.
    pub fn for_each(
        &self,
        view: &Arc<kvdb::View>,
        dict: DictionaryId,
        tree: &Tree,
        positions: Range<usize>,
        mut visit: impl FnMut(usize, StoredTuple<'_>) -> Result<()>,
    ) -> Result<()> {
        let (mut next, mut together) = (positions.start, FIRST_TOGETHER);
        while next < positions.end {
            let sequence = self.sequence(next..positions.end.min(next + MOST_TOGETHER));
            if !sequence.is_empty() || together == 1 {
                let end = sequence.end.max(next + 1);
                let nodes: Vec<Node> =
                    self.inodes[next..end].iter().map(|&at| tree.inodes[at as usize]).collect();
                for_each_of(view, dict, &nodes, |at, tuple| visit(next + at, tuple))?;
                (next, together) = (end, if sequence.is_empty() { 2 } else { together });
                continue;
            }
            let end = positions.end.min(next + together);
            let mut wanted: Vec<Wanted> = (next..end)
                .map(|position| Wanted { ino: tree.inodes[self.at(position)].ino, position })
                .collect();
            wanted.sort_unstable_by_key(|wanted| wanted.ino);
            let (mut read, mut memory) = (Vec::new(), 0);
            let done = for_each_until(view, dict, &wanted, |at, tuple| {
                memory += OVERHEAD + tuple.key.len() + tuple.small().map_or(0, <[u8]>::len);
                read.push((wanted[at].position, tuple.keep()));
                Ok(match memory > MEMORY {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            })?;
            if done.is_break() {
                // The number is halved, down to one inode, which is read in stored order.
                together = ((end - next) / 2).max(1);
                continue;
            }
            // The sort is stable: the tuples of one inode stay in the order of their keys.
            read.sort_by_key(|(position, _)| *position);
            for (position, tuple) in &read {
                visit(*position, tuple.tuple(view))?;
            }
            (next, together) = (end, (2 * together).min(MOST_TOGETHER));
        }
        Ok(())
    }

    /// Returns the longest range of ascending inodes from the first position on, or an empty range
    /// if they are too few or too scattered.
    fn sequence(&self, positions: Range<usize>) -> Range<usize> {
        let start = positions.start;
        let inodes = &self.inodes[positions];
        let len = inodes.windows(2).take_while(|pair| pair[0] < pair[1]).count() + 1;
        let span = (inodes[len - 1] - inodes[0]) as usize;
        let dense = span <= len * (OTHERS + 1);
        let whole = len == inodes.len() || len >= LEAST_SEQUENCE;
        if dense && whole { start..start + len } else { start..start }
    }
}

/// Returns the index of an inode of a tree.
fn find(inodes: &[Node], ino: Ino) -> Result<usize> {
    // Inode numbers often have no gaps.
    let guess = inodes.first().map_or(0, |first| ino.wrapping_sub(first.ino) as usize);
    match inodes.get(guess) {
        Some(node) if node.ino == ino => Ok(guess),
        _ => inodes.binary_search_by_key(&ino, |node| node.ino).map_err(|_| Error::Stale(ino)),
    }
}

/// An inode whose tuples are read before their turn.
struct Wanted {
    ino: Ino,
    position: usize,
}

impl Numbered for Wanted {
    fn ino(&self) -> Ino {
        self.ino
    }
}

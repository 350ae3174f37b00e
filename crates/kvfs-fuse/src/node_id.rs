//! The encoding of a [`NodeId`]: the number of a view, and an inode in the view.
//!
//! The kernel caches pages, names and attributes by these numbers, so two views never share
//! anything in its cache, even if they show the same file. The upper 16 bits contain the number of
//! the view. The number of the mainline is 0, so the kernel's numbers of its inodes are their own
//! numbers.
//!
//! Programs see the same number as `st_ino`, except in a view that is seen in place of the
//! mainline. In such a view they see the inode's own number; otherwise `git status` would consider
//! every file changed and read it again
//! ([095](../../../docs/decisions/095-inode-numbers-in-place.md)).
//!
//! The hash of the kernel's inode table does not depend on the upper bits: Linux multiplies the
//! number by an aligned address, adds the number shifted right by 6, folds the result once by the
//! logarithm of the table's size and takes as many of the lowest bits, so no bit from about 45
//! upward counts. The copies of one inode in all views would be in one hash chain, which the kernel
//! would walk for each name that it looks up. So the lower 48 bits are spread, too: a large odd
//! step for each view is added to the number of the inode.

use kvfs::{Attr, Ino, Views};

use crate::handler::{FileKind, NodeAttr, NodeId};

const VIEW_SHIFT: u32 = 48;
const INO_MASK: Ino = (1 << VIEW_SHIFT) - 1;

/// The distance between the inodes of two successive views: 2^48 divided by the golden ratio, so
/// that the numbers of one inode in many views are spread evenly.
const STEP: Ino = 0x9e37_79b9_7f4b;

/// The number of the control directory, which is not a view of the store.
pub(crate) const CONTROL: u16 = u16::MAX;
const _: () = assert!(CONTROL > Views::MAX_NUMBER);

/// Returns the kernel's number of an inode in a view.
pub(crate) fn of(view: u16, ino: Ino) -> NodeId {
    debug_assert!(ino <= INO_MASK, "inode numbers are below 2^48");
    let view = Ino::from(view);
    NodeId(view << VIEW_SHIFT | ino.wrapping_add(view.wrapping_mul(STEP)) & INO_MASK)
}

/// Splits a number of the kernel into the view and the inode's number in it.
pub(crate) fn split(node: NodeId) -> (u16, Ino) {
    let view = node.0 >> VIEW_SHIFT;
    (view as u16, node.0.wrapping_sub(view.wrapping_mul(STEP)) & INO_MASK)
}

/// The numbers that programs see for the inodes of a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    pub view: u16,
    /// The view in whose place this view is seen, and whose numbers programs see for the inodes; or
    /// this view itself if it is not seen in place of another one.
    pub shown_in: u16,
}

impl Numbering {
    /// Returns the number that programs see as `st_ino` and `d_ino`. A directory has a different
    /// number in each view, because a program that compares directories of two views must not treat
    /// them as the same directory. `diff -r` does so if the numbers are equal.
    pub fn shown(self, ino: Ino, kind: FileKind) -> u64 {
        let view = if kind == FileKind::Dir { self.view } else { self.shown_in };
        of(view, ino).0
    }

    /// Returns the attributes of an inode as programs see them.
    pub fn attr(self, attr: Attr) -> NodeAttr {
        let shown = self.shown(attr.ino, attr.kind);
        NodeAttr { node: of(self.view, attr.ino), attr: Attr { ino: shown, ..attr } }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        for view in [0, 1, 0x7fff, Views::MAX_NUMBER, CONTROL] {
            for ino in [1, 2, INO_MASK] {
                assert_eq!(split(of(view, ino)), (view, ino));
            }
        }
        assert_eq!(of(0, 77), NodeId(77), "the mainline's are as they are");
    }

    /// Returns the chain that the function `hash` of Linux' fs/inode.c selects, for a table of
    /// 2^`shift` chains and a superblock at this address.
    fn chain(superblock: u64, shift: u32, number: u64) -> u64 {
        const GOLDEN_RATIO: u64 = 0x61c8_8646_80b5_83eb;
        let mixed = number.wrapping_mul(superblock) ^ (GOLDEN_RATIO.wrapping_add(number) / 64);
        (mixed ^ ((mixed ^ GOLDEN_RATIO) >> shift)) & ((1 << shift) - 1)
    }

    #[test]
    fn one_inode_of_many_views_lies_in_many_chains_of_the_kernels() {
        let views = 1..=4000;
        for ino in [1, 2, 1_000_003] {
            let low: HashSet<u32> = views.clone().map(|view| of(view, ino).0 as u32).collect();
            assert_eq!(low.len(), 4000, "the lower 32 bits differ between views");
            for (superblock, shift) in [(0xffff_8881_0123_4800, 16), (0xffff_9f5a_c0de_7000, 19)] {
                let in_chain = |number: fn(u16, Ino) -> u64| {
                    let mut chains = HashMap::new();
                    views.clone().for_each(|view| {
                        *chains.entry(chain(superblock, shift, number(view, ino))).or_insert(0) += 1
                    });
                    chains.into_values().max().unwrap_or(0)
                };
                assert_eq!(
                    in_chain(|view, ino| u64::from(view) << VIEW_SHIFT | ino),
                    4000,
                    "not spread they lie in one"
                );
                let spread = in_chain(|view, ino| of(view, ino).0);
                assert!(spread <= 8, "{spread} views of inode {ino} in one chain");
            }
        }
    }
}

//! Finds renames: an inode that was removed at one path and added at another. The inode is
//! identified by its number, and not by similarity, because a branch never assigns a number twice.
//! Branches assign numbers independently, so between branches the birth time distinguishes two
//! inodes of one number.

use std::collections::BTreeMap;

use super::FileChange;
use crate::attr::{Attr, FileKind, Ino, Timestamp};

/// The identity of an inode.
type InodeKey = (Ino, u8, Timestamp);
/// The removed paths, and the added paths, of an inode.
type Sides<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>);

fn inode_key(attr: &Attr) -> InodeKey {
    let kind = match attr.kind {
        FileKind::Dir => 0,
        FileKind::File => 1,
        FileKind::Symlink => 2,
        _ => 3,
    };
    (attr.ino, kind, attr.btime)
}

/// Returns inodes with their removed and their added path. If a file lost several names and got
/// several, its paths are paired in order; a remaining path is in no pair.
pub(super) fn pairs(changes: &BTreeMap<Vec<u8>, FileChange>) -> Vec<(Ino, Vec<u8>, Vec<u8>)> {
    let mut sides: BTreeMap<InodeKey, Sides<'_>> = BTreeMap::new();
    for change in changes.values() {
        match (&change.before, &change.after) {
            (Some(gone), None) => sides.entry(inode_key(gone)).or_default().0.push(&change.path),
            (None, Some(added)) => sides.entry(inode_key(added)).or_default().1.push(&change.path),
            _ => {}
        }
    }
    let mut pairs = Vec::new();
    for ((ino, ..), (gone, added)) in sides {
        let both = gone.into_iter().zip(added);
        pairs.extend(both.map(|(gone, added)| (ino, gone.to_vec(), added.to_vec())));
    }
    pairs
}

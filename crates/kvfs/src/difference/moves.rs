//! Renames: what is gone from one path and was added at another, and is one inode. It is known by
//! the inode itself, not by likeness: a number is never given twice in a branch, and where two
//! branches are compared, which give numbers of their own, the time of birth tells two inodes of
//! one number apart.

use std::collections::BTreeMap;

use super::FileChange;
use crate::attr::{Attr, FileKind, Ino, Timestamp};

/// What makes two entries one inode.
type InodeKey = (Ino, u8, Timestamp);
/// Paths that are gone, and paths that were added.
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

/// Inodes with the path that is gone and the one that was added. Of a file that lost several names
/// and got several, in the order of the paths; what is left over of either is in no pair.
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

//! Collapses directories that exist on only one side: the objects below them are counted instead of
//! listed by path, because the total length of the paths of a deep tree grows with the square of
//! its depth.
//!
//! Objects that a count would hide are listed nevertheless: an inode that existed elsewhere before
//! (it was moved in or out), a file with several names, and anything that is not a plain file,
//! directory or symbolic link with a usual mode and no attributes. If the directory itself has
//! moved, the objects that have moved with it unchanged are counted, and all others are listed.

use std::cell::OnceCell;
use std::rc::Rc;

use super::anchors::Anchors;
use super::side::{Side, StoredNode};
use super::{Comparison, Error, FileChange, FileKind, Result};
use crate::attr::Ino;

/// The counts of the objects below a directory that are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// The number of objects that are not directories.
    pub files: u64,
    /// The number of directories.
    pub directories: u64,
    /// The size of the files in bytes.
    pub bytes: u64,
    /// The number of objects that have moved with the directory unchanged.
    pub moved: u64,
}

/// A path from the root as a linked list of steps, which shares its beginning with other paths:
/// full paths would take memory that grows with the square of the depth.
#[derive(Clone, Default)]
pub(super) struct Way(Option<Rc<Step>>);

struct Step {
    name: Vec<u8>,
    above: Way,
    /// The form of the path in the list, computed on demand.
    told: OnceCell<Told>,
}

/// The form of a path in a list.
struct Told {
    /// The anchor at which the path begins from this step on.
    anchor: Option<Vec<u8>>,
    /// The length of the path in bytes.
    len: usize,
}

impl Way {
    pub fn to(&self, name: &[u8]) -> Way {
        let above = self.clone();
        Way(Some(Rc::new(Step { name: name.to_vec(), above, told: OnceCell::new() })))
    }

    /// Returns the path, from the root or from an anchor. Anchors are made only for paths that are
    /// shown.
    pub fn path(&self, anchors: &Anchors) -> Vec<u8> {
        let mut untold = Vec::new();
        let mut at = self;
        while let Way(Some(step)) = at
            && step.told.get().is_none()
        {
            untold.push(step);
            at = &step.above;
        }
        for step in untold.into_iter().rev() {
            let above = step.above.len();
            let anchor = anchors.begin(above, step.name.len(), || step.above.told_path());
            let before = anchor.as_ref().map_or(above, Vec::len);
            let len = before + usize::from(before > 0) + step.name.len();
            step.told.get_or_init(|| Told { anchor, len });
        }
        self.told_path()
    }

    /// Returns the length of the path in bytes. `path` must have been called before.
    fn len(&self) -> usize {
        self.0.as_ref().and_then(|step| step.told.get()).map_or(0, |told| told.len)
    }

    fn told_path(&self) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), self);
        while let Way(Some(step)) = at {
            names.push(step.name.as_slice());
            if let Some(anchor) = step.told.get().and_then(|told| told.anchor.as_deref()) {
                names.push(anchor);
                break;
            }
            at = &step.above;
        }
        names.reverse();
        names.join(&b'/')
    }
}

impl Drop for Way {
    /// Drops the steps in a loop: recursion would overflow the stack on a long path.
    fn drop(&mut self) {
        let mut at = self.0.take();
        while let Some(step) = at {
            at = Rc::into_inner(step).and_then(|mut step| step.above.0.take());
        }
    }
}

/// Returns the same inode on the other side. A branch assigns each number only once. Between
/// branches, the birth time distinguishes inodes of the same number.
fn twin(other: &Side, node: &StoredNode) -> Result<Option<StoredNode>> {
    let twin = other.node(node.ino)?;
    Ok(twin.filter(|t| t.attr.kind == node.attr.kind && t.attr.btime == node.attr.btime))
}

/// Returns whether a count would hide a property of this object.
fn is_special(node: &StoredNode) -> bool {
    let attr = &node.attr;
    let mode = attr.perm & 0o6000 != 0 || attr.perm & 0o1002 == 0o002;
    match attr.kind {
        FileKind::Dir => mode || node.xattrs.is_some(),
        FileKind::File => mode || node.xattrs.is_some() || attr.nlink > 1,
        FileKind::Symlink => node.xattrs.is_some() || attr.nlink > 1,
        _ => true,
    }
}

impl Comparison {
    /// Counts and lists the objects below a directory that exists on only one side: on the new side
    /// if `added`, otherwise on the old side.
    pub(super) fn collapse(&mut self, top: Ino, way: Way, added: bool) -> Result<()> {
        let mut below = Below::default();
        let at_top: Rc<[u8]> = way.path(&self.anchors).into();
        let mut todo = vec![(top, way)];
        while let Some((dir, way)) = todo.pop() {
            if !self.walked[usize::from(added)].insert(dir) {
                let what = "a directory with more than one name".into();
                return Err(Error::Corrupt { ino: dir, what });
            }
            let (side, other) = match added {
                true => (&self.new, &self.old),
                false => (&self.old, &self.new),
            };
            let has_moved = match side.node(dir)? {
                Some(node) => twin(other, &node)?.is_some(),
                None => false,
            };
            let mut names = Vec::new();
            side.each_name(dir, |name| names.push(name.to_vec()))?;
            let mut listed = Vec::new();
            for name in names {
                let Some(node) = side.entry(dir, &name)? else { continue };
                let is_directory = node.attr.kind == FileKind::Dir;
                if is_directory {
                    todo.push((node.ino, way.to(&name)));
                }
                let follows = has_moved
                    && !self.marks.inodes.contains(&node.ino)
                    && other.entry(dir, &name)?.is_some_and(|there| there.ino == node.ino);
                if follows {
                    below.moved += 1;
                    let counted = (way.to(&name), at_top.clone());
                    self.followed[usize::from(added)].insert(node.ino, counted);
                } else if has_moved || is_special(&node) || twin(other, &node)?.is_some() {
                    listed.push((name, node));
                } else if is_directory {
                    below.directories += 1;
                } else {
                    below.files += 1;
                    below.bytes +=
                        if node.attr.kind == FileKind::File { node.attr.size } else { 0 };
                }
            }
            for (name, node) in listed {
                let (was, is) = if added { (None, Some(node)) } else { (Some(node), None) };
                self.list(&way.to(&name), was, is)?;
            }
        }
        if let Some(change) = self.changes.get_mut(&at_top[..]) {
            change.below = below;
        }
        Ok(())
    }

    /// Lists objects that were counted as moved with their directory on one side, but are listed on
    /// the other side because another object has taken the place of the directory. Both sides of
    /// such a move must be listed.
    pub(super) fn list_other_sides(&mut self) -> Result<()> {
        let other_side = |change: &FileChange| match (&change.before, &change.after) {
            (Some(gone), None) => Some((true, gone.ino)),
            (None, Some(added)) => Some((false, added.ino)),
            _ => None,
        };
        let wanted: Vec<(bool, Ino)> = self.changes.values().filter_map(other_side).collect();
        for (added, ino) in wanted {
            let Some((way, top)) = self.followed[usize::from(added)].remove(&ino) else { continue };
            let side = if added { &self.new } else { &self.old };
            let Some(node) = side.node(ino)? else { continue };
            let (was, is) = if added { (None, Some(node)) } else { (Some(node), None) };
            self.list(&way, was, is)?;
            if let Some(change) = self.changes.get_mut(&top[..]) {
                change.below.moved = change.below.moved.saturating_sub(1);
            }
        }
        Ok(())
    }
}

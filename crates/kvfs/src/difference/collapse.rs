//! Directories that are there on one side alone: their content is counted, and not listed path by
//! path, for the paths of a deep tree together are as long as the square of its depth.
//!
//! What is listed all the same is what such a count would hide: an inode that was elsewhere before
//! (it was moved in or out), a file with several names, and what is not merely a file, a directory
//! or a symbolic link with a usual mode and no attributes. Of a directory that has moved itself,
//! what has moved with it and is as it was is counted, and everything else is listed.

use std::cell::OnceCell;
use std::rc::Rc;

use super::anchors::Anchors;
use super::side::{Side, StoredNode};
use super::{Comparison, Error, FileChange, FileKind, Result};
use crate::attr::Ino;

/// What lies below a directory and is not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// What is no directory.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Of the files.
    pub bytes: u64,
    /// What has moved with the directory, and is otherwise as it was.
    pub moved: u64,
}

/// The way from the root to a path, which shares its beginning with others: a path of its own for
/// each would take the square of their depth.
#[derive(Clone, Default)]
pub(super) struct Way(Option<Rc<Step>>);

struct Step {
    name: Vec<u8>,
    above: Way,
    /// How the path is told, once it was asked for.
    told: OnceCell<Told>,
}

/// How a path is told in a list.
struct Told {
    /// The anchor that it begins at from this step on.
    anchor: Option<Vec<u8>>,
    /// Bytes of the path.
    len: usize,
}

impl Way {
    pub fn to(&self, name: &[u8]) -> Way {
        let above = self.clone();
        Way(Some(Rc::new(Step { name: name.to_vec(), above, told: OnceCell::new() })))
    }

    /// The path, from the root or from an anchor. Anchors are made on the way to what is told, and
    /// for nothing else.
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

    /// Bytes of the path, which was asked for.
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
    /// Without a call for each step of a long one.
    fn drop(&mut self) {
        let mut at = self.0.take();
        while let Some(step) = at {
            at = Rc::into_inner(step).and_then(|mut step| step.above.0.take());
        }
    }
}

/// The same inode on the other side. A number is given once in a branch, and in another one the
/// time of birth tells two of one number apart.
fn twin(other: &Side, node: &StoredNode) -> Result<Option<StoredNode>> {
    let twin = other.node(node.ino)?;
    Ok(twin.filter(|t| t.attr.kind == node.attr.kind && t.attr.btime == node.attr.btime))
}

/// Whether a count would hide what it is.
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
    /// A directory that is there on one side: `added`, on the new one.
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

    /// Lists what was counted as moved with its directory on one side and is listed on the other,
    /// where something else has taken the place of that directory: the two belong together.
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

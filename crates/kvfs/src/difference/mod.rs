//! Lists the changes of a transaction, or the differences between two snapshots, by path. A review
//! depends on the list: it must be complete, and must not name a path that is in neither state.
//!
//! Two trees are compared path by path. A name that leads to a different inode than before is not a
//! change if the two inodes are alike. A name that leads to the same inode is a change if that
//! inode has changed, even if a program changed it by another name. The result equals that of
//! walking both trees and comparing everything at every path.
//!
//! The comparison reads less than that. The difference of the dictionaries shows which entries,
//! nodes and pages differ. From these the directories above are marked in both trees, and only
//! marked directories are walked, by the names that are marked in them: an unmarked directory that
//! both trees have at one path is the same in both, with everything below it. Only if a path leads
//! to different directories (one was moved or replaced), both directories are walked in full.
//!
//! The node of an inode hints at a directory that contains a name of it. A file with several names,
//! or with an outdated hint, costs a scan of all names, about 80 ns each. All reads are from frozen
//! states, so nothing is locked and no call waits.

mod anchors;
mod collapse;
mod content;
mod links;
mod marks;
mod moves;
mod numbering;
mod room;
mod side;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use bytes::Bytes;
use kvdb::View;

use crate::attr::{Attr, FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::layout::Layout;
use anchors::Anchors;
pub use anchors::Difference;
pub use collapse::Below;
use collapse::Way;
pub(crate) use content::{same as same_content, same_xattrs};
use links::Linked;
use marks::Marks;
pub(crate) use numbering::Numbering;
pub(crate) use room::Room;
pub(crate) use side::{Named, Side, StoredNode, joined};

/// A path at which the two states differ.
#[derive(Clone, Debug)]
pub struct FileChange {
    /// The path from the root, without a leading slash. A path that would be longer than a call
    /// accepts has the form `/3/…` and begins at the third anchor of the list. This holds for all
    /// paths in this struct.
    pub path: Vec<u8>,
    /// The attributes before, or `None` if the path did not exist.
    pub before: Option<Attr>,
    /// The attributes now, or `None` if the path does not exist.
    pub after: Option<Attr>,
    /// Both states have a file at the path, and its bytes differ. For an added path with `moved`,
    /// the bytes differ from the bytes at the old path.
    pub content: bool,
    /// The targets of the symbolic link before and now, if there is one.
    pub targets: (Option<Bytes>, Option<Bytes>),
    /// The extended attributes that differ.
    pub xattrs: Vec<XattrChange>,
    /// The object has names on both sides, and its set of other names differs.
    pub links: bool,
    /// Another path of the same file, if the path was added or removed.
    pub linked_to: Option<Vec<u8>>,
    /// The old or new path of the same inode, if the path was added or removed. Two changes that
    /// name each other in this field are one rename.
    pub moved: Option<Vec<u8>>,
    /// The counts of the unlisted objects below a directory that exists on one side only, in a
    /// collapsed list.
    pub below: Below,
}

/// The extent to which directories that were added or removed are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// Lists everything below the directory, path by path.
    #[default]
    All,
    /// Lists the directory with counts of the objects below it. Below the directory, only objects
    /// that are not simply new or removed are listed: objects that have moved, have other names, or
    /// have a special kind, mode or attributes.
    Collapsed,
}

/// An extended attribute that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrChange {
    /// The attribute's name.
    pub name: Box<[u8]>,
    /// The value before, or `None` if the attribute did not exist.
    pub before: Option<Bytes>,
    /// The value now, or `None` if the attribute does not exist.
    pub after: Option<Bytes>,
}

impl FileChange {
    fn of(path: Vec<u8>, before: Option<&StoredNode>, after: Option<&StoredNode>) -> FileChange {
        let targets = (before.and_then(StoredNode::target), after.and_then(StoredNode::target));
        FileChange {
            path,
            before: before.map(StoredNode::public),
            after: after.map(StoredNode::public),
            content: false,
            targets,
            xattrs: Vec::new(),
            links: false,
            linked_to: None,
            moved: None,
            below: Below::default(),
        }
    }

    /// Returns the bytes that this change takes in a list, without its path.
    fn bytes(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let of_xattr =
            |xattr: &XattrChange| xattr.name.len() + length(&xattr.before) + length(&xattr.after);
        let xattrs: usize = self.xattrs.iter().map(of_xattr).sum();
        length(&self.targets.0) + length(&self.targets.1) + xattrs
    }

    /// Returns whether the path exists on both sides and `of` differs between the two sides.
    fn changed<T: PartialEq>(&self, of: impl Fn(&Attr) -> T) -> bool {
        matches!((&self.before, &self.after), (Some(before), Some(after)) if of(before) != of(after))
    }

    /// Returns whether only the time of the last change differs, as in a file that was made or
    /// written again with the same content.
    pub fn times_alone(&self) -> bool {
        !self.matters()
    }

    /// Returns whether anything but times differs.
    fn matters(&self) -> bool {
        self.before.is_none()
            || self.after.is_none()
            || self.changed(|a| (a.kind, a.perm, a.uid, a.gid, a.rdev))
            || self.content
            || self.targets.0 != self.targets.1
            || !self.xattrs.is_empty()
            || self.links
    }
}

/// Returns the differences between two states of a store, sorted by path. Each state is a snapshot,
/// the mainline or the state of a transaction. The time needed is proportional to the differences.
/// (Data that waits in the memory of an [`crate::Fs`] is not in any state yet.)
pub fn difference_of_states(before: &View, after: &View, listing: Listing) -> Result<Difference> {
    let side = |state: &View| {
        let layout = Layout::of_state(state).ok_or(Error::NotFound)?;
        Ok::<Side, Error>(Side::new(state.clone(), layout))
    };
    between(side(before)?, side(after)?, listing)
}

/// Returns the difference of two states of one branch, with the dictionaries of `layout`.
pub(crate) fn difference_in(
    layout: Layout,
    before: View,
    after: View,
    listing: Listing,
) -> Result<Difference> {
    between(Side::new(before, layout), Side::new(after, layout), listing)
}

/// Two directories to be compared, or a directory that exists on one side only.
struct Pair {
    old: Option<Ino>,
    new: Option<Ino>,
    way: Way,
}

/// The way to an object, and the path of the directory at which it was counted.
type Followed = (Way, Rc<[u8]>);

struct Comparison {
    listing: Listing,
    /// The bytes that the list may still take.
    room: Room,
    anchors: Anchors,
    old: Side,
    new: Side,
    marks: Marks,
    changes: BTreeMap<Vec<u8>, FileChange>,
    /// The files with several names whose sets of other names may have changed, because one of
    /// their names was made, was removed or leads to another file.
    linked: Linked,
    todo: Vec<Pair>,
    /// The objects that were counted as moved with their directory, on the old and on the new side,
    /// with their way and the directory at which they were counted.
    followed: [HashMap<Ino, Followed>; 2],
    /// The directories that were walked, on the old and on the new side. A directory that is
    /// reached a second time means that the store is damaged, and that the walk might not end.
    walked: [HashSet<Ino>; 2],
}

pub(crate) fn between(old: Side, new: Side, listing: Listing) -> Result<Difference> {
    between_within(old, new, listing, Room::of_list())
}

fn between_within(old: Side, new: Side, listing: Listing, room: Room) -> Result<Difference> {
    let marks = Marks::of(&old, &new)?;
    let mut comparison = Comparison {
        listing,
        room,
        anchors: Anchors::default(),
        old,
        new,
        marks,
        changes: BTreeMap::new(),
        linked: Linked::default(),
        todo: Vec::new(),
        followed: Default::default(),
        walked: Default::default(),
    };
    let root = |side: &Side| {
        side.node(ROOT)?
            .ok_or_else(|| Error::Corrupt { ino: ROOT, what: "there is no root directory".into() })
    };
    let (before, after) = (root(&comparison.old)?, root(&comparison.new)?);
    comparison.compare(Way::default(), Some(before), Some(after))?;
    while let Some(pair) = comparison.todo.pop() {
        comparison.directories(pair)?;
    }
    comparison.list_other_sides()?;
    comparison.links()?;
    comparison.moves()?;
    Ok(comparison.anchors.list(comparison.changes.into_values()))
}

impl Comparison {
    fn directories(&mut self, Pair { old, new, way }: Pair) -> Result<()> {
        if self.listing == Listing::Collapsed {
            match (old, new) {
                (Some(dir), None) => return self.collapse(dir, way, false),
                (None, Some(dir)) => return self.collapse(dir, way, true),
                _ => {}
            }
        }
        for (dir, walked) in [old, new].into_iter().zip(&mut self.walked) {
            if let Some(ino) = dir.filter(|&ino| !walked.insert(ino)) {
                return Err(Error::Corrupt {
                    ino,
                    what: "a directory with more than one name".into(),
                });
            }
        }
        let names: BTreeSet<Vec<u8>> = match (old, new) {
            (Some(a), Some(b)) if a == b => self.marks.names.get(&a).cloned().unwrap_or_default(),
            _ => {
                let mut names = BTreeSet::new();
                for (side, dir) in [(&self.old, old), (&self.new, new)] {
                    if let Some(dir) = dir {
                        side.each_name(dir, |name| {
                            names.insert(name.to_vec());
                        })?;
                    }
                }
                names
            }
        };
        for name in names {
            let was = old.map_or(Ok(None), |dir| self.old.entry(dir, &name))?;
            let is = new.map_or(Ok(None), |dir| self.new.entry(dir, &name))?;
            self.compare(way.to(&name), was, is)?;
        }
        Ok(())
    }

    /// Compares the objects at one path, and notes the directories to be compared next.
    fn compare(&mut self, way: Way, was: Option<StoredNode>, is: Option<StoredNode>) -> Result<()> {
        let dir = |node: &Option<StoredNode>| {
            node.as_ref().filter(|n| n.attr.kind == FileKind::Dir).map(|n| n.ino)
        };
        let (old, new) = (dir(&was), dir(&is));
        if old.is_some() && old == new {
            // The states are equal below an unmarked directory.
            if new.is_some_and(|ino| self.marks.names.contains_key(&ino)) {
                self.todo.push(Pair { old, new, way: way.clone() });
            }
        } else if old.is_some() || new.is_some() {
            self.todo.push(Pair { old, new, way: way.clone() });
        }
        self.list(&way, was, is)
    }

    /// Lists a path if its object differs between the two sides.
    fn list(&mut self, way: &Way, was: Option<StoredNode>, is: Option<StoredNode>) -> Result<()> {
        match (&was, &is) {
            (None, None) => return Ok(()),
            (Some(a), Some(b)) if a.ino == b.ino => {
                if !self.marks.inodes.contains(&a.ino) {
                    return Ok(());
                }
            }
            _ => self.linked.note(&way.path(&self.anchors), was.as_ref(), is.as_ref()),
        }
        let mut change = FileChange::of(way.path(&self.anchors), was.as_ref(), is.as_ref());
        change.xattrs = content::xattrs((&self.old, was.as_ref()), (&self.new, is.as_ref()))?;
        if let (Some(a), Some(b)) = (&was, &is) {
            change.content = self.other_content(a, b)?;
            if !change.matters() && a.attr.mtime == b.attr.mtime {
                return Ok(());
            }
        }
        self.room.take_change()?;
        self.room.take(change.path.len())?;
        self.room.take(change.bytes())?;
        self.changes.insert(change.path.clone(), change);
        Ok(())
    }

    /// Returns whether both objects are files and their bytes differ.
    fn other_content(&self, a: &StoredNode, b: &StoredNode) -> Result<bool> {
        Ok(a.attr.kind == FileKind::File
            && b.attr.kind == FileKind::File
            && match a.ino == b.ino && content::lie_alike(a, b) {
                true => {
                    self.marks.pages.contains(&a.ino)
                        || a.attr.size != b.attr.size
                        || !content::same_but_for_zeros(&a.content, &b.content)
                }
                false => !content::same((&self.old, a), (&self.new, b))?,
            })
    }

    /// Finds renames, and compares the content before and after.
    fn moves(&mut self) -> Result<()> {
        for (ino, gone, added) in moves::pairs(&self.changes) {
            let content = match (self.old.node(ino)?, self.new.node(ino)?) {
                (Some(a), Some(b)) => self.other_content(&a, &b)?,
                _ => continue,
            };
            self.room.take(gone.len())?;
            self.room.take(added.len())?;
            if let Some(change) = self.changes.get_mut(&gone) {
                change.moved = Some(added.clone());
            }
            if let Some(change) = self.changes.get_mut(&added) {
                (change.moved, change.content) = (Some(gone), content);
            }
        }
        Ok(())
    }

    /// Marks the paths whose set of other names has changed.
    fn links(&mut self) -> Result<()> {
        if self.linked.is_empty() {
            return Ok(());
        }
        // Names that are not listed do not count toward the limit of the list.
        let mut room = Room::of(self.room.most);
        let groups = self.linked.groups(&self.old, &self.new, &self.anchors, &mut room)?;
        for change in self.changes.values_mut() {
            change.linked_to = match (&change.before, &change.after) {
                (None, Some(_)) => groups.new.other(&change.path),
                (Some(_), None) => groups.old.other(&change.path),
                _ => None,
            };
            self.room.take(change.linked_to.as_ref().map_or(0, Vec::len))?;
        }
        for path in groups.differing() {
            if let Some(change) = self.changes.get_mut(&path) {
                change.links = change.before.is_some() && change.after.is_some();
                continue;
            }
            // The two objects are alike otherwise, because the list would contain the path if they
            // were not.
            let (Some(was), Some(is)) = (groups.old.ino(&path), groups.new.ino(&path)) else {
                continue;
            };
            if let (Some(was), Some(is)) = (self.old.node(was)?, self.new.node(is)?) {
                let change = FileChange {
                    links: true,
                    ..FileChange::of(path.clone(), Some(&was), Some(&is))
                };
                self.room.take_change()?;
                self.room.take(path.len())?;
                self.room.take(change.bytes())?;
                self.changes.insert(path, change);
            }
        }
        Ok(())
    }
}

//! Compares the sets of names of files with several names. The other names of a file belong to its
//! description, because a write by one name changes the file under all its names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use super::Room;
use super::anchors::Anchors;
use super::side::{Side, StoredNode};
use crate::attr::{FileKind, Ino};
use crate::error::Result;

/// The files whose names are to be collected.
#[derive(Default)]
pub(super) struct Linked {
    inodes: HashSet<Ino>,
    /// The paths that lead to different files on the two sides, with both inodes. At least one of
    /// the two files has several names.
    met: HashMap<Vec<u8>, (Ino, Ino)>,
}

/// All paths of a file.
type Group = BTreeSet<Vec<u8>>;

/// All names of the files on one side.
#[derive(Default)]
pub(super) struct Names {
    of: HashMap<Vec<u8>, (Ino, Rc<Group>)>,
}

pub(super) struct Groups {
    pub old: Names,
    pub new: Names,
}

impl Linked {
    /// Records a path that leads to a different inode than before.
    pub fn note(&mut self, path: &[u8], was: Option<&StoredNode>, is: Option<&StoredNode>) {
        let several = |node: &&StoredNode| node.attr.kind != FileKind::Dir && node.attr.nlink > 1;
        let files = [was.filter(several), is.filter(several)];
        self.inodes.extend(files.iter().flatten().map(|node| node.ino));
        let file = |node: &&StoredNode| node.attr.kind != FileKind::Dir;
        if let (Some(was), Some(is)) = (was.filter(file), is.filter(file))
            && files.iter().any(Option::is_some)
        {
            self.met.insert(path.to_vec(), (was.ino, is.ino));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    pub fn groups(
        &self,
        old: &Side,
        new: &Side,
        anchors: &Anchors,
        room: &mut Room,
    ) -> Result<Groups> {
        let mut groups =
            Groups { old: self.names(old, anchors, room)?, new: self.names(new, anchors, room)? };
        // Such a path may lead to a file with a single name on one side, which is not in the groups
        // yet.
        for (path, &(was, is)) in &self.met {
            groups.old.alone(path, was);
            groups.new.alone(path, is);
        }
        Ok(groups)
    }

    fn names(&self, side: &Side, anchors: &Anchors, room: &mut Room) -> Result<Names> {
        let found = side.names_of(&self.inodes)?;
        let parents = found.iter().map(|(parent, ..)| *parent).collect();
        let paths = side.paths_by_anchors(&parents, anchors, room)?;
        let mut groups: HashMap<Ino, Group> = HashMap::new();
        for (parent, name, ino) in found {
            if let Some(parent) = paths.get(&parent) {
                let path = anchors.join(parent, &name);
                room.take(path.len())?;
                groups.entry(ino).or_default().insert(path);
            }
        }
        let mut names = Names::default();
        for (ino, group) in groups {
            let group = Rc::new(group);
            names.of.extend(group.iter().map(|path| (path.clone(), (ino, group.clone()))));
        }
        Ok(names)
    }
}

impl Names {
    fn alone(&mut self, path: &[u8], ino: Ino) {
        self.of
            .entry(path.to_vec())
            .or_insert_with(|| (ino, Rc::new(BTreeSet::from([path.to_vec()]))));
    }

    pub fn ino(&self, path: &[u8]) -> Option<Ino> {
        self.of.get(path).map(|(ino, _)| *ino)
    }

    /// Returns another path of the same file.
    pub fn other(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.of.get(path)?.1.iter().find(|other| *other != path).cloned()
    }
}

impl Groups {
    /// Returns the paths that exist on both sides with different sets of other names, in order.
    pub fn differing(&self) -> BTreeSet<Vec<u8>> {
        // Each pair of groups is compared only once.
        let mut known: HashMap<(Ino, Ino), bool> = HashMap::new();
        let mut differing = BTreeSet::new();
        for (path, (was, before)) in &self.old.of {
            if let Some((is, after)) = self.new.of.get(path)
                && *known.entry((*was, *is)).or_insert_with(|| before != after)
            {
                differing.insert(path.clone());
            }
        }
        differing
    }
}

//! The paths of conflicts. Many conflicts often lie in one directory, or on one way down from the
//! root: each directory is searched once, and the names that were found are kept, so that a path
//! costs its own length.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::rc::Rc;

use super::{Place, Plan};
use crate::attr::{FileKind, Ino, ROOT};
use crate::difference::{Side, StoredNode, joined};
use crate::error::Result;

/// The maximum number of bytes of the names of one side that are kept, and of its whole paths.
const KEPT: usize = 16 << 20;
/// Approximate memory of a name or a path in addition to its bytes.
const OVERHEAD: usize = 96;

/// One of the three states.
#[derive(Clone, Copy)]
pub(super) enum Of {
    From,
    Base,
    Into,
}

/// The names that were found, by side.
#[derive(Default)]
pub(super) struct Paths([RefCell<Known>; 3]);

/// A name of an inode.
#[derive(Clone)]
struct Name {
    dir: Ino,
    name: Rc<[u8]>,
    is_dir: bool,
}

/// The names of one side.
#[derive(Default)]
struct Known {
    /// Names of directories, and of inodes that `from` has changed.
    names: HashMap<Ino, Name>,
    name_bytes: usize,
    /// Directories whose names were all examined.
    searched: HashSet<Ino>,
    /// Whole paths of directories.
    paths: HashMap<Ino, Rc<[u8]>>,
    path_bytes: usize,
}

impl Known {
    /// Returns the name of an inode in a directory, and notes other names on the way.
    fn search(
        &mut self,
        side: &Side,
        changed: &BTreeSet<Ino>,
        (dir, wanted): (Ino, Ino),
    ) -> Result<Option<Name>> {
        if let Some(name) = self.names.get(&wanted).filter(|name| name.dir == dir) {
            return Ok(Some(name.clone()));
        }
        if self.searched.contains(&dir) {
            return Ok(None);
        }
        if self.name_bytes > KEPT {
            self.names.clear();
            self.searched.clear();
            self.name_bytes = 0;
        }
        let (mut found, mut all) = (None, true);
        side.each_entry(dir, |name, ino, kind| {
            let is_dir = kind == FileKind::Dir;
            let has_room = self.name_bytes <= KEPT;
            all &= has_room;
            if ino == wanted || has_room && (is_dir || changed.contains(&ino)) {
                let name = Name { dir, name: name.into(), is_dir };
                if ino == wanted {
                    found = Some(name.clone());
                }
                if has_room {
                    self.name_bytes += name.name.len() + OVERHEAD;
                    self.names.insert(ino, name);
                }
            }
            match has_room || found.is_none() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        if all {
            self.searched.insert(dir);
        }
        Ok(found)
    }

    /// Returns the path of a directory, or `None` if it is not reachable from the root.
    fn path(&mut self, side: &Side, changed: &BTreeSet<Ino>, dir: Ino) -> Result<Option<Rc<[u8]>>> {
        let (mut way, mut at, mut seen) = (Vec::new(), dir, HashSet::new());
        let mut path = loop {
            if at == ROOT {
                break Vec::new();
            }
            if let Some(path) = self.paths.get(&at) {
                break path.to_vec();
            }
            // In a damaged store directories may contain each other.
            if !seen.insert(at) {
                return Ok(None);
            }
            let known = self.names.get(&at).filter(|name| name.is_dir).cloned();
            let name = match known {
                Some(name) => Some(name),
                None => match side.node(at)?.filter(|node| node.attr.kind == FileKind::Dir) {
                    Some(node) => self.search(side, changed, (node.attr.parent, at))?,
                    None => None,
                },
            };
            let Some(name) = name else { return Ok(None) };
            at = name.dir;
            way.push(name.name);
        };
        for name in way.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        let path: Rc<[u8]> = path.into();
        if self.path_bytes > KEPT {
            self.paths.clear();
            self.path_bytes = 0;
        }
        self.path_bytes += path.len() + OVERHEAD;
        self.paths.insert(dir, path.clone());
        Ok(Some(path))
    }

    /// Returns the names of a file.
    fn names_of(
        &mut self,
        side: &Side,
        changed: &BTreeSet<Ino>,
        node: &StoredNode,
    ) -> Result<Vec<Place>> {
        if node.attr.nlink == 1
            && node.attr.parent != 0
            && let Some(name) = self.search(side, changed, (node.attr.parent, node.ino))?
        {
            return Ok(vec![(name.dir, Box::from(&*name.name))]);
        }
        let names = side.names_of(&HashSet::from([node.ino]))?;
        Ok(names.into_iter().map(|(dir, name, _)| (dir, name.into_boxed_slice())).collect())
    }
}

impl Plan<'_> {
    fn known(&self, of: Of) -> (&Side, &RefCell<Known>) {
        let sides = self.sides;
        match of {
            Of::From => (&sides.from, &self.paths.0[0]),
            Of::Base => (&sides.base, &self.paths.0[1]),
            Of::Into => (&sides.into, &self.paths.0[2]),
        }
    }

    /// Returns the names of a file of one side; none if it does not exist there.
    pub(super) fn names_of(&self, of: Of, ino: Ino) -> Result<Vec<Place>> {
        let (side, known) = self.known(of);
        match side.node(ino)? {
            Some(node) => known.borrow_mut().names_of(side, &self.changed, &node),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the place of a directory of one side, or `None` if it has none there.
    pub(super) fn place_in(&self, of: Of, dir: Ino) -> Result<Option<Place>> {
        let (side, known) = self.known(of);
        let node = side.node(dir)?.filter(|node| node.attr.kind == FileKind::Dir && dir != ROOT);
        let Some(node) = node else { return Ok(None) };
        let found = known.borrow_mut().search(side, &self.changed, (node.attr.parent, dir))?;
        Ok(found.map(|name| (name.dir, Box::from(&*name.name))))
    }

    /// Returns the path of a place of `from` or of `base`. It is empty if no conflict is named any
    /// more and there are no choices: then no path makes a difference.
    pub(super) fn path_of(&self, place: &Place) -> Result<Vec<u8>> {
        if self.needs_no_path() {
            return Ok(Vec::new());
        }
        for of in [Of::From, Of::Base, Of::Into] {
            let (side, known) = self.known(of);
            let way = known.borrow_mut().path(side, &self.changed, place.0)?;
            if let Some(way) = way {
                return Ok(joined(&way, &place.1));
            }
        }
        Ok([format!("inode {}/", place.0).as_bytes(), &place.1].concat())
    }

    /// Returns a path of an inode, in `from` if `from` has the inode; see [`Plan::path_of`].
    pub(super) fn path_of_inode(&self, ino: Ino) -> Result<Vec<u8>> {
        if self.needs_no_path() {
            return Ok(Vec::new());
        }
        for of in [Of::From, Of::Base, Of::Into] {
            let (side, known) = self.known(of);
            let Some(node) = side.node(ino)? else { continue };
            if node.attr.kind == FileKind::Dir {
                let way = known.borrow_mut().path(side, &self.changed, ino)?;
                if let Some(way) = way {
                    return Ok(way.to_vec());
                }
            } else {
                let names = known.borrow_mut().names_of(side, &self.changed, &node)?;
                if let Some(place) = names.last() {
                    return self.path_of(place);
                }
            }
        }
        Ok(format!("inode {ino}").into_bytes())
    }

    fn needs_no_path(&self) -> bool {
        self.cut && self.choices.is_empty()
    }
}

//! One of the two states that are compared: its nodes, its names, and the paths of its directories.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use kvdb::View;

use super::anchors::Anchors;
use super::{Numbering, Room};
use crate::attr::{Attr, FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::layout::{self, Attributes, Layout, Xattrs};

pub(crate) struct Side {
    pub state: View,
    pub layout: Layout,
    /// The mapping to the inode numbers that are shown. All arguments and results here are shown
    /// numbers.
    pub numbers: Numbering,
}

/// An inode as it is stored.
pub(crate) struct StoredNode {
    pub ino: Ino,
    pub attr: Attributes,
    pub xattrs: Option<Xattrs>,
    pub content: Bytes,
}

impl StoredNode {
    pub fn public(&self) -> Attr {
        self.attr.public(self.ino)
    }

    /// Returns the target of a symbolic link.
    pub fn target(&self) -> Option<Bytes> {
        (self.attr.kind == FileKind::Symlink).then(|| self.content.clone())
    }
}

/// A directory, a name in it, and the inode that it names.
pub(crate) type Named = (Ino, Vec<u8>, Ino);

/// The parent of each directory, and its name in the parent.
type Steps = HashMap<Ino, (Ino, Vec<u8>)>;

/// Returns the names from the root to a directory, or `None` if the steps do not lead to the root.
fn way_to(dir: Ino, steps: &Steps) -> Option<Vec<&[u8]>> {
    let (mut way, mut at) = (Vec::new(), dir);
    // More names than steps mean that directories contain each other, in a damaged store.
    while let Some((parent, name)) = steps.get(&at).filter(|_| way.len() < steps.len()) {
        way.push(name.as_slice());
        at = *parent;
    }
    way.reverse();
    (at == ROOT).then_some(way)
}

pub(crate) fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

impl Side {
    pub fn new(state: View, layout: Layout) -> Side {
        Side { state, layout, numbers: Numbering::PLAIN }
    }

    pub fn node(&self, ino: Ino) -> Result<Option<StoredNode>> {
        let Some(stored) = self.numbers.stored(ino) else { return Ok(None) };
        let Some(value) = self.state.get(self.layout.imap, &layout::node_key(stored))? else {
            return Ok(None);
        };
        let (mut attr, xattrs, content) = layout::decode_node(stored, &value)?;
        // The parent of a file is a hint, and may be the number of a directory that was removed.
        attr.parent = self.numbers.shown(attr.parent).unwrap_or(0);
        Ok(Some(StoredNode { ino, attr, xattrs, content }))
    }

    /// Returns the inode that a name in a directory refers to, and its kind.
    pub fn name(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        let Some(stored) = self.numbers.stored(parent) else { return Ok(None) };
        match self.state.get(self.layout.nmap, &layout::name_key(stored, name))? {
            Some(value) => self.decoded_name(stored, &value).map(Some),
            None => Ok(None),
        }
    }

    /// Decodes the inode and the kind from a stored name.
    pub fn decoded_name(&self, stored_parent: Ino, value: &[u8]) -> Result<(Ino, FileKind)> {
        let (ino, kind) = layout::decode_name(stored_parent, value)?;
        Ok((self.numbers.shown(ino)?, kind))
    }

    pub fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<StoredNode>> {
        let Some((ino, _)) = self.name(parent, name)? else { return Ok(None) };
        let missing = || Error::Corrupt {
            ino: parent,
            what: format!(
                "the entry `{}` names inode {ino}, which does not exist",
                name.escape_ascii()
            ),
        };
        self.node(ino)?.ok_or_else(missing).map(Some)
    }

    /// Returns the range of the keys of a file's pages: from the first key up to the second.
    pub fn pages_of(&self, ino: Ino) -> (Vec<u8>, Vec<u8>) {
        match self.numbers.stored(ino) {
            Some(ino) => (layout::page_key(ino, 0).to_vec(), layout::pages_end(ino).to_vec()),
            // The range is empty.
            None => (vec![0], vec![0]),
        }
    }

    /// Returns the value of an extended attribute that is stored outside of the node.
    pub fn stored_xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Bytes>> {
        let Some(ino) = self.numbers.stored(ino) else { return Ok(None) };
        Ok(self.state.get(self.layout.imap, &layout::xattr_key(ino, name))?)
    }

    /// Returns the object at a path from the root, or `None` if the path does not exist. Symbolic
    /// links are not followed.
    pub fn find(&self, path: &[u8]) -> Result<Option<StoredNode>> {
        let mut at = self.node(ROOT)?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            at = match at.filter(|node| node.attr.kind == FileKind::Dir) {
                Some(directory) => self.entry(directory.ino, name)?,
                None => return Ok(None),
            };
        }
        Ok(at)
    }

    /// Calls `visit` with the entries of a directory, or of all directories if `dir` is `None`,
    /// until it breaks.
    fn each(
        &self,
        dir: Option<Ino>,
        mut visit: impl FnMut(Ino, &[u8], Ino, FileKind) -> ControlFlow<()>,
    ) -> Result<()> {
        let (start, end) = match dir.map(|dir| self.numbers.stored(dir)) {
            None => (Vec::new(), Vec::new()),
            Some(Some(dir)) => (dir.to_be_bytes().to_vec(), layout::names_end(dir).to_vec()),
            Some(None) => return Ok(()),
        };
        let mut failed = None;
        self.state.for_each(self.layout.nmap, &start, &end, |key, value| {
            let entry = layout::decode_name_key(key).and_then(|(parent, name)| {
                let (ino, kind) = self.decoded_name(parent, value)?;
                Ok((self.numbers.shown(parent)?, name, ino, kind))
            });
            match entry {
                Ok((parent, name, ino, kind)) => visit(parent, name, ino, kind),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Calls `visit` with the names in a directory.
    pub fn each_name(&self, dir: Ino, mut visit: impl FnMut(&[u8])) -> Result<()> {
        self.each(Some(dir), |_, name, _, _| {
            visit(name);
            ControlFlow::Continue(())
        })
    }

    /// Calls `visit` with the names in a directory, and the inode and the kind to which each name
    /// leads, until it breaks.
    pub fn each_entry(
        &self,
        dir: Ino,
        mut visit: impl FnMut(&[u8], Ino, FileKind) -> ControlFlow<()>,
    ) -> Result<()> {
        self.each(Some(dir), |_, name, ino, kind| visit(name, ino, kind))
    }

    /// Returns all names of these inodes, except inodes that have no node on this side. The
    /// directories at which the nodes hint are scanned first. If these directories do not have as
    /// many names as the nodes say, all names are scanned.
    pub fn names_of(&self, inodes: &HashSet<Ino>) -> Result<Vec<Named>> {
        let (mut missing, mut hints) = (0, BTreeSet::new());
        for &ino in inodes {
            let Some(StoredNode { attr, .. }) = self.node(ino)? else { continue };
            if ino != ROOT {
                missing += if attr.kind == FileKind::Dir { 1 } else { u64::from(attr.nlink) };
                hints.insert(attr.parent);
            }
        }
        let mut found = Vec::new();
        let mut look = |dir: Option<Ino>, looked_at: &BTreeSet<Ino>| -> Result<bool> {
            self.each(dir, |parent, name, ino, _| {
                if missing > 0 && inodes.contains(&ino) && !looked_at.contains(&parent) {
                    found.push((parent, name.to_vec(), ino));
                    missing -= 1;
                }
                if missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            Ok(missing == 0)
        };
        let none = BTreeSet::new();
        let mut all = inodes.is_empty();
        for &dir in hints.iter().filter(|&&dir| dir != 0) {
            all = look(Some(dir), &none)?;
            if all {
                break;
            }
        }
        if !all {
            look(None, &hints)?;
        }
        Ok(found)
    }

    /// Returns the entries on the ways from the root to these directories: each entry consists of
    /// the parent and the name of a directory on a way. An inode that is not a directory on this
    /// side, or that is not reachable, has no entries.
    pub fn ways_to(&self, dirs: &BTreeSet<Ino>) -> Result<Vec<(Ino, Vec<u8>)>> {
        Ok(self.steps(dirs)?.into_values().collect())
    }

    /// Returns the path of a directory, or `None` if it is not reachable from the root.
    pub fn path(&self, dir: Ino) -> Result<Option<Vec<u8>>> {
        Ok(way_to(dir, &self.steps(&BTreeSet::from([dir]))?).map(|way| way.join(&b'/')))
    }

    /// Returns the paths of these directories. Fails if they exceed `room`.
    pub fn paths(&self, dirs: &BTreeSet<Ino>, room: &mut Room) -> Result<HashMap<Ino, Vec<u8>>> {
        let steps = self.steps(dirs)?;
        let mut paths = HashMap::new();
        for &dir in dirs {
            if let Some(way) = way_to(dir, &steps) {
                room.take_path(way.iter().map(|name| name.len() + 1).sum())?;
                paths.insert(dir, way.join(&b'/'));
            }
        }
        Ok(paths)
    }

    /// Returns the paths of these directories and of all directories above them, in a list with
    /// anchors.
    pub fn paths_by_anchors(
        &self,
        dirs: &BTreeSet<Ino>,
        anchors: &Anchors,
        room: &mut Room,
    ) -> Result<HashMap<Ino, Vec<u8>>> {
        let steps = self.steps(dirs)?;
        let mut paths = HashMap::from([(ROOT, Vec::new())]);
        for &dir in dirs {
            // Go up to a directory whose path is known, and down again, so that each directory is
            // visited once.
            let (mut way, mut at) = (Vec::new(), dir);
            while !paths.contains_key(&at)
                && let Some((parent, name)) = steps.get(&at).filter(|_| way.len() < steps.len())
            {
                way.push((at, name));
                at = *parent;
            }
            let Some(mut path) = paths.get(&at).cloned() else { continue };
            for (dir, name) in way.into_iter().rev() {
                path = anchors.join(&path, name);
                room.take(path.len())?;
                paths.insert(dir, path.clone());
            }
        }
        Ok(paths)
    }

    /// Returns the parent and the name of each of these directories and of all directories above
    /// them. All children of one parent are searched for in one scan.
    fn steps(&self, dirs: &BTreeSet<Ino>) -> Result<Steps> {
        let mut steps = Steps::new();
        let mut asked: HashSet<Ino> = HashSet::from([ROOT]);
        let mut wanted: Vec<Ino> = dirs.iter().copied().filter(|&dir| asked.insert(dir)).collect();
        while !wanted.is_empty() {
            let mut within: HashMap<Ino, HashSet<Ino>> = HashMap::new();
            for dir in wanted {
                if let Some(node) = self.node(dir)?.filter(|node| node.attr.kind == FileKind::Dir) {
                    within.entry(node.attr.parent).or_default().insert(dir);
                }
            }
            for (&parent, children) in &mut within {
                self.each(Some(parent), |_, name, ino, _| {
                    if children.remove(&ino) {
                        steps.insert(ino, (parent, name.to_vec()));
                    }
                    if children.is_empty() {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })?;
            }
            wanted = within.into_keys().filter(|&dir| asked.insert(dir)).collect();
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Caller, Fs, FsOptions};

    #[test]
    fn a_directory_is_found_however_deep_it_lies() {
        let (db, env) = (kvdb::Kvdb::in_memory(), Arc::new(env::Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let depth = 5000;
        let deepest = (0..depth)
            .fold(ROOT, |dir, _| fs.mkdir(dir, b"d", 0o755, Caller::default()).unwrap().ino);
        let side = Side::new(db.view(), fs.core.layout);
        let path = side.path(deepest).unwrap();
        assert_eq!(path, Some(vec![&b"d"[..]; depth].join(&b'/')));
    }

    #[test]
    fn directories_that_lie_in_each_other_have_no_path() {
        let (db, env) = (kvdb::Kvdb::in_memory(), Arc::new(env::Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let a = fs.mkdir(ROOT, b"a", 0o755, Caller::default()).unwrap().ino;
        let b = fs.mkdir(a, b"b", 0o755, Caller::default()).unwrap().ino;
        let c = fs.mkdir(b, b"c", 0o755, Caller::default()).unwrap().ino;
        let Layout { nmap, imap, .. } = fs.core.layout;
        let node = db.get(imap, &layout::node_key(a)).unwrap().unwrap();
        let (attr, ..) = layout::decode_node(a, &node).unwrap();
        let mut batch = kvdb::Batch::new();
        let within = Attributes { parent: b, ..attr };
        batch.put(imap, layout::node_key(a), layout::encode_node(&within, None, b""));
        batch.put(nmap, layout::name_key(b, b"a"), layout::encode_name(a, FileKind::Dir));
        db.commit(batch, kvdb::Durability::Buffered).unwrap();
        let side = Side::new(db.view(), fs.core.layout);
        assert!(side.paths(&BTreeSet::from([a, b, c]), &mut Room::of_list()).unwrap().is_empty());
    }
}

//! Finds the counterparts in `into` of inodes of `from`: the inode of the same number if `into` has
//! it, otherwise the inode at the same path if `into` has made it.

use super::paths::Of;
use super::{Entry, Place, Plan};
use crate::attr::{FileKind, Ino, ROOT};
use crate::difference::{Side, StoredNode, same_content, same_xattrs};
use crate::error::Result;

impl Plan<'_> {
    /// Returns the counterpart in `into` of a directory of `from`, or of one that `from` has
    /// removed. Returns `None` if `into` has removed it.
    pub(super) fn dir_in_into(&mut self, dir: Ino) -> Result<Option<Ino>> {
        // Goes from the directory up to one whose counterpart is known, and back.
        let (mut way, mut at): (Vec<(Ino, Option<Place>)>, Ino) = (Vec::new(), dir);
        let known = loop {
            if let Some(known) = self.dirs.get(&at) {
                break *known;
            }
            let there = self.sides.into.node(at)?;
            there.iter().try_for_each(|there| self.check_number(there))?;
            if at == ROOT || there.is_some_and(|node| node.attr.kind == FileKind::Dir) {
                self.dirs.insert(at, Some(at));
                break Some(at);
            }
            let place = self.place_of_dir(at)?;
            let Some((parent, _)) = &place else {
                self.dirs.insert(at, None);
                break None;
            };
            let parent = *parent;
            way.push((at, place));
            if way.iter().any(|(dir, _)| *dir == parent) {
                // The directories contain each other, in a damaged store.
                break None;
            }
            at = parent;
        };
        let mut above = known;
        while let Some((dir, place)) = way.pop() {
            let is_new = self.sides.base.node(dir)?.is_none();
            let found = match (above, place) {
                (Some(above), Some((_, name))) => self.entry_of(&(above, name))?,
                _ => None,
            };
            let found = found.filter(|(_, kind)| *kind == FileKind::Dir).map(|(ino, _)| ino);
            above = match found {
                Some(ino) if self.is_of_into(ino)? => Some(ino),
                // `from` has made the directory, so the merge makes it in `into`, too.
                _ if is_new => Some(dir),
                _ => None,
            };
            self.dirs.insert(dir, above);
        }
        Ok(above)
    }

    /// Fails if a number means another inode in `into` than in `base`. A store never assigns a
    /// number twice, but a copy of its file may have diverged from it.
    pub(super) fn check_number(&self, into: &StoredNode) -> Result<()> {
        let identity = |node: &StoredNode| (node.attr.kind, node.attr.btime);
        match self.sides.base.node(into.ino)? {
            Some(base) if identity(&base) != identity(into) => {
                let why = format!(
                    "inode {} is another file here than in what both began as: this may be an \
                     older copy of the store",
                    into.ino
                );
                Err(kvdb::Error::Invalid(why).into())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether `into` has made the inode: neither of the other states has it.
    fn is_of_into(&self, ino: Ino) -> Result<bool> {
        Ok(self.sides.from.node(ino)?.is_none() && self.sides.base.node(ino)?.is_none())
    }

    /// Returns the place of a directory in `from`, or its former place in `base`.
    pub(super) fn place_of_dir(&self, dir: Ino) -> Result<Option<Place>> {
        if let Some(place) = self.made_at.get(&dir) {
            return Ok(Some(place.clone()));
        }
        for of in [Of::From, Of::Base] {
            if let Some(place) = self.place_in(of, dir)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Returns the counterpart in `into` of a file of `from`.
    pub(super) fn file_in_into(&mut self, ino: Ino) -> Result<Option<Ino>> {
        if let Some(node) = self.sides.into.node(ino)? {
            self.check_number(&node)?;
            return Ok((node.attr.kind != FileKind::Dir).then_some(ino));
        }
        for (dir, name) in self.names_of(Of::From, ino)? {
            let Some(dir) = self.dir_in_into(dir)? else { continue };
            if let Some((there, kind)) = self.entry_of(&(dir, name))?
                && kind != FileKind::Dir
                && self.is_of_into(there)?
            {
                return Ok(Some(there));
            }
        }
        Ok(None)
    }

    /// Returns whether an entry of `into` leads to the counterpart of the target of `entry` in
    /// `side`, which is `base` or `from`.
    pub(super) fn leads_to(&mut self, side: &Side, entry: Entry, into: Entry) -> Result<bool> {
        let (Some((a, of_a)), Some((b, of_b))) = (entry, into) else {
            return Ok(entry.is_none() && into.is_none());
        };
        if a == b {
            return Ok(true);
        }
        if (of_a == FileKind::Dir) != (of_b == FileKind::Dir) {
            return Ok(false);
        }
        if of_a == FileKind::Dir {
            return Ok(self.dir_in_into(a)? == Some(b));
        }
        if self.sides.into.node(a)?.is_some() || !self.is_of_into(b)? {
            return Ok(false);
        }
        match (side.node(a)?, self.sides.into.node(b)?) {
            (Some(a), Some(b)) => alike((side, &a), (&self.sides.into, &b)),
            _ => Ok(false),
        }
    }
}

/// Returns the attributes of an inode that do not depend on its content and names.
pub(super) fn own(node: &StoredNode) -> (FileKind, u16, u32, u32, u32) {
    let attr = &node.attr;
    (attr.kind, attr.perm, attr.uid, attr.gid, attr.rdev)
}

/// Returns whether two inodes are alike in everything but their times and their names.
pub(super) fn alike(a: (&Side, &StoredNode), b: (&Side, &StoredNode)) -> Result<bool> {
    if own(a.1) != own(b.1) || !same_xattrs(a, b)? {
        return Ok(false);
    }
    match a.1.attr.kind {
        FileKind::File => same_content(a, b),
        FileKind::Symlink => Ok(a.1.content == b.1.content),
        _ => Ok(true),
    }
}

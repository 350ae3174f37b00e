//! Merges content and attributes of the inodes that `from` has changed.

use super::counterparts::{alike, own};
use super::paths::Of;
use super::{Content, Place, Plan};
use crate::attr::{FileKind, Ino};
use crate::difference::{StoredNode, same_xattrs};
use crate::error::Result;
use crate::layout::{self, Attributes, Body};
use crate::merge::merging::{Choice, Deed};

impl Plan<'_> {
    pub(super) fn nodes(&mut self) -> Result<()> {
        let changed = self.changed.clone();
        for &ino in &*changed {
            let (base, from) = (self.sides.base.node(ino)?, self.sides.from.node(ino)?);
            let is_dir = |node: &Option<StoredNode>| {
                node.as_ref().is_some_and(|node| node.attr.kind == FileKind::Dir)
            };
            match (base, from) {
                (None, None) => {}
                (base, Some(from)) if from.attr.kind == FileKind::Dir => {
                    self.directory(base, from)?;
                }
                (Some(base), None) if base.attr.kind == FileKind::Dir => {
                    if let Some(there) = self.dir_in_into(base.ino)? {
                        self.removed_dirs.push((base.ino, there));
                    }
                }
                (base, from) if is_dir(&base) || is_dir(&from) => {}
                (None, Some(from)) => self.made(from)?,
                (Some(base), Some(from)) => self.file(base, from)?,
                (Some(base), None) => self.removed(base)?,
            }
        }
        Ok(())
    }

    /// Handles a file that `from` has made. It is made in `into`, too, if it gets a name there.
    fn made(&mut self, from: StoredNode) -> Result<()> {
        let sides = self.sides;
        let Some(into) = sides.into.node(from.ino)? else {
            // `base` may still have pages of the file, which was removed there and has come back in
            // `from`.
            let (start, end) = (layout::page_key(from.ino, 0), layout::pages_end(from.ino));
            let left = sides.base.state.scan_stored(sides.base.layout.dmap, &start, &end, 1)?;
            let content = if left.is_empty() { Content::Changes } else { Content::All };
            self.content.insert(from.ino, content(from.ino));
            return Ok(());
        };
        // Into has got the file in an earlier merge, of which neither side has a record.
        if alike((&sides.from, &from), (&sides.into, &into))? {
            return Ok(());
        }
        self.both_changed(from, into)
    }

    /// Handles a file that both `base` and `from` have.
    fn file(&mut self, base: StoredNode, from: StoredNode) -> Result<()> {
        let sides = self.sides;
        let changed = self.is_changed(&base, &from)?;
        let Some(there) = self.file_in_into(from.ino)? else {
            let there = self.content.contains_key(&from.ino);
            if !changed || there {
                return Ok(());
            }
            let path = self.path_of_inode(from.ino)?;
            if let Some(Choice::Theirs | Choice::Both) =
                self.choose(path, Deed::Removed, Deed::Changed)
            {
                return self.names_brought_back(&from);
            }
            return Ok(());
        };
        let Some(into) = sides.into.node(there)? else { return Ok(()) };
        if !changed {
            let times = |node: &StoredNode| (node.attr.mtime, node.attr.atime);
            if there == from.ino && times(&base) != times(&from) && times(&into) == times(&base) {
                // The rest is not changed, because `into` may have changed it.
                let Attributes { atime, mtime, ctime, .. } = from.attr;
                self.times.insert(there, [atime, mtime, ctime]);
            }
            return Ok(());
        }
        if self.is_untouched(&base, &into)? {
            self.content.insert(there, Content::Changes(from.ino));
        } else if alike((&sides.base, &base), (&sides.into, &into))? {
            self.content.insert(there, Content::All(from.ino));
        } else if !alike((&sides.from, &from), (&sides.into, &into))? {
            self.both_changed(from, into)?;
        }
        Ok(())
    }

    fn both_changed(&mut self, from: StoredNode, into: StoredNode) -> Result<()> {
        let path = self.path_of_inode(from.ino)?;
        match self.choose(path, Deed::Changed, Deed::Changed) {
            Some(Choice::Theirs) => {
                self.content.insert(into.ino, Content::All(from.ino));
            }
            Some(Choice::Both) => {
                let names = self.names_of(Of::Into, into.ino)?;
                let Some(place) = names.into_iter().next() else { return Ok(()) };
                let beside = self.beside(&place)?;
                let copy = self.fs.new_ino()?;
                self.set(beside, Some((copy, from.attr.kind)))?;
                self.content.insert(copy, Content::All(from.ino));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns whether `from` has changed a file other than in its names and times.
    fn is_changed(&self, base: &StoredNode, from: &StoredNode) -> Result<bool> {
        let sides = self.sides;
        if self.paged.contains(&from.ino) || base.attr.size != from.attr.size {
            return Ok(true);
        }
        let both_paged = |node: &StoredNode| matches!(node.attr.body, Body::Paged(_));
        if both_paged(base) && both_paged(from) {
            // No page differs.
            return Ok(
                own(base) != own(from) || !same_xattrs((&sides.base, base), (&sides.from, from))?
            );
        }
        Ok(!alike((&sides.base, base), (&sides.from, from))?)
    }

    /// Returns whether `into` has the content and attributes of a file in the same form and place
    /// as `base`.
    pub(super) fn is_untouched(&self, base: &StoredNode, into: &StoredNode) -> Result<bool> {
        let sides = self.sides;
        let of = |node: &StoredNode| (node.attr.size, node.attr.body);
        if base.ino != into.ino
            || (own(base), of(base)) != (own(into), of(into))
            || base.content != into.content
            || !same_xattrs((&sides.base, base), (&sides.into, into))?
        {
            return Ok(false);
        }
        let (start, end) = (layout::page_key(base.ino, 0), layout::pages_end(base.ino));
        let mut pages = sides.base.state.difference_between(
            sides.base.layout.dmap,
            &sides.into.state,
            sides.into.layout.dmap,
            (&start, &end),
        )?;
        Ok(pages.next().transpose()?.is_none())
    }

    /// Handles a file that `from` has removed.
    fn removed(&mut self, base: StoredNode) -> Result<()> {
        let sides = self.sides;
        let Some(into) = sides.into.node(base.ino)?.filter(|_| !self.same.contains(&base.ino))
        else {
            return Ok(());
        };
        self.check_number(&into)?;
        let touched = !self.is_untouched(&base, &into)?
            && !alike((&sides.base, &base), (&sides.into, &into))?;
        let named = i64::from(into.attr.nlink) + self.names_added(base.ino) > 0;
        if !touched && !named {
            return Ok(());
        }
        let path = self.path_of_inode(base.ino)?;
        if named && !touched && self.is_passed_by(base.ino)? {
            // Its entry was left as it is in `into`.
            return Ok(());
        }
        let ours = if touched { Deed::Changed } else { Deed::Moved };
        let theirs = if sides.from.find(&path)?.is_some() { Deed::Changed } else { Deed::Removed };
        match self.choose(path, ours, theirs) {
            Some(Choice::Theirs) => {
                for place in self.names_of(Of::Into, base.ino)? {
                    if self.entry_now(&place)?.is_some_and(|(ino, _)| ino == base.ino) {
                        self.set(place, None)?;
                    }
                }
                Ok(())
            }
            Some(_) => {
                self.restore(base.ino);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns whether ours was chosen for a name of an inode, or a conflict is known.
    fn is_passed_by(&mut self, ino: Ino) -> Result<bool> {
        for place in self.names_of(Of::Base, ino)? {
            let path = self.path_of(&place)?;
            if self.is_named(&path) || self.choices.of(&path) == Some(Choice::Ours) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Restores a file that `into` has removed, under the names that it has in `from`.
    fn names_brought_back(&mut self, from: &StoredNode) -> Result<()> {
        for (dir, name) in self.names_of(Of::From, from.ino)? {
            let Some(dir) = self.dir_brought_back(dir)? else { continue };
            let mut here: Place = (dir, name);
            if self.entry_now(&here)?.is_some_and(|(ino, _)| ino != from.ino) {
                here = self.beside(&here)?;
            }
            self.bring_back(from.ino, from.attr.kind, here)?;
        }
        Ok(())
    }

    /// Handles a directory that `from` has made or changed.
    fn directory(&mut self, base: Option<StoredNode>, from: StoredNode) -> Result<()> {
        let sides = self.sides;
        let Some(there) = self.dir_in_into(from.ino)? else {
            let Some(base) = base else { return Ok(()) };
            if own(&base) != own(&from) || !same_xattrs((&sides.base, &base), (&sides.from, &from))?
            {
                let path = self.path_of_inode(from.ino)?;
                if let Some(Choice::Theirs | Choice::Both) =
                    self.choose(path, Deed::Removed, Deed::Changed)
                {
                    self.dir_brought_back(from.ino)?;
                }
            }
            return Ok(());
        };
        let Some(into) = sides.into.node(there)? else {
            self.new_dirs.insert(there);
            return Ok(());
        };
        let changed = match &base {
            None => true,
            Some(base) => {
                own(base) != own(&from) || !same_xattrs((&sides.base, base), (&sides.from, &from))?
            }
        };
        let differs =
            own(&into) != own(&from) || !same_xattrs((&sides.into, &into), (&sides.from, &from))?;
        let mut taken = StoredNode { ino: there, attr: into.attr, ..from };
        if changed && differs {
            let known = match &base {
                None => false,
                Some(base) => {
                    own(base) == own(&into)
                        && same_xattrs((&sides.base, base), (&sides.into, &into))?
                }
            };
            let path = || self.path_of_inode(from.ino);
            let theirs = known || {
                let path = path()?;
                self.choose(path, Deed::Changed, Deed::Changed) == Some(Choice::Theirs)
            };
            if theirs {
                (taken.attr.perm, taken.attr.uid, taken.attr.gid) =
                    (from.attr.perm, from.attr.uid, from.attr.gid);
                self.attributes.insert(there, taken);
            }
        }
        Ok(())
    }
}

//! Merges the entries of directories that `from` has changed.

use super::counterparts::alike;
use super::{NameChange, Place, Plan};
use crate::attr::{FileKind, Ino};
use crate::error::Result;
use crate::layout;
use crate::merge::merging::{Choice, Deed};

impl Plan<'_> {
    pub(super) fn names(&mut self) -> Result<()> {
        for change in std::mem::take(&mut self.names) {
            self.name(change)?;
        }
        Ok(())
    }

    fn name(&mut self, change: NameChange) -> Result<()> {
        let NameChange { place, base, from } = change;
        let sides = self.sides;
        let dir = match (self.dir_in_into(place.0)?, from) {
            (Some(dir), _) => dir,
            (None, None) => return Ok(()),
            (None, Some(_)) => return self.in_removed_dir(place, from),
        };
        let here: Place = (dir, place.1.clone());
        let into = self.entry_of(&here)?;
        if self.leads_to(&sides.base, base, into)? {
            if self.replaced_alike(base, from, into)? {
                self.passed_by.extend(from.map(|(ino, _)| ino));
                return Ok(());
            }
            return self.take(&place, here, from);
        }
        if self.leads_to(&sides.from, from, into)? {
            // Both sides have made the same change. If they have removed the entry, each may have
            // moved the inode elsewhere.
            if let Some((ino, _)) = base
                && from.is_none()
                && sides.into.node(ino)?.is_some()
            {
                self.moved_away.insert(ino);
            }
            return Ok(());
        }
        let deed = |now: super::Entry| match (base, now) {
            (None, _) => Deed::Made,
            (_, None) => Deed::Removed,
            _ => Deed::Changed,
        };
        let path = self.path_of(&place)?;
        self.kept_in.insert(dir);
        match self.choose(path, deed(into), deed(from)) {
            Some(Choice::Theirs) => {
                if let Some((dir, FileKind::Dir)) = into {
                    self.remove_below(dir)?;
                }
                self.take(&place, here, from)
            }
            Some(Choice::Both) if from.is_some() => {
                let beside = self.beside(&here)?;
                self.take(&place, beside, from)
            }
            _ => {
                self.passed_by.extend(from.map(|(ino, _)| ino));
                Ok(())
            }
        }
    }

    /// Returns whether `from` has replaced a file by a new one, and `into` has changed the old file
    /// to the same state.
    fn replaced_alike(
        &mut self,
        base: super::Entry,
        from: super::Entry,
        into: super::Entry,
    ) -> Result<bool> {
        let sides = self.sides;
        let (Some((was, _)), Some((is, kind)), Some((there, _))) = (base, from, into) else {
            return Ok(false);
        };
        if was == is || kind == FileKind::Dir || sides.into.node(is)?.is_some() {
            return Ok(false);
        }
        let nodes = (sides.base.node(was)?, sides.from.node(is)?, sides.into.node(there)?);
        let (Some(was), Some(is), Some(there)) = nodes else { return Ok(false) };
        // A file that `into` has not changed need not be read.
        let same =
            !self.is_untouched(&was, &there)? && alike((&sides.from, &is), (&sides.into, &there))?;
        if same {
            self.same.insert(there.ino);
        }
        Ok(same)
    }

    /// Takes over an entry of `from` into `into`.
    fn take(&mut self, place: &Place, here: Place, from: super::Entry) -> Result<()> {
        let Some((ino, kind)) = from else { return self.set(here, None) };
        let sides = self.sides;
        let known = match sides.base.node(ino)? {
            // A file that `from` has made is made in `into`, too, unless it stands for one of
            // `into`.
            None if kind != FileKind::Dir => Some(ino),
            _ if kind == FileKind::Dir => self.dir_in_into(ino)?,
            _ => sides.into.node(ino)?.is_some().then_some(ino),
        };
        if let Some(known) = known {
            return self.set(here, Some((known, kind)));
        }
        // One side has moved or linked the inode, the other has removed it.
        let path = self.path_of(place)?;
        match self.choose(path, Deed::Removed, Deed::Moved) {
            Some(Choice::Theirs | Choice::Both) => self.bring_back(ino, kind, here),
            _ => {
                self.passed_by.insert(ino);
                Ok(())
            }
        }
    }

    /// Handles an entry that `from` has put into a directory that `into` has removed.
    fn in_removed_dir(&mut self, place: Place, from: super::Entry) -> Result<()> {
        let path = self.path_of(&place)?;
        match self.choose(path, Deed::Removed, Deed::Filled) {
            Some(Choice::Theirs | Choice::Both) => match self.dir_brought_back(place.0)? {
                Some(dir) => self.take(&place.clone(), (dir, place.1), from),
                None => Ok(()),
            },
            _ => {
                self.passed_by.extend(from.map(|(ino, _)| ino));
                Ok(())
            }
        }
    }

    /// Restores an inode that `into` has removed, at a place.
    pub(super) fn bring_back(&mut self, ino: Ino, kind: FileKind, here: Place) -> Result<()> {
        if kind == FileKind::Dir {
            self.new_dirs.insert(ino);
            self.dirs.insert(ino, Some(ino));
        } else {
            self.content.insert(ino, super::Content::All(ino));
        }
        self.set(here, Some((ino, kind)))
    }

    /// Brings back a directory of `from` that `into` has removed, with the directories above it.
    pub(super) fn dir_brought_back(&mut self, dir: Ino) -> Result<Option<Ino>> {
        let (mut way, mut at): (Vec<(Ino, Place)>, Ino) = (Vec::new(), dir);
        let mut above = loop {
            if let Some(there) = self.dir_in_into(at)? {
                break there;
            }
            let Some(place) = self.place_of_dir(at)? else { return Ok(None) };
            let parent = place.0;
            way.push((at, place));
            at = parent;
        };
        while let Some((dir, (_, name))) = way.pop() {
            let mut here: Place = (above, name);
            if self.entry_now(&here)?.is_some() {
                here = self.beside(&here)?;
            }
            self.bring_back(dir, FileKind::Dir, here)?;
            above = dir;
        }
        Ok(Some(above))
    }

    /// Returns a free place next to another one, with a name that shows whose version it is.
    pub(super) fn beside(&self, place: &Place) -> Result<Place> {
        for n in 1u64.. {
            let suffix = match n {
                1 => format!("~{}", self.suffix),
                n => format!("~{}~{n}", self.suffix),
            };
            let suffix = &suffix.as_bytes()[suffix.len().saturating_sub(layout::NAME_MAX / 2)..];
            let room = layout::NAME_MAX - suffix.len();
            let name = [&place.1[..place.1.len().min(room)], suffix].concat();
            let beside: Place = (place.0, name.into());
            if self.entry_now(&beside)?.is_none() {
                return Ok(beside);
            }
        }
        Ok(place.clone())
    }

    /// Removes all entries of a directory of `into`, and everything below.
    pub(super) fn remove_below(&mut self, dir: Ino) -> Result<()> {
        let mut dirs = vec![dir];
        while let Some(dir) = dirs.pop() {
            let mut names: Vec<Box<[u8]>> = Vec::new();
            self.sides.into.each_name(dir, |name| names.push(name.into()))?;
            for name in names {
                let place = (dir, name);
                if let Some((ino, FileKind::Dir)) = self.entry_of(&place)? {
                    dirs.push(ino);
                }
                self.set(place, None)?;
            }
        }
        Ok(())
    }
}

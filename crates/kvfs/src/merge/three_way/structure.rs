//! Determines the consequences of changed names for the tree.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::counterparts::own;
use super::paths::Of;
use super::{Place, Plan};
use crate::attr::{FileKind, Ino, ROOT};
use crate::difference::{StoredNode, same_xattrs};
use crate::error::Result;
use crate::merge::merging::{Choice, Deed};

/// The sums of the changes to entries, by inodes of `into`.
#[derive(Default)]
pub(super) struct Sums {
    /// Added names of an inode.
    pub names: BTreeMap<Ino, i64>,
    /// Added entries of a directory, and those of them that are directories.
    pub entries: BTreeMap<Ino, (i64, i64)>,
}

impl Plan<'_> {
    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for ((dir, _), replaced) in self.entries.iter() {
            for (entry, by) in [(replaced.before, -1), (replaced.after, 1)] {
                let Some((ino, kind)) = entry else { continue };
                *sums.names.entry(ino).or_default() += by;
                let entries = sums.entries.entry(*dir).or_default();
                entries.0 += by;
                entries.1 += if kind == FileKind::Dir { by } else { 0 };
            }
        }
        sums
    }

    pub(super) fn names_added(&self, ino: Ino) -> i64 {
        self.sums.names.get(&ino).copied().unwrap_or(0)
    }

    /// Applies the steps until nothing changes, since a step may undo a state that another one has
    /// checked. The loop ends, since steps only keep more of `into` or take more of `from`, and
    /// never go back.
    pub(super) fn structure(&mut self) -> Result<()> {
        loop {
            let steps =
                [Plan::unplaced, Plan::moved_twice, Plan::lost, Plan::removed_dirs, Plan::circles];
            let mut changed = false;
            for step in steps {
                self.sums = self.sums();
                changed |= step(self)?;
            }
            if !changed {
                self.sums = self.sums();
                return Ok(());
            }
        }
    }

    /// Drops entries in new directories that have got no place.
    fn unplaced(&mut self) -> Result<bool> {
        let dirs: BTreeSet<Ino> = self.entries.iter().map(|((dir, _), _)| *dir).collect();
        let mut without = BTreeSet::new();
        for dir in dirs {
            if self.names_added(dir) <= 0 && self.sides.into.node(dir)?.is_none() {
                without.insert(dir);
            }
        }
        let dropped = self.entries.drop_in(&without);
        self.passed_by.extend(&dropped);
        Ok(!dropped.is_empty())
    }

    /// Handles inodes that `from` and `into` have moved to different places.
    fn moved_twice(&mut self) -> Result<bool> {
        let mut changed = false;
        let more = self.sums.names.iter().filter(|(_, added)| **added > 0);
        let more: BTreeSet<Ino> = more.map(|(ino, _)| *ino).collect();
        for ino in self.moved_away.union(&more).copied().collect::<Vec<Ino>>() {
            let Some(into) = self.sides.into.node(ino)? else { continue };
            let dir = into.attr.kind == FileKind::Dir;
            // A file may have any number of names.
            if !dir && (!self.moved_away.contains(&ino) || !self.has_own_name(ino)?) {
                continue;
            }
            if !self.entries.puts(ino) || self.settled_moves.contains(&ino) {
                continue;
            }
            let path = self.path_of_inode(ino)?;
            match self.choose_of(ino, path, Deed::Moved, Deed::Moved) {
                None => {}
                Some(Choice::Ours) => {
                    self.restore(ino);
                    changed = true;
                }
                Some(choice) => {
                    self.settled_moves.insert(ino);
                    if choice == Choice::Both && dir {
                        self.restore(ino);
                    } else if choice == Choice::Theirs {
                        self.leave_own_places(ino, dir)?;
                    }
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Returns whether `into` has given a file a name that `base` does not have.
    fn has_own_name(&self, ino: Ino) -> Result<bool> {
        for (dir, name) in self.names_of(Of::Into, ino)? {
            if self.sides.base.entry(dir, &name)?.is_none_or(|node| node.ino != ino) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the names that only `into` has given to an inode.
    fn leave_own_places(&mut self, ino: Ino, dir: bool) -> Result<()> {
        let places: Vec<Place> = match dir {
            true => self.place_in(Of::Into, ino)?.into_iter().collect(),
            false => self.names_of(Of::Into, ino)?,
        };
        for place in places {
            let leads = self.entry_of(&place)?.is_some_and(|(there, _)| there == ino);
            let same = |side: &crate::difference::Side| {
                side.entry(place.0, &place.1).map(|node| node.is_some_and(|node| node.ino == ino))
            };
            if leads && !same(&self.sides.from)? && (dir || !same(&self.sides.base)?) {
                self.set(place, None)?;
            }
        }
        Ok(())
    }

    /// Handles inodes of `from` that would lose their last name in `into` because one of their
    /// names was not taken.
    fn lost(&mut self) -> Result<bool> {
        let mut changed = false;
        let fewer: Vec<(Ino, i64)> =
            self.sums.names.iter().filter(|(_, n)| **n < 0).map(|(ino, n)| (*ino, *n)).collect();
        for (ino, added) in fewer {
            let Some(into) = self.sides.into.node(ino)? else { continue };
            let dir = into.attr.kind == FileKind::Dir;
            let names = if dir { 1 } else { i64::from(into.attr.nlink) };
            if names + added > 0 || self.sides.from.node(ino)?.is_none() {
                continue;
            }
            if self.passed_by.contains(&ino) {
                self.restore(ino);
                changed = true;
                continue;
            }
            // Each side has removed the names that the other one has kept.
            let path = self.path_of_inode(ino)?;
            match self.choose_of(ino, path, Deed::Removed, Deed::Removed) {
                None => {}
                Some(Choice::Theirs) => {
                    self.take_names(ino, into.attr.kind)?;
                    changed = true;
                }
                Some(_) => {
                    self.restore(ino);
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Gives a file the names that it has in `from`, if they are free.
    fn take_names(&mut self, ino: Ino, kind: FileKind) -> Result<()> {
        for (dir, name) in self.names_of(Of::From, ino)? {
            let Some(dir) = self.dir_in_into(dir)? else { continue };
            let place: Place = (dir, name);
            if self.entry_now(&place)?.is_none() {
                self.set(place, Some((ino, kind)))?;
            }
        }
        // If no name was free, the file stays at its place.
        self.passed_by.insert(ino);
        Ok(())
    }

    /// Ensures that directories that `from` has removed are empty.
    fn removed_dirs(&mut self) -> Result<bool> {
        let mut changed = false;
        for (dir, there) in self.removed_dirs.clone() {
            let Some(into) = self.sides.into.node(there)?.filter(|_| !self.stays.contains(&there))
            else {
                continue;
            };
            let entries = self.sums.entries.get(&there).map_or(0, |entries| entries.0);
            let left = i64::try_from(into.attr.size).unwrap_or(i64::MAX).saturating_add(entries);
            let removed = self.names_added(there) < 0;
            let changed_in_place = removed && left <= 0 && self.is_changed_dir(dir, &into)?;
            if removed && left <= 0 && !changed_in_place {
                continue;
            }
            if self.kept_in.contains(&there) && removed {
                self.restore(there);
                self.stays.insert(there);
                changed = true;
                continue;
            }
            let place = self.place_of_dir(dir)?;
            let path = match &place {
                Some(place) => self.path_of(place)?,
                None => continue,
            };
            if !removed && self.is_named(&path) {
                continue;
            }
            let ours = match removed {
                true if changed_in_place => Deed::Changed,
                true => Deed::Filled,
                false => Deed::Moved,
            };
            match self.choose_of(there, path, ours, Deed::Removed) {
                None => {}
                Some(Choice::Theirs) => {
                    self.remove_below(there)?;
                    if let Some(place) = self.place_in(Of::Into, there)? {
                        self.set(place, None)?;
                    }
                    self.stays.insert(there);
                    changed = true;
                }
                Some(_) => {
                    self.keep_whole(there);
                    self.restore(there);
                    self.stays.insert(there);
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Returns whether `into` has changed the attributes of a directory since `base`.
    fn is_changed_dir(&self, dir: Ino, into: &StoredNode) -> Result<bool> {
        let sides = self.sides;
        let Some(base) = sides.base.node(dir)? else { return Ok(false) };
        Ok(own(&base) != own(into) || !same_xattrs((&sides.base, &base), (&sides.into, into))?)
    }

    /// Keeps a directory of `into` with everything in it.
    fn keep_whole(&mut self, dir: Ino) {
        let mut dirs = vec![dir];
        while let Some(dir) = dirs.pop() {
            let kept = self.entries.keep_in(dir);
            self.stays.extend(&kept);
            dirs.extend(kept);
        }
    }

    /// Prevents moved directories from becoming their own descendants.
    fn circles(&mut self) -> Result<bool> {
        let mut places: HashMap<Ino, Ino> = HashMap::new();
        for ((at, _), replaced) in self.entries.iter() {
            if let Some((ino, FileKind::Dir)) =
                replaced.after.filter(|_| replaced.before != replaced.after)
            {
                places.insert(ino, *at);
            }
        }
        let mut sound: HashSet<Ino> = HashSet::from([ROOT]);
        let mut moved: Vec<Ino> = places.keys().copied().collect();
        moved.sort_unstable();
        for dir in moved {
            let (mut way, mut at) = (HashSet::new(), dir);
            while !sound.contains(&at) && way.insert(at) {
                at = match (places.get(&at), self.sides.into.node(at)?) {
                    (Some(parent), _) => *parent,
                    (None, Some(node)) => node.attr.parent,
                    // Another conflict decides about its place.
                    (None, None) => ROOT,
                };
            }
            if sound.contains(&at) {
                sound.extend(way);
                continue;
            }
            if self.sides.into.node(dir)?.is_none() {
                continue;
            }
            let path = self.path_of_inode(dir)?;
            match self.choices.of(&path) {
                Some(Choice::Ours | Choice::Both) => {
                    self.restore(dir);
                    return Ok(true);
                }
                _ => self.conflict_of(dir, path, Deed::Moved, Deed::Moved),
            }
        }
        Ok(false)
    }
}

//! Checks the result of all decisions: it must be a tree. Steps that are right on their own can add
//! up to an unsound tree if many choices meet; then nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use super::Plan;
use crate::attr::{FileKind, Ino};
use crate::error::Result;
use crate::merge::merging::Deed;

impl Plan<'_> {
    /// Adds a conflict for each place that is unsound: in a directory that does not exist, or with
    /// a directory that has several places, or no place and entries left in it.
    pub(super) fn check_tree(&mut self) -> Result<()> {
        let mut unsound = BTreeSet::new();
        for ((dir, name), replaced) in self.entries.iter() {
            let Some((ino, kind)) = replaced.after else { continue };
            let leads_to_one = match kind {
                FileKind::Dir => self.places_after(ino)? == 1,
                _ => self.is_known(ino)?,
            };
            if replaced.before != replaced.after && !leads_to_one || !self.is_dir_after(*dir)? {
                unsound.insert((*dir, name.clone()));
            }
        }
        for (&dir, left) in &self.left_in_removed()? {
            if *left > 0
                && let Some(place) = self.place_of_dir(dir)?
            {
                unsound.insert(place);
            }
        }
        for place in unsound {
            let path = self.path_of(&place)?;
            self.conflict(path, Deed::Moved, Deed::Moved);
        }
        Ok(())
    }

    /// Returns the number of places that a directory has after the merge.
    fn places_after(&self, dir: Ino) -> Result<i64> {
        let before = self.sides.into.node(dir)?.filter(|node| node.attr.kind == FileKind::Dir);
        Ok(i64::from(before.is_some()) + self.names_added(dir))
    }

    /// Returns whether a directory of this number exists after the merge.
    fn is_dir_after(&self, dir: Ino) -> Result<bool> {
        let is_dir = match self.sides.into.node(dir)? {
            Some(node) => node.attr.kind == FileKind::Dir,
            None => self.new_dirs.contains(&dir),
        };
        Ok(is_dir && (dir == crate::attr::ROOT || self.places_after(dir)? == 1))
    }

    /// Returns whether there is a node that the merge can write for a file.
    fn is_known(&self, ino: Ino) -> Result<bool> {
        Ok(self.content.contains_key(&ino)
            || self.sides.into.node(ino)?.is_some()
            || self.sides.from.node(ino)?.is_some())
    }

    /// Returns the numbers of entries that would be left in removed directories of `into`.
    fn left_in_removed(&self) -> Result<BTreeMap<Ino, i64>> {
        let mut left = BTreeMap::new();
        for (&dir, &added) in self.sums.names.iter().filter(|(_, added)| **added < 0) {
            let Some(node) = self.sides.into.node(dir)? else { continue };
            if node.attr.kind == FileKind::Dir && added <= -1 {
                let entries = self.sums.entries.get(&dir).map_or(0, |entries| entries.0);
                let before = i64::try_from(node.attr.size).unwrap_or(i64::MAX);
                left.insert(dir, before.saturating_add(entries));
            }
        }
        Ok(left)
    }
}

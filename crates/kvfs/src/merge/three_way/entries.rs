//! The entries of `into` that a merge changes. They are found by their place, and by their inodes:
//! choices for a million removed files then examine each entry a few times, and not once for each
//! file.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Entry, Place};
use crate::attr::{FileKind, Ino};

/// An entry of `into`, before and after the merge.
pub(super) struct Replaced {
    pub before: Entry,
    pub after: Entry,
}

impl Replaced {
    fn leads_to(&self, ino: Ino) -> bool {
        leads(self.before, ino) || leads(self.after, ino)
    }
}

fn leads(entry: Entry, ino: Ino) -> bool {
    entry.is_some_and(|(there, _)| there == ino)
}

#[derive(Default)]
pub(super) struct Entries {
    all: BTreeMap<Place, Replaced>,
    /// Places by the inodes that their entries lead to, or have led to at some time.
    places: HashMap<Ino, BTreeSet<Place>>,
    /// The number of entries that searches by inode or by directory have examined.
    #[cfg(test)]
    examined: usize,
}

impl Entries {
    pub fn iter(&self) -> impl Iterator<Item = (&Place, &Replaced)> {
        self.all.iter()
    }

    pub fn get(&self, place: &Place) -> Option<&Replaced> {
        self.all.get(place)
    }

    /// Sets the entry at a place. `before` is the entry of `into`.
    pub fn set(&mut self, place: Place, before: Entry, after: Entry) {
        for (ino, _) in [before, after].into_iter().flatten() {
            self.places.entry(ino).or_default().insert(place.clone());
        }
        let entry = self.all.entry(place).or_insert(Replaced { before, after: None });
        entry.after = after;
    }

    /// Restores the entry that `into` has at a place.
    pub fn restore(&mut self, place: &Place) {
        if let Some(replaced) = self.all.get_mut(place) {
            replaced.after = replaced.before;
        }
    }

    /// Returns the places with changed entries that lead to an inode before or after the merge.
    pub fn places_of(&mut self, ino: Ino) -> Vec<Place> {
        let Some(places) = self.places.get(&ino) else { return Vec::new() };
        #[cfg(test)]
        {
            self.examined += places.len();
        }
        let leads = |place: &&Place| self.all.get(*place).is_some_and(|one| one.leads_to(ino));
        places.iter().filter(leads).cloned().collect()
    }

    /// Returns whether the merge puts an inode at a place where `into` does not have it.
    pub fn puts(&mut self, ino: Ino) -> bool {
        let places = self.places_of(ino);
        let mut all = places.iter().filter_map(|place| self.all.get(place));
        all.any(|one| leads(one.after, ino) && !leads(one.before, ino))
    }

    /// Removes all entries in these directories. Returns the inodes that they led to.
    pub fn drop_in(&mut self, dirs: &BTreeSet<Ino>) -> Vec<Ino> {
        let mut dropped = Vec::new();
        for ((dir, _), replaced) in &mut self.all {
            if dirs.contains(dir) {
                dropped.extend(replaced.after.take().map(|(ino, _)| ino));
            }
        }
        dropped
    }

    /// Restores the entries in a directory that the merge removes. Returns the directories among
    /// them.
    pub fn keep_in(&mut self, dir: Ino) -> Vec<Ino> {
        let mut dirs = Vec::new();
        let from: Place = (dir, Box::default());
        for (_, replaced) in self.all.range_mut(from..).take_while(|((at, _), _)| *at == dir) {
            #[cfg(test)]
            {
                self.examined += 1;
            }
            if let (Some((ino, kind)), None) = (replaced.before, replaced.after) {
                replaced.after = replaced.before;
                dirs.extend((kind == FileKind::Dir).then_some(ino));
            }
        }
        dirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: u64 = 10_000;
    const DIRS: u64 = 100;

    fn place(n: u64) -> Place {
        (n % DIRS, n.to_be_bytes().into())
    }

    /// Files in a hundred directories, all of which are removed.
    fn removed() -> Entries {
        let mut entries = Entries::default();
        for n in 0..FILES {
            entries.set(place(n), Some((DIRS + n, FileKind::File)), None);
        }
        entries
    }

    #[test]
    fn restoring_each_of_many_removed_files_examines_each_entry_once() {
        let mut entries = removed();
        for n in 0..FILES {
            assert_eq!(entries.places_of(DIRS + n), [place(n)]);
            entries.restore(&place(n));
        }
        assert!(entries.iter().all(|(_, one)| one.after == one.before));
        assert_eq!(entries.examined, FILES as usize);
    }

    #[test]
    fn keeping_each_of_many_removed_directories_examines_each_entry_once() {
        let mut entries = removed();
        for dir in 0..DIRS {
            assert!(entries.keep_in(dir).is_empty());
        }
        assert!(entries.iter().all(|(_, one)| one.after == one.before));
        assert_eq!(entries.examined, FILES as usize);
    }

    #[test]
    fn a_place_is_found_by_the_inodes_before_and_after_and_by_no_earlier_one() {
        let mut entries = Entries::default();
        let (was, wanted, is) = ((7, FileKind::File), (8, FileKind::File), (9, FileKind::Dir));
        entries.set(place(1), Some(was), Some(wanted));
        assert!(entries.puts(8) && !entries.puts(7));
        entries.set(place(1), Some(was), Some(is));
        assert_eq!(entries.places_of(7), [place(1)]);
        assert_eq!(entries.places_of(9), [place(1)]);
        assert!(entries.places_of(8).is_empty() && !entries.puts(8));
        entries.restore(&place(1));
        assert!(entries.places_of(9).is_empty());
        entries.set(place(1), Some(was), None);
        assert!(entries.drop_in(&BTreeSet::from([place(1).0])).is_empty());
        entries.set(place(1), Some(was), Some(is));
        assert_eq!(entries.drop_in(&BTreeSet::from([place(1).0])), [9]);
    }
}

//! The entries, inodes and pages by which the dictionaries of two states differ, and the ways to
//! them.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;

use super::content;
use super::side::Side;
use crate::attr::Ino;
use crate::error::Result;
use crate::layout::{self, ImapKey};

/// The entries, inodes and pages that differ in the dictionaries.
#[derive(Default)]
pub(super) struct Marks {
    /// The marked names of each directory. The entry itself differs, or the object to which it
    /// leads, or an object below that one.
    pub names: HashMap<Ino, BTreeSet<Vec<u8>>>,
    /// The inodes whose node, extended attributes or content differ.
    pub inodes: HashSet<Ino>,
    /// The files with pages that differ in more than zeros at their end.
    pub pages: HashSet<Ino>,
}

impl Marks {
    pub fn of(old: &Side, new: &Side) -> Result<Marks> {
        let mut marks = Marks::default();
        let mut parents = BTreeSet::new();
        for change in old.state.difference(old.layout.nmap, &new.state, new.layout.nmap)? {
            let (parent, name) = {
                let change = change?;
                let (parent, name) = layout::decode_name_key(&change.key)?;
                (parent, name.to_vec())
            };
            marks.names.entry(parent).or_default().insert(name);
            parents.insert(parent);
        }
        for change in old.state.difference(old.layout.imap, &new.state, new.layout.imap)? {
            if let ImapKey::Node(ino) | ImapKey::Xattr(ino, _) =
                layout::decode_imap_key(&change?.key)?
            {
                marks.inodes.insert(ino);
            }
        }
        for change in old.state.difference(old.layout.dmap, &new.state, new.layout.dmap)? {
            let change = change?;
            let (ino, _) = layout::decode_page_key(&change.key)?;
            if marks.pages.contains(&ino) {
                continue;
            }
            let bytes =
                |tuple: Option<kvdb::Tuple>| tuple.map_or(Ok(Bytes::new()), |tuple| tuple.value());
            if !content::same_but_for_zeros(&bytes(change.before)?, &bytes(change.after)?) {
                marks.pages.insert(ino);
                marks.inodes.insert(ino);
            }
        }
        for (parent, name, _) in new.names_of(&marks.inodes)? {
            marks.names.entry(parent).or_default().insert(name);
            parents.insert(parent);
        }
        for side in [old, new] {
            marks.above(side, &parents)?;
        }
        Ok(marks)
    }

    /// Marks the names on the way to these directories.
    pub fn above(&mut self, side: &Side, dirs: &BTreeSet<Ino>) -> Result<()> {
        for (parent, name) in side.ways_to(dirs)? {
            self.names.entry(parent).or_default().insert(name);
        }
        Ok(())
    }
}

//! The second half of a repair: the tree that the names make, after all tuples were read. Cycles
//! are cut, inodes without a name get one in `lost+found`, and changed nodes are written with the
//! counts that were found.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use super::Mend;
use crate::attr::{FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::inode::inode_allocator::collisions;
use crate::layout::reservation::INO_LIMIT;
use crate::layout::{self, Body};
use crate::upkeep::verify::Finding;

impl Mend<'_> {
    /// Cuts each cycle of directories at one entry, and counts the remaining entries of
    /// directories.
    pub(super) fn tree(&mut self) {
        let dirs: Vec<Ino> = self
            .inodes
            .iter()
            .filter(|(_, s)| s.attr.kind == FileKind::Dir)
            .map(|(ino, _)| *ino)
            .collect();
        let mut sound: HashSet<Ino> = HashSet::from([ROOT]);
        for &dir in &dirs {
            let (mut way, mut at) = (Vec::new(), dir);
            let mut on_way = BTreeSet::new();
            while !sound.contains(&at) && on_way.insert(at) {
                way.push(at);
                match self.inodes.get(&at).and_then(|s| s.found_in.as_ref()) {
                    Some((parent, _)) => at = *parent,
                    // The directory has no name, and gets one later.
                    None => break,
                }
            }
            if !sound.contains(&at)
                && let Some((parent, name)) =
                    self.inodes.get_mut(&at).and_then(|s| s.found_in.take())
            {
                self.note(
                    at,
                    format!("the directory lay in itself, by `{}` in inode {parent}: that entry is removed", name.escape_ascii()),
                );
                self.batch.delete(self.layout.nmap, layout::name_key(parent, &name));
            }
            sound.extend(way);
        }
        for dir in dirs {
            let Some((parent, _)) = self.inodes.get(&dir).and_then(|s| s.found_in.clone()) else {
                continue;
            };
            self.count_directory(dir, parent);
        }
    }

    /// Counts the single name of a directory, which is in `parent`.
    fn count_directory(&mut self, dir: Ino, parent: Ino) {
        if let Some(seen) = self.inodes.get_mut(&dir) {
            seen.names = 1;
        }
        if let Some(above) = self.inodes.get_mut(&parent) {
            above.entries += 1;
            above.subdirectories += 1;
        }
    }

    /// Gives every inode without a name one in `lost+found`.
    pub(super) fn lost_and_found(&mut self) -> Result<()> {
        let nameless: Vec<Ino> = self
            .inodes
            .iter()
            .filter(|(ino, s)| **ino != ROOT && s.names == 0)
            .map(|(ino, _)| *ino)
            .collect();
        if nameless.is_empty() {
            return Ok(());
        }
        let directory = self.lost_found()?;
        for ino in nameless {
            // The inode may be lost+found itself, if that had lost its own name.
            if ino == directory {
                continue;
            }
            let name = self.free_name(directory, &format!("inode-{ino}"))?;
            let Some(seen) = self.inodes.get_mut(&ino) else { continue };
            let kind = seen.attr.kind;
            if kind == FileKind::Dir {
                seen.found_in = Some((directory, name.clone()));
                self.count_directory(ino, directory);
            } else {
                seen.names = 1;
                seen.attr.parent = directory;
                seen.changed = true;
                if let Some(above) = self.inodes.get_mut(&directory) {
                    above.entries += 1;
                }
            }
            self.batch.put(
                self.layout.nmap,
                layout::name_key(directory, &name),
                layout::encode_name(ino, kind),
            );
            self.note(
                ino,
                format!("it had no name: it is `{}` in lost+found", name.escape_ascii()),
            );
        }
        Ok(())
    }

    /// Removes the reservations of directories that would assign a number a second time. Only
    /// reservations within `valid` can assign numbers.
    pub(super) fn reservations(&mut self, valid: Range<Ino>) {
        let reserved = self.inodes.iter().map(|(ino, seen)| (seen.attr.reserved, *ino));
        let reserved = reserved.filter(|(reserved, _)| !reserved.is_empty()).collect();
        let inodes = self.inodes.keys().chain(&self.orphans).copied();
        for (dir, what) in collisions(reserved, valid, inodes) {
            self.note(dir, format!("{what}: reserves others now"));
            if let Some(seen) = self.inodes.get_mut(&dir) {
                seen.attr.reserved = Default::default();
                seen.changed = true;
            }
        }
    }

    /// Returns the directory for inodes that have lost their names, making it if necessary.
    fn lost_found(&mut self) -> Result<Ino> {
        const NAME: &[u8] = b"lost+found";
        let there = self
            .inodes
            .iter()
            .find(|(_, s)| matches!(&s.found_in, Some((ROOT, name)) if name == NAME));
        if let Some((ino, _)) = there {
            return Ok(*ino);
        }
        let name = self.free_name(ROOT, "lost+found")?;
        let highest = self.inodes.last_key_value().map_or(ROOT, |(ino, _)| *ino);
        let ino = self.largest.max(highest) + 1;
        if ino >= INO_LIMIT {
            return Err(Error::Corrupt {
                ino,
                what: "there is no number left for lost+found".into(),
            });
        }
        self.make(ino, FileKind::Dir);
        self.mended.pop();
        self.note(ino, "lost+found was made");
        if let Some(seen) = self.inodes.get_mut(&ino) {
            seen.found_in = Some((ROOT, name.clone()));
        }
        self.count_directory(ino, ROOT);
        self.batch.put(
            self.layout.nmap,
            layout::name_key(ROOT, &name),
            layout::encode_name(ino, FileKind::Dir),
        );
        Ok(ino)
    }

    /// Returns a name that is free in the directory, and was free before the repair.
    fn free_name(&self, dir: Ino, name: &str) -> Result<Vec<u8>> {
        let mut number = 0;
        loop {
            let name = if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
            if !self.view.contains(self.layout.nmap, layout::name_key(dir, name.as_bytes()))? {
                return Ok(name.into_bytes());
            }
            number += 1;
        }
    }

    /// Sets the counts in the nodes to the counted values, and writes the nodes that have changed.
    pub(super) fn write(&mut self) {
        let mut mended = Vec::new();
        for (&ino, seen) in &mut self.inodes {
            let attr = &mut seen.attr;
            let mut set = |what: &str, is: u64, should: u64| {
                if is != should {
                    mended.push(Finding { ino, what: format!("{what}: {is}, now {should}") });
                    seen.changed = true;
                }
            };
            let links =
                if attr.kind == FileKind::Dir { 2 + seen.subdirectories } else { seen.names };
            set("links", u64::from(attr.nlink), links);
            attr.nlink = u32::try_from(links).unwrap_or(u32::MAX);
            if attr.kind == FileKind::Dir {
                let parent = seen.found_in.as_ref().map_or(ROOT, |(parent, _)| *parent);
                set("entries", attr.size, seen.entries);
                set("the directory that it is in", attr.parent, parent);
                (attr.size, attr.parent) = (seen.entries, parent);
            }
            let pages = match attr.body {
                Body::Paged(pages) => pages,
                Body::Inline(_) => 0,
            };
            set("pages", pages, seen.pages);
            if pages != seen.pages {
                attr.body = Body::Paged(seen.pages);
            }
            if seen.changed {
                let node = layout::encode_node(attr, seen.xattrs.as_ref(), &seen.content);
                self.batch.put(self.layout.imap, layout::node_key(ino), node);
            }
        }
        self.mended.append(&mut mended);
    }
}

//! The first half of a repair: the tuples of the three dictionaries, in the order of their keys.
//! Tuples that contradict a node are cut or removed. If only pages or entries of an inode are left,
//! a node is made.

use std::collections::BTreeMap;

use kvdb::Tuple;

use super::{Losses, Mend, seen, word};
use crate::attr::{FileKind, Ino, ROOT};
use crate::error::Result;
use crate::layout::counter::Reserved;
use crate::layout::reservation::INO_LIMIT;
use crate::layout::{self, Body, ImapKey, PAGE, Super, XattrValue};
use crate::space::promises::Ranges;
use crate::upkeep::verify::Finding;

/// An inode, and its attribute values that are stored under keys of their own, by name with their
/// lengths.
type External = (Ino, BTreeMap<Box<[u8]>, u64>);

impl Mend<'_> {
    /// Reads `imap`: keeps the inodes, and removes tuples without a meaning.
    pub(super) fn nodes(&mut self) -> Result<()> {
        let mut has_record = false;
        let mut external = External::default();
        let mut cursor = self.view.cursor(self.layout.imap, &[], &[])?;
        while let Some(tuple) = cursor.next()? {
            has_record |= self.imap_tuple(&tuple, &mut external)?;
        }
        self.settle_xattrs(external);
        self.settle_orphans();
        if !has_record {
            self.make_record();
        }
        if self.inodes.get(&ROOT).is_none_or(|root| root.attr.kind != FileKind::Dir) {
            self.make(ROOT, FileKind::Dir);
            if let Some(root) = self.inodes.get_mut(&ROOT) {
                root.attr.perm = 0o755;
            }
        }
        Ok(())
    }

    /// Takes one tuple of `imap`. Returns `true` for the file system's own record if it is sound.
    fn imap_tuple(&mut self, tuple: &Tuple, external: &mut External) -> Result<bool> {
        let imap = self.layout.imap;
        let decoded = layout::decode_imap_key(&tuple.key);
        if !matches!(decoded, Ok(ImapKey::Xattr(ino, _)) if ino == external.0) {
            self.settle_xattrs(std::mem::take(external));
        }
        match decoded {
            Err(_) => {
                let key = tuple.key.escape_ascii();
                self.note(0, format!("the key `{key}` of imap means nothing: removed"));
                self.batch.delete(imap, tuple.key.clone());
            }
            Ok(ImapKey::Super) => {
                let value = tuple.value()?;
                return match Super::decode(&value) {
                    Ok(_) => Ok(true),
                    // The record may belong to another version, which this program must not repair.
                    Err(e) if value.starts_with(b"kvfs") => Err(e),
                    Err(_) => Ok(false),
                };
            }
            Ok(ImapKey::Moves | ImapKey::Bases(_)) => {}
            Ok(ImapKey::Loss(_)) if self.losses == Losses::Keep => {}
            Ok(ImapKey::Loss(_)) => self.batch.delete(imap, tuple.key.clone()),
            Ok(ImapKey::Promise(ino)) => {
                let is_sound = Ranges::decode(&tuple.value()?).is_some();
                self.keep_if(is_sound, tuple, (ino, "the note of its promised space"));
            }
            Ok(ImapKey::Scrub) => {
                let is_sound = layout::decode_scrub(&tuple.value()?).is_some();
                self.keep_if(is_sound, tuple, (0, "the note of the last scrub"));
            }
            Ok(ImapKey::Numbers) => {
                let is_sound = layout::decode_numbers(&tuple.value()?).is_some();
                self.keep_if(is_sound, tuple, (0, "the bound of the inode numbers"));
            }
            Ok(ImapKey::Reserved) => {
                let is_sound = Reserved::decode(&tuple.value()?).is_some();
                self.keep_if(is_sound, tuple, (0, "the mark of the reserved numbers"));
            }
            Ok(ImapKey::Orphan(ino)) => drop(self.orphans.insert(ino)),
            Ok(ImapKey::Node(ino)) => match layout::decode_node(ino, &tuple.value()?) {
                Ok((attr, xattrs, content)) => {
                    external.0 = ino;
                    self.inodes.insert(ino, seen(attr, xattrs, content));
                }
                Err(e) => {
                    self.note(ino, format!("{e}: removed"));
                    self.batch.delete(imap, tuple.key.clone());
                }
            },
            Ok(ImapKey::Xattr(ino, name)) => {
                let known = self.inodes.get(&ino).and_then(|s| s.xattrs.as_ref()?.get(name));
                let len = tuple.value_len() as u64;
                if matches!(known, Some(XattrValue::External(expected)) if u64::from(*expected) == len)
                {
                    external.1.insert(name.into(), len);
                } else if !self.orphans.contains(&ino) {
                    let name = name.escape_ascii();
                    let what = "that no node knows: removed";
                    self.note(ino, format!("the value of an attribute `{name}` {what}"));
                    self.batch.delete(imap, tuple.key.clone());
                }
            }
        }
        Ok(false)
    }

    /// Removes a tuple unless it is sound. `what` names it and its inode in the note.
    fn keep_if(&mut self, is_sound: bool, tuple: &Tuple, (ino, what): (Ino, &str)) {
        if !is_sound {
            self.note(ino, format!("{what} was malformed: removed"));
            self.batch.delete(self.layout.imap, tuple.key.clone());
        }
    }

    /// Removes the orphan records of inodes that have a node.
    fn settle_orphans(&mut self) {
        for ino in self.orphans.clone() {
            if self.inodes.contains_key(&ino) {
                self.note(ino, "it had a node and was to be removed: it stays");
                self.batch.delete(self.layout.imap, layout::orphan_key(ino));
                self.orphans.remove(&ino);
            }
        }
    }

    /// Makes the file system's own record.
    fn make_record(&mut self) {
        let mut hash_key = [0; 16];
        hash_key[..8].copy_from_slice(&self.random[0].to_le_bytes());
        hash_key[8..].copy_from_slice(&self.random[1].to_le_bytes());
        self.note(0, "the file system's own record was lost: it has a new one");
        let record = Super { hash_key, zone_size: None }.encode();
        self.batch.put(self.layout.imap, layout::SUPER_KEY.to_vec(), record);
    }

    /// Removes the attributes of an inode from its node if their values are missing.
    fn settle_xattrs(&mut self, (ino, found): External) {
        let Some(seen) = self.inodes.get_mut(&ino) else { return };
        let Some(xattrs) = &mut seen.xattrs else { return };
        let lost: Vec<Box<[u8]>> = xattrs
            .iter()
            .filter(|(name, value)| {
                matches!(value, XattrValue::External(_)) && !found.contains_key(*name)
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in lost {
            xattrs.remove(&name);
            seen.changed = true;
            let what = format!(
                "the value of its attribute `{}` was lost: the attribute is removed",
                name.escape_ascii()
            );
            self.mended.push(Finding { ino, what });
        }
    }

    /// Reads `dmap`: counts the pages of each file, and makes a node if only pages are left.
    pub(super) fn pages(&mut self) -> Result<()> {
        let dmap = self.layout.dmap;
        let mut cursor = self.view.cursor(dmap, &[], &[])?;
        while let Some(tuple) = cursor.next()? {
            let mut len = tuple.value_len() as u64;
            if layout::is_lost_page(len) {
                if self.losses == Losses::Accept || self.is_stray(&tuple.key) {
                    self.batch.delete(dmap, tuple.key);
                    continue;
                }
                // For the checks below, a lost page has the greatest length possible at its place.
                len = self.longest_page(&tuple.key);
            }
            let page = layout::decode_page_key(&tuple.key).ok().filter(|(ino, block)| {
                let fits = block.checked_mul(PAGE).is_some_and(|at| at <= i64::MAX as u64 - PAGE);
                (ROOT + 1..INO_LIMIT).contains(ino) && fits && len <= PAGE
            });
            let Some((ino, block)) = page else {
                self.note(
                    0,
                    format!("the page `{}` means nothing: removed", tuple.key.escape_ascii()),
                );
                self.batch.delete(dmap, tuple.key);
                continue;
            };
            if self.orphans.contains(&ino) {
                continue;
            }
            let new = !self.inodes.contains_key(&ino);
            if new {
                self.make(ino, FileKind::File);
            }
            let end = block * PAGE + len;
            let Some(seen) = self.inodes.get_mut(&ino) else { continue };
            let made = seen.changed
                && seen.attr.nlink == 1
                && seen.attr.parent == 0
                && matches!(seen.attr.body, Body::Inline(0));
            let paged = matches!(seen.attr.body, Body::Paged(_))
                || (made && seen.attr.kind == FileKind::File);
            if made && paged {
                // Only the end of the data is known of the file's size.
                seen.attr.size = seen.attr.size.max(end);
            }
            let size = seen.attr.size;
            if !paged || seen.attr.kind != FileKind::File || block * PAGE >= size {
                self.note(ino, format!("page {block} is none of its: removed"));
                self.batch.delete(dmap, tuple.key);
                continue;
            }
            seen.pages += 1;
            if end > size {
                let value = tuple.value()?.slice(..(size - block * PAGE) as usize);
                self.note(ino, format!("page {block} reached beyond the size: cut"));
                self.batch.put(dmap, tuple.key, value);
            }
        }
        Ok(())
    }

    /// Returns the greatest length that the page with this key can have in its file.
    fn longest_page(&self, key: &[u8]) -> u64 {
        let left = layout::decode_page_key(key).ok().and_then(|(ino, block)| {
            let size = self.inodes.get(&ino)?.attr.size;
            size.checked_sub(block.checked_mul(PAGE)?).filter(|left| *left > 0)
        });
        left.map_or(PAGE, |left| left.min(PAGE))
    }

    /// Reads `nmap`: counts the names of each inode, and makes a directory if only its entries are
    /// left.
    pub(super) fn names(&mut self) -> Result<()> {
        let nmap = self.layout.nmap;
        let mut cursor = self.view.cursor(nmap, &[], &[])?;
        // Entries of missing inodes: the entries of a directory may still show that it existed.
        let mut dangling = Vec::new();
        while let Some(tuple) = cursor.next()? {
            let value = tuple.value()?;
            let entry = layout::decode_name_key(&tuple.key).and_then(|(parent, name)| {
                Ok((parent, name.to_vec(), layout::decode_name(parent, &value)?))
            });
            let Ok((parent, name, (ino, kind))) = entry else {
                self.note(
                    0,
                    format!("the entry `{}` is impossible: removed", tuple.key.escape_ascii()),
                );
                self.batch.delete(nmap, tuple.key);
                continue;
            };
            match self.inodes.get(&parent).map(|s| s.attr.kind) {
                Some(FileKind::Dir) => {}
                None if (ROOT..INO_LIMIT).contains(&parent) && !self.orphans.contains(&parent) => {
                    self.make(parent, FileKind::Dir)
                }
                _ => {
                    self.note(
                        parent,
                        format!(
                            "the entry `{}` in what is no directory: removed",
                            name.escape_ascii()
                        ),
                    );
                    self.batch.delete(nmap, tuple.key);
                    continue;
                }
            }
            match self.inodes.contains_key(&ino) {
                true => self.entry(parent, name, ino, kind),
                false => dangling.push((parent, name, ino, kind)),
            }
        }
        for (parent, name, ino, kind) in dangling {
            if self.inodes.contains_key(&ino) {
                self.entry(parent, name, ino, kind);
            } else {
                self.note(
                    parent,
                    format!(
                        "the entry `{}` named inode {ino}, which does not exist: removed",
                        name.escape_ascii()
                    ),
                );
                self.batch.delete(nmap, layout::name_key(parent, &name));
            }
        }
        Ok(())
    }

    /// Notes an entry that leads from a directory to an inode. Entries of directories are counted
    /// later, when it is known which of them stay.
    fn entry(&mut self, parent: Ino, name: Vec<u8>, ino: Ino, kind: FileKind) {
        let nmap = self.layout.nmap;
        let Some(seen) = self.inodes.get_mut(&ino) else { return };
        let (real, home) = (seen.attr.kind, seen.attr.parent);
        let mut goes = None;
        if real != FileKind::Dir {
            seen.names += 1;
            if let Some(dir) = self.inodes.get_mut(&parent) {
                dir.entries += 1;
            }
        } else {
            goes = match &seen.found_in {
                None => None,
                // Among several entries of a directory, the one in the parent that its node names
                // stays.
                Some((before, _)) if *before != home && parent == home => seen.found_in.take(),
                Some(_) => Some((parent, name.clone())),
            };
            if seen.found_in.is_none() {
                seen.found_in = Some((parent, name.clone()));
            }
        }
        if kind != real {
            let what = format!(
                "the entry `{}` said that it is a {}: it is a {}",
                name.escape_ascii(),
                word(kind),
                word(real)
            );
            self.note(ino, what);
            self.batch.put(nmap, layout::name_key(parent, &name), layout::encode_name(ino, real));
        }
        if let Some((dir, name)) = goes {
            self.note(
                ino,
                format!(
                    "the directory had another name, `{}` in inode {dir}: removed",
                    name.escape_ascii()
                ),
            );
            self.batch.delete(nmap, layout::name_key(dir, &name));
        }
    }
}

//! Repair of the file system: makes the three dictionaries one again, after blocks were lost, or
//! after anything else that the checker finds. It changes what contradicts something else and
//! nothing that is sound, and it takes away only what means nothing: names that lead nowhere,
//! values that nothing refers to. What has lost its name gets one in `lost+found`; data that has
//! lost its node gets a new one.
//!
//! All of it is one batch over one view. Memory is that of the checker: an entry for each inode.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use env::Env;
use kvdb::{Batch, Kvdb, RepairReport, View};

use crate::attr::{FileKind, Ino, ROOT, Timestamp};
use crate::error::{Error, Result};
use crate::fs::{largest_ino, largest_kept, largest_taken, noted};
use crate::inode_allocator::collisions;
use crate::layout::{
    self, Attributes, Body, ImapKey, Layout, Numbers, PAGE, Super, XattrValue, Xattrs,
};
use crate::reservation::INO_LIMIT;
use crate::verify::Finding;

/// What a repair did.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Blocks that could not be read, and what hung on them: see [`kvdb::Kvdb::repair`].
    pub store: RepairReport,
    /// What was wrong with the file system, and what became of it.
    pub mended: Vec<Finding>,
}

/// Repairs the store and the file system in it, if there is one. All of it takes effect at once, or
/// nothing.
pub fn repair(db: &Kvdb, env: &dyn Env) -> Result<Repaired> {
    let mut mended = Vec::new();
    let layout = Layout::find(db);
    let store = db.repair(|view| -> Result<Batch> {
        let Some(layout) = layout else { return Ok(Batch::new()) };
        let largest =
            largest_ino(view, &layout)?.max(largest_kept(db, "").0).max(largest_taken(db, &layout));
        let largest = noted(view, &layout)?.map_or(largest, |noted| largest.max(noted.bound - 1));
        let mut mend = Mend::new(view, layout, env, largest);
        mend.nodes()?;
        mend.pages()?;
        mend.names()?;
        mend.tree();
        mend.lost_and_found()?;
        mend.reservations();
        mend.write();
        mended = mend.mended;
        Ok(mend.batch)
    })?;
    mended.sort_by_key(|f| f.ino);
    Ok(Repaired { store, mended })
}

/// An inode as it is, and what was found of it.
struct Examined {
    attr: Attributes,
    xattrs: Option<Xattrs>,
    content: Bytes,
    changed: bool,
    names: u64,
    /// Of a directory: its entries, those that are directories, where it is, and by which name.
    entries: u64,
    subdirectories: u64,
    found_in: Option<(Ino, Vec<u8>)>,
    pages: u64,
}

struct Mend<'a> {
    view: &'a View,
    layout: Layout,
    now: Timestamp,
    random: [u64; 2],
    largest: Ino,
    numbers: Option<Numbers>,
    batch: Batch,
    mended: Vec<Finding>,
    inodes: BTreeMap<Ino, Examined>,
    orphans: HashSet<Ino>,
}

impl<'a> Mend<'a> {
    fn new(view: &'a View, layout: Layout, env: &dyn Env, largest: Ino) -> Mend<'a> {
        let random = [env.random(), env.random()];
        Mend {
            view,
            layout,
            now: env.wall().into(),
            random,
            largest,
            numbers: None,
            batch: Batch::new(),
            mended: Vec::new(),
            inodes: BTreeMap::new(),
            orphans: HashSet::new(),
        }
    }

    fn note(&mut self, ino: Ino, what: impl Into<String>) {
        self.mended.push(Finding { ino, what: what.into() });
    }

    /// A node in the place of one that is lost: the superuser's alone.
    fn make(&mut self, ino: Ino, kind: FileKind) {
        let perm = if kind == FileKind::Dir { 0o700 } else { 0o600 };
        let now = self.now;
        let attr = Attributes {
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            body: Body::Inline(0),
            parent: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            reserved: Default::default(),
        };
        let mut seen = seen(attr, None, Bytes::new());
        seen.changed = true;
        self.inodes.insert(ino, seen);
        self.note(ino, format!("its node was lost: it has a new one, of a {}", word(kind)));
    }

    fn nodes(&mut self) -> Result<()> {
        let imap = self.layout.imap;
        let mut has_super = false;
        // Values of the inode at hand that lie under keys of their own.
        let mut external: (Ino, BTreeMap<Box<[u8]>, u64>) = (0, BTreeMap::new());
        let mut cursor = self.view.cursor(imap, &[], &[])?;
        while let Some(tuple) = cursor.next()? {
            let decoded = layout::decode_imap_key(&tuple.key);
            if !matches!(decoded, Ok(ImapKey::Xattr(ino, _)) if ino == external.0) {
                self.settle_xattrs(std::mem::take(&mut external));
            }
            match decoded {
                Err(_) => {
                    self.note(
                        0,
                        format!(
                            "the key `{}` of imap means nothing: removed",
                            tuple.key.escape_ascii()
                        ),
                    );
                    self.batch.delete(imap, tuple.key);
                }
                Ok(ImapKey::Super) => match Super::decode(&tuple.value()?) {
                    Ok(_) => has_super = true,
                    // Of another version, perhaps: nothing here is for this program to mend.
                    Err(e) if tuple.value()?.starts_with(b"kvfs") => return Err(e),
                    Err(_) => {}
                },
                Ok(ImapKey::Moves) => {}
                Ok(ImapKey::Scrub) => {
                    if crate::describe::decode_scrub(&tuple.value()?).is_none() {
                        self.note(0, "the note of the last scrub was malformed: removed");
                        self.batch.delete(imap, tuple.key);
                    }
                }
                Ok(ImapKey::Numbers) => {
                    self.numbers = layout::decode_numbers(&tuple.value()?);
                    if self.numbers.is_none() {
                        self.note(0, "the bound of the inode numbers was malformed: removed");
                        self.batch.delete(imap, tuple.key);
                    }
                }
                Ok(ImapKey::Orphan(ino)) => drop(self.orphans.insert(ino)),
                Ok(ImapKey::Node(ino)) => match layout::decode_node(ino, &tuple.value()?) {
                    Ok((attr, xattrs, content)) => {
                        external.0 = ino;
                        self.inodes.insert(ino, seen(attr, xattrs, content));
                    }
                    Err(e) => {
                        self.note(ino, format!("{e}: removed"));
                        self.batch.delete(imap, tuple.key);
                    }
                },
                Ok(ImapKey::Xattr(ino, name)) => {
                    let known = self.inodes.get(&ino).and_then(|s| s.xattrs.as_ref()?.get(name));
                    let len = tuple.value_len() as u64;
                    if matches!(known, Some(XattrValue::External(expected)) if u64::from(*expected) == len)
                    {
                        external.1.insert(name.into(), len);
                    } else if !self.orphans.contains(&ino) {
                        self.note(
                            ino,
                            format!(
                                "the value of an attribute `{}` that no node knows: removed",
                                name.escape_ascii()
                            ),
                        );
                        self.batch.delete(imap, tuple.key.clone());
                    }
                }
            }
        }
        self.settle_xattrs(external);
        for ino in self.orphans.clone() {
            if self.inodes.contains_key(&ino) {
                self.note(ino, "it had a node and was to be removed: it stays");
                self.batch.delete(imap, layout::orphan_key(ino));
                self.orphans.remove(&ino);
            }
        }
        if !has_super {
            let mut hash_key = [0; 16];
            hash_key[..8].copy_from_slice(&self.random[0].to_le_bytes());
            hash_key[8..].copy_from_slice(&self.random[1].to_le_bytes());
            self.note(0, "the file system's own record was lost: it has a new one");
            self.batch.put(imap, layout::SUPER_KEY.to_vec(), Super { hash_key }.encode());
        }
        if self.inodes.get(&ROOT).is_none_or(|root| root.attr.kind != FileKind::Dir) {
            self.make(ROOT, FileKind::Dir);
            if let Some(root) = self.inodes.get_mut(&ROOT) {
                root.attr.perm = 0o755;
            }
        }
        Ok(())
    }

    /// Attributes whose values are missing are taken out of their node.
    fn settle_xattrs(&mut self, (ino, found): (Ino, BTreeMap<Box<[u8]>, u64>)) {
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

    fn pages(&mut self) -> Result<()> {
        let dmap = self.layout.dmap;
        let mut cursor = self.view.cursor(dmap, &[], &[])?;
        while let Some(tuple) = cursor.next()? {
            let len = tuple.value_len() as u64;
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
                // What is known of its size is where its data ends.
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

    fn names(&mut self) -> Result<()> {
        let nmap = self.layout.nmap;
        let mut cursor = self.view.cursor(nmap, &[], &[])?;
        // Entries that lead to nothing: a directory may turn out to be there by what is in it.
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

    /// An entry that leads from a directory to an inode. Entries of directories are counted later,
    /// when it is known which of them stay.
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
                // Of several the one stays that its node knows.
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

    /// Directories that lead in a circle are cut loose from it, and what entries of directories
    /// remain is counted.
    fn tree(&mut self) {
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
                    // It has no name, and gets one.
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

    /// A directory has its one name, in another.
    fn count_directory(&mut self, dir: Ino, parent: Ino) {
        if let Some(seen) = self.inodes.get_mut(&dir) {
            seen.names = 1;
        }
        if let Some(above) = self.inodes.get_mut(&parent) {
            above.entries += 1;
            above.subdirectories += 1;
        }
    }

    /// What has no name gets one.
    fn lost_and_found(&mut self) -> Result<()> {
        let nameless: Vec<Ino> = self
            .inodes
            .iter()
            .filter(|(ino, s)| **ino != ROOT && s.names == 0)
            .map(|(ino, _)| *ino)
            .collect();
        if nameless.is_empty() {
            return Ok(());
        }
        let folder = self.lost_found()?;
        for ino in nameless {
            // It may be the very folder, when that had lost its own name.
            if ino == folder {
                continue;
            }
            let name = self.free_name(folder, &format!("inode-{ino}"))?;
            let Some(seen) = self.inodes.get_mut(&ino) else { continue };
            let kind = seen.attr.kind;
            if kind == FileKind::Dir {
                seen.found_in = Some((folder, name.clone()));
                self.count_directory(ino, folder);
            } else {
                seen.names = 1;
                seen.attr.parent = folder;
                seen.changed = true;
                if let Some(above) = self.inodes.get_mut(&folder) {
                    above.entries += 1;
                }
            }
            self.batch.put(
                self.layout.nmap,
                layout::name_key(folder, &name),
                layout::encode_name(ino, kind),
            );
            self.note(
                ino,
                format!("it had no name: it is `{}` in lost+found", name.escape_ascii()),
            );
        }
        Ok(())
    }

    /// The directory for what has lost its name, made if need be.
    /// A directory that would give a number a second time reserves others.
    fn reservations(&mut self) {
        let reserved = self.inodes.iter().map(|(ino, seen)| (seen.attr.reserved, *ino));
        let reserved = reserved.filter(|(reserved, _)| !reserved.is_empty()).collect();
        let inodes = self.inodes.keys().chain(&self.orphans).copied();
        for (dir, what) in collisions(reserved, self.numbers, inodes) {
            self.note(dir, format!("{what}: reserves others now"));
            if let Some(seen) = self.inodes.get_mut(&dir) {
                seen.attr.reserved = Default::default();
                seen.changed = true;
            }
        }
    }

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

    /// A name that nothing in the directory has, or had.
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

    /// Nodes say what was counted.
    fn write(&mut self) {
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

fn seen(attr: Attributes, xattrs: Option<Xattrs>, content: Bytes) -> Examined {
    Examined {
        attr,
        xattrs,
        content,
        changed: false,
        names: 0,
        entries: 0,
        subdirectories: 0,
        found_in: None,
        pages: 0,
    }
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice | FileKind::BlockDevice => "device",
    }
}

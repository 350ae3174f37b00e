//! The checker: verifies that the three dictionaries together form a file system.

use std::collections::HashMap;

use kvdb::{Kvdb, View};

use crate::attr::{FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::counter::{counted_below, notes_of, valid_reserved};
use crate::inode::inode_allocator::collisions;
use crate::layout::counter::Reserved;
use crate::layout::reservation::Reservation;
use crate::layout::{self, Attributes, Body, ImapKey, Layout, PAGE, XattrValue, blocks_of};
use crate::space::promises::Ranges;

/// A single inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The inode concerned; 0 for the file system as a whole.
    pub ino: Ino,
    /// A description of the inconsistency.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of directories.
    pub directories: u64,
    /// The number of files.
    pub files: u64,
    /// The number of symbolic links and special files.
    pub others: u64,
    /// The number of names.
    pub names: u64,
    /// The number of pages of files.
    pub pages: u64,
    /// Bytes of data stored, in pages and nodes.
    pub bytes: u64,
    /// The number of pages whose content was lost before an earlier repair: reading them fails.
    pub lost_pages: u64,
    /// The number of unlinked inodes that the next mount removes.
    pub orphans: u64,
    /// All inconsistencies.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns whether there are no inconsistencies.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, ino: Ino, what: impl Into<String>) {
        self.findings.push(Finding { ino, what: what.into() });
    }
}

impl Fs {
    /// Commits dirty data and checks the whole file system.
    pub fn verify(&self) -> Result<Report> {
        self.sync_all()?;
        check(self.core.scope.view()?, self.core.layout, self.core.db.here()?)
    }
}

/// Checks the committed state of the file system in `db`: every name has its inode, link counts and
/// entry counts match the names, every directory is reachable from the root, and every page belongs
/// to a file, is within its size and is counted. It takes a few hundred bytes of memory per inode.
pub fn verify(db: &Kvdb) -> Result<Report> {
    let Some(layout) = Layout::find(db) else {
        let mut report = Report::default();
        report.find(0, "there is no file system in this store");
        return Ok(report);
    };
    check(db.view(), layout, db)
}

fn check(view: View, layout: Layout, db: &Kvdb) -> Result<Report> {
    let mut check = Check {
        view,
        layout,
        report: Report::default(),
        inodes: HashMap::new(),
        reserved: Vec::new(),
    };
    check.nodes()?;
    check.numbers(db)?;
    check.names()?;
    check.pages()?;
    check.totals();
    Ok(check.report)
}

struct Seen {
    attr: Attributes,
    names: u64,
    subdirectories: u64,
    entries: u64,
    /// The directory that has an entry for this one.
    found_in: Ino,
    pages: u64,
    /// The number of `pages` whose content is lost.
    lost: u64,
    external: HashMap<Box<[u8]>, u32>,
    orphan: bool,
}

struct Check {
    view: View,
    layout: Layout,
    report: Report,
    inodes: HashMap<Ino, Option<Seen>>,
    /// The reservations of directories.
    reserved: Vec<(Reservation, Ino)>,
}

impl Check {
    fn nodes(&mut self) -> Result<()> {
        let mut has_super = false;
        let mut cursor = self.view.cursor(self.layout.imap, &[], &[])?;
        while let Some(tuple) = cursor.next()? {
            match layout::decode_imap_key(&tuple.key) {
                Err(e) => self.report.find(0, e.to_string()),
                Ok(ImapKey::Super) => match layout::Super::decode(&tuple.value()?) {
                    Ok(_) => has_super = true,
                    Err(e) => self.report.find(0, e.to_string()),
                },
                Ok(ImapKey::Moves | ImapKey::Loss(_) | ImapKey::Bases(_)) => {}
                // The note of a removed file has no effect.
                Ok(ImapKey::Promise(ino)) => {
                    if Ranges::decode(&tuple.value()?).is_none() {
                        self.report.find(ino, "the note of the space promised to it is malformed");
                    }
                }
                Ok(ImapKey::Scrub) if layout::decode_scrub(&tuple.value()?).is_some() => {}
                Ok(ImapKey::Scrub) => {
                    self.report.find(0, "the note of the last scrub is malformed")
                }
                Ok(ImapKey::Numbers) => {
                    if layout::decode_numbers(&tuple.value()?).is_none() {
                        self.report.find(0, "the bound of the inode numbers is malformed");
                    }
                }
                Ok(ImapKey::Reserved) => {
                    if Reserved::decode(&tuple.value()?).is_none() {
                        self.report.find(0, "the mark of the reserved inode numbers is malformed");
                    }
                }
                Ok(ImapKey::Orphan(ino)) => {
                    self.report.orphans += 1;
                    self.inodes.insert(ino, None);
                }
                Ok(ImapKey::Node(ino)) => self.node(ino, &tuple.value()?),
                Ok(ImapKey::Xattr(ino, name)) => {
                    let len = tuple.value_len() as u64;
                    match self.inodes.get_mut(&ino) {
                        Some(Some(seen)) => match seen.external.remove(name) {
                            Some(expected) if u64::from(expected) == len => {}
                            Some(expected) => self.report.find(
                                ino,
                                format!(
                                    "an extended attribute of {len} bytes, the node says {expected}"
                                ),
                            ),
                            None => self
                                .report
                                .find(ino, "an extended attribute that the node does not know"),
                        },
                        Some(None) => {}
                        None => self.report.find(ino, "an extended attribute without a node"),
                    }
                }
            }
        }
        if !has_super {
            self.report.find(0, "the file system's own record is missing");
        }
        Ok(())
    }

    fn numbers(&mut self, db: &Kvdb) -> Result<()> {
        // An earlier state, or that of a transaction, does not have the notes about its own
        // numbers.
        let (now, notes) = (db.view(), notes_of(db));
        let Some(bound) = counted_below(&self.layout, &now, notes)? else { return Ok(()) };
        for ino in self.inodes.keys().filter(|&&ino| ino >= bound) {
            self.report.find(*ino, format!("the numbers that were given end before {bound}"));
        }
        if let Some(valid) = valid_reserved((&self.view, &self.layout), &now, notes)? {
            let reserved = std::mem::take(&mut self.reserved);
            let inodes = self.inodes.keys().copied();
            let found = collisions(reserved, valid.first..bound, inodes);
            found.into_iter().for_each(|(dir, what)| self.report.find(dir, what));
        }
        Ok(())
    }

    fn node(&mut self, ino: Ino, value: &bytes::Bytes) {
        let (attr, xattrs, content) = match layout::decode_node(ino, value) {
            Ok(node) => node,
            Err(e) => return self.report.find(ino, e.to_string()),
        };
        match attr.kind {
            FileKind::Dir => self.report.directories += 1,
            FileKind::File => self.report.files += 1,
            _ => self.report.others += 1,
        }
        self.report.bytes += content.len() as u64;
        if !attr.reserved.is_empty() {
            self.reserved.push((attr.reserved, ino));
        }
        if attr.kind == FileKind::Symlink && content.len() as u64 != attr.size {
            self.report.find(ino, "a symbolic link that is not as long as its target");
        }
        if attr.nlink == 0 {
            self.report.find(ino, "a node without links");
        }
        let orphan = self.inodes.contains_key(&ino);
        if orphan {
            self.report.find(ino, "both an orphan and a node");
        }
        let external = xattrs
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| match value {
                XattrValue::External(len) => Some((name, len)),
                XattrValue::Inline(_) => None,
            })
            .collect();
        let seen = Seen {
            attr,
            names: 0,
            subdirectories: 0,
            entries: 0,
            found_in: 0,
            pages: 0,
            lost: 0,
            external,
            orphan,
        };
        self.inodes.insert(ino, Some(seen));
    }

    fn names(&mut self) -> Result<()> {
        let mut cursor = self.view.cursor(self.layout.nmap, &[], &[])?;
        while let Some(tuple) = cursor.next()? {
            let entry = layout::decode_name_key(&tuple.key).and_then(|(parent, name)| {
                Ok((parent, name, layout::decode_name(parent, &tuple.value()?)?))
            });
            let (parent, name, (ino, kind)) = match entry {
                Ok(entry) => entry,
                Err(Error::Corrupt { ino, what }) => {
                    self.report.find(ino, what);
                    continue;
                }
                Err(e) => return Err(e),
            };
            self.report.names += 1;
            let shown = name.escape_ascii().to_string();
            match self.inodes.get_mut(&parent) {
                Some(Some(dir)) if dir.attr.kind == FileKind::Dir => {
                    dir.entries += 1;
                    dir.subdirectories += u64::from(kind == FileKind::Dir);
                }
                _ => self.report.find(
                    parent,
                    format!("the entry `{shown}` in something that is not a directory"),
                ),
            }
            match self.inodes.get_mut(&ino) {
                Some(Some(seen)) => {
                    seen.names += 1;
                    seen.found_in = parent;
                    if seen.attr.kind != kind {
                        let found = seen.attr.kind;
                        self.report.find(
                            ino,
                            format!("the entry `{shown}` says {kind:?}, the node {found:?}"),
                        );
                    }
                }
                _ => self.report.find(
                    parent,
                    format!("the entry `{shown}` names inode {ino}, which does not exist"),
                ),
            }
        }
        Ok(())
    }

    fn pages(&mut self) -> Result<()> {
        let mut cursor = self.view.cursor(self.layout.dmap, &[], &[])?;
        let mut strays = HashMap::<Ino, u64>::new();
        while let Some(tuple) = cursor.next()? {
            let (ino, block) = match layout::decode_page_key(&tuple.key) {
                Ok(key) => key,
                Err(e) => {
                    self.report.find(0, e.to_string());
                    continue;
                }
            };
            let len = tuple.value_len() as u64;
            self.report.pages += 1;
            self.report.bytes += len;
            match self.inodes.get_mut(&ino) {
                Some(Some(seen)) => {
                    seen.pages += 1;
                    let size = seen.attr.size;
                    if layout::is_lost_page(len) {
                        self.report.lost_pages += 1;
                        seen.lost += 1;
                    } else if len > PAGE {
                        self.report.find(ino, format!("page {block} has {len} bytes"));
                    } else if block >= blocks_of(size)
                        || (block * PAGE).checked_add(len).is_none_or(|end| end > size)
                    {
                        self.report
                            .find(ino, format!("page {block} reaches beyond the size {size}"));
                    }
                }
                Some(None) => {}
                // A run that states share may mark a page that another one of them has.
                None if layout::is_lost_page(len) => {}
                None => *strays.entry(ino).or_default() += 1,
            }
        }
        for (ino, pages) in strays {
            self.report.find(ino, format!("{pages} pages without an inode"));
        }
        Ok(())
    }

    fn totals(&mut self) {
        let (mut findings, mut known) = (Vec::new(), HashMap::new());
        for (&ino, seen) in &self.inodes {
            let Some(seen) = seen else { continue };
            let mut find = |what: String| findings.push(Finding { ino, what });
            let attr = &seen.attr;
            let counted = match attr.body {
                Body::Paged(pages) => pages,
                Body::Inline(_) => 0,
            };
            // Where a repair cannot distinguish holes from lost pages, it assumes lost pages. A
            // snapshot does not change, so its nodes do not count them.
            if !(seen.pages - seen.lost..=seen.pages).contains(&counted) {
                find(format!("{} pages stored, the node says {counted}", seen.pages));
            }
            if !seen.external.is_empty() {
                find(format!("{} values of extended attributes are missing", seen.external.len()));
            }
            if seen.orphan {
                continue;
            }
            if attr.kind != FileKind::Dir {
                if seen.names != u64::from(attr.nlink) {
                    find(format!("{} names, the node says {}", seen.names, attr.nlink));
                }
                continue;
            }
            let names = u64::from(ino != ROOT);
            if seen.names != names {
                find(format!("a directory with {} names", seen.names));
            }
            if u64::from(attr.nlink) != 2 + seen.subdirectories {
                find(format!("{} subdirectories, but {} links", seen.subdirectories, attr.nlink));
            }
            if attr.size != seen.entries {
                find(format!("{} entries, the node says {}", seen.entries, attr.size));
            }
            let parent = if ino == ROOT { ROOT } else { seen.found_in };
            if attr.parent != parent {
                find(format!(
                    "lies in directory {parent}, but points to {} as its parent",
                    attr.parent
                ));
            }
            if !self.hangs_on_root(ino, &mut known) {
                find("not reachable from the root".into());
            }
        }
        if !matches!(self.inodes.get(&ROOT), Some(Some(root)) if root.attr.kind == FileKind::Dir) {
            findings.push(Finding { ino: ROOT, what: "there is no root directory".into() });
        }
        findings.sort_by_key(|f| f.ino);
        self.report.findings.append(&mut findings);
    }

    /// Returns whether a directory is reachable from the root. `known` has the results of earlier
    /// calls, so that all calls together take each step only once.
    fn hangs_on_root(&self, dir: Ino, known: &mut HashMap<Ino, bool>) -> bool {
        let (mut way, mut at) = (Vec::new(), dir);
        let hangs = loop {
            match (known.get(&at), self.inodes.get(&at)) {
                _ if at == ROOT => break true,
                (Some(hangs), _) => break *hangs,
                (None, Some(Some(seen))) if seen.found_in != 0 => {
                    // If the way returns to this directory, it contains a cycle.
                    known.insert(at, false);
                    way.push(at);
                    at = seen.found_in;
                }
                _ => break false,
            }
        };
        if hangs {
            known.extend(way.into_iter().map(|dir| (dir, true)));
        }
        hangs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvdb::{Batch, Durability};

    use super::*;
    use crate::{Caller, FsOptions};

    #[test]
    fn directories_are_found_on_the_root_however_deep_and_not_in_a_circle() {
        let (db, env) = (Kvdb::in_memory(), Arc::new(env::Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let make = |dir| fs.mkdir(dir, b"d", 0o755, Caller::default()).unwrap().ino;
        let (top, mut dirs) = (make(ROOT), Vec::new());
        (0..10_000).fold(top, |dir, _| {
            dirs.push(make(dir));
            dirs[dirs.len() - 1]
        });
        assert_eq!(fs.verify().unwrap().findings, []);
        // The tree is cut off from the root, and its upper half is closed to a cycle.
        let Layout { nmap, .. } = fs.core.layout;
        let mut batch = Batch::new();
        batch.delete(nmap, layout::name_key(ROOT, b"d"));
        batch.put(
            nmap,
            layout::name_key(dirs[5000], b"d"),
            layout::encode_name(top, FileKind::Dir),
        );
        db.commit(batch, Durability::Buffered).unwrap();
        let findings = verify(&db).unwrap().findings;
        let cut_off = findings.iter().filter(|f| f.what == "not reachable from the root").count();
        assert_eq!(cut_off, 1 + dirs.len());
    }

    #[test]
    fn a_page_at_the_end_of_all_numbers_is_found_and_no_panic() {
        let (db, env) = (Kvdb::in_memory(), Arc::new(env::Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let ino = fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
        fs.shutdown().unwrap();
        let Layout { imap, dmap, .. } = fs.core.layout;
        let node = db.get(imap, &layout::node_key(ino)).unwrap().unwrap();
        let (attr, ..) = layout::decode_node(ino, &node).unwrap();
        let endless = Attributes { size: u64::MAX, body: Body::Paged(1), ..attr };
        let mut batch = Batch::new();
        batch.put(imap, layout::node_key(ino), layout::encode_node(&endless, None, b""));
        let last = layout::page_key(ino, u64::MAX / PAGE);
        batch.put(dmap, last.to_vec(), vec![7; PAGE as usize]);
        db.commit(batch, Durability::Buffered).unwrap();
        let findings = verify(&db).unwrap().findings;
        assert!(findings.iter().any(|f| f.what.contains("beyond the size")), "{findings:?}");
    }
}

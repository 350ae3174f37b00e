//! The files of a damaged store: the remaining inodes, names and data, and the extent of the
//! losses.
//!
//! Nothing is inferred from anything else. An entry may refer to a lost node, a node may have lost
//! its names, and data may have no node. Each is recovered as far as possible.

use std::ops::Range;

use bytes::Bytes;
use kvdb::{Remnant, Salvage, Scan};

use crate::attr::{Attr, FileKind, Ino};
use crate::layout::{self, Attributes, Body, ImapKey, PAGE, XattrValue};

/// The remains of a file system.
pub struct Remains {
    salvage: Salvage,
}

/// The remains of an inode.
pub enum Left {
    /// The node, as far as it can be read.
    Node(Box<LeftNode>),
    /// The reason why the node cannot be read.
    Lost(String),
    /// No node is known to exist.
    None,
}

/// A node.
pub struct LeftNode {
    /// The attributes.
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Names and values of extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The parent of a directory; for any other inode a hint, or 0.
    pub parent: Ino,
    /// The node may have been changed or removed since.
    pub stale: bool,
    /// Names of extended attributes whose values are lost.
    pub lost_xattrs: Vec<Vec<u8>>,
    content: Bytes,
    /// The number of pages, if the data is in pages.
    pages: Option<u64>,
}

/// An item of a listing.
pub enum LeftEntry {
    /// An entry.
    Entry {
        /// The name.
        name: Vec<u8>,
        /// The inode's number.
        ino: Ino,
        /// The inode's type.
        kind: FileKind,
        /// The entry may have been removed since.
        stale: bool,
    },
    /// Names may be missing, for this reason.
    Gap(String),
    /// A malformed entry, with the error.
    Malformed(String),
}

/// The iterator of [`Remains::entries`].
pub struct LeftEntries<'a> {
    scan: Scan<'a>,
    remains: &'a Remains,
    dir: Ino,
}

impl Iterator for LeftEntries<'_> {
    type Item = LeftEntry;

    fn next(&mut self) -> Option<LeftEntry> {
        Some(match self.scan.next()? {
            Remnant::Gap { what, .. } => LeftEntry::Gap(what),
            Remnant::Tuple { key, value, stale } => {
                let value = match self.remains.salvage.value(&value) {
                    Ok(value) => value,
                    Err(e) => return Some(LeftEntry::Gap(e.to_string())),
                };
                let entry = layout::decode_name_key(&key).and_then(|(_, name)| {
                    Ok((name.to_vec(), layout::decode_name(self.dir, &value)?))
                });
                match entry {
                    Ok((name, (ino, kind))) => LeftEntry::Entry { name, ino, kind, stale },
                    Err(e) => LeftEntry::Malformed(e.to_string()),
                }
            }
        })
    }
}

impl Remains {
    /// Returns the files of a salvaged store.
    pub fn new(salvage: Salvage) -> Remains {
        Remains { salvage }
    }

    /// Returns the salvaged store itself.
    pub fn salvage(&self) -> &Salvage {
        &self.salvage
    }

    /// Returns whether the store has the dictionaries of a file system.
    pub fn has_files(&self) -> bool {
        let all = self.salvage.dictionaries();
        ["nmap", "imap"].iter().all(|name| all.iter().any(|d| d == name))
    }

    /// Returns the remains of an inode.
    pub fn node(&self, ino: Ino) -> Left {
        let (start, end) = layout::node_range(ino);
        let mut lost = None;
        let mut node = None;
        let mut external = Vec::new();
        for remnant in self.salvage.scan("imap", &start, &end) {
            match remnant {
                Remnant::Gap { what, .. } => drop(lost.get_or_insert(what)),
                Remnant::Tuple { key, value, stale } => match layout::decode_imap_key(&key) {
                    Ok(ImapKey::Node(_)) => match self.salvage.value(&value) {
                        Ok(value) => match layout::decode_node(ino, &value) {
                            Ok(decoded) => node = Some((decoded, stale)),
                            Err(e) => lost = Some(e.to_string()),
                        },
                        Err(e) => lost = Some(e.to_string()),
                    },
                    Ok(ImapKey::Xattr(_, name)) if !stale => {
                        external.push((name.to_vec(), self.salvage.value(&value).ok()))
                    }
                    _ => {}
                },
            }
        }
        let Some(((attr, xattrs, content), stale)) = node else {
            return lost.map_or(Left::None, Left::Lost);
        };
        let (mut found, mut lost_xattrs) = (Vec::new(), Vec::new());
        for (name, value) in xattrs.into_iter().flatten() {
            match value {
                XattrValue::Inline(value) => found.push((name.into_vec(), value.into_vec())),
                XattrValue::External(len) => {
                    let value = external
                        .iter()
                        .find(|(n, _)| **n == *name)
                        .and_then(|(_, value)| value.clone());
                    match value.filter(|value| value.len() as u64 == u64::from(len)) {
                        Some(value) => found.push((name.into_vec(), value.to_vec())),
                        None => lost_xattrs.push(name.into_vec()),
                    }
                }
            }
        }
        Left::Node(Box::new(left(ino, &attr, content, found, lost_xattrs, stale)))
    }

    /// Returns the names in a directory, whether or not it has a node.
    pub fn entries(&self, dir: Ino) -> LeftEntries<'_> {
        let scan = self.salvage.scan("nmap", &dir.to_be_bytes(), &layout::names_end(dir));
        LeftEntries { scan, remains: self, dir }
    }

    /// Passes the data of a file to `visit`, extent by extent, until `visit` fails. Returns the
    /// missing ranges of bytes, ascending. `node`: the known node; without one, all pages found are
    /// passed.
    pub fn data<E>(
        &self,
        ino: Ino,
        node: Option<&LeftNode>,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Vec<Range<u64>>, E> {
        let size = node.map_or(u64::MAX, |node| node.attr.size);
        let pages = match node {
            Some(LeftNode { pages: None, content, .. }) => {
                visit(0, content)?;
                return Ok(Vec::new());
            }
            Some(LeftNode { pages, .. }) => *pages,
            None => None,
        };
        let (mut missing, mut gaps, mut count) = (Vec::new(), Vec::new(), 0);
        // Known blocks as ordered ranges: only those within gaps matter.
        let mut known: Vec<Range<u64>> = Vec::new();
        for remnant in self.salvage.scan("dmap", &layout::page_key(ino, 0), &layout::pages_end(ino))
        {
            match remnant {
                Remnant::Gap { start, end, .. } => {
                    add(&mut gaps, block_from(ino, &start)..block_from(ino, &end))
                }
                // The page is older than the lost data, so it is not the file's content.
                Remnant::Tuple { stale: true, .. } => {}
                Remnant::Tuple { key, value, .. } => {
                    let Ok((_, block)) = layout::decode_page_key(&key) else { continue };
                    count += 1;
                    add(&mut known, block..block.saturating_add(1));
                    let at = block.saturating_mul(PAGE);
                    if at >= size {
                        continue;
                    }
                    let most = (size - at).min(PAGE) as usize;
                    match self.salvage.value(&value) {
                        Ok(bytes) if layout::is_lost_page(bytes.len() as u64) => {
                            add(&mut missing, at..at + most as u64)
                        }
                        Ok(bytes) => visit(at, &bytes[..bytes.len().min(most)])?,
                        Err(_) => add(&mut missing, at..at + (value.len() as u64).min(most as u64)),
                    }
                }
            }
        }
        // If the number of pages equals that in the node, the gaps hold none of them.
        if pages != Some(count) {
            missing.extend(gaps.into_iter().flat_map(|gap| unknown_in(gap, &known, size)));
        }
        missing.sort_by_key(|range| range.start);
        let mut joined = Vec::new();
        missing.into_iter().for_each(|range| add(&mut joined, range));
        Ok(joined)
    }

    /// Calls `visit` with the number of every inode that has data, until `visit` fails.
    pub fn each_data<E>(&self, mut visit: impl FnMut(Ino) -> Result<(), E>) -> Result<(), E> {
        let mut from = 1;
        // Goes from inode to inode, not from page to page.
        loop {
            let mut tuples = self.salvage.scan("dmap", &Ino::to_be_bytes(from), &[]);
            let next = tuples.find_map(|remnant| match remnant {
                Remnant::Tuple { key, stale: false, .. } => {
                    layout::decode_page_key(&key).ok().map(|(ino, _)| ino)
                }
                _ => None,
            });
            let Some(ino) = next else { return Ok(()) };
            visit(ino)?;
            from = ino.saturating_add(1);
            if from == Ino::MAX {
                return Ok(());
            }
        }
    }

    /// Calls `visit` with every node that is left, until `visit` fails: its number, its kind, and
    /// its parent or the hint to a parent.
    pub fn each_node<E>(
        &self,
        mut visit: impl FnMut(Ino, FileKind, Ino) -> Result<(), E>,
    ) -> Result<(), E> {
        for remnant in self.salvage.scan("imap", &1u64.to_be_bytes(), &[]) {
            let Remnant::Tuple { key, value, .. } = remnant else { continue };
            if let Ok(ImapKey::Node(ino)) = layout::decode_imap_key(&key)
                && let Ok(value) = self.salvage.value(&value)
                && let Ok((attr, _, _)) = layout::decode_node(ino, &value)
            {
                visit(ino, attr.kind, attr.parent)?;
            }
        }
        Ok(())
    }
}

fn left(
    ino: Ino,
    attr: &Attributes,
    content: Bytes,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    lost_xattrs: Vec<Vec<u8>>,
    stale: bool,
) -> LeftNode {
    let target = if attr.kind == FileKind::Symlink { content.to_vec() } else { Vec::new() };
    let pages = match attr.body {
        Body::Paged(pages) => Some(pages),
        Body::Inline(_) => None,
    };
    LeftNode {
        attr: attr.public(ino),
        target,
        xattrs,
        parent: attr.parent,
        stale,
        lost_xattrs,
        content,
        pages,
    }
}

/// Returns the first block of a file whose key is not below `key`.
fn block_from(ino: Ino, key: &[u8]) -> u64 {
    let mut padded = [0; 16];
    let len = key.len().min(16);
    padded[..len].copy_from_slice(&key[..len]);
    let (of, block) = padded.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    match number(of).cmp(&ino) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => number(block).saturating_add(u64::from(key.len() > 16)),
        // An empty key is the end of everything.
        std::cmp::Ordering::Greater => u64::MAX,
    }
}

/// Returns the bytes of a gap of blocks that no known block covers, in a file of `size` bytes.
fn unknown_in(gap: Range<u64>, known: &[Range<u64>], size: u64) -> Vec<Range<u64>> {
    let (mut at, mut holes) = (gap.start, Vec::new());
    let inside = known.iter().filter(|k| k.start < gap.end && k.end > gap.start).cloned();
    for k in inside.chain(std::iter::once(gap.end..gap.end)) {
        let hole = at.saturating_mul(PAGE)..k.start.saturating_mul(PAGE).min(size);
        if hole.start < hole.end {
            holes.push(hole);
        }
        at = at.max(k.end);
    }
    holes
}

/// Appends a range, or extends the last one if the range continues it.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

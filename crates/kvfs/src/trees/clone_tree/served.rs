//! Copies a tree in a view that a server holds. The client reads the names and nodes of the tree,
//! and sends the names and nodes of the copy. The server puts the pages and the large attributes by
//! reference, so no content goes over the wire.
//!
//! The state of such a view could change during the walk, so no other call runs in the view until
//! the copy is complete. The name of the copy is in the last batch, so the objects that earlier
//! batches have made cannot be reached before. The main branch, which a server lends, applies each
//! batch at once and permanently, so the copy is refused unless it fits into one batch.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Reference, Scope, ServedView};

use super::{COST, CloneStats, Copied};
use crate::attr::{FileKind, Ino, ROOT, Timestamp};
use crate::commit::apply_commit::ChangeSet;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::layout::{self, Attributes, Layout, XattrValue};
use crate::namespace::add_entry;
use crate::views::Untold;

/// The maximum number of names of a tree. A server assigns at most this many inode numbers at once.
const MOST_NAMES: usize = 1 << 20;
/// The number of nodes that are read together.
const NODES: usize = 512;
/// The number of changes from which on a batch is applied. The second limit is in bytes.
const AT_ONCE: usize = 4 << 10;
const BYTES_AT_ONCE: usize = 4 << 20;
/// The maximum size of a copy that must be one batch, in bytes. Each reference counts, too.
const MOST_TOGETHER: usize = 48 << 20;
const REFERENCE: usize = 4 << 10;

impl Fs {
    /// Copies `from` to a name that does not exist yet. `note` is called with the changes to the
    /// view before they are made.
    pub(super) fn clone_served(
        &self,
        from: Ino,
        (parent, name): (Ino, &[u8]),
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(Copied, Untold)> {
        let Scope::Served(view) = &self.core.scope else { return Err(Error::ReadOnly) };
        let frozen = self.core.freeze_lock.freeze();
        if frozen.ended() {
            return Err(Error::Stale(ROOT));
        }
        let dir = self.inode(parent)?;
        drop(self.lock_dir(&dir)?);
        self.core.names.check_free((parent, name))?;
        // From here on, the view contains all data that was written.
        self.commit_older_than(Duration::MAX)?;
        let (inodes, entries) = self.found_below(from)?;
        let copies = self.new_inos(inodes.len() as u64)?;
        let mut copying = Copying {
            fs: self,
            view: &**view,
            layout: self.core.layout,
            inodes,
            entries,
            copies,
            parent,
            now: self.now(),
            stats: CloneStats::default(),
            batch: Batch::new(),
            references: Vec::new(),
            bytes: 0,
            has_applied: false,
        };
        let copied = copying.all(from, (&dir, name), note);
        if copied.is_err() && copying.has_applied {
            copying.remove();
        }
        copied
    }

    /// Returns the inodes of a tree, ascending, and its entries, level by level.
    fn found_below(&self, top: Ino) -> Result<(Inodes, Vec<Entry>)> {
        let (scope, Layout { nmap, imap, .. }) = (&self.core.scope, self.core.layout);
        let node = scope.get(imap, &layout::node_key(top))?.ok_or(Error::Stale(top))?;
        let is_dir = layout::decode_node(top, &node)?.0.kind == FileKind::Dir;
        let mut found = BTreeMap::from([(top, Found { parent: 0, names: 1, is_dir })]);
        let mut entries = Vec::new();
        let mut level = if is_dir { vec![top] } else { Vec::new() };
        while !level.is_empty() {
            // Names are stored in the order of the numbers of their directories.
            level.sort_unstable();
            let mut below = Vec::new();
            for dir in level {
                let (start, end) = (layout::name_key(dir, b""), layout::names_end(dir));
                let mut names = scope.cursor(nmap, &start, &end)?;
                while let Some(tuple) = names.next()? {
                    let (_, name) = layout::decode_name_key(&tuple.key)?;
                    let (ino, kind) = layout::decode_name(dir, &tuple.value()?)?;
                    let is_dir = kind == FileKind::Dir;
                    if is_dir && found.contains_key(&ino) {
                        let what = "a directory with more than one name".into();
                        return Err(Error::Corrupt { ino, what });
                    }
                    // The top of the tree is an inode, too, but has no entry.
                    if entries.len() + 1 == MOST_NAMES {
                        let many = format!(
                            "more than {MOST_NAMES} names lie below it: take the directories in it \
                             one by one"
                        );
                        return Err(kvdb::Error::Limit(many).into());
                    }
                    let one = Found { parent: dir, names: 0, is_dir };
                    found.entry(ino).or_insert(one).names += 1;
                    if is_dir {
                        below.push(ino);
                    }
                    entries.push(Entry { dir, name: name.into(), ino, kind });
                }
            }
            level = below;
        }
        Ok((found.into_iter().collect(), entries))
    }
}

/// The inodes of a tree, ascending.
type Inodes = Vec<(Ino, Found)>;

/// An inode of the tree, according to its names.
#[derive(Clone, Copy)]
struct Found {
    /// A directory of the tree in which the inode has a name; 0 for the top.
    parent: Ino,
    /// The number of names of the inode in the tree.
    names: u32,
    is_dir: bool,
}

/// A name in the tree.
struct Entry {
    dir: Ino,
    name: Box<[u8]>,
    ino: Ino,
    kind: FileKind,
}

/// A tree that is being copied.
struct Copying<'a> {
    fs: &'a Fs,
    view: &'a dyn ServedView,
    layout: Layout,
    /// Every inode of the tree once, ascending.
    inodes: Vec<(Ino, Found)>,
    entries: Vec<Entry>,
    /// The inode numbers of the copies, in the order of the numbers of the originals.
    copies: Range<Ino>,
    /// The directory in which the copy of the top gets its name.
    parent: Ino,
    now: Timestamp,
    stats: CloneStats,
    /// The changes that are not applied yet. The changes of the batch precede the references.
    batch: Batch,
    references: Vec<Reference>,
    /// The number of bytes of the batch, which has no deletions, and of the large attributes.
    bytes: usize,
    has_applied: bool,
}

impl Copying<'_> {
    fn copy_of(&self, ino: Ino) -> Result<Ino> {
        let at = self.inodes.binary_search_by_key(&ino, |(ino, _)| *ino);
        at.map(|at| self.copy_at(at)).map_err(|_| Error::Stale(ino))
    }

    fn copy_at(&self, at: usize) -> Ino {
        self.copies.start + at as u64
    }

    fn all(
        &mut self,
        from: Ino,
        (dir, name): (&Arc<Inode>, &[u8]),
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(Copied, Untold)> {
        let top = self.nodes()?;
        self.pages()?;
        self.names()?;
        self.reserve()?;
        let ino = self.copy_of(from)?;
        let fs = self.fs;
        let mut state = fs.lock_dir(dir)?;
        let mut batch = std::mem::take(&mut self.batch);
        fs.core.names.stage_new((self.parent, name), (ino, top.kind), &mut batch);
        let mut dir_attr = state.attr;
        add_entry(&mut dir_attr, &top);
        fs.stage(self.parent, &mut state, &dir_attr, &mut batch)?;
        let (linked, named) = (Vec::new(), Vec::new());
        let copied = Copied { top, stats: self.stats, pages: 0, linked, named };
        let untold = note(&copied.changes(self.parent, name));
        fs.apply_with(batch, std::mem::take(&mut self.references))?;
        fs.mark_committed(&mut state, dir_attr);
        Ok((copied, untold))
    }

    /// Copies the nodes. Returns the node of the top.
    fn nodes(&mut self) -> Result<Attributes> {
        let mut top = None;
        for first in (0..self.inodes.len()).step_by(NODES) {
            let some = first..self.inodes.len().min(first + NODES);
            let keys = self.inodes[some.clone()].iter().map(|(ino, _)| layout::node_key(*ino));
            let keys: Vec<Vec<u8>> = keys.collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let nodes = self.view.get_many(self.layout.imap, &keys)?;
            for (at, node) in some.zip(nodes) {
                let (ino, found) = self.inodes[at];
                let attr = self.node(at, &node.ok_or(Error::Stale(ino))?)?;
                if found.parent == 0 {
                    top = Some(attr);
                }
            }
        }
        top.ok_or(Error::Stale(ROOT))
    }

    fn node(&mut self, at: usize, node: &Bytes) -> Result<Attributes> {
        let ((ino, found), copy, imap) = (self.inodes[at], self.copy_at(at), self.layout.imap);
        let (mut attr, xattrs, content) = layout::decode_node(ino, node)?;
        if (attr.kind == FileKind::Dir) != found.is_dir {
            let what = "a name says that it is of another kind".into();
            return Err(Error::Corrupt { ino, what });
        }
        (attr.btime, attr.ctime) = (self.now, self.now);
        // The reservation of a directory belongs to the original.
        attr.reserved = Default::default();
        attr.parent = match found.parent {
            0 => self.parent,
            dir => self.copy_of(dir)?,
        };
        if found.is_dir {
            self.stats.directories += 1;
        } else {
            // Links to names outside of the tree are not kept.
            attr.nlink = found.names;
            self.stats.files += u64::from(found.names);
            self.stats.bytes = self.stats.bytes.saturating_add(attr.size);
        }
        let value = layout::encode_node(&attr, xattrs.as_ref(), &content);
        self.put(imap, layout::node_key(copy), value);
        for (name, value) in xattrs.iter().flatten() {
            if let XattrValue::External(len) = value {
                // The store copies the value of the attribute, whereas it shares pages.
                self.bytes += *len as usize;
                self.refer(imap, &layout::xattr_key(copy, name), &layout::xattr_key(ino, name));
            }
        }
        self.apply_if_much()?;
        Ok(attr)
    }

    /// Puts the pages of all files by reference. Only the keys of the pages are read.
    fn pages(&mut self) -> Result<()> {
        let (Some(&(first, _)), Some(&(last, _))) = (self.inodes.first(), self.inodes.last())
        else {
            return Ok(());
        };
        let dmap = self.layout.dmap;
        let (start, end) = (layout::page_key(first, 0), layout::pages_end(last));
        let mut stored = self.fs.core.scope.cursor(dmap, &start, &end)?.keys_only();
        let mut at = 0;
        while let Some(tuple) = stored.next()? {
            let (ino, block) = layout::decode_page_key(&tuple.key)?;
            while self.inodes.get(at).is_some_and(|&(wanted, _)| wanted < ino) {
                at += 1;
            }
            let Some(&(wanted, _)) = self.inodes.get(at) else { break };
            if wanted != ino {
                // The seek costs nothing if the key is among the keys that were read already.
                stored.seek(&layout::page_key(wanted, 0))?;
                continue;
            }
            self.refer(dmap, &layout::page_key(self.copy_at(at), block), &tuple.key);
            self.apply_if_much()?;
        }
        Ok(())
    }

    fn names(&mut self) -> Result<()> {
        for at in 0..self.entries.len() {
            let Entry { dir, ref name, ino, kind } = self.entries[at];
            let key = layout::name_key(self.copy_of(dir)?, name);
            let value = layout::encode_name(self.copy_of(ino)?, kind);
            self.put(self.layout.nmap, key, value);
            self.apply_if_much()?;
        }
        Ok(())
    }

    fn put(&mut self, dict: DictionaryId, key: Vec<u8>, value: impl Into<Bytes>) {
        let value = value.into();
        self.bytes += key.len() + value.len();
        self.batch.put(dict, key, value);
    }

    fn refer(&mut self, dict: DictionaryId, key: &[u8], of: &[u8]) {
        let (key, of) = (Bytes::copy_from_slice(key), (dict, Bytes::copy_from_slice(of)));
        self.references.push(Reference { dict, key, of });
    }

    /// Applies the changes so far if they are many and need not be one batch.
    fn apply_if_much(&mut self) -> Result<()> {
        if self.view.is_main() {
            let all = self.bytes + self.references.len() * REFERENCE;
            return match all > MOST_TOGETHER {
                true => {
                    let what = "the copy is made in one change, and is too large for one: take the \
                                directories in it one by one, or make it in a transaction";
                    Err(kvdb::Error::Limit(what.into()).into())
                }
                false => Ok(()),
            };
        }
        let changes = self.batch.len() + self.references.len();
        if changes < AT_ONCE && self.bytes < BYTES_AT_ONCE {
            return Ok(());
        }
        self.reserve()?;
        self.has_applied = true;
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        self.fs.apply_with(batch, std::mem::take(&mut self.references))
    }

    /// Fails if there is no space for the changes so far.
    fn reserve(&self) -> Result<()> {
        let changes = (self.batch.len() + self.references.len()) as u64;
        self.fs.reserve(self.bytes as u64 + COST * changes)
    }

    /// Removes the applied part of a copy that has failed.
    fn remove(&self) {
        let (start, end) = (self.copies.start.to_be_bytes(), self.copies.end.to_be_bytes());
        let mut batch = Batch::new();
        batch.releases_space();
        let Layout { nmap, imap, dmap } = self.layout;
        for dict in [nmap, imap, dmap] {
            batch.delete_range(dict, start.to_vec(), end.to_vec());
        }
        if let Err(e) = self.fs.apply(batch) {
            tracing::warn!("a part of a copy that failed keeps its space: {e}");
        }
    }
}

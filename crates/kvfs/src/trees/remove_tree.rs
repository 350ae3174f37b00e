//! Removes a name with everything below it, in one commit: the tree exists as a whole or not at
//! all.
//!
//! The names are walked level by level (`tree`), then the nodes are read once, in the order of
//! their numbers. Inodes that were made one after the other are mostly removed together, so ranges
//! of numbers are deleted: each range takes one range delete in each dictionary, independently of
//! its content. There are exceptions:
//!
//! - A file with a name outside of the tree keeps its node, with fewer links.
//! - An open file continues to exist in memory without a name, as after an unlink. Its content in
//!   the store stays under an orphan record until it is closed.
//! - A transaction must delete by name the objects that it has not made itself, since its commit
//!   applies these deletions to others (`apply_commit`). The mainline then decides whether content
//!   can be removed, so the transaction leaves orphan records.
//!
//! The view is frozen for about a microsecond per name, so that no call makes an entry in a
//! directory that is being removed. The removal takes sixty bytes of memory per name; trees of more
//! than [`crate::trees::tree::MOST_NAMES`] names are refused.

use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Durability, Scope, Transaction, TransactionOptions};

use crate::attr::{FileKind, Ino, ROOT, Timestamp};
use crate::commit::apply_commit::ChangeSet;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::layout::{self, Attributes, Body, Layout, XattrValue, Xattrs};
use crate::namespace::check_name;
use crate::trees::tree::{Locked, Node, Tree, for_each_of};
use crate::views::{Untold, ViewId, Views};

/// Bytes of changes that are committed as one batch; more changes are put into a transaction, which
/// can write them out.
const AT_ONCE: usize = 1 << 20;
/// Approximate size of a change in addition to its key and value, in bytes.
const OVERHEAD: usize = 32;

/// Statistics of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoveStats {
    /// The number of directories removed.
    pub directories: u64,
    /// The number of names of other objects removed.
    pub files: u64,
    /// Content of the files that lost their last name, in bytes.
    pub bytes: u64,
}

impl Fs {
    /// Removes `name` from `parent` with everything below it. It may be any object.
    pub fn remove_tree(&self, parent: Ino, name: &[u8]) -> Result<RemoveStats> {
        self.remove_and_list(parent, name, &|_| Untold::default()).map(|(stats, ..)| stats)
    }

    /// Removes a tree, and also returns the changes that a kernel may have to be notified of.
    /// `note`: called with these before anything is changed.
    fn remove_and_list(
        &self,
        parent: Ino,
        name: &[u8],
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(RemoveStats, ChangeSet, Untold)> {
        self.writable()?;
        match name {
            b"." => return Err(Error::Invalid("removing `.`")),
            b".." => return Err(Error::NotEmpty),
            _ => check_name(name)?,
        }
        self.core.locks.retry(|| self.remove_once(parent, name, note))
    }

    fn remove_once(
        &self,
        parent: Ino,
        name: &[u8],
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(RemoveStats, ChangeSet, Untold)> {
        if let Some(transaction) = self.core.locks.transaction() {
            // Waits for all locks before the freeze, while others can work in the view.
            let _call = self.enter()?;
            let (ino, kind) = self.entry(parent, name)?.ok_or(Error::NotFound)?;
            match kind {
                FileKind::Dir => drop(self.tree_below(ino, Some(transaction), Locked::ToRemove)?),
                _ => self.core.locks.in_store(ino, true)?,
            }
            drop(self.lock_dir(&*self.inode(parent)?)?);
        }
        let frozen = self.core.freeze_lock.freeze();
        if frozen.ended() {
            return Err(Error::Stale(ROOT));
        }
        let dir = self.inode(parent)?;
        let mut dir_state = self.lock_dir(&dir)?;
        let (ino, kind) = self.entry(parent, name)?.ok_or(Error::NotFound)?;
        let corrupt = |what: &str| Error::Corrupt {
            ino: parent,
            what: format!("the entry `{}` {what}", name.escape_ascii()),
        };
        let mut removal = Removal::new(self);
        let (view, tree) = match kind {
            FileKind::Dir => {
                self.tree_below(ino, self.core.locks.transaction(), Locked::ToRemove)?
            }
            _ => {
                // The inode is locked before it is read: the lock commits waiting changes to the
                // store.
                self.core.locks.in_store(ino, true)?;
                (Arc::new(self.core.scope.view()?), Tree::of_file(ino))
            }
        };
        if tree.inodes.binary_search_by_key(&parent, |node| node.ino).is_ok() {
            return Err(corrupt("leads to the directory that it is in"));
        }
        removal.stage(&view, &tree)?;

        let mut dir_attr = dir_state.attr;
        dir_attr.size = dir_attr.size.saturating_sub(1);
        if kind == FileKind::Dir {
            dir_attr.nlink = dir_attr.nlink.saturating_sub(1);
        }
        (dir_attr.mtime, dir_attr.ctime) = (removal.now, removal.now);
        self.core.names.stage_removal(&dir, name, &mut removal.batch);
        self.stage(parent, &mut dir_state, &dir_attr, &mut removal.batch)?;
        let mut changes = std::mem::take(&mut removal.changes);
        changes.names.push((parent, name.into(), true));
        changes.inodes.push((parent, false));
        let untold = note(&changes);
        removal.commit()?;
        self.core.files.forget();
        self.mark_committed(&mut dir_state, dir_attr);
        Ok((removal.stats, changes, untold))
    }
}

impl Views {
    /// Removes a tree of a view by a path from its root, and notifies the kernels that have cached
    /// it. Symbolic links in the path are not followed.
    pub fn remove_tree(&self, view: &ViewId, path: &[u8]) -> Result<RemoveStats> {
        let (fs, number) = (self.fs(view)?, self.number(view)?);
        fs.writable()?;
        let names: Vec<&[u8]> =
            path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
        let (name, directories) = names.split_last().ok_or(Error::Invalid("the root stays"))?;
        if names.contains(&&b".."[..]) {
            return Err(Error::Invalid("a path with `..`"));
        }
        if names[0] == b".kvfs" {
            return Err(Error::Invalid(
                "what lies under .kvfs are views: transactions are aborted, snapshots and clones dropped",
            ));
        }
        let mut parent = ROOT;
        for directory in directories {
            parent = match fs.peek(parent, directory)?.ok_or(Error::NotFound)? {
                (ino, FileKind::Dir) => ino,
                _ => return Err(Error::NotDirectory),
            };
        }
        fs.peek(parent, name)?.ok_or(Error::NotFound)?;
        // Inodes that programs do not use need not be kept for them.
        self.shared.watchers.goes(view, number, &fs, (parent, name), &names.join(&b'/'))?;
        let note = |changes: &ChangeSet| self.shared.notes.will_tell(number, changes);
        let (stats, changes, untold) = fs.remove_and_list(parent, name, &note)?;
        self.shared.watchers.tell(|watcher| watcher.changed(number, &fs, &changes));
        drop(untold);
        Ok(stats)
    }
}

/// Consecutive inodes of which a dictionary deletes everything.
#[derive(Default)]
struct InoRange {
    from: Ino,
    /// The number after the last one.
    to: Ino,
    /// The number of inodes for which the dictionary may hold more than one key, so that the
    /// deletion of a single key does not suffice.
    wide: u64,
    some: bool,
}

/// A file or directory that loses its last name while it is open.
struct OpenInode {
    inode: Arc<Inode>,
    attr: Attributes,
    content: Bytes,
    stored: bool,
}

/// A tree that is being removed.
struct Removal<'a> {
    fs: &'a Fs,
    layout: Layout,
    now: Timestamp,
    batch: Batch,
    bytes: usize,
    /// The transaction that collects changes if they are too many for one batch.
    private: Option<Transaction>,
    names: InoRange,
    nodes: InoRange,
    pages: InoRange,
    open: Vec<OpenInode>,
    /// Inodes in memory that are not in use.
    idle: Vec<Arc<Inode>>,
    /// Inodes in memory that have names elsewhere.
    linked: Vec<(Arc<Inode>, Attributes)>,
    stats: RemoveStats,
    changes: ChangeSet,
}

/// A node in its stored form.
struct Stored<'a> {
    attr: Attributes,
    xattrs: Option<Xattrs>,
    content: &'a [u8],
}

impl Stored<'_> {
    fn has_external_xattrs(&self) -> bool {
        let is_external = |value: &XattrValue| matches!(value, XattrValue::External(_));
        self.xattrs.as_ref().is_some_and(|xattrs| xattrs.values().any(is_external))
    }
}

impl<'a> Removal<'a> {
    fn new(fs: &'a Fs) -> Self {
        let mut batch = Batch::new();
        batch.releases_space();
        Removal {
            fs,
            layout: fs.core.layout,
            now: fs.now(),
            batch,
            bytes: 0,
            private: None,
            names: InoRange::default(),
            nodes: InoRange::default(),
            pages: InoRange::default(),
            open: Vec::new(),
            idle: Vec::new(),
            linked: Vec::new(),
            stats: RemoveStats::default(),
            changes: ChangeSet::default(),
        }
    }

    /// Stages everything but the name of the top.
    fn stage(&mut self, view: &kvdb::View, tree: &Tree) -> Result<()> {
        let missing =
            |ino| Error::Corrupt { ino, what: "an entry names it, and it does not exist".into() };
        let mut next = 0;
        for_each_of(view, self.layout.imap, &tree.inodes, |at, tuple| {
            if tuple.key.len() > 8 {
                // The value of an extended attribute is removed with the node.
                return Ok(());
            }
            if at != next {
                return Err(missing(tree.inodes[next].ino));
            }
            next += 1;
            let node = tree.inodes[at];
            let read;
            let value = match tuple.small() {
                Some(value) => value,
                None => {
                    read = tuple.value()?;
                    &read
                }
            };
            let (attr, xattrs, content) = layout::parse_node(node.ino, value)?;
            if (attr.kind == FileKind::Dir) != node.dir {
                return Err(Error::Corrupt {
                    ino: node.ino,
                    what: "an entry says that it is of another kind".into(),
                });
            }
            self.node(tree, node, Stored { attr, xattrs, content })
        })?;
        if let Some(node) = tree.inodes.get(next) {
            return Err(missing(node.ino));
        }
        for (range, dict) in [
            (std::mem::take(&mut self.names), self.layout.nmap),
            (std::mem::take(&mut self.nodes), self.layout.imap),
            (std::mem::take(&mut self.pages), self.layout.dmap),
        ] {
            self.delete_range(dict, &range)?;
        }
        Ok(())
    }

    /// Stages the removal of an inode's names in the tree.
    fn node(&mut self, tree: &Tree, node: Node, stored: Stored<'_>) -> Result<()> {
        let (fs, ino) = (self.fs, node.ino);
        // A stranded inode is a different inode under this number.
        let referenced =
            fs.core.inode_cache.references(ino) > 0 && fs.core.inode_cache.stranded(ino).is_none();
        let known = match referenced {
            true => Some(fs.inode(ino)?),
            false => fs.core.inode_cache.get(ino),
        };
        if node.dir {
            self.stats.directories += 1;
        } else {
            self.stats.files += u64::from(node.names);
        }
        let attr = match &known {
            Some(inode) => {
                let mut state = inode.state.write();
                fs.core.locks.for_change(ino, &mut state)?;
                fs.core.pages.count(ino, &mut state)?;
                state.attr
            }
            None => stored.attr,
        };
        let removes = fs.may_remove(ino);
        self.names_of(tree, node, removes, referenced)?;
        let left = if node.dir { 0 } else { attr.nlink.saturating_sub(node.names) };
        if left > 0 {
            return self.fewer_links(
                known,
                Attributes { nlink: left, ctime: self.now, ..attr },
                ino,
                stored,
            );
        }
        if attr.kind == FileKind::File {
            // Sparse files may have any size.
            self.stats.bytes = self.stats.bytes.saturating_add(attr.size);
        }
        let (pages, external) = match &known {
            Some(inode) => {
                let state = inode.state.read();
                (state.stored, state.has_external_xattrs())
            }
            None => (matches!(attr.body, Body::Paged(1..)), stored.has_external_xattrs()),
        };
        let has_more = pages || external;
        if removes && !(referenced && has_more) {
            if let Some(done) = self.nodes.extend(ino, external) {
                self.delete_range(self.layout.imap, &done)?;
            }
            if let Some(done) = self.pages.extend(ino, pages) {
                self.delete_range(self.layout.dmap, &done)?;
            }
        } else {
            self.delete(self.layout.imap, layout::node_key(ino))?;
            if has_more && !(referenced && fs.writes_through()) {
                self.put(self.layout.imap, layout::orphan_key(ino), Bytes::new())?;
            }
        }
        match known {
            Some(inode) if referenced => self.stays_open(inode, attr, has_more)?,
            Some(inode) => self.idle.push(inode),
            None => {}
        }
        Ok(())
    }

    /// Records an open inode that loses its last name. `stored` says that the store has more data
    /// of the inode than its node.
    fn stays_open(&mut self, inode: Arc<Inode>, attr: Attributes, mut stored: bool) -> Result<()> {
        let (fs, ino) = (self.fs, inode.ino);
        let state = inode.state.read();
        let content = match attr.kind {
            FileKind::Dir => Bytes::new(),
            // Copied, since the slice could pin a whole block.
            _ => Bytes::copy_from_slice(&fs.core.pages.content(ino, &state)?),
        };
        let attr = Attributes { nlink: 0, ctime: self.now, ..attr };
        if fs.writes_through() {
            let node = layout::encode_node(&attr, state.xattrs.as_deref(), &content);
            self.put(self.layout.imap, layout::orphan_key(ino), node)?;
            stored = true;
        }
        drop(state);
        self.open.push(OpenInode { inode, attr, content, stored });
        self.changes.inodes.push((ino, true));
        Ok(())
    }

    /// Stages the new link count of a file that has names elsewhere.
    fn fewer_links(
        &mut self,
        known: Option<Arc<Inode>>,
        attr: Attributes,
        ino: Ino,
        stored: Stored<'_>,
    ) -> Result<()> {
        let Some(inode) = known else {
            let node = layout::encode_node(&attr, stored.xattrs.as_ref(), stored.content);
            return self.put(self.layout.imap, layout::node_key(ino), node);
        };
        self.fs.stage(ino, &mut inode.state.write(), &attr, &mut self.batch)?;
        self.bytes += OVERHEAD + 2 * stored.content.len();
        self.changes.inodes.push((ino, false));
        self.linked.push((inode, attr));
        self.spill_if_large()
    }

    /// Stages the removal of the names in a directory; other inodes have none.
    fn names_of(&mut self, tree: &Tree, node: Node, removes: bool, referenced: bool) -> Result<()> {
        let dir = node.ino;
        let names = match node.dir {
            true => tree
                .dirs
                .binary_search_by_key(&dir, |dir| dir.ino)
                .map_or(0..0, |at| tree.dirs[at].names.clone()),
            false => 0..0,
        };
        if referenced {
            self.changes.names.extend(names.clone().map(|at| (dir, tree.name(at).into(), true)));
        }
        if !removes {
            return names.into_iter().try_for_each(|at| {
                self.delete(self.layout.nmap, layout::name_key(dir, tree.name(at)))
            });
        }
        // An inode that is not a directory has no names, and so does not interrupt a range.
        match self.names.extend(dir, !names.is_empty()) {
            Some(done) => self.delete_range(self.layout.nmap, &done),
            None => Ok(()),
        }
    }

    fn delete_range(&mut self, dict: DictionaryId, range: &InoRange) -> Result<()> {
        if range.some && (range.wide > 0 || dict == self.layout.imap) {
            self.bytes += 2 * (8 + OVERHEAD);
            let (from, to) = (range.from.to_be_bytes().to_vec(), range.to.to_be_bytes().to_vec());
            match dict == self.layout.imap && range.wide == 0 && range.to - range.from == 1 {
                true => self.batch.delete(dict, from),
                false => self.batch.delete_range(dict, from, to),
            }
        }
        self.spill_if_large()
    }

    fn delete(&mut self, dict: DictionaryId, key: Vec<u8>) -> Result<()> {
        self.bytes += key.len() + OVERHEAD;
        self.batch.delete(dict, key);
        self.spill_if_large()
    }

    fn put(&mut self, dict: DictionaryId, key: Vec<u8>, value: Bytes) -> Result<()> {
        self.bytes += key.len() + value.len() + OVERHEAD;
        self.batch.put(dict, key, value);
        self.spill_if_large()
    }

    /// Moves the changes out of memory when they are many. On the mainline only: in a transaction
    /// they could not be undone.
    fn spill_if_large(&mut self) -> Result<()> {
        let Scope::Mainline(db) = &self.fs.core.scope else { return Ok(()) };
        if self.bytes < AT_ONCE {
            return Ok(());
        }
        let private =
            match &mut self.private {
                Some(private) => private,
                // The view is frozen: no other call changes these inodes.
                none => none.insert(db.begin_with(TransactionOptions {
                    check_conflicts: false,
                    ..Default::default()
                })?),
            };
        self.bytes = 0;
        Ok(private.apply(std::mem::take(&mut self.batch))?)
    }

    /// Commits the removal to the store and then applies it in memory.
    fn commit(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        match self.private.take() {
            Some(private) => {
                private.apply(batch)?;
                kvdb::without_lock_waits(|| private.commit(Durability::Buffered))?;
            }
            None => self.fs.apply(batch)?,
        }
        for (inode, attr) in self.linked.drain(..) {
            self.fs.mark_committed(&mut inode.state.write(), attr);
        }
        for OpenInode { inode, attr, content, stored } in self.open.drain(..) {
            let mut state = inode.state.write();
            (state.attr, state.orphaned) = (attr, stored);
            state.inline = Some(content).filter(|content| !content.is_empty());
        }
        for inode in self.idle.drain(..) {
            self.fs.discard(inode.ino, &mut inode.state.write());
            self.fs.core.inode_cache.remove(&inode);
        }
        self.fs.forget_promises_of_removed();
        Ok(())
    }
}

impl InoRange {
    /// Adds an inode with a larger number. Returns the pending range if the inode does not follow
    /// it directly.
    fn extend(&mut self, ino: Ino, wide: bool) -> Option<InoRange> {
        let done = (self.some && self.to != ino).then(|| std::mem::take(self));
        if !self.some {
            (self.from, self.some) = (ino, true);
        }
        self.to = ino + 1;
        self.wide += u64::from(wide);
        done
    }
}

//! Copies a directory with everything in it, at the cost of its names: the pages of the copies are
//! references to the pages of the originals. The copy appears as a whole, in one commit, or not at
//! all.
//!
//! First the names are walked, level by level. Then the copies get their inode numbers in the order
//! in which the tree is read (`tree_order`), however scattered the original is. For a large tree,
//! each of the three dictionaries is built straight into a run, concurrently with the others,
//! without memtables or the journal. The names and nodes of the copy are therefore in order. Its
//! pages stay where they are until a defragmentation finds that they are scattered.
//!
//! A copy takes about seventy bytes of memory for each name, because the names of a file may be
//! anywhere in the tree.
//!
//! The copy has the state that was committed when the call began. Hard links among the copied files
//! stay links among the copies, even if several trees are copied together; links to files outside
//! of the tree are not kept, except for a file that comes back to its own place (`same_file`).
//!
//! `by_path` contains the calls that take paths. `served` copies within a view that a server holds.

mod by_path;
mod served;
mod sink;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{Batch, BulkRun, DictionaryId, Scope, Transaction, TransactionOptions};

pub use self::by_path::Earlier;
use self::sink::Sink;
use crate::attr::{FileKind, Ino, Timestamp};
use crate::commit::apply_commit::ChangeSet;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{self, Attributes, Body, Layout};
use crate::namespace::{add_entry, check_name};
use crate::space::file_account::AdmittedFiles;
use crate::trees::tree::{Dir, Locked, Tree};
use crate::trees::tree_order::TreeOrder;
use crate::views::Untold;

/// The number of changes in one batch.
const AT_ONCE: usize = 2048;
/// The approximate cost of a change in the store, in bytes. The second cost is that of a shared
/// page.
const COST: u64 = 256;
const PAGE_COST: u64 = 32;
/// The number of tuples of a dictionary from which on they are built into a run. Fewer tuples cost
/// less in the journal than the sync that a run needs.
const BULK: u64 = 2048;

/// Statistics of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneStats {
    /// The number of directories made.
    pub directories: u64,
    /// The number of names of all other objects.
    pub files: u64,
    /// The number of bytes of the files' contents, which are shared and not copied.
    pub bytes: u64,
}

impl Fs {
    /// Makes `name` in `parent` a copy of `from`, which may be a directory with everything below
    /// it, or any other object. The copy has the owners, modes and times of the original, and its
    /// own birth time.
    pub fn clone_tree(&self, from: Ino, parent: Ino, name: &[u8]) -> Result<CloneStats> {
        let nobody = |_: &ChangeSet| Untold::default();
        let copied = self.clone_of(None, from, parent, name, &mut Linked::new(), &nobody);
        copied.map(|(copied, _)| copied.stats)
    }

    /// Copies `from`, which may lie in an earlier state. `earlier` is that state and its
    /// dictionaries, or `None` for the current state of this view. `linked` has the files copied
    /// before that also have names outside of the copied trees. `note` is called with the changes
    /// to the view before they are made.
    fn clone_of(
        &self,
        earlier: Option<&(Arc<kvdb::View>, Layout)>,
        from: Ino,
        parent: Ino,
        name: &[u8],
        linked: &mut Linked,
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(Copied, Untold)> {
        self.writable()?;
        check_name(name)?;
        if self.core.scope.is_served() {
            // The client knows only the current state of such a view.
            return match earlier {
                None => self.clone_served(from, (parent, name), note),
                Some(_) => Err(Error::Invalid("an earlier state is copied where the store is")),
            };
        }
        let once = || self.clone_tree_once(earlier, from, (parent, name), linked, note);
        let (copied, untold) = self.core.locks.retry(once)?;
        linked.extend(copied.linked.iter().copied());
        Ok((copied, untold))
    }

    fn clone_tree_once(
        &self,
        earlier: Option<&(Arc<kvdb::View>, Layout)>,
        from: Ino,
        (parent, name): (Ino, &[u8]),
        linked: &Linked,
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(Copied, Untold)> {
        let _call = self.enter()?;
        self.core.names.check_free((parent, name))?;
        // This check comes first, because the copy would be useless if the name is locked.
        if let Scope::Mainline(db) = &self.core.scope
            && db.is_locked(self.core.layout.nmap, &layout::name_key(parent, name))
        {
            return Err(kvdb::Error::Locked("a transaction works with the name".into()).into());
        }
        drop(self.lock_dir(&*self.inode(parent)?)?);
        self.commit_older_than(Duration::MAX)?;
        // Values that have a place are copied by reference, but values without a place would be
        // copied in full.
        self.core.db.here()?.write_out()?;
        let (transaction, alone) = match &self.core.scope {
            // No conflict is possible: the new inodes are not reachable yet, and the directory
            // stays locked until the commit.
            Scope::Mainline(db) => (
                db.begin_with(TransactionOptions { check_conflicts: false, ..Default::default() })?,
                true,
            ),
            Scope::Transaction(t) => (t.clone(), false),
            Scope::Frozen(_) | Scope::Served(_) => return Err(Error::ReadOnly),
        };
        let (view, source, tree) = match earlier {
            // The earlier state does not change, so nothing has to be locked.
            Some((view, source)) => (view.clone(), *source, Tree::below(from, view, *source)?),
            None => {
                let (view, tree) = self.tree_below(from, Some(&transaction), Locked::ToRead)?;
                (view, self.core.layout, tree)
            }
        };
        let order = TreeOrder::of(&tree)?;
        let admitted = self.core.files.admit(order.len() as u64)?;
        let copies = self.new_inos(order.len() as u64)?;
        let copying = Copying {
            fs: self,
            layout: self.core.layout,
            source,
            view,
            transaction: &transaction,
            tree,
            order,
            copies,
            linked,
            parent,
            now: self.now(),
        };
        let finish = |copied| copying.give_name(copied, (from, name), alone, admitted, note);
        let outcome = copying.all().and_then(finish);
        if outcome.is_err() {
            match alone {
                true => transaction.abort(),
                false => copying.remove()?,
            }
        }
        outcome
    }
}

/// Maps originals that have names outside of the copied tree to their copies.
type Linked = HashMap<Ino, Ino>;

/// The result of copying the nodes.
struct Copied {
    top: Attributes,
    stats: CloneStats,
    pages: u64,
    /// The files copied by this call that also have names outside of the tree.
    linked: Vec<(Ino, Ino)>,
    /// The copies made by an earlier call that get names in this tree, ascending, each with its
    /// number of names in this tree.
    named: Vec<(Ino, u32)>,
}

impl Copied {
    /// Returns the changes to a view that gets the copy under this name.
    fn changes(&self, parent: Ino, name: &[u8]) -> ChangeSet {
        let more_names = self.named.iter().map(|(ino, _)| (*ino, false));
        ChangeSet {
            names: vec![(parent, name.into(), false)],
            inodes: std::iter::once((parent, false)).chain(more_names).collect(),
            ..ChangeSet::default()
        }
    }
}

/// A tree that is being copied into a transaction.
struct Copying<'a> {
    fs: &'a Fs,
    layout: Layout,
    /// The dictionaries of the source.
    source: Layout,
    /// The state of the source.
    view: Arc<kvdb::View>,
    transaction: &'a Transaction,
    tree: Tree,
    order: TreeOrder,
    /// The inode numbers of the copies, indexed by their positions in the order.
    copies: Range<Ino>,
    /// The files copied before, whose copies get another name if the files also have a name in this
    /// tree.
    linked: &'a Linked,
    /// The directory in which the copy of the top gets its name.
    parent: Ino,
    now: Timestamp,
}

impl Copying<'_> {
    /// Gives the copy of `from` its name, as the last change of the transaction. If the transaction
    /// contains only this copy, it is committed.
    fn give_name(
        &self,
        copied: Copied,
        (from, name): (Ino, &[u8]),
        alone: bool,
        admitted: AdmittedFiles<'_>,
        note: &dyn Fn(&ChangeSet) -> Untold,
    ) -> Result<(Copied, Untold)> {
        let (fs, parent) = (self.fs, self.parent);
        let ino = self.copy_of(from)?;
        let dir = fs.inode(parent)?;
        let mut state = fs.lock_dir(&dir)?;
        fs.core.names.check_free((parent, name))?;
        let mut batch = Batch::new();
        fs.core.names.stage_new((parent, name), (ino, copied.top.kind), &mut batch);
        let mut dir_attr = state.attr;
        add_entry(&mut dir_attr, &copied.top);
        fs.stage(parent, &mut state, &dir_attr, &mut batch)?;
        // Copies that an earlier call has made get more names.
        let named = copied.named.iter().map(|(ino, names)| Ok((fs.inode(*ino)?, *names)));
        let named = named.collect::<Result<Vec<_>>>()?;
        let mut states = Vec::with_capacity(named.len());
        for (inode, names) in &named {
            let mut state = fs.lock(inode)?;
            let nlink = state.attr.nlink.saturating_add(*names);
            if nlink > fs.core.options.max_links {
                return Err(Error::TooManyLinks);
            }
            let attr = Attributes { nlink, ctime: fs.now(), ..state.attr };
            fs.stage(inode.ino, &mut state, &attr, &mut batch)?;
            states.push((state, attr));
        }
        let untold = note(&copied.changes(parent, name));
        self.transaction.apply(batch)?;
        if alone {
            self.transaction.commit(kvdb::Durability::Buffered)?;
        }
        admitted.made();
        fs.mark_committed(&mut state, dir_attr);
        states.iter_mut().for_each(|(state, attr)| fs.mark_committed(state, *attr));
        drop(states);
        Ok((copied, untold))
    }

    /// Removes the copies made so far from a transaction that continues.
    fn remove(&self) -> Result<()> {
        let (start, end) = (self.copies.start.to_be_bytes(), self.copies.end.to_be_bytes());
        let mut batch = Batch::new();
        let Layout { nmap, imap, dmap } = self.layout;
        for dict in [nmap, imap, dmap] {
            batch.delete_range(dict, start.to_vec(), end.to_vec());
        }
        Ok(self.transaction.apply(batch)?)
    }

    fn copy_of(&self, ino: Ino) -> Result<Ino> {
        if let Some(copy) = self.linked.get(&ino) {
            return Ok(*copy);
        }
        self.order.position_of(&self.tree, ino).map(|position| self.copy_at(position))
    }

    fn copy_at(&self, position: usize) -> Ino {
        self.copies.start + position as u64
    }

    /// Copies everything except the name of the top directory or file.
    fn all(&self) -> Result<Copied> {
        let Layout { nmap, imap, dmap } = self.layout;
        let tuples = self.tree.inodes.len() + self.tree.names.len();
        if (tuples as u64) < 2 * BULK || !self.transaction.takes_bulk() {
            self.copy_names(self.sink(nmap, 0)?)?;
            let (copied, _) = self.copy_nodes(self.sink(imap, 0)?)?;
            let run = self.copy_pages(self.sink(dmap, copied.pages)?, 0..self.order.len())?;
            self.transaction.adopt(run)?;
            return Ok(copied);
        }
        self.fs.reserve(COST * tuples as u64)?;
        let names = || self.copy_names(self.sink(nmap, BULK)?);
        let nodes = || self.copy_nodes(self.sink(imap, BULK)?);
        // The pages are most of the work, so they are built into two runs of consecutive keys.
        let (middle, end) = (self.order.len() / 2, self.order.len());
        let pages = |positions| self.copy_pages(self.sink(dmap, BULK)?, positions);
        let (names, nodes, pages) = match self.fs.core.env.inline() {
            true => (names(), nodes(), [pages(0..end), Ok(None)]),
            false => env::thread::scope(|scope| {
                let pages = [0..middle, middle..end].map(|half| scope.spawn(move || pages(half)));
                let (names, nodes) = (names(), nodes());
                (names, nodes, pages.map(joined))
            }),
        };
        let (copied, nodes) = nodes?;
        let [first, second] = pages;
        for run in [names?, nodes, first?, second?] {
            self.transaction.adopt(run)?;
        }
        Ok(copied)
    }

    /// Returns a sink for about `tuples` tuples.
    fn sink(&self, dict: DictionaryId, tuples: u64) -> Result<Sink<'_>> {
        Ok(match tuples >= BULK && self.transaction.takes_bulk() {
            true => Sink::Run(Box::new(self.transaction.bulk(dict, &self.view)?)),
            false => Sink::Changes { copying: self, dict, batch: Batch::new() },
        })
    }

    fn copy_names(&self, mut sink: Sink<'_>) -> Result<Option<BulkRun>> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let number = |dir: &'_ Dir| Ok((self.copy_of(dir.ino)?, dir.names.clone()));
        let mut dirs = self.tree.dirs.iter().map(number).collect::<Result<Vec<_>>>()?;
        dirs.sort_unstable_by_key(|(to, _): &(Ino, _)| *to);
        for (to, names) in dirs {
            for at in names {
                let name = &self.tree.names[at];
                key.clear();
                key.extend_from_slice(&to.to_be_bytes());
                key.extend_from_slice(self.tree.name(at));
                value.clear();
                layout::put_name(&mut value, self.copy_of(name.ino)?, name.kind);
                sink.put(&key, &value)?;
            }
        }
        sink.finish()
    }

    fn copy_nodes(&self, mut sink: Sink<'_>) -> Result<(Copied, Option<BulkRun>)> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let (mut top, mut stats, mut pages) = (None, CloneStats::default(), 0);
        let (mut linked, mut named) = (Vec::new(), Vec::new());
        // `next` is the position whose node is expected next.
        let (mut next, all) = (0, 0..self.order.len());
        let original = |position| self.tree.inodes[self.order.at(position)];
        self.order.for_each(&self.view, self.source.imap, &self.tree, all, |at, tuple| {
            let (node, copy) = (original(at), self.copy_at(at));
            let before = self.linked.get(&node.ino);
            if before.is_some() && tuple.key.len() > 8 {
                return Ok(());
            }
            key.clear();
            key.extend_from_slice(&copy.to_be_bytes());
            if tuple.key.len() > 8 {
                // The tuple is the value of an extended attribute that is too large for the node.
                key.extend_from_slice(&tuple.key[8..]);
                return sink.put_stored(&key, &tuple);
            }
            if at != next {
                return Err(Error::Stale(original(next).ino));
            }
            next += 1;
            let read;
            let stored = match tuple.small() {
                Some(stored) => stored,
                None => {
                    read = tuple.value()?;
                    &read
                }
            };
            let (mut attr, xattrs, content) = layout::parse_node(node.ino, stored)?;
            (attr.btime, attr.ctime) = (self.now, self.now);
            // The reservation of a directory belongs to the original; the copies have their numbers
            // already.
            attr.reserved = Default::default();
            attr.parent = if node.parent == 0 { self.parent } else { self.copy_of(node.parent)? };
            if attr.kind == FileKind::Dir {
                stats.directories += 1;
            } else {
                match before {
                    Some(copy) => named.push((*copy, node.names)),
                    None if attr.nlink > node.names => linked.push((node.ino, copy)),
                    None => {}
                }
                attr.nlink = node.names;
                stats.files += u64::from(node.names);
                // The sum may overflow, because sparse files may have any size.
                stats.bytes = stats.bytes.saturating_add(attr.size);
            }
            if node.parent == 0 {
                top = Some(attr);
            }
            if before.is_some() {
                return Ok(());
            }
            if let Body::Paged(count) = attr.body {
                pages += count;
            }
            value.clear();
            layout::put_node(&mut value, &attr, xattrs.as_ref(), content);
            sink.put(&key, &value)
        })?;
        match top {
            Some(top) if next == self.order.len() => {
                named.sort_unstable();
                Ok((Copied { top, stats, pages, linked, named }, sink.finish()?))
            }
            _ => Err(Error::Stale(if next < self.order.len() { original(next).ino } else { 0 })),
        }
    }

    /// Copies the pages of the files at these positions of the order.
    fn copy_pages(&self, mut sink: Sink<'_>, positions: Range<usize>) -> Result<Option<BulkRun>> {
        let (mut pages, dmap) = (0, self.source.dmap);
        self.order.for_each(&self.view, dmap, &self.tree, positions, |at, tuple| {
            if self.linked.contains_key(&self.tree.inodes[self.order.at(at)].ino) {
                return Ok(());
            }
            let (_, block) = layout::decode_page_key(tuple.key)?;
            if matches!(sink, Sink::Run(_)) && pages % AT_ONCE == 0 {
                self.fs.reserve(PAGE_COST * AT_ONCE as u64)?;
            }
            pages += 1;
            sink.put_stored(&layout::page_key(self.copy_at(at), block), &tuple)
        })?;
        sink.finish()
    }
}

/// Joins a thread, and resumes its panic if it panicked.
fn joined<T>(thread: env::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use env::Simulated;

    use super::*;
    use crate::file::data::MAX_SIZE;
    use crate::{Caller, FsOptions, ROOT, SetAttr};

    #[test]
    fn sizes_that_no_number_can_add_up_are_the_largest_number() {
        let (db, env) = (kvdb::Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db, env, FsOptions::default()).unwrap();
        let caller = Caller::default();
        let dir = fs.mkdir(ROOT, b"d", 0o755, caller).unwrap().ino;
        for name in [b"a", b"b", b"c"] {
            let file = fs.mknod(dir, name, FileKind::File, 0o644, 0, caller).unwrap().ino;
            let largest = SetAttr { size: Some(MAX_SIZE), ..Default::default() };
            fs.setattr(file, &largest, caller).unwrap();
        }
        assert_eq!(fs.clone_tree(dir, ROOT, b"copy").unwrap().bytes, u64::MAX);
        assert_eq!(fs.remove_tree(ROOT, b"copy").unwrap().bytes, u64::MAX);
    }
}

//! A directory copied with everything in it, at the cost of its names: the pages of the copies are those of the originals, referred to
//! a second time. It appears whole, in one commit, or not at all.
//!
//! While it is made it takes some sixty bytes of memory for each file, since the names of a file may be anywhere in the tree.
//!
//! What is copied is what was committed when the call began. Hard links among the copied files stay links among the copies; links to
//! files outside do not reach into them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{Batch, DictionaryId, Isolation, Scope, StoredValue, Transaction, TransactionOptions, Tuple};

use crate::absorb::Touched;
use crate::attr::{FileKind, Ino, Timestamp};
use crate::error::{Error, Result};
use crate::fs::{Fs, stage_removal};
use crate::layout::{self, Attributes, Body};
use crate::names::{add_entry, check_name};
use crate::views::{View, Views};

/// Changes that are made together.
const AT_ONCE: usize = 2048;
/// What a change takes in the store, about, bytes.
const COST: u64 = 256;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneStats {
    pub directories: u64,
    /// Everything else that has a name, each name counted.
    pub files: u64,
    /// Of the files' contents, which lie where they lay, bytes.
    pub bytes: u64,
}

impl Fs {
    /// Makes `name` in `parent` a copy of `from`, which may be a directory, with all below it, or anything else. It has the owners, modes
    /// and times of the original, and a birth of its own.
    pub fn clone_tree(&self, from: Ino, parent: Ino, name: &[u8]) -> Result<CloneStats> {
        self.writable()?;
        check_name(name)?;
        let _inside = self.enter()?;
        if self.entry(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.flush_older_than(Duration::MAX)?;
        let (transaction, alone) = match &self.core.scope {
            // Nobody else knows the new inodes, and the directory stays locked while it commits.
            Scope::Mainline(db) => (db.begin_with(TransactionOptions { check_conflicts: false, ..Default::default() })?, true),
            Scope::Transaction(t) => (t.clone(), false),
            Scope::Frozen(_) => return Err(Error::ReadOnly),
        };
        let mut walk = Walk {
            fs: self,
            view: Arc::new(self.core.scope.view()?),
            transaction: &transaction,
            batch: Batch::new(),
            now: self.now(),
            links: HashMap::new(),
            waiting: Vec::new(),
            made: Vec::new(),
            stats: CloneStats::default(),
        };
        let outcome = walk.copy(from, parent).and_then(|(ino, attr)| {
            let dir = self.inode(parent)?;
            let mut state = self.lock_dir(&dir)?;
            if self.entry(parent, name)?.is_some() {
                return Err(Error::Exists);
            }
            let mut batch = Batch::new();
            batch.put(self.core.layout.nmap, layout::name_key(parent, name), layout::encode_name(ino, attr.kind));
            let mut dir_attr = state.attr;
            add_entry(&mut dir_attr, &attr);
            self.stage(parent, &mut state, &dir_attr, &mut batch)?;
            transaction.apply(batch)?;
            if alone {
                transaction.commit(kvdb::Durability::Buffered)?;
            }
            self.staged(&mut state, dir_attr);
            Ok(())
        });
        let (made, stats) = (std::mem::take(&mut walk.made), walk.stats);
        if let Err(e) = outcome {
            if alone {
                transaction.abort();
            } else {
                // In a transaction that goes on, what was made so far goes again.
                let mut batch = Batch::new();
                made.iter().for_each(|&ino| self.stage_absence(ino, &mut batch));
                transaction.apply(batch)?;
            }
            return Err(e);
        }
        Ok(stats)
    }

    /// Everything of an inode that may be a directory.
    fn stage_absence(&self, ino: Ino, batch: &mut Batch) {
        stage_removal(&self.core.layout, ino, batch);
        batch.delete_range(self.core.layout.nmap, layout::name_key(ino, b""), layout::names_end(ino).to_vec());
    }
}

impl Views {
    /// The same in a view, by paths from its root; kernels that know the place are told. The last part of `to` must not be there.
    pub fn clone_tree(&self, view: &View, from: &[u8], to: &[u8]) -> Result<CloneStats> {
        let to = to.strip_suffix(b"/").unwrap_or(to);
        let (parent, name) = to.iter().rposition(|&b| b == b'/').map_or((&b""[..], to), |at| (&to[..at], &to[at + 1..]));
        // What programs have written and a kernel holds back is to be copied, too.
        self.write_back();
        let (fs, number) = (self.fs(view)?, self.number(view)?);
        let (from, parent) = (fs.resolve(from)?.ino, fs.resolve(parent)?.ino);
        let stats = fs.clone_tree(from, parent, name)?;
        let touched = Touched { names: vec![(parent, name.into(), false)], inodes: vec![(parent, false)], ..Touched::default() };
        self.tell(|watcher| watcher.changed(number, &fs, &touched));
        Ok(stats)
    }
}

/// A copy of something that may have several names.
struct Link {
    ino: Ino,
    /// Names of it that were met.
    names: u32,
}

/// Ranges of one dictionary, asked for in ascending order: mostly one lies behind the other, and one cursor goes through them all.
struct Forward {
    cursor: kvdb::Cursor,
    /// The tuple that was read last, when it lies behind what was asked for.
    next: Option<Tuple>,
    started: bool,
}

/// Tuples in between that are passed by; a seek costs more.
const PASS: usize = 16;

impl Forward {
    fn new(view: &kvdb::View, dict: DictionaryId) -> Result<Forward> {
        Ok(Forward { cursor: view.cursor(dict, b"", b"")?, next: None, started: false })
    }

    /// Shows the tuples of `[start, end)` to `visit`.
    fn range(&mut self, start: &[u8], end: &[u8], mut visit: impl FnMut(Tuple) -> Result<()>) -> Result<()> {
        let mut passed = 0;
        while self.next.as_ref().is_none_or(|t| t.key < start) {
            if !std::mem::replace(&mut self.started, true) || passed == PASS {
                self.cursor.seek(start)?;
            }
            passed += 1;
            self.next = self.cursor.next()?;
            if self.next.is_none() {
                return Ok(());
            }
        }
        while let Some(tuple) = self.next.take_if(|t| t.key < end) {
            visit(tuple)?;
            self.next = self.cursor.next()?;
        }
        Ok(())
    }
}

/// An inode to be copied: its number, that of its copy, and the copy's directory.
type Inode = (Ino, Ino, Ino);

struct Walk<'a> {
    fs: &'a Fs,
    /// What is copied, as it was.
    view: Arc<kvdb::View>,
    transaction: &'a Transaction,
    batch: Batch,
    now: Timestamp,
    /// By the original's number.
    links: HashMap<Ino, Link>,
    /// What has its number and its names, and nothing else yet.
    waiting: Vec<Inode>,
    made: Vec<Ino>,
    stats: CloneStats,
}

impl Walk<'_> {
    /// The copy's number and attributes; all of it is in the transaction but its name.
    fn copy(&mut self, from: Ino, parent: Ino) -> Result<(Ino, Attributes)> {
        let layout = self.fs.core.layout;
        let top = self.new_ino();
        let attr = self.inodes(vec![(from, top, parent)])?.ok_or(Error::Stale(from))?;
        let mut level = Vec::new();
        match attr.kind {
            FileKind::Dir => level.push((from, top)),
            _ => self.stats.files += 1,
        }
        // Level by level, each in the order of its numbers, as which everything is stored.
        while !level.is_empty() {
            level.sort_unstable();
            let (mut below, mut inodes) = (Vec::new(), Vec::new());
            let mut names = Forward::new(&self.view, layout.nmap)?;
            for (from, to) in level {
                let (start, end) = (layout::name_key(from, b""), layout::names_end(from));
                self.seen(layout.nmap, &start, &end)?;
                names.range(&start, &end, |tuple| {
                    let (_, name) = layout::decode_name_key(&tuple.key)?;
                    let (child, kind) = layout::decode_name(from, &tuple.value()?)?;
                    let copy = match self.links.get_mut(&child) {
                        Some(link) => {
                            link.names += 1;
                            link.ino
                        }
                        None => {
                            let copy = self.new_ino();
                            if kind != FileKind::Dir {
                                self.links.insert(child, Link { ino: copy, names: 1 });
                            }
                            inodes.push((child, copy, to));
                            copy
                        }
                    };
                    self.batch.put(layout.nmap, layout::name_key(to, name), layout::encode_name(copy, kind));
                    match kind {
                        FileKind::Dir => below.push((child, copy)),
                        _ => self.stats.files += 1,
                    }
                    self.write(AT_ONCE)
                })?;
            }
            // All names of a file must be known before it is written: its links may lie anywhere.
            self.waiting.extend(inodes);
            level = below;
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.inodes(waiting)?;
        self.write(1)?;
        Ok((top, attr))
    }

    fn new_ino(&mut self) -> Ino {
        let ino = self.fs.new_ino();
        self.made.push(ino);
        ino
    }

    /// Copies everything of inodes but their names. The attributes of the last copy.
    fn inodes(&mut self, mut all: Vec<Inode>) -> Result<Option<Attributes>> {
        let layout = self.fs.core.layout;
        all.sort_unstable();
        let (mut nodes, mut pages) = (Forward::new(&self.view, layout.imap)?, Forward::new(&self.view, layout.dmap)?);
        let mut last = None;
        for (from, to, parent) in all {
            let (start, end) = layout::node_range(from);
            self.seen(layout.imap, &start, &end)?;
            let mut copied = None;
            nodes.range(&start, &end, |tuple| {
                if tuple.key.len() == start.len() {
                    let (mut attr, xattrs, content) = layout::decode_node(from, &tuple.value()?)?;
                    (attr.btime, attr.ctime) = (self.now, self.now);
                    if attr.kind == FileKind::Dir {
                        attr.parent = parent;
                        self.stats.directories += 1;
                    } else {
                        attr.parent = 0;
                        attr.nlink = self.links.get(&from).map_or(1, |link| link.names);
                        self.stats.bytes += attr.size;
                    }
                    self.batch.put(layout.imap, layout::node_key(to), layout::encode_node(&attr, xattrs.as_ref(), &content));
                    copied = Some(attr);
                } else {
                    // The value of an extended attribute too large for the node.
                    let key = [&to.to_be_bytes()[..], &tuple.key[start.len()..]].concat();
                    self.batch.put_stored(layout.imap, key, StoredValue::of(&tuple, &self.view));
                }
                Ok(())
            })?;
            let attr = copied.ok_or(Error::Stale(from))?;
            if matches!(attr.body, Body::Paged(1..)) {
                let (start, end) = (layout::page_key(from, 0), layout::pages_end(from));
                self.seen(layout.dmap, &start, &end)?;
                pages.range(&start, &end, |tuple| {
                    let (_, block) = layout::decode_page_key(&tuple.key)?;
                    let value = StoredValue::of(&tuple, &self.view);
                    self.batch.put_stored(layout.dmap, layout::page_key(to, block).to_vec(), value);
                    self.write(AT_ONCE)
                })?;
            }
            self.write(AT_ONCE)?;
            last = Some(attr);
        }
        Ok(last)
    }

    /// A range is read: a serializable transaction must know.
    fn seen(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<()> {
        match self.transaction.isolation() {
            Isolation::Snapshot => Ok(()),
            Isolation::Serializable => Ok(self.transaction.lock_range(dict, start, end, false)?),
        }
    }

    /// Gives what has gathered to the transaction, when there is so much of it.
    fn write(&mut self, least: usize) -> Result<()> {
        if self.batch.len() < least {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.fs.reserve(COST * batch.len() as u64)?;
        Ok(self.transaction.apply(batch)?)
    }
}

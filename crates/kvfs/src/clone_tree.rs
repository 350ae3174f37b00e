//! A directory copied with everything in it, at the cost of its names: the pages of the copies are those of the originals, referred to
//! a second time. It appears whole, in one commit, or not at all.
//!
//! What is copied is what was committed when the call began. Hard links among the copied files stay links among the copies; links to
//! files outside do not reach into them.

use std::collections::HashMap;
use std::time::Duration;

use kvdb::{Batch, DictionaryId, Isolation, Scope, Transaction, TransactionOptions};

use crate::absorb::Touched;
use crate::attr::{FileKind, Ino, Timestamp};
use crate::error::{Error, Result};
use crate::fs::{Fs, stage_removal};
use crate::layout::{self, Attributes, Body, XattrValue, Xattrs};
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
            view: self.core.scope.view()?,
            transaction: &transaction,
            batch: Batch::new(),
            now: self.now(),
            links: HashMap::new(),
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

/// A copy of a file that has several names.
struct Link {
    ino: Ino,
    attr: Attributes,
    xattrs: Option<Xattrs>,
    content: bytes::Bytes,
    /// Names of it that were met.
    names: u32,
}

struct Walk<'a> {
    fs: &'a Fs,
    /// What is copied, as it was.
    view: kvdb::View,
    transaction: &'a Transaction,
    batch: Batch,
    now: Timestamp,
    /// By the original's number.
    links: HashMap<Ino, Link>,
    made: Vec<Ino>,
    stats: CloneStats,
}

impl Walk<'_> {
    /// The copy's number and attributes; all of it is in the transaction but its name.
    fn copy(&mut self, from: Ino, parent: Ino) -> Result<(Ino, Attributes)> {
        let layout = self.fs.core.layout;
        let (top, attr) = self.inode(from, parent)?;
        let mut directories = if attr.kind == FileKind::Dir { vec![(from, top)] } else { Vec::new() };
        while let Some((from, to)) = directories.pop() {
            let (start, end) = (layout::name_key(from, b""), layout::names_end(from));
            self.seen(layout.nmap, &start, &end)?;
            let mut cursor = self.view.cursor(layout.nmap, &start, &end)?;
            while let Some(tuple) = cursor.next()? {
                let (_, name) = layout::decode_name_key(&tuple.key)?;
                let (child, kind) = layout::decode_name(from, &tuple.value()?)?;
                let (copy, _) = self.inode(child, to)?;
                self.batch.put(layout.nmap, layout::name_key(to, name), layout::encode_name(copy, kind));
                if kind == FileKind::Dir {
                    directories.push((child, copy));
                }
                self.write(AT_ONCE)?;
            }
        }
        for link in std::mem::take(&mut self.links).into_values() {
            let attr = Attributes { nlink: link.names, ..link.attr };
            let node = layout::encode_node(&attr, link.xattrs.as_ref(), &link.content);
            self.batch.put(layout.imap, layout::node_key(link.ino), node);
        }
        self.write(1)?;
        Ok((top, attr))
    }

    /// Copies everything of an inode but its names; of one that has several names only once.
    fn inode(&mut self, from: Ino, parent: Ino) -> Result<(Ino, Attributes)> {
        if let Some(link) = self.links.get_mut(&from) {
            link.names += 1;
            self.stats.files += 1;
            return Ok((link.ino, link.attr));
        }
        let layout = self.fs.core.layout;
        let (start, end) = layout::node_range(from);
        self.seen(layout.imap, &start, &end)?;
        let node = self.view.get(layout.imap, &layout::node_key(from))?.ok_or(Error::Stale(from))?;
        let (mut attr, xattrs, content) = layout::decode_node(from, &node)?;
        let ino = self.fs.new_ino();
        self.made.push(ino);
        (attr.btime, attr.ctime) = (self.now, self.now);
        if attr.kind == FileKind::Dir {
            attr.parent = parent;
            self.stats.directories += 1;
        } else {
            self.stats.files += 1;
            self.stats.bytes += attr.size;
            attr.parent = 0;
        }
        // What else there is under its number: extended attributes too large for the node.
        if xattrs.as_ref().is_some_and(|x| x.values().any(|v| matches!(v, XattrValue::External(_)))) {
            for (key, value) in self.view.scan_stored(layout.imap, &layout::xattr_key(from, b""), &end, usize::MAX)? {
                self.batch.put_stored(layout.imap, [&ino.to_be_bytes()[..], &key[start.len()..]].concat(), value);
            }
        }
        if matches!(attr.body, Body::Paged(1..)) {
            self.pages(from, ino)?;
        }
        if attr.kind != FileKind::Dir && attr.nlink > 1 {
            attr.nlink = 1;
            self.links.insert(from, Link { ino, attr, xattrs, content, names: 1 });
        } else {
            self.batch.put(layout.imap, layout::node_key(ino), layout::encode_node(&attr, xattrs.as_ref(), &content));
        }
        Ok((ino, attr))
    }

    fn pages(&mut self, from: Ino, to: Ino) -> Result<()> {
        let dmap = self.fs.core.layout.dmap;
        let (mut start, end) = (layout::page_key(from, 0).to_vec(), layout::pages_end(from));
        self.seen(dmap, &start, &end)?;
        loop {
            let pages = self.view.scan_stored(dmap, &start, &end, AT_ONCE)?;
            let Some((last, _)) = pages.last() else { return Ok(()) };
            start = [&last[..], &[0]].concat();
            for (key, value) in pages {
                let (_, block) = layout::decode_page_key(&key)?;
                self.batch.put_stored(dmap, layout::page_key(to, block).to_vec(), value);
            }
            self.write(AT_ONCE)?;
        }
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

//! Makes many complete files at once: names, attributes and content in one commit, so that nothing
//! waits in memory or is written a second time. This is for callers that bring in whole trees.
//!
//! In a transaction the pages are built straight into a run, and bypass its memtables.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use env::sync::RwLockWriteGuard;
use env::sync::atomic::Ordering;
use kvdb::{Batch, BulkRun, Kvdb, Scope, Transaction};

use crate::attr::{FileKind, Ino, Timestamp};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::{Inode, InodeState};
use crate::layout::{self, Attributes, Body, INLINE_MAX, PAGE, PageKeys, TARGET_MAX, Xattrs};
use crate::namespace::{add_entry, check_name};
use crate::pages::compress;
use crate::space::space_account::NAME_COST;

/// Bytes from which pages are built into a run; fewer in builds with assertions, so that the models
/// of the tests reach it.
const LEAST_RUN: u64 = if cfg!(debug_assertions) { 8 << 10 } else { 1 << 20 };

/// The locked directories, by number, each with the attributes that it is about to have.
type Locked<'a> = BTreeMap<Ino, (RwLockWriteGuard<'a, InodeState>, Attributes)>;

/// An object with its number and attributes.
type Made<'a> = (Ino, Attributes, &'a Whole);

/// An object other than a directory, with everything but extended attributes. Of these it gets the
/// one that it inherits from its directory ([`crate::COMPRESS_ATTRIBUTE`]).
#[derive(Clone, Debug)]
pub struct Whole {
    /// The directory in which it is made.
    pub parent: Ino,
    /// Its name.
    pub name: Box<[u8]>,
    /// Its type.
    pub kind: FileKind,
    /// The low twelve bits of the mode.
    pub perm: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device node, as the kernel encodes it.
    pub rdev: u32,
    /// The time of the last access.
    pub atime: Timestamp,
    /// The time of the last change of the content.
    pub mtime: Timestamp,
    /// The content of a file, or the target of a symbolic link.
    pub content: Bytes,
}

impl Whole {
    fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        match self.kind {
            FileKind::Dir => Err(Error::Invalid("a directory is not made with its content")),
            FileKind::File => Ok(()),
            FileKind::Symlink if self.content.is_empty() => Err(Error::NotFound),
            FileKind::Symlink if self.content.len() > TARGET_MAX => Err(Error::NameTooLong),
            FileKind::Symlink if self.content.contains(&0) => {
                Err(Error::Invalid("the target of a symbolic link holds no NUL"))
            }
            FileKind::Symlink => Ok(()),
            _ if !self.content.is_empty() => Err(Error::Invalid("a special file has no content")),
            _ => Ok(()),
        }
    }

    /// Returns the content in pages.
    fn pages(&self) -> impl Iterator<Item = Bytes> {
        let len = self.content.len();
        (0..len)
            .step_by(PAGE as usize)
            .map(move |from| self.content.slice(from..(from + PAGE as usize).min(len)))
    }

    fn attributes(&self, now: Timestamp) -> Attributes {
        let size = self.content.len() as u64;
        let inline = self.kind != FileKind::File || size <= INLINE_MAX;
        Attributes {
            kind: self.kind,
            perm: self.perm & 0o7777,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: if matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice) {
                self.rdev
            } else {
                0
            },
            size,
            body: if inline {
                Body::Inline(size as u32)
            } else {
                Body::Paged(layout::blocks_of(size))
            },
            parent: self.parent,
            atime: self.atime,
            mtime: self.mtime,
            ctime: now,
            btime: now,
            reserved: Default::default(),
        }
    }
}

/// Returns the extended attributes that an object inherits from its directory.
fn xattrs_of(whole: &Whole, locked: &Locked<'_>) -> Option<Xattrs> {
    let (dir, _) = locked.get(&whole.parent)?;
    compress::inherited(dir.xattrs.as_deref(), whole.kind)
}

impl Fs {
    /// Makes all of these objects, or none on any error. Their names must not exist yet. As with a
    /// rename, no call sees a part of a file; no reference is added. All of them are in memory
    /// during the call, so many megabytes should be split into several calls.
    pub fn make_whole(&self, all: &[Whole]) -> Result<()> {
        self.writable()?;
        all.iter().try_for_each(Whole::check)?;
        self.core.locks.retry(|| self.make_whole_once(all))
    }

    fn make_whole_once(&self, all: &[Whole]) -> Result<()> {
        let _call = self.enter()?;
        let bytes: u64 = all.iter().map(|whole| whole.content.len() as u64).sum();
        self.reserve(bytes.saturating_add(NAME_COST * all.len() as u64))?;
        let admitted = self.core.files.admit(all.len() as u64)?;
        let _tree = self.core.names.lock_tree();
        let mut dirs: BTreeMap<Ino, Arc<Inode>> = BTreeMap::new();
        for whole in all {
            if let std::collections::btree_map::Entry::Vacant(place) = dirs.entry(whole.parent) {
                place.insert(self.inode(whole.parent)?);
            }
        }
        let mut locked = Locked::new();
        for (ino, dir) in &dirs {
            let state = self.lock_dir(dir)?;
            let attr = state.attr;
            locked.insert(*ino, (state, attr));
        }
        self.check_new(all)?;
        let made = self.numbered(all, &mut locked)?;
        for (ino, attr, whole) in &made {
            if let Body::Paged(_) = attr.body {
                let (xattrs, default) = (xattrs_of(whole, &locked), self.core.options.compress);
                let layout = &self.core.layout;
                compress::announce(&self.core.db, layout, *ino, xattrs.as_ref(), default)?;
            }
        }
        let run = self.run_of(bytes, &made)?;
        let (mut batch, pages) = self.staged(&made, &locked, run.is_none());
        for (ino, (state, attr)) in &mut locked {
            self.stage(*ino, state, attr, &mut batch)?;
        }
        match run {
            Some((t, run)) => {
                t.adopt(run)?;
                if let Err(e) = self.apply(batch) {
                    // Pages without a file must not remain.
                    let mut batch = Batch::new();
                    for (ino, ..) in &made {
                        let (start, end) = layout::node_range(*ino);
                        batch.delete_range(self.core.layout.dmap, start.to_vec(), end.to_vec());
                    }
                    t.apply(batch)?;
                    return Err(e);
                }
            }
            None => self.apply(batch)?,
        }
        admitted.made();
        for (state, attr) in locked.values_mut() {
            self.mark_committed(state, *attr);
        }
        self.core.counters.pages_written.fetch_add(pages, Ordering::Relaxed);
        self.core.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Fails if one of the names exists, or is given twice.
    fn check_new(&self, all: &[Whole]) -> Result<()> {
        let mut names = HashSet::with_capacity(all.len());
        for whole in all {
            let key = layout::name_key(whole.parent, &whole.name);
            if self.core.scope.get(self.core.layout.nmap, &key)?.is_some() || !names.insert(key) {
                return Err(Error::Exists);
            }
        }
        Ok(())
    }

    /// Gives the objects their numbers, and returns them by number, in the order of their pages.
    /// The attributes of the locked directories get the entries.
    fn numbered<'w>(&self, all: &'w [Whole], locked: &mut Locked<'_>) -> Result<Vec<Made<'w>>> {
        let now = self.now();
        let mut made: Vec<Made<'w>> = Vec::with_capacity(all.len());
        // Files are numbered in the order of a listing, independently of the order of the input.
        let mut order: Vec<&Whole> = all.iter().collect();
        order.sort_unstable_by_key(|whole| (whole.parent, &whole.name));
        for whole in order {
            let attr = whole.attributes(now);
            let ino = match locked.get_mut(&whole.parent) {
                Some((state, dir)) => {
                    let ino = self.new_ino_in(whole.parent, dir)?;
                    // The number is used up even if the call fails.
                    state.attr.reserved = dir.reserved;
                    add_entry(dir, &attr);
                    ino
                }
                None => self.new_ino()?,
            };
            made.push((ino, attr, whole));
        }
        made.sort_unstable_by_key(|(ino, ..)| *ino);
        Ok(made)
    }

    /// Returns a batch with the names and nodes of these objects, and with their pages if the batch
    /// has to bring these; and the number of all pages.
    fn staged(&self, made: &[Made<'_>], locked: &Locked<'_>, with_pages: bool) -> (Batch, u64) {
        let layout = &self.core.layout;
        let (mut batch, mut pages) = (Batch::new(), 0);
        for (ino, attr, whole) in made {
            let place = (whole.parent, &*whole.name);
            self.core.names.stage_new(place, (*ino, whole.kind), &mut batch);
            let inline = match attr.body {
                Body::Inline(_) => &whole.content[..],
                Body::Paged(count) => {
                    if with_pages {
                        let mut keys = PageKeys::with_capacity(count as usize);
                        for (block, page) in (0..).zip(whole.pages()) {
                            batch.put(layout.dmap, keys.key(*ino, block), page);
                        }
                    }
                    pages += count;
                    &[]
                }
            };
            let node = layout::encode_node(attr, xattrs_of(whole, locked).as_ref(), inline);
            batch.put(layout.imap, layout::node_key(*ino), node);
        }
        (batch, pages)
    }

    /// Returns the pages of these files as a run of the transaction, if they are `bytes` enough for
    /// one and this is a transaction that takes it.
    fn run_of(
        &self,
        bytes: u64,
        made: &[Made<'_>],
    ) -> Result<Option<(&Transaction, Option<BulkRun>)>> {
        match (&self.core.scope, self.core.db.here()) {
            (Scope::Transaction(t), Ok(db)) if bytes >= LEAST_RUN && t.takes_bulk() => {
                match self.pages_as_run(t, db, made) {
                    // A batch can use the space that deletions have left.
                    Err(kvdb::Error::NoSpace) => Ok(None),
                    run => Ok(Some((t, run?))),
                }
            }
            _ => Ok(None),
        }
    }

    /// Builds the pages of these files, whose numbers ascend, as a run of the transaction.
    fn pages_as_run(
        &self,
        transaction: &Transaction,
        db: &Kvdb,
        made: &[Made<'_>],
    ) -> kvdb::Result<Option<BulkRun>> {
        let mut bulk = transaction.bulk(self.core.layout.dmap, &db.view())?;
        for (ino, attr, whole) in made {
            if let Body::Paged(count) = attr.body {
                let mut keys = PageKeys::with_capacity(count as usize);
                for (block, page) in (0..).zip(whole.content.chunks(PAGE as usize)) {
                    bulk.push(&keys.key(*ino, block), page)?;
                }
            }
        }
        bulk.finish()
    }
}

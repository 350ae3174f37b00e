//! Repair of the file system: makes the three dictionaries one again, after blocks were lost, or
//! after anything else that the checker finds. It changes what contradicts something else and
//! nothing that is sound, and it takes away only what means nothing: names that lead nowhere,
//! values that nothing refers to. What has lost its name gets one in `lost+found`; data that has
//! lost its node gets a new one. What is gone is noted (`lost`), and reading a lost page fails.
//!
//! All of it is one batch over one view: first the tuples (`tuples`), then the tree that they make
//! (`tree`). Memory is that of the checker: an entry for each inode.

mod lost;
mod tree;
mod tuples;

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use env::Env;
use kvdb::{Batch, DictionaryId, Kvdb, RepairReport, View};

use crate::attr::{FileKind, Ino, ROOT, Timestamp};
use crate::error::Result;
use crate::fs::counter::{given_below, largest_ino, noted_bound, notes_of, valid_reserved};
use crate::layout::counter::{BOUND_KEY, branch_range, encode_number};
use crate::layout::{Attributes, Body, Layout, Xattrs};
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

/// What becomes of content that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losses {
    /// Reading it fails, until it is written again, and what was lost is kept as a list.
    Keep,
    /// It reads as zeros, and so does what earlier repairs have noted; there is no list any more.
    Accept,
}

/// Repairs the store and the file system in it, if there is one. All of it takes effect at once, or
/// nothing.
pub fn repair(db: &Kvdb, env: &dyn Env, losses: Losses) -> Result<Repaired> {
    let mut mended = Vec::new();
    let layout = Layout::find(db);
    let store = db.repair(|view, removed| -> Result<Batch> {
        let Some(layout) = layout else { return Ok(Batch::new()) };
        let notes = notes_of(db);
        let noted = notes.map(|notes| noted_bound(view, notes)).transpose()?.flatten();
        // What is left of the counter's notes may be old.
        let given = given_below(db).max(noted.unwrap_or(0));
        let largest = largest_ino(view, &layout)?.max(given.saturating_sub(1));
        let mut mend = Mend::new(view, layout, env, largest, losses);
        mend.nodes()?;
        mend.lost(removed)?;
        mend.pages()?;
        mend.names()?;
        mend.tree();
        mend.lost_and_found()?;
        if let Some(valid) = valid_reserved((view, &layout), view, notes)? {
            mend.reservations(valid.first..given);
        }
        mend.write();
        if let Some(notes) = notes {
            let changed = !removed.is_empty() || !mend.batch.is_empty();
            mend.count_again(notes, noted.filter(|_| !changed), given);
        }
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
    /// How many entries a directory has, how many of them are directories, where the directory is,
    /// and by which name.
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
    losses: Losses,
    batch: Batch,
    mended: Vec<Finding>,
    inodes: BTreeMap<Ino, Examined>,
    orphans: HashSet<Ino>,
}

impl<'a> Mend<'a> {
    fn new(
        view: &'a View,
        layout: Layout,
        env: &dyn Env,
        largest: Ino,
        losses: Losses,
    ) -> Mend<'a> {
        let random = [env.random(), env.random()];
        Mend {
            view,
            layout,
            now: env.wall().into(),
            random,
            largest,
            losses,
            batch: Batch::new(),
            mended: Vec::new(),
            inodes: BTreeMap::new(),
            orphans: HashSet::new(),
        }
    }

    fn note(&mut self, ino: Ino, what: impl Into<String>) {
        self.mended.push(Finding { ino, what: what.into() });
    }

    /// Notes the bound of all numbers, unless it is `noted` and enough: those that were given
    /// before are below `given`. What directories have reserved is void.
    fn count_again(&mut self, notes: DictionaryId, noted: Option<Ino>, given: Ino) {
        let highest = self.inodes.last_key_value().map_or(ROOT, |(ino, _)| *ino);
        let bound = given.max(highest.saturating_add(1)).min(INO_LIMIT);
        if noted.is_none_or(|noted| noted < bound) {
            let (start, end) = branch_range();
            self.batch.delete_range(notes, start.to_vec(), end.to_vec());
            self.batch.put(notes, BOUND_KEY, encode_number(bound));
        }
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

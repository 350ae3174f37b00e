//! Repairs the file system: makes the three dictionaries consistent after blocks were lost, or
//! after any other damage that the checker finds. It changes tuples that contradict others and
//! nothing that is sound, and removes only tuples without a meaning: names that lead nowhere,
//! values that nothing refers to. An inode that has lost its name gets one in `lost+found`; data
//! that has lost its node gets a new node. Losses are noted (`lost`), and reading a lost page
//! fails, in snapshots and clones as in the main branch (`stand_ins`).
//!
//! The repair is one batch over one view: first the tuples (`tuples`), then the tree that they make
//! (`tree`). It takes as much memory as the checker: an entry for each inode.

mod between;
mod lost;
mod stand_ins;
mod tree;
mod tuples;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use env::Env;
use kvdb::{Batch, Deletion, DictionaryId, Kvdb, RepairReport, View};

use crate::attr::{FileKind, Ino, ROOT, Timestamp};
use crate::error::Result;
use crate::fs::counter::{given_below, largest_ino, noted_bound, notes_of, valid_reserved};
use crate::layout::counter::{BOUND_KEY, LENT_KEY, branch_range, encode_number};
use crate::layout::reservation::INO_LIMIT;
use crate::layout::{Attributes, Body, Layout, Xattrs};
use crate::upkeep::verify::Finding;

use self::stand_ins::StandIns;

/// The result of a repair.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Blocks that could not be read, and the data that depended on them. See
    /// [`kvdb::Kvdb::repair`].
    pub store: RepairReport,
    /// The damage to the file system, and how it was repaired.
    pub mended: Vec<Finding>,
}

/// The treatment of content that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losses {
    /// Reading lost content fails until it is written again, and the losses are listed.
    Keep,
    /// Lost content reads as zeros, including losses that earlier repairs have noted, in the main
    /// branch and in clones; the list is removed. Snapshots do not change: there, reading it fails
    /// as before.
    Accept,
}

/// Repairs the store and the file system in it, if there is one. The repair takes effect as a whole
/// or not at all.
pub fn repair(db: &Kvdb, env: &dyn Env, losses: Losses) -> Result<Repaired> {
    let mut mended = Vec::new();
    let layout = Layout::find(db);
    let others = Others::of(db);
    let stand_ins = RefCell::new(StandIns::default());
    let stand_in = |deletion: &mut Deletion<'_>| {
        if layout.is_some() && losses == Losses::Keep {
            stand_ins.borrow_mut().put(deletion);
        }
    };
    let store = db.repair(stand_in, |view, removed| -> Result<Batch> {
        let Some(layout) = layout else { return Ok(Batch::new()) };
        let notes = notes_of(db);
        let noted = notes.map(|notes| noted_bound(view, notes)).transpose()?.flatten();
        // The remaining notes of the counter may be old.
        let given = given_below(db).max(noted.unwrap_or(0));
        let largest = largest_ino(view, &layout)?.max(given.saturating_sub(1));
        let mut mend = Mend::new(view, layout, env, largest, losses);
        mend.nodes()?;
        mend.newest_of_others = others.newest;
        if losses == Losses::Accept {
            mend.accept_in(&others.clones)?;
        }
        mend.lost(removed, &stand_ins.borrow())?;
        mend.settle(&others.clones, removed)?;
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
            // A client that has the lease of the main branch has cached the state before the
            // repair.
            if view.get(notes, LENT_KEY)?.is_some() {
                mend.batch.delete(notes, LENT_KEY);
            }
        }
        mended = mend.mended;
        Ok(mend.batch)
    })?;
    mended.sort_by_key(|f| f.ino);
    Ok(Repaired { store, mended })
}

/// The states other than the main branch.
struct Others {
    clones: Vec<Layout>,
    /// The newest commit that a snapshot has, or 0 if there are only clones. `None` if there are
    /// neither.
    newest: Option<u64>,
}

impl Others {
    fn of(db: &Kvdb) -> Others {
        let branches = db.branches();
        let clones: Vec<Layout> =
            branches.iter().filter_map(|branch| Layout::find_in(db, &branch.name)).collect();
        let newest = db.snapshot_labels().iter().map(|label| label.seq).max();
        let newest = newest.or((!clones.is_empty()).then_some(0));
        Others { clones, newest }
    }
}

/// An inode, and the data found for it.
struct Examined {
    attr: Attributes,
    xattrs: Option<Xattrs>,
    content: Bytes,
    changed: bool,
    names: u64,
    /// The number of a directory's entries, the number of directories among them, and the directory
    /// and name under which the directory was found.
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
    /// See [`Others::newest`].
    newest_of_others: Option<u64>,
    batch: Batch,
    mended: Vec<Finding>,
    inodes: BTreeMap<Ino, Examined>,
    orphans: HashSet<Ino>,
    /// Ranges of keys of `dmap` with stand-ins, some of which may be for pages of other states
    /// only.
    may_be_stray: BTreeSet<(Bytes, Bytes)>,
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
            newest_of_others: None,
            batch: Batch::new(),
            mended: Vec::new(),
            inodes: BTreeMap::new(),
            orphans: HashSet::new(),
            may_be_stray: BTreeSet::new(),
        }
    }

    fn note(&mut self, ino: Ino, what: impl Into<String>) {
        self.mended.push(Finding { ino, what: what.into() });
    }

    /// Notes the bound of all numbers, unless the bound `noted` suffices: numbers given before are
    /// below `given`. With a new bound the marks of the branches are removed, so all reservations
    /// of directories become void.
    fn count_again(&mut self, notes: DictionaryId, noted: Option<Ino>, given: Ino) {
        let highest = self.inodes.last_key_value().map_or(ROOT, |(ino, _)| *ino);
        let bound = given.max(highest.saturating_add(1)).min(INO_LIMIT);
        if noted.is_none_or(|noted| noted < bound) {
            let (start, end) = branch_range();
            self.batch.delete_range(notes, start.to_vec(), end.to_vec());
            self.batch.put(notes, BOUND_KEY, encode_number(bound));
        }
    }

    /// Makes a node in place of a lost one, accessible to the superuser only.
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

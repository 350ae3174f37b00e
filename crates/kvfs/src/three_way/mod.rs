//! A merge of files: what one state of the file system, *from*, has changed since a *base* that it
//! has in common with another one, *into*, is made there, too.
//!
//! Only what differs between base and from is looked at, and what is at the same places in into;
//! pages are compared by where they lie, and are taken by reference. Base and from may be states of
//! a fork, which is another store than into: then pages are compared by what is in them, and are
//! copied. All three know a file by its inode number, which in a fork is shown as another one
//! (`Numbering`). What both sides have made at one path has two numbers: where it is alike, from's
//! stands for into's from there on (`counterparts`).
//!
//! - `names`: each entry that from has changed: into has it as base had it and takes the change; or
//!   as from has it; or else both have changed it;
//! - `nodes`: content and attributes, file by file;
//! - `structure`: what follows for the tree: directories that are removed must be empty, nothing
//!   gets two places, no directory comes to lie in itself, nothing that both have loses its last
//!   name;
//! - `sound`: the tree that all of it leads to is one; what is not is a conflict;
//! - `write`: what was decided, as changes of a transaction. Numbers of names and entries are those
//!   of into, and what the changes add to them.
//!
//! What both sides have changed is a conflict, unless the caller has chosen at its path.

mod counterparts;
mod names;
mod nodes;
mod sound;
mod structure;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kvdb::Transaction;

use crate::attr::{FileKind, Ino, Timestamp};
use crate::difference::{Side, StoredNode, joined};
use crate::error::Result;
use crate::fs::Fs;
use crate::layout::{self, ImapKey};
use crate::merging::{Choice, Choices, Deed, MergeConflict};

/// The three states.
pub(crate) struct Sides {
    pub base: Side,
    pub from: Side,
    pub into: Side,
}

/// The target of a name.
type Entry = Option<(Ino, FileKind)>;

/// A directory and a name in it.
type Place = (Ino, Box<[u8]>);

/// An entry of a directory that from has changed.
struct NameChange {
    place: Place,
    base: Entry,
    from: Entry,
}

/// An entry of into: what it was and what it becomes.
struct Replaced {
    before: Entry,
    after: Entry,
}

/// Where the content of a file of into comes from: from's file of this number.
#[derive(Clone, Copy)]
enum Content {
    /// Its pages that differ from base: into has those of base.
    Changes(Ino),
    /// All of it, in the place of what is there.
    All(Ino),
}

/// The plan of a merge.
pub(crate) struct Plan<'a> {
    sides: &'a Sides,
    choices: &'a Choices,
    /// The suffix of from's versions where both are kept.
    suffix: &'a str,
    /// The file system that is merged into.
    fs: &'a Fs,
    names: Vec<NameChange>,
    /// Inodes that differ between base and from.
    inodes: BTreeSet<Ino>,
    /// Those with pages that do.
    paged: HashSet<Ino>,
    /// Where from has put what it has made.
    made_at: HashMap<Ino, Place>,
    /// Directories of from and what they are in into.
    dirs: HashMap<Ino, Option<Ino>>,
    entries: BTreeMap<Place, Replaced>,
    /// By inodes of into.
    content: BTreeMap<Ino, Content>,
    /// Attributes that inodes of into get, which else stay as they are.
    attributes: BTreeMap<Ino, StoredNode>,
    /// Those of which from has changed the times alone: access, content, attributes.
    times: BTreeMap<Ino, [Timestamp; 3]>,
    /// Directories that into has not, and from's nodes of them.
    new_dirs: BTreeSet<Ino>,
    /// What the changed entries add up to.
    sums: structure::Sums,
    /// Directories that from has removed, and what they are in into.
    removed_dirs: Vec<(Ino, Ino)>,
    /// Those of into of which it is settled whether they stay.
    stays: BTreeSet<Ino>,
    /// Directories of into in which something was left that from has removed or changed.
    kept_in: HashSet<Ino>,
    /// Inodes that both have moved, and for which a place was chosen.
    settled_moves: HashSet<Ino>,
    /// Files of into that are as from has made others in their place.
    same: HashSet<Ino>,
    /// What from has put somewhere and was not taken.
    passed_by: HashSet<Ino>,
    /// Moved by into, too, where from's entry was.
    moved_away: BTreeSet<Ino>,
    conflicts: BTreeSet<MergeConflict>,
    /// Bytes of their paths.
    named: usize,
}

/// Conflicts that are named at most.
const NAMED: usize = 10_000;
/// Bytes of their paths at most, but for the first: those of deep directories are as long as the
/// square of their depth.
const NAMED_BYTES: usize = 16 << 20;

/// Makes the changes in a transaction of `fs`. `sides.into` is what it sees now.
pub(crate) fn merge(
    sides: &Sides,
    choices: &Choices,
    suffix: &str,
    fs: &Fs,
    transaction: &Transaction,
) -> Result<Vec<MergeConflict>> {
    let mut plan = Plan {
        sides,
        choices,
        suffix,
        fs,
        names: Vec::new(),
        inodes: BTreeSet::new(),
        paged: HashSet::new(),
        made_at: HashMap::new(),
        dirs: HashMap::new(),
        entries: BTreeMap::new(),
        content: BTreeMap::new(),
        attributes: BTreeMap::new(),
        times: BTreeMap::new(),
        new_dirs: BTreeSet::new(),
        sums: structure::Sums::default(),
        removed_dirs: Vec::new(),
        stays: BTreeSet::new(),
        kept_in: HashSet::new(),
        settled_moves: HashSet::new(),
        same: HashSet::new(),
        passed_by: HashSet::new(),
        moved_away: BTreeSet::new(),
        conflicts: BTreeSet::new(),
        named: 0,
    };
    plan.collect()?;
    plan.names()?;
    plan.sums = plan.sums();
    plan.nodes()?;
    plan.structure()?;
    if plan.conflicts.is_empty() {
        plan.check_tree()?;
    }
    if plan.conflicts.is_empty() {
        plan.write(transaction)?;
    }
    Ok(plan.conflicts.into_iter().collect())
}

impl Plan<'_> {
    fn collect(&mut self) -> Result<()> {
        let Sides { base, from, .. } = self.sides;
        let shown = |ino: Ino| from.numbers.shown(ino);
        for change in base.state.difference(base.layout.imap, &from.state, from.layout.imap)? {
            if let ImapKey::Node(ino) | ImapKey::Xattr(ino, _) =
                layout::decode_imap_key(&change?.key)?
            {
                self.inodes.insert(shown(ino)?);
            }
        }
        for change in base.state.difference(base.layout.dmap, &from.state, from.layout.dmap)? {
            let ino = shown(layout::decode_page_key(&change?.key)?.0)?;
            // Not without the node, but two changes within a tick of the clock leave it alike.
            if self.paged.insert(ino) {
                self.inodes.insert(ino);
            }
        }
        for change in base.state.difference(base.layout.nmap, &from.state, from.layout.nmap)? {
            let change = change?;
            let (dir, name) = layout::decode_name_key(&change.key)?;
            let place: Place = (shown(dir)?, name.into());
            let entry = |tuple: Option<kvdb::Tuple>, side: &Side| match tuple {
                Some(tuple) => side.decoded_name(dir, &tuple.value()?).map(Some),
                None => Ok(None),
            };
            let (base, from) = (entry(change.before, base)?, entry(change.after, from)?);
            if let Some((ino, _)) = from.filter(|from| base.is_none_or(|base| base.0 != from.0)) {
                self.made_at.insert(ino, place.clone());
            }
            self.names.push(NameChange { place, base, from });
        }
        Ok(())
    }

    /// Returns what into has at a place.
    fn entry_of(&self, place: &Place) -> Result<Entry> {
        self.sides.into.name(place.0, &place.1)
    }

    /// Returns what a place of into has after the changes so far.
    fn entry_now(&self, place: &Place) -> Result<Entry> {
        match self.entries.get(place) {
            Some(replaced) => Ok(replaced.after),
            None => self.entry_of(place),
        }
    }

    fn set(&mut self, place: Place, after: Entry) -> Result<()> {
        let before = self.entry_of(&place)?;
        let entry = self.entries.entry(place).or_insert(Replaced { before, after: None });
        entry.after = after;
        Ok(())
    }

    /// The places whose entries change, and lead to an inode before or after.
    fn places_of(&self, ino: Ino) -> Vec<Place> {
        let leads = |entry: &Entry| entry.is_some_and(|(there, _)| there == ino);
        let all = self.entries.iter().filter(|(_, r)| leads(&r.before) || leads(&r.after));
        all.map(|(place, _)| place.clone()).collect()
    }

    /// Lets an inode have the names in into that it had.
    fn restore(&mut self, ino: Ino) {
        for place in self.places_of(ino) {
            self.kept_in.insert(place.0);
            if let Some(replaced) = self.entries.get_mut(&place) {
                replaced.after = replaced.before;
            }
        }
    }

    /// A path of what a place of from, or of base, means.
    fn path_of(&self, place: &Place) -> Result<Vec<u8>> {
        for side in [&self.sides.from, &self.sides.base, &self.sides.into] {
            if let Some(way) = side.path(place.0)? {
                return Ok(joined(&way, &place.1));
            }
        }
        Ok([format!("inode {}/", place.0).as_bytes(), &place.1].concat())
    }

    /// A path of an inode, in from if it is there.
    fn path_of_inode(&self, ino: Ino) -> Result<Vec<u8>> {
        for side in [&self.sides.from, &self.sides.base, &self.sides.into] {
            let Some(node) = side.node(ino)? else { continue };
            if node.attr.kind == FileKind::Dir {
                if let Some(way) = side.path(ino)? {
                    return Ok(way);
                }
            } else if let Some((dir, name, _)) = side.names_of(&HashSet::from([ino]))?.pop() {
                return self.path_of(&(dir, name.into()));
            }
        }
        Ok(format!("inode {ino}").into_bytes())
    }

    /// Names a conflict, if it is one of those that are named.
    fn conflict(&mut self, path: Vec<u8>, ours: Deed, theirs: Deed) {
        let fits = self.conflicts.len() < NAMED && self.named + path.len() <= NAMED_BYTES;
        if self.conflicts.is_empty() || fits {
            self.named += path.len();
            self.conflicts.insert(MergeConflict { path, key: false, ours, theirs });
        }
    }

    /// Returns the choice at a path; without one it is a conflict.
    fn choose(&mut self, path: Vec<u8>, ours: Deed, theirs: Deed) -> Option<Choice> {
        let choice = self.choices.of(&path);
        if choice.is_none() {
            self.conflict(path, ours, theirs);
        }
        choice
    }
}

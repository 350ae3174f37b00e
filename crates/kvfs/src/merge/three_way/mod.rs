//! A three-way merge of files: applies the changes that one state of the file system, `from`, has
//! made since the state `base` to a third state, `into`, which also descends from `base`.
//!
//! Only differences between `base` and `from` are examined, and the same places in `into`. Pages
//! are compared by their places in the store, and taken by reference. `base` and `from` may be
//! states of a fork, which is another store than that of `into`: then pages are compared by their
//! content, and copied. All three states identify a file by its inode number; the numbers of a fork
//! are mapped (`Numbering`). If both sides have made an object at one path, the two have different
//! numbers: if they are alike, the number in `from` stands for that in `into` from there on
//! (`counterparts`).
//!
//! - `names`: each entry that `from` has changed. If `into` has the entry as in `base`, the change
//!   is taken; if `into` has it as in `from`, nothing is done; otherwise both have changed it.
//! - `nodes`: content and attributes, file by file.
//! - `structure`: the consequences for the tree: removed directories must be empty, no directory
//!   gets two places or becomes its own descendant, and no inode that both sides have loses its
//!   last name.
//! - `entries`: the entries of `into` that the merge changes, by place and by inode.
//! - `sound`: a check that the result is a tree; each violation is a conflict.
//! - `write`: writes the decisions as changes of a transaction. Counts of names and entries are
//!   those of `into` plus the sum of the changes.
//!
//! A change of both sides to the same object is a conflict, unless the caller has made a choice for
//! its path.

mod counterparts;
mod entries;
mod names;
mod nodes;
mod paths;
mod sound;
mod structure;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use kvdb::Transaction;

use crate::attr::{FileKind, Ino, Timestamp};
use crate::difference::{Side, StoredNode};
use crate::error::Result;
use crate::fs::Fs;
use crate::layout::{self, ImapKey};
use crate::merge::merging::{Choice, Choices, Conflicts, Deed, MergeConflict};
use entries::Entries;

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

/// An entry of a directory that `from` has changed.
struct NameChange {
    place: Place,
    base: Entry,
    from: Entry,
}

/// The source of a file's new content in `into`: the file of `from` with this number.
#[derive(Clone, Copy)]
enum Content {
    /// Only the pages that differ between `base` and `from` are taken: `into` has the others as in
    /// `base`.
    Changes(Ino),
    /// All content is taken, and replaces that of `into`.
    All(Ino),
}

/// The plan of a merge.
pub(crate) struct Plan<'a> {
    sides: &'a Sides,
    choices: &'a Choices,
    /// The suffix for the names of `from`'s versions if both versions are kept.
    suffix: &'a str,
    /// The file system that is merged into.
    fs: &'a Fs,
    names: Vec<NameChange>,
    /// Inodes that differ between `base` and `from`.
    changed: Rc<BTreeSet<Ino>>,
    /// Inodes with pages that differ between `base` and `from`.
    paged: HashSet<Ino>,
    /// The places at which `from` has put inodes.
    made_at: HashMap<Ino, Place>,
    /// Directories of `from` and their counterparts in `into`.
    dirs: HashMap<Ino, Option<Ino>>,
    entries: Entries,
    /// New content, by inodes of `into`.
    content: BTreeMap<Ino, Content>,
    /// New attributes of inodes of `into`; all others stay.
    attributes: BTreeMap<Ino, StoredNode>,
    /// Inodes of which `from` has changed only the times: access, content, attributes.
    times: BTreeMap<Ino, [Timestamp; 3]>,
    /// Directories that the merge makes in `into`.
    new_dirs: BTreeSet<Ino>,
    /// The sums of the changes to entries.
    sums: structure::Sums,
    /// Directories that `from` has removed, and their counterparts in `into`.
    removed_dirs: Vec<(Ino, Ino)>,
    /// Directories of `into` for which it is settled whether they stay.
    stays: BTreeSet<Ino>,
    /// Directories of `into` in which an object was kept that `from` has removed or changed.
    kept_in: HashSet<Ino>,
    /// Inodes that both have moved, and for which a place was chosen.
    settled_moves: HashSet<Ino>,
    /// Files of `into` that equal the files by which `from` has replaced them.
    same: HashSet<Ino>,
    /// Inodes that `from` has put at a place that was not taken.
    passed_by: HashSet<Ino>,
    /// Inodes that `into` has moved away from an entry that `from` has removed, too.
    moved_away: BTreeSet<Ino>,
    conflicts: BTreeSet<MergeConflict>,
    /// Total length of the paths of the conflicts.
    named: usize,
    /// A conflict was not named, and so no later one is.
    cut: bool,
    /// The number of conflicts that were not named.
    more: u64,
    /// Conflicts of steps that are repeated until nothing changes, which count once.
    repeated: HashSet<(Ino, Deed, Deed)>,
    paths: paths::Paths,
}

/// The maximum number of conflicts that are named.
const NAMED: usize = 10_000;
/// The maximum number of bytes of the paths of conflicts. The first path is named in any case. The
/// total length of deep paths grows with the square of the depth.
const NAMED_BYTES: usize = 16 << 20;

/// Merges in a transaction of `fs`. `sides.into` is the current state of the transaction. Returns
/// the conflicts.
pub(crate) fn merge(
    sides: &Sides,
    choices: &Choices,
    suffix: &str,
    fs: &Fs,
    transaction: &Transaction,
) -> Result<Conflicts> {
    let mut plan = Plan {
        sides,
        choices,
        suffix,
        fs,
        names: Vec::new(),
        changed: Rc::default(),
        paged: HashSet::new(),
        made_at: HashMap::new(),
        dirs: HashMap::new(),
        entries: Entries::default(),
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
        cut: false,
        more: 0,
        repeated: HashSet::new(),
        paths: paths::Paths::default(),
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
    Ok(Conflicts { named: plan.conflicts.into_iter().collect(), more: plan.more })
}

impl Plan<'_> {
    fn collect(&mut self) -> Result<()> {
        let Sides { base, from, .. } = self.sides;
        let shown = |ino: Ino| from.numbers.shown(ino);
        let mut changed = BTreeSet::new();
        for change in base.state.difference(base.layout.imap, &from.state, from.layout.imap)? {
            if let ImapKey::Node(ino) | ImapKey::Xattr(ino, _) =
                layout::decode_imap_key(&change?.key)?
            {
                changed.insert(shown(ino)?);
            }
        }
        for change in base.state.difference(base.layout.dmap, &from.state, from.layout.dmap)? {
            let ino = shown(layout::decode_page_key(&change?.key)?.0)?;
            // The node changes with its pages, but two changes within a tick of the clock may leave
            // it equal.
            if self.paged.insert(ino) {
                changed.insert(ino);
            }
        }
        self.changed = Rc::new(changed);
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

    /// Returns the entry of `into` at a place.
    fn entry_of(&self, place: &Place) -> Result<Entry> {
        self.sides.into.name(place.0, &place.1)
    }

    /// Returns the entry of `into` at a place after the changes so far.
    fn entry_now(&self, place: &Place) -> Result<Entry> {
        match self.entries.get(place) {
            Some(replaced) => Ok(replaced.after),
            None => self.entry_of(place),
        }
    }

    fn set(&mut self, place: Place, after: Entry) -> Result<()> {
        let before = self.entry_of(&place)?;
        self.entries.set(place, before, after);
        Ok(())
    }

    /// Restores the names that an inode had in `into`.
    fn restore(&mut self, ino: Ino) {
        for place in self.entries.places_of(ino) {
            self.kept_in.insert(place.0);
            self.entries.restore(&place);
        }
    }

    /// Adds a conflict, unless too many are named already.
    fn conflict(&mut self, path: Vec<u8>, ours: Deed, theirs: Deed) {
        let fits = self.conflicts.len() < NAMED && self.named + path.len() <= NAMED_BYTES;
        if self.conflicts.is_empty() || fits && !self.cut {
            self.named += path.len();
            self.conflicts.insert(MergeConflict { path, key: false, ours, theirs });
        } else {
            self.cut = true;
            self.more += 1;
        }
    }

    /// Adds a conflict of an inode that a repeated step may find again.
    fn conflict_of(&mut self, ino: Ino, path: Vec<u8>, ours: Deed, theirs: Deed) {
        if self.repeated.insert((ino, ours, theirs)) {
            self.conflict(path, ours, theirs);
        }
    }

    /// Returns whether a conflict at a path is named.
    fn is_named(&self, path: &[u8]) -> bool {
        let least =
            MergeConflict { path: path.to_vec(), key: false, ours: Deed::Made, theirs: Deed::Made };
        self.conflicts.range(least..).next().is_some_and(|conflict| conflict.path == path)
    }

    /// Does the same as [`Plan::choose`] in a step that is repeated.
    fn choose_of(&mut self, ino: Ino, path: Vec<u8>, ours: Deed, theirs: Deed) -> Option<Choice> {
        let choice = self.choices.of(&path);
        if choice.is_none() {
            self.conflict_of(ino, path, ours, theirs);
        }
        choice
    }

    /// Returns the choice for a path. Without a choice, adds a conflict.
    fn choose(&mut self, path: Vec<u8>, ours: Deed, theirs: Deed) -> Option<Choice> {
        let choice = self.choices.of(&path);
        if choice.is_none() {
            self.conflict(path, ours, theirs);
        }
        choice
    }
}

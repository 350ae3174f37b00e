//! Sets up the counter of inode numbers when a store is opened, and accounts for states that came
//! into the store from elsewhere.
//!
//! The store has noted a bound of all numbers (`layout::counter`), and the branches whose numbers
//! are below it. A branch that was received while the store was not mounted is not among them, and
//! is scanned once. In a store of an older version, each branch had a separate counter, so all
//! branches, snapshots and transactions are scanned.
//!
//! A fork continues from the bound noted in the store of which it was made, and notes that bound.
//! The bound separates the numbers that only the fork has from the numbers that both stores have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvdb::{Batch, DictionaryId, DictionaryOptions, Durability, Kvdb, STORE_BRANCH, View};

use super::Fs;
use crate::attr::{Ino, ROOT};
use crate::error::{Error, Result};
use crate::inode::inode_allocator::{Counter, InodeAllocator, LARGEST_ZONE};
use crate::layout::counter::{
    BOUND_KEY, NUMBERS, Reserved, VOID_KEY, branch_key, branch_range, decode_bound,
    decode_branch_key, decode_mark, encode_number, fork_key,
};
use crate::layout::reservation::INO_LIMIT;
use crate::layout::{self, Layout};

/// A bound that a store never reaches by allocating numbers. Larger numbers came from elsewhere,
/// and would leave no free numbers to this store.
const IMPOSSIBLE: Ino = INO_LIMIT / 2;

/// Returns the dictionary in which the counter keeps its notes, if it exists.
pub(crate) fn notes_of(db: &Kvdb) -> Option<DictionaryId> {
    db.dictionary_in(STORE_BRANCH, NUMBERS)
}

/// Returns the bound that the store has noted.
pub(crate) fn noted_bound(view: &View, notes: DictionaryId) -> Result<Option<Ino>> {
    Ok(view.get(notes, BOUND_KEY)?.and_then(|value| decode_bound(&value)))
}

/// Returns the bound below which reserved numbers are void in all branches.
fn noted_void(view: &View, notes: DictionaryId) -> Result<Ino> {
    Ok(view.get(notes, VOID_KEY)?.and_then(|value| decode_bound(&value)).unwrap_or(0))
}

/// Returns the bound that a fork has noted for `store`: the fork has allocated the numbers at or
/// above this bound since it was made of that store. Returns `None` if it has allocated none.
pub(crate) fn forked_at(db: &Kvdb, store: &[u8; 16]) -> Result<Option<Ino>> {
    let Some(notes) = notes_of(db) else { return Ok(None) };
    let note = db.view().get(notes, &fork_key(store))?;
    Ok(note.and_then(|value| decode_bound(&value)))
}

/// Opens the counter of a store whose main branch has the file system of `layout`. `is_current`
/// says that this version of the program wrote the file system.
pub(crate) fn open_counter(
    db: &Kvdb,
    layout: &Layout,
    is_current: bool,
    read_only: bool,
) -> Result<Counter> {
    let own = shown_below(&db.view(), layout)?;
    if read_only {
        return Ok(Counter::from(None, own));
    }
    let options = DictionaryOptions { reserved: true, ..DictionaryOptions::default() };
    let notes = db.create_dictionary_of_store(NUMBERS, options)?;
    let view = db.view();
    let noted = noted_bound(&view, notes)?.filter(|_| is_current);
    let counted = counted(&view, notes)?;
    let mut batch = Batch::new();
    let branches = branches_of(db);
    let mut unknown = BTreeSet::new();
    for (imap, name) in &branches {
        if noted.is_none() || !counted.contains(imap) {
            batch.put(notes, branch_key(*imap), encode_number(0));
            unknown.insert(name.as_str());
        }
    }
    for gone in counted.iter().filter(|imap| !branches.contains_key(imap)) {
        batch.delete(notes, branch_key(*gone));
    }
    let next = match noted {
        // All states are scanned, because a snapshot may belong to a branch that was removed.
        None => own.max(given_below(db)),
        Some(_) if unknown.is_empty() => own,
        Some(_) => {
            let has_come = |branch: &str| unknown.contains(branch);
            own.max(branches_below(db, has_come)).max(kept_below(db, has_come))
        }
    };
    // The store of which a fork was made continues with the same numbers, including reserved
    // numbers.
    let mut forked = Vec::new();
    for store in db.fork_origins() {
        if view.get(notes, &fork_key(&store))?.is_none() {
            forked.push(store);
        }
    }
    let counter = Counter::from(Some(notes), noted.map_or(next, |noted| noted.max(next)));
    counter.void_below(noted_void(&view, notes)?);
    if noted.is_none_or(|noted| noted < next) || !batch.is_empty() || !forked.is_empty() {
        counter.note_raised(|bound| {
            batch.put(notes, BOUND_KEY, encode_number(bound));
            for store in &forked {
                batch.put(notes, fork_key(store), encode_number(bound));
            }
            if !unknown.is_empty() || !forked.is_empty() {
                counter.void_below(bound);
                batch.put(notes, VOID_KEY, encode_number(bound));
            }
            // A full store must open, so that something can be deleted: these few bytes may use the
            // part of the reserve that is kept for deletions.
            batch.releases_space();
            Ok(db.commit(batch, Durability::Buffered)?)
        })?;
    }
    Ok(counter)
}

/// Returns the names of all branches that have a file system, keyed by the numbers of their `imap`.
fn branches_of(db: &Kvdb) -> BTreeMap<DictionaryId, String> {
    let clones = db.branches().into_iter().map(|info| info.name);
    let all = std::iter::once(String::new()).chain(clones);
    all.filter_map(|name| Some((Layout::find_in(db, &name)?.imap, name))).collect()
}

/// Returns the branches that the counter knows.
fn counted(view: &View, notes: DictionaryId) -> Result<BTreeSet<DictionaryId>> {
    let (start, end) = branch_range();
    let mut cursor = view.cursor(notes, &start, &end)?.keys_only();
    let mut all = BTreeSet::new();
    while let Some(tuple) = cursor.next()? {
        all.extend(decode_branch_key(&tuple.key));
    }
    Ok(all)
}

/// Returns the allocator of a branch that is opened for the first time since the store was opened.
pub(crate) fn allocator_of(
    db: &Kvdb,
    layout: &Layout,
    counter: Arc<Counter>,
    zone_size: u64,
) -> Result<InodeAllocator> {
    let view = db.view();
    counter.raise_next_to(shown_below(&view, layout)?);
    let allocator = InodeAllocator::of_branch(counter, zone_size);
    let notes = allocator.counter().notes;
    if let Some(reserved) = valid_reserved((&view, layout), &view, notes)? {
        allocator.void_below(reserved.first);
    }
    Ok(allocator)
}

/// Returns the note in a state of a branch about the numbers that its directories have reserved.
/// Returns `None` if these are all void according to the counter's notes in the state `now`.
pub(crate) fn valid_reserved(
    (state, layout): (&View, &Layout),
    now: &View,
    notes: Option<DictionaryId>,
) -> Result<Option<Reserved>> {
    let Some(notes) = notes else { return Ok(None) };
    let reserved = reserved_in(state, layout)?;
    let mark = now.get(notes, &branch_key(layout.imap))?.and_then(|mark| decode_mark(&mark));
    let void = noted_void(now, notes)?;
    let valid = reserved.filter(|reserved| Some(reserved.mark) == mark);
    Ok(valid.map(|valid| Reserved { first: valid.first.max(void), ..valid }))
}

/// Returns the bound of all numbers, if the store has noted that the numbers of this branch are
/// below it.
pub(crate) fn counted_below(
    layout: &Layout,
    now: &View,
    notes: Option<DictionaryId>,
) -> Result<Option<Ino>> {
    match notes {
        Some(notes) if now.get(notes, &branch_key(layout.imap))?.is_some() => {
            noted_bound(now, notes)
        }
        _ => Ok(None),
    }
}

fn reserved_in(view: &View, layout: &Layout) -> Result<Option<Reserved>> {
    let value = view.get(layout.imap, &layout::RESERVED_KEY)?;
    Ok(value.and_then(|value| Reserved::decode(&value)))
}

/// Returns the bound of all numbers that a state shows.
pub(crate) fn shown_below(view: &View, layout: &Layout) -> Result<Ino> {
    let largest = largest_ino(view, layout)?;
    let below = largest.checked_add(1).filter(|&below| below < INO_LIMIT);
    below.ok_or_else(|| never_given(largest))
}

/// Returns the bound of all numbers that a state shows, and of all numbers that its notes record as
/// possibly allocated or reserved in the store where the state was made. Malformed notes are
/// ignored here; a check finds them.
fn numbers_below(view: &View, layout: &Layout) -> Result<Ino> {
    let shown = shown_below(view, layout)?;
    let older = view.get(layout.imap, &layout::NUMBERS_KEY)?;
    // A block of an older version may have begun below the bound and ended above it.
    let above = |bound: Ino| bound.saturating_add(LARGEST_ZONE).min(INO_LIMIT);
    let older = older.and_then(|value| layout::decode_numbers(&value)).map_or(0, above);
    let reserved = reserved_in(view, layout)?.map_or(0, |reserved| reserved.end);
    Ok(shown.max(older).max(reserved))
}

/// Returns the bound of the numbers of a state that is about to become the state of a branch. Fails
/// if these numbers would leave no free numbers to other branches.
pub(crate) fn numbers_of(state: &View) -> Result<Ino> {
    let Some(layout) = Layout::of_state(state) else { return Ok(ROOT + 1) };
    check_possible(shown_below(state, &layout)?)
}

/// Fails if a branch that was not counted in this store has numbers that would leave no free
/// numbers to other branches.
pub(crate) fn check_possible(below: Ino) -> Result<Ino> {
    if below < IMPOSSIBLE { Ok(below) } else { Err(never_given(below - 1)) }
}

fn never_given(ino: Ino) -> Error {
    Error::Corrupt { ino, what: "an inode number that was never given out".into() }
}

/// Returns the bound, or 0 if it cannot be read or is impossible; opening the state reports the
/// error.
fn possible(below: Result<Ino>, of: impl FnOnce() -> String) -> Ino {
    below.and_then(check_possible).unwrap_or_else(|e| {
        tracing::warn!("the inode numbers of {} are not counted: {e}", of());
        0
    })
}

/// Returns the bound of the numbers of everything in the store, noted or not.
pub(crate) fn given_below(db: &Kvdb) -> Ino {
    branches_below(db, |_| true).max(kept_below(db, |_| true)).max(taken_below(db))
}

/// Returns the bound of the numbers of these branches.
fn branches_below(db: &Kvdb, of: impl Fn(&str) -> bool) -> Ino {
    let all = branches_of(db).into_values().filter(|name| of(name));
    let below = all.filter_map(|name| {
        let layout = Layout::find_in(db, &name)?;
        Some(possible(numbers_below(&db.view(), &layout), || format!("branch {name:?}")))
    });
    below.max().unwrap_or(0)
}

/// Returns the bound of the numbers of all snapshots of these branches.
fn kept_below(db: &Kvdb, of: impl Fn(&str) -> bool) -> Ino {
    let states = db.snapshot_labels().into_iter().filter(|info| of(&info.branch)).map(|info| {
        let state = db.open_snapshot(&info.name).map_err(Error::from);
        let below = state.and_then(|state| match Layout::of_state(&state) {
            Some(layout) => numbers_below(&state, &layout),
            None => Ok(0),
        });
        possible(below, || format!("snapshot {}", info.name))
    });
    states.max().unwrap_or(0)
}

/// Returns the bound of the numbers of all open transactions.
fn taken_below(db: &Kvdb) -> Ino {
    let all = db.transactions().into_iter().map(|info| {
        let below = || {
            let Some(layout) = Layout::find_in(db, &info.branch) else { return Ok(0) };
            numbers_below(&db.transaction(info.id)?.view()?, &layout)
        };
        possible(below(), || format!("transaction {}", info.id))
    });
    all.max().unwrap_or(0)
}

/// Returns the largest inode number in use, by nodes or by pages, so that no new file finds old
/// data under its number.
pub(crate) fn largest_ino(view: &View, layout: &Layout) -> Result<Ino> {
    let mut largest = ROOT;
    for dict in [layout.imap, layout.dmap] {
        let mut cursor = view.cursor(dict, &[], &[])?.keys_only();
        cursor.seek_to_end()?;
        if let Some(tuple) = cursor.prev()?
            && let Some((ino, _)) = tuple.key.split_first_chunk::<8>()
        {
            largest = largest.max(u64::from_be_bytes(*ino));
        }
    }
    Ok(largest)
}

impl Fs {
    /// Counts a new clone, so that its numbers are not allocated again. If this fails, the next
    /// opening counts the clone.
    pub(crate) fn count_clone(&self, branch: &str) {
        self.count_branch(branch, shown_below, 0, false);
    }

    /// Counts a branch that was received from another store, with its snapshots. The branch may
    /// have numbers that directories of this store have reserved.
    pub(crate) fn count_received(&self, branch: &str) {
        let Ok(db) = self.core.db.here() else { return };
        let kept = kept_below(db, |of| of == branch);
        self.count_branch(branch, numbers_below, kept, true);
    }

    fn count_branch(
        &self,
        branch: &str,
        below: impl Fn(&View, &Layout) -> Result<Ino>,
        kept: Ino,
        has_come: bool,
    ) {
        let Ok(db) = self.core.db.here() else { return };
        let Some(layout) = Layout::find_in(db, branch) else { return };
        let below = possible(below(&db.view(), &layout), || format!("branch {branch:?}"));
        if let Err(e) = self.count(below.max(kept), Some((layout.imap, has_come))) {
            tracing::warn!("branch {branch:?} is counted at the next opening: {e}");
        }
    }

    /// Ensures that no number below `below` is allocated from now on, even after a kill. `branch`
    /// is the `imap` of the branch with these numbers, and says whether the branch came from
    /// another store.
    pub(crate) fn count(&self, below: Ino, branch: Option<(DictionaryId, bool)>) -> Result<()> {
        let db = self.core.db.here()?;
        let counter = self.core.inode_allocator.counter();
        let Some(notes) = counter.notes else { return Ok(()) };
        counter.raise_next_to(below);
        counter.note_raised(|bound| {
            let mut batch = Batch::new();
            if noted_bound(&db.view(), notes)?.is_none_or(|noted| noted < bound) {
                batch.put(notes, BOUND_KEY, encode_number(bound));
            }
            if let Some((imap, has_come)) = branch {
                if has_come {
                    counter.void_below(bound);
                    batch.put(notes, VOID_KEY, encode_number(bound));
                }
                if db.get(notes, &branch_key(imap))?.is_none() {
                    batch.put(notes, branch_key(imap), encode_number(0));
                }
            }
            // These few bytes may use the reserve, because otherwise a full store could not return
            // to a snapshot.
            batch.releases_space();
            if batch.is_empty() { Ok(()) } else { Ok(db.commit(batch, Durability::Buffered)?) }
        })
    }
}

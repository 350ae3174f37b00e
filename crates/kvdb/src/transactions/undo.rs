//! Commits that can be undone. Such a transaction commits between two snapshots of the store's own,
//! one of the state right before the commit and one of the state right after it. Its changes are
//! the difference between the two, however large they are, and no changes of others are among them.
//!
//! Undoing a commit is a new commit: a transaction reverts the differences between the two states,
//! where the data still is as the commit has left it.
//!
//! The snapshots pin space. Therefore only the newest ones are kept, for a day at most, and a full
//! store drops all of them before it reports that it is full.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vt_tree::Seq;

use super::conflicts::{self, Merged};
use super::handle::Transaction;
use super::registry::Transactions;
use crate::commit::SnapshotMaker;
use crate::commit::batch::Batch;
use crate::dictionary::DictionaryId;
use crate::error::{Error, NAMED_CONFLICTS, Result};
use crate::ids::Label;
use crate::journal::record;
use crate::read::cursor::Tuple;
use crate::read::view::View;
use crate::snapshots::EndOfGeneration;
use crate::version::Version;
use crate::version::snapshot_set::{Side, Snapshot};

/// Maximum number of commits that can be undone.
const MOST: usize = 16;
/// The time for which a commit can be undone.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Maximum length of a transaction's label that is kept, bytes.
const LABEL: usize = 100;
/// Number of changes that are applied at once.
const STEP: usize = 1024;

/// A commit of a transaction that can be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoableCommit {
    /// The number of the commit.
    pub number: u64,
    /// The branch of the transaction; `""` is the main one.
    pub branch: String,
    /// The label of the transaction, truncated if it is long.
    pub label: String,
    /// When the commit was made, since 1970.
    pub created: Duration,
}

impl UndoableCommit {
    fn between([_, after]: &[Arc<Snapshot>; 2]) -> UndoableCommit {
        let Label { name, branch, created, seq, .. } = &after.label;
        let (branch, label) = (branch.clone(), Side::label(name).to_owned());
        UndoableCommit { number: *seq, branch, label, created: *created }
    }
}

/// Makes the two snapshots around a commit.
pub(super) struct StatesAround<'a> {
    registry: &'a Transactions,
    /// A random number that the names of both snapshots contain.
    pair: u64,
    branch: String,
    label: String,
    /// The number of snapshots made so far.
    made: Cell<usize>,
    end: EndOfGeneration<'a>,
}

impl<'a> StatesAround<'a> {
    pub(super) fn new(registry: &'a Transactions, branch: &str, label: &str) -> StatesAround<'a> {
        let cut = (0..=LABEL.min(label.len())).rev().find(|at| label.is_char_boundary(*at));
        let label = label[..cut.unwrap_or(0)].to_owned();
        StatesAround {
            registry,
            pair: registry.engine.env.random(),
            branch: branch.to_owned(),
            label,
            made: Cell::new(0),
            end: EndOfGeneration::new(&registry.engine.snapshots),
        }
    }
}

impl SnapshotMaker for StatesAround<'_> {
    fn record_size(&self) -> usize {
        // An upper bound of the size of its record.
        LABEL + self.branch.len() + 128 + record::NUMBER_SIZE
    }

    fn record(&self, version: &Version, seq: Seq) -> Vec<u8> {
        let side = if self.made.replace(1) == 0 { Side::Before } else { Side::After };
        let name = side.name(self.pair, &self.label);
        let label = self.registry.parts.snapshotter.label(&self.branch, &name);
        self.end.record(Label { seq, ..label }, version)
    }

    fn closed(&self) {
        self.end.closed();
    }
}

impl Transactions {
    /// Returns the commits that can be undone, the newest last.
    pub(crate) fn undoable_commits(&self) -> Vec<UndoableCommit> {
        let mut commits: Vec<_> =
            self.engine.snapshots.around_commits().iter().map(UndoableCommit::between).collect();
        commits.sort_by_key(|commit| commit.number);
        commits
    }

    /// Returns the same with the bytes that each holds, which are found by examining all snapshots.
    pub(crate) fn undoable_commits_and_bytes(&self) -> Vec<(UndoableCommit, u64)> {
        let all = self.engine.snapshots.around_commits();
        let held = self.parts.snapshotter.held_by(&all);
        let mut commits: Vec<_> = all.iter().map(UndoableCommit::between).zip(held).collect();
        commits.sort_by_key(|(commit, _)| commit.number);
        commits
    }

    /// Returns the states right before and right after a commit that can be undone.
    pub(crate) fn states_around(&self, number: u64) -> Result<(View, View)> {
        let mut all = self.engine.snapshots.around_commits().into_iter();
        let Some(pair) = all.find(|[_, after]| after.label.seq == number) else {
            return Err(Error::Invalid(format!(
                "commit {number} cannot be undone, or not any more: what it has changed is not kept"
            )));
        };
        let [before, after] = pair.map(|snapshot| {
            let mut view = self.engine.versions.view();
            view.version.version = snapshot.version();
            view.snapshot = Some(snapshot.label.id);
            view
        });
        Ok((before, after))
    }

    /// Drops the snapshots around commits that are too old or too many, and those of which a crash
    /// has left only one of the two.
    pub(crate) fn sweep_undoable(&self) -> Result<()> {
        if self.engine.options.read_only {
            return Ok(());
        }
        let pairs = self.engine.snapshots.around_commits();
        let now = self.engine.env.wall();
        let many = pairs.len().saturating_sub(MOST);
        // A commit makes its two snapshots one after the other, with the lock of names. Without
        // that lock, one that is in progress would seem to have lost one of them.
        let mut old: Vec<String> = match self.engine.snapshots.naming.try_lock() {
            Some(_naming) => self.engine.snapshots.half_around_commits(),
            None => Vec::new(),
        };
        for (at, pair) in pairs.iter().enumerate() {
            if at < many || now.saturating_sub(pair[1].label.created) > LONGEST {
                old.extend(pair.iter().map(|snapshot| snapshot.label.name.clone()));
            }
        }
        for name in old {
            match self.parts.snapshotter.drop_snapshot(&name) {
                Ok(()) | Err(Error::NoSnapshot(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Transaction {
    /// Reverts the difference of some dictionaries between two states, those around a commit: each
    /// key that still is as it was in `after` becomes as it was in `before`. A key that was changed
    /// since is joined by the dictionary's merge routine, or returned as a conflict; then the
    /// transaction should only be inspected and not committed.
    ///
    /// ```
    /// # use kvdb::{Durability, TransactionOptions};
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// let t = db.begin_with(TransactionOptions { undoable: true, ..Default::default() })?;
    /// t.put(fruit.id(), "apple", "rotten")?;
    /// t.commit(Durability::Buffered)?;
    ///
    /// let commit = db.undoable_commits().pop().expect("it was kept");
    /// let (before, after) = db.states_around(commit.number)?;
    /// let undo = db.begin(kvdb::Isolation::Snapshot)?;
    /// assert_eq!(undo.change_back(&[fruit.id()], &before, &after)?, []);
    /// undo.commit(Durability::Buffered)?;
    /// assert_eq!(fruit.get("apple")?.unwrap(), "red");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn change_back(
        &self,
        dictionaries: &[DictionaryId],
        before: &View,
        after: &View,
    ) -> Result<Vec<(DictionaryId, Bytes)>> {
        let (now, before_view) = (self.view()?, Arc::new(before.clone()));
        let (mut conflicts, mut batch) = (Vec::new(), Batch::new());
        for &dict in dictionaries {
            let routine = conflicts::routine(&self.shared.registry, dict);
            for change in after.difference(dict, before, dict)? {
                let change = change?;
                let (key, was, left) = (change.key, change.after, change.before);
                if is_still(&now, dict, &key, left.as_ref())? {
                    match &was {
                        Some(was) => {
                            let value = crate::StoredValue::of(was, &before_view)?;
                            batch.put_stored(dict, key, value);
                        }
                        None => batch.delete(dict, key),
                    }
                } else if !is_still(&now, dict, &key, was.as_ref())? {
                    let value = |tuple: Option<Tuple>| tuple.map(|t| t.value()).transpose();
                    let (left, was, theirs) = (value(left)?, value(was)?, now.get(dict, &key)?);
                    let merged = routine.as_ref().map_or(Merged::Conflict, |routine| {
                        routine.merge(&key, left.as_deref(), was.as_deref(), theirs.as_deref())
                    });
                    match merged {
                        Merged::Put(value) => batch.put(dict, key, value),
                        Merged::Delete => batch.delete(dict, key),
                        Merged::Conflict => conflicts.push((dict, key)),
                    }
                    if conflicts.len() >= NAMED_CONFLICTS {
                        return Ok(conflicts);
                    }
                }
                if batch.len() >= STEP {
                    self.apply(std::mem::take(&mut batch))?;
                }
            }
        }
        self.apply(batch)?;
        Ok(conflicts)
    }
}

/// Returns whether a key still has the value of a tuple of another state. Values that lie at the
/// same place are not read for this.
pub(super) fn is_still(
    now: &View,
    dict: DictionaryId,
    key: &[u8],
    then: Option<&Tuple>,
) -> Result<bool> {
    Ok(match (now.stored(dict, key)?, then) {
        (None, None) => true,
        (Some(stored), Some(then)) if then.lies_in(now) && stored.value == then.raw_value()? => {
            true
        }
        (Some(stored), Some(then)) => {
            stored.len() == then.value_len() && now.get(dict, key)? == Some(then.value()?)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use env::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{Durability, Isolation, Kvdb, TransactionOptions};

    /// Ends the sweeps, even when the test fails.
    struct End<'a>(&'a AtomicBool);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_sweep_in_the_middle_of_a_commit_leaves_what_is_kept_around_it() {
        let db = Kvdb::in_memory();
        let d = db.open_dictionary("d").expect("made");
        let registry = db.begin(Isolation::Snapshot).expect("begun").shared.registry.clone();
        let over = AtomicBool::new(false);
        let commit = |label: &str| {
            let label = label.to_owned();
            let options = TransactionOptions { undoable: true, label, ..Default::default() };
            let t = db.begin_with(options).expect("begun");
            t.put(d.id(), "k", "v").expect("put");
            t.commit(Durability::Buffered).expect("committed");
            db.undoable_commits().pop().is_some_and(|last| last.label == t.options().label)
        };
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    registry.sweep_undoable().expect("swept");
                }
            });
            let _end = End(&over);
            (0..500).find(|n| !commit(&n.to_string()))
        });
        assert_eq!(lost, None, "the commit of this number cannot be undone");
        registry.sweep_undoable().expect("swept");
        assert_eq!(db.undoable_commits().len(), MOST);
    }
}

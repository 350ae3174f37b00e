//! Commits that can be undone. A transaction that asks for it commits between two snapshots of the
//! store's own: of the state right before it, and of the state right after it. What it has changed
//! is what the two differ in, however large it is, and nothing of others is in that.
//!
//! To undo a commit is to commit something new: a transaction changes back what the two states
//! differ in, as far as it is still as the commit has left it.
//!
//! The snapshots keep space. So only the newest are kept, for a day at most, and a store that is
//! full lets go of all of them before it says so.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vt_tree::Seq;

use super::conflicts::{self, Merged};
use super::handle::Transaction;
use crate::commit::SnapshotMaker;
use crate::commit::batch::Batch;
use crate::db::Kvdb;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::journal::record;
use crate::read::cursor::Tuple;
use crate::read::snapshot_set::{Side, Snapshot, above};
use crate::read::version::Version;
use crate::read::view::View;

/// Commits that can be undone at most.
const MOST: usize = 16;
/// How long a commit can be undone.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a transaction's label that are kept.
const LABEL: usize = 100;
/// Changes that are made at once.
const STEP: usize = 1024;
/// Keys that are named at most which others have changed since.
const NAMED: usize = 16;

/// A commit of a transaction that can be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoableCommit {
    /// Its number.
    pub number: u64,
    /// The label of the transaction; a long one is cut.
    pub label: String,
    /// When it was made, since 1970.
    pub created: Duration,
    /// Bytes that are given back when it cannot be undone any more, as far as is known without
    /// reading.
    pub held_bytes: u64,
}

/// Makes the two snapshots of a commit.
pub(super) struct StatesAround<'a> {
    db: &'a Database,
    /// What their names have in common.
    pair: u64,
    label: String,
    made: Cell<usize>,
    /// Whose generation is not closed yet.
    next: RefCell<Option<(u64, Arc<Snapshot>)>>,
}

impl<'a> StatesAround<'a> {
    pub(super) fn new(db: &'a Database, label: &str) -> StatesAround<'a> {
        let cut = (0..=LABEL.min(label.len())).rev().find(|at| label.is_char_boundary(*at));
        let label = label[..cut.unwrap_or(0)].to_owned();
        StatesAround {
            db,
            pair: db.env.random(),
            label,
            made: Cell::new(0),
            next: RefCell::default(),
        }
    }
}

impl SnapshotMaker for StatesAround<'_> {
    fn record_size(&self) -> usize {
        // More than its record takes.
        LABEL + 128 + record::NUMBER_SIZE
    }

    fn record(&self, version: &Version, seq: Seq) -> Vec<u8> {
        let side = if self.made.replace(1) == 0 { Side::Before } else { Side::After };
        let name = side.name(self.pair, &self.label);
        let label = Label { seq, ..self.db.label("", &name) };
        let snapshot = self.db.snapshots.of(label, above(version), version);
        let record = record::snapshot(&snapshot.label, snapshot.below);
        self.next.replace(Some((version.generation.number, snapshot)));
        record
    }

    fn closed(&self) {
        if let Some((generation, snapshot)) = self.next.take() {
            self.db.snapshots.begin(generation, snapshot);
        }
    }
}

impl Database {
    /// The newest last.
    fn undoable_commits(&self) -> Vec<(UndoableCommit, [Arc<Snapshot>; 2])> {
        let all = self.snapshots.around_commits();
        let held = self.held_by(&all);
        let mut commits: Vec<_> = all
            .into_iter()
            .zip(held)
            .map(|([before, after], held_bytes)| {
                let Label { name, created, seq, .. } = &after.label;
                let label = Side::label(name).to_owned();
                let commit = UndoableCommit { number: *seq, label, created: *created, held_bytes };
                (commit, [before, after])
            })
            .collect();
        commits.sort_by_key(|(commit, _)| commit.number);
        commits
    }

    /// Drops the states around commits that are too old or too many, and those that a crash has
    /// left without the other one.
    pub(crate) fn sweep_undoable(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let pairs = self.snapshots.around_commits();
        let now = self.env.wall();
        let many = pairs.len().saturating_sub(MOST);
        let mut old: Vec<String> = self.snapshots.half_around_commits();
        for (at, pair) in pairs.iter().enumerate() {
            if at < many || now.saturating_sub(pair[1].label.created) > LONGEST {
                old.extend(pair.iter().map(|snapshot| snapshot.label.name.clone()));
            }
        }
        for name in old {
            match self.drop_snapshot(&name) {
                Ok(()) | Err(Error::NoSnapshot(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Kvdb {
    /// The commits that can be undone, the oldest first; see
    /// [`TransactionOptions::undoable`](crate::TransactionOptions::undoable).
    pub fn undoable_commits(&self) -> Vec<UndoableCommit> {
        self.db.0.undoable_commits().into_iter().map(|(commit, _)| commit).collect()
    }

    /// The states right before and right after a commit that can be undone.
    pub fn states_around(&self, number: u64) -> Result<(View, View)> {
        let all = self.db.0.undoable_commits();
        let Some((_, pair)) = all.into_iter().find(|(commit, _)| commit.number == number) else {
            return Err(Error::Invalid(format!(
                "commit {number} cannot be undone, or not any more: what it has changed is not kept"
            )));
        };
        let [before, after] = pair.map(|snapshot| {
            let mut view = self.db.0.versions.view();
            view.version.version = snapshot.version();
            view
        });
        Ok((before, after))
    }
}

impl Transaction {
    /// Changes back what differs in some dictionaries between two states, which are those around a
    /// commit: each key that is still as it was `after` becomes what it was `before`. One that has
    /// been changed since is joined with that by the dictionary's merge routine, or given back;
    /// then the transaction is of no use but to look at.
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
            let routine = conflicts::routine(&self.shared.db, dict);
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
                    if conflicts.len() >= NAMED {
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

/// Whether a key has the value of a tuple of another state. Values that lie in one place are not
/// read for it.
fn is_still(now: &View, dict: DictionaryId, key: &[u8], then: Option<&Tuple>) -> Result<bool> {
    Ok(match (now.stored(dict, key)?, then) {
        (None, None) => true,
        (Some(now), Some(then)) if now.value == then.raw_value()? => true,
        (Some(stored), Some(then)) => {
            stored.len() == then.value_len() && now.get(dict, key)? == Some(then.value()?)
        }
        _ => false,
    })
}

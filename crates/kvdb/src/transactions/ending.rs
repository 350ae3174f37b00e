//! Commit and abort of transactions. A small commit takes the path of every batch: through the
//! pipeline, into journal and memtables. A large one spills the part that is still in memory and
//! *binds* its runs: the current memtables are sealed, the runs are placed above them, and one
//! journal record notes this; no data is moved, however much there is (VT-tree paper, §3.2). In
//! both cases the last conflict check is made under the pipeline's lock, and usually finds that
//! nothing was committed since the check before. An undoable commit binds runs as well, between two
//! snapshots (`undo`). An abort discards the writes, and there is nothing to undo.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BlockCache, BodyRef, ItemRef, KeyRange, Lookup, Run, Seq, Update};
use zones::ZonePin;

use super::conflicts::{self, Now, Only, Others};
use super::options::{CommitOptions, Isolation, TransactionOptions};
use super::reads::{self, Dependency};
use super::registry::Transactions;
use super::revision::Revision;
use super::state::{Open, TransactionState};
use super::undo::StatesAround;
use crate::commit::batch::Durability;
use crate::commit::runs::Around;
use crate::commit::{Applied, CommitEnv, Outcome, SnapshotMaker, SpaceClaim, Valid};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::locks::KeyRangeRef;
use crate::read::view::View;
use crate::write_set::{Part, WriteSet};

/// A commit with more bytes in memory than this binds runs.
pub(super) const BIND_AT: usize = 1 << 20;
/// Bytes that a commit with deletions may take in a clone that has reached its limit.
const SMALL: u64 = 1 << 20;
/// Number of conflict checks outside of the pipeline's lock before one is made under the lock,
/// however long it takes.
const LOOKS: usize = 4;

/// The changes of a transaction while it commits.
struct Joining {
    /// The changes, joined with those of others.
    write_set: WriteSet,
    /// There are too many changes to commit them one by one, so they are bound as runs.
    bound: bool,
    /// All commits up to this view are joined. `None` before they were first examined.
    checked: Option<View>,
}

/// Checks the dependencies of a transaction without changes. Its own reads are consistent, since
/// all of them are as of its beginning.
fn check_others(registry: &Transactions, dependencies: Vec<Dependency>) -> Result<()> {
    let others: Vec<_> =
        dependencies.into_iter().filter(|dependency| dependency.of.is_some()).collect();
    reads::check(registry, &others, 0)
}

/// Returns the changes to commit: those of the transaction and, if it is durable, the end of its
/// log, which is deleted in the same commit.
fn with_end_of_log(open: &Open) -> WriteSet {
    let Some(log) = open.log else { return open.write_set.clone() };
    let mut write_set = open.write_set.fork();
    write_set.write(&[Transactions::end_of_log(log)], ZonePin::default());
    write_set
}

impl TransactionState {
    pub(super) fn commit(&self, options: CommitOptions) -> Result<()> {
        let CommitOptions { durability, only_in, stays, aborts_nested } = options;
        let mut state = self.state.write();
        self.measure(&state);
        let Some(open) = &mut state.open else { return Err(self.ended(&state)) };
        if let Some(why) = &*self.doomed.lock() {
            return Err(self.aborted(why));
        }
        // The changes cannot change from here on, since the lock of the state is held.
        let now = Revision { changes: open.revision, begun: self.begun_at };
        if only_in.is_some_and(|only_in| only_in != now) {
            return Err(Error::Changed(self.id));
        }
        let nested: Vec<_> = open.nested_ids().collect();
        if !nested.is_empty() && !aborts_nested {
            return Err(Error::Nested { id: self.id, nested });
        }
        let applied = match &self.within {
            Some(within) => self.apply_within(within, open).map(|()| None),
            None => self.apply(open),
        };
        let applied = match applied {
            Ok(applied) => applied,
            Err(e) => {
                if matches!(e, Error::Conflict { .. }) {
                    if !stays {
                        let open = state.open.take();
                        drop(state);
                        self.let_go(open);
                    }
                    // Memtables hold changes before readers see them. A transaction that begins now
                    // must see the conflicting changes, or a retry would not help.
                    self.registry.parts.commits.await_visible();
                }
                return Err(e);
            }
        };
        let durable = match (&applied, durability) {
            (_, Durability::Buffered) => Ok(()),
            (None, Durability::Synced) if !self.is_kept() => Ok(()),
            (Some(applied), Durability::Synced) => self.registry.parts.commits.sync_if(
                &*self.registry.parts.admission,
                durability,
                applied,
            ),
            (None, Durability::Synced) => self.registry.sync(),
        };
        state.open = None;
        drop(state);
        self.gone();
        self.registry.end_nested(nested, &self.why_nested_end());
        let due = |()| applied.map_or(Ok(()), |a| self.registry.parts.admission.after_commit(a));
        durable.and_then(due).map_err(Error::after_commit)
    }

    /// Commits the changes to the store. Returns `None` if there were none. The write set with
    /// joined values replaces the transaction's own only by committing: after an error the
    /// transaction may continue, and its later changes must be compared with all commits since it
    /// began.
    fn apply(&self, open: &mut Open) -> Result<Option<Applied>> {
        let registry = &*self.registry;
        registry.engine.health.writable()?;
        let dependencies = reads::dependencies(open, self.since);
        if open.write_set.is_empty() && open.log.is_none() {
            return check_others(registry, dependencies).map(|()| None);
        }
        let large = !open.write_set.in_memory() || open.write_set.memory() > BIND_AT;
        // In a full store the commit succeeds without snapshots, and cannot be undone.
        let mut undoable = self.options.undoable && !open.write_set.is_empty();
        if large {
            // Spill before joining, so that a failed attempt has not wasted this write.
            open.spill(registry)?;
        }
        self.check_limit_of_clone(open)?;
        let write_set = with_end_of_log(open);
        let checked_alone = self.checked.lock().clone();
        let only = (!self.options.check_conflicts).then_some(&checked_alone[..]);
        let checks = open.base.is_some() && only.is_none_or(|only| !only.is_empty());
        let mut joining = Joining { write_set, bound: large, checked: None };
        for look in 1.. {
            let seen = match checks || !dependencies.is_empty() {
                true => {
                    self.join_others(open, &dependencies, checks.then_some(only), &mut joining)?
                }
                false => Seq::MAX,
            };
            let Joining { write_set, bound, .. } = &mut joining;
            let bound = *bound;
            // Checks under the pipeline's lock what was committed since the check above.
            let mine = write_set.clone();
            let still = |visible: Seq| -> Result<bool> {
                if visible <= seen || look <= LOOKS {
                    return Ok(visible <= seen);
                }
                reads::check(registry, &dependencies, seen)?;
                let now = Now::Locked(registry);
                Ok(!checks || !conflicts::any(registry, &mine, Others::Store(seen), only, now)?)
            };
            let outcome = match bound || undoable {
                true => {
                    match write_set.spill(&registry.engine, &BTreeMap::new()) {
                        Err(Error::NoSpace) if !bound => {
                            undoable = false;
                            continue;
                        }
                        spilled => spilled?,
                    }
                    self.bind(write_set, &mine, (bound, undoable), still)?
                }
                false => self.commit_small(write_set, still)?,
            };
            match outcome {
                Outcome::Applied(applied) => return Ok(Some(applied)),
                Outcome::Stale => {}
            }
        }
        Ok(None)
    }

    /// Checks the dependencies against everything that was committed so far and, with `only`, joins
    /// the changes with it, in the dictionaries that are checked. Returns the number of the newest
    /// of these commits.
    fn join_others(
        &self,
        open: &Open,
        dependencies: &[Dependency],
        only: Option<Only<'_>>,
        joining: &mut Joining,
    ) -> Result<Seq> {
        let registry = &*self.registry;
        let now = registry.engine.versions.view();
        let checked = &joining.checked;
        reads::check(registry, dependencies, checked.as_ref().map_or(0, |checked| checked.at))?;
        let (since, base) = match (checked, &open.base) {
            (Some(checked), _) => (checked.at, checked.clone()),
            (None, Some(base)) => (self.since, base.clone()),
            (None, None) => (self.since, now.clone()),
        };
        let seen = now.at;
        let by_value = open.by_value && checked.is_none();
        if seen <= since && !by_value {
            return Ok(seen);
        }
        if let Some(only) = only
            && let Some(joined) = conflicts::reconcile(
                registry,
                &joining.write_set,
                Others::Store(since),
                by_value,
                (&base, &now),
                only,
            )?
        {
            joining.bound |= !joined.in_memory() || joined.memory() > BIND_AT;
            joining.write_set = joined;
        }
        joining.checked = Some(now);
        Ok(seen)
    }

    /// Returns the owner of the locks that the commit need not wait for.
    fn owner(&self) -> Option<u64> {
        (self.options.isolation == Isolation::Serializable).then_some(self.id.0)
    }

    /// Commits a write set that is spilled, by binding its runs. `mine` is the same one before it
    /// was spilled. `bound`: there are too many changes to list them.
    fn bind(
        &self,
        write_set: &WriteSet,
        mine: &WriteSet,
        (bound, undoable): (bool, bool),
        still: impl FnOnce(Seq) -> Result<bool>,
    ) -> Result<Outcome> {
        let registry = &*self.registry;
        let commits = &registry.parts.commits;
        let runs = runs(write_set);
        registry
            .engine
            .zones
            .sync()
            .map_err(|e| registry.engine.health.fail("syncing a transaction", &e.into()))?;
        let listed = (!bound && commits.wants_changes())
            .then(|| changes(&registry.engine.cache, mine).map(|(changes, _)| changes))
            .transpose()?;
        let TransactionOptions { branch, label, .. } = &self.options;
        let around = undoable.then(|| StatesAround::new(registry, branch, label));
        let around = around.as_ref().map(|around| Around {
            maker: around as &dyn SnapshotMaker,
            naming: &registry.engine.snapshots.naming,
        });
        let touched = || touched(mine);
        commits.add_runs(&runs, listed.as_ref(), touched, self.owner(), around, still)
    }

    /// Commits a write set as a batch is committed.
    fn commit_small(
        &self,
        write_set: &WriteSet,
        still: impl Fn(Seq) -> Result<bool>,
    ) -> Result<Outcome> {
        let registry = &*self.registry;
        let parts = &registry.parts;
        let (changes, deletes_only) = changes(&registry.engine.cache, write_set)?;
        let pin = parts.commits.keep_places(&changes)?;
        let claim = SpaceClaim { removes: deletes_only, promised: false };
        let valid = Valid { changes, claim, pin, note: None, known: Vec::new() };
        let still = |visible: Seq, _: &Ops| still(visible);
        parts.commits.commit_changes(
            &*parts.admission,
            valid,
            Durability::Buffered,
            self.owner(),
            still,
        )
    }

    /// Fails if the changes exceed the limit of the clone that they are made in, as others may have
    /// used up its room. Small commits that delete something are allowed.
    fn check_limit_of_clone(&self, open: &mut Open) -> Result<()> {
        if open.write_set.is_empty() || !self.is_of_limited_clone() {
            return Ok(());
        }
        let (in_memory, runs) = (open.write_set.estimate() as u64, open.write_set.run_uses());
        let small = in_memory.saturating_add(runs.total_bytes()) <= SMALL;
        let snapshotter = &self.registry.parts.snapshotter;
        match snapshotter.admit_runs(&self.options.branch, in_memory, &runs) {
            Err(_) if open.removed && small => {}
            checked => checked?,
        }
        // The next one at the limit has to find what this one deletes. A merge of the changes
        // unsets `removed`, and `gathered` is not zero after it.
        if open.removed || open.gathered > 0 {
            snapshotter.note_removed(&self.options.branch);
        }
        Ok(())
    }

    /// Ends the transaction and discards its changes.
    pub(super) fn abort(&self) {
        let open = self.state.write().open.take();
        self.let_go(open);
    }

    /// Releases everything that the ended transaction held. `None` means that this was done before.
    fn let_go(&self, open: Option<Open>) {
        let Some(open) = open else { return };
        self.end_log(open.log);
        self.gone();
        self.registry.end_nested(open.nested_ids(), &self.why_nested_end());
    }

    /// Ends the transaction because the store is being closed. A durable one keeps its log and
    /// resumes when the store is opened again.
    pub(super) fn leave(&self, why: &str) {
        if self.options.durable {
            *self.doomed.lock() = Some(why.to_owned());
            let open = self.state.write().open.take();
            self.gone();
            let nested = open.iter().flat_map(Open::nested_ids);
            self.registry.end_nested(nested, &self.why_nested_end());
        } else {
            self.end(why);
        }
    }

    /// Aborts the transaction against its user's wish. `doomed` is set first, without waiting for a
    /// call in progress, so that later calls fail at once.
    pub(super) fn end(&self, why: &str) {
        *self.doomed.lock() = Some(why.to_owned());
        let mut state = self.state.write();
        let open = state.open.take();
        if open.is_some() {
            state.why = Some(why.to_owned());
        }
        drop(state);
        self.let_go(open);
    }

    fn gone(&self) {
        if let Some(within) = &self.within {
            within.leave(self.id);
        }
        self.registry.parts.locks.release(self.id.0);
        self.registry.forget(self.id);
    }
}

/// Returns the keys and ranges that a commit changes, to compare them with locks.
fn touched(write_set: &WriteSet) -> Result<Vec<(DictionaryId, KeyRange)>> {
    let mut out = Vec::new();
    write_set.for_each(|dict, item| {
        let range = match item.body {
            BodyRef::DeleteRange { end } => KeyRangeRef::between(item.key, end),
            BodyRef::Put(_) | BodyRef::Update { .. } | BodyRef::Delete => {
                KeyRangeRef::key(item.key)
            }
        };
        out.push((dict, range.to_range()));
        Ok(())
    })?;
    Ok(out)
}

/// Returns the changes of a transaction that is in memory, and whether none of them adds data.
pub(super) fn changes(cache: &BlockCache, write_set: &WriteSet) -> Result<(Ops, bool)> {
    let mut changes = Ops::new();
    let mut deletes_only = true;
    write_set.for_each(|dict, item| {
        deletes_only &= matches!(item.body, BodyRef::Delete | BodyRef::DeleteRange { .. });
        changes.push((dict, change(cache, item)?));
        Ok(())
    })?;
    Ok((changes, deletes_only))
}

/// Converts an item of a write set to a change.
pub(super) fn change(cache: &BlockCache, item: ItemRef<'_>) -> Result<Op> {
    let key = Bytes::copy_from_slice(item.key);
    Ok(match item.body {
        BodyRef::Put(value) => Op::Put(key, value.to_value()),
        BodyRef::Update { base: None, update } => Op::Update(key, Update::decode(update)?),
        // The base value was put by the transaction itself.
        BodyRef::Update { base: Some(_), .. } => {
            match cache.resolve(Lookup::of(item.seq, item.body.to_body())?)? {
                Some(value) => Op::Put(key, value),
                None => Op::Delete(key),
            }
        }
        BodyRef::Delete => Op::Delete(key),
        BodyRef::DeleteRange { end } => Op::DeleteRange(key, Bytes::copy_from_slice(end)),
    })
}

/// Returns the runs of a transaction that has nothing in memory, newest first.
pub(super) fn runs(write_set: &WriteSet) -> Vec<(DictionaryId, Vec<Arc<Run>>)> {
    let run = |part: &Part| if let Part::Run(run) = part { Some(run.clone()) } else { None };
    write_set
        .trees
        .iter()
        .map(|(dict, parts)| (*dict, parts.iter().rev().filter_map(run).collect()))
        .collect()
}

//! Handles of a transaction. All clones of a handle refer to the same transaction, which ends for
//! all of them at once.

use std::sync::Arc;

use bytes::Bytes;
use env::sync::{RwLockReadGuard, RwLockWriteGuard};
use vt_tree::{Lookup, Update};
use zones::ZonePin;

use super::nested_batch::NestedBatch;
use super::options::{CommitOptions, Isolation, TransactionInfo, TransactionOptions};
use super::revision::Revision;
use super::state::{Last, More, Open, OpenState, TransactionState};
use crate::commit::batch::{Batch, Durability};
use crate::commit::{SpaceClaim, Valid, check_put};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::Ops;
use crate::locks::{KeyRangeRef, Mode};
use crate::mirror::Note;
use crate::read::cursor::Cursor;
use crate::read::view::View;
use crate::version::read;
use crate::write_set::WriteSet;

/// Maximum number of savepoints of a transaction: the parts of the write set before each savepoint
/// are kept apart from later ones.
pub const MAX_SAVEPOINTS: usize = 1024;

/// A point in a transaction to which it can go back.
#[derive(Clone, Debug)]
pub struct Savepoint {
    pub(super) id: u64,
}

/// An open transaction. Its reads see the store as of its beginning together with its own changes,
/// which no other reader sees before it commits.
///
/// ```
/// # let db = kvdb::Kvdb::in_memory();
/// # let fruit = db.open_dictionary("fruit")?;
/// let t = db.begin(kvdb::Isolation::Snapshot)?;
/// t.put(fruit.id(), "apple", "red")?;
/// assert_eq!(fruit.get("apple")?, None);
/// assert_eq!(t.get(fruit.id(), b"apple")?.as_deref(), Some(&b"red"[..]));
/// t.commit(kvdb::Durability::Buffered)?;
/// assert_eq!(fruit.get("apple")?.as_deref(), Some(&b"red"[..]));
/// # Ok::<(), kvdb::Error>(())
/// ```
#[derive(Clone)]
pub struct Transaction {
    pub(super) shared: Arc<TransactionState>,
    _last: Arc<Last>,
}

/// Changes that are applied together.
#[derive(Clone, Copy)]
enum Made<'a> {
    /// One tuple of `bytes` bytes, in a transaction whose changes are not logged.
    Put { bytes: u64 },
    /// Any changes, which may have to be logged.
    Each(&'a Ops),
}

/// Tells whether a change produces a new [`Revision`] of the transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Yes,
    No,
}

impl TransactionState {
    pub(super) fn handle(shared: &Arc<TransactionState>) -> Transaction {
        Transaction { shared: shared.clone(), _last: Last::of(shared) }
    }
}

impl Transaction {
    /// Returns the number of the transaction, by which it can be joined.
    pub fn id(&self) -> TransactionId {
        self.shared.id
    }

    /// Returns the options that it was begun with. If it began before the store was opened, these
    /// are the options that its log keeps.
    pub fn options(&self) -> &TransactionOptions {
        &self.shared.options
    }

    /// Returns its isolation level.
    pub fn isolation(&self) -> Isolation {
        self.shared.options.isolation
    }

    /// Returns whether the transaction cannot silently overwrite changes of others; see
    /// [`TransactionOptions::check_conflicts`].
    pub fn checks_conflicts(&self) -> bool {
        self.shared.options.check_conflicts || self.isolation() == Isolation::Serializable
    }

    /// Enables conflict detection for these dictionaries in a transaction that otherwise has none:
    /// their contents would become inconsistent if the last commit won. The setting lasts while the
    /// store is open.
    pub fn check_conflicts_in(&self, dictionaries: &[DictionaryId]) {
        *self.shared.checked.lock() = dictionaries.to_vec();
    }

    /// Returns its entry in the listing.
    pub fn info(&self) -> TransactionInfo {
        self.shared.info()
    }

    /// Returns the number of the newest commit when the transaction began or, if it began before
    /// the store was opened, at that opening.
    pub fn begun_after(&self) -> u64 {
        self.shared.since
    }

    /// Returns the transaction that it was begun within; see [`TransactionOptions::within`].
    pub fn within(&self) -> Option<TransactionId> {
        self.shared.options.within
    }

    /// Returns the open transactions within it, the oldest first.
    pub fn nested(&self) -> Result<Vec<TransactionId>> {
        let state = self.read()?;
        Ok(state.open.iter().flat_map(Open::nested_ids).collect())
    }

    /// Returns its branch; see [`TransactionOptions::branch`].
    pub fn branch(&self) -> &str {
        &self.shared.options.branch
    }

    /// Returns the user who began it; see [`TransactionOptions::user`].
    pub fn user(&self) -> Option<u32> {
        self.shared.options.user
    }

    /// Returns whether its changes are shown in place of the store; see
    /// [`TransactionOptions::in_place`].
    pub fn is_in_place(&self) -> bool {
        self.shared.options.in_place
    }

    /// Returns the bytes that its changes may still take, by its own limit and those of the
    /// transactions around it ([`TransactionOptions::limit`]). Returns `None` if there is no limit.
    pub fn room(&self) -> Option<u64> {
        self.shared.room()
    }

    /// Compacts its changes where possible, for a caller that would exceed the limit. Returns the
    /// bytes that they may still take then. See [`Transaction::room`].
    pub fn make_room(&self) -> Result<Option<u64>> {
        if self.shared.is_limited() {
            let mut state = self.write()?;
            let Some(open) = &mut state.open else {
                return Err(Error::NoTransaction(self.shared.id));
            };
            self.shared.give_back(open)?;
            self.shared.compare(open);
        }
        // The state must be released first: this flushes and merges.
        self.shared.registry.parts.snapshotter.make_room(&self.shared.options.branch)?;
        Ok(self.shared.room())
    }

    /// Returns whether it survives a restart; see [`TransactionOptions::durable`].
    pub fn is_durable(&self) -> bool {
        self.shared.options.durable
    }

    /// Returns whether its commit can be undone; see [`TransactionOptions::undoable`].
    pub fn is_undoable(&self) -> bool {
        self.shared.options.undoable
    }

    /// Makes all earlier changes of a durable transaction durable before it returns. Does nothing
    /// for other transactions, whose changes are not on disk before the commit.
    pub fn sync(&self) -> Result<()> {
        if self.is_durable() { self.shared.registry.sync() } else { Ok(()) }
    }

    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, OpenState>> {
        self.shared.used()?;
        let state = self.shared.state.read();
        if state.open.is_none() { Err(self.shared.ended(&state)) } else { Ok(state) }
    }

    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, OpenState>> {
        self.shared.used()?;
        let state = self.shared.state.write();
        if state.open.is_none() { Err(self.shared.ended(&state)) } else { Ok(state) }
    }

    /// Returns the value of `key` as the transaction sees it.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.lock(dict, KeyRangeRef::key(key), Mode::Shared)?;
        let state = self.read()?;
        let Some(open) = &state.open else { return Ok(None) };
        match open.write_set.get(dict, key)? {
            Lookup::Found(_, value) => {
                return read(&self.shared.registry.engine.cache, value).map(Some);
            }
            Lookup::Deleted(_) => return Ok(None),
            Lookup::Updated { .. } => {
                return open.view(&self.shared.registry).get(dict, key);
            }
            Lookup::Absent => {}
        }
        match &open.base {
            Some(view) if view.knows(dict) => view.get(dict, key),
            // The dictionary, if it exists at all, was created after the transaction began.
            Some(_) => self.shared.registry.engine.versions.load().tree(dict).map(|_| None),
            None => self.shared.registry.engine.versions.get(dict, key),
        }
    }

    /// Fails if the transaction finds no such dictionary, neither in the state that it reads nor
    /// among those created since.
    fn find_dictionary(&self, dict: DictionaryId) -> Result<()> {
        let base = self.read()?.open.as_ref().and_then(|open| open.base.clone());
        match base.is_some_and(|base| base.knows(dict)) {
            true => Ok(()),
            false => self.shared.registry.engine.versions.load().tree(dict).map(drop),
        }
    }

    /// Returns up to `limit` tuples of `[start, end)` as the transaction sees them; see
    /// [`View::scan`]. A serializable transaction locks the part of the range that it has seen.
    pub fn scan(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        if self.isolation() == Isolation::Snapshot {
            self.find_dictionary(dict)?;
            return self.view()?.scan(dict, start, end, limit);
        }
        // Tuples that are read before they are locked may change in between, so scan again after
        // locking.
        let mut locked: Option<Bytes> = None;
        loop {
            let found = self.view()?.scan(dict, start, end, limit)?;
            let last = found.last().filter(|_| found.len() == limit).map(|(key, _)| key.clone());
            match (last, &locked) {
                (Some(last), Some(locked)) if last <= *locked => return Ok(found),
                (Some(last), _) => {
                    self.lock(
                        dict,
                        KeyRangeRef::between(start, &[&last[..], &[0]].concat()),
                        Mode::Shared,
                    )?;
                    locked = Some(last);
                }
                (None, _) => {
                    self.lock_range(dict, start, end, false)?;
                    self.find_dictionary(dict)?;
                    return self.view()?.scan(dict, start, end, limit);
                }
            }
        }
    }

    /// Returns a cursor over `[start, end)` as the transaction sees it now. A serializable
    /// transaction locks the whole range.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        self.lock_range(dict, start, end, false)?;
        self.find_dictionary(dict)?;
        self.view()?.cursor(dict, start, end)
    }

    /// Returns a view of the current state of the transaction, which stays valid while the view is
    /// held. Reading it takes no locks.
    pub fn view(&self) -> Result<View> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        Ok(open.view(&self.shared.registry))
    }

    /// Returns `earlier`, a view of this transaction, on top of the newest commits of others. It
    /// serves a caller that reads in several steps and locks before each step, while the
    /// transaction is in use elsewhere. The transaction's own changes are those of `earlier`, so
    /// all steps see one state of them. Under snapshot isolation this is `earlier` itself.
    pub fn renew(&self, earlier: &View) -> Result<View> {
        let base = self.base()?;
        Ok(View { write_set: earlier.write_set.clone(), of_transaction: true, ..base })
    }

    pub(super) fn base(&self) -> Result<View> {
        let state = self.read()?;
        state
            .open
            .as_ref()
            .map(|open| open.beneath(&self.shared.registry))
            .ok_or(Error::NoTransaction(self.shared.id))
    }

    /// Begins a batch of changes that are applied atomically.
    pub fn nested_batch(&self) -> Result<NestedBatch> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        Ok(NestedBatch::new(self.clone(), &open.write_set))
    }

    /// Sets the value of `key`, whether or not it had one.
    pub fn put(
        &self,
        dict: DictionaryId,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_put(key.len(), value.len())?;
        if self.shared.options.durable {
            let mut batch = Batch::new();
            batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            return self.apply(batch);
        }
        self.lock(dict, KeyRangeRef::key(key), Mode::Exclusive)?;
        let value_len = value.len();
        let put = |write_set: &mut WriteSet| write_set.put(dict, key, value);
        let bytes = (key.len() + value_len) as u64;
        self.change(dict, (SpaceClaim::default(), None), Made::Put { bytes }, Seen::Yes, put)
    }

    /// Changes the value of `key` without reading it. See [`Batch::update`]. Changes that others
    /// have made to the value by the time of the commit are no conflict if the update commutes with
    /// them ([`Update::commutes`]): two transactions that add to one counter both commit. If others
    /// have put a value that is not a number, an addition is a conflict, since it would be lost.
    pub fn update(&self, dict: DictionaryId, key: impl AsRef<[u8]>, update: Update) -> Result<()> {
        let mut batch = Batch::new();
        batch.update(dict, Bytes::copy_from_slice(key.as_ref()), update);
        self.apply(batch)
    }

    /// Deletes `key`, whether or not it exists.
    pub fn delete(&self, dict: DictionaryId, key: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(dict, Bytes::copy_from_slice(key.as_ref()));
        self.apply(batch)
    }

    /// Deletes all keys of `[start, end)`. See [`Batch::delete_range`].
    pub fn delete_range(
        &self,
        dict: DictionaryId,
        start: impl Into<Bytes>,
        end: impl Into<Bytes>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete_range(dict, start, end);
        self.apply(batch)
    }

    /// Applies the changes of a batch; on any error none of them is made.
    pub fn apply(&self, batch: Batch) -> Result<()> {
        self.apply_as(batch, Seen::Yes)
    }

    /// Applies a batch like [`Transaction::apply`] without changing the transaction's revision
    /// ([`Transaction::revision`]). It is for changes that the owner makes during the commit, in
    /// addition to those that were inspected.
    pub fn apply_at_commit(&self, batch: Batch) -> Result<()> {
        self.apply_as(batch, Seen::No)
    }

    fn apply_as(&self, batch: Batch, seen: Seen) -> Result<()> {
        let Valid { mut changes, claim, pin, note, .. } = self.validate(batch)?;
        self.fold_updates(&mut changes)?;
        match changes.first() {
            Some((dict, _)) => {
                self.change(*dict, (claim, note), Made::Each(&changes), seen, |write_set| {
                    write_set.write(&changes, pin)
                })
            }
            None => Ok(()),
        }
    }

    /// Validates the changes of a batch and takes the locks that they need.
    pub(super) fn validate(&self, batch: Batch) -> Result<Valid> {
        self.shared.registry.engine.health.writable()?;
        drop(self.read()?);
        let registry = &self.shared.registry;
        // Validate against the current version: a dictionary may have been created since the
        // transaction began.
        let valid = registry.parts.commits.validate(&registry.engine.versions.load(), batch)?;
        self.lock_changes(&valid.changes)?;
        Ok(valid)
    }

    /// Applies changes that were validated and whose values are pinned. If one of their
    /// dictionaries has been dropped since, the commit fails.
    pub(super) fn make(&self, changes: &Ops, claim: SpaceClaim) -> Result<()> {
        match changes.first() {
            Some((dict, _)) => {
                self.change(*dict, (claim, None), Made::Each(changes), Seen::Yes, |write_set| {
                    write_set.write(changes, Default::default())
                })
            }
            None => self.read().map(|_| ()),
        }
    }

    /// Makes room for changes and applies them. `dict` is one of the dictionaries that they change.
    /// The note names the request that the changes complete.
    fn change(
        &self,
        dict: DictionaryId,
        (claim, note): (SpaceClaim, Option<Note>),
        made: Made<'_>,
        seen: Seen,
        change: impl FnOnce(&mut WriteSet),
    ) -> Result<()> {
        let registry = &self.shared.registry;
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        if !open.write_set.trees.contains_key(&dict) {
            // This is the first change to the dictionary, so check that the dictionary exists.
            registry.engine.versions.load().tree(dict).map(|_| ())?;
        }
        // The limit was checked when the space was promised.
        if !claim.removes && !claim.promised {
            let more = || match made {
                Made::Put { bytes } => More::of(bytes),
                Made::Each(changes) => More::of_changes(changes),
            };
            self.shared.admit(open, more)?;
        }
        open.removed |= claim.removes;
        open.make_room(registry, claim.removes)?;
        registry.make_room(self.shared.id);
        if let (Some(log), Made::Each(changes)) = (open.log, made) {
            registry.log(log, open.write_set.at, changes, (claim, note))?;
        }
        change(&mut open.write_set);
        open.revision += u64::from(seen == Seen::Yes);
        self.shared.count(open);
        Ok(())
    }

    /// Returns the revision of its changes, with which exactly these changes can be committed
    /// ([`CommitOptions::only_in`]).
    pub fn revision(&self) -> Result<Revision> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        Ok(Revision { changes: open.revision, begun: self.shared.begun_at })
    }

    /// Sets a savepoint at the current state of the transaction.
    pub fn savepoint(&self) -> Result<Savepoint> {
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        if open.savepoints.len() >= MAX_SAVEPOINTS {
            return Err(Error::Limit(format!(
                "the transaction has {MAX_SAVEPOINTS} savepoints: go back to an earlier one, or commit"
            )));
        }
        let mark = open.mark();
        let id = mark.id;
        open.savepoints.push(mark);
        Ok(Savepoint { id })
    }

    /// Undoes all changes since a savepoint, which stays valid. Later savepoints are dropped, and
    /// transactions that were begun within this one after the savepoint are aborted.
    pub fn rollback_to(&self, savepoint: &Savepoint) -> Result<()> {
        self.roll_back(savepoint, &Ops::new(), SpaceClaim::default(), ZonePin::default())
    }

    /// Undoes all changes since a savepoint like [`Transaction::rollback_to`] and applies a batch,
    /// in one step: after a crash a durable transaction has done both or neither. It is for the
    /// owner's note of a rollback, so the transaction's limit in bytes does not apply.
    pub fn rollback_and_apply(&self, savepoint: &Savepoint, batch: Batch) -> Result<()> {
        let Valid { changes, claim, pin, .. } = self.validate(batch)?;
        self.roll_back(savepoint, &changes, claim, pin)
    }

    fn roll_back(
        &self,
        savepoint: &Savepoint,
        changes: &Ops,
        claim: SpaceClaim,
        pin: ZonePin,
    ) -> Result<()> {
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        let Some(at) = open.savepoints.iter().position(|mark| mark.id == savepoint.id) else {
            return Err(Error::Invalid(
                "the savepoint is gone: the transaction went back to an earlier one".into(),
            ));
        };
        let mark = &open.savepoints[at];
        if let Some(log) = open.log {
            let after = open.write_set.at;
            self.shared.registry.log_after_cut(log, mark.at, after, changes, claim)?;
        }
        open.write_set.cut(&mark.parts);
        open.revision += 1;
        open.savepoints.truncate(at + 1);
        // Later changes go into parts of their own again.
        open.write_set.mark();
        if !changes.is_empty() {
            open.write_set.write(changes, pin);
        }
        self.shared.count(open);
        let begun_since = open.leave_nested_since(savepoint.id);
        drop(state);
        let why = format!(
            "transaction {}, within which it was begun, went back to a savepoint from before that",
            self.shared.id
        );
        self.shared.registry.end_nested(begun_since, &why);
        Ok(())
    }

    /// Commits all changes atomically. The transaction has ended when this succeeds and when it
    /// fails with [`Error::Conflict`]; after [`Error::NoSpace`] and the like it is still open.
    /// [`Error::NotSynced`] means that it is committed, but perhaps not on disk.
    pub fn commit(&self, durability: Durability) -> Result<()> {
        self.commit_with(CommitOptions { durability, ..CommitOptions::default() })
    }

    /// Commits like [`Transaction::commit`], with further options, for example only at a given
    /// revision.
    pub fn commit_with(&self, options: CommitOptions) -> Result<()> {
        self.shared.used()?;
        self.shared.commit(options)
    }

    /// Returns whether others have changed data that this transaction has changed or that its
    /// commit depends on, so that the commit would conflict unless a merge routine joins the
    /// changes. This is never so for a serializable transaction. A nested transaction is compared
    /// only with the one that it was begun within.
    pub fn is_outdated(&self) -> Result<bool> {
        if let Some(within) = &self.shared.within {
            return within.is_outdated(&self.shared, self.read()?);
        }
        let (write_set, dependencies) = match &self.read()?.open {
            Some(open) if open.base.is_some() => {
                (open.write_set.clone(), super::reads::dependencies(open, self.shared.since))
            }
            _ => return Ok(false),
        };
        let registry = &self.shared.registry;
        match super::reads::check(registry, &dependencies, 0) {
            Err(Error::Conflict { .. }) => return Ok(true),
            checked => checked?,
        }
        let others = super::conflicts::Others::Store(self.shared.since);
        let now = super::conflicts::Now::Newest(registry);
        super::conflicts::any(registry, &write_set, others, None, now)
    }

    /// Aborts the transaction and discards its changes.
    pub fn abort(&self) {
        self.shared.abort();
    }
}

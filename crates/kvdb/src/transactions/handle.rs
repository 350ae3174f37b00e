//! A transaction in hand. Clones are the same transaction, wherever they are: it ends for all of
//! them.

use std::sync::Arc;

use bytes::Bytes;
use env::sync::{RwLockReadGuard, RwLockWriteGuard};
use vt_tree::{Lookup, Update};

use super::nested_batch::NestedBatch;
use super::options::{CommitOptions, Isolation, TransactionInfo, TransactionOptions};
use super::revision::Revision;
use super::state::{Last, Open, OpenState, TransactionState};
use crate::commit::batch::{Batch, Durability};
use crate::commit::{SpaceClaim, Valid, check_put};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::Ops;
use crate::locks::{KeyRangeRef, Mode};
use crate::mirror::Note;
use crate::read::cursor::Cursor;
use crate::read::version::read;
use crate::read::view::View;
use crate::read::write_set::WriteSet;

/// Savepoints that a transaction may have: what each of them goes back to is kept apart.
pub const MAX_SAVEPOINTS: usize = 1024;

/// A point in a transaction to which it can go back.
#[derive(Clone, Debug)]
pub struct Savepoint {
    pub(super) id: u64,
}

/// An open transaction. Its reads see the store as of its beginning and its own changes, which no
/// other reader sees before it commits.
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

/// Changes that are made together.
#[derive(Clone, Copy)]
enum Made<'a> {
    /// One tuple of so many bytes, in a transaction whose changes are not logged.
    Put { bytes: u64 },
    /// Any, which may have to be logged.
    Each(&'a Ops),
}

/// Says if a change makes another state of a transaction for those who look at it.
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
    /// Its number, by which it can be joined.
    pub fn id(&self) -> TransactionId {
        self.shared.id
    }

    /// How it was begun. Of one that was open before the store was, what is kept of that.
    pub fn options(&self) -> &TransactionOptions {
        &self.shared.options
    }

    /// How it is isolated from others.
    pub fn isolation(&self) -> Isolation {
        self.shared.options.isolation
    }

    /// Whether it cannot undo unawares what others have changed; see
    /// [`TransactionOptions::check_conflicts`].
    pub fn checks_conflicts(&self) -> bool {
        self.shared.options.check_conflicts || self.isolation() == Isolation::Serializable
    }

    /// Has conflicts looked for in these dictionaries although the transaction looks for none: what
    /// is in them would not fit together any more if the last commit won. For as long as the store
    /// is open.
    pub fn check_conflicts_in(&self, dictionaries: &[DictionaryId]) {
        *self.shared.checked.lock() = dictionaries.to_vec();
    }

    /// The transaction as listed.
    pub fn info(&self) -> TransactionInfo {
        self.shared.info()
    }

    /// The number of the newest commit when it began, or, of one that began before the store was
    /// opened, when that was.
    pub fn begun_after(&self) -> u64 {
        self.shared.since
    }

    /// The transaction that it was begun within; see [`TransactionOptions::within`].
    pub fn within(&self) -> Option<TransactionId> {
        self.shared.options.within
    }

    /// Transactions that are open within it, the oldest first.
    pub fn nested(&self) -> Result<Vec<TransactionId>> {
        let state = self.read()?;
        Ok(state.open.iter().flat_map(Open::nested_ids).collect())
    }

    /// The branch that it is of; see [`TransactionOptions::branch`].
    pub fn branch(&self) -> &str {
        &self.shared.options.branch
    }

    /// Who began it; see [`TransactionOptions::user`].
    pub fn user(&self) -> Option<u32> {
        self.shared.options.user
    }

    /// See [`TransactionOptions::in_place`].
    pub fn is_in_place(&self) -> bool {
        self.shared.options.in_place
    }

    /// Bytes that its changes may still take, by its limit and those around it; `None`: there is no
    /// limit; see [`TransactionOptions::limit`].
    pub fn room(&self) -> Option<u64> {
        self.shared.room()
    }

    /// Makes what its changes take less where it can, for a caller who would be beyond the limit.
    /// The bytes that they may take then, see [`Transaction::room`].
    pub fn make_room(&self) -> Result<Option<u64>> {
        if self.shared.is_limited() {
            let mut state = self.write()?;
            let Some(open) = &mut state.open else {
                return Err(Error::NoTransaction(self.shared.id));
            };
            self.shared.give_back(open)?;
        }
        // After the state is let go of: it flushes and merges.
        self.shared.registry.parts.snapshotter.make_room(&self.shared.options.branch)?;
        Ok(self.shared.room())
    }

    /// Whether it survives a restart; see [`TransactionOptions::durable`].
    pub fn is_durable(&self) -> bool {
        self.shared.options.durable
    }

    /// Whether its commit can be undone; see [`TransactionOptions::undoable`].
    pub fn is_undoable(&self) -> bool {
        self.shared.options.undoable
    }

    /// What a durable one has changed before this call is on disk when it returns. Of another one
    /// nothing is before its commit.
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

    /// The value of `key` as the transaction sees it.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.lock(dict, KeyRangeRef::key(key), Mode::Shared)?;
        let state = self.read()?;
        let Some(open) = &state.open else { return Ok(None) };
        match open.write_set.get(dict, key)? {
            Lookup::Found(_, value) => {
                return read(&self.shared.registry.parts.cache, value).map(Some);
            }
            Lookup::Deleted(_) => return Ok(None),
            Lookup::Updated { .. } => {
                return open.view(&self.shared.registry).get(dict, key);
            }
            Lookup::Absent => {}
        }
        match &open.base {
            Some(view) if view.knows(dict) => view.get(dict, key),
            // Made since it began, where it is there at all.
            Some(_) => self.shared.registry.parts.versions.load().tree(dict).map(|_| None),
            None => self.shared.registry.parts.versions.get(dict, key),
        }
    }

    /// An error where the transaction finds no such dictionary: neither in the state that it reads,
    /// nor among those that were made since.
    fn find_dictionary(&self, dict: DictionaryId) -> Result<()> {
        let base = self.read()?.open.as_ref().and_then(|open| open.base.clone());
        match base.is_some_and(|base| base.knows(dict)) {
            true => Ok(()),
            false => self.shared.registry.parts.versions.load().tree(dict).map(drop),
        }
    }

    /// Up to `limit` tuples of `[start, end)` as the transaction sees them; see [`View::scan`]. A
    /// serializable one locks the part of the range that it has seen.
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
        // What is seen before it is locked may change until it is.
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

    /// A cursor over `[start, end)` as the transaction sees it now; a serializable one locks all of
    /// the range.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        self.lock_range(dict, start, end, false)?;
        self.find_dictionary(dict)?;
        self.view()?.cursor(dict, start, end)
    }

    /// What the transaction sees now, for as long as the view is held. Reading it locks nothing.
    pub fn view(&self) -> Result<View> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        Ok(open.view(&self.shared.registry))
    }

    /// `earlier`, a view of this transaction, with what others have committed by now: for a caller
    /// that reads in several steps and locks before each of them, while the transaction is used
    /// elsewhere, too. The changes of the transaction itself are those that `earlier` has, so all
    /// steps see one state of them. Under snapshot isolation this is `earlier` itself.
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

    /// Begins changes that are to be made all at once or not at all.
    pub fn nested_batch(&self) -> Result<NestedBatch> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        Ok(NestedBatch::new(self.clone(), &open.write_set))
    }

    /// Gives `key` a value, whether or not it had one.
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

    /// Changes the value of `key` without reading it, see [`Batch::update`]. What others have done
    /// to the value by the time of the commit is no conflict if the update commutes with it
    /// ([`Update::commutes`]): two transactions that add to one counter both commit.
    pub fn update(&self, dict: DictionaryId, key: impl AsRef<[u8]>, update: Update) -> Result<()> {
        let mut batch = Batch::new();
        batch.update(dict, Bytes::copy_from_slice(key.as_ref()), update);
        self.apply(batch)
    }

    /// Deletes `key`, whether or not it is there.
    pub fn delete(&self, dict: DictionaryId, key: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(dict, Bytes::copy_from_slice(key.as_ref()));
        self.apply(batch)
    }

    /// Deletes every key in `[start, end)`, see [`Batch::delete_range`].
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

    /// Makes the changes of a batch, all or, on any error, none of them.
    pub fn apply(&self, batch: Batch) -> Result<()> {
        self.apply_as(batch, Seen::Yes)
    }

    /// As [`Transaction::apply`], for what its owner does on the way to its commit, in addition to
    /// what was looked at: it stays in the same state ([`Transaction::revision`]).
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

    /// The changes of a batch, locked where need be.
    pub(super) fn validate(&self, batch: Batch) -> Result<Valid> {
        self.shared.registry.parts.health.writable()?;
        drop(self.read()?);
        let registry = &self.shared.registry;
        // As it is now: a dictionary may have been made since the transaction began.
        let valid = registry.parts.commits.validate(&registry.parts.versions.load(), batch)?;
        self.lock_changes(&valid.changes)?;
        Ok(valid)
    }

    /// Makes changes that were validated, and whose places are held. Their dictionaries may be gone
    /// by now, which the commit refuses.
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

    /// Makes room and then changes. `dict`: one that is changed; with the note of the request that
    /// the changes complete.
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
            // The first change there: is there such a dictionary?
            registry.parts.versions.load().tree(dict).map(|_| ())?;
        }
        // Promised space was looked at when it was promised.
        if !claim.removes && !claim.promised {
            let more = || match made {
                Made::Put { bytes } => bytes,
                Made::Each(changes) => changes.iter().map(|(_, op)| op.bytes() as u64).sum(),
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

    /// The state of what it has changed so far, to commit that and nothing else
    /// ([`CommitOptions::only_in`]).
    pub fn revision(&self) -> Result<Revision> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        Ok(Revision { changes: open.revision, begun: self.shared.begun_at })
    }

    /// Marks the state that the transaction has now.
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

    /// Undoes what was changed since a savepoint, which stays; those made after it are gone, and
    /// transactions that were begun within it after that are aborted.
    pub fn rollback_to(&self, savepoint: &Savepoint) -> Result<()> {
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        let Some(at) = open.savepoints.iter().position(|mark| mark.id == savepoint.id) else {
            return Err(Error::Invalid(
                "the savepoint is gone: the transaction went back to an earlier one".into(),
            ));
        };
        let mark = &open.savepoints[at];
        if let Some(log) = open.log {
            self.shared.registry.cut_log(log, mark.at)?;
        }
        open.write_set.cut(&mark.parts);
        open.revision += 1;
        open.savepoints.truncate(at + 1);
        // What comes next goes into parts of its own again.
        open.write_set.mark();
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

    /// Makes its changes part of the store, all of them at once. It has ended then, also when this
    /// fails with [`Error::Conflict`]; after [`Error::NoSpace`] and the like it is still there.
    /// [`Error::NotSynced`] says that it is committed, and perhaps not on disk.
    pub fn commit(&self, durability: Durability) -> Result<()> {
        self.commit_with(CommitOptions { durability, ..CommitOptions::default() })
    }

    /// As [`Transaction::commit`], in one state only, say.
    pub fn commit_with(&self, options: CommitOptions) -> Result<()> {
        self.shared.used()?;
        self.shared.commit(options)
    }

    /// Whether others have by now changed something that it has changed or that its commit depends
    /// on, so that it would find a conflict if nothing can join the two. Never so for a
    /// serializable one. Of one within another, that other one is asked alone.
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
        super::conflicts::any(registry, &write_set, others, None)
    }

    /// Ends it without a trace.
    pub fn abort(&self) {
        self.shared.abort();
    }
}

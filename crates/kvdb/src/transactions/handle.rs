//! A transaction in hand. Clones are the same transaction, wherever they are: it ends for all of
//! them.

use env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use vt_tree::{Lookup, Update};

use super::nested_batch::NestedBatch;
use super::reads::{Claim, ReadSet};
use crate::commit::batch::{Batch, Durability};
use crate::commit::{SpaceClaim, Valid, check_put};
use crate::db::Kvdb;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::Ops;
use crate::locks::{KeyRangeRef, Mode};
use crate::read::cursor::Cursor;
use crate::read::version::read;
use crate::read::view::View;
use crate::read::write_set::WriteSet;

/// What a transaction sees of others, and they of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// It reads the store as it was when it began, with its own changes. Of two that change the
    /// same key the first one to commit wins; the other gets [`Error::Conflict`], unless a
    /// [`super::MergeRoutine`] can join both.
    #[default]
    Snapshot,
    /// As if it ran alone: what it reads or writes is locked until it ends (strict two-phase
    /// locking). It reads what is committed now. Of two that want the same key the older one goes
    /// first, so there is no deadlock.
    Serializable,
}

/// How a transaction is begun.
#[derive(Clone, Debug)]
pub struct TransactionOptions {
    /// How it is isolated from others.
    pub isolation: Isolation,
    /// Snapshot isolation only. `false`: the last commit wins. For callers who know that no other
    /// else touches their keys.
    pub check_conflicts: bool,
    /// It stays when its last handle is dropped, to be joined by its number, until it is ended or
    /// idle for too long. Otherwise it is aborted with its last handle.
    pub detached: bool,
    /// It is aborted after so long without a call. `None`: never.
    pub idle_limit: Option<Duration>,
    /// Serializable only: how long a call waits for a lock before it gives up with
    /// [`Error::Locked`].
    pub lock_timeout: Duration,
    /// Serializable only: it is begun in place of one that was aborted for an older one, and is as
    /// old as that.
    pub retry_of: Option<TransactionId>,
    /// It survives a crash and a restart, as it was some moments (the flush interval) before at the
    /// latest: its changes are logged, and hence written once more. Snapshot isolation only;
    /// detached whether or not that is said.
    pub durable: bool,
    /// For people who look at a list of transactions.
    pub label: String,
    /// The user of the system that began it, for interfaces that keep users apart. The store itself
    /// ignores it.
    pub user: Option<u32>,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        TransactionOptions {
            isolation: Isolation::Snapshot,
            check_conflicts: true,
            detached: false,
            idle_limit: None,
            lock_timeout: Duration::from_secs(10),
            retry_of: None,
            durable: false,
            label: String::new(),
            user: None,
        }
    }
}

/// An open transaction as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Its number, by which it can be joined.
    pub id: TransactionId,
    /// How it is isolated from others.
    pub isolation: Isolation,
    /// The label that it was begun with.
    pub label: String,
    /// It survives a restart.
    pub durable: bool,
    /// Since it began, or since the store was opened.
    pub age: Duration,
    /// Since its last call.
    pub idle: Duration,
    /// Changes made so far, those undone included.
    pub changes: u64,
    /// Memory of what is not in runs of its own, bytes.
    pub memory: u64,
    /// Bytes of those runs.
    pub run_bytes: u64,
    /// The transaction whose end a call of this one waits for, since that one holds what it would
    /// lock.
    pub waits_for: Option<TransactionId>,
}

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
    pub(super) group: Arc<TransactionState>,
    _last: Arc<Last>,
}

/// Aborts a transaction that is not detached with its last handle.
pub(super) struct Last(Arc<TransactionState>);

impl Drop for Last {
    fn drop(&mut self) {
        if !self.0.options.detached {
            self.0.end("its last handle was dropped");
        }
    }
}

/// What all handles of a transaction share.
pub(crate) struct TransactionState {
    pub(super) id: TransactionId,
    pub(super) options: TransactionOptions,
    pub(super) db: Arc<Database>,
    /// When it began, and when it was last used, of the database's clock.
    pub(super) begun: Duration,
    pub(super) used_nanos: AtomicU64,
    /// Makes handles; the last one of them ends it.
    pub(super) handles: env::sync::Mutex<std::sync::Weak<Last>>,
    /// The number of the newest commit when it began.
    pub(super) since: u64,
    pub(super) state: RwLock<OpenState>,
    /// Changes, memory and bytes of runs when that was last looked at: for listings, which wait for
    /// no call and no commit.
    size: env::sync::Mutex<(u64, u64, u64)>,
    /// Memory of its changes as it is counted in that of all transactions.
    pub(super) held: AtomicUsize,
    /// It is not to go on: why. Looked at by every call; set without waiting for one that is under
    /// way.
    pub(super) doomed: env::sync::Mutex<Option<String>>,
}

pub(super) struct OpenState {
    /// `None`: it has ended.
    pub open: Option<Open>,
    /// Why it has ended, when that was not its user's wish.
    pub why: Option<String>,
}

pub(super) struct Open {
    /// What it reads below its own changes; `None`: what is committed now.
    pub base: Option<View>,
    pub write_set: WriteSet,
    /// What others must not have changed when it commits, besides what it changes itself.
    pub reads: Arc<ReadSet>,
    /// What others must not have changed of what other transactions that joined this one have read.
    pub depends: Vec<Claim>,
    /// Where its changes are logged.
    pub log: Option<DictionaryId>,
    /// What it reads may be older than the number that conflicts are looked for from: what others
    /// have changed is told by values as well.
    pub by_value: bool,
    pub(super) savepoints: Vec<Mark>,
    pub(super) next_savepoint: u64,
}

/// What a savepoint goes back to.
pub(super) struct Mark {
    id: u64,
    pub(super) parts: BTreeMap<DictionaryId, usize>,
    /// Changes made so far.
    at: u64,
}

impl Open {
    pub(super) fn new(base: Option<View>) -> Open {
        Open {
            base,
            write_set: WriteSet::default(),
            reads: Arc::default(),
            depends: Vec::new(),
            log: None,
            by_value: false,
            savepoints: Vec::new(),
            next_savepoint: 1,
        }
    }

    /// Writes out what it has in memory; what savepoints go back to stays apart.
    pub(super) fn spill(&mut self, db: &Database) -> Result<()> {
        let keep = self.savepoints.last().map(|mark| mark.parts.clone()).unwrap_or_default();
        self.write_set.spill(&db.run_writer(), &keep)
    }
}

impl Kvdb {
    /// Begins a transaction that ends with its last handle at the latest.
    pub fn begin(&self, isolation: Isolation) -> Result<Transaction> {
        self.begin_with(TransactionOptions { isolation, ..TransactionOptions::default() })
    }

    /// Begins a transaction with these options.
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        let db = &self.db.0;
        db.writable()?;
        Ok(TransactionState::handle(&db.transactions.begin(db, options)?))
    }

    /// Joins an open transaction.
    pub fn transaction(&self, id: TransactionId) -> Result<Transaction> {
        self.db
            .0
            .transactions
            .find(id)
            .map(|g| TransactionState::handle(&g))
            .ok_or(Error::NoTransaction(id))
    }

    /// Why a transaction is over that was aborted for an older one, not too long ago: it may be
    /// begun again. For those who only learn at its end that it has ended.
    pub fn lost_to_another(&self, id: TransactionId) -> Option<Error> {
        self.db.0.transactions.lost(id)
    }

    /// The open transactions, the oldest first.
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        self.db.0.transactions.all().iter().map(|g| g.info()).collect()
    }
}

impl TransactionState {
    pub(super) fn new(
        db: Arc<Database>,
        id: TransactionId,
        options: TransactionOptions,
        now: Duration,
        since: u64,
        open: Open,
    ) -> Arc<TransactionState> {
        Arc::new(TransactionState {
            id,
            options: TransactionOptions {
                detached: options.detached || options.durable,
                ..options
            },
            db,
            begun: now,
            used_nanos: AtomicU64::new(now.as_nanos() as u64),
            handles: env::sync::Mutex::default(),
            since,
            state: RwLock::new(OpenState { open: Some(open), why: None }),
            size: env::sync::Mutex::default(),
            held: AtomicUsize::new(0),
            doomed: env::sync::Mutex::default(),
        })
    }

    pub(super) fn handle(group: &Arc<TransactionState>) -> Transaction {
        let mut handles = group.handles.lock();
        let last = handles.upgrade().unwrap_or_else(|| {
            let last = Arc::new(Last(group.clone()));
            *handles = Arc::downgrade(&last);
            last
        });
        Transaction { group: group.clone(), _last: last }
    }

    pub(super) fn ended(&self, state: &OpenState) -> Error {
        match &state.why {
            Some(why) => self.aborted(why),
            None => Error::NoTransaction(self.id),
        }
    }

    pub(super) fn aborted(&self, why: &str) -> Error {
        Error::Locked(format!("transaction {} was aborted: {why}", self.id))
    }

    /// What every call begins with.
    fn used(&self) -> Result<()> {
        self.used_nanos.store(self.db.now().as_nanos() as u64, Ordering::Relaxed);
        match &*self.doomed.lock() {
            Some(why) => Err(self.aborted(why)),
            None => Ok(()),
        }
    }

    /// Notes how large it is.
    pub(super) fn measure(&self, state: &OpenState) {
        let size = state.open.as_ref().map(|open| {
            (open.write_set.at, open.write_set.memory() as u64, open.write_set.run_bytes())
        });
        *self.size.lock() = size.unwrap_or_default();
    }

    /// Counts the memory of its changes in that of all transactions.
    pub(super) fn count(&self, open: &mut Open) {
        let now = open.write_set.estimate();
        let before = self.held.swap(now, Ordering::Relaxed);
        // Of both directions: it wraps.
        self.db.transactions.held.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Writes out what it has in memory, for the sake of others; not while a call is under way.
    pub(super) fn make_small(&self) -> Result<()> {
        let Some(mut state) = self.state.try_write() else { return Ok(()) };
        let Some(open) = &mut state.open else { return Ok(()) };
        open.spill(&self.db)?;
        self.count(open);
        Ok(())
    }

    pub(super) fn info(&self) -> TransactionInfo {
        let now = self.db.now();
        if let Some(state) = self.state.try_read() {
            self.measure(&state);
        }
        let (changes, memory, run_bytes) = *self.size.lock();
        TransactionInfo {
            id: self.id,
            isolation: self.options.isolation,
            label: self.options.label.clone(),
            durable: self.options.durable,
            age: now.saturating_sub(self.begun),
            idle: now.saturating_sub(Duration::from_nanos(self.used_nanos.load(Ordering::Relaxed))),
            changes,
            memory,
            run_bytes,
            waits_for: self.db.locks.waits_for(self.id.0).map(TransactionId),
        }
    }
}

impl Transaction {
    /// Its number, by which it can be joined.
    pub fn id(&self) -> TransactionId {
        self.group.id
    }

    /// How it is isolated from others.
    pub fn isolation(&self) -> Isolation {
        self.group.options.isolation
    }

    /// Whether it cannot undo unawares what others have changed; see
    /// [`TransactionOptions::check_conflicts`].
    pub fn checks_conflicts(&self) -> bool {
        self.group.options.check_conflicts || self.isolation() == Isolation::Serializable
    }

    /// The transaction as listed.
    pub fn info(&self) -> TransactionInfo {
        self.group.info()
    }

    /// Who began it; see [`TransactionOptions::user`].
    pub fn user(&self) -> Option<u32> {
        self.group.options.user
    }

    /// Whether it survives a restart; see [`TransactionOptions::durable`].
    pub fn is_durable(&self) -> bool {
        self.group.options.durable
    }

    /// What a durable one has changed before this call is on disk when it returns. Of another one
    /// nothing is before its commit.
    pub fn sync(&self) -> Result<()> {
        if self.is_durable() { self.group.db.sync() } else { Ok(()) }
    }

    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, OpenState>> {
        self.group.used()?;
        let state = self.group.state.read();
        if state.open.is_none() { Err(self.group.ended(&state)) } else { Ok(state) }
    }

    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, OpenState>> {
        self.group.used()?;
        let state = self.group.state.write();
        if state.open.is_none() { Err(self.group.ended(&state)) } else { Ok(state) }
    }

    /// The value of `key` as the transaction sees it.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.lock(dict, KeyRangeRef::key(key), Mode::Shared)?;
        let state = self.read()?;
        let Some(open) = &state.open else { return Ok(None) };
        match open.write_set.get(dict, key)? {
            Lookup::Found(_, value) => return read(&self.group.db.cache, value).map(Some),
            Lookup::Deleted(_) => return Ok(None),
            Lookup::Updated { .. } => {
                return self.beneath(open).with(open.write_set.clone()).get(dict, key);
            }
            Lookup::Absent => {}
        }
        match &open.base {
            Some(view) => view.get(dict, key),
            None => self.group.db.versions.get(dict, key),
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
                    return self.view()?.scan(dict, start, end, limit);
                }
            }
        }
    }

    /// A cursor over `[start, end)` as the transaction sees it now; a serializable one locks all of
    /// the range.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        self.lock_range(dict, start, end, false)?;
        self.view()?.cursor(dict, start, end)
    }

    /// What the transaction sees now, for as long as the view is held. Reading it locks nothing.
    pub fn view(&self) -> Result<View> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.group.id)) };
        Ok(self.beneath(open).with(open.write_set.clone()))
    }

    /// What it reads below its own changes.
    fn beneath(&self, open: &Open) -> View {
        match &open.base {
            Some(view) => view.clone(),
            None => self.group.db.versions.view(),
        }
    }

    pub(super) fn base(&self) -> Result<View> {
        let state = self.read()?;
        state
            .open
            .as_ref()
            .map(|open| self.beneath(open))
            .ok_or(Error::NoTransaction(self.group.id))
    }

    /// Begins changes that are to be made all at once or not at all.
    pub fn nested_batch(&self) -> Result<NestedBatch> {
        let state = self.read()?;
        let Some(open) = &state.open else { return Err(Error::NoTransaction(self.group.id)) };
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
        if self.group.options.durable {
            let mut batch = Batch::new();
            batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            return self.apply(batch);
        }
        self.lock(dict, KeyRangeRef::key(key), Mode::Exclusive)?;
        self.change(dict, SpaceClaim::default(), None, |write_set| write_set.put(dict, key, value))
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

    /// Deletes every key in `[start, end)`.
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
        let Valid { mut changes, claim, pin } = self.validate(batch)?;
        self.fold_updates(&mut changes)?;
        match changes.first() {
            Some((dict, _)) => self
                .change(*dict, claim, Some(&changes), |write_set| write_set.write(&changes, pin)),
            None => Ok(()),
        }
    }

    /// The changes of a batch, locked where need be.
    pub(super) fn validate(&self, batch: Batch) -> Result<Valid> {
        self.group.db.writable()?;
        drop(self.read()?);
        let db = &self.group.db;
        // As it is now: a dictionary may have been made since the transaction began.
        let valid = db.commits.validate(&db.versions.load(), batch)?;
        self.lock_changes(&valid.changes)?;
        Ok(valid)
    }

    /// Makes changes that were validated, and whose places are held. Their dictionaries may be gone
    /// by now, which the commit refuses.
    pub(super) fn make(&self, changes: &Ops, claim: SpaceClaim) -> Result<()> {
        match changes.first() {
            Some((dict, _)) => self.change(*dict, claim, Some(changes), |write_set| {
                write_set.write(changes, Default::default())
            }),
            None => self.read().map(|_| ()),
        }
    }

    /// Makes room and then changes. `dict`: one that is changed; `logged`: the changes, when they
    /// may have to be logged.
    fn change(
        &self,
        dict: DictionaryId,
        claim: SpaceClaim,
        logged: Option<&Ops>,
        change: impl FnOnce(&mut WriteSet),
    ) -> Result<()> {
        let db = &self.group.db;
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.group.id)) };
        if !open.write_set.trees.contains_key(&dict) {
            // The first change there: is there such a dictionary?
            db.versions.load().tree(dict).map(|_| ())?;
        }
        let share = db.transactions.share(db);
        if open.write_set.is_full(share) {
            db.writable()?;
            match open.spill(db) {
                // Deletions are still taken, by a share above what one batch may have left: they
                // lead to space in the end.
                Err(Error::NoSpace)
                    if claim.removes
                        && open.write_set.memory() < 2 * share + db.shares.largest_record => {}
                Err(Error::NoSpace) if db.want_space() => open.spill(db)?,
                spilled => spilled?,
            }
        }
        db.transactions.make_room(db, self.group.id);
        if let (Some(log), Some(changes)) = (open.log, logged) {
            db.log(log, open.write_set.at, changes, claim)?;
        }
        change(&mut open.write_set);
        self.group.count(open);
        Ok(())
    }

    /// Marks the state that the transaction has now.
    pub fn savepoint(&self) -> Result<Savepoint> {
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.group.id)) };
        if open.savepoints.len() >= MAX_SAVEPOINTS {
            return Err(Error::Limit(format!(
                "the transaction has {MAX_SAVEPOINTS} savepoints: go back to an earlier one, or commit"
            )));
        }
        let id = open.next_savepoint;
        open.next_savepoint += 1;
        let parts = open.write_set.mark();
        open.savepoints.push(Mark { id, parts, at: open.write_set.at });
        Ok(Savepoint { id })
    }

    /// Undoes what was changed since a savepoint, which stays; those made after it are gone.
    pub fn rollback_to(&self, savepoint: &Savepoint) -> Result<()> {
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.group.id)) };
        let Some(at) = open.savepoints.iter().position(|mark| mark.id == savepoint.id) else {
            return Err(Error::Invalid(
                "the savepoint is gone: the transaction went back to an earlier one".into(),
            ));
        };
        open.savepoints.truncate(at + 1);
        let mark = &open.savepoints[at];
        if let Some(log) = open.log {
            self.group.db.cut_log(log, mark.at)?;
        }
        open.write_set.cut(&mark.parts);
        // What comes next goes into parts of its own again.
        open.write_set.mark();
        self.group.count(open);
        Ok(())
    }

    /// Makes its changes part of the store, all of them at once. It has ended then, also when this
    /// fails with [`Error::Conflict`]; after [`Error::NoSpace`] and the like it is still there.
    pub fn commit(&self, durability: Durability) -> Result<()> {
        self.group.used()?;
        self.group.commit(durability)
    }

    /// Whether others have by now changed something that it has changed or that its commit depends
    /// on, so that it would find a conflict if nothing can join the two. Never so for a
    /// serializable one.
    pub fn is_outdated(&self) -> Result<bool> {
        let (write_set, claims) = match &self.read()?.open {
            Some(open) if open.base.is_some() => {
                (open.write_set.clone(), super::reads::claims(open, self.group.since))
            }
            _ => return Ok(false),
        };
        let db = &self.group.db;
        match super::reads::check(db, &claims, 0) {
            Err(Error::Conflict { .. }) => return Ok(true),
            checked => checked?,
        }
        super::conflicts::any(db, &write_set, self.group.since)
    }

    /// Ends it without a trace.
    pub fn abort(&self) {
        self.group.abort();
    }
}

//! The state that all handles of a transaction share until it ends.

use env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::sync::RwLock;
use vt_tree::Value;

use super::nested::{Nested, Within};
use super::options::{TransactionInfo, TransactionOptions};
use super::reads::{Dependency, ReadSet};
use super::registry::Transactions;
use crate::commit::CommitEnv;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::{Op, Ops};
use crate::read::view::View;
use crate::write_set::WriteSet;

/// Aborts a transaction that is not detached when its last handle is dropped.
pub(super) struct Last(Arc<TransactionState>);

impl Last {
    /// Returns the instance that all handles of a transaction share. It is created with the first
    /// handle.
    pub(super) fn of(transaction: &Arc<TransactionState>) -> Arc<Last> {
        let mut handles = transaction.handles.lock();
        handles.upgrade().unwrap_or_else(|| {
            let last = Arc::new(Last(transaction.clone()));
            *handles = Arc::downgrade(&last);
            last
        })
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        if !self.0.options.detached {
            self.0.end("its last handle was dropped");
        }
    }
}

/// The state that all handles of a transaction share.
pub(crate) struct TransactionState {
    pub(super) id: TransactionId,
    pub(super) options: TransactionOptions,
    /// The enclosing transaction, if this one is nested.
    pub(super) within: Option<Within>,
    pub(super) registry: Arc<Transactions>,
    /// When it began and when it was last used, by the store's clock.
    pub(super) begun: Duration,
    pub(super) used_nanos: AtomicU64,
    /// Number of its uses that may take longer than its idle limit (`in_use`).
    pub(super) uses: AtomicUsize,
    /// When it began or was resumed, in seconds since 1970.
    pub(super) begun_at: u64,
    /// A weak reference to the instance of [`Last`] that all handles share.
    handles: env::sync::Mutex<std::sync::Weak<Last>>,
    /// The number of the newest commit when it began.
    pub(super) since: u64,
    pub(super) state: RwLock<OpenState>,
    /// The number of changes, the memory and the bytes of runs when they were last measured.
    /// Listings read this, so that they need not wait for a call or a commit.
    size: env::sync::Mutex<(u64, u64, u64)>,
    /// Memory of its changes as included in the total of all transactions.
    pub(super) held: AtomicUsize,
    /// Bytes that its changes take, in memory and in runs.
    taken: AtomicU64,
    /// The part of them that its clone has in common with others, see
    /// [`TransactionState::compare`].
    shared: AtomicU64,
    /// The reason why the transaction must not continue, if there is one. Every call checks it; it
    /// is set without waiting for a call in progress.
    pub(super) doomed: env::sync::Mutex<Option<String>>,
    /// Dictionaries that are checked for conflicts whatever the options say.
    pub(super) checked: env::sync::Mutex<Vec<DictionaryId>>,
}

pub(super) struct OpenState {
    /// `None` if the transaction has ended.
    pub open: Option<Open>,
    /// The reason why it has ended, if its user did not end it.
    pub why: Option<String>,
}

pub(super) struct Open {
    /// The state that it reads below its own changes. `None` means the newest committed state.
    pub base: Option<View>,
    pub write_set: WriteSet,
    /// Counts the changes that produce a new [`super::Revision`].
    pub(super) revision: u64,
    /// The keys, in addition to its own changes, that others must not have changed when it commits.
    pub reads: Arc<ReadSet>,
    /// Read sets of other transactions, with which this one has joined, that others must not have
    /// changed.
    pub depends: Vec<Dependency>,
    /// The dictionary that its changes are logged in, if it is durable.
    pub log: Option<DictionaryId>,
    /// The transaction began before the store was opened. The state that it reads is older than the
    /// number from which conflicts are detected, so changes of others are also detected by
    /// comparing values.
    pub by_value: bool,
    pub(super) savepoints: Vec<Mark>,
    pub(super) next_savepoint: u64,
    /// Open transactions within this one.
    pub(super) nested: Vec<Nested>,
    /// `removed` is set if data was deleted since the changes were last merged to meet a limit;
    /// `gathered` is the number of bytes that they took after that merge.
    pub(super) removed: bool,
    pub(super) gathered: u64,
    /// The version, by its number, and the bytes of runs that were compared last
    /// ([`TransactionState::compare`]).
    pub(super) compared: (u64, u64),
}

/// The bytes of changes.
#[derive(Clone, Copy)]
pub(super) struct More {
    /// All bytes of keys and values.
    all: u64,
    /// The bytes without values that have a place already, which are put by reference.
    written: u64,
}

impl More {
    pub(super) fn of(bytes: u64) -> More {
        More { all: bytes, written: bytes }
    }

    pub(super) fn of_changes(changes: &Ops) -> More {
        let mut more = More::of(0);
        for (_, op) in changes {
            more.all += op.bytes() as u64;
            more.written += match op {
                Op::Put(key, Value::Extent(_)) => key.len() as u64,
                _ => op.bytes() as u64,
            };
        }
        more
    }
}

/// A marked state, to roll back to or for a nested transaction to read.
pub(super) struct Mark {
    pub(super) id: u64,
    pub(super) parts: BTreeMap<DictionaryId, usize>,
    /// The number of changes made before the mark.
    pub(super) at: u64,
}

impl Open {
    pub(super) fn new(base: Option<View>) -> Open {
        Open {
            base,
            write_set: WriteSet::default(),
            revision: 0,
            reads: Arc::default(),
            depends: Vec::new(),
            log: None,
            by_value: false,
            savepoints: Vec::new(),
            next_savepoint: 1,
            nested: Vec::new(),
            removed: false,
            gathered: 0,
            compared: (0, 0),
        }
    }

    /// Returns the state that it reads below its own changes.
    pub(super) fn beneath(&self, registry: &Transactions) -> View {
        match &self.base {
            Some(view) => view.clone(),
            None => registry.engine.versions.view(),
        }
    }

    /// Returns the state that it sees, its own changes included.
    pub(super) fn view(&self, registry: &Transactions) -> View {
        self.beneath(registry).with(self.write_set.clone())
    }

    /// Marks the current state.
    pub(super) fn mark(&mut self) -> Mark {
        let id = self.next_savepoint;
        self.next_savepoint += 1;
        Mark { id, parts: self.write_set.mark(), at: self.write_set.at }
    }

    /// Returns how many parts of each dictionary must not be merged with later ones, because
    /// savepoints and nested transactions have marks between them.
    pub(super) fn kept(&self) -> BTreeMap<DictionaryId, usize> {
        let nested = self.nested.iter().map(|nested| &nested.mark);
        let mut kept = BTreeMap::new();
        for mark in self.savepoints.last().into_iter().chain(nested) {
            for (dict, parts) in &mark.parts {
                let most: &mut usize = kept.entry(*dict).or_default();
                *most = (*most).max(*parts);
            }
        }
        kept
    }

    /// Spills before a change if much is in memory. `removes` tells that the change adds no data.
    pub(super) fn make_room(&mut self, registry: &Transactions, removes: bool) -> Result<()> {
        let share = registry.share();
        if !self.write_set.is_full(share) {
            return Ok(());
        }
        registry.engine.health.writable()?;
        match self.spill(registry) {
            // Deletions are still accepted, with one share of memory more than one batch may have
            // left, since they free space in the end.
            Err(Error::NoSpace)
                if removes
                    && self.write_set.memory() < 2 * share + registry.shares.largest_record =>
            {
                Ok(())
            }
            Err(Error::NoSpace)
                if registry.parts.admission.want_space()
                    || registry.parts.admission.place_held() =>
            {
                self.spill(registry)
            }
            spilled => spilled,
        }
    }

    /// Writes the changes in memory to runs. Parts with a mark between them stay apart.
    pub(super) fn spill(&mut self, registry: &Transactions) -> Result<()> {
        let keep = self.kept();
        self.write_set.spill(&registry.engine, &keep)
    }
}

impl TransactionState {
    pub(super) fn new(
        registry: Arc<Transactions>,
        id: TransactionId,
        options: TransactionOptions,
        within: Option<Within>,
        now: Duration,
        since: u64,
        open: Open,
    ) -> Arc<TransactionState> {
        let begun_at = registry.engine.env.exact_wall().as_secs();
        Arc::new(TransactionState {
            id,
            options: TransactionOptions {
                detached: options.detached || options.durable,
                ..options
            },
            within,
            registry,
            begun: now,
            begun_at,
            used_nanos: AtomicU64::new(now.as_nanos() as u64),
            uses: AtomicUsize::new(0),
            handles: env::sync::Mutex::default(),
            since,
            state: RwLock::new(OpenState { open: Some(open), why: None }),
            size: env::sync::Mutex::default(),
            held: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            doomed: env::sync::Mutex::default(),
            checked: env::sync::Mutex::default(),
        })
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

    /// Begins a call: notes the time of use, and fails if the transaction is doomed.
    pub(super) fn used(&self) -> Result<()> {
        let now = self.registry.now().as_nanos() as u64;
        // The transactions around it are in use as well.
        self.and_around().for_each(|used| used.used_nanos.store(now, Ordering::Relaxed));
        match &*self.doomed.lock() {
            Some(why) => Err(self.aborted(why)),
            None => Ok(()),
        }
    }

    /// Records its size for listings.
    pub(super) fn measure(&self, state: &OpenState) {
        let size = state.open.as_ref().map(|open| {
            (open.write_set.at, open.write_set.memory() as u64, open.write_set.run_bytes())
        });
        *self.size.lock() = size.unwrap_or_default();
    }

    /// Updates the share of this transaction in the memory of all transactions.
    pub(super) fn count(&self, open: &mut Open) {
        let now = open.write_set.estimate();
        let before = self.held.swap(now, Ordering::Relaxed);
        // The difference may be negative, and wraps then.
        self.registry.held.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        if self.is_limited() {
            let in_runs = open.write_set.run_bytes();
            self.taken.store(now as u64 + in_runs, Ordering::Relaxed);
            if in_runs != open.compared.1 {
                // Other runs have to be compared again when the limit is reached.
                open.compared = (0, 0);
                self.shared.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Compares its runs with the states that its clone has in common with others. Values that the
    /// transaction has put by reference from one of them take nothing of the clone's limit. This
    /// visits the runs of the clone, so it is done when the limit seems to be reached, and once for
    /// the same runs.
    pub(super) fn compare(&self, open: &mut Open) {
        if !self.is_of_limited_clone() {
            return;
        }
        let registry = &self.registry;
        let in_runs = open.write_set.run_bytes();
        let now = (registry.engine.versions.load().installed, in_runs);
        if open.compared != now {
            let uses = open.write_set.run_uses();
            let alone = registry.parts.snapshotter.alone_in_addition(&self.options.branch, &uses);
            self.shared.store(in_runs.saturating_sub(alone), Ordering::Relaxed);
            open.compared = now;
        }
    }

    /// Returns whether its changes count against a limit of its own, of an enclosing transaction,
    /// or of its clone.
    pub(super) fn is_limited(&self) -> bool {
        self.and_around().any(|one| one.options.limit.is_some()) || self.is_of_limited_clone()
    }

    /// Returns the bytes that its changes take.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns its own limit and those of the enclosing transactions, each with the bytes that
    /// count against it: those of the limited transaction and of the nested ones from there down to
    /// this one.
    fn limits(&self) -> impl Iterator<Item = (TransactionId, u64, u64)> + '_ {
        let mut taken = 0u64;
        self.and_around().filter_map(move |one| {
            taken = taken.saturating_add(one.taken());
            one.options.limit.map(|limit| (one.id, limit, taken))
        })
    }

    /// Returns whether the clone that it belongs to has a limit.
    pub(super) fn is_of_limited_clone(&self) -> bool {
        self.registry.parts.snapshotter.is_limited(&self.options.branch)
    }

    /// Returns the bytes that its changes take, as its own limit and as that of its clone count
    /// them.
    pub(super) fn more(&self) -> More {
        let all = self.taken();
        More { all, written: all.saturating_sub(self.shared.load(Ordering::Relaxed)) }
    }

    /// Returns the bytes that it and all enclosing transactions take, which are not yet counted in
    /// the clone.
    fn taken_in_all(&self) -> u64 {
        self.and_around().map(|one| one.more().written).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that its changes may still take, or `None` if no limit applies.
    pub(super) fn room(&self) -> Option<u64> {
        let of_clone = self.registry.parts.snapshotter.branch_limit(&self.options.branch);
        let of_clone = of_clone.map(|limit| limit.room().saturating_sub(self.taken_in_all()));
        self.limits().map(|(_, limit, taken)| limit.saturating_sub(taken)).chain(of_clone).min()
    }

    /// Fails if more bytes would exceed its limit, the limit of an enclosing transaction, or that
    /// of the clone. Values that are put by reference count in the first two.
    pub(super) fn check_limit(&self, more: More) -> Result<()> {
        match self.limits().find(|(_, limit, taken)| taken.saturating_add(more.all) > *limit) {
            Some((id, limit, _)) => Err(Error::OverLimit { id, limit }),
            None => {
                let more = self.taken_in_all().saturating_add(more.written);
                self.registry.parts.snapshotter.check_limit(&self.options.branch, more)
            }
        }
    }

    /// Fails if a change of `more` bytes would exceed a limit even after the changes so far have
    /// been merged.
    pub(super) fn admit(&self, open: &mut Open, more: impl FnOnce() -> More) -> Result<()> {
        if !self.is_limited() {
            return Ok(());
        }
        let more = more();
        if self.check_limit(more).is_ok() {
            return Ok(());
        }
        self.compare(open);
        if self.check_limit(more).is_ok() {
            return Ok(());
        }
        self.give_back(open)?;
        self.compare(open);
        self.check_limit(more)
    }

    /// Merges its changes if that is likely to free space: after deletions, or when it has grown by
    /// an eighth. A caller at the limit tries this with each change; the condition bounds the
    /// number of times that a byte is merged.
    pub(super) fn give_back(&self, open: &mut Open) -> Result<()> {
        let grown = self.taken().saturating_sub(open.gathered);
        if !open.removed && grown <= self.taken() / 8 {
            return Ok(());
        }
        let keep = open.kept();
        open.write_set.gather(&self.registry.engine, &keep)?;
        self.count(open);
        (open.removed, open.gathered) = (false, self.taken());
        Ok(())
    }

    /// Spills the changes in memory for the sake of other transactions, unless a call is in
    /// progress.
    pub(super) fn make_small(&self) -> Result<()> {
        let Some(mut state) = self.state.try_write() else { return Ok(()) };
        let Some(open) = &mut state.open else { return Ok(()) };
        open.spill(&self.registry)?;
        self.count(open);
        Ok(())
    }

    pub(super) fn info(&self) -> TransactionInfo {
        let now = self.registry.now();
        if let Some(state) = self.state.try_read() {
            self.measure(&state);
        }
        let (changes, memory, run_bytes) = *self.size.lock();
        TransactionInfo {
            id: self.id,
            isolation: self.options.isolation,
            within: self.options.within,
            branch: self.options.branch.clone(),
            label: self.options.label.clone(),
            durable: self.options.durable,
            age: now.saturating_sub(self.begun),
            idle: now.saturating_sub(Duration::from_nanos(self.used_nanos.load(Ordering::Relaxed))),
            changes,
            memory,
            run_bytes,
            limit: self.options.limit,
            limit_of_files: self.options.limit_of_files,
            waits_for: self.registry.parts.locks.waits_for(self.id.0).map(TransactionId),
        }
    }
}

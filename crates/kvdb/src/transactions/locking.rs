//! Where locks meet transactions and commits: a serializable transaction locks what it reads and
//! writes before it does; a commit that holds no locks keeps clear of those that others hold.

use std::cell::Cell;
use std::time::Duration;

use vt_tree::KeyRange;

use super::handle::{Isolation, Transaction};
use crate::db::Kvdb;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::{Changes, Op};
use crate::locks::{Blocked, KeyRangeRef, LockError, Locks, Mode, Owner};

/// How long a commit without locks waits for those of others.
const PLAIN_WAIT: Duration = Duration::from_secs(10);
/// Why one ended that an older one has wounded.
pub(super) const WOUNDED: &str = "an older transaction needed what it had locked: begin it again";

thread_local! {
    static AT_ONCE: Cell<bool> = const { Cell::new(false) };
    static PAST: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Does `work`; commits made in it on this thread do not wait for serializable transactions that
/// hold what they want, but fail with [`Error::Locked`] at once, having changed nothing; a
/// transaction that was to commit is still open. For those who hold locks of their own that others
/// need: let go of these, wait, and try again.
pub fn at_once<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            AT_ONCE.set(self.0);
        }
    }
    let _before = Before(AT_ONCE.replace(true));
    work()
}

/// Past whose locks this thread commits to the store; see [`Transaction::past_its_locks`].
pub(crate) fn past() -> Option<u64> {
    PAST.get()
}

impl Kvdb {
    /// Whether a commit of `key` would have to wait for a serializable transaction now.
    pub fn is_locked(&self, dict: DictionaryId, key: &[u8]) -> bool {
        let locks = &self.db.0.locks;
        locks.any() && locks.try_guard([(dict, KeyRangeRef::key(key))], None).is_err()
    }
}

fn range_of(op: &Op) -> KeyRangeRef<'_> {
    match op {
        Op::DeleteRange(start, end) => KeyRangeRef::between(start, end),
        op => KeyRangeRef::key(op.key()),
    }
}

/// What changes touch.
pub(crate) fn ranges(
    changes: &Changes,
) -> impl Iterator<Item = (DictionaryId, KeyRangeRef<'_>)> + Clone {
    changes.iter().map(|(dict, op)| (*dict, range_of(op)))
}

/// The same of ranges that stand for themselves.
pub(crate) fn borrowed(
    ranges: &[(DictionaryId, KeyRange)],
) -> impl Iterator<Item = (DictionaryId, KeyRangeRef<'_>)> + Clone {
    ranges.iter().map(|(dict, range)| (*dict, range.into()))
}

fn held(holder: u64, waited: Duration) -> Error {
    Error::Locked(format!(
        "transaction {holder} holds what is wanted, and has not ended within {waited:?}: try again"
    ))
}

impl Transaction {
    /// Locks a key for the rest of a serializable transaction: against changes or, `exclusive`,
    /// against reads of others as well. Reading and writing do so by themselves; this is for doing
    /// it ahead of time. No effect under snapshot isolation.
    pub fn lock_key(&self, dict: DictionaryId, key: &[u8], exclusive: bool) -> Result<()> {
        self.lock(
            dict,
            KeyRangeRef::key(key),
            if exclusive { Mode::Exclusive } else { Mode::Shared },
        )
    }

    /// The same for `[start, end)`; an empty `end` is the end of the dictionary.
    pub fn lock_range(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
        exclusive: bool,
    ) -> Result<()> {
        let range = if end.is_empty() {
            KeyRangeRef::starting_at(start)
        } else {
            KeyRangeRef::between(start, end)
        };
        self.lock(dict, range, if exclusive { Mode::Exclusive } else { Mode::Shared })
    }

    /// Does `work`; commits to the store itself (not in a transaction) made in it on this thread do
    /// not mind the locks of this transaction. For changes that came before a lock and must not
    /// wait for its end: they must be committed before anything that is locked so is read, or the
    /// transaction has not read what it has locked.
    pub fn past_its_locks<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Before(Option<u64>);
        impl Drop for Before {
            fn drop(&mut self) {
                PAST.set(self.0);
            }
        }
        let _before = Before(PAST.replace(Some(self.group.id.0)));
        work()
    }

    pub(super) fn lock(
        &self,
        dict: DictionaryId,
        range: KeyRangeRef<'_>,
        mode: Mode,
    ) -> Result<()> {
        if self.isolation() == Isolation::Snapshot {
            return Ok(());
        }
        let (db, id, timeout) = (&self.group.db, self.group.id.0, self.group.options.lock_timeout);
        let wound = |victim: u64| {
            if let Some(group) = db.transactions.find(TransactionId(victim)) {
                db.transactions.lose(group.id);
                group.end(WOUNDED);
            }
        };
        db.locks.lock(id, dict, range, mode, timeout, &wound).map_err(|e| match e {
            LockError::TimedOut { holder } => held(holder, timeout),
            LockError::Wounded { .. } => {
                self.group.end(WOUNDED);
                self.group.aborted(WOUNDED)
            }
            LockError::Ended => self.group.ended(&self.group.state.read()),
        })
    }

    pub(super) fn lock_changes(&self, changes: &Changes) -> Result<()> {
        match self.isolation() {
            Isolation::Snapshot => Ok(()),
            Isolation::Serializable => changes
                .iter()
                .try_for_each(|(dict, op)| self.lock(*dict, range_of(op), Mode::Exclusive)),
        }
    }
}

impl Database {
    /// Waits until no lock lies on what a commit changes. `blocked`: by whom it was stopped.
    pub(crate) fn wait_for_locks<'a>(
        &self,
        ranges: impl Iterator<Item = (DictionaryId, KeyRangeRef<'a>)> + Clone,
        owner: Option<u64>,
    ) -> Result<()> {
        let patience = patience();
        let free = self.locks.wait_until_free(ranges, owner, patience);
        free.map_err(|Blocked { holder }| held(holder, patience))
    }

    /// Locks keys for something that is no transaction and takes more than a moment. It is the
    /// youngest of all: it waits for everybody.
    pub(crate) fn lock_alone(
        &self,
        dict: DictionaryId,
        range: KeyRangeRef<'_>,
    ) -> Result<Alone<'_>> {
        let alone = self.begin_alone(u64::MAX);
        // Nobody is younger but another one like this, which lets go soon.
        alone.lock(dict, range, &|_| ())?;
        Ok(alone)
    }

    /// Locks whole dictionaries. It is the oldest of all: transactions that have locked something
    /// there are aborted, for that reason.
    pub(crate) fn lock_before_all(
        &self,
        dicts: impl IntoIterator<Item = DictionaryId>,
        why: &str,
    ) -> Result<Alone<'_>> {
        let alone = self.begin_alone(0);
        for dict in dicts {
            alone.lock(dict, KeyRangeRef::starting_at(b""), &|victim| {
                if let Some(group) = self.transactions.find(TransactionId(victim)) {
                    group.end(why);
                }
            })?;
        }
        Ok(alone)
    }

    fn begin_alone(&self, age: u64) -> Alone<'_> {
        let alone = Alone { locks: &self.locks, id: self.transactions.number() };
        self.locks.begin(Owner { id: alone.id, age });
        // Commits that have seen no locks come to their end.
        drop(self.pipeline.lock());
        alone
    }
}

/// What [`Database::lock_alone`] and [`Database::lock_before_all`] have locked, as long as this
/// lives.
pub(crate) struct Alone<'a> {
    locks: &'a Locks,
    id: u64,
}

impl Alone<'_> {
    fn lock(&self, dict: DictionaryId, range: KeyRangeRef<'_>, wound: &dyn Fn(u64)) -> Result<()> {
        let patience = patience();
        self.locks.lock(self.id, dict, range, Mode::Exclusive, patience, wound).map_err(|e| match e
        {
            LockError::TimedOut { holder } | LockError::Wounded { by: holder } => {
                held(holder, patience)
            }
            LockError::Ended => held(self.id, patience),
        })
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.locks.release(self.id);
    }
}

fn patience() -> Duration {
    if AT_ONCE.get() { Duration::ZERO } else { PLAIN_WAIT }
}

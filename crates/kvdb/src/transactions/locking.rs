//! Connects locks with transactions and commits: a serializable transaction locks each key before
//! it reads or writes it; a commit that holds no locks avoids the keys that others have locked.

use std::collections::BTreeSet;

use super::handle::Transaction;
use super::options::Isolation;
use super::registry::Transactions;
use crate::commit::locking::{held, patience, range_of};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::Ops;
use crate::locks::{KeyRangeRef, LockError, Locks, Mode, Owner};

/// The reason with which a transaction is aborted for an older one.
pub(super) const WOUNDED: &str = "an older transaction needed what it had locked: begin it again";

fn full(limit: usize) -> Error {
    Error::Limit(format!(
        "locks of serializable transactions take {} KiB, all that memory allows: lock ranges \
         instead of single keys, end other transactions, or give the store more memory",
        limit >> 10
    ))
}

impl Transaction {
    /// Locks a key until a serializable transaction ends: against changes by others or, if
    /// `exclusive` is set, against reads as well. Reads and writes take their locks themselves;
    /// this is for locking ahead of time. It has no effect under snapshot isolation.
    ///
    /// Locks take at most a sixteenth of the store's memory. At that limit the locks of a
    /// transaction that has many are coarsened to ranges, which lock the keys in between as well.
    /// If others have locked some of these keys, its next lock fails with [`Error::Limit`].
    pub fn lock_key(&self, dict: DictionaryId, key: &[u8], exclusive: bool) -> Result<()> {
        self.lock(
            dict,
            KeyRangeRef::key(key),
            if exclusive { Mode::Exclusive } else { Mode::Shared },
        )
    }

    /// Locks `[start, end)` like [`Transaction::lock_key`]; an empty `end` is the end of the
    /// dictionary.
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

    /// Runs `work`; commits to the store itself (not to a transaction) that it makes on this thread
    /// ignore the locks of this transaction. This is for changes that were made before a lock was
    /// taken and must not wait for its end: they must be committed before the locked keys are read,
    /// or the transaction would read stale values of keys that it has locked.
    pub fn past_its_locks<T>(&self, work: impl FnOnce() -> T) -> T {
        crate::commit::locking::past_locks_of(self.shared.id.0, work)
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
        let (registry, id, timeout) =
            (&self.shared.registry, self.shared.id.0, self.shared.options.lock_timeout);
        let wound = |victim: u64| {
            if let Some(transaction) = registry.find(TransactionId(victim)) {
                registry.lose(transaction.id);
                transaction.end(WOUNDED);
            }
        };
        registry.parts.locks.lock(id, dict, range, mode, timeout, &wound).map_err(|e| match e {
            LockError::TimedOut { holder } => held(holder, timeout),
            LockError::Wounded { .. } => {
                self.shared.end(WOUNDED);
                self.shared.aborted(WOUNDED)
            }
            LockError::Full { limit } => full(limit),
            LockError::Ended => self.shared.ended(&self.shared.state.read()),
        })
    }

    pub(super) fn lock_changes(&self, changes: &Ops) -> Result<()> {
        match self.isolation() {
            Isolation::Snapshot => Ok(()),
            Isolation::Serializable => changes
                .iter()
                .try_for_each(|(dict, op)| self.lock(*dict, range_of(op), Mode::Exclusive)),
        }
    }
}

impl Transactions {
    /// Returns whether a commit that writes `key` would now have to wait for a serializable
    /// transaction.
    pub(crate) fn is_locked(&self, dict: DictionaryId, key: &[u8]) -> bool {
        let locks = &self.parts.locks;
        locks.any() && locks.try_guard([(dict, KeyRangeRef::key(key))], None).is_err()
    }

    /// Locks keys for a longer operation that is not a transaction. Its owner counts as younger
    /// than all others, so it waits for all of them.
    pub(crate) fn lock_alone(
        &self,
        dict: DictionaryId,
        range: KeyRangeRef<'_>,
    ) -> Result<Alone<'_>> {
        let alone = self.begin_alone(u64::MAX);
        // Only another owner of this kind is younger, and it releases its locks soon.
        alone.lock(dict, range, &|_| ())?;
        Ok(alone)
    }

    /// Locks whole dictionaries. Its owner counts as older than all others, so transactions that
    /// hold locks in these dictionaries are aborted with the reason `why`.
    pub(crate) fn lock_before_all(
        &self,
        dicts: &BTreeSet<DictionaryId>,
        why: &str,
    ) -> Result<Alone<'_>> {
        let alone = self.begin_alone(0);
        for &dict in dicts {
            alone.lock(dict, KeyRangeRef::starting_at(b""), &|victim| {
                if let Some(transaction) = self.find(TransactionId(victim)) {
                    transaction.end(why);
                }
            })?;
        }
        Ok(alone)
    }

    fn begin_alone(&self, age: u64) -> Alone<'_> {
        let alone = Alone { locks: &self.parts.locks, id: self.number() };
        self.parts.locks.begin(Owner { id: alone.id, age });
        // Wait for commits that began before there were any locks.
        self.parts.commits.await_visible();
        alone
    }
}

/// Holds the locks that [`Transactions::lock_alone`] and [`Transactions::lock_before_all`] have
/// taken, until it is dropped.
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
            LockError::Full { limit } => full(limit),
            LockError::Ended => held(self.id, patience),
        })
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.locks.release(self.id);
    }
}

//! Where locks meet transactions and commits: a serializable transaction locks what it reads and
//! writes before it does; a commit that holds no locks keeps clear of those that others hold.

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

/// Why one ended that an older one has wounded.
pub(super) const WOUNDED: &str = "an older transaction needed what it had locked: begin it again";

fn full(limit: usize) -> Error {
    Error::Limit(format!(
        "locks of serializable transactions take {} KiB, all that memory allows: lock ranges \
         instead of single keys, end other transactions, or give the store more memory",
        limit >> 10
    ))
}

impl Transaction {
    /// Locks a key for the rest of a serializable transaction: against changes or, `exclusive`,
    /// against reads of others as well. Reading and writing do so by themselves; this is for doing
    /// it ahead of time. No effect under snapshot isolation.
    ///
    /// Locks take memory, a sixteenth of the store's at the most. Where that is reached, a
    /// transaction with many comes to lock keys between them as well; where others have locked
    /// these, its next lock is [`Error::Limit`].
    pub fn lock_key(&self, dict: DictionaryId, key: &[u8], exclusive: bool) -> Result<()> {
        self.lock(
            dict,
            KeyRangeRef::key(key),
            if exclusive { Mode::Exclusive } else { Mode::Shared },
        )
    }

    /// Locks `[start, end)` as [`Transaction::lock_key`] does a key; an empty `end` is the end of
    /// the dictionary.
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
    /// Whether a commit of `key` would have to wait for a serializable transaction now.
    pub(crate) fn is_locked(&self, dict: DictionaryId, key: &[u8]) -> bool {
        let locks = &self.parts.locks;
        locks.any() && locks.try_guard([(dict, KeyRangeRef::key(key))], None).is_err()
    }

    /// Locks keys for something that is no transaction and takes more than a moment. It is the
    /// youngest of all: it waits for all others.
    pub(crate) fn lock_alone(
        &self,
        dict: DictionaryId,
        range: KeyRangeRef<'_>,
    ) -> Result<Alone<'_>> {
        let alone = self.begin_alone(u64::MAX);
        // Only another one like this is younger, and it releases its locks soon.
        alone.lock(dict, range, &|_| ())?;
        Ok(alone)
    }

    /// Locks whole dictionaries. It is the oldest of all: transactions that have locked something
    /// there are aborted, for that reason.
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
        // Commits that have seen no locks come to their end.
        self.parts.commits.drain();
        alone
    }
}

/// What [`Transactions::lock_alone`] and [`Transactions::lock_before_all`] have locked, as long as
/// this lives.
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

//! Commits and the locks of serializable transactions: a commit that holds no locks waits for locks
//! of others on the keys that it changes.

use std::cell::Cell;
use std::time::Duration;

use vt_tree::KeyRange;

use crate::commit::Committer;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::locks::{Blocked, KeyRangeRef};

/// The longest time that a commit without locks waits for locks of others.
const PLAIN_WAIT: Duration = Duration::from_secs(10);
thread_local! {
    static WITHOUT_LOCK_WAITS: Cell<bool> = const { Cell::new(false) };
    static PAST: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work`. Commits that it makes on this thread do not wait for locks of serializable
/// transactions: they fail with [`Error::Locked`] at once and change nothing, and a transaction
/// that was to commit stays open. This is for callers that hold locks of their own which others
/// need: they release these, wait, and try again.
pub fn without_lock_waits<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            WITHOUT_LOCK_WAITS.set(self.0);
        }
    }
    let _before = Before(WITHOUT_LOCK_WAITS.replace(true));
    work()
}

/// Returns the transaction whose locks do not block commits of this thread; see
/// [`Transaction::past_its_locks`].
pub(crate) fn lock_owner() -> Option<u64> {
    PAST.get()
}

/// Runs `work`, in which the locks of transaction `id` do not block this thread's commits.
pub(crate) fn past_locks_of<T>(id: u64, work: impl FnOnce() -> T) -> T {
    struct Before(Option<u64>);
    impl Drop for Before {
        fn drop(&mut self) {
            PAST.set(self.0);
        }
    }
    let _before = Before(PAST.replace(Some(id)));
    work()
}

pub(crate) fn range_of(op: &Op) -> KeyRangeRef<'_> {
    match op {
        Op::DeleteRange(start, end) => KeyRangeRef::between(start, end),
        op => KeyRangeRef::key(op.key()),
    }
}

/// Returns the ranges that changes touch.
pub(crate) fn ranges(
    changes: &Ops,
) -> impl Iterator<Item = (DictionaryId, KeyRangeRef<'_>)> + Clone {
    changes.iter().map(|(dict, op)| (*dict, range_of(op)))
}

/// Borrows ranges in the form that [`ranges`] returns.
pub(crate) fn borrowed(
    ranges: &[(DictionaryId, KeyRange)],
) -> impl Iterator<Item = (DictionaryId, KeyRangeRef<'_>)> + Clone {
    ranges.iter().map(|(dict, range)| (*dict, range.into()))
}

pub(crate) fn held(holder: u64, waited: Duration) -> Error {
    Error::Locked(format!(
        "transaction {holder} holds what is wanted, and has not ended within {waited:?}: try again"
    ))
}

impl Committer {
    /// Waits until no lock of another owner covers a range that a commit changes. The error names
    /// the holder.
    pub(crate) fn wait_for_locks<'a>(
        &self,
        ranges: impl Iterator<Item = (DictionaryId, KeyRangeRef<'a>)> + Clone,
        owner: Option<u64>,
    ) -> Result<()> {
        let patience = patience();
        let free = self.locks.wait_until_free(ranges, owner, patience);
        free.map_err(|Blocked { holder }| held(holder, patience))
    }
}

pub(crate) fn patience() -> Duration {
    if WITHOUT_LOCK_WAITS.get() { Duration::ZERO } else { PLAIN_WAIT }
}

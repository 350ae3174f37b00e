//! Where commits meet the locks of serializable transactions: a commit that holds no locks keeps
//! clear of those that others hold.

use std::cell::Cell;
use std::time::Duration;

use vt_tree::KeyRange;

use crate::commit::CommitPipeline;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::locks::{Blocked, KeyRangeRef};

/// How long a commit without locks waits for those of others.
const PLAIN_WAIT: Duration = Duration::from_secs(10);
thread_local! {
    static WITHOUT_LOCK_WAITS: Cell<bool> = const { Cell::new(false) };
    static PAST: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Does `work`; commits made in it on this thread do not wait for serializable transactions that
/// hold what they want, but fail with [`Error::Locked`] at once, having changed nothing; a
/// transaction that was to commit is still open. For those who hold locks of their own that others
/// need: let go of these, wait, and try again.
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

/// The transaction whose locks do not stop commits of this thread; see
/// [`Transaction::past_its_locks`].
pub(crate) fn lock_owner() -> Option<u64> {
    PAST.get()
}

/// Does `work`; this thread commits to the store past the locks of transaction `id`.
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

/// What changes touch.
pub(crate) fn ranges(
    changes: &Ops,
) -> impl Iterator<Item = (DictionaryId, KeyRangeRef<'_>)> + Clone {
    changes.iter().map(|(dict, op)| (*dict, range_of(op)))
}

/// Ranges, as [`ranges`] gives those of changes.
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

impl CommitPipeline {
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
}

pub(crate) fn patience() -> Duration {
    if WITHOUT_LOCK_WAITS.get() { Duration::ZERO } else { PLAIN_WAIT }
}

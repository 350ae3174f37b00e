//! The lock table of serializable transactions. The table has shared and exclusive locks on keys
//! and key ranges, which are held until their owner ends.
//!
//! Deadlocks cannot occur, because older owners win (wound-wait). An owner waits for an older owner
//! that holds a conflicting lock, or that itself waits for a conflicting lock. An owner that needs
//! a lock of a younger owner *wounds* the younger owner: a wounded owner can only end, and the
//! older owner waits for this end. Owners therefore wait only for older owners, or for wounded
//! owners, which do not wait themselves, so a cycle is impossible. An owner that is retried with
//! its old age eventually becomes the oldest, so starvation is impossible, too.
//!
//! Commits that do not belong to a serializable transaction take no locks. They count as younger
//! than all owners: they check whether any lock conflicts with their changes, wait if one does, and
//! exclude new locks while they are applied ([`Locks::try_guard`]).
//!
//! - `range` has borrowed ranges of keys.
//! - `fragments` has the locks in one dictionary.
//! - `range_set` has the ranges that one owner holds in a dictionary.
//! - `table` has all locks and waiting calls, and decides on requests.
//!
//! One mutex guards the table. This mutex is the innermost lock of the database, so no other lock
//! is taken while it is held.

mod fragments;
mod range;
mod range_set;
mod table;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod thread_tests;

use env::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use env::schedule::now;
use env::sync::{Condvar, Mutex, MutexGuard};

use crate::dictionary::DictionaryId;
pub(crate) use range::{KeyRangeRef, RangeEnd};
pub(crate) use range_set::RangeSet;
use table::{Table, Verdict, Want};

/// An owner of locks: a serializable transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The number of the owner, which is never reused.
    pub id: u64,
    /// The age of the owner. A smaller number means an older owner. A retried owner keeps the age
    /// of its first attempt.
    pub age: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// The reason why a lock was not granted. Unless the owner has ended, it keeps all locks that it
/// already had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// An older owner needs a lock that this owner holds, so this owner must end.
    Wounded { by: u64 },
    /// An older owner, or a wounded owner that has not ended, held the lock until the caller's
    /// timeout.
    TimedOut { holder: u64 },
    /// The locks have reached their memory limit, which is `limit` bytes.
    Full { limit: usize },
    /// The owner never began, or its locks were released when it ended.
    Ended,
}

/// The error that reports that a lock of an owner conflicts with a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub holder: u64,
}

pub(crate) struct Locks {
    table: Mutex<Table>,
    owners: AtomicUsize,
}

/// A guard that prevents locks from being granted or released while it exists.
pub(crate) struct Guard<'a> {
    _table: MutexGuard<'a, Table>,
}

impl Locks {
    /// Makes a lock table that takes at most about `bytes` bytes. At this limit, the locks of
    /// owners with many locks are coarsened to ranges that include the keys in between. If other
    /// owners prevent this, an owner with many locks gets no further locks.
    pub(crate) fn new(bytes: usize) -> Locks {
        Locks { table: Mutex::new(Table::new(bytes)), owners: AtomicUsize::new(0) }
    }

    /// Registers `owner`, which can request locks from now on.
    ///
    /// A commit for which [`Locks::any`] returned `false` just before may still be in progress when
    /// this returns. Before the owner reads anything, the caller must wait for commits that have
    /// begun; it is sufficient to acquire and release the lock under which they are applied.
    pub(crate) fn begin(&self, owner: Owner) {
        if self.table.lock().begin(owner) {
            self.owners.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns `true` if any owner is registered. If this returns `false`, the caller need not
    /// check any lock.
    pub(crate) fn any(&self) -> bool {
        self.owners.load(Ordering::SeqCst) > 0
    }

    /// Acquires a lock on all keys of `range` for `owner`, until `owner` is released. Keys that
    /// `owner` already holds in this mode or exclusively are granted at once. A shared lock is
    /// upgraded if an exclusive lock is requested. Any number of threads may call this for one
    /// owner.
    ///
    /// Waits for older owners for at most `timeout`. Younger owners with conflicting locks are
    /// wounded: `wound` is called with the number of each such owner, on this thread and without
    /// holding the table's mutex. `wound` should make the owner end and be released, at once or
    /// soon. Waiting calls of the wounded owner return an error even before that.
    pub(crate) fn lock(
        &self,
        owner: u64,
        dict: DictionaryId,
        range: KeyRangeRef,
        mode: Mode,
        timeout: Duration,
        wound: &dyn Fn(u64),
    ) -> Result<(), LockError> {
        let want = Want { dict, range, exclusive: mode == Mode::Exclusive };
        let mut table = self.table.lock();
        let mut waiting: Option<(u64, Arc<Condvar>)> = None;
        let mut deadline = None;
        let result = loop {
            let on = match table.judge(owner, &want) {
                Err(e) => break Err(e),
                Ok(Verdict::Granted) => break Ok(()),
                Ok(Verdict::Wait { on }) => on,
            };
            let (ticket, bell) = waiting.get_or_insert_with(|| table.queue(owner, &want));
            table.waits_for(*ticket, on);
            let wounded = table.wound_for(owner, &want);
            if !wounded.is_empty() {
                MutexGuard::unlocked(&mut table, || wounded.into_iter().for_each(wound));
                continue;
            }
            // If the deadline is beyond the range of the clock, wait without a limit.
            let deadline = *deadline.get_or_insert_with(|| now().checked_add(timeout));
            if deadline.is_some_and(|deadline| now() >= deadline) {
                break Err(LockError::TimedOut { holder: on });
            }
            match deadline {
                Some(deadline) => drop(bell.wait_for(&mut table, deadline.saturating_sub(now()))),
                None => bell.wait(&mut table),
            }
        };
        if let Some((ticket, _)) = waiting {
            table.leave(ticket, result.is_ok());
        }
        result
    }

    /// Returns the owner that has wounded `owner`.
    #[cfg(test)]
    pub(crate) fn wounded(&self, owner: u64) -> Option<u64> {
        self.table.lock().wounded(owner)
    }

    /// Returns the owner for which a call of `owner` waits.
    pub(crate) fn waits_for(&self, owner: u64) -> Option<u64> {
        self.table.lock().waited_for(owner)
    }

    /// Ends `owner`, releases all of its locks, and makes its waiting calls return.
    pub(crate) fn release(&self, owner: u64) {
        if self.table.lock().release(owner) {
            self.owners.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns a guard for a commit of these changes if no owner other than `except` has a
    /// conflicting lock. No conflicting lock is granted while the guard exists.
    pub(crate) fn try_guard<'a>(
        &'a self,
        changes: impl IntoIterator<Item = (DictionaryId, KeyRangeRef<'a>)>,
        except: Option<u64>,
    ) -> Result<Guard<'a>, Blocked> {
        let table = self.table.lock();
        match table.blocker(changes, except) {
            None => Ok(Guard { _table: table }),
            Some(holder) => Err(Blocked { holder }),
        }
    }

    /// Waits for at most `timeout` until no owner other than `except` has a conflicting lock. A new
    /// conflicting lock may be granted directly after that.
    pub(crate) fn wait_until_free<'a, I>(
        &self,
        changes: I,
        except: Option<u64>,
        timeout: Duration,
    ) -> Result<(), Blocked>
    where
        I: IntoIterator<Item = (DictionaryId, KeyRangeRef<'a>)> + Clone,
    {
        let deadline = now().checked_add(timeout);
        let mut table = self.table.lock();
        let mut waiting: Option<(u64, Arc<Condvar>)> = None;
        let result = loop {
            let Some(holder) = table.blocker(changes.clone(), except) else { break Ok(()) };
            if deadline.is_some_and(|deadline| now() >= deadline) {
                break Err(Blocked { holder });
            }
            let (ticket, bell) = waiting.get_or_insert_with(|| table.queue_without_want());
            table.waits_for(*ticket, holder);
            match deadline {
                Some(deadline) => drop(bell.wait_for(&mut table, deadline.saturating_sub(now()))),
                None => bell.wait(&mut table),
            }
        };
        if let Some((ticket, _)) = waiting {
            table.leave(ticket, false);
        }
        result
    }

    /// Returns the number of calls that currently wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DICT: DictionaryId = DictionaryId(1);
    const NOW: Duration = Duration::ZERO;
    const EVER: Duration = Duration::MAX;

    /// Makes a lock table with the owners 1, 2 and 3. Owner 1 is the oldest.
    fn three() -> Locks {
        let locks = Locks::new(usize::MAX);
        (1..=3).for_each(|id| locks.begin(Owner { id, age: id }));
        locks
    }

    fn lock(locks: &Locks, owner: u64, key: &str, mode: Mode) -> Result<(), LockError> {
        lock_range(locks, owner, KeyRangeRef::key(key.as_bytes()), mode, NOW)
    }

    fn many(locks: &Locks, owner: u64, mode: Mode) -> Result<(), LockError> {
        (0..10_000).try_for_each(|n| lock(locks, owner, &format!("k{n:05}"), mode))
    }

    #[test]
    fn who_has_locked_very_many_keys_has_locked_those_between_them() {
        for mode in [Mode::Shared, Mode::Exclusive] {
            let locks = Locks::new(100 << 10);
            (1..=3).for_each(|id| locks.begin(Owner { id, age: id }));
            assert_eq!(many(&locks, 2, mode), Ok(()));
            let (fragments, ranges) = locks.table.lock().size();
            assert!(fragments < 500 && ranges < 500, "{fragments} fragments, {ranges} ranges");
            let timed_out = Err(LockError::TimedOut { holder: 2 });
            assert_eq!(lock(&locks, 3, "k00000-", Mode::Exclusive), timed_out);
            assert_eq!(lock(&locks, 3, "l", Mode::Exclusive), Ok(()));
            locks.release(2);
            locks.release(3);
            assert_eq!(locks.table.lock().size(), (0, 0));
            // The memory of the released locks is no longer counted.
            assert_eq!(many(&locks, 1, mode), Ok(()));
        }
    }

    #[test]
    fn who_cannot_have_the_keys_between_gets_no_more_than_there_is_memory_for() {
        let locks = Locks::new(100 << 10);
        (1..=3).for_each(|id| locks.begin(Owner { id, age: id }));
        let outcome = (0..1000).find_map(|n| {
            let both = [1, 2].map(|id| lock(&locks, id, &format!("k{n:05}-{id}"), Mode::Exclusive));
            both.into_iter().find_map(Result::err)
        });
        let full = LockError::Full { limit: 100 << 10 };
        assert_eq!(outcome, Some(full));
        assert_eq!(lock(&locks, 1, "k00001-1", Mode::Exclusive), Ok(()), "it holds that");
        assert_eq!(lock(&locks, 1, "m", Mode::Exclusive), Err(full));
        assert_eq!(lock(&locks, 3, "m", Mode::Exclusive), Ok(()), "one with few locks goes on");
        locks.release(2);
        assert_eq!(many(&locks, 1, Mode::Exclusive), Ok(()));
    }

    /// Requests a lock, with a transaction manager that aborts wounded owners at once.
    fn lock_range(
        locks: &Locks,
        owner: u64,
        range: KeyRangeRef,
        mode: Mode,
        timeout: Duration,
    ) -> Result<(), LockError> {
        locks.lock(owner, DICT, range, mode, timeout, &|wounded| locks.release(wounded))
    }

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            env::thread::yield_now();
        }
    }

    #[test]
    fn shared_locks_go_together_and_exclusive_ones_alone() {
        let locks = three();
        assert_eq!(lock(&locks, 1, "k", Mode::Shared), Ok(()));
        assert_eq!(lock(&locks, 2, "k", Mode::Shared), Ok(()));
        assert_eq!(lock(&locks, 3, "k", Mode::Exclusive), Err(LockError::TimedOut { holder: 1 }));
        assert_eq!(lock(&locks, 3, "k2", Mode::Exclusive), Ok(()));
        let other = DictionaryId(2);
        assert_eq!(
            locks.lock(3, other, KeyRangeRef::key(b"k"), Mode::Exclusive, NOW, &|_| ()),
            Ok(())
        );
    }

    #[test]
    fn a_key_is_locked_by_every_range_that_holds_it() {
        let locks = three();
        assert_eq!(
            lock_range(&locks, 1, KeyRangeRef::between(b"d", b"f"), Mode::Exclusive, NOW),
            Ok(())
        );
        let timed_out = Err(LockError::TimedOut { holder: 1 });
        assert_eq!(lock(&locks, 2, "d", Mode::Shared), timed_out);
        assert_eq!(lock(&locks, 2, "e\0", Mode::Shared), timed_out);
        assert_eq!(lock(&locks, 2, "f", Mode::Shared), Ok(()));
        assert_eq!(lock(&locks, 2, "c", Mode::Shared), Ok(()));
        assert_eq!(
            lock_range(&locks, 2, KeyRangeRef::starting_at(b""), Mode::Shared, NOW),
            timed_out
        );
        assert_eq!(
            lock_range(&locks, 2, KeyRangeRef::between(b"e", b"e"), Mode::Shared, NOW),
            Ok(()),
            "an empty range"
        );
    }

    #[test]
    fn an_owner_meets_no_lock_of_its_own() {
        let locks = three();
        assert_eq!(
            lock_range(&locks, 2, KeyRangeRef::between(b"a", b"m"), Mode::Shared, NOW),
            Ok(())
        );
        assert_eq!(lock(&locks, 2, "c", Mode::Exclusive), Ok(()), "an upgrade");
        assert_eq!(lock(&locks, 2, "c", Mode::Shared), Ok(()), "and that holds for reading");
        assert_eq!(
            lock(&locks, 3, "c", Mode::Shared),
            Err(LockError::TimedOut { holder: 2 }),
            "and stays exclusive"
        );
        assert_eq!(lock(&locks, 3, "d", Mode::Shared), Ok(()));
    }

    #[test]
    fn the_older_wounds_the_younger_which_then_has_ended() {
        let locks = three();
        assert_eq!(lock(&locks, 3, "a", Mode::Exclusive), Ok(()));
        assert_eq!(lock(&locks, 2, "b", Mode::Shared), Ok(()));
        assert_eq!(
            lock_range(&locks, 1, KeyRangeRef::starting_at(b""), Mode::Exclusive, NOW),
            Ok(())
        );
        assert_eq!(lock(&locks, 3, "z", Mode::Shared), Err(LockError::Ended));
        assert_eq!(lock(&locks, 2, "z", Mode::Shared), Err(LockError::Ended));
        locks.release(1);
        assert!(!locks.any());
    }

    #[test]
    fn a_wounded_owner_gets_nothing_more_and_keeps_what_it_has_until_it_ends() {
        let locks = three();
        assert_eq!(lock(&locks, 2, "k", Mode::Exclusive), Ok(()));
        let deaf = |_| ();
        let k = KeyRangeRef::key(b"k");
        assert_eq!(
            locks.lock(1, DICT, k, Mode::Shared, NOW, &deaf),
            Err(LockError::TimedOut { holder: 2 })
        );
        assert_eq!(locks.wounded(2), Some(1));
        assert_eq!(
            lock(&locks, 2, "k", Mode::Shared),
            Err(LockError::Wounded { by: 1 }),
            "even what it holds"
        );
        assert_eq!(lock(&locks, 3, "k", Mode::Shared), Err(LockError::TimedOut { holder: 2 }));
        locks.release(2);
        assert_eq!(lock(&locks, 1, "k", Mode::Shared), Ok(()));
    }

    #[test]
    fn of_two_that_read_and_both_want_to_write_the_older_does() {
        let locks = three();
        assert_eq!(lock(&locks, 1, "k", Mode::Shared), Ok(()));
        assert_eq!(lock(&locks, 2, "k", Mode::Shared), Ok(()));
        assert_eq!(lock(&locks, 2, "k", Mode::Exclusive), Err(LockError::TimedOut { holder: 1 }));
        assert_eq!(lock(&locks, 1, "k", Mode::Exclusive), Ok(()));
        assert_eq!(lock(&locks, 2, "k", Mode::Exclusive), Err(LockError::Ended));
    }

    #[test]
    fn the_younger_waits_until_the_older_ends() {
        let locks = three();
        assert_eq!(lock(&locks, 1, "k", Mode::Exclusive), Ok(()));
        env::thread::scope(|scope| {
            let waits =
                scope.spawn(|| lock_range(&locks, 2, KeyRangeRef::key(b"k"), Mode::Shared, EVER));
            until(|| locks.waiting() == 1);
            assert_eq!((locks.waits_for(2), locks.waits_for(1)), (Some(1), None));
            locks.release(1);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        assert_eq!((locks.waiting(), locks.waits_for(2)), (0, None));
    }

    #[test]
    fn whoever_waits_is_woken_by_its_wound() {
        let locks = three();
        assert_eq!(lock(&locks, 1, "a", Mode::Exclusive), Ok(()));
        assert_eq!(lock(&locks, 3, "b", Mode::Exclusive), Ok(()));
        env::thread::scope(|scope| {
            let waits =
                scope.spawn(|| lock_range(&locks, 3, KeyRangeRef::key(b"a"), Mode::Shared, EVER));
            until(|| locks.waiting() == 1);
            // The wounded owner ends itself after its call has returned.
            let older = scope
                .spawn(|| locks.lock(2, DICT, KeyRangeRef::key(b"b"), Mode::Shared, EVER, &|_| ()));
            assert_eq!(waits.join().unwrap(), Err(LockError::Wounded { by: 2 }));
            locks.release(3);
            assert_eq!(older.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_waiting_exclusive_lock_goes_before_later_shared_ones_of_younger_owners() {
        let locks = three();
        assert_eq!(lock(&locks, 1, "k", Mode::Shared), Ok(()));
        env::thread::scope(|scope| {
            let waits = scope
                .spawn(|| lock_range(&locks, 2, KeyRangeRef::key(b"k"), Mode::Exclusive, EVER));
            until(|| locks.waiting() == 1);
            assert_eq!(lock(&locks, 3, "k", Mode::Shared), Err(LockError::TimedOut { holder: 2 }));
            assert_eq!(lock(&locks, 3, "j", Mode::Shared), Ok(()), "what it does not want is free");
            locks.release(1);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn those_behind_one_that_gives_up_waiting_go_on() {
        let locks = three();
        assert_eq!(lock(&locks, 1, "k", Mode::Shared), Ok(()));
        env::thread::scope(|scope| {
            let second = scope
                .spawn(|| lock_range(&locks, 2, KeyRangeRef::key(b"k"), Mode::Exclusive, EVER));
            until(|| locks.waiting() == 1);
            let third =
                scope.spawn(|| lock_range(&locks, 3, KeyRangeRef::key(b"k"), Mode::Shared, EVER));
            until(|| locks.waiting() == 2);
            locks.release(2);
            assert_eq!(second.join().unwrap(), Err(LockError::Ended));
            assert_eq!(third.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_commit_without_locks_passes_where_nobody_has_any() {
        let locks = three();
        assert_eq!(
            lock_range(&locks, 1, KeyRangeRef::between(b"d", b"f"), Mode::Shared, NOW),
            Ok(())
        );
        let change = |key| [(DICT, KeyRangeRef::key(key))];
        assert!(locks.try_guard(change(b"c"), None).is_ok());
        assert_eq!(locks.try_guard(change(b"e"), None).err(), Some(Blocked { holder: 1 }));
        assert!(locks.try_guard(change(b"e"), Some(1)).is_ok(), "its own do not count");
        assert!(locks.try_guard([(DictionaryId(2), KeyRangeRef::key(b"e"))], None).is_ok());
        let all = [(DICT, KeyRangeRef::key(b"c")), (DICT, KeyRangeRef::starting_at(b"e"))];
        assert_eq!(locks.try_guard(all, None).err(), Some(Blocked { holder: 1 }));
        assert_eq!(locks.wait_until_free(all, None, NOW), Err(Blocked { holder: 1 }));
        env::thread::scope(|scope| {
            let waits = scope.spawn(|| locks.wait_until_free(all, None, EVER));
            until(|| locks.waiting() == 1);
            locks.release(1);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn no_lock_is_granted_beside_a_guard() {
        let locks = three();
        let guard = locks
            .try_guard([(DICT, KeyRangeRef::key(b"k"))], None)
            .unwrap_or_else(|_| panic!("nothing is held"));
        env::thread::scope(|scope| {
            let (asked, asks) = std::sync::mpsc::channel();
            let locks = &locks;
            scope.spawn(move || asked.send(lock(locks, 1, "k", Mode::Shared)).unwrap());
            assert!(asks.try_recv().is_err());
            drop(guard);
            assert_eq!(asks.recv().unwrap(), Ok(()));
        });
    }

    #[test]
    fn there_is_nothing_to_look_at_without_owners() {
        let locks = Locks::new(usize::MAX);
        assert!(!locks.any());
        locks.begin(Owner { id: 7, age: 1 });
        locks.begin(Owner { id: 7, age: 1 });
        assert!(locks.any());
        locks.release(7);
        locks.release(7);
        assert!(!locks.any());
        assert_eq!(lock(&locks, 7, "k", Mode::Shared), Err(LockError::Ended));
    }

    #[test]
    fn a_scan_key_by_key_leaves_one_range_behind() {
        let locks = three();
        let key = |i: u32| i.to_be_bytes();
        for i in 0..5000 {
            assert_eq!(
                lock_range(
                    &locks,
                    1,
                    KeyRangeRef::between(&key(i), &key(i + 1)),
                    Mode::Shared,
                    NOW
                ),
                Ok(())
            );
        }
        assert_eq!(locks.table.lock().size(), (1, 1));
    }
}

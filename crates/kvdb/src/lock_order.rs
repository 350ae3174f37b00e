//! Defines the order in which the engine's locks are taken, and checks it.
//!
//! A thread that holds one of these locks may wait only for locks of later [`Rank`]s, so two
//! threads that follow the order cannot deadlock. With debug assertions, each lock compares its
//! rank with the ranks of the locks that the thread holds, and panics if the order is wrong, even
//! without contention. Without debug assertions, the types only wrap the locks of [`env::sync`].
//!
//! `try_lock` never waits and is not checked. A lock that `try_lock` has taken counts as held.
//!
//! All other locks of the engine are leaves: no lock is taken while one of them is held. This rule
//! has exceptions. The lock of a transaction's own state comes before all ranks. So does the lock
//! of an index of `read::ranks`, which is taken under a ranked lock only by `try_lock`. A commit
//! takes the locks of `locks` under [`Rank::Pipeline`]. A reader takes a ranked lock only to wait
//! until the commits that it sees are recorded for such an index.

use std::ops::{Deref, DerefMut};

use env::sync;

/// The ranked locks, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Held by a thread that reclaims space.
    Reclaiming,
    /// Held shared for a step of a merge, and exclusively for work that must not overlap with a
    /// merge.
    Merges,
    /// Held while a flush is in progress.
    Flush,
    /// Held while snapshots and branches, and thus their names, are made or dropped.
    Names,
    /// Guards the journal's position on the device.
    Writer,
    /// Guards the journal's buffer and the next commit number.
    Pipeline,
    /// Guards the durable state of the store's structure.
    Manifest,
    /// Guards the recent commits, in which transactions look for conflicts.
    Recent,
    /// Held while the current version is changed.
    Version,
    /// Held while the snapshot set is updated to match the manifest.
    Snapshots,
    /// Guards the generations that wait for their flush.
    Sealed,
}

#[cfg(debug_assertions)]
mod check {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        /// The ranks of the locks that this thread holds.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The place of a lock in the order.
    pub(super) struct Place(Rank);

    /// Marks the lock at this place as held by the current thread.
    pub(super) struct Held(Rank);

    impl Place {
        pub(super) fn new(rank: Rank) -> Place {
            Place(rank)
        }

        /// Panics if this thread may not wait for the lock at this place.
        pub(super) fn may_wait(&self) {
            let rank = self.0;
            if let Some(held) = HELD.with_borrow(|held| held.iter().copied().max())
                && held >= rank
            {
                panic!("lock order: {rank:?} is waited for while {held:?} is held");
            }
        }

        pub(super) fn taken(&self) -> Held {
            HELD.with_borrow_mut(|held| held.push(self.0));
            Held(self.0)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().position(|rank| *rank == self.0) {
                    held.swap_remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod check {
    use super::Rank;

    pub(super) struct Place;
    pub(super) struct Held;

    impl Place {
        pub(super) fn new(_: Rank) -> Place {
            Place
        }

        pub(super) fn may_wait(&self) {}

        pub(super) fn taken(&self) -> Held {
            Held
        }
    }
}

use check::{Held, Place};

/// A mutex with a rank.
pub(crate) struct Mutex<T> {
    place: Place,
    mutex: sync::Mutex<T>,
}

/// The guard of a ranked lock; `G` is the guard of the inner lock.
pub(crate) struct Ranked<G> {
    guard: G,
    _held: Held,
}

/// The guard of a locked [`Mutex`].
pub(crate) type MutexGuard<'a, T> = Ranked<sync::MutexGuard<'a, T>>;
/// The guard of a part of the data in a locked [`Mutex`].
pub(crate) type MappedMutexGuard<'a, T> = Ranked<sync::MappedMutexGuard<'a, T>>;
/// The guard of an [`RwLock`] that is locked for reading.
pub(crate) type RwLockReadGuard<'a, T> = Ranked<sync::RwLockReadGuard<'a, T>>;
/// The guard of an [`RwLock`] that is locked for writing.
pub(crate) type RwLockWriteGuard<'a, T> = Ranked<sync::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { place: Place::new(rank), mutex: sync::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.place.may_wait();
        Ranked { guard: self.mutex.lock(), _held: self.place.taken() }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.mutex.try_lock()?;
        Some(Ranked { guard, _held: self.place.taken() })
    }
}

impl<'a, T> MutexGuard<'a, Option<T>> {
    /// Returns the guard of the value, or `None` if there is no value.
    pub(crate) fn some(self) -> Option<MappedMutexGuard<'a, T>> {
        let guard = sync::MutexGuard::try_map(self.guard, Option::as_mut).ok()?;
        Some(Ranked { guard, _held: self._held })
    }
}

/// A readers-writer lock with a rank.
pub(crate) struct RwLock<T> {
    place: Place,
    lock: sync::RwLock<T>,
}

impl<T> RwLock<T> {
    pub(crate) fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { place: Place::new(rank), lock: sync::RwLock::new(value) }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.place.may_wait();
        Ranked { guard: self.lock.read(), _held: self.place.taken() }
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.place.may_wait();
        Ranked { guard: self.lock.write(), _held: self.place.taken() }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (outer, inner) = (Mutex::new(Rank::Flush, ()), Mutex::new(Rank::Manifest, Some(1)));
        let first = outer.lock();
        let second = inner.lock().some().expect("there is a value");
        assert_eq!(*second, 1);
        drop(first);
        drop(second);
        drop((inner.lock(), outer.try_lock().expect("it is free")));
        drop((outer.lock(), inner.lock()));
    }

    #[test]
    #[should_panic(expected = "lock order: Flush is waited for while Manifest is held")]
    fn a_lock_of_an_earlier_rank_panics() {
        let (outer, inner) = (Mutex::new(Rank::Flush, ()), Mutex::new(Rank::Manifest, Some(1)));
        let _inner = inner.lock().some();
        let _outer = outer.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Merges is waited for while Merges is held")]
    fn a_lock_of_the_same_rank_panics() {
        let gate = RwLock::new(Rank::Merges, ());
        let _one = gate.read();
        let _two = gate.read();
    }

    #[test]
    #[should_panic(expected = "lock order: Writer is waited for while Sealed is held")]
    fn what_an_attempt_has_taken_is_held() {
        let (writer, sealed) = (Mutex::new(Rank::Writer, ()), Mutex::new(Rank::Sealed, ()));
        let _sealed = sealed.try_lock().expect("it is free");
        let _writer = writer.lock();
    }
}

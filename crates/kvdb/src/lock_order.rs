//! The order in which the engine's locks are taken, as a table that is checked.
//!
//! A thread that holds one of these locks may wait only for locks of later [`Rank`]s. Two threads
//! that take locks in this order cannot wait for each other. With debug assertions each lock checks
//! this when it is taken, by the ranks that its thread holds, and panics when the order is wrong,
//! whether or not another thread is in the way. Without them the types are the locks of
//! [`env::sync`] and nothing else.
//!
//! `try_lock` never waits and is not checked, but what it has taken counts as held.
//!
//! All other locks of the engine are leaves: no lock is taken while one of them is held. A
//! transaction's own state comes before all ranks, and so does an index of `read::ranks`, which is
//! only tried under a ranked lock; a commit takes `locks` under [`Rank::Pipeline`]. A reader takes
//! no ranked lock, but to wait until what it sees is noted for such an index.

use std::ops::{Deref, DerefMut};

use env::sync;

/// The ranked locks, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A thread reclaims space.
    Reclaiming,
    /// Merges: shared for a step of one, alone for work that must find none.
    Merges,
    /// A flush is under way.
    Flush,
    /// Names of snapshots and branches come and go.
    Names,
    /// The journal's position on the device.
    Writer,
    /// The journal's buffer and the next commit's number.
    Pipeline,
    /// What is durable of the store's structure.
    Manifest,
    /// The commits that conflicts are found in.
    Recent,
    /// The change of the current version.
    Version,
    /// The snapshots are brought in line with the manifest.
    Snapshots,
    /// The generations that wait for their flush.
    Sealed,
}

#[cfg(debug_assertions)]
mod check {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        /// The ranks that this thread holds.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The place of a lock in the order.
    pub(super) struct Place(Rank);

    /// The lock at this place is held by the thread that made this.
    pub(super) struct Held(Rank);

    impl Place {
        pub(super) fn new(rank: Rank) -> Place {
            Place(rank)
        }

        /// Panics when this thread may not wait for the lock at this place.
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

/// The guard of a ranked lock; `G` is the guard of the lock inside.
pub(crate) struct Ranked<G> {
    guard: G,
    _held: Held,
}

/// The guard of a locked [`Mutex`].
pub(crate) type MutexGuard<'a, T> = Ranked<sync::MutexGuard<'a, T>>;
/// The guard of a part of the data of a locked [`Mutex`].
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
    /// The guard of the value, if there is one.
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

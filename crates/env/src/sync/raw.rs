//! The raw locks, which wrap the raw locks of `parking_lot`. A simulated thread takes a lock by
//! `try_lock`, with scheduling points between the attempts.

use lock_api::GuardNoSend;

use crate::schedule;

pub struct RawMutex(parking_lot::RawMutex);

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// Takes a lock by repeated attempts, and waits at the address of the lock between attempts.
fn take<T>(of: &T, what: &'static str, mut attempt: impl FnMut() -> bool) {
    schedule::point();
    while !attempt() {
        schedule::wait(what, address(of), None);
    }
}

// SAFETY: the `parking_lot` lock inside provides the exclusion: `lock` returns only once that lock
// is taken, by `lock` or by a successful `try_lock`, and `unlock` forwards to it.
unsafe impl lock_api::RawMutex for RawMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait asks for this form")]
    const INIT: RawMutex = RawMutex(parking_lot::RawMutex::INIT);
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        match schedule::simulated() {
            true => take(self, "mutex", || self.0.try_lock()),
            false => self.0.lock(),
        }
    }

    fn try_lock(&self) -> bool {
        schedule::point();
        self.0.try_lock()
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.0.unlock() };
        schedule::wake(address(self), usize::MAX);
    }

    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

pub struct RawRwLock(parking_lot::RawRwLock);

// SAFETY: the `parking_lot` lock inside provides the exclusion, as above.
unsafe impl lock_api::RawRwLock for RawRwLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait asks for this form")]
    const INIT: RawRwLock = RawRwLock(parking_lot::RawRwLock::INIT);
    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        match schedule::simulated() {
            true => take(self, "lock to read", || self.0.try_lock_shared()),
            false => self.0.lock_shared(),
        }
    }

    fn try_lock_shared(&self) -> bool {
        schedule::point();
        self.0.try_lock_shared()
    }

    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller holds the lock shared.
        unsafe { self.0.unlock_shared() };
        schedule::wake(address(self), usize::MAX);
    }

    fn lock_exclusive(&self) {
        match schedule::simulated() {
            true => take(self, "lock to write", || self.0.try_lock_exclusive()),
            false => self.0.lock_exclusive(),
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        schedule::point();
        self.0.try_lock_exclusive()
    }

    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller holds the lock exclusively.
        unsafe { self.0.unlock_exclusive() };
        schedule::wake(address(self), usize::MAX);
    }

    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    fn is_locked_exclusive(&self) -> bool {
        self.0.is_locked_exclusive()
    }
}

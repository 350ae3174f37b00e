//! The connections and cursors that the program has open. It has a number of each in the form of a
//! pointer, which is never followed: one that is closed, or was never opened, is an error and no
//! damage, and two threads that use one at once wait for each other.

use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number that was given out last. None is given out again.
static LAST: AtomicUsize = AtomicUsize::new(0);
/// Distance between numbers, so that each is aligned as a pointer is.
const STEP: usize = 16;

/// The connections that are open, or the cursors.
pub struct Open<T>(Mutex<BTreeMap<usize, Arc<Mutex<T>>>>);

/// Locks what no panic leaves half done: those of a call are caught under the lock.
pub fn lock<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Open<T> {
    pub const fn new() -> Open<T> {
        Open(Mutex::new(BTreeMap::new()))
    }

    /// Adds one, and returns what the program has for it, which is not null.
    pub fn add(&self, one: T) -> *mut T {
        let number = LAST.fetch_add(STEP, Ordering::Relaxed) + STEP;
        lock(&self.0).insert(number, Arc::new(Mutex::new(one)));
        without_provenance_mut(number)
    }

    /// Returns the one that the program means, if it is open.
    pub fn get(&self, handle: *const T) -> Option<Arc<Mutex<T>>> {
        lock(&self.0).get(&handle.addr()).cloned()
    }

    /// Closes the one that the program means, if it is open. It ends with the calls that use it.
    pub fn remove(&self, handle: *const T) -> Option<Arc<Mutex<T>>> {
        lock(&self.0).remove(&handle.addr())
    }
}

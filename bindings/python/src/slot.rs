//! Slots for objects that depend on an open store. A transaction, a snapshot, an iterator and an
//! open file each lie in a slot. The slot is emptied when the object or the store is closed, so
//! that no object of a closed store keeps its file locked.
//!
//! A forked child has a copy of everything except the threads, and its locks are in the state
//! that they had at the fork, perhaps held forever. The child must neither use the store nor
//! close it, because closing would write to the file on which the parent still works. So each use
//! checks the process first, and in a child the content of a slot is leaked instead of dropped.

use std::sync::Weak;

use parking_lot::{Mutex, MutexGuard};

use crate::failure::{Failure, Outcome};

/// The process to which an object belongs.
#[derive(Clone, Copy, Debug)]
pub struct Owner(u32);

impl Owner {
    /// Returns this process as the owner.
    pub fn current() -> Owner {
        Owner(std::process::id())
    }

    /// Returns whether this process was forked from the process to which the object belongs.
    pub fn is_another(self) -> bool {
        std::process::id() != self.0
    }

    /// Returns an error in a forked child.
    pub fn check(self) -> Outcome<()> {
        if self.is_another() { Err(Failure::Forked(self.0)) } else { Ok(()) }
    }
}

/// A value that is dropped when the store is closed.
pub struct Slot<T> {
    owner: Owner,
    what: &'static str,
    value: Mutex<Option<T>>,
}

impl<T> Slot<T> {
    /// Makes a slot. `what` is the name of the value in errors, as in "the iterator".
    pub fn new(what: &'static str, value: T) -> Slot<T> {
        Slot { owner: Owner::current(), what, value: Mutex::new(Some(value)) }
    }

    /// Locks the value, which is `None` once the slot has been closed.
    pub fn lock(&self) -> Outcome<MutexGuard<'_, Option<T>>> {
        self.owner.check()?;
        Ok(self.value.lock())
    }

    /// Returns a copy of the value.
    pub fn get(&self) -> Outcome<T>
    where
        T: Clone,
    {
        self.lock()?.clone().ok_or(Failure::Closed(self.what))
    }

    /// Takes the value. The slot is closed afterwards.
    pub fn take(&self) -> Outcome<Option<T>> {
        Ok(self.lock()?.take())
    }

    /// Returns whether the slot has a value.
    pub fn is_open(&self) -> bool {
        !self.owner.is_another() && self.value.lock().is_some()
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        if self.owner.is_another() {
            std::mem::forget(self.value.get_mut().take());
        }
    }
}

/// A slot of any type, in the form in which the store closes it.
pub trait Closing: Send + Sync {
    /// Drops the value of the slot.
    fn close(&self);
}

impl<T: Send> Closing for Slot<T> {
    fn close(&self) {
        // The value is dropped after the lock has been released.
        drop(self.take());
    }
}

/// The slots of a store.
#[derive(Default)]
pub struct Slots(Mutex<(Vec<Weak<dyn Closing>>, usize)>);

impl Slots {
    /// Registers a slot that is closed together with the store.
    pub fn add(&self, slot: Weak<dyn Closing>) {
        let mut slots = self.0.lock();
        let (all, limit) = &mut *slots;
        if all.len() >= *limit {
            all.retain(|slot| slot.strong_count() > 0);
            *limit = (2 * all.len()).max(64);
        }
        all.push(slot);
    }

    /// Closes all slots.
    pub fn close(&self) {
        let all = std::mem::take(&mut self.0.lock().0);
        all.iter().filter_map(Weak::upgrade).for_each(|slot| slot.close());
    }
}

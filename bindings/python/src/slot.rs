//! What hangs on an open store. A transaction, a snapshot, an iterator and an open file each lie in
//! a slot. It is emptied when the object is closed, and when the store is, so that nothing of a
//! closed store keeps its file locked.
//!
//! A child that was forked off has a copy of everything but the threads, and its locks are as they
//! were at that moment, perhaps held for ever. It must neither use the store nor let go of it,
//! which would write to the file that the parent still works on. So each use looks at the process
//! first, and in a child what lies in a slot is forgotten instead of dropped.

use std::sync::Weak;

use parking_lot::{Mutex, MutexGuard};

use crate::failure::{Failure, Outcome};

/// The process that an object belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner(u32);

impl Owner {
    /// This process.
    pub fn current() -> Owner {
        Owner(std::process::id())
    }

    /// Whether this process was forked off the one that the object belongs to.
    pub fn is_another(self) -> bool {
        std::process::id() != self.0
    }

    /// Fails in a child that was forked off.
    pub fn check(self) -> Outcome<()> {
        if self.is_another() { Err(Failure::Forked(self.0)) } else { Ok(()) }
    }
}

/// A value that ends with the store.
pub struct Slot<T> {
    owner: Owner,
    what: &'static str,
    value: Mutex<Option<T>>,
}

impl<T> Slot<T> {
    /// `what` is how an error names it, as in "the iterator".
    pub fn new(what: &'static str, value: T) -> Slot<T> {
        Slot { owner: Owner::current(), what, value: Mutex::new(Some(value)) }
    }

    /// What lies in it, `None` once it was closed.
    pub fn lock(&self) -> Outcome<MutexGuard<'_, Option<T>>> {
        self.owner.check()?;
        Ok(self.value.lock())
    }

    /// A copy of what lies in it.
    pub fn get(&self) -> Outcome<T>
    where
        T: Clone,
    {
        self.lock()?.clone().ok_or(Failure::Closed(self.what))
    }

    /// What lay in it, which is closed from here on.
    pub fn take(&self) -> Outcome<Option<T>> {
        Ok(self.lock()?.take())
    }

    /// Whether something lies in it.
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

/// A slot of any type, as the store closes it.
pub trait Closing: Send + Sync {
    /// Lets go of what lies in it.
    fn close(&self);
}

impl<T: Send> Closing for Slot<T> {
    fn close(&self) {
        // Dropped behind the lock, not under it.
        drop(self.take());
    }
}

/// The slots of a store.
#[derive(Default)]
pub struct Slots(Mutex<(Vec<Weak<dyn Closing>>, usize)>);

impl Slots {
    /// Has a slot closed with the store.
    pub fn add(&self, slot: Weak<dyn Closing>) {
        let mut slots = self.0.lock();
        let (all, limit) = &mut *slots;
        if all.len() >= *limit {
            all.retain(|slot| slot.strong_count() > 0);
            *limit = (2 * all.len()).max(64);
        }
        all.push(slot);
    }

    /// Closes all of them.
    pub fn close(&self) {
        let all = std::mem::take(&mut self.0.lock().0);
        all.iter().filter_map(Weak::upgrade).for_each(|slot| slot.close());
    }
}

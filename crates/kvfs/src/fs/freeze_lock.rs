//! The freeze lock of a view: every call holds it shared, and a commit, rollback or snapshot takes
//! it exclusively, which freezes the view.
//!
//! A commit changes inodes of the mainline that may be in memory. A call working on such an inode
//! would continue with the stale state and write it. So a commit freezes the mainline: it waits
//! until no call is in progress, and admits calls again when memory agrees with the store. The view
//! of a transaction is frozen permanently when the transaction ends.
//!
//! In the lock order, the freeze lock precedes all other locks (see `inode`). A call takes the lock
//! once, and a nested call runs under the lock of the outer call.

use env::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::attr::ROOT;
use crate::error::{Error, Result};

#[derive(Default)]
pub(crate) struct FreezeLock {
    lock: RwLock<Ended>,
}

/// Records whether the view has ended.
#[derive(Default)]
pub(crate) struct Ended(bool);

/// The shared lock, which a call holds while it works on the view.
pub(crate) type CallGuard<'a> = RwLockReadGuard<'a, Ended>;

/// The exclusive lock, which is held while the view is frozen.
pub(crate) struct FreezeGuard<'a>(RwLockWriteGuard<'a, Ended>);

impl FreezeLock {
    /// Enters the view for a call. Fails with ESTALE if the view has ended.
    pub fn enter(&self) -> Result<CallGuard<'_>> {
        let call = self.lock.read();
        if call.0 { Err(Error::Stale(ROOT)) } else { Ok(call) }
    }

    /// Waits until no call is in progress. New calls wait until the guard is dropped.
    pub fn freeze(&self) -> FreezeGuard<'_> {
        FreezeGuard(self.lock.write())
    }
}

impl FreezeGuard<'_> {
    /// Ends the view: every later call fails with ESTALE.
    pub fn end(&mut self) {
        self.0.0 = true;
    }

    pub fn ended(&self) -> bool {
        self.0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_enters_a_view_that_is_over() {
        let lock = FreezeLock::default();
        drop(lock.enter().unwrap());
        let mut frozen = lock.freeze();
        assert!(!frozen.ended());
        frozen.end();
        drop(frozen);
        assert!(matches!(lock.enter(), Err(Error::Stale(_))));
    }
}

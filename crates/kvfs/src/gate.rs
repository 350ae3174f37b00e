//! The gate of a view: every call goes through it, and whoever must see the view at rest closes it.
//!
//! A commit changes inodes of the mainline that may be in memory there, and a call that works on
//! one of these would go on with what is no longer so, and write it. So a commit closes the
//! mainline's gate, which waits until no call is inside, and opens it when what is in memory is
//! what is in the store. The gate of a transaction's view is closed for good when the transaction
//! ends.
//!
//! It comes before all other locks (see `inode`). Nobody goes through it twice: a call that another
//! call makes is inside already.

use env::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::attr::ROOT;
use crate::error::{Error, Result};

#[derive(Default)]
pub(crate) struct Gate {
    lock: RwLock<Ended>,
}

/// Whether the view is over.
#[derive(Default)]
pub(crate) struct Ended(bool);

/// Held by a call for as long as it works on the view.
pub(crate) type Inside<'a> = RwLockReadGuard<'a, Ended>;

/// Held by whoever has the view to himself.
pub(crate) struct Closed<'a>(RwLockWriteGuard<'a, Ended>);

impl Gate {
    /// ESTALE when the view is over.
    pub fn enter(&self) -> Result<Inside<'_>> {
        let inside = self.lock.read();
        if inside.0 { Err(Error::Stale(ROOT)) } else { Ok(inside) }
    }

    /// Waits for every call to leave; those that come wait for the end of this.
    pub fn close(&self) -> Closed<'_> {
        Closed(self.lock.write())
    }
}

impl Closed<'_> {
    /// No call gets in any more.
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
    fn nobody_gets_into_a_view_that_is_over() {
        let gate = Gate::default();
        drop(gate.enter().unwrap());
        let mut closed = gate.close();
        assert!(!closed.ended());
        closed.end();
        drop(closed);
        assert!(matches!(gate.enter(), Err(Error::Stale(_))));
    }
}

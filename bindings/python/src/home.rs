//! The owner of a file system: a store that is open in this process, or a view of a store that a
//! server holds. Objects that work on files do not depend on the kind of owner.

use std::sync::Arc;

use kvfs::TransactionId;

use crate::failure::Outcome;
use crate::served::Served;
use crate::shared::Shared;
use crate::slot::Slot;

/// The owner of a file system.
#[derive(Clone)]
pub enum Home {
    Store(Arc<Shared>),
    Server(Arc<Served>),
}

impl Home {
    /// Makes one call. A close of the store waits for the end of the call.
    pub fn call<T>(
        &self,
        transaction: Option<TransactionId>,
        call: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        match self {
            Home::Store(shared) => {
                let open = shared.open()?;
                call().map_err(|failure| open.cause(transaction, failure))
            }
            Home::Server(served) => call().map_err(|failure| served.cause(failure)),
        }
    }

    /// Returns a slot that is closed together with the owner.
    pub fn slot<T: Send + 'static>(&self, what: &'static str, value: T) -> Arc<Slot<T>> {
        match self {
            Home::Store(shared) => shared.slot(what, value),
            Home::Server(served) => served.slot(what, value),
        }
    }
}

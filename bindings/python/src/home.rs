//! The owner of a file system: a store that is open in this process, or a view of one that a server
//! holds. Objects that work on files need not know which.

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
    /// Makes one call. Closing a store waits for its end.
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

    /// A slot that is closed with the owner.
    pub fn slot<T: Send + 'static>(&self, what: &'static str, value: T) -> Arc<Slot<T>> {
        match self {
            Home::Store(shared) => shared.slot(what, value),
            Home::Server(served) => served.slot(what, value),
        }
    }
}

//! Uses of a transaction that may take longer than its idle limit. Each call notes when it begins
//! that the transaction is used. The list of its changes, or all that precedes its commit, may take
//! long after that.

use env::sync::atomic::Ordering;

use super::handle::Transaction;
use super::state::TransactionState;

/// A transaction that does not end by its idle limit until this is dropped.
struct InUse<'a>(&'a TransactionState);

impl<'a> InUse<'a> {
    fn begin(transaction: &'a TransactionState) -> InUse<'a> {
        // The transactions around it are in use as well.
        for one in transaction.and_around() {
            one.uses.fetch_add(1, Ordering::Relaxed);
        }
        InUse(transaction)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        // In this order: who sees that the use has ended sees the time of that, too.
        let _ = self.0.used();
        for one in self.0.and_around() {
            one.uses.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Transaction {
    /// Runs what may use the transaction for longer than its idle limit
    /// ([`super::TransactionOptions::idle_limit`]), which does not end the transaction before.
    pub fn in_use<T>(&self, run: impl FnOnce() -> T) -> T {
        let _in_use = InUse::begin(&self.shared);
        run()
    }
}

//! Questions about the changes of a transaction. The host answers them, since it knows the files of
//! which the changes are; the client and the host agree on words and answers between them.

use std::time::Duration;

use bytes::Bytes;
use env::sync::{Condvar, Mutex, MutexGuard};
use kvdb::Transaction;

use super::{Answer, Held, State, Transactions};
use crate::body::ANSWER_BYTES;
use crate::reply::Reply;

impl Transactions {
    /// Returns the part of the host's answer that begins at `offset`. The answer is made again for
    /// each part, so that nothing is kept for a client that does not ask for the rest.
    pub fn review(&self, opened: &Held, words: &[Bytes], offset: u64) -> Answer<Reply> {
        // No batch changes the transaction while it is looked at.
        let (_reviewing, _state) = self.turn_to_review(opened)?;
        let one = &opened.transaction;
        let found = in_use(one, || self.host.review(one, words));
        // Changes may have been taken out, by others that undo them.
        opened.measure();
        let found = Bytes::from(found.map_err(|e| self.failed(opened, e))?);
        let length = found.len() as u64;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(found.len());
        let to = found.len().min(from.saturating_add(ANSWER_BYTES));
        Ok(Reply::Part { length, bytes: found.slice(from..to) })
    }

    /// Waits until no other answer is made, and locks the state of the transaction. Neither is held
    /// while the other one is waited for, since both may take long: a question about a transaction
    /// that commits does not delay those about others, and a transaction whose turn has not come is
    /// used in the meantime.
    fn turn_to_review<'a>(
        &'a self,
        opened: &'a Held,
    ) -> Answer<(MutexGuard<'a, ()>, MutexGuard<'a, State>)> {
        loop {
            drop(self.lock(opened)?);
            let reviewing = self.reviewing.lock();
            if let Some(state) = opened.state.try_lock() {
                self.check_state(opened, &state)?;
                return Ok((reviewing, state));
            }
        }
    }
}

/// Runs what may take longer than the lease of a transaction, which does not end by that before:
/// its client cannot renew it while the state is locked.
fn in_use<T>(transaction: &Transaction, run: impl FnOnce() -> T) -> T {
    let Some(lease) = transaction.options().idle_limit else { return run() };
    let using = Using::default();
    env::thread::scope(|threads| {
        let _ends = Ends(&using);
        let uses = env::thread::Builder::new().name("wire-review".into());
        if let Err(e) = uses.spawn_scoped(threads, || using.until_over(transaction, lease / 4)) {
            tracing::warn!("a review that takes long may outlive its transaction: {e}");
        }
        run()
    })
}

/// A transaction in use.
#[derive(Default)]
struct Using {
    is_over: Mutex<bool>,
    /// Notified when it is over.
    over: Condvar,
}

/// Ends the use when it is dropped, also after a panic.
struct Ends<'a>(&'a Using);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.is_over.lock() = true;
        self.0.over.notify_all();
    }
}

impl Using {
    fn until_over(&self, transaction: &Transaction, every: Duration) {
        let mut is_over = self.is_over.lock();
        while !*is_over {
            // Any call notes that the transaction is used now. This one fails if it has ended.
            let _ = transaction.revision();
            self.over.wait_for(&mut is_over, every);
        }
    }
}

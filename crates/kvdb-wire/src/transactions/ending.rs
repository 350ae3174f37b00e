//! The end of a transaction at the request of its client: a commit, whose outcome remains known, or
//! an abort.

use std::sync::Arc;

use kvdb::DictionaryId;

use super::{Answer, Held, Opened, State, Transactions, taken_up};
use crate::body::{MAX_CONFLICTS, TransactionKey};
use crate::failure::{Failure, FailureCode, of_store};
use crate::reply::{ConflictKey, Reply};

impl Transactions {
    /// Commits a transaction, at most once. A repeated request gets the answer that it has
    /// committed.
    pub fn commit(
        &self,
        key: &TransactionKey,
        batches: u64,
        synced: bool,
        held: Option<&Held>,
    ) -> Answer<Reply> {
        let Some(opened) = self.find(key)? else {
            return match self.records.has_committed(key) {
                Ok(true) => self.after_commit(synced),
                Ok(false) => Err(self.is_over(key)),
                Err(e) => Err(of_store(e)),
            };
        };
        // Held until the commit is done, so that no further batch is applied.
        let mut state = opened.state.lock();
        if state.is_over {
            drop(state);
            return self.commit(key, batches, synced, held);
        }
        self.check_end(&opened, &state, held)?;
        if state.noted.batches != batches {
            let have = state.noted.batches;
            let what = format!("{batches} batches are to be committed, and {have} have come");
            return Err(Failure { code: FailureCode::Invalid, what });
        }
        let one = &opened.transaction;
        // It may take longer than the client's lease of the transaction, which the client cannot
        // renew while the state is locked.
        let (_unlent, committed) = one.in_use(|| {
            // Held until the commit is done, so that no client gets the lease of the branch before.
            let unlent = self.lending.without_lease(one.branch())?;
            let noted = self.records.note_commit(one, key, state.noted);
            Ok::<_, Failure>((unlent, noted.and_then(|()| self.host.commit(one, synced))))
        })?;
        match committed {
            Ok(()) | Err(kvdb::Error::NotSynced(_)) => {
                state.is_over = true;
                self.open.lock().remove(key);
                self.records.committed(*key);
                committed.map(|()| Reply::Done).map_err(of_store)
            }
            Err(kvdb::Error::Conflict { keys }) if self.is_open(&opened.transaction) => {
                Ok(self.conflict(&opened, keys))
            }
            Err(e) => Err(self.failed(&opened, e)),
        }
    }

    /// Answers for a transaction that has already committed, after a sync if one is requested.
    fn after_commit(&self, synced: bool) -> Answer<Reply> {
        if synced {
            self.db.sync().map_err(kvdb::Error::after_commit).map_err(of_store)?;
        }
        Ok(Reply::Done)
    }

    fn conflict(&self, opened: &Opened, keys: Vec<(DictionaryId, bytes::Bytes)>) -> Reply {
        let what = kvdb::Error::Conflict { keys: keys.clone() }.to_string();
        let one = |(dict, key): (DictionaryId, bytes::Bytes)| {
            let place = self.host.place(&opened.transaction, dict, &key).unwrap_or_default();
            ConflictKey { dict, key, place }
        };
        Reply::Conflict { what, keys: keys.into_iter().take(MAX_CONFLICTS).map(one).collect() }
    }

    /// Ends a transaction and discards its changes. Succeeds if it is already over without a
    /// commit.
    pub fn abort(&self, key: &TransactionKey, held: Option<&Held>) -> Answer<()> {
        let Some(opened) = self.find(key)? else {
            return match self.records.has_committed(key) {
                Ok(true) => Err(self.is_over(key)),
                Ok(false) => self.db.sync().map_err(of_store),
                Err(e) => Err(of_store(e)),
            };
        };
        let mut state = opened.state.lock();
        if state.is_over {
            drop(state);
            return self.abort(key, held);
        }
        self.check_end(&opened, &state, held)?;
        match self.host.abort(&opened.transaction) {
            Err(e) if self.is_open(&opened.transaction) => Err(of_store(e)),
            _ => {
                state.is_over = true;
                // In this order, so that a late request that would begin it again finds it in one
                // of both.
                self.note_end(key);
                self.open.lock().remove(key);
                // Without this sync a durable transaction would reappear after a crash, and never
                // end by itself.
                match opened.transaction.is_durable() {
                    true => self.db.sync().map_err(of_store),
                    false => Ok(()),
                }
            }
        }
    }

    /// Fails unless the transaction was begun or taken up on this connection, as `held`, and its
    /// client still holds it: the request of a former holder to end it may arrive late.
    fn check_end(&self, opened: &Arc<Opened>, state: &State, held: Option<&Held>) -> Answer<()> {
        match held.filter(|held| Arc::ptr_eq(&held.opened, opened)) {
            Some(held) if state.is_of(held.holder) => Ok(()),
            Some(_) => Err(taken_up()),
            None => {
                let what = "the transaction was not begun on this connection".into();
                Err(Failure { code: FailureCode::Invalid, what })
            }
        }
    }
}

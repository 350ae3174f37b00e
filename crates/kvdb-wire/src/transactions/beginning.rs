//! The begin of a transaction, and its take-up by another client.

use std::sync::Arc;
use std::time::Duration;

use env::sync::atomic::Ordering;
use kvdb::{Batch, Isolation, TransactionOptions};

use super::{Answer, Asked, Held, Opened, Transactions};
use crate::body::TransactionKey;
use crate::failure::{Failure, FailureCode, of_store};
use crate::lending::lease_time;
use crate::records::Noted;

/// The time for which a serializable transaction waits for a lock. It is short because the wait
/// occupies a thread of the connection.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of the former holders of each transaction that are remembered. Their requests may arrive
/// late, but not very late.
const MAX_FORMER: usize = 64;

/// The place of a transaction that is begun, until this is dropped.
struct Place<'a> {
    all: &'a Transactions,
    key: TransactionKey,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.all.beginning.lock().remove(&self.key);
    }
}

impl Transactions {
    /// Begins a transaction, or continues the one that has this key. `may` fails for branches in
    /// which the client has no rights.
    pub fn begin(&self, asked: Asked, may: &dyn Fn(&str) -> Answer<()>) -> Answer<Held> {
        let (holder, takes, connection) = (asked.holder, asked.takes, asked.connection);
        let tenant = asked.tenant.clone();
        if !asked.joins {
            may(&asked.branch)?;
        }
        let opened = self.begin_or_find(asked)?;
        may(opened.transaction.branch())?;
        self.take(&opened, holder, takes)?;
        let held = Held { opened, holder, connection };
        drop(self.lock(&held)?);
        held.count_with(tenant);
        Ok(held)
    }

    /// Makes this client the holder if it takes the transaction from another one, or if no holder
    /// is known. If the transaction is durable and so may outlive this server, the change is on
    /// disk before the client gets the answer.
    fn take(&self, opened: &Opened, holder: u64, takes: bool) -> Answer<()> {
        let mut state = opened.state.lock();
        let had = state.noted.holder;
        // A former holder sent this request before it lost the transaction.
        let is_late = state.former.contains(&holder);
        if had == Some(holder) || is_late || !(takes || had.is_none()) {
            return Ok(());
        }
        let noted = Noted { holder: Some(holder), ..state.noted };
        if opened.transaction.is_durable() {
            let mut batch = Batch::new();
            // A transaction at its limit can be taken up, too.
            batch.releases_space();
            self.records.note_batches(&mut batch, &opened.key, noted);
            let applied = opened.transaction.apply(batch);
            let synced = applied.and_then(|()| opened.transaction.sync());
            synced.map_err(|e| self.failed(opened, e))?;
        }
        state.noted = noted;
        opened.holder.store(holder, Ordering::Release);
        // Requests of the former holder are refused by its number.
        state.refused = None;
        if let Some(had) = had {
            state.former.push_back(had);
            if state.former.len() > MAX_FORMER {
                state.former.pop_front();
            }
        }
        Ok(())
    }

    fn begin_or_find(&self, asked: Asked) -> Answer<Arc<Opened>> {
        let _turn = self.turns.of(&asked.key);
        if let Some(opened) = self.find_begun(&asked.key)? {
            return Ok(opened);
        }
        // A request may arrive late, after its client has gone on elsewhere. A transaction that is
        // in `open` but was not found has ended by itself.
        let has_ended =
            self.open.lock().contains_key(&asked.key) || self.ended.lock().contains(&asked.key);
        if asked.joins || has_ended || self.records.has_committed(&asked.key).map_err(of_store)? {
            return Err(self.is_over(&asked.key));
        }
        // The store's own branches contain the logs and the records of others.
        if asked.branch.starts_with('.') {
            let what = format!("{} is no clone", asked.branch);
            return Err(Failure { code: FailureCode::NotAllowed, what });
        }
        let _place = self.place(&asked)?;
        let lease = lease_time(asked.lease);
        // Its locks would have the client that holds the lease of the main branch wait.
        let locks_in = if asked.serializable { Some(&*asked.branch) } else { None };
        let unlent = locks_in.map(|branch| self.lending.without_lease(branch)).transpose()?;
        let isolation = match asked.serializable {
            true => Isolation::Serializable,
            false => Isolation::Snapshot,
        };
        let options = TransactionOptions {
            isolation,
            detached: true,
            durable: asked.durable,
            idle_limit: (!asked.durable).then_some(lease),
            lock_timeout: LOCK_TIMEOUT,
            branch: asked.branch,
            label: asked.label,
            limit: Some(self.most_bytes),
            ..TransactionOptions::default()
        };
        let transaction = self.host.begin(options).map_err(of_store)?;
        drop(unlent);
        let begun = || -> kvdb::Result<Arc<Opened>> {
            let noted = Noted { batches: 0, holder: Some(asked.holder) };
            if asked.durable {
                // Note it, so that it can be found by its key before it has a batch.
                let mut batch = Batch::new();
                self.records.note_batches(&mut batch, &asked.key, noted);
                transaction.apply(batch)?;
                // If a crash lost the note but left the transaction, no client could end it by a
                // key.
                transaction.sync()?;
            }
            let opened = self.add(asked.key, transaction.clone(), noted)?;
            opened.count_with(asked.tenant);
            Ok(opened)
        };
        begun().map_err(|e| {
            let _ = self.host.abort(&transaction);
            of_store(e)
        })
    }

    /// Takes a place for a transaction that is begun now. Fails if there is none, or none for the
    /// client's tenant.
    fn place(&self, asked: &Asked) -> Answer<Place<'_>> {
        let mut open = self.open.lock();
        self.forget_ended(&mut open);
        let mut beginning = self.beginning.lock();
        // One that was added counts once as long as it has its place as one that is begun, too.
        let begun = open.iter().filter(|(key, _)| !beginning.contains_key(*key));
        let begun: Vec<&Arc<Opened>> = begun.map(|(_, one)| one).collect();
        let taken = begun.len() + beginning.len();
        if taken >= self.most {
            let what = format!("{taken} transactions of clients are open: end some of them");
            return Err(Failure { code: FailureCode::Limit, what });
        }
        if let Some(tenant) = &asked.tenant {
            let others = beginning.values().flatten();
            let own = others.filter(|other| Arc::ptr_eq(other, tenant)).count()
                + begun.iter().filter(|one| one.is_of(tenant)).count();
            let most = tenant.places(self.most);
            if own >= most {
                let what = format!(
                    "{own} transactions of this token or certificate are open, which may have \
                     {most}: end some of them"
                );
                return Err(Failure { code: FailureCode::Limit, what });
            }
        }
        beginning.insert(asked.key, asked.tenant.clone());
        Ok(Place { all: self, key: asked.key })
    }
}

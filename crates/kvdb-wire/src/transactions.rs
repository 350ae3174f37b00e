//! The transactions of clients on a server. They do not belong to connections: a client that
//! reconnects continues its transaction by its key. If it does not reconnect, the transaction ends
//! with its lease, unless it is durable.
//!
//! The changes of a client arrive in numbered batches (`batches`). A commit states the number of
//! batches, and its outcome remains known (`records`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{Mutex, MutexGuard};
use kvdb::{Batch, DictionaryId, Isolation, Kvdb, Savepoint, Transaction, TransactionOptions};

use crate::body::{MAX_CONFLICTS, MAX_DICTIONARIES, TransactionKey};
use crate::failure::{Failure, FailureCode, of_store};
use crate::host::{Host, dictionaries_of};
use crate::lending::{Lending, lease_time, numbers_to_reserve};
use crate::naming::Naming;
use crate::records::{Noted, Records};
use crate::reply::{ConflictKey, Reply};
use crate::tenants::Tenant;
use crate::unfinished::Unfinished;

mod batches;
mod references;

/// The time for which a serializable transaction waits for a lock. It is short because the wait
/// occupies a thread of the connection.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of the bytes of the incomplete changes of all clients.
const UNFINISHED: usize = 128 << 20;

/// Limits of the ended transactions, and of the former holders of each transaction, that are
/// remembered. Their requests may arrive late, but not very late.
const MAX_ENDED: usize = 4096;
const MAX_FORMER: usize = 64;

type Answer<T> = Result<T, Failure>;

/// A client's request for a transaction.
pub(crate) struct Asked {
    pub key: TransactionKey,
    pub serializable: bool,
    pub durable: bool,
    pub joins: bool,
    pub takes: bool,
    pub holder: u64,
    /// The number of the connection on which the request arrived.
    pub connection: u64,
    /// The client's tenant, if it has one.
    pub tenant: Option<Arc<Tenant>>,
    pub lease: u32,
    pub branch: String,
    pub label: String,
}

/// The transactions of all clients.
pub(crate) struct Transactions {
    db: Kvdb,
    host: Arc<dyn Host>,
    records: Records,
    naming: Naming,
    lending: Lending,
    /// Limit of the open transactions.
    most: usize,
    /// Limit of the bytes that each transaction may change.
    most_bytes: u64,
    /// Limit of the bytes that all transactions may change together.
    most_together: u64,
    open: Mutex<HashMap<TransactionKey, Arc<Opened>>>,
    /// Incomplete changes: some of their parts have not arrived.
    unfinished: Unfinished,
    /// Transactions that have ended during the life of this server, the oldest first.
    ended: Mutex<VecDeque<TransactionKey>>,
    /// Held while a transaction is begun, so that a repeated request does not begin a second one.
    beginning: Mutex<()>,
}

/// An open transaction.
pub(crate) struct Opened {
    pub key: TransactionKey,
    pub transaction: Transaction,
    /// The dictionaries of its branch, which the client may read and change.
    dictionaries: HashSet<DictionaryId>,
    /// The tenant with which it counts: the one that has begun it, or has taken it up first on this
    /// server.
    tenant: OnceLock<Arc<Tenant>>,
    /// Bytes of its changes, as last measured.
    taken: AtomicU64,
    /// The client that has it, as in the state: reads do not wait for that.
    holder: AtomicU64,
    state: Mutex<State>,
}

/// An open transaction together with the client that has begun it or taken it up.
#[derive(Clone)]
pub(crate) struct Held {
    opened: Arc<Opened>,
    holder: u64,
    /// The number of the connection. Later connections of a client have greater numbers.
    connection: u64,
}

impl std::ops::Deref for Held {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.opened
    }
}

#[derive(Default)]
struct State {
    /// The number of the last batch, and the client that holds the transaction. Requests of former
    /// holders are refused.
    noted: Noted,
    /// The former holders, the oldest first.
    former: VecDeque<u64>,
    savepoints: BTreeMap<u64, Savepoint>,
    /// The batch that was refused last, and the connection on which it arrived. Its client may have
    /// made another batch of the same number; a batch of that number on an older connection is
    /// stale.
    refused: Option<(u64, u64)>,
    is_over: bool,
}

impl Transactions {
    pub fn new(
        db: &Kvdb,
        host: Arc<dyn Host>,
        (most, most_bytes, most_together): (usize, Option<u64>, Option<u64>),
    ) -> kvdb::Result<Transactions> {
        let half = db.space().total / 2;
        let records = Records::open(db)?;
        let naming = Naming::open(db, host.clone(), records.dict())?;
        let lending = Lending::open(db, host.clone(), records.dict())?;
        let all = Transactions {
            db: db.clone(),
            host,
            records,
            naming,
            lending,
            most,
            most_bytes: most_bytes.unwrap_or(half),
            most_together: most_together.unwrap_or(half),
            open: Mutex::default(),
            unfinished: Unfinished::new(UNFINISHED),
            ended: Mutex::default(),
            beginning: Mutex::default(),
        };
        // Durable transactions count towards the common limit before their clients reconnect.
        for info in all.db.transactions().iter().filter(|info| info.durable) {
            let Ok(transaction) = all.db.transaction(info.id) else { continue };
            let found = all.records.key_of(&transaction).map_err(|e| e.to_string());
            let found = found
                .and_then(|key| key.map_or(Ok(None), |key| all.find(&key)).map_err(|e| e.what));
            if let Err(why) = found {
                tracing::warn!("transaction {} is not counted: {why}", info.id.0);
            }
        }
        Ok(all)
    }

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
    /// disk before the client is told.
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
        let _beginning = self.beginning.lock();
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
        let (open, own) = {
            let mut open = self.open.lock();
            self.forget_ended(&mut open);
            let own = asked.tenant.as_ref().map(|tenant| {
                (open.values().filter(|one| one.is_of(tenant)).count(), tenant.places(self.most))
            });
            (open.len(), own)
        };
        if open >= self.most {
            let what = format!("{open} transactions of clients are open: end some of them");
            return Err(Failure { code: FailureCode::Limit, what });
        }
        if let Some((own, most)) = own.filter(|(own, most)| own >= most) {
            let what = format!(
                "{own} transactions of this token or certificate are open, which may have {most}: \
                 end some of them"
            );
            return Err(Failure { code: FailureCode::Limit, what });
        }
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

    fn add(
        &self,
        key: TransactionKey,
        transaction: Transaction,
        noted: Noted,
    ) -> kvdb::Result<Arc<Opened>> {
        let dictionaries = dictionaries_of(&transaction)?.into_iter().map(|info| info.id);
        let dictionaries = dictionaries.filter(|dict| !self.records.is_own(*dict)).collect();
        let state = Mutex::new(State { noted, ..State::default() });
        let taken = AtomicU64::new(0);
        let holder = AtomicU64::new(noted.holder.unwrap_or(0));
        let tenant = OnceLock::new();
        let opened = Opened { key, transaction, dictionaries, tenant, taken, holder, state };
        let opened = Arc::new(opened);
        opened.measure();
        self.open.lock().insert(key, opened.clone());
        Ok(opened)
    }

    /// Returns the open transaction with this key.
    fn find(&self, key: &TransactionKey) -> Answer<Option<Arc<Opened>>> {
        match self.known(key) {
            Some(opened) => Ok(Some(opened)),
            None => {
                let _beginning = self.beginning.lock();
                self.find_begun(key)
            }
        }
    }

    fn known(&self, key: &TransactionKey) -> Option<Arc<Opened>> {
        let open = self.open.lock();
        open.get(key).filter(|opened| self.is_open(&opened.transaction)).cloned()
    }

    /// Returns the open transaction with this key: a known one, or a durable one that was begun on
    /// an earlier server. The caller holds `beginning`, so that none is begun or found
    /// concurrently.
    fn find_begun(&self, key: &TransactionKey) -> Answer<Option<Arc<Opened>>> {
        if let Some(opened) = self.known(key) {
            return Ok(Some(opened));
        }
        for info in self.db.transactions().iter().filter(|info| info.durable) {
            let Ok(transaction) = self.db.transaction(info.id) else { continue };
            // A transaction that has ended in the meantime does not count.
            let noted = match self.records.noted(&transaction, key) {
                Ok(noted) => noted,
                // The transaction is just ending, and may still be listed for a moment.
                Err(kvdb::Error::NoTransaction(_)) => None,
                Err(e) if self.is_open(&transaction) => return Err(of_store(e)),
                Err(_) => None,
            };
            if let Some(noted) = noted {
                return self.add(*key, transaction, noted).map(Some).map_err(of_store);
            }
        }
        Ok(None)
    }

    fn is_open(&self, transaction: &Transaction) -> bool {
        self.db.transaction(transaction.id()).is_ok()
    }

    fn is_over(&self, key: &TransactionKey) -> Failure {
        let what = match self.records.has_committed(key) {
            Ok(true) => "the transaction has committed",
            Ok(false) => {
                "the transaction is over, without a commit of its client: it was aborted, or its \
                 lease ended"
            }
            Err(e) => return of_store(e),
        };
        Failure { code: FailureCode::NoView, what: what.into() }
    }

    /// Converts an error into the failure for the client. If the transaction is over, the failure
    /// says so.
    fn failed(&self, opened: &Opened, error: kvdb::Error) -> Failure {
        match self.is_open(&opened.transaction) {
            true => of_store(error),
            false => self.is_over(&opened.key),
        }
    }

    fn lock<'a>(&self, held: &'a Held) -> Answer<MutexGuard<'a, State>> {
        let state = held.state.lock();
        if state.is_over {
            return Err(self.is_over(&held.key));
        }
        match state.is_of(held.holder) {
            true => Ok(state),
            false => Err(taken_up()),
        }
    }

    /// Fails if another client has taken the transaction up. Does not wait for batches or commits.
    pub fn check(&self, held: &Held) -> Answer<()> {
        match held.opened.holder.load(Ordering::Acquire) == held.holder {
            true => Ok(()),
            false => Err(taken_up()),
        }
    }

    /// Removes transactions that have ended by themselves.
    fn forget_ended(&self, open: &mut HashMap<TransactionKey, Arc<Opened>>) {
        open.retain(|key, opened| {
            let is_open = self.is_open(&opened.transaction);
            if !is_open {
                self.note_end(key);
            }
            is_open
        });
    }

    /// Remembers that the transaction has ended, so that a late request cannot begin it again.
    fn note_end(&self, key: &TransactionKey) {
        let mut ended = self.ended.lock();
        if ended.len() == MAX_ENDED {
            ended.pop_front();
        }
        ended.push_back(*key);
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

    /// Returns the snapshots and clones that clients make and drop.
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// Returns the lease of the main branch.
    pub fn lending(&self) -> &Lending {
        &self.lending
    }

    pub fn unfinished(&self) -> &Unfinished {
        &self.unfinished
    }

    /// Renews the lease.
    pub fn renew(&self, opened: &Held) -> Answer<()> {
        drop(self.lock(opened)?);
        opened.transaction.revision().map(drop).map_err(|e| self.failed(opened, e))
    }

    pub fn reserve(&self, opened: &Held, count: u32) -> Answer<Range<u64>> {
        drop(self.lock(opened)?);
        let count = numbers_to_reserve(count);
        let reserved = self.host.reserve_numbers(&opened.transaction, count);
        let reserved = reserved.map_err(|e| self.failed(opened, e))?;
        if opened.transaction.is_durable() {
            // The transaction may outlive this server, so the record that these numbers are taken
            // must do so, too.
            self.db.sync().map_err(of_store)?;
        }
        Ok(reserved)
    }

    /// Commits a transaction, at most once. A repeated request is told that it has committed.
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
        // Held until the commit is done, so that no client gets the lease of the branch before.
        let _unlent = self.lending.without_lease(opened.transaction.branch())?;
        let noted = self.records.note_commit(&opened.transaction, key, state.noted);
        let committed = noted.and_then(|()| self.host.commit(&opened.transaction, synced));
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
                self.open.lock().remove(key);
                self.note_end(key);
                // Without this sync a durable transaction would reappear after a crash, and never
                // end by itself.
                match opened.transaction.is_durable() {
                    true => self.db.sync().map_err(of_store),
                    false => Ok(()),
                }
            }
        }
    }

    /// Returns the answer to a client that has begun the transaction, or continues it.
    pub fn begun(&self, opened: &Held, transaction: u64) -> Answer<Reply> {
        let batches = self.lock(opened)?.noted.batches;
        let one = &opened.transaction;
        let all = dictionaries_of(one).map_err(|e| self.failed(opened, e))?.into_iter();
        let mine = all.filter(|info| opened.may(info.id)).take(MAX_DICTIONARIES);
        let lease = one.options().idle_limit.unwrap_or_default();
        Ok(Reply::Begun {
            transaction,
            id: one.id().0,
            batches,
            lease: u32::try_from(lease.as_millis()).unwrap_or(u32::MAX),
            space: self.db.space(),
            dictionaries: mine.map(|info| (info.id, info.name)).collect(),
        })
    }
}

impl State {
    /// Returns whether this client holds the transaction.
    fn is_of(&self, holder: u64) -> bool {
        self.noted.holder == Some(holder)
    }
}

impl Opened {
    fn measure(&self) {
        let info = self.transaction.info();
        self.taken.store(info.memory + info.run_bytes, Ordering::Relaxed);
    }

    /// Counts it with a tenant from now on, unless it already counts with one.
    fn count_with(&self, tenant: Option<Arc<Tenant>>) {
        if let Some(tenant) = tenant {
            let _ = self.tenant.set(tenant);
        }
    }

    fn is_of(&self, tenant: &Arc<Tenant>) -> bool {
        self.tenant.get().is_some_and(|own| Arc::ptr_eq(own, tenant))
    }

    /// Returns whether its client may read and change a dictionary.
    pub fn may(&self, dict: DictionaryId) -> bool {
        self.dictionaries.contains(&dict)
    }
}

fn taken_up() -> Failure {
    let what = "another client has taken the transaction up";
    Failure { code: FailureCode::NoView, what: what.into() }
}

pub(crate) fn no_dictionary(dict: DictionaryId) -> Failure {
    let what = format!("{} in the branch of the transaction", dict.0);
    Failure { code: FailureCode::NoDictionary, what }
}

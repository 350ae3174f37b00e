//! The transactions of clients on a server. They do not belong to connections: a client that
//! reconnects continues its transaction by its key. If it does not reconnect, the transaction ends
//! with its lease, unless it is durable (`beginning`).
//!
//! The changes of a client arrive in numbered batches (`batches`), some of them by reference
//! (`references`). A commit states the number of batches (`ending`), and its outcome remains known
//! (`records`). Before it the host may be asked what the transaction has changed (`reviews`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{Mutex, MutexGuard};
use kvdb::{DictionaryId, Kvdb, Savepoint, Transaction};

use crate::body::{MAX_DICTIONARIES, TransactionKey};
use crate::failure::{Failure, FailureCode, of_store};
use crate::host::{Host, dictionaries_of};
use crate::lending::{Lending, numbers_to_reserve};
use crate::naming::Naming;
use crate::records::{Noted, Records};
use crate::reply::Reply;
use crate::sequence::Refused;
use crate::tenants::Tenant;
use crate::turns::Turns;
use crate::unfinished::Unfinished;

mod batches;
mod beginning;
mod ending;
mod references;
mod reviews;

/// Limit of the bytes of the incomplete changes of all clients.
const UNFINISHED: usize = 128 << 20;
/// Limit of the ended transactions that are remembered. Their requests may arrive late, but not
/// very late.
const MAX_ENDED: usize = 4096;

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
    /// The transactions that are begun or looked for, so that a repeated request does not begin a
    /// second one. Those of other keys do not wait: a begin may wait for the client that holds the
    /// lease of the main branch, and for the disk.
    turns: Turns,
    /// The transactions that are begun, and their tenants. They have their places already, and are
    /// added to `open` before they leave this. Locked after `open` where both are.
    beginning: Mutex<HashMap<TransactionKey, Option<Arc<Tenant>>>>,
    /// Held while the host lists changes, which takes memory: one list is made at a time.
    reviewing: Mutex<()>,
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
    refused: Option<Refused>,
    /// The marks of the last questions about its changes, each with the mark of the answer of which
    /// the client has read the beginning last.
    reviewed: VecDeque<(u64, u64)>,
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
            turns: Turns::default(),
            beginning: Mutex::default(),
            reviewing: Mutex::default(),
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
                let _turn = self.turns.of(key);
                self.find_begun(key)
            }
        }
    }

    fn known(&self, key: &TransactionKey) -> Option<Arc<Opened>> {
        let open = self.open.lock();
        open.get(key).filter(|opened| self.is_open(&opened.transaction)).cloned()
    }

    /// Returns the open transaction with this key: a known one, or a durable one that was begun on
    /// an earlier server. The caller has the turn of the key, so that none is begun or found
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
        self.check_state(held, &state)?;
        Ok(state)
    }

    /// Fails if the transaction is over, or another client has taken it up.
    fn check_state(&self, held: &Held, state: &State) -> Answer<()> {
        if state.is_over {
            return Err(self.is_over(&held.key));
        }
        match state.is_of(held.holder) {
            true => Ok(()),
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

//! A transaction on a server, as a view on the client that can be changed. No other client writes
//! in the transaction, so the data read from it is cached without validation, like that of a
//! snapshot.
//!
//! The lease of the main branch (`lease`) is used in the same way: there, too, no other client
//! writes. Its batches change the branch itself.
//!
//! Changes are collected (`gathered`) and sent in numbered batches (`sending`): when there are
//! enough of them, at an interval, or when a sync requests it. Until the server has acknowledged a
//! batch, readers see its changes in place of the server's values. After a connection has failed or
//! the server was restarted, the transaction is taken up by its key, and the batches that the
//! server lacks are sent again. The batches of a durable transaction are kept until they are on the
//! server's disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use env::Instant;
use env::sync::Mutex;
use kvdb::{DictionaryId, Space, TransactionId};

use crate::body::TransactionKey;
use crate::client::{Client, Connection};
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::outgoing::{Numbered, Outgoing};
use crate::reply::{ConflictKey, Reply};
use crate::request::Request;
use crate::single_flight::SingleFlight;
use crate::transaction_state::State;

mod lease;
mod reviewing;
mod sending;

pub use lease::LeaseOptions;
use sending::send;

/// The time for which an abort waits for the server. If it fails, the transaction ends with its
/// lease.
const ABORT: Duration = Duration::from_secs(10);
/// Limit of the batches that a server may say it has: the numbers after it must not overflow.
const MAX_BATCHES: u64 = u64::MAX / 2;

/// Options of a new transaction.
#[derive(Clone, Debug)]
pub struct BeginOptions {
    /// The transaction locks the data that it reads.
    pub serializable: bool,
    /// The transaction survives this client and the server, and ends only by a commit or an abort.
    pub durable: bool,
    /// The time without a request after which the server ends a transaction that is not durable.
    pub lease: Duration,
    /// The branch of the transaction. If it is empty, the main branch.
    pub branch: String,
    /// A label for people who look at a list of transactions.
    pub label: String,
}

impl Default for BeginOptions {
    fn default() -> BeginOptions {
        BeginOptions {
            serializable: false,
            durable: false,
            lease: Duration::from_secs(60),
            branch: String::new(),
            label: String::new(),
        }
    }
}

/// The request by which a transaction was begun.
enum Begun {
    Transaction(BeginOptions),
    Lease(LeaseOptions),
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction has committed.
    Committed,
    /// The transaction has committed, but may not be on disk.
    NotSynced(String),
    /// Others have changed the same data since the transaction began. It remains open.
    Conflict {
        /// A description, for people.
        what: String,
        /// The first keys in conflict.
        keys: Vec<ConflictKey>,
    },
}

/// A state of a transaction to which it can roll back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedSavepoint(u64);

/// An open transaction on a server. It is aborted when this is dropped, unless it is durable.
pub struct ServedTransaction {
    client: Arc<Client>,
    key: TransactionKey,
    pub(crate) durable: bool,
    /// Reading locks nothing, so that more may be read than is asked for. Of one that was taken up
    /// that is not known.
    pub(crate) reads_ahead: bool,
    /// Tells this one from others with the key.
    holder: u64,
    begun: Begun,
    /// The number in the store: of the transaction, or the epoch of the lease.
    id: TransactionId,
    pub(crate) space: Mutex<Space>,
    /// The time without a request after which the server ends the transaction. Zero means no limit.
    pub(crate) lease: Duration,
    pub(crate) dictionaries: HashMap<String, DictionaryId>,
    /// The connection on which the transaction was last taken up, and its number there.
    open: SingleFlight<(Arc<Connection>, u64)>,
    /// Lets one thread send for all.
    sends: SingleFlight<()>,
    /// Held while the parts of an answer about its changes are read. The server distinguishes the
    /// parts of answers to the same question only if these are read one after the other.
    reviewing: Mutex<()>,
    pub(crate) outgoing: Mutex<Outgoing>,
    pub(crate) state: Mutex<State>,
}

impl ServedTransaction {
    /// Begins a transaction.
    pub fn begin(client: &Arc<Client>, options: BeginOptions) -> Result<ServedTransaction> {
        let begun = Begun::Transaction(options);
        ServedTransaction::with_key(client, random_key()?, begun, (false, false))
    }

    /// Continues an open transaction. Its key proves that this client may do so. The changes
    /// already applied to it are visible.
    pub fn take_up(client: &Arc<Client>, key: TransactionKey) -> Result<ServedTransaction> {
        let begun = Begun::Transaction(BeginOptions::default());
        ServedTransaction::with_key(client, key, begun, (true, true))
    }

    fn with_key(
        client: &Arc<Client>,
        key: TransactionKey,
        begun: Begun,
        (joins, takes): (bool, bool),
    ) -> Result<ServedTransaction> {
        let (mut there, heard) = (None, Instant::now());
        let holder = random_holder()?;
        let asked = client.retried(|deadline| {
            let connection = client.connection(deadline)?;
            let reply =
                connection.call(&request_of((key, holder), &begun, joins, takes), deadline)?;
            there = Some(connection);
            Ok(reply)
        });
        let Reply::Begun { transaction, id, batches, lease, space, dictionaries } = asked? else {
            return Err(Error::Unexpected);
        };
        if batches > MAX_BATCHES {
            return Err(Error::Unexpected);
        }
        Ok(ServedTransaction {
            client: client.clone(),
            key,
            // A transaction without a lease does not end by itself. All batches of the lease of the
            // main branch are permanent.
            durable: lease == 0 || matches!(begun, Begun::Lease(_)),
            reads_ahead: !joins && !begun.locks(),
            holder,
            begun,
            id: TransactionId(id),
            space: Mutex::new(space),
            lease: Duration::from_millis(u64::from(lease)),
            dictionaries: dictionaries.into_iter().map(|(id, name)| (name, id)).collect(),
            open: SingleFlight::new(there.map(|there| (there, transaction))),
            sends: SingleFlight::new(Some(())),
            reviewing: Mutex::new(()),
            outgoing: Mutex::new(Outgoing::after(batches)),
            state: Mutex::new(State::new(client.options.memory, heard)),
        })
    }

    /// Returns the key, by which another client can take over the transaction once this one has
    /// ended.
    pub fn key(&self) -> TransactionKey {
        self.key
    }

    /// Returns the number of the transaction in the store.
    pub fn id(&self) -> TransactionId {
        self.id
    }

    /// Returns the connection and the number of the transaction there. On a new connection, it
    /// takes up the transaction and sends again the batches that the server lacks.
    fn opened(&self, deadline: Instant) -> Result<(Arc<Connection>, u64)> {
        let connection = self.client.connection(deadline)?;
        let is_there = |(there, _): &(Arc<Connection>, u64)| Arc::ptr_eq(there, &connection);
        self.open.get(deadline, is_there, || {
            let request = request_of((self.key, self.holder), &self.begun, true, false);
            let Reply::Begun { transaction, id, batches, dictionaries, .. } =
                connection.call(&request, deadline)?
            else {
                return Err(Error::Unexpected);
            };
            let same = |(id, name): &(DictionaryId, String)| {
                self.dictionaries.get(name).is_none_or(|known| known == id)
            };
            let again = match id == self.id.0 && dictionaries.iter().all(same) {
                true => self.outgoing_after(batches),
                false => None,
            };
            let Some(again) = again else {
                let what = "the server has another state of the transaction than it had";
                return Err(Error::Failed(Failure {
                    code: FailureCode::NoView,
                    what: what.into(),
                }));
            };
            for (number, one) in again {
                send(&connection, &one, transaction, number, deadline)?;
            }
            Ok((connection.clone(), transaction))
        })
    }

    fn outgoing_after(&self, batches: u64) -> Option<Vec<(u64, Numbered)>> {
        // Only the sending thread holds this lock for long, and no thread holds it while it waits
        // for an answer.
        self.outgoing.lock().again_after(batches)
    }

    /// Sends a request, and retries until there is an answer or the client gives up.
    pub(crate) fn ask(&self, request: impl Fn(u64) -> Request) -> Result<Reply> {
        self.ask_by(|there, transaction, deadline| there.call(&request(transaction), deadline))
    }

    fn ask_by(&self, ask: impl Fn(&Connection, u64, Instant) -> Result<Reply>) -> Result<Reply> {
        let begun = Instant::now();
        let asked = self.client.retried(|deadline| {
            let (there, transaction) = self.opened(deadline)?;
            ask(&there, transaction, deadline)
        });
        let mut state = self.state.lock();
        match &asked {
            // Use the time at which the request began, a lower bound of the time at which the
            // server received it: the answer may have taken long.
            Ok(_) => state.heard = state.heard.max(begun),
            Err(Error::Failed(failure)) if failure.ends_transaction() => {
                if self.is_lease() && state.over.is_none() {
                    tracing::error!("the lease of the main files is lost: {failure}");
                }
                state.over.get_or_insert_with(|| failure.what.clone());
            }
            Err(_) => {}
        }
        asked
    }

    /// Fails if the transaction is over.
    pub(crate) fn check(&self) -> kvdb::Result<()> {
        match &self.state.lock().over {
            None => Ok(()),
            Some(why) if self.is_lease() => Err(lease::lost(why)),
            Some(_) => Err(kvdb::Error::NoTransaction(self.id)),
        }
    }

    /// Returns whether a commit was requested whose outcome is unknown, because the server did not
    /// answer in time or its answer was lost.
    pub fn is_in_doubt(&self) -> bool {
        let state = self.state.lock();
        state.commit_asked && state.over.is_none()
    }

    /// Returns why the transaction is over, if it is.
    pub fn over(&self) -> Option<String> {
        self.state.lock().over.clone()
    }

    /// Returns why the server refuses changes, if it does so for lack of space.
    pub fn refused(&self) -> Option<String> {
        self.state.lock().refused.as_ref().map(|(why, _)| why.clone())
    }

    /// Converts an error into the one that users of the store get.
    pub(crate) fn told(&self, error: Error) -> kvdb::Error {
        let Error::Failed(Failure { code, what }) = error else {
            let why =
                format!("transaction {} of the server is not to be reached: {error}", self.id);
            return kvdb::Error::Io(std::io::Error::other(why));
        };
        match code {
            FailureCode::Corrupt => kvdb::Error::Corrupt(what),
            FailureCode::NoDictionary => kvdb::Error::NoDictionary(what),
            FailureCode::NoView => kvdb::Error::NoTransaction(self.id),
            FailureCode::NoSpace => kvdb::Error::NoSpace,
            FailureCode::ReadOnly => kvdb::Error::ReadOnly(what),
            FailureCode::Locked => kvdb::Error::Locked(what),
            FailureCode::Limit => kvdb::Error::Limit(what),
            FailureCode::NotSynced => kvdb::Error::NotSynced(what),
            FailureCode::Fenced => lease::lost(&what),
            _ => kvdb::Error::Invalid(what),
        }
    }

    /// Tells the server that this client is alive. The transaction ends if the server gets no
    /// request for the time of its lease.
    pub fn renew(&self) -> kvdb::Result<()> {
        self.check()?;
        if self.is_lease() {
            return self.renew_lease();
        }
        let renewed = self.ask(|transaction| Request::Lease { transaction });
        renewed.map(drop).map_err(|e| self.told(e))
    }

    /// Commits the transaction, with all changes made before this call. Later changes are lost.
    pub fn commit(&self, synced: bool) -> kvdb::Result<Outcome> {
        self.send()?;
        let batches = self.outgoing.lock().last();
        let request = Request::Commit { key: self.key, synced, batches };
        self.state.lock().commit_asked = true;
        let answer = self.client.retried(|deadline| self.ask_for_end(&request, deadline));
        if matches!(answer, Ok(Reply::Conflict { .. }) | Err(Error::Failed(_))) {
            self.state.lock().commit_asked = false;
        }
        let outcome = match answer {
            Ok(Reply::Done) => Outcome::Committed,
            Ok(Reply::Conflict { what, keys }) => return Ok(Outcome::Conflict { what, keys }),
            Err(Error::Failed(Failure { code: FailureCode::NotSynced, what })) => {
                Outcome::NotSynced(what)
            }
            Err(e) => {
                if let Error::Failed(failure) = &e
                    && failure.ends_transaction()
                {
                    self.state.lock().over.get_or_insert_with(|| failure.what.clone());
                }
                return Err(self.told(e));
            }
            Ok(_) => return Err(self.told(Error::Unexpected)),
        };
        self.state.lock().over = Some("it has committed".into());
        Ok(outcome)
    }

    /// Requests a commit or an abort, by the key. If the answer to an earlier attempt was lost, the
    /// transaction may have ended and could not be taken up; the repeated request still gets its
    /// answer.
    fn ask_for_end(&self, request: &Request, deadline: Instant) -> Result<Reply> {
        let connection = self.client.connection(deadline)?;
        match connection.call(request, deadline) {
            // The transaction is open, but not taken up on this connection yet. A restarted server
            // may also lack batches.
            Err(Error::Failed(Failure { code: FailureCode::Invalid, .. })) => {
                match self.opened(deadline) {
                    Ok((there, _)) => there.call(request, deadline),
                    // A copy of the request came late on an earlier connection, and has ended the
                    // transaction in the meantime: the answer to the request says how. Or another
                    // client has taken it up, and the request is refused as before.
                    Err(Error::Failed(over)) if over.code == FailureCode::NoView => {
                        match self.client.connection(deadline)?.call(request, deadline) {
                            Err(Error::Failed(Failure { code: FailureCode::Invalid, .. })) => {
                                Err(Error::Failed(over))
                            }
                            answer => answer,
                        }
                    }
                    Err(e) => Err(e),
                }
            }
            answer => answer,
        }
    }

    /// Ends the transaction and discards its changes. It waits less than other calls for a server
    /// that cannot be reached.
    pub fn abort(&self) -> kvdb::Result<()> {
        self.check()?;
        let request = Request::Abort { key: self.key };
        let ask = |deadline| self.ask_for_end(&request, deadline);
        let aborted = self.client.retried_within(ABORT, ask);
        aborted.map_err(|e| self.told(e))?;
        self.state.lock().over = Some("it was aborted".into());
        Ok(())
    }

    /// Marks the transaction as no longer used, whether or not the server was notified.
    pub fn forget(&self) {
        self.state.lock().over.get_or_insert_with(|| "its client has left it".into());
    }

    /// Tells the server that this client is leaving, so that it aborts the transaction unless it is
    /// durable, or takes the lease of the main branch back. It does not wait for the answer. If the
    /// server cannot be reached, the transaction ends with its lease.
    pub fn leave(&self) {
        let is_over = self.state.lock().over.is_some();
        if (!self.durable || self.is_lease())
            && !is_over
            && let Some((connection, _)) = self.open.take()
            && !connection.has_failed()
        {
            connection.tell(&Request::Abort { key: self.key });
        }
    }

    /// Marks the current state.
    pub fn savepoint(&self) -> kvdb::Result<ServedSavepoint> {
        self.numbered(Numbered::Savepoint).map(ServedSavepoint)
    }

    /// Undoes the changes since a savepoint, which remains. After a connection error, the rollback
    /// may still take place later.
    pub fn roll_back(&self, to: &ServedSavepoint) -> kvdb::Result<()> {
        let rolled_back = self.numbered(Numbered::RollBack(to.0));
        // The server may have rolled back even if there was an error.
        let mut state = self.state.lock();
        state.pages.clear();
        state.new.clear();
        // A concurrent read may return the state before the rollback. Count a change, which keeps
        // that state out of the cache.
        state.made += 1;
        rolled_back.map(drop)
    }
}

impl Begun {
    /// Returns whether reading locks what is read.
    fn locks(&self) -> bool {
        match self {
            Begun::Transaction(options) => options.serializable,
            Begun::Lease(_) => false,
        }
    }
}

impl Drop for ServedTransaction {
    fn drop(&mut self) {
        self.leave();
    }
}

fn request_of(
    (key, holder): (TransactionKey, u64),
    begun: &Begun,
    joins: bool,
    takes: bool,
) -> Request {
    let milliseconds =
        |lease: Duration| u32::try_from(lease.as_millis()).unwrap_or(u32::MAX).max(1);
    let options = match begun {
        Begun::Transaction(options) => options,
        Begun::Lease(options) => {
            let (lease, label) = (milliseconds(options.lease), options.label.clone());
            return Request::Hold { key, joins, takes, lease, label };
        }
    };
    Request::Begin {
        key,
        holder,
        serializable: options.serializable,
        durable: options.durable,
        joins,
        takes,
        lease: milliseconds(options.lease),
        branch: options.branch.clone(),
        label: options.label.clone(),
    }
}

fn random_holder() -> Result<u64> {
    let bytes = random_key()?;
    Ok(u64::from_be_bytes(std::array::from_fn(|i| bytes[i])))
}

/// Returns random bytes that no other client draws or can guess. In a simulation they depend on the
/// seed.
pub(crate) fn random_key() -> Result<TransactionKey> {
    let mut key = [0; 16];
    if let (Some(first), Some(second)) = (env::schedule::random(), env::schedule::random()) {
        key[..8].copy_from_slice(&first.to_le_bytes());
        key[8..].copy_from_slice(&second.to_le_bytes());
        return Ok(key);
    }
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}

//! A transaction that a server has, as a view here that can be changed. No other client writes in
//! it, so everything that was read of it is kept without asking, as of a snapshot.
//!
//! Changes are gathered (`gathered`) and sent in numbered batches, when there are enough of them,
//! at an interval, or when a sync asks for it. Until the server has said that it has a batch, its
//! changes are seen here in place of what the server says. After a connection has failed, or the
//! server was begun anew, the transaction is taken up by its key, and the batches are sent again
//! that it has not got; those of a durable one are kept until they are on disk there.

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
use crate::deadline::left;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::gathered::Gathered;
use crate::outgoing::{Numbered, Outgoing, REQUEST_BYTES};
use crate::reply::{ConflictKey, Reply};
use crate::request::Request;
use crate::single_flight::SingleFlight;
use crate::transaction_state::State;

/// Bytes of batches of a durable transaction that may be here and not on disk there.
const KEPT: usize = 16 << 20;

/// An abort waits so long for the server: without one, the transaction ends with its lease.
const ABORT: Duration = Duration::from_secs(10);

/// How a transaction is begun.
#[derive(Clone, Debug)]
pub struct BeginOptions {
    /// It locks what it reads.
    pub serializable: bool,
    /// It survives this client and the server, and ends when it is ended.
    pub durable: bool,
    /// One that is not durable ends when the server has not heard of it for so long.
    pub lease: Duration,
    /// The branch that it is of; empty: the main branch.
    pub branch: String,
    /// For people who look at a list of transactions.
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

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has committed.
    Committed,
    /// It has committed, and is perhaps not on disk.
    NotSynced(String),
    /// Others have changed the same since it began. It is open as before.
    Conflict {
        /// A sentence.
        what: String,
        /// The first of the keys.
        keys: Vec<ConflictKey>,
    },
}

/// A state of a transaction to go back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedSavepoint(u64);

/// An open transaction of a server. One that is not durable is aborted when this is dropped.
pub struct ServedTransaction {
    client: Arc<Client>,
    key: TransactionKey,
    pub(crate) durable: bool,
    /// Reading locks nothing, so that more may be read than is asked for. Of one that was taken up
    /// that is not known.
    pub(crate) reads_ahead: bool,
    /// Tells this one from others with the key.
    holder: u64,
    begun: BeginOptions,
    id: TransactionId,
    pub(crate) space: Space,
    /// How long the server waits to hear of it; zero: for ever.
    pub(crate) lease: Duration,
    pub(crate) dictionaries: HashMap<String, DictionaryId>,
    /// The connection that it was taken up on last, and its number there.
    open: SingleFlight<(Arc<Connection>, u64)>,
    /// Made by the thread that sends for all.
    sends: SingleFlight<()>,
    pub(crate) outgoing: Mutex<Outgoing>,
    pub(crate) state: Mutex<State>,
}

impl ServedTransaction {
    /// Begins a transaction.
    pub fn begin(client: &Arc<Client>, options: BeginOptions) -> Result<ServedTransaction> {
        ServedTransaction::with_key(client, random_key()?, options, false)
    }

    /// Goes on with an open transaction, whose key tells that it is this client's. What was applied
    /// in it is seen.
    pub fn take_up(client: &Arc<Client>, key: TransactionKey) -> Result<ServedTransaction> {
        ServedTransaction::with_key(client, key, BeginOptions::default(), true)
    }

    fn with_key(
        client: &Arc<Client>,
        key: TransactionKey,
        begun: BeginOptions,
        joins: bool,
    ) -> Result<ServedTransaction> {
        let (mut there, heard) = (None, Instant::now());
        let holder = random_holder()?;
        let asked = client.retried(|deadline| {
            let connection = client.connection(deadline)?;
            let reply =
                connection.call(&request_of((key, holder), &begun, joins, joins), deadline)?;
            there = Some(connection);
            Ok(reply)
        });
        let Reply::Begun { transaction, id, batches, lease, space, dictionaries } = asked? else {
            return Err(Error::Unexpected);
        };
        Ok(ServedTransaction {
            client: client.clone(),
            key,
            // One that does not end by itself.
            durable: lease == 0,
            reads_ahead: !joins && !begun.serializable,
            holder,
            begun,
            id: TransactionId(id),
            space,
            lease: Duration::from_millis(u64::from(lease)),
            dictionaries: dictionaries.into_iter().map(|(id, name)| (name, id)).collect(),
            open: SingleFlight::new(there.map(|there| (there, transaction))),
            sends: SingleFlight::new(Some(())),
            outgoing: Mutex::new(Outgoing::after(batches)),
            state: Mutex::new(State::new(client.options.memory, heard)),
        })
    }

    /// The key, by which another client may take it up when this one is gone.
    pub fn key(&self) -> TransactionKey {
        self.key
    }

    /// Its number in the store.
    pub fn id(&self) -> TransactionId {
        self.id
    }

    /// Returns the connection and the number of the transaction there. On a new one it is taken up,
    /// and what the server has not got of it is sent again.
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
        // Only the thread that sends holds this for long, and none while it waits for an answer.
        self.outgoing.lock().again_after(batches)
    }

    /// Asks until there is an answer, or for as long as the client may.
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
            // When the server has heard of it, at the latest: the answer may have taken long.
            Ok(_) => state.heard = state.heard.max(begun),
            Err(Error::Failed(Failure { code: FailureCode::NoView, what })) => {
                state.over.get_or_insert_with(|| what.clone());
            }
            Err(_) => {}
        }
        asked
    }

    /// Fails where the transaction is over.
    pub(crate) fn check(&self) -> kvdb::Result<()> {
        match &self.state.lock().over {
            None => Ok(()),
            Some(_) => Err(kvdb::Error::NoTransaction(self.id)),
        }
    }

    /// Returns whether a commit was asked for whose outcome is not known: the server did not answer
    /// in time, or its answer was lost.
    pub fn is_in_doubt(&self) -> bool {
        let state = self.state.lock();
        state.commit_asked && state.over.is_none()
    }

    /// Says why it is over, if it is.
    pub fn over(&self) -> Option<String> {
        self.state.lock().over.clone()
    }

    /// Says why the server does not take what was changed, where it has no space for that.
    pub fn refused(&self) -> Option<String> {
        self.state.lock().refused.as_ref().map(|(why, _)| why.clone())
    }

    /// The error that a user of the store meets.
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
            _ => kvdb::Error::Invalid(what),
        }
    }

    /// Sends what was changed before this call. Of several threads one sends for all.
    pub fn send(&self) -> kvdb::Result<()> {
        self.check()?;
        let made = self.state.lock().made;
        // The thread that sends ends when the server is gone.
        let is_taken = |(): &()| self.state.lock().taken >= made;
        let sent = self.sends.get(None, is_taken, || self.send_gathered());
        sent.map_err(|e| self.told(e))
    }

    /// Sends what waits, as the only thread that does.
    fn send_gathered(&self) -> Result<()> {
        self.take_back();
        // First what could not be sent before, with the numbers that it has.
        self.send_queue()?;
        let made = {
            let mut state = self.state.lock();
            state.under_way = std::mem::take(&mut state.gathered);
            if state.under_way.bytes() <= REQUEST_BYTES {
                // A directory's node, for one, is put again with each name that is made in it. What
                // is left is one unit, and fits a request.
                state.under_way.compact();
            }
            let changes = std::mem::take(&mut state.under_way.changes);
            let ends = std::mem::take(&mut state.under_way.ends);
            self.outgoing.lock().queue(changes, &ends);
            state.made
        };
        self.send_queue()?;
        let mut state = self.state.lock();
        state.under_way = Gathered::default();
        state.taken = state.taken.max(made);
        if state.gathered.bytes() == 0 {
            state.waits_since = None;
        }
        Ok(())
    }

    /// Changes refused for want of space are put together with what was changed since: that may
    /// have removed some of it.
    fn take_back(&self) {
        let mut state = self.state.lock();
        if state.refused.is_none() {
            return;
        }
        let back = self.outgoing.lock().take_back();
        if back.is_empty() {
            return;
        }
        let later = std::mem::take(&mut state.gathered);
        let mut all = std::mem::take(&mut state.under_way);
        all.changes = back.iter().flat_map(|changes| changes.iter().cloned()).collect();
        all.follow(later);
        all.compact();
        state.gathered = all;
    }

    fn send_queue(&self) -> Result<()> {
        loop {
            let Some((number, next)) = self.outgoing.lock().next() else { break };
            self.send_one(number, next)?;
        }
        let is_much = self.outgoing.lock().kept_bytes() > KEPT;
        if self.durable && is_much {
            self.keep()?;
        }
        // The server has all that was under way.
        self.state.lock().under_way = Gathered::default();
        Ok(())
    }

    fn send_one(&self, number: u64, one: Numbered) -> Result<()> {
        let sent = self.ask_by(|there, transaction, deadline| {
            send(there, &one, transaction, number, deadline)
        });
        match sent {
            Ok(_) => {
                self.outgoing.lock().taken(number, self.durable);
                self.state.lock().refused = None;
                Ok(())
            }
            Err(e) => {
                if let Error::Failed(Failure { code: FailureCode::NoSpace, what }) = &e
                    && self.state.lock().refused.replace((what.clone(), Instant::now())).is_none()
                {
                    tracing::warn!("changes of transaction {} are refused: {what}", self.id);
                }
                if !e.is_of_connection() {
                    // The server has refused it, so it has not got this number.
                    self.outgoing.lock().refused(number);
                }
                Err(e)
            }
        }
    }

    /// Has the server sync what it has.
    pub(crate) fn keep(&self) -> Result<()> {
        let Some(last) = self.outgoing.lock().to_be_synced() else { return Ok(()) };
        self.ask(|transaction| Request::Sync { transaction })?;
        self.outgoing.lock().synced(last);
        Ok(())
    }

    /// Says that this client is still there. The transaction ends when the server has not heard of
    /// it for the time of its lease.
    pub fn renew(&self) -> kvdb::Result<()> {
        self.check()?;
        let renewed = self.ask(|transaction| Request::Lease { transaction });
        renewed.map(drop).map_err(|e| self.told(e))
    }

    /// Commits it, with all that was changed before this call. What is changed afterwards is lost.
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
                if let Error::Failed(Failure { code: FailureCode::NoView, what }) = &e {
                    self.state.lock().over.get_or_insert_with(|| what.clone());
                }
                return Err(self.told(e));
            }
            Ok(_) => return Err(self.told(Error::Unexpected)),
        };
        self.state.lock().over = Some("it has committed".into());
        Ok(outcome)
    }

    /// Asks for a commit, or for an end without one. The answer may be lost after it has ended, and
    /// then there is none to be taken up: so the end itself is asked for again.
    fn ask_for_end(&self, request: &Request, deadline: Instant) -> Result<Reply> {
        let connection = self.client.connection(deadline)?;
        match connection.call(request, deadline) {
            // It is open, and not taken up on this connection yet. A server that was begun anew
            // may lack batches, too.
            Err(Error::Failed(Failure { code: FailureCode::Invalid, .. })) => {
                let (there, _) = self.opened(deadline)?;
                there.call(request, deadline)
            }
            answer => answer,
        }
    }

    /// Ends it without its changes. A server that is not to be reached is not waited for as long as
    /// it is for other calls.
    pub fn abort(&self) -> kvdb::Result<()> {
        self.check()?;
        let request = Request::Abort { key: self.key };
        let ask = |deadline| self.ask_for_end(&request, deadline);
        let aborted = self.client.retried_within(ABORT, ask);
        aborted.map_err(|e| self.told(e))?;
        self.state.lock().over = Some("it was aborted".into());
        Ok(())
    }

    /// It is not used any more, whether the server is told of that or not.
    pub fn forget(&self) {
        self.state.lock().over.get_or_insert_with(|| "its client has left it".into());
    }

    /// Says that this client is gone: one that is not durable is aborted. The answer is not waited
    /// for; where the server is not to be reached, the lease ends it.
    pub fn leave(&self) {
        let is_over = self.state.lock().over.is_some();
        if !self.durable
            && !is_over
            && let Some((connection, _)) = self.open.take()
            && !connection.has_failed()
        {
            connection.tell(&Request::Abort { key: self.key });
        }
    }

    /// Marks the state that it has now.
    pub fn savepoint(&self) -> kvdb::Result<ServedSavepoint> {
        self.numbered(Numbered::Savepoint).map(ServedSavepoint)
    }

    /// Undoes what was changed since a savepoint, which stays. After an error of the connection it
    /// may happen later.
    pub fn roll_back(&self, to: &ServedSavepoint) -> kvdb::Result<()> {
        self.numbered(Numbered::RollBack(to.0))?;
        let mut state = self.state.lock();
        state.pages.clear();
        state.new.clear();
        // A read that is under way may be of the state before.
        state.made += 1;
        Ok(())
    }

    /// Sends what waits, and then this.
    fn numbered(&self, one: Numbered) -> kvdb::Result<u64> {
        self.check()?;
        let mut number = 0;
        // As the only thread that sends: another one would be told what becomes of this.
        let sent = self.sends.get(
            None,
            |()| false,
            || {
                self.send_gathered()?;
                number = self.outgoing.lock().add(one);
                // As if something was changed: if it is sent in vain, it is sent again.
                self.state.lock().made += 1;
                let sent = self.send_queue();
                if sent.is_err() {
                    // One that was not sent is not asked for any more.
                    self.outgoing.lock().withdraw(number);
                }
                sent
            },
        );
        sent.map_err(|e| self.told(e))?;
        Ok(number)
    }
}

impl Drop for ServedTransaction {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Sends something that has a number, in as many requests as it takes. Where the server has no room
/// for a long change, or has none any more, it is begun again.
fn send(
    there: &Connection,
    one: &Numbered,
    transaction: u64,
    number: u64,
    deadline: Instant,
) -> Result<Reply> {
    let mut pause = Duration::from_millis(10);
    loop {
        let mut all = one.requests(transaction, number).into_iter();
        let sent = all.try_fold(Reply::Done, |_, request| there.call(&request, deadline));
        match &sent {
            Err(Error::Failed(Failure { code: FailureCode::Again, what })) => {
                tracing::debug!("batch {number} is sent again: {what}");
                env::thread::sleep(pause.min(left(deadline)?));
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            _ => return sent,
        }
    }
}

fn request_of(
    (key, holder): (TransactionKey, u64),
    options: &BeginOptions,
    joins: bool,
    takes: bool,
) -> Request {
    Request::Begin {
        key,
        holder,
        serializable: options.serializable,
        durable: options.durable,
        joins,
        takes,
        lease: u32::try_from(options.lease.as_millis()).unwrap_or(u32::MAX).max(1),
        branch: options.branch.clone(),
        label: options.label.clone(),
    }
}

fn random_holder() -> Result<u64> {
    let bytes = random_key()?;
    Ok(u64::from_be_bytes(std::array::from_fn(|i| bytes[i])))
}

/// Bytes that no other client draws, nor guesses. Those of a simulated run are of its seed.
fn random_key() -> Result<TransactionKey> {
    let mut key = [0; 16];
    if let (Some(first), Some(second)) = (env::schedule::random(), env::schedule::random()) {
        key[..8].copy_from_slice(&first.to_le_bytes());
        key[8..].copy_from_slice(&second.to_le_bytes());
        return Ok(key);
    }
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}

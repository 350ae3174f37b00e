//! The state of one client, and what its commands use of it: the store, a transaction, locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use env::sync::{Mutex, MutexGuard};
use kvdb::{Batch, DictionaryId, Durability, Kvdb, NestedBatch, Transaction, TransactionId, View};

use crate::cursors::Cursors;
use crate::dictionaries::{self, Place, Selected};
use crate::failure::{Failure, Outcome};
use crate::limits::Limits;
use crate::locks::{Held, KeyLocks};
use crate::metrics::Metrics;
use crate::output::Budget;
use crate::scripts::{Scripts, Slot};
use crate::transactions::{Group, Groups, Importing, Snapshots, Transactions, Walking};

mod keys;
pub mod multi;
pub mod seen;

pub use keys::retry_on_conflict;
use multi::{Counted, Queue, Watch};

/// How often a change is tried again after a conflict.
pub const TRIES: usize = 64;

/// Returns what the owner of the store knows about it, as JSON.
pub type InfoSource = Arc<dyn Fn() -> String + Send + Sync>;

/// Has the owner of the store look at what it keeps there, as a whole: what it has found, as JSON.
pub type Check = Arc<dyn Fn() -> kvdb::Result<String> + Send + Sync>;

/// Says what keys of a dictionary are to the owner of the store, from the first up to the second: a
/// file, say.
pub type Describe = Arc<dyn Fn(&str, &[u8], &[u8]) -> Option<String> + Send + Sync>;

/// What all connections of a server share.
pub struct Shared {
    pub db: Kvdb,
    pub limits: Limits,
    pub password: Option<String>,
    pub durable: bool,
    pub info: Option<InfoSource>,
    pub describe: Option<Describe>,
    pub check: Option<Check>,
    pub socket: String,
    pub tcp: Option<SocketAddr>,
    pub locks: KeyLocks,
    pub transactions: Arc<dyn Transactions>,
    pub groups: Groups,
    pub snapshots: Arc<dyn Snapshots>,
    pub cursors: Cursors,
    pub scripts: Scripts,
    pub metrics: Metrics,
    pub next_client: AtomicU64,
    /// Bytes that large requests on their way in have taken, of all connections
    /// (`Limits::requests`).
    pub request_bytes: AtomicUsize,
    /// Bytes of replies that must be whole (`Limits::whole_replies`).
    pub whole_replies: Arc<Budget>,
    /// `WATCH` commands that are in force.
    pub watches: AtomicUsize,
    /// Set when the server stops, so that long commands end.
    pub stopping: AtomicBool,
    /// What has expired is removed in the background.
    pub sweeps: AtomicBool,
}

impl Shared {
    pub fn new(
        db: Kvdb,
        limits: Limits,
        password: Option<String>,
        durable: bool,
        info: Option<InfoSource>,
        metrics: Metrics,
    ) -> Self {
        Shared {
            transactions: Arc::new(db.clone()),
            groups: Groups::default(),
            snapshots: Arc::new(db.clone()),
            db,
            whole_replies: Arc::new(Budget::new(limits.whole_replies)),
            watches: AtomicUsize::new(0),
            cursors: Cursors::new(limits.cursors, limits.cursor_bytes),
            scripts: Scripts::new(None, &limits),
            limits,
            password,
            durable,
            info,
            describe: None,
            check: None,
            socket: String::new(),
            tcp: None,
            locks: KeyLocks::default(),
            metrics,
            next_client: AtomicU64::new(1),
            request_bytes: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            sweeps: AtomicBool::new(true),
        }
    }
}

/// One client.
pub struct Session {
    /// The user of the system at the other end, where the connection tells.
    pub user: Option<u32>,
    pub shared: Arc<Shared>,
    pub id: u64,
    pub address: String,
    pub name: String,
    pub library: (String, String),
    pub dictionary: Selected,
    /// Where its commands work, if not in a transaction.
    pub place: Place,
    /// Each write of this connection is durable before its reply leaves.
    pub durable: bool,
    /// The client must show the password before anything else.
    pub needs_password: bool,
    pub authenticated: bool,
    /// The connection ends when the reply is out.
    pub closing: bool,
    /// The transaction that commands work in, and what is shared with others that do.
    pub joined: Option<(Transaction, Arc<Group>)>,
    /// Transactions that end with this connection.
    pub attached: Vec<TransactionId>,
    /// Between `MULTI` and `EXEC`: what is to be run.
    pub queue: Option<Queue>,
    pub watches: Vec<(Watch, Counted)>,
    /// Under way in `EXEC`, which holds the locks.
    pub executing: Option<Executing>,
    /// The commands of an `EXEC` are run: one of several that are done together.
    pub exec_under_way: bool,
    /// What holds the locks holds those of all keys. Under some of them a dictionary of types
    /// cannot be made.
    pub all_locked: bool,
    /// Taken for the scripts of an `EXEC`.
    pub script_slot: Option<Slot>,
    /// The time that all commands of an `EXEC` see, milliseconds since 1970.
    pub exec_time: Option<u64>,
    /// A failure of the store, for which `EXEC` is to do nothing at all.
    pub stopped: Option<Failure>,
    /// Files on their way in.
    pub importing: Option<Box<dyn Importing>>,
    /// A walk through files.
    pub walking: Option<Box<dyn Walking>>,
}

/// Where the commands of an `EXEC` work.
pub enum Executing {
    /// In the transaction that the connection has joined: what they change is made there when all
    /// of them were run.
    Joined(Mutex<NestedBatch>),
    /// In one of its own.
    Own(Transaction),
}

impl Session {
    pub fn new(shared: Arc<Shared>, address: String, needs_password: bool) -> Self {
        Session {
            id: shared.next_client.fetch_add(1, Relaxed),
            address,
            user: None,
            name: String::new(),
            library: Default::default(),
            dictionary: Selected::default(),
            place: Place::Store,
            durable: shared.durable,
            needs_password,
            authenticated: !needs_password,
            closing: false,
            joined: None,
            attached: Vec::new(),
            queue: None,
            watches: Vec::new(),
            executing: None,
            exec_under_way: false,
            all_locked: false,
            script_slot: None,
            exec_time: None,
            stopped: None,
            importing: None,
            walking: None,
            shared,
        }
    }

    pub fn db(&self) -> &Kvdb {
        &self.shared.db
    }

    /// The user's dictionaries, by name.
    pub fn dictionaries(&self) -> Vec<(String, DictionaryId)> {
        dictionaries::listed_at(&self.place, &self.shared.db)
    }
    /// The dictionaries of their types.
    pub fn types_dictionaries(&self) -> Vec<DictionaryId> {
        dictionaries::types_at(&self.place, &self.shared.db)
    }

    /// Whether commands work in a transaction that was begun or joined, as opposed to one that
    /// `EXEC` makes for itself.
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }
    /// The transaction that commands work in; `None`: they work on the store itself.
    pub fn inside(&self) -> Option<&Transaction> {
        match &self.executing {
            Some(Executing::Own(transaction)) => Some(transaction),
            Some(Executing::Joined(_)) | None => {
                self.joined.as_ref().map(|(transaction, _)| transaction)
            }
        }
    }
    /// What `EXEC` is going to change in the joined transaction.
    fn nested_batch(&self) -> Option<MutexGuard<'_, NestedBatch>> {
        match &self.executing {
            Some(Executing::Joined(nested)) => Some(nested.lock()),
            _ => None,
        }
    }
    /// The newest value of a key where commands work on the store itself: one lookup, no view.
    /// `None`: they work elsewhere.
    pub fn newest(
        &self,
        dict: DictionaryId,
        key: &[u8],
    ) -> Option<Result<Option<Bytes>, kvdb::Error>> {
        let alone = self.executing.is_none() && self.joined.is_none();
        (alone && !matches!(self.place, Place::Snapshot(..))).then(|| self.shared.db.get(dict, key))
    }
    /// What is seen now. What is read through it must have been announced by `reads`; or see
    /// `view_of`.
    pub fn view(&self) -> Result<View, Failure> {
        if let Some(nested) = self.nested_batch() {
            return Ok(nested.view()?);
        }
        Ok(match (&self.place, self.inside()) {
            (Place::Snapshot(view, _), _) => view.clone(),
            (_, None) => self.shared.db.view(),
            (_, Some(transaction)) => transaction.view()?,
        })
    }
    /// These keys are going to be read: a serializable transaction locks them, the commit of an
    /// `EXEC` depends on them.
    pub fn reads<'k>(
        &self,
        dict: DictionaryId,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Outcome {
        match (&self.executing, self.inside()) {
            (Some(Executing::Own(own)), _) => {
                keys.into_iter().try_for_each(|key| own.read_conflict_key(dict, key))?
            }
            (_, Some(transaction)) => {
                keys.into_iter().try_for_each(|key| transaction.lock_key(dict, key, false))?
            }
            (_, None) => {}
        }
        Ok(())
    }
    /// What is seen now of `[start, end)`, which is going to be read; an empty `end` is the end of
    /// the dictionary.
    pub fn view_of(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<View, Failure> {
        match (&self.executing, self.inside()) {
            (Some(Executing::Own(own)), _) => own.read_conflict_range(dict, start, end)?,
            (_, Some(transaction)) => transaction.lock_range(dict, start, end, false)?,
            (_, None) => {}
        }
        self.view()
    }
    /// Commits; durability, where asked for, is the output's business (see there). In a transaction
    /// it is seen there alone.
    pub fn commit(&self, batch: Batch) -> Result<(), Failure> {
        if let Some(mut nested) = self.nested_batch() {
            return Ok(nested.apply(batch)?);
        }
        match self.inside() {
            None => Ok(self.shared.db.commit(batch, Durability::Buffered)?),
            Some(transaction) => Ok(transaction.apply(batch)?),
        }
    }

    pub fn locks(&self) -> &KeyLocks {
        match &self.joined {
            None => &self.shared.locks,
            Some((_, group)) => &group.locks,
        }
    }
    /// Locks these keys against other commands between reading and writing them. A lock of a
    /// transaction, which may take long, is waited for first.
    pub fn hold<'k>(
        &self,
        dict: DictionaryId,
        keys: impl IntoIterator<Item = &'k [u8]> + Clone,
    ) -> Result<Held<'_>, Failure> {
        if let Some(transaction) = self.inside() {
            for key in keys.clone() {
                transaction.lock_key(dict, key, true)?;
            }
        }
        if self.executing.is_some() {
            return Ok(Held::Already);
        }
        let mut keys = keys.into_iter();
        Ok(match (keys.next(), keys.next()) {
            (Some(key), None) => self.locks().key(dict, key),
            (first, second) => self.locks().keys(dict, first.into_iter().chain(second).chain(keys)),
        })
    }
    /// Locks all keys against other commands.
    pub fn hold_all(&self) -> Held<'_> {
        if self.executing.is_some() { Held::Already } else { self.locks().all() }
    }

    /// Commands work on the store itself again.
    pub fn leave(&mut self) {
        self.place = Place::Store;
        self.joined = None;
        self.watches.clear();
    }
    /// Forgets what `MULTI` has gathered.
    pub fn discard(&mut self) {
        self.queue = None;
        self.watches.clear();
    }
    /// Ends what is to end with this connection.
    pub fn let_go(&mut self) {
        for id in std::mem::take(&mut self.attached) {
            match self.shared.transactions.abort(id) {
                Ok(()) | Err(kvdb::Error::NoTransaction(_) | kvdb::Error::Locked(_)) => {}
                Err(error) => tracing::warn!("transaction {id} could not be aborted: {error}"),
            }
        }
    }
    /// A key that may be written.
    pub fn check_key(&self, key: &[u8]) -> Outcome {
        let max = self.shared.limits.key;
        if key.len() > max {
            return Err(Failure::request(format!(
                "key of {} bytes is longer than the limit of {max}",
                key.len()
            )));
        }
        Ok(())
    }
    /// Called from time to time by commands that take long.
    pub fn check_stopping(&self) -> Outcome {
        if self.shared.stopping.load(Relaxed) { Err(Failure::STOPPING) } else { Ok(()) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// What cannot be where nothing changes.
pub const SNAPSHOT: Failure = Failure::Coded(std::borrow::Cow::Borrowed(
    "READONLY a snapshot does not change: SNAPSHOT LEAVE first, or make a clone of it",
));

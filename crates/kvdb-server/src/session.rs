//! The state of one client, and the access of its commands to the store, to transactions and to
//! locks. `shared` has the state that all connections share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use kvdb::{
    Batch, CommitPosition, DictionaryId, Durability, Kvdb, Transaction, TransactionId, View,
};

use crate::clients::{Closer, Connection};
use crate::dictionaries::{self, Place, Selected};
use crate::effects::{Effect, Effects};
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::locks::{Held, KeyLocks};
use crate::notifications::Classes;
use crate::transactions::TransactionState;
use crate::waiters::Spot;

mod execution;
mod file_work;
mod identity;
mod keys;
pub mod multi;
pub mod seen;
mod shared;
pub mod subscriptions;

pub use execution::Executing;
use execution::Execution;
use file_work::FileWork;
use identity::{Identity, differ};
pub use keys::retry_on_conflict;
use multi::Multi;
pub use shared::Shared;
use subscriptions::Subscriptions;

/// Number of attempts to apply a change that conflicts.
pub const TRIES: usize = 64;

/// One client. The parts own their state; the remaining fields say in which place the commands of
/// the client work, and how they are answered.
pub struct Session {
    pub shared: Arc<Shared>,
    pub id: u64,
    /// The user, the rights and the names of the client.
    pub identity: Identity,
    /// The part of the connection that other connections use.
    pub connection: Arc<Connection>,
    pub subscriptions: Subscriptions,
    /// The tracking of the client, which is notified of changes of the keys that it caches.
    pub tracks: Option<Tracks>,
    /// Set if the client monitors all commands.
    pub monitors: bool,
    /// Set if a script has called the current command.
    pub in_script: bool,
    pub replies: Replies,
    pub dictionary: Selected,
    /// The state on which commands work, unless they work in a transaction.
    pub place: Place,
    /// Set if each write of this connection is durable before its reply is sent.
    pub durable: bool,
    /// Set if the connection ends after the reply has been sent.
    pub closing: bool,
    /// The transaction in which commands work, and the state that it shares with other
    /// connections.
    pub joined: Option<(Transaction, Arc<TransactionState>)>,
    /// Transactions that end with this connection.
    pub attached: Vec<TransactionId>,
    /// The commands between `MULTI` and `EXEC`, and the keys that `WATCH` has named.
    pub multi: Multi,
    /// The state of commands that take effect together.
    pub exec: Execution,
    /// The time that the current command has waited for other connections.
    pub waited: Duration,
    /// An import, a walk or an export in progress.
    pub file_work: FileWork,
}

/// The changes of which a client wants to be notified (`CLIENT TRACKING`).
#[derive(Default)]
pub struct Tracks {
    /// Set if the client tracks all keys with one of its prefixes, instead of the keys that it
    /// has read.
    pub all: bool,
    pub prefixes: Vec<Bytes>,
    /// Set if only keys of commands after `CLIENT CACHING YES` are tracked; otherwise the keys of
    /// all commands except those after `CLIENT CACHING NO` may be tracked.
    pub opt_in: bool,
    pub opt_out: bool,
    /// The argument of `CLIENT CACHING`, until the next command has run.
    pub caching: Option<bool>,
    /// Set if the client does not want to be notified of its own changes.
    pub no_loop: bool,
    /// The client that is notified in place of this one.
    pub redirect: Option<u64>,
    /// The position in the list of commits at which the transaction of an `EXEC` or a script began.
    pub since: Option<CommitPosition>,
}

/// The replies that a client wants (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    On,
    Off,
    /// All replies except the reply to the next command are sent.
    SkipNext,
}

impl Replies {
    /// Returns whether the reply to the command that is about to run is suppressed.
    pub fn mutes_next(&mut self) -> bool {
        let muted = *self != Replies::On;
        if *self == Replies::SkipNext {
            *self = Replies::On;
        }
        muted
    }
}

impl Session {
    /// Makes the session of a connection. `closer` closes the connection from another thread.
    pub fn new(
        shared: Arc<Shared>,
        address: String,
        needs_password: bool,
        closer: Option<Closer>,
    ) -> Self {
        let id = shared.clients.next_id();
        Session {
            id,
            connection: Arc::new(Connection::new(id, address, closer)),
            subscriptions: Subscriptions::default(),
            tracks: None,
            monitors: false,
            in_script: false,
            replies: Replies::On,
            identity: Identity::new(needs_password),
            dictionary: Selected::default(),
            place: Place::Store,
            durable: shared.access.is_durable(),
            closing: false,
            joined: None,
            attached: Vec::new(),
            multi: Multi::default(),
            exec: Execution::default(),
            waited: Duration::ZERO,
            file_work: FileWork::default(),
            shared,
        }
    }

    pub fn db(&self) -> &Kvdb {
        &self.shared.db
    }

    /// Returns the user's dictionaries, sorted by name.
    pub fn dictionaries(&self) -> Vec<(String, DictionaryId)> {
        dictionaries::listed_at(&self.place, &self.shared.db)
    }
    /// Returns the types dictionaries.
    pub fn types_dictionaries(&self) -> Vec<DictionaryId> {
        dictionaries::types_at(&self.place, &self.shared.db)
    }

    /// Returns whether commands work in a transaction that was begun or joined, in contrast to a
    /// transaction that `EXEC` makes for itself.
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }
    /// Returns the transaction in which commands work, or `None` if they work on the store
    /// itself.
    pub fn inside(&self) -> Option<&Transaction> {
        let joined = || self.joined.as_ref().map(|(transaction, _)| transaction);
        self.exec.own().or_else(joined)
    }
    /// Returns the newest value of a key if commands work on the store itself. This takes one
    /// lookup, and no view. Returns `None` if they work elsewhere.
    pub fn newest(
        &self,
        dict: DictionaryId,
        key: &[u8],
    ) -> Option<Result<Option<Bytes>, kvdb::Error>> {
        let alone = !self.exec.is_running() && self.joined.is_none();
        (alone && !matches!(self.place, Place::Snapshot(..))).then(|| self.shared.db.get(dict, key))
    }
    /// Updates the state of this connection that `CLIENT LIST` shows.
    pub fn show(&self, resp3: bool) {
        let mut shown = self.connection.shown.lock();
        self.identity.show(&mut shown);
        if differ(&shown.dictionary, self.dictionary.name()) {
            shown.dictionary = self.dictionary.name().into();
        }
        shown.resp3 = resp3;
        shown.queued = self.multi.queued();
        shown.channels = self.subscriptions.channels.len();
        shown.patterns = self.subscriptions.patterns.len();
        shown.monitors = self.monitors;
        shown.tracks = self.tracks.as_ref().map(|tracks| (tracks.all, tracks.redirect));
        shown.shards = self.subscriptions.shards.len();
    }
    /// Returns a view of the current state. All reads through the view must have been announced
    /// by `reads` or `reads_range`. In a serializable transaction these functions have locked the
    /// keys, which must then be read from the view that `renewed` returns.
    pub fn view(&self) -> Result<View, Failure> {
        if let Some(nested) = self.exec.nested() {
            return Ok(nested.view()?);
        }
        Ok(match (&self.place, self.inside()) {
            (Place::Snapshot(view, _), _) => view.clone(),
            (_, None) => self.shared.db.view(),
            (_, Some(transaction)) => transaction.view()?,
        })
    }
    /// Announces reads of these keys. A serializable transaction locks them, and the commit of an
    /// `EXEC` depends on them.
    pub fn reads<'k>(
        &self,
        dict: DictionaryId,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Outcome {
        match (self.exec.own(), self.inside()) {
            (Some(own), _) => {
                keys.into_iter().try_for_each(|key| own.read_conflict_key(dict, key))?
            }
            (_, Some(transaction)) => {
                keys.into_iter().try_for_each(|key| transaction.lock_key(dict, key, false))?
            }
            (_, None) => {}
        }
        Ok(())
    }
    /// Announces reads of `[start, end)`; an empty `end` is the end of the dictionary.
    pub fn reads_range(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Outcome {
        match (self.exec.own(), self.inside()) {
            (Some(own), _) => own.read_conflict_range(dict, start, end)?,
            (_, Some(transaction)) => transaction.lock_range(dict, start, end, false)?,
            (_, None) => {}
        }
        Ok(())
    }
    /// Renews a view that this session has taken. In a serializable transaction the renewed view
    /// shows the newest commits to the keys that the transaction has locked. Changes of the
    /// transaction itself, which other connections may also make, are the same as in `view`.
    pub fn renewed(&self, view: &View) -> Result<View, Failure> {
        match self.inside() {
            Some(transaction) => Ok(transaction.renew(view)?),
            None => Ok(view.clone()),
        }
    }
    /// Commits a batch. If durability is requested, the output provides it (see `output`). In a
    /// transaction the batch is visible only there.
    pub fn commit(&self, batch: Batch) -> Result<(), Failure> {
        if let Some(mut nested) = self.exec.nested() {
            return Ok(nested.apply(batch)?);
        }
        match self.inside() {
            None => Ok(self.shared.db.commit(batch, Durability::Buffered)?),
            Some(transaction) => Ok(transaction.apply(batch)?),
        }
    }

    /// Returns the spot of the selected dictionary, for notifications of its keys and for waiters.
    pub fn spot(&self) -> Spot {
        self.spot_of(self.dictionary.name())
    }
    /// Returns the spot of another dictionary in the same place.
    pub fn spot_of(&self, dictionary: &str) -> Spot {
        let clone = match &self.place {
            Place::Clone(clone) => Some(clone.clone()),
            _ => None,
        };
        Spot { transaction: None, clone, dictionary: dictionary.into() }
    }
    /// Returns whether clients want events of this class.
    pub fn notes(&self, class: Classes) -> bool {
        self.shared.notifications.are_on(class)
    }
    /// Carries out effects whose commit is visible. `EXEC` and a joined transaction keep the
    /// effects until their own commit.
    pub fn settle(&self, effects: Vec<Effect>) {
        if !effects.is_empty() {
            self.settle_at(self.spot(), effects);
        }
    }
    /// Does the same as [`Session::settle`] for a dictionary that need not be the selected one.
    pub fn settle_at(&self, spot: Spot, effects: Vec<Effect>) {
        let most = self.shared.limits.effects;
        if self.exec.is_running() {
            let dropped = self.exec.keep_effects(spot, effects, most);
            self.shared.metrics.effects_dropped.fetch_add(dropped, Relaxed);
        } else if self.joined.is_none() {
            self.shared.reached().carry_out_at(&spot, &effects);
        } else {
            let mut of_one = Effects::default();
            of_one.add(spot, effects, usize::MAX);
            self.settle_outside_exec(of_one);
        }
    }
    /// Returns whether a message of this size can be kept until the commit of the current
    /// transaction.
    pub fn has_room_for_effect(&self, bytes: usize) -> bool {
        let most = self.shared.limits.effects;
        let in_transaction = self.joined.as_ref().map(|(_, state)| state.effects.lock());
        let gathered = self.exec.effect_bytes();
        in_transaction.is_none_or(|kept| {
            kept.as_ref().is_none_or(|kept| kept.has_room(bytes + gathered, most))
        }) && self.exec.has_room_for_effect(bytes, most)
    }
    /// Settles the effects that were collected during `EXEC`; see [`Session::settle`].
    pub fn settle_all(&self) {
        self.settle_outside_exec(self.exec.take_effects());
    }
    fn settle_outside_exec(&self, effects: Effects) {
        let Some((transaction, state)) = &self.joined else {
            return self.shared.reached().carry_out(effects);
        };
        self.settle_with(transaction.id(), state, effects);
    }

    /// Keeps the effects of changes in a transaction until it commits.
    pub fn settle_in(&self, id: TransactionId, effects: Effects) {
        let state = self.shared.transaction_states.of(self.db(), id);
        self.settle_with(id, &state, effects);
    }

    fn settle_with(&self, id: TransactionId, state: &TransactionState, effects: Effects) {
        self.shared.reached().wake_inside(id, &effects);
        let mut kept = state.effects.lock();
        let Some(kept) = &mut *kept else {
            // Another connection has committed the transaction during this command.
            return self.shared.reached().carry_out(effects);
        };
        let dropped = kept.append(effects, self.shared.limits.effects);
        self.shared.metrics.effects_dropped.fetch_add(dropped, Relaxed);
    }

    pub fn locks(&self) -> &KeyLocks {
        match &self.joined {
            None => &self.shared.locks,
            Some((_, state)) => &state.locks,
        }
    }
    /// Locks these keys against other commands between reading and writing them. Locks of the
    /// transaction, which may take long to acquire, are taken first.
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
        if self.exec.is_running() {
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
        if self.exec.is_running() { Held::Already } else { self.locks().all() }
    }

    /// Leaves a transaction or place. Afterwards commands work on the store itself.
    pub fn leave(&mut self) {
        self.place = Place::Store;
        self.joined = None;
        self.multi.unwatch();
    }
    /// Aborts the transactions that end with this connection.
    pub fn let_go(&mut self) {
        for id in std::mem::take(&mut self.attached) {
            match self.shared.owner.transactions().abort(id) {
                Ok(()) | Err(kvdb::Error::NoTransaction(_) | kvdb::Error::Locked(_)) => {}
                Err(error) => tracing::warn!("transaction {id} could not be aborted: {error}"),
            }
        }
    }
    /// Checks that a key may be written.
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
    /// Returns an error when the server stops. Long commands call this from time to time.
    pub fn check_stopping(&self) -> Outcome {
        if self.shared.stopping.load(Relaxed) { Err(Failure::STOPPING) } else { Ok(()) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.unsubscribe_all();
        if self.monitors {
            self.shared.monitors.remove(self.id);
        }
        if self.tracks.is_some() {
            self.shared.tracking.end(self.id);
        }
        self.shared.clients.remove(self.id);
        self.shared.seals.end(self.id);
        self.let_go();
    }
}

/// The error for a write to a snapshot.
pub const SNAPSHOT: Failure = Failure::Coded(
    ErrorCode::ReadOnly,
    std::borrow::Cow::Borrowed(
        "a snapshot does not change: SNAPSHOT LEAVE first, or make a clone of it",
    ),
);

//! The lease of the main branch: its client changes the branch itself, batch after batch, and not
//! in a transaction. While it holds the lease, no other client changes the branch, so everything
//! that it has read stays valid (`docs/decisions/170-main-files-by-lease.md`).
//!
//! Each lease has an epoch, which is greater than those of all leases before it, including those of
//! earlier servers (`lease_record`). Requests are made in an epoch, and are refused in any but the
//! last one: a client that has lost the lease changes nothing any more, however late its requests
//! arrive.
//!
//! A client that was not heard of for the time of its lease keeps it until another one wants to
//! change the branch. So no clock decides as long as there is only one client.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use kvdb::{Batch, DictionaryId, Durability, Isolation, Kvdb, ServedChange, TransactionInfo, View};

use crate::body::{MAX_DICTIONARIES, TransactionKey};
use crate::changes::{add_changes, dictionary_of, gives_back, reference_of};
use crate::failure::{Failure, FailureCode, of_store};
use crate::host::Host;
use crate::lease_record::{LeaseRecord, Stands};
use crate::records::Records;
use crate::referred::Referred;
use crate::reply::Reply;
use crate::sequence::{Refused, is_next};

mod heard;
mod known;

use heard::Heard;
pub(crate) use heard::UnderWay;
use known::Known;

/// The shortest and the longest lease, of transactions, too.
const LEASES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(24 * 3600));
/// The lease of a client that asks for none.
const LEASE: Duration = Duration::from_secs(60);
/// Limit of the inode numbers that are reserved at once.
const MAX_RESERVED: u32 = 1 << 20;

type Answer<T> = Result<T, Failure>;

/// Returns the time of a lease that a client asks for, in milliseconds.
pub(crate) fn lease_time(asked: u32) -> Duration {
    match asked {
        0 => LEASE,
        asked => Duration::from_millis(u64::from(asked)).clamp(LEASES.0, LEASES.1),
    }
}

/// Returns whether a client holds the lease of the main branch of a store, even while no server
/// runs. A program that serves the store then leaves the files alone that the client has in use.
pub fn is_lent(db: &Kvdb) -> kvdb::Result<bool> {
    let Some(dict) = Records::dict_of(db) else { return Ok(false) };
    let record = LeaseRecord::read(db, dict)?;
    Ok(record.is_some_and(|record| record.stands == Stands::Held))
}

/// Returns the count of inode numbers that a client gets when it asks for this many.
pub(crate) fn numbers_to_reserve(asked: u32) -> u32 {
    asked.clamp(1, MAX_RESERVED)
}

/// A client's request for the lease.
pub(crate) struct AskedLease {
    pub key: TransactionKey,
    pub joins: bool,
    pub takes: bool,
    pub lease: u32,
    pub label: String,
    /// The number of the connection on which the request arrived.
    pub connection: u64,
}

/// The lease as a connection has it.
#[derive(Clone)]
pub(crate) struct HeldLease {
    pub key: TransactionKey,
    epoch: u64,
    /// The number of the connection. Later connections of a client have greater numbers.
    connection: u64,
    /// The dictionaries of the main branch, which the client may read and change.
    dictionaries: Arc<HashSet<DictionaryId>>,
}

/// The lease of the main branch of a store.
pub(crate) struct Lending {
    db: Kvdb,
    host: Arc<dyn Host>,
    /// The dictionary of the records.
    dict: DictionaryId,
    /// Locked for reading while a client changes the main branch without the lease.
    state: RwLock<State>,
    /// The leases by their keys, for requests that do not wait for the state.
    known: Known,
    /// The epoch of the client that holds the lease, or 0. Reads do not wait for changes.
    epoch: AtomicU64,
    /// When the server last heard of that client.
    heard: Heard,
}

#[derive(Default)]
struct State {
    record: Option<LeaseRecord>,
    refused: Option<Refused>,
}

/// Keeps the lease from being taken while a client changes the main branch without it.
pub(crate) struct Unlent<'a> {
    _state: RwLockReadGuard<'a, State>,
}

impl Lending {
    /// A lease that an earlier server has given continues. `dict` has the records.
    pub fn open(db: &Kvdb, host: Arc<dyn Host>, dict: DictionaryId) -> kvdb::Result<Lending> {
        let record = LeaseRecord::read(db, dict)?;
        let lending = Lending {
            db: db.clone(),
            host,
            dict,
            known: Known::of(record.as_ref()),
            // Its client has all of its time from now on: it could not reach a server before.
            heard: Heard::of(record.as_ref().map_or(0, |record| record.epoch)),
            state: RwLock::new(State { record, ..State::default() }),
            epoch: AtomicU64::new(0),
        };
        {
            let mut state = lending.state.write();
            if let Some(held) = state.held().cloned() {
                match lending.host.lend(Some(held.lent_in)) {
                    Ok(lent_in) => {
                        let record = LeaseRecord { lent_in, ..held };
                        lending.note(&record, Durability::Buffered)?;
                        lending.epoch.store(record.epoch, Ordering::Release);
                        state.record = Some(record);
                    }
                    Err(e) => {
                        tracing::warn!("the lease of the main branch is over: {e}");
                        lending.end(&mut state, Stands::Lost)?;
                    }
                }
            }
        }
        Ok(lending)
    }

    /// Gives the lease to a client, or continues with that of this key.
    pub fn hold(&self, asked: AskedLease) -> Answer<HeldLease> {
        let mut state = self.state.write();
        let same = state.held().filter(|held| held.key == asked.key).map(|held| held.epoch);
        if let Some(epoch) = same {
            self.heard.hears();
            return Ok(self.held(&asked, epoch));
        }
        // A request of an ended lease arrives late, or its client was not notified yet.
        if asked.joins || self.known.is_former(&asked.key) {
            return Err(state.fenced());
        }
        let locks = |info: &TransactionInfo| {
            info.branch.is_empty() && info.isolation == Isolation::Serializable
        };
        if self.db.transactions().iter().any(locks) {
            let what = "a serializable transaction of the main files is open: end it first".into();
            return Err(Failure { code: FailureCode::Locked, what });
        }
        if let Some(held) = state.held() {
            let silent = self.heard.silent();
            if !asked.takes && silent < held.time() {
                return Err(lent_to(held, silent));
            }
            tracing::info!("the lease of {} ends, since another client takes it", held.label);
            self.end(&mut state, Stands::Lost).map_err(of_store)?;
        }
        let lent_in = self.host.lend(None).map_err(of_store)?;
        let epoch = state.record.as_ref().map_or(0, |last| last.epoch) + 1;
        let record = LeaseRecord {
            epoch,
            stands: Stands::Held,
            key: asked.key,
            batches: 0,
            time: u32::try_from(lease_time(asked.lease).as_millis()).unwrap_or(u32::MAX),
            lent_in,
            // The label is shown to people, and comes from a client.
            label: match &*asked.label {
                "" => "a client".into(),
                label => label.escape_debug().to_string(),
            },
        };
        // The epoch is on disk before the client knows it, so that no two leases have the same
        // epoch.
        if let Err(e) = self.note(&record, Durability::Synced) {
            self.host.take_back();
            return Err(of_store(e));
        }
        self.known.note(&record.key, Stands::Held);
        (state.record, state.refused) = (Some(record), None);
        self.heard.begins(epoch);
        self.epoch.store(epoch, Ordering::Release);
        Ok(self.held(&asked, epoch))
    }

    fn held(&self, asked: &AskedLease, epoch: u64) -> HeldLease {
        let all = self.db.dictionaries().into_iter().map(|info| info.id);
        let dictionaries = Arc::new(all.filter(|dict| *dict != self.dict).collect());
        HeldLease { key: asked.key, epoch, connection: asked.connection, dictionaries }
    }

    /// Returns the answer to a client that holds the lease.
    pub fn begun(&self, held: &HeldLease, number: u64) -> Answer<Reply> {
        let state = self.lock(held)?;
        let Some(record) = state.held() else { return Err(state.fenced()) };
        let all = self.db.dictionaries().into_iter();
        let mine = all.filter(|info| held.dictionaries.contains(&info.id)).take(MAX_DICTIONARIES);
        Ok(Reply::Begun {
            transaction: number,
            id: held.epoch,
            batches: record.batches,
            lease: record.time,
            space: self.db.space(),
            dictionaries: mine.map(|info| (info.id, info.name)).collect(),
        })
    }

    /// Ends the lease. Its end is noted before the main branch changes without it.
    fn end(&self, state: &mut State, stands: Stands) -> kvdb::Result<()> {
        let Some(held) = state.held() else { return Ok(()) };
        let record = LeaseRecord { stands, ..held.clone() };
        self.note(&record, Durability::Buffered)?;
        self.epoch.store(0, Ordering::Release);
        self.known.note(&record.key, stands);
        (state.record, state.refused) = (Some(record), None);
        self.host.take_back();
        Ok(())
    }

    fn note(&self, record: &LeaseRecord, durability: Durability) -> kvdb::Result<()> {
        let mut batch = Batch::new();
        record.put(&mut batch, self.dict);
        // The lease of a full store can be taken and given back, too.
        batch.releases_space();
        self.db.commit(batch, durability)
    }

    /// Lets a client change the branch without the lease, until the result is dropped. Fails if it
    /// is the main branch and another client holds the lease. A lease whose time is over ends.
    pub fn without_lease(&self, branch: &str) -> Answer<Option<Unlent<'_>>> {
        if !branch.is_empty() {
            return Ok(None);
        }
        loop {
            let state = self.state.read();
            if state.held().is_none() {
                return Ok(Some(Unlent { _state: state }));
            }
            drop(state);
            let mut state = self.state.write();
            if let Some(held) = state.held() {
                let silent = self.heard.silent();
                if silent < held.time() {
                    return Err(lent_to(held, silent));
                }
                tracing::warn!("the lease of {} is over: its time has passed", held.label);
                self.end(&mut state, Stands::Lost).map_err(of_store)?;
            }
        }
    }

    /// Locks the state for a request of the client that holds the lease.
    fn lock(&self, held: &HeldLease) -> Answer<RwLockWriteGuard<'_, State>> {
        let state = self.state.write();
        let is_held = state.held().is_some_and(|record| record.epoch == held.epoch);
        match is_held {
            true => Ok(state),
            false => Err(state.fenced()),
        }
    }

    /// Locks the state for the batch of this number if it is the next one. Returns `None` if the
    /// batch was already applied.
    fn next(&self, held: &HeldLease, number: u64) -> Answer<Option<RwLockWriteGuard<'_, State>>> {
        let state = self.lock(held)?;
        let have = state.held().map_or(0, |record| record.batches);
        let is_next = is_next(number, held.connection, have, state.refused)?;
        Ok(is_next.then_some(state))
    }

    /// Returns whether the batch of this number was already applied. Fails if it is not the next
    /// one either.
    pub fn has(&self, held: &HeldLease, number: u64) -> Answer<bool> {
        self.next(held, number).map(|next| next.is_none())
    }

    /// Fails with `why`, after noting that a part of this batch was refused. Succeeds if the batch
    /// was applied in the meantime.
    pub fn refuse(&self, held: &HeldLease, number: u64, why: Failure) -> Answer<()> {
        match self.next(held, number)? {
            Some(mut state) => {
                state.refused = Some(Refused { number, connection: held.connection });
                Err(why)
            }
            None => Ok(()),
        }
    }

    /// Applies a batch to the main branch, at most once.
    pub fn apply(&self, held: &HeldLease, number: u64, changes: Vec<ServedChange>) -> Answer<()> {
        // The state stays locked until the batch is applied, so that no other client gets the lease
        // before.
        let Some(mut state) = self.next(held, number)? else { return Ok(()) };
        let Some(record) = state.held() else { return Err(state.fenced()) };
        let record = LeaseRecord { batches: number, ..record.clone() };
        match self.apply_next(held, &record, changes) {
            Ok(()) => {
                state.record = Some(record);
                Ok(())
            }
            Err(why) => {
                state.refused = Some(Refused { number, connection: held.connection });
                Err(why)
            }
        }
    }

    fn apply_next(
        &self,
        held: &HeldLease,
        record: &LeaseRecord,
        changes: Vec<ServedChange>,
    ) -> Answer<()> {
        let other = changes.iter().find(|change| !held.may(dictionary_of(change)));
        if let Some(change) = other {
            return Err(no_dictionary(dictionary_of(change)));
        }
        let other = changes.iter().filter_map(reference_of).find(|one| !held.may(one.of.0));
        if let Some(one) = other {
            return Err(no_dictionary(one.of.0));
        }
        self.host.note_changes(&changes);
        let referred = Referred::of(&self.db, &self.db.view(), &changes, of_store)?;
        let mut batch = Batch::new();
        if gives_back(&changes) {
            batch.releases_space();
        }
        add_changes(&mut batch, changes, referred.values);
        record.put(&mut batch, self.dict);
        self.db.commit(batch, Durability::Buffered).map_err(of_store)
    }

    /// Syncs all batches that were applied.
    pub fn sync(&self, held: &HeldLease) -> Answer<()> {
        drop(self.lock(held)?);
        self.db.sync().map_err(of_store)
    }

    /// Counts a request under the lease, which does not end by its time until the result is
    /// dropped, and has all of its time then.
    pub fn under_way(&self, held: &HeldLease) -> UnderWay<'_> {
        self.heard.under_way(held.epoch)
    }

    /// Succeeds if the client holds the lease, which the request has renewed.
    pub fn renew(&self, held: &HeldLease) -> Answer<()> {
        self.lock(held).map(drop)
    }

    pub fn reserve(&self, held: &HeldLease, count: u32) -> Answer<Range<u64>> {
        drop(self.lock(held)?);
        let count = numbers_to_reserve(count);
        let reserved = self.host.reserve_numbers_of_main(count).map_err(of_store)?;
        // The client outlives this server, so the record that these numbers are taken must do so,
        // too.
        self.db.sync().map_err(of_store)?;
        Ok(reserved)
    }

    /// Returns the main branch as it is now, to read from a dictionary.
    pub fn view(&self, held: &HeldLease, dict: DictionaryId) -> Answer<View> {
        if !held.may(dict) {
            return Err(no_dictionary(dict));
        }
        let view = self.db.view();
        // After the view is made: a holder of later than that has changed nothing in it.
        if self.epoch.load(Ordering::Acquire) != held.epoch {
            return Err(self.state.read().fenced());
        }
        Ok(view)
    }

    /// Ends the lease of this key at its client's request. Returns `None` if there is no such
    /// lease. `batches` is the number of the last batch, if the client states it. `held` is the
    /// lease as the connection of the request has it.
    pub fn give_back(
        &self,
        key: &TransactionKey,
        batches: Option<u64>,
        synced: bool,
        held: Option<&HeldLease>,
    ) -> Option<Answer<()>> {
        // Transactions end by this key, too, and must not wait for the state.
        self.known.stands(key)?;
        let mut state = self.state.write();
        match self.known.stands(key)? {
            Stands::Held => {
                if let Err(why) = self.give_back_held(&mut state, batches, held) {
                    return Some(Err(why));
                }
            }
            // The answer was lost.
            Stands::GivenBack => {}
            Stands::Lost => return Some(Err(state.fenced())),
        }
        drop(state);
        let synced = if synced { self.db.sync() } else { Ok(()) };
        Some(synced.map_err(kvdb::Error::after_commit).map_err(of_store))
    }

    fn give_back_held(
        &self,
        state: &mut State,
        batches: Option<u64>,
        held: Option<&HeldLease>,
    ) -> Answer<()> {
        let invalid = |what: String| Err(Failure { code: FailureCode::Invalid, what });
        let Some(record) = state.held() else { return Err(state.fenced()) };
        if held.is_none_or(|held| held.epoch != record.epoch) {
            return invalid("the lease was not asked for on this connection".into());
        }
        let have = record.batches;
        if let Some(batches) = batches.filter(|batches| *batches != have) {
            return invalid(format!("{batches} batches were sent, and {have} have come"));
        }
        self.end(state, Stands::GivenBack).map_err(of_store)
    }
}

impl HeldLease {
    fn may(&self, dict: DictionaryId) -> bool {
        self.dictionaries.contains(&dict)
    }
}

impl State {
    /// Returns the lease if a client holds it.
    fn held(&self) -> Option<&LeaseRecord> {
        self.record.as_ref().filter(|record| record.stands == Stands::Held)
    }

    /// Returns the failure of a client that does not hold the lease any more.
    fn fenced(&self) -> Failure {
        let what = match self.held() {
            Some(held) => format!("{} has the lease of the main files by now", held.label),
            None => "the lease of the main files is over, and others may have changed them".into(),
        };
        Failure { code: FailureCode::Fenced, what }
    }
}

impl LeaseRecord {
    fn time(&self) -> Duration {
        Duration::from_millis(u64::from(self.time))
    }
}

fn lent_to(held: &LeaseRecord, silent: Duration) -> Failure {
    let what = format!(
        "{} has the lease of the main files, and was heard of {} s ago: it ends when the client \
         gives it back, or was not heard of for {} s",
        held.label,
        silent.as_secs(),
        held.time().as_secs_f64()
    );
    Failure { code: FailureCode::Locked, what }
}

fn no_dictionary(dict: DictionaryId) -> Failure {
    let what = format!("{} in the main branch", dict.0);
    Failure { code: FailureCode::NoDictionary, what }
}

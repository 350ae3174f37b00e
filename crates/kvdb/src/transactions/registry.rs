//! The transactions that are open, and what is kept for their sake.

use env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use env::sync::{Mutex, RwLock};
use vt_tree::Seq;

use super::conflicts::MergeRoutine;
use super::locking::WOUNDED;
use super::options::{Isolation, TransactionOptions};
use super::state::{Open, TransactionState};
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::locks::Owner;

/// Open transactions at most: each pins a state of the store.
const MOST: usize = 65_536;
/// Of those that stay open by themselves, one for so many bytes of the store's memory: each takes
/// some even without any changes.
const EACH: usize = 64 << 10;
/// As many of these may be open however little memory there is.
const LEAST: usize = 256;
/// What an idle transaction with less in memory would take as a run is not less.
const WORTH_SPILLING: usize = 8 << 10;
/// Transactions that were lost to older ones which are remembered, for those who come to end them.
const LOST: usize = 4096;
/// What a transaction may keep in memory however many there are, bytes.
const SHARE_LEAST: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Transactions {
    open: Mutex<BTreeMap<TransactionId, Arc<TransactionState>>>,
    count: AtomicUsize,
    /// Of those, detached ones.
    detached: AtomicUsize,
    next: AtomicU64,
    /// Memory of the changes of all of them, bytes.
    pub(super) held: AtomicUsize,
    /// Held while idle ones are written out.
    spilling: Mutex<()>,
    /// Bytes of all nested batches.
    pub(super) nested_bytes: AtomicUsize,
    /// Held while a log begins that no open transaction has yet, and while logs are dropped that
    /// none has.
    pub(super) logging: Mutex<()>,
    lost: Mutex<VecDeque<TransactionId>>,
    pub(super) routines: RwLock<BTreeMap<DictionaryId, Arc<dyn MergeRoutine>>>,
}

impl Transactions {
    /// A number that is never given again.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn begin(
        &self,
        db: &Arc<Database>,
        options: TransactionOptions,
    ) -> Result<Arc<TransactionState>> {
        let stays = options.detached || options.durable;
        let most = (db.options.memory / EACH).clamp(LEAST, MOST);
        let too_many = |most: usize| {
            Error::Limit(format!(
                "{most} transactions are open: end some, or give the store more memory (one for each {EACH} bytes)"
            ))
        };
        if stays && self.detached.load(Ordering::Relaxed) >= most {
            return Err(too_many(most));
        }
        let id = TransactionId(self.number());
        let logging = options.durable.then(|| self.logging.lock());
        let logged = options.durable.then(|| db.begin_log(id, &options)).transpose()?;
        let mut open = self.open.lock();
        // Once more, since others may have begun in between; a log that is there already is let be,
        // and swept up if this one has none.
        if open.len() >= MOST
            || stays && logged.is_none() && self.detached.load(Ordering::Relaxed) >= most
        {
            return Err(too_many(if open.len() >= MOST { MOST } else { most }));
        }
        let base = db.recent.begin(|| {
            let base = (options.isolation == Isolation::Snapshot).then(|| db.versions.exact_view());
            (base.as_ref().map(|view| view.at), base)
        });
        let since = base.as_ref().map_or(Seq::MAX, |view| view.at);
        let with = logged.unwrap_or_else(|| Open::new(base));
        let transaction = self.insert(&mut open, db, id, options, with, since);
        drop((open, logging));
        if transaction.options.isolation == Isolation::Serializable {
            let age = transaction.options.retry_of.unwrap_or(id).0.min(id.0);
            db.locks.begin(Owner { id: id.0, age });
            // Commits that have seen no locks come to their end.
            db.commits.drain();
        }
        Ok(transaction)
    }

    fn insert(
        &self,
        open: &mut BTreeMap<TransactionId, Arc<TransactionState>>,
        db: &Arc<Database>,
        id: TransactionId,
        options: TransactionOptions,
        with: Open,
        since: Seq,
    ) -> Arc<TransactionState> {
        let transaction = TransactionState::new(db.clone(), id, options, db.now(), since, with);
        if let Some(with) = &mut transaction.state.write().open {
            transaction.count(with);
        }
        open.insert(id, transaction.clone());
        self.count.store(open.len(), Ordering::Relaxed);
        self.detached.fetch_add(usize::from(transaction.options.detached), Ordering::Relaxed);
        transaction
    }

    /// A transaction of this number exists or has existed.
    pub(super) fn number_used(&self, id: TransactionId) {
        self.next.fetch_max(id.0, Ordering::Relaxed);
    }

    /// Takes up one that began before the store was opened.
    pub(super) fn take_up(
        &self,
        db: &Arc<Database>,
        id: TransactionId,
        options: TransactionOptions,
        with: Open,
    ) {
        let mut open = self.open.lock();
        let since = db.recent.begin(|| {
            let at = db.versions.exact_view().at;
            (Some(at), at)
        });
        self.insert(&mut open, db, id, options, with, since);
    }

    pub(super) fn find(&self, id: TransactionId) -> Option<Arc<TransactionState>> {
        self.open.lock().get(&id).cloned()
    }

    /// It was aborted for an older one. A later call for it is told that it is worth
    /// another try.
    pub(super) fn lose(&self, id: TransactionId) {
        let mut lost = self.lost.lock();
        if lost.len() == LOST {
            lost.pop_front();
        }
        lost.push_back(id);
    }

    /// Why it is over, if it was lost to an older one not long ago.
    pub(super) fn lost(&self, id: TransactionId) -> Option<Error> {
        self.lost
            .lock()
            .contains(&id)
            .then(|| Error::Locked(format!("transaction {id} was aborted: {WOUNDED}")))
    }

    pub(super) fn all(&self) -> Vec<Arc<TransactionState>> {
        self.open.lock().values().cloned().collect()
    }

    /// It has ended.
    pub(super) fn forget(&self, id: TransactionId) {
        let mut open = self.open.lock();
        let gone = open.remove(&id);
        if let Some(gone) = &gone {
            self.held.fetch_sub(gone.held.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            self.detached.fetch_sub(usize::from(gone.options.detached), Ordering::Relaxed);
        }
        self.count.store(open.len(), Ordering::Relaxed);
        drop(open);
        if let Some(gone) = gone.filter(|gone| gone.since != Seq::MAX) {
            gone.db.recent.end(gone.since);
        }
    }

    /// Memory that each transaction may take for what it has not written out: together a part of
    /// that for memtables.
    pub(super) fn share(&self, db: &Database) -> usize {
        (db.shares.memtables / 8 / self.count.load(Ordering::Relaxed).max(1)).max(SHARE_LEAST)
    }

    /// Memory that the changes of all transactions may take together, but for what is not worth
    /// writing out.
    fn most_held(db: &Database) -> usize {
        db.shares.memtables / 8
    }

    /// Writes out what idle transactions have in memory, the largest first, where all of them have
    /// more than their part of it together. `asking`: the transaction that is about to change
    /// something, which writes out by itself.
    pub(super) fn make_room(&self, db: &Database, asking: TransactionId) {
        let most = Self::most_held(db);
        if self.held.load(Ordering::Relaxed) <= most {
            return;
        }
        let Some(_one) = self.spilling.try_lock() else { return };
        let held = |transaction: &Arc<TransactionState>| transaction.held.load(Ordering::Relaxed);
        let mut all: Vec<_> =
            self.all().into_iter().map(|transaction| (held(&transaction), transaction)).collect();
        all.retain(|(held, transaction)| *held >= WORTH_SPILLING && transaction.id != asking);
        all.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
        for (_, transaction) in all {
            // A little more than need be, so that not every change has to look.
            if self.held.load(Ordering::Relaxed) <= most - most / 4 {
                return;
            }
            if let Err(e) = transaction.make_small() {
                // It stays as it was; the next call of the transaction is told.
                tracing::warn!("transaction {} could not be written out: {e}", transaction.id);
                return;
            }
        }
    }

    /// Takes `bytes` more for a nested batch, of what all nested batches may take together.
    pub(super) fn reserve_nested(&self, db: &Database, bytes: usize) -> Result<()> {
        let most = db.shares.memtables / 2;
        if self.nested_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > most {
            self.nested_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::Limit(format!(
                "more than {most} bytes are to be changed at once: do it in parts, or give the store more memory"
            )));
        }
        Ok(())
    }

    /// Aborts those that were unused for longer than they allow.
    pub(crate) fn end_idle(&self, now: Duration) {
        for transaction in self.all() {
            let idle = now.saturating_sub(Duration::from_nanos(
                transaction.used_nanos.load(Ordering::Relaxed),
            ));
            if transaction.options.idle_limit.is_some_and(|limit| idle > limit) {
                transaction.end("it was idle for too long");
            }
        }
    }

    /// The store is being closed: durable ones go on when it is opened again, the others are
    /// aborted.
    pub(crate) fn close(&self) {
        self.all().iter().for_each(|transaction| transaction.leave("the store was closed"));
    }
}

//! The registry of open transactions, and the resources that they share.

use env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use env::sync::{Mutex, RwLock};
use vt_tree::Seq;

use super::conflicts::MergeRoutine;
use super::handle::Transaction;
use super::locking::WOUNDED;
use super::nested::Within;
use super::options::{Isolation, TransactionInfo, TransactionOptions};
use super::state::{Open, TransactionState};
use crate::background::Admission;
use crate::catalog::Catalog;
use crate::commit::Committer;
use crate::commit::batch::{Batch, Durability};
use crate::commit::recent::RecentCommits;
use crate::dictionary::DictionaryId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::locks::{Locks, Owner};
use crate::options::Shares;
use crate::snapshots::Snapshotter;
use crate::version::version_set::VersionSet;

/// Maximum number of open transactions, since each pins a state of the store.
const MOST: usize = 65_536;
/// One detached transaction may be open for this many bytes of the store's memory, since each takes
/// some memory even without changes.
const EACH: usize = 64 << 10;
/// The number of detached transactions that may be open however little memory there is.
const LEAST: usize = 256;
/// An idle transaction with fewer bytes in memory is not spilled, since its run would take as much
/// memory.
const WORTH_SPILLING: usize = 8 << 10;
/// Number of transactions aborted for older ones that are remembered, for the callers that end them
/// later.
const LOST: usize = 4096;
/// The memory that each transaction may use however many there are, bytes.
const SHARE_LEAST: usize = 64 << 10;

/// The parts of the store next to the engine that transactions use.
pub(crate) struct TransactionParts {
    pub commits: Arc<Committer>,
    pub recent: Arc<RecentCommits>,
    pub locks: Arc<Locks>,
    pub snapshotter: Arc<Snapshotter>,
    pub catalog: Arc<Catalog>,
    pub admission: Arc<Admission>,
}

pub(crate) struct Transactions {
    pub(super) engine: Engine,
    pub(super) parts: TransactionParts,
    pub(super) shares: Shares,
    pub(super) open: Mutex<BTreeMap<TransactionId, Arc<TransactionState>>>,
    count: AtomicUsize,
    /// The number of detached transactions in `open`.
    detached: AtomicUsize,
    next: AtomicU64,
    /// Memory of the changes of all transactions, bytes.
    pub(super) held: AtomicUsize,
    /// Held while idle transactions are spilled.
    spilling: Mutex<()>,
    /// Bytes of all nested batches.
    pub(super) nested_bytes: AtomicUsize,
    /// Held while a log is begun whose transaction is not yet open, and while logs without an open
    /// transaction are dropped.
    pub(super) logging: Mutex<()>,
    lost: Mutex<VecDeque<TransactionId>>,
    /// Held while a transaction becomes dependent on another one.
    pub(super) depending: Mutex<()>,
    pub(super) routines: RwLock<BTreeMap<DictionaryId, Arc<dyn MergeRoutine>>>,
}

/// Keeps recent commits for conflict detection while it lives, as an open transaction does.
struct Remembering<'a> {
    recent: &'a RecentCommits,
    since: Seq,
}

impl<'a> Remembering<'a> {
    fn begin(versions: &VersionSet, recent: &'a RecentCommits) -> Remembering<'a> {
        let since = recent.begin(|| {
            let at = versions.view().at;
            (Some(at), at)
        });
        Remembering { recent, since }
    }
}

impl Drop for Remembering<'_> {
    fn drop(&mut self) {
        self.recent.end(self.since);
    }
}

impl Transactions {
    pub(crate) fn new(engine: Engine, parts: TransactionParts) -> Transactions {
        Transactions {
            shares: Shares::of(&engine.options),
            engine,
            parts,
            open: Mutex::default(),
            count: AtomicUsize::new(0),
            detached: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            spilling: Mutex::default(),
            nested_bytes: AtomicUsize::new(0),
            logging: Mutex::default(),
            lost: Mutex::default(),
            depending: Mutex::default(),
            routines: RwLock::default(),
        }
    }

    /// Returns the time of the store's clock.
    pub(super) fn now(&self) -> Duration {
        self.engine.env.monotonic()
    }

    /// Makes all earlier commits durable before it returns.
    pub(super) fn sync(&self) -> Result<()> {
        self.parts.commits.sync(&*self.parts.admission)
    }

    pub(super) fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        self.parts.commits.commit(&*self.parts.admission, batch, durability)
    }

    /// Registers the merge routine of a dictionary.
    pub(crate) fn set_routine(&self, dict: DictionaryId, routine: Arc<dyn MergeRoutine>) {
        self.routines.write().insert(dict, routine);
    }

    /// Returns a number that was not used before.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn begin(self: &Arc<Self>, options: TransactionOptions) -> Result<Transaction> {
        self.engine.health.writable()?;
        if let Some(within) = options.within {
            return self.begin_within(within, options);
        }
        let has_branch = || match self.engine.versions.load().has_branch(&options.branch) {
            true => Ok(()),
            false => Err(Error::NoBranch(options.branch.clone())),
        };
        has_branch()?;
        let stays = options.detached || options.durable;
        self.has_room(0, stays)?;
        let id = TransactionId(self.number());
        let logging = options.durable.then(|| self.logging.lock());
        // Commits that are made while the log is being created must be remembered.
        let remembering =
            options.durable.then(|| Remembering::begin(&self.engine.versions, &self.parts.recent));
        let logged = options.durable.then(|| self.begin_log(id, &options)).transpose()?;
        let mut open = self.open.lock();
        // Check again, since others may have begun in between. A log that was created already
        // counts as admitted; without one, detached transactions are checked, too.
        self.has_room(open.len(), stays && logged.is_none())?;
        // If the branch is dropped after this check, the drop aborts the transaction.
        if let Err(e) = has_branch() {
            drop(open);
            logged.map_or(Ok(()), |(with, _)| self.delete_begun_log(with.log))?;
            return Err(e);
        }
        let (with, since) = self.parts.recent.begin(|| match logged {
            Some((with, since)) => (Some(since), (with, since)),
            None if options.isolation == Isolation::Snapshot => {
                let base = self.engine.versions.view();
                let since = base.at;
                (Some(since), (Open::new(Some(base)), since))
            }
            None => (None, (Open::new(None), Seq::MAX)),
        });
        drop(remembering);
        let locks = options.isolation == Isolation::Serializable;
        if locks {
            // Register before others can find the transaction: they may end it at once, and its end
            // releases this owner.
            let age = options.retry_of.unwrap_or(id).0.min(id.0);
            self.parts.locks.begin(Owner { id: id.0, age });
        }
        let transaction = self.insert(&mut open, id, options, None, with, since);
        drop((open, logging));
        if locks {
            // Wait for commits that began before there were any locks.
            self.parts.commits.await_visible();
        }
        Ok(TransactionState::handle(&transaction))
    }

    /// Returns another handle of an open transaction, unless it is private.
    pub(crate) fn join(&self, id: TransactionId) -> Option<Transaction> {
        let found = self.find(id).filter(|transaction| !transaction.options.private);
        found.map(|transaction| TransactionState::handle(&transaction))
    }

    /// Lists the open transactions, the oldest first.
    pub(crate) fn list(&self) -> Vec<TransactionInfo> {
        self.all().iter().map(|transaction| transaction.info()).collect()
    }

    /// Fails if no further transaction may be opened. `open` is the number of open ones; `stays`
    /// tells whether the new one is detached.
    pub(super) fn has_room(&self, open: usize, stays: bool) -> Result<()> {
        let most = (self.engine.options.memory / EACH).clamp(LEAST, MOST);
        let most = match () {
            () if open >= MOST => MOST,
            () if stays && self.detached.load(Ordering::Relaxed) >= most => most,
            () => return Ok(()),
        };
        Err(Error::Limit(format!(
            "{most} transactions are open: end some, or give the store more memory (one for each {EACH} bytes)"
        )))
    }

    pub(super) fn insert(
        self: &Arc<Self>,
        open: &mut BTreeMap<TransactionId, Arc<TransactionState>>,
        id: TransactionId,
        options: TransactionOptions,
        within: Option<Within>,
        with: Open,
        since: Seq,
    ) -> Arc<TransactionState> {
        let now = self.now();
        let transaction =
            TransactionState::new(self.clone(), id, options, within, now, since, with);
        if let Some(with) = &mut transaction.state.write().open {
            transaction.count(with);
        }
        open.insert(id, transaction.clone());
        self.count.store(open.len(), Ordering::Relaxed);
        self.detached.fetch_add(usize::from(transaction.options.detached), Ordering::Relaxed);
        transaction
    }

    /// Notes that a transaction of this number exists or has existed.
    pub(crate) fn number_used(&self, id: TransactionId) {
        self.next.fetch_max(id.0, Ordering::Relaxed);
    }

    /// Resumes a transaction that began before the store was opened.
    pub(super) fn take_up(
        self: &Arc<Self>,
        id: TransactionId,
        options: TransactionOptions,
        with: Open,
    ) {
        let mut open = self.open.lock();
        let since = self.parts.recent.begin(|| {
            let at = self.engine.versions.view().at;
            (Some(at), at)
        });
        self.insert(&mut open, id, options, None, with, since);
    }

    pub(super) fn find(&self, id: TransactionId) -> Option<Arc<TransactionState>> {
        self.open.lock().get(&id).cloned()
    }

    /// Notes that a transaction was aborted for an older one, so that a later call for it returns
    /// an error that suggests a retry.
    pub(super) fn lose(&self, id: TransactionId) {
        let mut lost = self.lost.lock();
        if lost.len() == LOST {
            lost.pop_front();
        }
        lost.push_back(id);
    }

    /// Returns the error of a transaction that was recently aborted for an older one.
    pub(crate) fn lost(&self, id: TransactionId) -> Option<Error> {
        self.lost
            .lock()
            .contains(&id)
            .then(|| Error::Locked(format!("transaction {id} was aborted: {WOUNDED}")))
    }

    /// Returns whether any transaction can hold locks.
    #[cfg(test)]
    pub(crate) fn any_owner(&self) -> bool {
        self.parts.locks.any()
    }

    fn all(&self) -> Vec<Arc<TransactionState>> {
        self.open.lock().values().cloned().collect()
    }

    /// Removes a transaction that has ended.
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
            self.parts.recent.end(gone.since);
        }
    }

    /// Returns the memory that each transaction may use before it spills: an equal share of the
    /// part of the memtables' memory that transactions get.
    pub(super) fn share(&self) -> usize {
        (self.shares.memtables / 8 / self.count.load(Ordering::Relaxed).max(1)).max(SHARE_LEAST)
    }

    /// Returns the memory that the changes of all transactions may take together, apart from
    /// transactions that are too small to be spilled.
    fn most_held(&self) -> usize {
        self.shares.memtables / 8
    }

    /// Spills idle transactions, the largest first, if all transactions together exceed their share
    /// of memory. `asking` is the transaction that is about to make a change, and spills by itself.
    pub(super) fn make_room(&self, asking: TransactionId) {
        let most = self.most_held();
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
            // Spill a little more than necessary, so that not every change has to come here.
            if self.held.load(Ordering::Relaxed) <= most - most / 4 {
                return;
            }
            if let Err(e) = transaction.make_small() {
                // The transaction is unchanged; its next own spill reports the error.
                tracing::warn!("transaction {} could not be written out: {e}", transaction.id);
                return;
            }
        }
    }

    /// Reserves `bytes` for a nested batch, from the amount that all nested batches share.
    pub(super) fn reserve_nested(&self, bytes: usize) -> Result<()> {
        let most = self.shares.memtables / 2;
        if self.nested_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > most {
            self.nested_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::Limit(format!(
                "more than {most} bytes are to be changed at once: do it in parts, or give the store more memory"
            )));
        }
        Ok(())
    }

    /// Aborts the transactions that were idle for longer than their limit.
    pub(crate) fn end_idle(&self, now: Duration) {
        for transaction in self.all() {
            // Read before the time, which is noted before a use ends.
            if transaction.uses.load(Ordering::Acquire) > 0 {
                continue;
            }
            let idle = now.saturating_sub(Duration::from_nanos(
                transaction.used_nanos.load(Ordering::Relaxed),
            ));
            if transaction.options.idle_limit.is_some_and(|limit| idle > limit) {
                transaction.end("it was idle for too long");
            }
        }
    }

    /// Aborts the transactions of a dropped branch, and removes the merge routines of its
    /// dictionaries.
    pub(crate) fn branch_gone(&self, branch: &str, gone: &BTreeSet<DictionaryId>, why: &str) {
        let all = self.all().into_iter();
        all.filter(|transaction| transaction.options.branch == branch)
            .for_each(|transaction| transaction.end(why));
        self.routines.write().retain(|dict, _| !gone.contains(dict));
    }

    /// Ends all transactions since the store is being closed: durable ones resume when it is opened
    /// again, the others are aborted.
    pub(crate) fn close(&self) {
        self.all().iter().for_each(|transaction| transaction.leave("the store was closed"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::{Scheduled, schedule, thread};
    use zones::MemoryDevice;

    use crate::{CreateOptions, Isolation, Kvdb, OpenOptions};

    /// One thread begins serializable transactions, and another one aborts all that are listed. If
    /// an ended transaction left an owner, all later commits would have to check for locks.
    #[test]
    fn a_serializable_transaction_that_is_ended_while_it_begins_leaves_no_owner() {
        let mut aborted = 0;
        for seed in 0..60 {
            let ran = schedule::run(seed, || {
                let open = OpenOptions {
                    memory: 1 << 20,
                    threads: false,
                    zero_journal: false,
                    ..OpenOptions::default()
                };
                let options = CreateOptions { open, ..CreateOptions::default() };
                let device = Arc::new(MemoryDevice::new());
                let db = Kvdb::create(device, Arc::new(Scheduled), options).expect("made");
                let other = db.clone();
                let aborts = thread::spawn(move || {
                    let mut aborted = 0;
                    for _ in 0..20 {
                        for info in other.transactions() {
                            if let Ok(transaction) = other.transaction(info.id) {
                                transaction.abort();
                                aborted += 1;
                            }
                        }
                        thread::yield_now();
                    }
                    aborted
                });
                for _ in 0..4 {
                    drop(db.begin(Isolation::Serializable).expect("begun"));
                }
                let aborted = aborts.join().expect("the thread");
                assert!(db.transactions().is_empty());
                assert!(!db.transaction_registry().any_owner(), "an owner is left");
                aborted
            });
            aborted += ran.unwrap_or_else(|e| panic!("seed {seed}: {e}")).value;
        }
        assert!(aborted > 0, "none was found while it was open");
    }
}

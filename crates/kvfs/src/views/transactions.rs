//! Transactions over files and keys: begins, commits and ends them, and rolls them back to
//! savepoints.
//!
//! The documentation of `views` explains the order of the steps; `calls/transactions` says what a
//! caller may rely on.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{
    CommitOptions, Durability, Kvdb, Revision, Savepoint, Transaction, TransactionId,
    TransactionInfo, TransactionOptions,
};

use super::background::Background;
use super::notes::KeptNotes;
use super::open_views::{OpenView, OpenViews};
use super::opener::Opener;
use super::undo::remove_content;
use super::watcher::CommittedTo;
use super::watchers::Watchers;
use super::{Running, Untold, VIEW_SHARE, ViewId, Wait, running};
use crate::attr::Ino;
use crate::commit::apply_commit::ChangeSet;
use crate::difference::{Difference, Listing, difference_in};
use crate::error::{Error, Result};
use crate::fs::superseded::ChangeTurn;
use crate::fs::{Fs, FsOptions, Parent};
use crate::upkeep::describe_keys::describe_keys_in;

/// A commit that is done.
struct Committed<'a> {
    /// The changes that it has made.
    changes: ChangeSet,
    /// Inodes that it has orphaned.
    orphans: Vec<Ino>,
    /// The turn, which ends after the watchers have been notified.
    turn: Option<ChangeTurn<'a>>,
    /// The error of a sync after the commit.
    unsynced: Option<kvdb::Error>,
    /// Keeps programs from being started from changed files.
    running: Running,
    /// Keeps the change noted until the watchers have been notified, too.
    untold: Untold,
}

pub(crate) struct Transactions {
    db: Kvdb,
    mainline: Fs,
    open: Arc<OpenViews>,
    opener: Arc<Opener>,
    watchers: Arc<Watchers>,
    background: Arc<Background>,
    notes: KeptNotes,
}

impl Transactions {
    pub fn new(
        db: Kvdb,
        mainline: Fs,
        open: Arc<OpenViews>,
        opener: Arc<Opener>,
        watchers: Arc<Watchers>,
        background: Arc<Background>,
        notes: KeptNotes,
    ) -> Transactions {
        Transactions { db, mainline, open, opener, watchers, background, notes }
    }

    /// Begins a transaction over files and keys: of the mainline, of the clone that the options
    /// name as its branch, or within the transaction that they name.
    pub fn begin(&self, options: TransactionOptions) -> Result<TransactionId> {
        let (transaction, parent) = self.begin_at_rest(options)?;
        self.show_begun(transaction, parent)
    }

    /// Opens the view of a transaction that has just begun, notifies the watchers of it, and
    /// returns its number. If that fails, the transaction is aborted.
    pub fn show_begun(&self, transaction: Transaction, parent: Parent) -> Result<TransactionId> {
        let id = transaction.id();
        let entry = self.opener.open_begun(transaction, parent)?;
        self.watchers.tell(|watcher| watcher.appeared(&entry.view));
        Ok(id)
    }

    /// Begins a transaction in a state that contains all earlier writes, and returns it with the
    /// view in which it begins.
    pub fn begin_at_rest(&self, options: TransactionOptions) -> Result<(Transaction, Parent)> {
        let parent = self.begins_in(&options)?;
        self.watchers.write_back(Wait::ForAll)?;
        self.begin_in(parent, options)
    }

    /// Does the same as [`Transactions::begin_at_rest`] for a caller that has waited until the
    /// watchers have handed over all earlier writes ([`Watchers::write_back`]). A second wait would
    /// add only writes that were made in between, and costs a round trip through the kernel.
    pub fn begin_handed_over(&self, options: TransactionOptions) -> Result<(Transaction, Parent)> {
        let parent = self.begins_in(&options)?;
        self.begin_in(parent, options)
    }

    fn begins_in(&self, options: &TransactionOptions) -> Result<Parent> {
        let parent = self.opener.begins_in(options.within, &options.branch)?;
        parent.fs.writable()?;
        Ok(parent)
    }

    fn begin_in(
        &self,
        parent: Parent,
        options: TransactionOptions,
    ) -> Result<(Transaction, Parent)> {
        let options = TransactionOptions { detached: true, ..options };
        let transaction = parent.fs.at_rest(|| Ok(self.db.begin_with(options)?))?;
        Ok((transaction, parent))
    }

    /// Returns the transactions that are open within `id`, at any depth.
    fn all_within(&self, id: TransactionId) -> Vec<TransactionId> {
        let (mut all, mut at) = (vec![id], 0);
        while let Some(&id) = all.get(at) {
            let nested = self.transaction(id).ok().and_then(|one| one.nested().ok());
            all.extend(nested.unwrap_or_default());
            at += 1;
        }
        all.split_off(1)
    }

    /// Returns the transaction itself, to read and write keys in it.
    pub fn transaction(&self, id: TransactionId) -> Result<Transaction> {
        Ok(self.db.transaction(id)?)
    }

    /// Commits the files and keys of a transaction.
    pub fn commit(&self, id: TransactionId, durability: Durability) -> Result<()> {
        self.commit_with(id, CommitOptions { durability, ..CommitOptions::default() })
    }

    /// Like [`Transactions::commit`], with options.
    pub fn commit_with(&self, id: TransactionId, options: CommitOptions) -> Result<()> {
        let transaction = self.transaction(id)?;
        // Caches may take longer than its idle limit to hand over what they hold, and so may other
        // commits that come first.
        transaction.in_use(|| self.commit_in_use(&transaction, options))
    }

    fn commit_in_use(&self, transaction: &Transaction, options: CommitOptions) -> Result<()> {
        let id = transaction.id();
        let nested = transaction.nested()?;
        if !nested.is_empty() && !options.aborts_nested {
            return Err(kvdb::Error::Nested { id, nested }.into());
        }
        let within = self.all_within(id);
        // Opens the view if necessary, since caches are notified through it.
        let entry = self.opener.of_transaction(id)?;
        // Data that waits for a lock may wait for this very transaction.
        self.watchers.write_back(Wait::ButForLocks)?;
        // While watchers are notified of another commit, they may need threads that serve calls of
        // this view, and those would wait for its freeze lock. So this waits for the other commit
        // before the view is frozen, and takes a turn for its own commit afterwards.
        let parent = self.opener.parent(transaction)?;
        drop(parent.fs.core.superseded.turn());
        let core = &entry.fs.core;
        let mut frozen = core.freeze_lock.freeze();
        if frozen.ended() {
            return Err(kvdb::Error::NoTransaction(id).into());
        }
        if let Some(only_in) = options.only_in {
            // The check includes data that has waited in memory; the database checks again when it
            // commits.
            entry.fs.commit_older_than(Duration::MAX)?;
            if transaction.revision()? != only_in {
                return Err(kvdb::Error::Changed(id).into());
            }
        }
        let mut before = None;
        let committed = self.commit_frozen(&entry, &parent, transaction, &mut before, options);
        match &committed {
            Err(Error::Store(kvdb::Error::Conflict { .. })) if !options.stays => {
                transaction.abort()
            }
            Err(_) if self.db.transaction(id).is_ok() => {
                // Nameless files that are open in the view are used again.
                if let Some(before) = &before {
                    transaction.rollback_to(before)?;
                }
                return committed.map(drop);
            }
            _ => {}
        }
        frozen.end();
        drop(frozen);
        let Parent { fs, number } = &parent;
        let changes = committed.as_ref().ok().map(|done| &done.changes);
        self.opener
            .end_view(&entry, changes.map(|changes| CommittedTo { fs, number: *number, changes }));
        self.opener.let_go_of_those_over(&within);
        let Committed { orphans, turn, unsynced, running, untold, .. } = committed?;
        drop((turn, running, untold));
        let synced = match (unsynced, options.durability) {
            (Some(error), _) => Err(error),
            (None, Durability::Synced) => self.db.sync().map_err(kvdb::Error::after_commit),
            (None, Durability::Buffered) => Ok(()),
        };
        // The commit is done, on disk or not. This may free the space that a sync lacked.
        self.background.remove_orphans(fs, orphans);
        Ok(synced?)
    }

    /// Commits a transaction whose view is frozen. `before` is set to the state to return to if
    /// this fails and the view continues; it stays `None` if nothing was removed.
    fn commit_frozen<'a>(
        &self,
        entry: &OpenView,
        parent: &'a Parent,
        transaction: &Transaction,
        before: &mut Option<Savepoint>,
        options: CommitOptions,
    ) -> Result<Committed<'a>> {
        entry.fs.prepare(transaction, before)?;
        let mut changes = ChangeSet::by(transaction, &entry.fs.core.layout)?;
        let running = running::at_commit(&self.watchers, parent, transaction, &changes)?;
        if !running.files.is_empty() {
            if before.is_none() {
                *before = Some(transaction.savepoint()?);
            }
            for &ino in &running.files {
                running::replace(entry, transaction, ino)?;
            }
            changes = ChangeSet::by(transaction, &entry.fs.core.layout)?;
        }
        if transaction.is_undoable() && !changes.orphans.is_empty() {
            // Some orphans may be open in the view.
            if before.is_none() {
                *before = Some(transaction.savepoint()?);
            }
            remove_content(&parent.fs, transaction, &mut changes.orphans)?;
        }
        parent.fs.core.inode_allocator.take_over(&entry.fs.core.inode_allocator);
        let committed = self.commit_to(&entry.fs, parent, transaction, changes, options)?;
        Ok(Committed { running, ..committed })
    }

    /// Commits a transaction, and brings the inodes in memory of its parent view up to date.
    fn commit_to<'a>(
        &self,
        view: &Fs,
        Parent { fs: parent, number }: &'a Parent,
        transaction: &Transaction,
        changes: ChangeSet,
        options: CommitOptions,
    ) -> Result<Committed<'a>> {
        let unsynced = Cell::new(None);
        let options = CommitOptions { durability: Durability::Buffered, ..options };
        let commit = || {
            // No other call makes files there at this moment.
            view.core.files.check_commit()?;
            match transaction.commit_with(options) {
                // The commit is done: the inodes in memory follow it.
                Err(error @ kvdb::Error::NotSynced(_)) => {
                    unsynced.set(Some(error));
                    Ok(())
                }
                committed => Ok(committed?),
            }
        };
        if changes.names.is_empty() && changes.inodes.is_empty() {
            commit()?;
            let unsynced = unsynced.take();
            return Ok(Committed {
                changes,
                orphans: Vec::new(),
                turn: None,
                unsynced,
                running: Running::default(),
                untold: Untold::default(),
            });
        }
        let untold = self.notes.will_tell(*number, &changes);
        // A serializable transaction may have locked keys that this one changes. Its end needs the
        // parent's freeze lock and a turn, so both are released before each attempt.
        let attempt = || {
            let turn = parent.core.superseded.turn();
            match parent.apply_commit(transaction, &changes, &turn, commit) {
                // An older transaction has ended this one. The error also says that a lock was
                // refused, but another attempt would not help.
                Err(e) if self.db.transaction(transaction.id()).is_err() => Ok(Err(e)),
                applied => Ok(Ok((applied?, Some(turn)))),
            }
        };
        let (orphans, turn) = parent.core.locks.retry(attempt).flatten()?;
        let (unsynced, running) = (unsynced.take(), Running::default());
        Ok(Committed { changes, orphans, turn, unsynced, running, untold })
    }

    /// Syncs the changes of a durable transaction so far, files included.
    pub fn keep(&self, id: TransactionId) -> Result<()> {
        let transaction = self.transaction(id)?;
        if !transaction.is_durable() {
            return Ok(());
        }
        match self.open.find(&ViewId::Transaction(id)) {
            Some(entry) => {
                self.watchers.write_back(Wait::ButForLocks)?;
                self.keep_written(id, &entry)
            }
            None => Ok(transaction.sync()?),
        }
    }

    /// Syncs the changes that have arrived in the view of a durable transaction. Does nothing for
    /// another transaction, or for one that has ended.
    pub fn keep_written(&self, id: TransactionId, entry: &OpenView) -> Result<()> {
        let Ok(transaction) = self.transaction(id) else { return Ok(()) };
        if !transaction.is_durable() {
            return Ok(());
        }
        let kept = entry.fs.enter().and_then(|_call| {
            entry.fs.commit_older_than(Duration::MAX)?;
            Ok(transaction.sync()?)
        });
        // A transaction that has ended in the meantime has nothing to sync.
        kept.or_else(|e| if self.transaction(id).is_err() { Ok(()) } else { Err(e) })
    }

    /// Takes inode numbers for objects that are made in a transaction by a process without its
    /// view.
    pub fn reserve_inodes(&self, id: TransactionId, count: u64) -> Result<Range<Ino>> {
        self.opener.of_transaction(id)?.fs.new_inos(count)
    }

    /// Aborts a transaction and discards all its changes.
    pub fn abort(&self, id: TransactionId) -> Result<()> {
        let transaction = self.transaction(id)?;
        let within = self.all_within(id);
        // The transaction is aborted first, so that calls that wait for locks return.
        transaction.abort();
        self.opener.let_go_of_those_over(&within);
        self.opener.let_go(id);
        Ok(())
    }

    /// Aborts the transactions of a branch.
    pub fn abort_those_of(&self, branch: &str) -> Result<()> {
        for transaction in self.list().iter().filter(|info| info.branch == branch) {
            match self.abort(transaction.id) {
                // The transaction has just ended for another reason.
                Err(Error::Store(kvdb::Error::NoTransaction(_))) | Ok(()) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Marks the current state of a transaction, files included.
    pub fn savepoint(&self, id: TransactionId) -> Result<Savepoint> {
        let transaction = self.transaction(id)?;
        if let Some(entry) = self.open.find(&ViewId::Transaction(id)) {
            self.watchers.write_back(Wait::ButForLocks)?;
            let _call = entry.fs.enter()?;
            entry.fs.commit_older_than(Duration::MAX)?;
            return Ok(transaction.savepoint()?);
        }
        Ok(transaction.savepoint()?)
    }

    /// Undoes the changes of a transaction since a savepoint, files included.
    pub fn rollback_to(&self, id: TransactionId, savepoint: &Savepoint) -> Result<()> {
        let transaction = self.transaction(id)?;
        let Some(entry) = self.open.find(&ViewId::Transaction(id)) else {
            return Ok(transaction.rollback_to(savepoint)?);
        };
        // Data that the kernel holds back must not arrive afterwards.
        self.watchers.write_back(Wait::ButForLocks)?;
        let turn = entry.fs.core.superseded.turn();
        let within = self.all_within(id);
        let mut untold = Untold::default();
        let changes = entry.fs.revert(&turn, |known| {
            untold = self.notes.will_tell_of_all(entry.number, known);
            Ok(transaction.rollback_to(savepoint)?)
        })?;
        self.watchers.tell(|watcher| watcher.changed(entry.number, &entry.fs, &changes));
        drop((turn, untold));
        self.opener.let_go_of_those_over(&within);
        Ok(())
    }

    /// Returns the revision of a transaction, including everything written in its view so far.
    pub fn revision(&self, id: TransactionId) -> Result<Revision> {
        Ok(self.as_written(id)?.revision()?)
    }

    /// Returns the open transactions, the oldest first.
    pub fn list(&self) -> Vec<TransactionInfo> {
        self.db.transactions()
    }

    /// Returns the changes that a transaction has made to the files so far.
    pub fn change_set(&self, id: TransactionId) -> Result<ChangeSet> {
        let transaction = self.as_written(id)?;
        ChangeSet::by(&transaction, &self.opener.parent(&transaction)?.fs.core.layout)
    }

    /// Returns a transaction after moving everything written in its view into it.
    fn as_written(&self, id: TransactionId) -> Result<Transaction> {
        let transaction = self.transaction(id)?;
        if let Some(entry) = self.open.find(&ViewId::Transaction(id)) {
            self.watchers.write_back(Wait::ButForLocks)?;
            let _call = entry.fs.enter()?;
            entry.fs.commit_older_than(Duration::MAX)?;
        }
        Ok(transaction)
    }

    /// Returns the changes of a transaction to the files, by path, relative to the state that it
    /// reads.
    pub fn difference(&self, id: TransactionId, listing: Listing) -> Result<Difference> {
        self.transaction(id)?.in_use(|| {
            let transaction = self.as_written(id)?;
            let view = transaction.view()?;
            let layout = self.opener.parent(&transaction)?.fs.core.layout;
            difference_in(layout, view.beneath(), view, listing)
        })
    }

    /// Returns the files as they were before a transaction's own changes, read-only.
    pub fn beneath(&self, id: TransactionId) -> Result<Fs> {
        let transaction = self.transaction(id)?;
        let core = &self.mainline.core;
        let inode_memory = core.options.inode_memory / VIEW_SHARE;
        let options = FsOptions { read_only: true, inode_memory, ..core.options.clone() };
        let layout = self.opener.parent(&transaction)?.fs.core.layout;
        let (state, env) = (transaction.view()?.beneath(), core.env.clone());
        Fs::frozen_with(layout, &self.db, env, state, options)
    }

    /// Describes the keys from `start` up to `end` of a dictionary, with the names that files have
    /// in a transaction; see [`crate::describe_keys`].
    pub fn describe_keys(
        &self,
        id: TransactionId,
        dictionary: &str,
        start: &[u8],
        end: &[u8],
    ) -> Option<String> {
        let transaction = self.transaction(id).ok()?;
        let layout = self.opener.parent(&transaction).ok()?.fs.core.layout;
        describe_keys_in(transaction.view().ok()?, layout, dictionary, start, end)
    }
}

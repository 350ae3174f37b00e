//! Finds views, opens them when they are first used, and ends them.

mod states;

use std::sync::Arc;

use env::sync::{Mutex, MutexGuard};
use kvdb::{Kvdb, Scope, Transaction, TransactionId};

use super::open_views::{OpenView, OpenViews};
use super::watcher::CommittedTo;
use super::watchers::Watchers;
use super::{AWAITS_COMMIT, VIEW_SHARE, ViewId};
use crate::error::{Error, Result};
use crate::fs::{Fs, FsOptions, Parent};
use crate::layout::Layout;
use crate::opening::in_use::ViewInUse;

pub(crate) struct Opener {
    db: Kvdb,
    mainline: Fs,
    open: Arc<OpenViews>,
    watchers: Arc<Watchers>,
    /// The lock that is held while a clone is opened.
    opening: Mutex<()>,
}

impl Opener {
    pub fn new(db: Kvdb, mainline: Fs, open: Arc<OpenViews>, watchers: Arc<Watchers>) -> Opener {
        Opener { db, mainline, open, watchers, opening: Mutex::default() }
    }

    // --- finds

    /// Returns the file system in the state of a view; see [`super::Views::fs`].
    pub fn fs(&self, view: &ViewId) -> Result<Fs> {
        match view {
            ViewId::Mainline => Ok(self.mainline.clone()),
            view => Ok(self.find(view)?.fs.clone()),
        }
    }

    /// Returns the number of a view, opening the view if necessary.
    pub fn number(&self, view: &ViewId) -> Result<u16> {
        match view {
            ViewId::Mainline => Ok(0),
            view => Ok(self.find(view)?.number),
        }
    }

    /// Returns a view other than the mainline, opening it if necessary.
    pub fn find(&self, view: &ViewId) -> Result<Arc<OpenView>> {
        if let Some(entry) = self.open.find(view) {
            return Ok(entry);
        }
        match view {
            ViewId::Transaction(id) => {
                self.open_transaction(self.db.transaction(*id).map_err(|_| Error::NotFound)?)
            }
            ViewId::Snapshot(name) => self.open_snapshot(name),
            ViewId::Clone(name) => self.open_clone(name, &ViewInUse::default()),
            ViewId::Mainline => Err(Error::NotFound),
        }
    }

    /// Returns the view of a transaction, opening it if necessary. Fails with
    /// [`kvdb::Error::NoTransaction`] if the transaction has ended.
    pub fn of_transaction(&self, id: TransactionId) -> Result<Arc<OpenView>> {
        match self.find(&ViewId::Transaction(id)) {
            Err(Error::NotFound) => Err(kvdb::Error::NoTransaction(id).into()),
            found => found,
        }
    }

    /// Returns the view in which a transaction with these options begins.
    pub fn begins_in(&self, within: Option<TransactionId>, branch: &str) -> Result<Parent> {
        let Some(id) = within else { return self.branch(branch) };
        let entry = self.of_transaction(id)?;
        Ok(Parent { fs: entry.fs.clone(), number: entry.number })
    }

    /// Returns the view of a branch.
    pub fn branch(&self, name: &str) -> Result<Parent> {
        let view = ViewId::of_branch(name);
        match self.fs(&view).and_then(|fs| Ok(Parent { fs, number: self.number(&view)? })) {
            Err(Error::NotFound) => Err(kvdb::Error::NoBranch(name.into()).into()),
            found => found,
        }
    }

    /// Returns the view in which a transaction began.
    pub fn parent(&self, transaction: &Transaction) -> Result<Parent> {
        let entry = self.open.find(&ViewId::Transaction(transaction.id()));
        match entry.and_then(|entry| entry.fs.core.parent.clone()) {
            Some(parent) => Ok(parent),
            None => self.begins_in(transaction.within(), transaction.branch()),
        }
    }

    // --- opens

    /// Opens the view of a transaction that has just begun. If that fails, the transaction is
    /// aborted, since the caller gets no number by which to end it.
    pub fn open_begun(&self, transaction: Transaction, parent: Parent) -> Result<Arc<OpenView>> {
        self.open_in(parent, transaction.clone()).inspect_err(|_| transaction.abort())
    }

    /// Opens the view of a transaction, and before it the one in which the transaction began.
    pub fn open_transaction(&self, transaction: Transaction) -> Result<Arc<OpenView>> {
        let parent = self.begins_in(transaction.within(), transaction.branch())?;
        self.open_in(parent, transaction)
    }

    fn open_in(&self, parent: Parent, transaction: Transaction) -> Result<Arc<OpenView>> {
        // A clone has less memory than the mainline, but transactions of both have the same.
        let mainline = &self.mainline.core.options;
        // If the last commit won, links, sizes and pages would become inconsistent.
        let layout = &parent.fs.core.layout;
        transaction.check_conflicts_in(&[layout.nmap, layout.imap, layout.dmap]);
        let options = FsOptions {
            write_buffer: AWAITS_COMMIT.min(mainline.write_buffer),
            inode_memory: mainline.inode_memory / VIEW_SHARE,
            ..mainline.clone()
        };
        let fs = Fs::of_transaction(parent, Scope::Transaction(transaction.clone()), options);
        let id = transaction.id();
        let exists = || self.db.transaction(id).is_ok();
        self.open.add(ViewId::Transaction(id), fs, Some(transaction), exists)
    }

    /// Keeps clones that are not open from being opened, until the guard is dropped.
    pub fn opens_no_clone(&self) -> MutexGuard<'_, ()> {
        self.opening.lock()
    }

    /// Calls `what` if this is a clone without a view, and returns whether it was called. The clone
    /// is not opened in between, so the store has all of it, and no numbers are given in it. A view
    /// that was opened for a moment would stay open, with its memory, as long as the clone exists.
    pub fn if_unopened(&self, view: &ViewId, what: impl FnOnce() -> Result<()>) -> Result<bool> {
        let ViewId::Clone(name) = view else { return Ok(false) };
        let _one = self.opening.lock();
        if self.open.find(view).is_some() {
            return Ok(false);
        }
        if Layout::find_in(&self.db, name).is_none() {
            return Err(Error::NotFound);
        }
        what()?;
        Ok(true)
    }

    // --- ends

    /// Replaces a clone by another branch, after committing its changes. Returns the clone's view
    /// if it was open: files open in it become stale, as if the clone was dropped.
    pub fn replace(
        &self,
        view: &ViewId,
        replace: &mut dyn FnMut() -> kvdb::Result<()>,
    ) -> Result<Option<Arc<OpenView>>> {
        let ViewId::Clone(name) = view else {
            return Err(Error::Invalid("what is mounted is not replaced by another branch"));
        };
        // The clone cannot be opened in between.
        let _one = self.opening.lock();
        let Some(entry) = self.open.find(view) else {
            replace()?;
            self.mainline.count_received(name);
            return Ok(None);
        };
        {
            let _call = entry.fs.enter()?;
            entry.fs.commit_unlocked()?;
        }
        let mut frozen = entry.fs.core.freeze_lock.freeze();
        entry.fs.commit_unlocked()?;
        replace()?;
        self.mainline.count_received(name);
        frozen.end();
        drop(frozen);
        Ok(Some(entry))
    }

    /// Ends a view in which no call is in progress.
    pub fn end_view(&self, entry: &OpenView, committed: Option<CommittedTo<'_>>) {
        if !self.open.begin_to_end(entry) {
            return;
        }
        entry.fs.core.lost.end();
        self.watchers
            .tell(|watcher| watcher.ended(&entry.view, entry.number, &entry.fs, committed));
        self.open.retire(entry);
    }

    /// Ends a view whose state no longer exists.
    pub fn close(&self, view: &ViewId) {
        match self.open.find(view) {
            Some(entry) => {
                entry.fs.core.freeze_lock.freeze().end();
                self.end_view(&entry, None);
            }
            // The view is not open, but may have been listed.
            None => self.watchers.tell(|watcher| watcher.appeared(view)),
        }
    }

    /// Ends the view of a transaction that has ended.
    pub fn let_go(&self, id: TransactionId) {
        if let Some(entry) = self.open.find(&ViewId::Transaction(id)) {
            entry.fs.core.freeze_lock.freeze().end();
            self.end_view(&entry, None);
        }
    }

    /// Ends the views of those transactions that have ended.
    pub fn let_go_of_those_over(&self, all: &[TransactionId]) {
        for &id in all.iter().rev().filter(|id| self.db.transaction(**id).is_err()) {
            self.let_go(id);
        }
    }

    /// Ends the views of transactions that have ended with their branch.
    pub fn let_go_of_ended(&self) {
        for entry in self.open.all() {
            if let ViewId::Transaction(id) = entry.view
                && self.db.transaction(id).is_err()
            {
                self.let_go(id);
            }
        }
    }
}

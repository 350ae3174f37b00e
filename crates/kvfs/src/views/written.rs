//! The data that programs have written in all views, and its way into the store.

use std::sync::Arc;

use kvdb::Kvdb;

use super::open_views::OpenViews;
use super::transactions::Transactions;
use super::watchers::Watchers;
use super::{ViewId, Wait};
use crate::error::Result;
use crate::fs::Fs;

pub(crate) struct Written {
    db: Kvdb,
    mainline: Fs,
    open: Arc<OpenViews>,
    watchers: Arc<Watchers>,
    transactions: Arc<Transactions>,
}

impl Written {
    pub fn new(
        db: Kvdb,
        mainline: Fs,
        open: Arc<OpenViews>,
        watchers: Arc<Watchers>,
        transactions: Arc<Transactions>,
    ) -> Written {
        Written { db, mainline, open, watchers, transactions }
    }

    /// Makes the kernel write back all data that programs have written, in every view.
    pub fn hand_over(&self) -> Result<()> {
        self.watchers.write_back(Wait::ForAll)
    }

    /// Commits everything that programs have written in the mainline and in all views, including
    /// data that the kernel holds back.
    pub fn commit(&self) -> Result<()> {
        self.watchers.write_back(Wait::ButForLocks)?;
        self.commit_others(None);
        Ok(())
    }

    /// Commits everything in the mainline and in all clones, including data that the kernel holds
    /// back, and syncs it.
    pub fn sync_all(&self) -> Result<()> {
        self.watchers.write_back(Wait::ButForLocks)?;
        let mainline = &self.mainline;
        {
            let _call = mainline.enter()?;
            mainline.commit_unlocked()?;
        }
        self.shutdown()?;
        Ok(self.db.sync()?)
    }

    /// Commits all data written so far, except for that of the view `gone`, which is about to be
    /// dropped or replaced. The drop is on disk at once, and includes all commits before it: data
    /// copied out of the view must be among them. Data that cannot be committed stays in memory and
    /// is tried again: after a lack of space, which the drop may end, or when a transaction that
    /// has locked it ends.
    pub fn commit_others(&self, gone: Option<&ViewId>) {
        let entries = self.open.all();
        let of_mainline = (gone != Some(&ViewId::Mainline)).then_some(&self.mainline);
        let others = entries.iter().filter(|entry| Some(&entry.view) != gone);
        for fs in of_mainline.into_iter().chain(others.map(|entry| &entry.fs)) {
            if !fs.core.options.read_only
                && let Err(e) = fs.enter().and_then(|_call| fs.commit_unlocked())
            {
                tracing::warn!("committing what was written failed, will be tried again: {e}");
            }
        }
    }

    /// Commits everything in all clones and in durable transactions, and syncs it.
    pub fn shutdown(&self) -> Result<()> {
        for entry in self.open.all() {
            match entry.view {
                ViewId::Clone(_) => entry.fs.sync_all()?,
                ViewId::Transaction(id) => self.transactions.keep_written(id, &entry)?,
                ViewId::Mainline | ViewId::Snapshot(_) => {}
            }
        }
        Ok(())
    }
}

//! Reserves the space that a write needs before anything changes, so that accepted data can be
//! committed.

use std::sync::Arc;

use kvdb::{DictionaryId, Scope};

use crate::error::{Error, Result};
use crate::layout::PAGE;
use crate::space::space_account::{SpaceAccount, cost_of};
use crate::space::store::Store;

/// The space that a view may still take in the store, and within the limit of its transaction or
/// clone.
pub(crate) struct FreeSpace {
    store: Store,
    scope: Scope,
    imap: DictionaryId,
    /// The dirty bytes of the view.
    own: Arc<SpaceAccount>,
    /// The account from which a view and all transactions that began in it take their credit.
    shared: Arc<SpaceAccount>,
}

impl FreeSpace {
    /// Returns the space of a view that reads and writes `scope`, whose inodes are in `imap`.
    pub fn new(
        store: Store,
        scope: Scope,
        imap: DictionaryId,
        own: Arc<SpaceAccount>,
        shared: Arc<SpaceAccount>,
    ) -> FreeSpace {
        FreeSpace { store, scope, imap, own, shared }
    }

    /// Fails with ENOSPC unless `more` bytes fit into the store in addition to everything that is
    /// dirty already. `commit` commits all dirty data of the view.
    pub fn reserve(&self, more: u64, commit: impl Fn() -> Result<()>) -> Result<()> {
        // Add a whole page at each end.
        let cost = cost_of(more.saturating_add(2 * PAGE));
        if !self.is_within_limit(cost, &commit)? {
            return Err(self.over_limit());
        }
        if self.shared.spend(cost) || self.refill(cost) {
            return Ok(());
        }
        // Truncated and rewritten files free space when they are committed. An error of the commit
        // is ignored, because the checks below decide.
        let _ = commit();
        if !self.refill(cost) {
            self.store.reclaim();
        }
        if self.refill(cost) { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Returns whether `cost` more bytes, together with all data that waits in memory, are within
    /// the limits of the transaction or clone.
    fn is_within_limit(&self, cost: u64, commit: impl Fn() -> Result<()>) -> Result<bool> {
        let fits = |waits: u64| self.room().is_none_or(|room| cost.saturating_add(waits) <= room);
        if fits(cost_of(self.own.dirty_bytes() as u64)) {
            return Ok(true);
        }
        // Waiting data may shrink when it is committed, and deletions may return space.
        commit()?;
        match &self.scope {
            Scope::Transaction(transaction) => _ = transaction.make_room()?,
            Scope::Mainline(db) => _ = db.make_room_for(self.imap)?,
            Scope::Frozen(_) | Scope::Served(_) => {}
        }
        Ok(fits(cost_of(self.own.dirty_bytes() as u64)))
    }

    /// Returns the error that names the limit which was reached. The limit of a transaction around
    /// this one is reported without its value.
    fn over_limit(&self) -> Error {
        let of_clone = |limit: Option<(String, kvdb::BranchLimit)>| match limit {
            Some((branch, limit)) => kvdb::Error::CloneOverLimit { branch, limit: limit.bytes },
            None => kvdb::Error::NoSpace,
        };
        Error::Store(match &self.scope {
            Scope::Transaction(transaction) => match transaction.options().limit {
                Some(limit) => kvdb::Error::OverLimit { id: transaction.id(), limit },
                None => of_clone(self.store.here().ok().and_then(|db| db.limit_of(self.imap))),
            },
            Scope::Mainline(db) => of_clone(db.limit_of(self.imap)),
            Scope::Frozen(_) | Scope::Served(_) => kvdb::Error::NoSpace,
        })
    }

    /// Returns the bytes that a transaction or clone may still take, or `None` if it has no limit.
    pub fn room(&self) -> Option<u64> {
        match &self.scope {
            Scope::Transaction(transaction) => transaction.room(),
            Scope::Mainline(db) => db.limit_of(self.imap).map(|(_, limit)| limit.room()),
            Scope::Frozen(_) | Scope::Served(_) => None,
        }
    }

    /// Requests the free space from the store. Later writes may use a part of it without a further
    /// request. Returns `false` if `cost` does not fit.
    pub fn refill(&self, cost: u64) -> bool {
        self.shared.refill(|| self.store.space().free, cost)
    }
}

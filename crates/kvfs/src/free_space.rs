//! Reserves the space that a write needs before anything changes, so that accepted data can be
//! committed.

use std::time::Duration;

use kvdb::{BranchLimit, Scope};

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::PAGE;
use crate::space_account::{SpaceAccount, cost_of};

impl Fs {
    /// Fails with ENOSPC unless `more` bytes fit into the store in addition to everything that is
    /// dirty already.
    pub(crate) fn reserve(&self, more: u64) -> Result<()> {
        // Adds a whole page at each end.
        let cost = cost_of(more.saturating_add(2 * PAGE));
        if !self.is_within_limit(cost)? {
            return Err(Error::NoSpace);
        }
        if self.shared_space().spend(cost) || self.refill_space(cost) {
            return Ok(());
        }
        // Truncated and rewritten files free space when they are committed. If the store takes no
        // more data, the commit fails; the checks below decide.
        let _ = self.commit_older_than(Duration::MAX);
        if !self.refill_space(cost) {
            self.core.db.reclaim();
        }
        if self.refill_space(cost) { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Returns whether `cost` more bytes, together with all data that waits in memory, are within
    /// the limits of the transaction or clone.
    fn is_within_limit(&self, cost: u64) -> Result<bool> {
        let fits =
            |waits: u64| self.room_of_limit().is_none_or(|room| cost.saturating_add(waits) <= room);
        if fits(cost_of(self.core.space.dirty_bytes() as u64)) {
            return Ok(true);
        }
        // Waiting data may shrink when it is committed, and deletions may return space.
        self.commit_older_than(Duration::MAX)?;
        match &self.core.scope {
            Scope::Transaction(transaction) => _ = transaction.make_room()?,
            Scope::Mainline(db) => _ = db.make_room_for(self.core.layout.imap)?,
            Scope::Frozen(_) | Scope::Served(_) => {}
        }
        Ok(fits(cost_of(self.core.space.dirty_bytes() as u64)))
    }

    /// Returns the bytes that a transaction or clone may still take, or `None` if it has no limit.
    pub(crate) fn room_of_limit(&self) -> Option<u64> {
        match &self.core.scope {
            Scope::Transaction(transaction) => transaction.room(),
            Scope::Mainline(db) => db.limit_of(self.core.layout.imap).map(BranchLimit::room),
            Scope::Frozen(_) | Scope::Served(_) => None,
        }
    }

    /// Asks the store for its free space, a part of which may then be used without asking again.
    /// Returns `false` if `cost` does not fit.
    pub(crate) fn refill_space(&self, cost: u64) -> bool {
        self.shared_space().refill(|| self.core.db.space().free, cost)
    }

    /// Returns the account from which a view and all transactions that began in it take their
    /// credit.
    fn shared_space(&self) -> &SpaceAccount {
        &self.core.parent.as_ref().map_or(self, |parent| &parent.fs).core.space
    }

    /// Returns whether the store is so full that a write may soon be refused for lack of space:
    /// then writes out of a cache have to be announced ([`Fs::announce_cached`]). The answer is
    /// that of the last 4 MiB written. Call on the mainline.
    pub fn is_tight(&self) -> bool {
        self.core.space.is_tight()
    }
}

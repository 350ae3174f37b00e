//! The space that a write needs: reserved before anything changes, so that what was accepted can be
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
        // Whole pages at both ends.
        let cost = cost_of(more.saturating_add(2 * PAGE));
        if !self.is_within_limit(cost)? {
            return Err(Error::NoSpace);
        }
        if self.shared_space().spend(cost) || self.refill_space(cost) {
            return Ok(());
        }
        // Truncated and rewritten files free space when they are committed; if the store can
        // take no more, they cannot.
        let _ = self.commit_older_than(Duration::MAX);
        if !self.refill_space(cost) {
            self.core.db.reclaim();
        }
        if self.refill_space(cost) { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Returns whether so much more is within the limits of the transaction, or of the clone, with
    /// all that waits in memory.
    fn is_within_limit(&self, cost: u64) -> Result<bool> {
        let fits =
            |waits: u64| self.room_of_limit().is_none_or(|room| cost.saturating_add(waits) <= room);
        if fits(cost_of(self.core.space.dirty_bytes() as u64)) {
            return Ok(true);
        }
        // Waiting data may be less when it is committed, and deletions may give something back.
        self.commit_older_than(Duration::MAX)?;
        match &self.core.scope {
            Scope::Transaction(transaction) => _ = transaction.make_room()?,
            Scope::Mainline(db) => _ = db.make_room_for(self.core.layout.imap)?,
            Scope::Frozen(_) | Scope::Served(_) => {}
        }
        Ok(fits(cost_of(self.core.space.dirty_bytes() as u64)))
    }

    /// Bytes that a transaction, or a clone, may still take; `None`: it has no limit.
    pub(crate) fn room_of_limit(&self) -> Option<u64> {
        match &self.core.scope {
            Scope::Transaction(transaction) => transaction.room(),
            Scope::Mainline(db) => db.limit_of(self.core.layout.imap).map(BranchLimit::room),
            Scope::Frozen(_) | Scope::Served(_) => None,
        }
    }

    /// Asks the store for its free space. A part of it may then be used up without asking again.
    /// `false`: `cost` does not fit.
    pub(crate) fn refill_space(&self, cost: u64) -> bool {
        self.shared_space().refill(|| self.core.db.space().free, cost)
    }

    /// The account that a view and all transactions which began in it take their credit from.
    fn shared_space(&self) -> &SpaceAccount {
        &self.core.parent.as_ref().map_or(self, |parent| &parent.fs).core.space
    }

    /// Whether the store is so full that a write may be refused for want of space before long: then
    /// those out of a cache have to be announced ([`Fs::announce_cached`]). As of the last 4 MiB
    /// that were written. The mainline's.
    pub fn is_tight(&self) -> bool {
        self.core.space.is_tight()
    }
}

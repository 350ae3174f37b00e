//! Entry to the pipeline: takes its lock, with room for a record in the journal's segments, and for
//! values in zones that are reserved for them. In a full store the commit makes that room first, as
//! far as its claim allows.

use zones::Priority;

use super::log::Pipeline;
use super::{CommitEnv, Committer, SpaceClaim};
use crate::error::{Error, Result};
use crate::lock_order::MutexGuard;

impl Committer {
    /// Takes the pipeline's lock with room for `need` bytes of stream and for deferred values of
    /// cost `cost`.
    pub(crate) fn enter(
        &self,
        services: &impl CommitEnv,
        need: usize,
        cost: u64,
        claim: SpaceClaim,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        self.log.lock_with_room(need, cost, |need| {
            self.make_room_or_reclaim(services, need, (cost, claim.reserve()))
        })
    }

    /// Enters for changes that only delete. Their record may use the space reserved for flushes,
    /// since the flush that follows frees zones, the journal's old segment included.
    pub(crate) fn enter_to_delete(
        &self,
        services: &impl CommitEnv,
        need: usize,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        let nothing = (0, SpaceClaim::default().reserve());
        self.log.lock_with_room(need, 0, |need| {
            match self.make_room_or_reclaim(services, need, nothing) {
                Err(Error::NoSpace) => {
                    // After this flush the journal has only the segment that it writes in. A
                    // second one does no harm: it is flushed next.
                    services.flush_all()?;
                    self.log.make_room(need, nothing, Priority::Flush)
                }
                made => made,
            }
        })
    }

    /// Makes room as [`Log::make_room`](super::log::Log::make_room) does. If there is no space, it
    /// reclaims or flushes first.
    pub(super) fn make_room_or_reclaim(
        &self,
        services: &impl CommitEnv,
        need: usize,
        values: (u64, Priority),
    ) -> Result<()> {
        match self.log.make_room(need, values, Priority::Log) {
            Err(Error::NoSpace) => {
                // Data in runs needs no journal, so a flush frees the journal's zones.
                if !services.want_space() {
                    services.flush_all()?;
                }
                self.log.make_room(need, values, Priority::Log)
            }
            made => made,
        }
    }
}

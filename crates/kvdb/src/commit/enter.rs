//! The way to the pipeline's lock: with room for a record in the journal's segments, and for values
//! in zones that are reserved for them. A full store makes that room first, as far as the claim of
//! the commit goes.

use zones::Priority;

use super::pipeline::Pipeline;
use super::{CommitEnv, CommitPipeline, SpaceClaim};
use crate::error::{Error, Result};
use crate::journal::record;
use crate::lock_order::MutexGuard;

impl CommitPipeline {
    /// Takes the pipeline's lock with room for `need` bytes of stream and for deferred values of
    /// cost `cost`.
    pub(crate) fn enter(
        &self,
        engine: &impl CommitEnv,
        need: usize,
        cost: u64,
        claim: SpaceClaim,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        self.enter_with(need, cost, |need| self.make_room_or_reclaim(engine, need, (cost, claim)))
    }

    /// Enters for changes that only delete, of which the journal may be written wherever flushes
    /// may write: what they flush, the journal's old segment among it, gives a zone back.
    pub(crate) fn enter_to_delete(
        &self,
        engine: &impl CommitEnv,
        need: usize,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        let nothing = (0, SpaceClaim::default());
        self.enter_with(need, 0, |need| match self.make_room_or_reclaim(engine, need, nothing) {
            Err(Error::NoSpace) => {
                // After this flush the journal is the one segment that it writes in. A second one
                // does no harm: it is flushed next.
                engine.flush_all()?;
                self.make_room(need, nothing, Priority::Flush)
            }
            made => made,
        })
    }

    /// Makes room as [`CommitPipeline::make_room`] does; if there is no space, reclaims or flushes
    /// first.
    pub(super) fn make_room_or_reclaim(
        &self,
        engine: &impl CommitEnv,
        need: usize,
        values: (u64, SpaceClaim),
    ) -> Result<()> {
        match self.make_room(need, values, Priority::Log) {
            Err(Error::NoSpace) => {
                // What is in runs needs no journal: its zones can be had again.
                if !engine.want_space() {
                    engine.flush_all()?;
                }
                self.make_room(need, values, Priority::Log)
            }
            made => made,
        }
    }

    pub(super) fn enter_with(
        &self,
        need: usize,
        cost: u64,
        make_room: impl Fn(usize) -> Result<()>,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        let need = if self.options.journal { need + record::NUMBER_SIZE } else { 0 };
        let pipeline = loop {
            let pipeline = self.pipeline.lock();
            let journal = need == 0 || pipeline.pending.len() + need <= pipeline.room;
            if journal && (cost == 0 || pipeline.pending.cost + cost <= pipeline.place_room) {
                break pipeline;
            }
            drop(pipeline);
            make_room(need)?;
        };
        // Checked under the lock: nothing is acknowledged behind a failure that a sync has met.
        self.health.writable()?;
        Ok(pipeline)
    }
}

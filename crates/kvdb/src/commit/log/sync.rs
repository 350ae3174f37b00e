//! Durability: a caller waits until the log's stream is durable up to a position.

use env::sync::atomic::Ordering;

use super::{Log, Pipeline};
use crate::error::Result;
use crate::journal::{Writer, record};

impl Log {
    /// Notes that a caller waits for a sync.
    pub(in crate::commit) fn sync_is_awaited(&self) {
        self.expected_syncs.awaited();
    }

    /// Notes that a caller waits for the sync of a commit.
    pub(in crate::commit) fn synced_commit_is_awaited(&self) {
        self.synced_commits.store(true, Ordering::Relaxed);
        self.expected_syncs.awaited();
    }

    /// Makes all commits so far durable. Costs nothing if at most a mark was added since the last
    /// sync.
    pub(in crate::commit) fn sync_unless_marked(&self) -> Result<()> {
        let end = self.end();
        if end == self.marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.sync_to(end)
    }

    /// Makes the journal's stream durable up to `position`.
    pub(crate) fn sync_to(&self, position: u64) -> Result<()> {
        let mut syncing = self.syncing.lock();
        loop {
            if self.durable.load(Ordering::Acquire) >= position {
                return Ok(());
            }
            self.engine.health.check()?;
            if !*syncing {
                break;
            }
            self.sync_done.wait(&mut syncing);
        }
        *syncing = true;
        drop(syncing);
        let result = self.write_out().and_then(|written| {
            // The writer is not locked during the sync, so that other threads can fill and write
            // the buffer.
            self.engine
                .zones
                .sync()
                .map_err(|e| self.engine.health.fail("syncing the journal", &e.into()))?;
            self.engine.counters.syncs.add(1);
            Ok(written)
        });
        let mut syncing = self.syncing.lock();
        *syncing = false;
        if let Ok(written) = result {
            self.durable.fetch_max(written, Ordering::AcqRel);
        }
        drop(syncing);
        self.sync_done.notify_all();
        result.map(|_| ())
    }

    /// Makes the journal durable. If it was durable already, and nothing was added since, a mark is
    /// written (not synced) that says so: from then on, damage to the last commits can be
    /// distinguished from a torn write.
    pub(crate) fn sync_and_mark(&self) -> Result<()> {
        if !self.journal {
            return Ok(());
        }
        let mut pipeline = self.pipeline.lock();
        let end = pipeline.end();
        if end == self.marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if end > self.durable.load(Ordering::Acquire) {
            drop(pipeline);
            return self.sync_to(end);
        }
        let mark = record::mark();
        if pipeline.pending.len() + mark.len() > pipeline.room {
            return Ok(());
        }
        pipeline.pending.stream.extend_from_slice(&mark);
        self.marked.store(pipeline.end(), Ordering::Relaxed);
        drop(pipeline);
        self.write_out()?;
        Ok(())
    }

    /// Writes and syncs the pending stream, while no other commit can happen. It is short.
    pub(in crate::commit) fn sync_rest(
        &self,
        writer: &mut Writer,
        pipeline: &mut Pipeline,
    ) -> Result<()> {
        self.write_rest(writer, pipeline)?;
        let end = pipeline.end();
        if end > self.durable.load(Ordering::Acquire) {
            self.engine
                .zones
                .sync()
                .map_err(|e| self.engine.health.fail("syncing the journal", &e.into()))?;
            self.engine.counters.syncs.add(1);
            self.durable.fetch_max(end, Ordering::AcqRel);
        }
        Ok(())
    }
}

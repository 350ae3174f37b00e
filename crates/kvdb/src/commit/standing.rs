//! Figures of the pipeline for the other parts of the engine: the size of the memtables, and which
//! part of the stream is durable or not flushed yet.

use env::sync::atomic::Ordering;

use super::CommitPipeline;

impl CommitPipeline {
    /// Returns the size of all memtables and deferred values, bytes.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.active_bytes() + self.sealed_bytes() + self.deferred_bytes()
    }

    /// Returns the size of the active memtables, bytes.
    pub(crate) fn active_bytes(&self) -> usize {
        self.active_bytes.load(Ordering::Acquire)
    }

    /// Returns the size of the sealed memtables, bytes.
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.sealed_bytes.load(Ordering::Acquire)
    }

    /// Returns the memory of deferred values.
    pub(crate) fn deferred_bytes(&self) -> usize {
        self.deferred_bytes.load(Ordering::Acquire)
    }

    /// Returns the position after the newest commit.
    pub(crate) fn end(&self) -> u64 {
        self.pipeline.lock().end()
    }

    /// Returns the position after the newest record whose changes are in memtables, or in runs that
    /// the manifest does not list yet.
    pub(crate) fn unflushed_end(&self) -> u64 {
        self.pipeline.lock().unflushed_end
    }

    /// Returns the position up to which the journal's stream is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns whether the journal has taken a zone from the reserve since the last call.
    pub(crate) fn take_journal_tight(&self) -> bool {
        self.journal_tight.swap(false, Ordering::AcqRel)
    }

    /// Waits until the commits that are entering memtables now have done so: later commits see the
    /// locks that were taken before this call.
    pub(crate) fn drain(&self) {
        drop(self.pipeline.lock());
    }

    /// Frees the buffers that hold no deferred values.
    pub(crate) fn release_value_buffers(&self) {
        self.value_buffers.lock().keep(0);
    }

    /// Returns the address ranges of the journal's segments that are not needed once the store is
    /// closed. `start` is the position where a replay begins.
    pub(crate) fn unneeded_journal(&self, start: u64) -> Vec<(u64, u64)> {
        let writer = self.writer.lock();
        writer.unneeded(start >= writer.position().position)
    }

    /// Calls `then` with the number of the segment that was written last, and the position of the
    /// stream. Nothing is written in the meantime.
    pub(crate) fn at_end_of_journal<T>(&self, then: impl FnOnce(Option<(u64, u64)>) -> T) -> T {
        let writer = self.writer.lock();
        then(writer.last_used())
    }
}

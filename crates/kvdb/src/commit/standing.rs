//! How far the pipeline is, for the other parts of the engine: what its memtables hold, what is
//! durable, what is not flushed yet.

use env::sync::atomic::Ordering;

use super::CommitPipeline;

impl CommitPipeline {
    /// Bytes of all memtables, and of what waits for its place.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.active_bytes() + self.sealed_bytes() + self.deferred_bytes()
    }

    /// Bytes in the memtables that take commits.
    pub(crate) fn active_bytes(&self) -> usize {
        self.active_bytes.load(Ordering::Acquire)
    }

    /// Bytes in the memtables that wait for their flush.
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.sealed_bytes.load(Ordering::Acquire)
    }

    /// Memory of values that wait for their place.
    pub(crate) fn deferred_bytes(&self) -> usize {
        self.deferred_bytes.load(Ordering::Acquire)
    }

    /// Position behind everything committed.
    pub(crate) fn end(&self) -> u64 {
        self.pipeline.lock().end()
    }

    /// Position behind the newest record whose changes are in memtables, or in runs that the
    /// manifest does not know of.
    pub(crate) fn unflushed_end(&self) -> u64 {
        self.pipeline.lock().unflushed_end
    }

    /// The journal's stream is durable up to this position.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether the journal has taken a zone of those set aside since the last call.
    pub(crate) fn take_journal_tight(&self) -> bool {
        self.journal_tight.swap(false, Ordering::AcqRel)
    }

    /// Returns when the commits that are entering memtables now have done so: those that come later
    /// see the locks that were taken before this call.
    pub(crate) fn drain(&self) {
        drop(self.pipeline.lock());
    }

    /// Gives memory back that no value waits in.
    pub(crate) fn release_value_buffers(&self) {
        self.value_buffers.lock().keep(0);
    }

    /// The ranges of the journal's segments that are not needed once the store is closed, as
    /// addresses. `start`: where a replay begins.
    pub(crate) fn unneeded_journal(&self, start: u64) -> Vec<(u64, u64)> {
        let writer = self.writer.lock();
        writer.unneeded(start >= writer.position().position)
    }

    /// Does `then` with the number of the segment that was written last, and the position where the
    /// stream stands. Nothing is written in the meantime.
    pub(crate) fn at_end_of_journal<T>(&self, then: impl FnOnce(Option<(u64, u64)>) -> T) -> T {
        let writer = self.writer.lock();
        then(writer.last_used())
    }
}

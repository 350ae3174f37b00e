//! The pending part of the journal's stream, committed and not written yet, and the code that
//! writes it out and syncs it.

use env::sync::atomic::Ordering;

use vt_tree::Seq;

use crate::commit::deferred::{self, Pending, PendingEnd};
use crate::commit::early::EARLY;
use crate::commit::{Applied, CommitEnv, CommitPipeline};
use crate::error::{Error, Result};
use crate::journal::{Writer, record};
use crate::mirror::Note;

/// The state that the pipeline's lock guards.
pub(crate) struct Pipeline {
    pub next_seq: Seq,
    /// The position after the newest record whose changes are in memtables, or in runs that the
    /// manifest does not list yet.
    pub unflushed_end: u64,
    /// The part of the stream that the journal's writer has not taken yet.
    pub pending: Pending,
    /// The stream's position of the first pending byte.
    pub position: u64,
    /// Bytes of stream that may be pending: the segments at hand have room for them.
    pub room: usize,
    /// The cost of deferred values that the reserved zones have room for, see [`deferred::room`].
    pub place_room: u64,
    /// A buffer that was written out, for reuse.
    spare: Vec<u8>,
    /// The offset, in the pending stream, of the record of the commit that is not visible yet.
    pub record_at: Option<usize>,
    /// The note of the request that this commit completes.
    pub note: Option<Note>,
}

impl Pipeline {
    pub(crate) fn new(next_seq: Seq, position: u64) -> Pipeline {
        let pending = Pending::new(Vec::new());
        Pipeline {
            next_seq,
            unflushed_end: position,
            pending,
            position,
            room: 0,
            place_room: 0,
            spare: Vec::new(),
            record_at: None,
            note: None,
        }
    }

    /// Returns the position after the newest commit.
    pub(crate) fn end(&self) -> u64 {
        self.position + self.pending.len() as u64
    }

    /// Returns the stream, to append a commit to.
    pub(crate) fn stream(&mut self) -> &mut Vec<u8> {
        let stream = &mut self.pending.stream;
        if stream.len() == crate::log::chunk::HEADER {
            stream.extend_from_slice(&record::number(self.next_seq));
        }
        self.record_at = Some(stream.len());
        stream
    }

    /// Takes the pending data, to be written by `writer`. Until it is written, `room` is the room
    /// that the write is sure to leave.
    pub(super) fn take(&mut self, writer: &Writer) -> Pending {
        let empty = Pending::new(std::mem::take(&mut self.spare));
        let mut taken = std::mem::replace(&mut self.pending, empty);
        self.position += taken.len() as u64;
        taken.end = PendingEnd { position: self.position, seq: self.next_seq - 1 };
        self.leave_room(&taken, writer);
        taken
    }

    /// Sets the room for commits to that which the write of `taken` is sure to leave.
    fn leave_room(&mut self, taken: &Pending, writer: &Writer) {
        self.room = writer.room().saturating_sub(crate::journal::cost(taken.len()));
        self.place_room =
            deferred::room(writer.reserved.len().saturating_sub(deferred::zones_for(taken.cost)));
    }

    /// Appends a record to the data that was just taken, before any other commit. There is room for
    /// it.
    pub(super) fn end_taken(&mut self, taken: &mut Pending, record: &[u8], writer: &Writer) {
        let before = taken.len();
        if before == 0 && !record.is_empty() {
            taken.stream.extend_from_slice(&record::number(self.next_seq));
        }
        taken.stream.extend_from_slice(record);
        self.position += (taken.len() - before) as u64;
        self.leave_room(taken, writer);
    }

    /// Undoes [`Pipeline::take`].
    pub(super) fn put_back(&mut self, mut taken: Pending, writer: &Writer) {
        self.position -= taken.len() as u64;
        taken.append(std::mem::replace(&mut self.pending, Pending::new(Vec::new())));
        self.pending = taken;
        self.update_room(writer);
    }

    /// Sets the room for commits to the room of the writer.
    pub(super) fn update_room(&mut self, writer: &Writer) {
        self.room = writer.room();
        self.place_room = deferred::room(writer.reserved.len());
    }
}

impl CommitPipeline {
    /// Adds the next commit to the mirror. If that fails, the store takes no more commits, since it
    /// is not known which of them the mirror has.
    pub(super) fn mirror(&self, pipeline: &mut Pipeline, count: u64) {
        let (at, note) = (pipeline.record_at.take(), pipeline.note.take());
        let (Some(mirror), Some(at)) = (self.mirror.get(), at) else { return };
        let record = pipeline.pending.stream.get(at..).unwrap_or_default();
        if let Err(e) = mirror.add((pipeline.next_seq, count), record, pipeline.end(), note) {
            self.health.fail("mirroring a commit", &e);
        }
    }

    /// Returns whether commits are kept in a mirror until the device has them.
    pub(super) fn is_mirrored(&self) -> bool {
        self.mirror.get().is_some()
    }

    /// Drops the commits up to `position` of the journal's stream from the mirror, since the device
    /// has them.
    fn cut_mirror(&self, position: u64) {
        if let Some(mirror) = self.mirror.get()
            && let Err(e) = mirror.cut(position)
        {
            self.health.fail("cutting the mirror of the commits", &e);
        }
    }

    /// Writes the journal's buffer to the device without a sync. Returns the position up to which
    /// the stream is written.
    pub(crate) fn write_out(&self) -> Result<u64> {
        self.write_out_with(&mut self.writer.lock())
    }

    pub(crate) fn write_out_with(&self, writer: &mut Writer) -> Result<u64> {
        self.write_out_unless(writer, |_| false)
    }

    /// Writes the pending journal stream. If some pending values can be discarded and little
    /// remains, it keeps the rest in memory, since that may be overwritten or deleted before it has
    /// to be written. While syncs are expected, the limit for "little" is lower, and whole sectors
    /// are written.
    pub(crate) fn write_gathered(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        if !self.writes_early() {
            return self.write_out_unless(&mut writer, |left| self.is_little(left)).map(drop);
        }
        let little =
            |left: &Pending| left.len() < EARLY / 2 && left.cost < self.shares.early_values / 2;
        let Some(mut taken) = self.take_unless(&mut writer, little)? else { return Ok(()) };
        self.expected_syncs.written(self.env.monotonic());
        // A replay that flushes, and a salvage after a hole, resume at a chunk that begins with a
        // record.
        if writer.since_whole() as usize + taken.len() >= self.shares.journal_write_at {
            return self.write_taken(&mut writer, taken.stream);
        }
        let cut = taken.cut_to_sectors();
        self.write_stream(&mut writer, &mut taken.stream)?;
        let mut pipeline = self.pipeline.lock();
        pipeline.put_back_cut(cut);
        self.update_after_write(&mut pipeline, &writer, taken.stream);
        Ok(())
    }

    /// Returns whether it is time for [`CommitPipeline::write_gathered`].
    pub(crate) fn has_gathered(&self, applied: &Applied) -> bool {
        if self.writes_early() && !applied.sync_follows {
            return self.is_early(applied);
        }
        applied.gathered >= self.shares.journal_write_at || applied.deferred >= self.shares.window
    }

    /// Returns whether the data that remains after a discard is too little to be written now.
    pub(super) fn is_little(&self, left: &Pending) -> bool {
        left.len() < 3 * self.shares.journal_write_at && left.cost < self.shares.window as u64 / 2
    }

    /// Writes the pending data, unless some of its values were discarded and `little` holds for the
    /// rest.
    pub(super) fn write_out_unless(
        &self,
        writer: &mut Writer,
        little: impl FnOnce(&Pending) -> bool,
    ) -> Result<u64> {
        let taken = self.take_unless(writer, little)?;
        if let Some(taken) = taken {
            self.write_taken(writer, taken.stream)?;
        }
        Ok(writer.position().position)
    }

    /// Takes the pending data to be written, after its values are placed. Returns `None` if nothing
    /// is pending, or if some of the values were discarded and `little` holds for the rest.
    fn take_unless(
        &self,
        writer: &mut Writer,
        little: impl FnOnce(&Pending) -> bool,
    ) -> Result<Option<Pending>> {
        self.health.check()?;
        let mut taken = {
            let mut pipeline = self.pipeline.lock();
            if pipeline.pending.is_empty() {
                return Ok(None);
            }
            pipeline.take(writer)
        };
        self.discard_hidden(&mut taken);
        if taken.discarded > 0 && little(&taken) {
            let mut pipeline = self.pipeline.lock();
            taken.looked_at = taken.len();
            pipeline.put_back(taken, writer);
            return Ok(None);
        }
        if let Err(e) = self.place_values(&mut taken, writer) {
            // The values stay readable and not yet durable; the next write tries again.
            self.pipeline.lock().put_back(taken, writer);
            return Err(self.fail_unless_full("writing values", e));
        }
        Ok(Some(taken))
    }

    /// Stops the store because of an error, unless the error is `NoSpace`. Returns the error.
    pub(super) fn fail_unless_full(&self, doing: &str, e: Error) -> Error {
        if matches!(e, Error::NoSpace) { e } else { self.health.fail(doing, &e) }
    }

    /// Writes a part of the stream that was taken from the pipeline.
    pub(super) fn write_taken(&self, writer: &mut Writer, mut stream: Vec<u8>) -> Result<()> {
        self.write_stream(writer, &mut stream)?;
        writer.is_whole();
        self.update_after_write(&mut self.pipeline.lock(), writer, stream);
        Ok(())
    }

    pub(super) fn write_stream(&self, writer: &mut Writer, stream: &mut Vec<u8>) -> Result<()> {
        if stream.len() > crate::log::chunk::HEADER {
            // Tap the stream before it is cut into chunks. If the write fails, no later sync
            // succeeds.
            self.tap.add(&stream[crate::log::chunk::HEADER..]);
            let synced = self.durable.load(Ordering::Acquire);
            writer.settle =
                self.options.zero_journal && self.synced_commits.load(Ordering::Relaxed);
            writer
                .write(stream, synced)
                .map_err(|e| self.health.fail("writing the journal", &e))?;
            self.counters.journal_device.set(writer.bytes());
        }
        Ok(())
    }

    /// Updates the room for commits after a write. The commits during the write were admitted by
    /// the lower figures that [`Pipeline::take`] has set.
    pub(super) fn update_after_write(
        &self,
        pipeline: &mut Pipeline,
        writer: &Writer,
        stream: Vec<u8>,
    ) {
        pipeline.update_room(writer);
        self.cut_mirror(writer.position().position);
        self.signals.journal_ended(true);
        if stream.capacity() <= 2 * self.shares.journal_buffer {
            pipeline.spare = stream;
        }
    }

    /// Makes everything that was committed before this call durable, for a caller that waits.
    pub(crate) fn sync(&self, engine: &impl CommitEnv) -> Result<()> {
        self.expected_syncs.awaited();
        self.sync_at_interval(engine)?;
        self.sync_elsewhere()
    }

    /// Does the same as [`CommitPipeline::sync`], without a caller that waits.
    pub(crate) fn sync_at_interval(&self, engine: &impl CommitEnv) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.health.check()?;
        if !self.options.journal {
            return engine.flush_all();
        }
        let end = self.pipeline.lock().end();
        if end == self.marked.load(Ordering::Relaxed) {
            // At most a mark was added since the last sync.
            return Ok(());
        }
        self.sync_journal_to(end)
    }

    /// Makes all commits up to `position` of the journal's stream durable.
    pub(crate) fn sync_to(&self, engine: &impl CommitEnv, position: u64) -> Result<()> {
        match self.options.journal {
            true => self.sync_journal_to(position),
            false => engine.flush_all(),
        }
    }

    /// Makes the journal's stream durable up to `position`.
    pub(crate) fn sync_journal_to(&self, position: u64) -> Result<()> {
        let mut syncing = self.syncing.lock();
        loop {
            if self.durable.load(Ordering::Acquire) >= position {
                return Ok(());
            }
            self.health.check()?;
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
            self.zones.sync().map_err(|e| self.health.fail("syncing the journal", &e.into()))?;
            self.counters.syncs.add(1);
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
    /// written (not synced) that says so: from then on, damage to the last commits can be told from
    /// a torn write.
    pub(crate) fn sync_and_mark(&self) -> Result<()> {
        if !self.options.journal {
            return Ok(());
        }
        let mut pipeline = self.pipeline.lock();
        let end = pipeline.end();
        if end == self.marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if end > self.durable.load(Ordering::Acquire) {
            drop(pipeline);
            return self.sync_journal_to(end);
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
}

#[cfg(test)]
mod tests {
    use crate::{DictionaryOptions, Durability, Kvdb};

    /// The record of a commit that happens while values are being written may never be durable.
    #[test]
    fn what_comes_behind_a_write_discards_nothing_of_it() {
        let db = Kvdb::in_memory();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let put = |value: &[u8]| db.put(dict, b"k", value, Durability::Buffered).unwrap();
        let commits = db.pipeline();
        let take = || {
            let writer = commits.writer.lock();
            commits.pipeline.lock().take(&writer)
        };
        let put_back = |taken| {
            let writer = commits.writer.lock();
            commits.pipeline.lock().put_back(taken, &writer);
        };
        put(&[1; 5000]);
        let mut taken = take();
        put(b"small");
        commits.discard_hidden(&mut taken);
        assert_eq!((taken.values.len(), commits.counters.discarded_bytes.get()), (1, 0));
        put_back(taken);
        let mut taken = take();
        commits.discard_hidden(&mut taken);
        assert_eq!((taken.values.len(), commits.counters.discarded_bytes.get()), (0, 5000));
        put_back(taken);
        db.sync().unwrap();
        assert_eq!(db.get(dict, b"k").unwrap().unwrap(), b"small"[..]);
    }
}

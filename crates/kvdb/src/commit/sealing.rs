//! Seals a generation: all commits up to then are flushed together, and the journal begins after
//! them once they are in runs.

use env::sync::atomic::Ordering;
use std::cell::Cell;
use std::sync::Arc;

use vt_tree::Seq;
use zones::Priority;

use crate::commit::log::Pipeline;
use crate::commit::{Committer, SnapshotMaker};
use crate::error::Result;
use crate::journal::{self, Writer};
use crate::lock_order::MutexGuard;
use crate::manifest::JournalStart;
use crate::version::Version;
use crate::version::generation::Generation;

/// A generation that takes no more commits, and the start of the journal once it is in runs.
#[derive(Clone)]
pub(crate) struct Sealed {
    pub generation: u64,
    /// The bytes of its memtables.
    pub bytes: usize,
    pub start: JournalStart,
    /// Pins the values that late binding placed for it, even for dictionaries that are dropped by
    /// now.
    pub _kept: Arc<Generation>,
}

/// A generation that was sealed in memory, and the end of its journal, which is still to be
/// written.
struct Closed {
    stream: Vec<u8>,
    generation: ClosedGeneration,
}

/// The pipeline and the version at the moment when a generation is about to be sealed.
struct Last<'a> {
    pipeline: MutexGuard<'a, Pipeline>,
    version: Arc<Version>,
    /// The last record of the generation; empty if there is none.
    record: Vec<u8>,
}

/// A sealed generation whose journal is not written yet, so that the position after it is not
/// known.
struct ClosedGeneration {
    generation: Arc<Generation>,
    bytes: usize,
    seq: Seq,
}

impl ClosedGeneration {
    /// Returns the generation with the journal's start after it, once its own journal is written.
    fn behind(self, writer: &Writer) -> Sealed {
        let at = writer.position();
        let ClosedGeneration { generation: kept, bytes, seq } = self;
        let start =
            JournalStart { segment: at.segment, offset: at.offset, position: at.position, seq };
        Sealed { generation: kept.number, bytes, start, _kept: kept }
    }
}

impl Committer {
    /// Seals generation `number`, unless it is sealed already.
    pub(crate) fn seal(&self, number: u64) -> Result<()> {
        let mut writer = self.log.writer.lock();
        let agree = |version: &Version, _: &mut Pipeline, _: &Writer| {
            Ok((version.generation.number == number).then(Vec::new))
        };
        self.seal_if(&mut writer, agree, |_| {})
    }

    /// Seals the active generation, with a snapshot's record as its last one. The caller holds
    /// `naming`.
    pub(crate) fn seal_with_snapshot(&self, snapshot: &impl SnapshotMaker) -> Result<()> {
        let need =
            if self.engine.options.journal { journal::cost(snapshot.record_size()) } else { 0 };
        let mut writer = self.log.writer.lock();
        let made = Cell::new(false);
        while !made.get() {
            self.log.write_out_with(&mut writer)?;
            while writer.room() < 2 * need {
                self.log.add_segment(&mut writer, Priority::Log)?;
            }
            let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
                // Other commits may have filled the room in the meantime.
                let room = writer.room() >= journal::cost(pipeline.pending.len()) + need;
                let agreed = room || !self.engine.options.journal;
                made.set(agreed);
                Ok(agreed.then(|| self.last_record(snapshot, version, pipeline)))
            };
            self.seal_if(&mut writer, agree, |_| snapshot.closed())?;
        }
        Ok(())
    }

    /// Returns the record of a snapshot of all commits, with which the journal of its generation
    /// ends.
    pub(super) fn last_record(
        &self,
        snapshot: &dyn SnapshotMaker,
        version: &Version,
        pipeline: &Pipeline,
    ) -> Vec<u8> {
        let record = snapshot.record(version, pipeline.next_seq - 1);
        if self.engine.options.journal { record } else { Vec::new() }
    }

    /// Seals the current generation if `agree`, which is called under the lock, returns a record to
    /// end it with; an empty one stands for none. `before_next` runs under the same lock, before
    /// any commit of the next generation.
    pub(super) fn seal_if(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<Option<Vec<u8>>>,
        before_next: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        let Some(last) = self.lock_to_seal(writer, agree)? else { return Ok(()) };
        let Last { mut pipeline, version: last, record } = last;
        let mut closed = self.close(&record, writer, &mut pipeline)?;
        before_next(&mut pipeline);
        let sealed = if self.log.is_mirrored() {
            // The mirror does not have runs that are bound, so no commit may follow them before the
            // journal has them.
            self.log.write_stream(writer, &mut closed.stream)?;
            writer.is_whole();
            self.log.update_after_write(&mut pipeline, writer, closed.stream);
            let sealed = closed.generation.behind(writer);
            self.log.write_rest(writer, &mut pipeline)?;
            sealed
        } else {
            drop(pipeline);
            self.log.write_taken(writer, closed.stream)?;
            closed.generation.behind(writer)
        };
        self.queue_for_flush([sealed]);
        self.move_short_values_out(&last)
    }

    /// Does the same as [`Committer::seal_if`], and seals the next generation under the same
    /// lock: `commit` makes its only commit and returns the record to end it with; `end` runs
    /// before any commit of the generation after it.
    pub(super) fn seal_around(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<Option<Vec<u8>>>,
        commit: impl FnOnce(&mut Pipeline) -> Vec<u8>,
        end: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        let Some(last) = self.lock_to_seal(writer, agree)? else { return Ok(()) };
        let Last { mut pipeline, version: last, record } = last;
        let mut first = self.close(&record, writer, &mut pipeline)?;
        // Write under the lock: the second part of the stream must not begin in the same chunk, and
        // no commit may happen in between. The write is short, since the earlier stream was written
        // above.
        self.log.write_stream(writer, &mut first.stream)?;
        self.log.update_after_write(&mut pipeline, writer, first.stream);
        let before = first.generation.behind(writer);
        let record = commit(&mut pipeline);
        let mut second = self.close(&record, writer, &mut pipeline)?;
        end(&mut pipeline);
        if self.log.is_mirrored() {
            self.log.write_stream(writer, &mut second.stream)?;
            writer.is_whole();
            self.log.update_after_write(&mut pipeline, writer, second.stream);
            drop(pipeline);
        } else {
            drop(pipeline);
            self.log.write_taken(writer, second.stream)?;
        }
        let after = second.generation.behind(writer);
        self.queue_for_flush([before, after]);
        self.move_short_values_out(&last)
    }

    /// Writes the pending stream and locks the pipeline, if `agree`, which is called under the
    /// lock, returns a record.
    fn lock_to_seal(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Last<'_>>> {
        // Write twice, so that little is left to write while commits must wait.
        self.log.write_out_with(writer)?;
        self.log.write_out_with(writer)?;
        // While values are held, commits may bring many during a long write.
        for _ in 0..2 {
            if !self.log.has_many_values() {
                break;
            }
            self.log.write_out_with(writer)?;
        }
        let mut pipeline = self.log.pipeline.lock();
        let version = self.engine.versions.load_full();
        let agreed = agree(&version, &mut pipeline, writer)?;
        Ok(agreed.map(|record| Last { pipeline, version, record }))
    }

    /// Seals the active generation in memory. The pending data belongs to it, followed by `record`,
    /// and is still to be written. On an error nothing has changed.
    fn close(&self, record: &[u8], writer: &mut Writer, pipeline: &mut Pipeline) -> Result<Closed> {
        // Its values must be placed before it is flushed.
        let mut rest = pipeline.take(writer);
        self.log.discard_hidden(&mut rest);
        if let Err(e) = self.log.place_values(&mut rest, writer) {
            pipeline.put_back(rest, writer);
            return Err(self.log.fail_unless_full("writing values", e));
        }
        // Append the record only now: the journal must not contain the record of a snapshot that
        // fails.
        pipeline.end_taken(&mut rest, record, writer);
        let seq = pipeline.next_seq - 1;
        let generation = self.engine.versions.load().generation.clone();
        self.engine.versions.change(Version::seal);
        let bytes = self.active_bytes.swap(0, Ordering::Relaxed);
        Ok(Closed { stream: rest.stream, generation: ClosedGeneration { generation, bytes, seq } })
    }

    /// Queues sealed generations for their flush, after their journal is written.
    fn queue_for_flush(&self, closed: impl IntoIterator<Item = Sealed>) {
        let mut sealed = self.sealed.lock();
        for closed in closed {
            self.sealed_bytes.fetch_add(closed.bytes, Ordering::Release);
            sealed.push_back(closed);
        }
        drop(sealed);
        self.engine.signals.flush_wanted();
    }

    /// Returns the newest generation that waits for its flush.
    pub(crate) fn newest_sealed(&self) -> Option<u64> {
        self.sealed.lock().back().map(|sealed| sealed.generation)
    }

    /// Returns the newest generation up to `upto` that waits for its flush.
    pub(crate) fn sealed_upto(&self, upto: u64) -> Option<Sealed> {
        self.sealed.lock().iter().rfind(|sealed| sealed.generation <= upto).cloned()
    }

    /// Removes the generations up to `upto`, which are in runs now.
    pub(crate) fn flushed_upto(&self, upto: u64) {
        let mut sealed = self.sealed.lock();
        sealed.retain(|s| s.generation > upto);
        self.sealed_bytes.store(sealed.iter().map(|s| s.bytes).sum(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use env::Simulated;
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose};

    use super::*;
    use crate::commit::batch::Durability;
    use crate::error::Error;
    use crate::ids::Label;
    use crate::snapshots::EndOfGeneration;
    use crate::{
        CreateOptions, DictionaryOptions, Isolation, Kvdb, OpenOptions, TransactionOptions,
    };

    struct Maker<'a> {
        end: EndOfGeneration<'a>,
        label: Label,
    }

    impl SnapshotMaker for Maker<'_> {
        fn record_size(&self) -> usize {
            100
        }
        fn record(&self, version: &Version, _: Seq) -> Vec<u8> {
            self.end.record(self.label.clone(), version)
        }
        fn closed(&self) {
            self.end.closed();
        }
    }

    /// The host has no space for a value that was just committed, so the seal fails. Then there
    /// must be no snapshot, and no record of one in the journal: a replay takes such a record for
    /// the last one of its chunk.
    #[test]
    fn a_generation_that_cannot_be_closed_leaves_no_record_of_its_snapshot() {
        let memory = Arc::new(MemoryDevice::new());
        let device = Arc::new(FaultDevice::new(memory.clone(), 1));
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let env = Arc::new(Simulated::new(1));
        let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        db.put(dict, b"large", &[3; 5000], Durability::Buffered).unwrap();
        let commits = db.pipeline();
        let mut writer = commits.log.writer.lock();
        while writer.reserved.len() < 3 {
            writer.reserved.push(commits.engine.zones.reserve_zone(Priority::User).unwrap());
        }
        // Take the pending data, as if it were committed after the write and before the lock.
        let mut late = Some(commits.log.pipeline.lock().take(&writer));
        let (name, branch) = ("s".into(), String::new());
        let label = Label { name, branch, id: [1; 16], created: Duration::ZERO, seq: 1 };
        let maker = Maker { end: EndOfGeneration::new(db.snapshot_set()), label };
        let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
            late.take().into_iter().for_each(|late| pipeline.put_back(late, writer));
            Ok(Some(commits.last_record(&maker, version, pipeline)))
        };
        device.inject(Fault::always(Operation::Write, FaultKind::NoSpace).of(Purpose::Pages));
        let sealed = commits.seal_if(&mut writer, agree, |_| maker.closed());
        assert!(matches!(sealed, Err(Error::NoSpace)), "{sealed:?}");
        assert!(db.snapshots().is_empty());
        assert_eq!(writer.reserved.len(), 3, "zones that are set aside for values stay");
        drop(writer);
        device.clear();
        db.put(dict, b"small", b"1", Durability::Buffered).unwrap();
        db.sync().unwrap();
        let image = Arc::new(MemoryDevice::clone(&memory));
        let (again, _) = Kvdb::open(image, env, open).unwrap();
        assert!(again.snapshots().is_empty());
        assert_eq!(again.get(dict, b"large").unwrap().unwrap(), [3; 5000][..]);
        assert_eq!(again.get(dict, b"small").unwrap().unwrap(), b"1"[..]);
    }

    /// A rollback holds locks and waits for the names, so a commit that holds the names must not
    /// wait for locks.
    #[test]
    fn a_commit_between_snapshots_waits_for_locks_without_the_names() {
        let db = Kvdb::in_memory();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let locks = db.begin(Isolation::Serializable).unwrap();
        locks.lock_key(dict, b"k", true).unwrap();
        let undoable = TransactionOptions { undoable: true, ..TransactionOptions::default() };
        let t = db.begin_with(undoable).unwrap();
        t.put(dict, "k", "1").unwrap();
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| t.commit(Durability::Buffered));
            while db.pipeline().locks.waiting() == 0 {
                std::thread::yield_now();
            }
            let free = db.snapshot_set().naming.try_lock().is_some();
            locks.abort();
            commit.join().unwrap().unwrap();
            assert!(free, "no snapshot could be made while it waited");
        });
        assert_eq!(db.undoable_commits().len(), 1);
    }
}

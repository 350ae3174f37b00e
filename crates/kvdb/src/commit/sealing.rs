//! Closing a generation: what was committed up to then is flushed as one, and the journal begins
//! behind it once it is in runs. Runs that were built elsewhere enter the store between two
//! generations.

use env::sync::atomic::Ordering;
use std::cell::Cell;
use std::sync::Arc;

use vt_tree::{KeyRange, Run, Seq};
use zones::Priority;

use crate::commit::locking::borrowed;
use crate::commit::pipeline::Pipeline;
use crate::commit::recent::RecentCommit;
use crate::commit::{CommitPipeline, Outcome, SnapshotMaker};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::Ops;
use crate::journal::{self, Writer, record};
use crate::lock_order::MutexGuard;
use crate::manifest::JournalStart;
use crate::read::version::Version;

/// A generation that takes no more commits, and where the journal begins once it is in runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    pub generation: u64,
    /// Of its memtables.
    pub bytes: usize,
    pub start: JournalStart,
}

/// A generation that was closed in memory, and the end of its journal, which is to be written.
struct Closed {
    stream: Vec<u8>,
    generation: ClosedGeneration,
}

/// A closed generation before it is known where the journal goes on behind it.
struct ClosedGeneration {
    number: u64,
    bytes: usize,
    seq: Seq,
}

impl ClosedGeneration {
    /// Its journal is written.
    fn behind(self, writer: &Writer) -> Sealed {
        let at = writer.position();
        let ClosedGeneration { number: generation, bytes, seq } = self;
        let start =
            JournalStart { segment: at.segment, offset: at.offset, position: at.position, seq };
        Sealed { generation, bytes, start }
    }
}

impl CommitPipeline {
    /// Closes generation `number` for commits, unless it is closed already.
    pub(crate) fn seal(&self, number: u64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.seal_if(&mut writer, |version, _, _| Ok(version.generation.number == number), |_| {})
    }

    /// Makes runs part of the store, above all that is in it, once `still` agrees and no locks lie
    /// on what they have `touched`, see [`CommitPipeline::commit_changes`]. What is in the runs is
    /// durable already. `listed`: what they change, if that is known key by key. `around`: makes
    /// snapshots before and after; the caller has `naming`.
    pub(crate) fn add_runs(
        &self,
        runs: &[(DictionaryId, Vec<Arc<Run>>)],
        listed: Option<&Ops>,
        touched: impl FnOnce() -> Result<Vec<(DictionaryId, KeyRange)>>,
        owner: Option<u64>,
        around: Option<&dyn SnapshotMaker>,
        still: impl FnOnce(Seq) -> Result<bool>,
    ) -> Result<Outcome> {
        // A serializable transaction has locked all of it.
        let watched = owner.is_none() && self.locks.any();
        let touched = if watched { touched()? } else { Vec::new() };
        self.wait_for_locks(borrowed(&touched), owner)?;
        let record = record::bind(&self.zones.positions(), runs);
        let mut writer = self.writer.lock();
        // There must be room for the record, and for what is pending.
        self.write_out_with(&mut writer)?;
        let snapshots = around.map_or(0, |around| 2 * journal::cost(around.record_size()));
        let need = journal::cost(record.len() + record::NUMBER_SIZE) + snapshots;
        while writer.room() < 2 * need {
            self.add_segment(&mut writer, Priority::Log)?;
        }
        let mut applied = None;
        // Held no longer than the pipeline's lock, which comes before it.
        let guard = Cell::new(None);
        let add = |pipeline: &mut Pipeline| {
            let seq = pipeline.next_seq;
            let each =
                runs.iter().flat_map(|(dict, runs)| runs.iter().map(|run| (*dict, run.clone())));
            let remembered = self.recent.remember(each.map(|(dict, run)| RecentCommit {
                dict,
                run,
                newest: seq,
                one_seq: true,
            }));
            if self.options.journal {
                pipeline.stream().extend_from_slice(&record);
            }
            pipeline.unflushed_end = pipeline.end();
            applied = Some(self.versions.change_by_commit(
                seq,
                |version| version.add_runs(runs),
                |version| self.publish(pipeline, version, 1, 0, 0),
            ));
            let version = self.versions.load();
            match listed {
                Some(changes) => self.feed.note(&version, changes, seq),
                None => {
                    let dicts: Vec<DictionaryId> = runs.iter().map(|(dict, _)| *dict).collect();
                    self.feed.note_unlisted(&version, Some(&dicts), seq, || self.env.random());
                }
            }
            drop((remembered, guard.take()));
        };
        // Other commits may have filled the room: then all begins anew.
        let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
            runs.iter().try_for_each(|(dict, _)| version.tree(*dict).map(drop))?;
            let room = writer.room() >= journal::cost(pipeline.pending.len()) + need;
            if !room
                || !still(pipeline.next_seq - 1)?
                || (owner.is_none() && self.locks.any() && !watched)
            {
                return Ok(false);
            }
            if watched {
                let Ok(free) = self.locks.try_guard(borrowed(&touched), owner) else {
                    return Ok(false);
                };
                guard.set(Some(free));
            }
            Ok(true)
        };
        match around {
            None => self.seal_if(&mut writer, agree, add)?,
            Some(around) => {
                let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
                    let agreed = agree(version, pipeline, writer)?;
                    if agreed {
                        self.end_with(around, version, pipeline);
                    }
                    Ok(agreed)
                };
                let mut add = add;
                let commit = |pipeline: &mut Pipeline| {
                    around.closed();
                    add(pipeline);
                    self.end_with(around, &self.versions.load(), pipeline);
                };
                self.seal_around(&mut writer, agree, commit, |_| around.closed())?;
            }
        }
        drop(writer);
        let Some(applied) = applied else { return Ok(Outcome::Stale) };
        self.counters.commits.add(1);
        self.signals.deleted();
        Ok(Outcome::Applied(applied))
    }

    /// Closes the generation that takes commits, with the record of a snapshot as its last. The
    /// caller has `naming`.
    pub(crate) fn seal_with_snapshot(&self, snapshot: &impl SnapshotMaker) -> Result<()> {
        let need = if self.options.journal { journal::cost(snapshot.record_size()) } else { 0 };
        let mut writer = self.writer.lock();
        let made = Cell::new(false);
        while !made.get() {
            self.write_out_with(&mut writer)?;
            while writer.room() < 2 * need {
                self.add_segment(&mut writer, Priority::Log)?;
            }
            let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
                // Other commits may have filled the room since.
                let room = writer.room() >= journal::cost(pipeline.pending.len()) + need;
                if room || !self.options.journal {
                    self.end_with(snapshot, version, pipeline);
                    made.set(true);
                }
                Ok(made.get())
            };
            self.seal_if(&mut writer, agree, |_| snapshot.closed())?;
        }
        Ok(())
    }

    /// Appends the record of a snapshot of all that was committed.
    fn end_with(&self, snapshot: &dyn SnapshotMaker, version: &Version, pipeline: &mut Pipeline) {
        let record = snapshot.record(version, pipeline.next_seq - 1);
        if self.options.journal {
            pipeline.stream().extend_from_slice(&record);
        }
    }

    /// Seals the current generation if `agree`, asked under the lock, says so. `before_next` runs
    /// in the same lock, before any commit of the next generation.
    fn seal_if(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<bool>,
        before_next: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        let Some((mut pipeline, last)) = self.lock_to_seal(writer, agree)? else { return Ok(()) };
        let closed = self.close(last.generation.number, writer, &mut pipeline)?;
        before_next(&mut pipeline);
        drop(pipeline);
        self.write_taken(writer, closed.stream)?;
        let sealed = closed.generation.behind(writer);
        self.queue_for_flush([sealed]);
        self.move_short_values_out(&last)
    }

    /// Does what [`CommitPipeline::seal_if`] does, and closes the next generation in the same lock:
    /// `commit` is all that it has, and `end` comes before any commit of the one behind it.
    fn seal_around(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<bool>,
        commit: impl FnOnce(&mut Pipeline),
        end: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        let Some((mut pipeline, last)) = self.lock_to_seal(writer, agree)? else { return Ok(()) };
        let number = last.generation.number;
        let mut first = self.close(number, writer, &mut pipeline)?;
        // Under the lock: the second part of the stream must not begin in the same chunk, and no
        // commit may come in between. It is short, since everything before was written above.
        self.write_stream(writer, &mut first.stream)?;
        self.update_after_write(&mut pipeline, writer, first.stream);
        let before = first.generation.behind(writer);
        commit(&mut pipeline);
        let second = self.close(number + 1, writer, &mut pipeline)?;
        end(&mut pipeline);
        drop(pipeline);
        self.write_taken(writer, second.stream)?;
        let after = second.generation.behind(writer);
        self.queue_for_flush([before, after]);
        self.move_short_values_out(&last)
    }

    /// Writes what is pending and locks the pipeline. Gives the lock and the version of that moment
    /// if `agree`, asked under the lock, says so.
    fn lock_to_seal(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<bool>,
    ) -> Result<Option<(MutexGuard<'_, Pipeline>, Arc<Version>)>> {
        // Twice, so that little is left for the time when commits must wait.
        self.write_out_with(writer)?;
        self.write_out_with(writer)?;
        let mut pipeline = self.pipeline.lock();
        let version = self.versions.load_full();
        let agreed = agree(&version, &mut pipeline, writer)?;
        Ok(agreed.then_some((pipeline, version)))
    }

    /// Closes generation `number`, which takes commits, in memory. What is pending belongs to it,
    /// and is still to be written. On an error nothing has changed.
    fn close(&self, number: u64, writer: &mut Writer, pipeline: &mut Pipeline) -> Result<Closed> {
        // Its values must have their places before it is flushed.
        let mut rest = pipeline.take(writer);
        self.discard_hidden(&mut rest);
        if let Err(e) = self.place_values(&mut rest, writer) {
            pipeline.put_back(rest, writer);
            return Err(self.fail_unless_full("writing values", e));
        }
        let seq = pipeline.next_seq - 1;
        self.versions.change(|v| *v = v.sealed());
        let bytes = self.active_bytes.swap(0, Ordering::Relaxed);
        Ok(Closed { stream: rest.stream, generation: ClosedGeneration { number, bytes, seq } })
    }

    /// Generations that are closed, and whose journal is written, wait for their flush.
    fn queue_for_flush(&self, closed: impl IntoIterator<Item = Sealed>) {
        let mut sealed = self.sealed.lock();
        for closed in closed {
            self.sealed_bytes.fetch_add(closed.bytes, Ordering::Release);
            sealed.push_back(closed);
        }
        drop(sealed);
        self.signals.flush_wanted();
    }

    /// The newest generation that waits for its flush.
    pub(crate) fn newest_sealed(&self) -> Option<u64> {
        self.sealed.lock().back().map(|sealed| sealed.generation)
    }

    /// The newest generation up to `upto` that waits for its flush.
    pub(crate) fn sealed_upto(&self, upto: u64) -> Option<Sealed> {
        self.sealed.lock().iter().rfind(|sealed| sealed.generation <= upto).copied()
    }

    /// Generations up to `upto` are in runs.
    pub(crate) fn flushed_upto(&self, upto: u64) {
        let mut sealed = self.sealed.lock();
        sealed.retain(|s| s.generation > upto);
        self.sealed_bytes.store(sealed.iter().map(|s| s.bytes).sum(), Ordering::Release);
    }
}

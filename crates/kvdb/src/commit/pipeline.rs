//! Between commits and the device: what is committed and not written yet, the room that it counts
//! on, and how it is written out, synced, and closed as a generation.
//!
//! Room comes first. A commit appends only what the segments and zones at hand are sure to hold, so
//! nothing that was acknowledged finds the store full later; a write says what room is left
//! while it writes, and afterwards.

use env::sync::atomic::Ordering;
use std::cell::Cell;
use std::sync::Arc;

use vt_tree::{KeyRange, Run, Seq};
use zones::{Priority, Purpose, ZONE_SIZE, ZoneId, ZonePin};

use crate::commit::deferred::{self, Pending, PendingEnd};
use crate::commit::locking::borrowed;
use crate::commit::recent::RecentCommit;
use crate::commit::{CommitEnv, CommitPipeline, Outcome, SpaceClaim};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::{Owned, SEGMENT_SIZE, Segment, Writer, record};
use crate::manifest::{Edit, JournalStart};
use crate::read::version::Version;

/// What the pipeline's lock guards.
pub(crate) struct Pipeline {
    pub next_seq: Seq,
    /// Position behind the newest record whose changes are in memtables, or in runs that the
    /// manifest does not know of.
    pub unflushed_end: u64,
    /// What the journal's writer has not taken yet.
    pub pending: Pending,
    /// Position in the stream of the first pending byte.
    pub position: u64,
    /// Bytes of stream that may be pending: the segments at hand have room for them.
    pub room: usize,
    /// What the values that may wait for their place can take: see [`deferred::room`].
    pub place_room: u64,
    /// A buffer that was written out, for reuse.
    spare: Vec<u8>,
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
        }
    }

    /// Position behind everything committed.
    pub(crate) fn end(&self) -> u64 {
        self.position + self.pending.len() as u64
    }

    /// The stream, to append a commit to.
    pub(crate) fn stream(&mut self) -> &mut Vec<u8> {
        let stream = &mut self.pending.stream;
        if stream.len() == crate::log::chunk::HEADER {
            stream.extend_from_slice(&record::number(self.next_seq));
        }
        stream
    }

    /// Takes what is pending, to be written by `writer`. Until it is written, `room` is what the
    /// write is sure to leave.
    fn take(&mut self, writer: &Writer) -> Pending {
        let empty = Pending::new(std::mem::take(&mut self.spare));
        let mut taken = std::mem::replace(&mut self.pending, empty);
        self.position += taken.len() as u64;
        taken.end = PendingEnd { position: self.position, seq: self.next_seq - 1 };
        self.room = writer.room().saturating_sub(crate::journal::cost(taken.len()));
        self.place_room =
            deferred::room(writer.reserved.len().saturating_sub(deferred::zones_for(taken.cost)));
        taken
    }

    /// Undoes [`Pipeline::take`].
    fn put_back(&mut self, mut taken: Pending, writer: &Writer) {
        self.position -= taken.len() as u64;
        taken.append(std::mem::replace(&mut self.pending, Pending::new(Vec::new())));
        self.pending = taken;
        self.update_room(writer);
    }

    /// Sets the room that commits count on to what the writer has.
    fn update_room(&mut self, writer: &Writer) {
        self.room = writer.room();
        self.place_room = deferred::room(writer.reserved.len());
    }
}

/// A generation that takes no more commits, and where the journal begins once it is in runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    pub generation: u64,
    /// Of its memtables.
    pub bytes: usize,
    pub start: JournalStart,
}

impl CommitPipeline {
    /// Adds segments until a record of `len` bytes fits, and reserves zones for the values of a
    /// commit: `values` is their cost, and the claim of that commit. Segments are taken from as
    /// deep in the reserve as `depth` allows.
    pub(crate) fn make_room(
        &self,
        len: usize,
        values: (u64, SpaceClaim),
        depth: Priority,
    ) -> Result<()> {
        let mut writer = self.writer.lock();
        self.write_out_unless(&mut writer, |left| self.is_little(left))?;
        match self.make_room_with(&mut writer, len, values, depth) {
            // What was not written yet takes room, too.
            Err(Error::NoSpace) => {
                self.write_out_with(&mut writer)?;
                self.make_room_with(&mut writer, len, values, depth)
            }
            made => made,
        }
    }

    fn make_room_with(
        &self,
        writer: &mut Writer,
        len: usize,
        (cost, claim): (u64, SpaceClaim),
        depth: Priority,
    ) -> Result<()> {
        let (pending, pending_cost) = {
            let pipeline = self.pipeline.lock();
            (pipeline.pending.len(), pipeline.pending.cost)
        };
        while writer.room() < pending + len {
            self.add_segment(writer, depth)?;
        }
        self.reserve_zones(writer, pending_cost + cost, claim)?;
        self.pipeline.lock().update_room(writer);
        Ok(())
    }

    /// Reserves zones until `cost` bytes of values are guaranteed to fit.
    fn reserve_zones(&self, writer: &mut Writer, cost: u64, claim: SpaceClaim) -> Result<()> {
        while deferred::room(writer.reserved.len()) < cost {
            writer.reserved.push(self.zones.reserve_zone(claim.reserve())?);
        }
        Ok(())
    }

    /// Reserves zones ahead of need, when there is plenty of space: for the two windows of values
    /// that may be pending and one more.
    pub(crate) fn reserve_zones_ahead(&self) -> Result<()> {
        let cost = 3 * self.shares.window as u64;
        if self.zones.space().free_for_user < 16 * cost {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        self.reserve_zones(&mut writer, cost, SpaceClaim::default())?;
        self.pipeline.lock().update_room(&writer);
        Ok(())
    }

    /// Gives back what was taken ahead and is not needed.
    pub(crate) fn return_reserved_zones(&self) {
        let mut writer = self.writer.lock();
        let mut pipeline = self.pipeline.lock();
        writer.reserved.truncate(deferred::zones_for(pipeline.pending.cost));
        pipeline.update_room(&writer);
    }

    /// Lists one more segment in the manifest and gives it to the writer.
    pub(crate) fn add_segment(&self, writer: &mut Writer, depth: Priority) -> Result<()> {
        let (zone, pin) = match self.zones.take_zone(Purpose::Journal, Priority::User) {
            Err(zones::Error::NoSpace) => {
                // What is set aside is for merging: the journal must soon be short again.
                self.journal_tight.store(true, Ordering::Release);
                self.zones.take_zone(Purpose::Journal, depth)?
            }
            taken => taken?,
        };
        let owned = self.list_segment(zone, pin)?;
        self.give_to(writer, vec![owned])
    }

    /// Makes a zone the journal's next segment in the manifest.
    pub(crate) fn list_segment(&self, zone: ZoneId, pin: ZonePin) -> Result<Owned> {
        let mut manifest = self.versions.manifest()?;
        let segment = Segment {
            number: manifest.state().next_segment,
            zone,
            epoch: self.env.random(),
            end: None,
        };
        manifest.commit(vec![Edit::Segment(segment)])?;
        Ok(Owned { segment, pin })
    }

    /// Gives listed segments to the writer; those that come too late for it are no segments any
    /// more.
    pub(crate) fn give_to(&self, writer: &mut Writer, segments: Vec<Owned>) -> Result<()> {
        let late: Vec<Owned> = segments.into_iter().filter_map(|s| writer.add(s)).collect();
        if late.is_empty() {
            return Ok(());
        }
        let forget =
            late.iter().map(|s| Edit::ForgetSegment { number: s.segment.number }).collect();
        self.versions.manifest()?.commit(forget)
    }

    /// Hands the journal's buffer to the device, not synced. Gives the position up to which the
    /// stream is written.
    pub(crate) fn write_out(&self) -> Result<u64> {
        self.write_out_with(&mut self.writer.lock())
    }

    pub(crate) fn write_out_with(&self, writer: &mut Writer) -> Result<u64> {
        self.write_out_unless(writer, |_| false)
    }

    /// Writes what has gathered. If values of it can be discarded and little is left, that is not
    /// written yet: it may still be overwritten or deleted in time.
    pub(crate) fn write_gathered(&self) -> Result<()> {
        self.write_out_unless(&mut self.writer.lock(), |left| self.is_little(left)).map(drop)
    }

    /// Whether what is left after a discard is too little to be written now.
    fn is_little(&self, left: &Pending) -> bool {
        left.len() < 3 * self.shares.journal_write_at && left.cost < self.shares.window as u64 / 2
    }

    /// Writes what is pending, unless some of its values were discarded and the rest is `little`.
    fn write_out_unless(
        &self,
        writer: &mut Writer,
        little: impl FnOnce(&Pending) -> bool,
    ) -> Result<u64> {
        self.health.check()?;
        let mut taken = {
            let mut pipeline = self.pipeline.lock();
            if pipeline.pending.is_empty() {
                return Ok(pipeline.position);
            }
            pipeline.take(writer)
        };
        self.discard_hidden(&mut taken);
        if taken.discarded > 0 && little(&taken) {
            let mut pipeline = self.pipeline.lock();
            taken.looked_at = taken.len();
            pipeline.put_back(taken, writer);
            return Ok(pipeline.position);
        }
        if let Err(e) = self.place_values(&mut taken, writer) {
            // They stay what they are, readable and not yet durable; the next write tries again.
            self.pipeline.lock().put_back(taken, writer);
            return Err(self.unless_full("writing values", e));
        }
        self.write_taken(writer, taken.stream)?;
        Ok(writer.position().position)
    }

    /// A full store is no failure of it; anything else is.
    fn unless_full(&self, doing: &str, e: Error) -> Error {
        if matches!(e, Error::NoSpace) { e } else { self.health.fail(doing, &e) }
    }

    /// Writes a piece of the stream that was taken from the pipeline.
    fn write_taken(&self, writer: &mut Writer, mut stream: Vec<u8>) -> Result<()> {
        if stream.len() > crate::log::chunk::HEADER {
            let synced = self.durable.load(Ordering::Acquire);
            writer
                .write(&mut stream, synced)
                .map_err(|e| self.health.fail("writing the journal", &e))?;
            self.counters.journal_device.set(writer.bytes());
        }
        let mut pipeline = self.pipeline.lock();
        // What was committed during the write was admitted by the more careful figures.
        pipeline.update_room(writer);
        if stream.capacity() <= 2 * self.shares.journal_buffer {
            pipeline.spare = stream;
        }
        Ok(())
    }

    /// Everything committed before this call is durable when it returns.
    pub(crate) fn sync(&self, engine: &impl CommitEnv) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.health.check()?;
        if !self.options.journal {
            return engine.flush_all();
        }
        let end = self.pipeline.lock().end();
        if end == self.marked.load(Ordering::Relaxed) {
            // Nothing but a mark came since the last sync.
            return Ok(());
        }
        self.sync_journal_to(end)
    }

    /// Returns when what was committed up to `position` of the journal's stream is durable.
    pub(crate) fn sync_to(&self, engine: &impl CommitEnv, position: u64) -> Result<()> {
        match self.options.journal {
            true => self.sync_journal_to(position),
            false => engine.flush_all(),
        }
    }

    /// Returns when the journal's stream is durable up to `position`.
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
            // The writer is not locked here: others fill and write the buffer while this sync is
            // under way.
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

    /// Closes generation `number` for commits, unless it is closed already.
    pub(crate) fn seal(&self, number: u64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.seal_if(&mut writer, |version, _, _| Ok(version.generation.number == number), |_| {})
    }

    /// Makes runs part of the store, above all that is in it, once `still` agrees and no locks lie
    /// on what they have `touched`, see [`CommitPipeline::commit_changes`]. What is in the runs is
    /// durable already.
    pub(crate) fn add_runs(
        &self,
        runs: &[(DictionaryId, Vec<Arc<Run>>)],
        touched: impl FnOnce() -> Result<Vec<(DictionaryId, KeyRange)>>,
        owner: Option<u64>,
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
        let need = crate::journal::cost(record.len() + record::NUMBER_SIZE);
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
            let dicts: Vec<DictionaryId> = runs.iter().map(|(dict, _)| *dict).collect();
            let version = self.versions.load();
            self.feed.note_unlisted(&version, Some(&dicts), seq, || self.env.random());
            drop((remembered, guard.take()));
        };
        // Other commits may have filled the room: then all begins anew.
        let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
            runs.iter().try_for_each(|(dict, _)| version.tree(*dict).map(drop))?;
            let room = writer.room() >= crate::journal::cost(pipeline.pending.len()) + need;
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
        self.seal_if(&mut writer, agree, add)?;
        drop(writer);
        let Some(applied) = applied else { return Ok(Outcome::Stale) };
        self.counters.commits.add(1);
        self.signals.deleted();
        Ok(Outcome::Applied(applied))
    }

    /// Seals the current generation if `agree`, asked under the lock, says so. `before_next` runs
    /// in the same lock, before any commit of the next generation.
    pub(crate) fn seal_if(
        &self,
        writer: &mut Writer,
        agree: impl FnOnce(&Version, &mut Pipeline, &Writer) -> Result<bool>,
        before_next: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        // Twice, so that little is left for the time when commits must wait.
        self.write_out_with(writer)?;
        self.write_out_with(writer)?;
        let mut pipeline = self.pipeline.lock();
        let number = {
            let version = self.versions.load();
            if !agree(&version, &mut pipeline, writer)? {
                return Ok(());
            }
            version.generation.number
        };
        // What came since belongs to this generation too. Its values must have their places before
        // it is flushed.
        let mut rest = pipeline.take(writer);
        self.discard_hidden(&mut rest);
        if let Err(e) = self.place_values(&mut rest, writer) {
            pipeline.put_back(rest, writer);
            return Err(self.unless_full("writing values", e));
        }
        let seq = pipeline.next_seq - 1;
        self.versions.change(|v| *v = v.sealed());
        let bytes = self.active_bytes.swap(0, Ordering::Relaxed);
        before_next(&mut pipeline);
        drop(pipeline);
        self.write_taken(writer, rest.stream)?;
        let at = writer.position();
        let start =
            JournalStart { segment: at.segment, offset: at.offset, position: at.position, seq };
        let mut sealed = self.sealed.lock();
        sealed.push_back(Sealed { generation: number, bytes, start });
        self.sealed_bytes.fetch_add(bytes, Ordering::Release);
        drop(sealed);
        self.signals.flush_wanted();
        Ok(())
    }

    /// Makes the journal durable. When it was already, and nothing came behind, a mark is written
    /// (not synced) that says so: from then on damage to the last commits is told from a torn
    /// write.
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

    /// Prepares a segment for the journal, its space on the host allocated and written, so that no
    /// synced commit waits for that.
    pub(crate) fn prepare_segment(&self) -> Result<()> {
        if !self.options.journal || self.writer.lock().announce(self.stock(), 1) == 0 {
            return Ok(());
        }
        let prepared = self.empty_segment();
        let mut writer = self.writer.lock();
        writer.arrived(1);
        self.give_to(&mut writer, prepared?.into_iter().collect())
    }

    /// A segment that the manifest lists. `None`: a nearly full store has no zone for it. The
    /// caller does not hold the lock of the writer, since this syncs.
    fn empty_segment(&self) -> Result<Option<Owned>> {
        let (zone, pin) = match self.zones.take_zone(Purpose::Journal, Priority::User) {
            Ok(taken) => taken,
            Err(zones::Error::NoSpace) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if self.options.zero_journal && self.synced_commits.load(Ordering::Relaxed) {
            let zeros = vec![0; 1 << 20];
            for offset in (0..ZONE_SIZE).step_by(zeros.len()) {
                self.zones.write(Purpose::Journal, zone.start() + offset, &zeros)?;
            }
        }
        self.list_segment(zone, pin).map(Some)
    }

    /// The number of prepared segments that the writer should have.
    pub(crate) fn stock(&self) -> usize {
        (self.shares.seal_at as u64 / SEGMENT_SIZE / 2).clamp(1, 8) as usize
    }
}

#[cfg(test)]
mod tests {
    use crate::{DictionaryOptions, Durability, Kvdb};

    /// The record of a commit that comes while values are on their way may never be durable.
    #[test]
    fn what_comes_behind_a_write_discards_nothing_of_it() {
        let db = Kvdb::in_memory();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let put = |value: &[u8]| db.put(dict, b"k", value, Durability::Buffered).unwrap();
        let commits = &db.db.0.commits;
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

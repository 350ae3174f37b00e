//! The log of the commits: their records, from the buffer that they are appended to until they are
//! durable in the journal.
//!
//! It knows records, positions and zones. Of a commit it knows the number and the bytes, and it
//! looks up nothing in dictionaries. Of the versions it asks which states views read, and for the
//! manifest, which lists its segments. The modules, in the order in which a record passes them:
//!
//! - `room`: segments for records and zones for values, at hand before a commit enters
//!   (`recycling`: those that a flush has emptied);
//! - `pipeline`: the pending part of the stream, under the pipeline's lock;
//! - `deferred`: large values that wait in memory (`value_buffers`) until they are placed;
//! - here: the pending part is taken, its values are placed, and it is written (`early`: before a
//!   sync asks for it, `tap`: with a copy for the journal in object storage);
//! - `sync`: a caller waits until the stream is durable up to a position;
//! - `mirror`: the commits until then, for a store that has a mirror;
//! - `hold`: values wait until a sync, and the oldest part of a long pending stream is written.
//!
//! Invariants:
//!
//! 1. Records are pending, written and durable in the order of their commits, each as a prefix of
//!    the stream: `durable` <= the writer's position <= `Pipeline::position` <= `Pipeline::end`.
//! 2. A record is appended only into room that is at hand. So a write of the pending part needs no
//!    more space than there is, and no acknowledged commit finds the store full.
//! 3. Only the thread that has the writer's lock takes pending data. It places the values before it
//!    writes the records that refer to them; if that fails, it puts the data back.
//! 4. A sync covers what was written before it began. One thread at a time syncs, for all that
//!    wait.
//! 5. After a failed write or sync the store takes no more commits ([`Health`]), since it is not
//!    known what the device has.

pub(crate) mod deferred;
mod early;
mod hold;
mod mirror;
mod pipeline;
mod recycling;
mod room;
mod sync;
pub(crate) mod tap;
mod value_buffers;

use env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use env::sync::{Condvar, Mutex};
use vt_tree::Seq;

use self::deferred::Pending;
use self::early::{EARLY, ExpectedSyncs};
pub(in crate::commit) use self::hold::Coming;
pub(crate) use self::pipeline::Pipeline;
use self::tap::{JournalTap, SyncElsewhere};
use self::value_buffers::ValueBuffers;
use super::Applied;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::journal::{self, Writer, record};
use crate::lock_order::{self, MutexGuard, Rank};
use crate::log::chunk::HEADER;
use crate::mirror::Mirror;
use crate::options::Shares;

/// The log of the commits. A store without a journal has one too: it holds the commits' numbers
/// and the deferred values.
pub(crate) struct Log {
    engine: Engine,
    shares: Shares,
    /// Records are written to a journal.
    journal: bool,
    /// Segments of the journal are filled with zeros ahead of time, once commits are synced.
    zero_journal: bool,
    /// Memory of deferred values, overhead included. `Memtable::bytes` counts it too; the
    /// committer's `active_bytes` and `sealed_bytes` do not.
    deferred_bytes: AtomicUsize,
    /// The memory of values that are held at most, bytes; 0 if they are not held.
    hold: AtomicUsize,
    /// The bytes of values that commits under way are about to hold.
    coming: AtomicU64,
    /// The memory that discarded and placed values still take in buffers, while values are held.
    wasted: AtomicUsize,
    /// Set when a commit has found no room to hold its values.
    crowded: AtomicBool,
    /// The buffers that deferred values are copied into.
    pub(in crate::commit) value_buffers: Mutex<ValueBuffers>,
    /// Set once a commit was synced: zones of the journal should be filled with zeros ahead of
    /// time.
    synced_commits: AtomicBool,
    /// Tells whether callers wait for syncs from time to time.
    expected_syncs: ExpectedSyncs,
    /// Set when the journal has taken one of the zones that were set aside.
    journal_tight: AtomicBool,
    pub(in crate::commit) pipeline: lock_order::Mutex<Pipeline>,
    pub(in crate::commit) writer: lock_order::Mutex<Writer>,
    /// `true` while a thread syncs the journal.
    syncing: Mutex<bool>,
    sync_done: Condvar,
    /// The position up to which the journal's stream is durable.
    durable: AtomicU64,
    /// The position after the last mark. While the stream ends there, nothing was committed since
    /// the last sync.
    marked: AtomicU64,
    /// Set once all commits of the mirror are in the journal.
    mirror: OnceLock<Arc<Mirror>>,
    pub(crate) tap: JournalTap,
    /// The place elsewhere that a sync waits for after the local one.
    elsewhere: Mutex<Option<Arc<dyn SyncElsewhere>>>,
}

impl Log {
    /// Returns a log whose next commit has number `next_seq`, and whose journal `writer` continues.
    pub(in crate::commit) fn new(engine: &Engine, next_seq: Seq, writer: Writer) -> Log {
        let position = writer.position().position;
        engine.counters.journal_device.set(writer.bytes());
        Log {
            engine: engine.clone(),
            shares: Shares::of(&engine.options),
            journal: engine.options.journal,
            zero_journal: engine.options.zero_journal,
            deferred_bytes: AtomicUsize::new(0),
            hold: AtomicUsize::new(Shares::of(&engine.options).hold),
            coming: AtomicU64::new(0),
            wasted: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            value_buffers: Mutex::default(),
            synced_commits: AtomicBool::new(false),
            expected_syncs: ExpectedSyncs::default(),
            journal_tight: AtomicBool::new(false),
            pipeline: lock_order::Mutex::new(Rank::Pipeline, Pipeline::new(next_seq, position)),
            writer: lock_order::Mutex::new(Rank::Writer, writer),
            syncing: Mutex::default(),
            sync_done: Condvar::new(),
            durable: AtomicU64::new(position),
            marked: AtomicU64::new(position),
            mirror: OnceLock::new(),
            tap: JournalTap::default(),
            elsewhere: Mutex::default(),
        }
    }

    /// Takes the pipeline's lock with room for `need` bytes of stream and for deferred values of
    /// cost `cost`. `make_room` makes that room, without the lock.
    pub(in crate::commit) fn lock_with_room(
        &self,
        need: usize,
        cost: u64,
        make_room: impl Fn(usize) -> Result<()>,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        // The commit may begin with a cut.
        let cut = if self.shares.hold > 0 { journal::cost(0) } else { 0 };
        let need = if self.journal { need + record::NUMBER_SIZE + cut } else { 0 };
        let pipeline = loop {
            let pipeline = self.pipeline.lock();
            let journal = need == 0 || pipeline.pending.room() + need <= pipeline.room;
            if journal && (cost == 0 || pipeline.pending.cost + cost <= pipeline.place_room) {
                break pipeline;
            }
            drop(pipeline);
            make_room(need)?;
        };
        // Checked under the lock, so that no commit is acknowledged after a failed sync.
        self.engine.health.writable()?;
        Ok(pipeline)
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
        if self.holds() {
            return self.write_held(&mut writer);
        }
        if !self.writes_early() {
            return self.write_out_unless(&mut writer, |left| self.is_little(left)).map(drop);
        }
        if self.has_cuts() {
            return self.write_out_with(&mut writer).map(drop);
        }
        let little =
            |left: &Pending| left.len() < EARLY / 2 && left.cost < self.shares.early_values / 2;
        let Some(mut taken) = self.take_unless(&mut writer, little)? else { return Ok(()) };
        self.expected_syncs.written(self.engine.env.monotonic());
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

    /// Writes the journal's buffer, which is full. Values that are held stay if they can.
    pub(crate) fn write_buffer(&self) -> Result<()> {
        if self.holds() { self.write_gathered() } else { self.write_out().map(drop) }
    }

    /// Returns whether it is time for [`Log::write_gathered`].
    pub(crate) fn has_gathered(&self, applied: &Applied) -> bool {
        if self.writes_early() && !applied.sync_follows {
            return self.is_early(applied);
        }
        let values = match self.holds() {
            true => self.is_held_too_much(),
            false => applied.deferred >= self.shares.window,
        };
        values || applied.gathered >= self.shares.journal_write_at
    }

    /// Returns whether the data that remains after a discard is too little to be written now.
    pub(in crate::commit) fn is_little(&self, left: &Pending) -> bool {
        left.len() < 3 * self.shares.journal_write_at && left.cost < self.shares.window as u64 / 2
    }

    /// Writes the pending data, unless some of its values were discarded and `little` holds for the
    /// rest.
    pub(in crate::commit) fn write_out_unless(
        &self,
        writer: &mut Writer,
        little: impl FnOnce(&Pending) -> bool,
    ) -> Result<u64> {
        if self.shares.hold > 0 {
            self.write_in_pieces(writer, little)?;
        } else if let Some(taken) = self.take_unless(writer, little)? {
            self.write_taken(writer, taken.stream)?;
        }
        Ok(writer.position().position)
    }

    /// Takes the pending data from the pipeline. Returns `None` if nothing is pending.
    fn take_pending(&self, writer: &Writer) -> Result<Option<Pending>> {
        self.engine.health.check()?;
        let mut pipeline = self.pipeline.lock();
        if pipeline.pending.is_empty() {
            return Ok(None);
        }
        Ok(Some(pipeline.take(writer)))
    }

    /// Takes the pending data to be written, after its values are placed. Returns `None` if nothing
    /// is pending, or if some of the values were discarded and `little` holds for the rest.
    fn take_unless(
        &self,
        writer: &mut Writer,
        little: impl FnOnce(&Pending) -> bool,
    ) -> Result<Option<Pending>> {
        let Some(mut taken) = self.take_pending(writer)? else { return Ok(None) };
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
    pub(in crate::commit) fn fail_unless_full(&self, doing: &str, e: Error) -> Error {
        if matches!(e, Error::NoSpace) { e } else { self.engine.health.fail(doing, &e) }
    }

    /// Writes a part of the stream that was taken from the pipeline.
    pub(in crate::commit) fn write_taken(
        &self,
        writer: &mut Writer,
        mut stream: Vec<u8>,
    ) -> Result<()> {
        self.write_stream(writer, &mut stream)?;
        writer.is_whole();
        self.update_after_write(&mut self.pipeline.lock(), writer, stream);
        Ok(())
    }

    pub(in crate::commit) fn write_stream(
        &self,
        writer: &mut Writer,
        stream: &mut Vec<u8>,
    ) -> Result<()> {
        if stream.len() > HEADER {
            // Tap the stream before it is cut into chunks. If the write fails, no later sync
            // succeeds.
            self.tap.add(&stream[HEADER..]);
            let synced = self.durable.load(Ordering::Acquire);
            writer.settle = self.zero_journal && self.synced_commits.load(Ordering::Relaxed);
            writer
                .write(stream, synced)
                .map_err(|e| self.engine.health.fail("writing the journal", &e))?;
            self.engine.counters.journal_device.set(writer.bytes());
        }
        Ok(())
    }

    /// Updates the room for commits after a write. The commits during the write were admitted by
    /// the lower figures that [`Pipeline::take`] has set.
    pub(in crate::commit) fn update_after_write(
        &self,
        pipeline: &mut Pipeline,
        writer: &Writer,
        stream: Vec<u8>,
    ) {
        pipeline.update_room(writer);
        self.cut_mirror(writer.position().position);
        self.engine.signals.journal_ended(true);
        if stream.capacity() <= 2 * self.shares.journal_buffer {
            pipeline.spare = stream;
        }
    }

    /// Writes the pending stream, while no other commit can happen.
    pub(in crate::commit) fn write_rest(
        &self,
        writer: &mut Writer,
        pipeline: &mut Pipeline,
    ) -> Result<()> {
        if !pipeline.pending.is_empty() {
            let mut rest = pipeline.take(writer);
            self.discard_hidden(&mut rest);
            if let Err(e) = self.place_values(&mut rest, writer) {
                pipeline.put_back(rest, writer);
                return Err(self.fail_unless_full("writing values", e));
            }
            self.write_stream(writer, &mut rest.stream)?;
            writer.is_whole();
            self.update_after_write(pipeline, writer, rest.stream);
        }
        Ok(())
    }

    /// Adds the memory of deferred values, and returns how much all of them take.
    pub(in crate::commit) fn add_deferred(&self, bytes: usize) -> usize {
        self.deferred_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
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

    /// Frees the buffers that hold no deferred values.
    pub(crate) fn release_value_buffers(&self) {
        self.value_buffers.lock().keep(0);
    }

    /// Returns the address ranges of the journal's segments that are not needed once the store is
    /// closed. `start` is the position where a replay begins.
    pub(crate) fn unneeded(&self, start: u64) -> Vec<(u64, u64)> {
        let writer = self.writer.lock();
        writer.unneeded(start >= writer.position().position)
    }

    /// Calls `then` with the number of the segment that was written last, and the position of the
    /// stream. Nothing is written in the meantime.
    pub(crate) fn at_end<T>(&self, then: impl FnOnce(Option<(u64, u64)>) -> T) -> T {
        let writer = self.writer.lock();
        then(writer.last_used())
    }
}

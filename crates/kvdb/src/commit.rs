//! The commit pipeline. A commit binds its large values, makes its record, and then, under one short lock, appends the record to
//! the journal's buffer, writes the memtables and becomes visible. No thread hands work to another on this way.
//!
//! Durability is a second stage: whoever wants it for a position of the journal's stream waits for a sync that began after its
//! record was in the buffer. One of the waiting threads does the sync for all of them; the others join the next one.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use vt_tree::{ExtentRef, Seq, Value, place_value};
use zones::{Hold, Purpose, Reserve};

use crate::batch::{Batch, Change, Durability};
use crate::chunk::HEADER;
use crate::database::{Database, Sealed};
use crate::error::{Error, Result};
use crate::journal::record::{self, Changes, Op};
use crate::journal::{Owned, Segment, Writer};
use crate::manifest::{Edit, JournalStart};
use crate::version::Version;

/// Longest key, bytes.
pub const MAX_KEY: usize = 32 << 10;

/// Longest value, bytes: it lies in one piece, in one zone.
pub const MAX_VALUE: usize = 7 << 20;

/// What the pipeline's lock guards.
pub(crate) struct Pipeline {
    pub next_seq: Seq,
    /// `HEADER` bytes, then what the journal's writer has not taken yet.
    pub buffer: Vec<u8>,
    /// Position in the stream of the buffer's first byte.
    pub position: u64,
    /// Bytes of stream that the buffer may hold: the segments at hand have room for them.
    pub room: usize,
    /// A buffer that was written out, for reuse.
    pub spare: Vec<u8>,
}

impl Pipeline {
    pub(crate) fn new(next_seq: Seq, position: u64) -> Pipeline {
        Pipeline { next_seq, buffer: vec![0; HEADER], position, room: 0, spare: Vec::new() }
    }
    pub(crate) fn pending(&self) -> usize {
        self.buffer.len() - HEADER
    }
    /// Position behind everything committed.
    pub(crate) fn end(&self) -> u64 {
        self.position + self.pending() as u64
    }
}

/// Who syncs the journal, and how far it is durable.
#[derive(Default)]
pub(crate) struct Syncing {
    pub running: bool,
}

impl Database {
    pub(crate) fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        self.writable()?;
        let version = self.version.load_full();
        let (mut changes, deletes_only) = validate(&version, batch)?;
        if changes.is_empty() {
            return match durability {
                Durability::Buffered => Ok(()),
                Durability::Synced => self.sync(),
            };
        }
        let user_bytes: u64 = changes.iter().map(|(_, op)| size(op)).sum();
        let (large, total) = self.large(&version, &changes);
        drop(version);
        let hold = self.bind(&large, total, &mut changes)?;
        let mut record = record::encode(&changes);
        if record.len() > self.shares.largest_record {
            return Err(Error::Invalid(format!(
                "a batch of {} bytes is more than memory allows ({}): split it, or give the store more memory",
                record.len(),
                self.shares.largest_record
            )));
        }
        self.admit(record.len(), deletes_only)?;
        let deletes = deletes_only || changes.iter().any(|(_, op)| !matches!(op, Op::Put(..)));
        let (end, pending, seal) = self.apply(&mut record, changes, hold)?;
        if deletes {
            self.deletions.store(true, Ordering::Relaxed);
            self.reclaimable.store(true, Ordering::Relaxed);
        }
        self.counters.commits.add(1);
        self.counters.user_bytes.add(user_bytes);
        if durability == Durability::Synced {
            self.sync_to(end)?;
        } else if pending >= self.shares.journal_buffer {
            self.write_out()?;
        } else if pending >= self.shares.journal_write_at
            && let Some(mut writer) = self.writer.try_lock()
        {
            // When the writer is busy, the buffer may wait for the next commit.
            self.write_out_with(&mut writer)?;
        }
        if let Some(generation) = seal {
            self.seal(generation)?;
        }
        self.after_commit()
    }

    /// Which changes have large values that should be bound now, in key order, and their bytes together.
    fn large(&self, version: &Version, changes: &Changes) -> (Vec<usize>, u64) {
        let separate = |dict| version.trees.get(&dict).map_or(u32::MAX, |t| t.info.options.separate_at) as usize;
        let mut large: Vec<usize> = Vec::new();
        let mut total = 0;
        for (i, (dict, op)) in changes.iter().enumerate() {
            if let Op::Put(_, Value::Inline(v)) = op
                && v.len() >= separate(*dict).max(1)
            {
                large.push(i);
                total += v.len() as u64;
            }
        }
        if total < self.options.late_bind_at {
            return (Vec::new(), 0);
        }
        // So that a scan reads them in one go.
        large.sort_by(|&a, &b| (changes[a].0, key(&changes[a].1)).cmp(&(changes[b].0, key(&changes[b].1))));
        (large, total)
    }

    /// Places large values, and puts their places into the changes. No version may be held: this may have to wait for space
    /// that one would keep.
    fn bind(&self, large: &[usize], total: u64, changes: &mut Changes) -> Result<Hold> {
        if large.is_empty() {
            return Ok(Hold::default());
        }
        let (extents, hold) = match self.place(changes, large) {
            // What was deleted may make room.
            Err(Error::NoSpace) if self.want_space() => self.place(changes, large)?,
            placed => placed?,
        };
        for (&i, extent) in large.iter().zip(extents) {
            if let Op::Put(_, value) = &mut changes[i].1 {
                *value = Value::Extent(extent);
            }
        }
        self.counters.bound_bytes.add(total);
        Ok(hold)
    }

    fn place(&self, changes: &Changes, large: &[usize]) -> Result<(Vec<ExtentRef>, Hold)> {
        let mut fill = self.zones.fill(Purpose::Pages, Reserve::Keep);
        let mut extents = Vec::with_capacity(large.len());
        for &i in large {
            if let Op::Put(_, Value::Inline(bytes)) = &changes[i].1 {
                extents.push(place_value(&mut fill, bytes)?);
            }
        }
        Ok((extents, fill.finish()?))
    }

    /// The locked part: journal buffer, memtables, visibility. Gives the position behind the record, the bytes that wait in the
    /// buffer, and the generation when it should be sealed.
    fn apply(&self, record: &mut [u8], changes: Changes, hold: Hold) -> Result<(u64, usize, Option<u64>)> {
        let mut pipeline = loop {
            let pipeline = self.pipeline.lock();
            if pipeline.pending() + record.len() <= pipeline.room {
                break pipeline;
            }
            drop(pipeline);
            match self.make_room(record.len()) {
                Err(Error::NoSpace) => {
                    // What is in runs needs no journal: its zones can be had again.
                    if !self.want_space() {
                        self.flush_all()?;
                    }
                    self.make_room(record.len())?;
                }
                made => made?,
            }
        };
        // Checked under the lock: nothing is acknowledged behind a failure that a sync has met.
        self.writable()?;
        let first = pipeline.next_seq;
        record::set_seq(record, first);
        pipeline.buffer.extend_from_slice(record);
        pipeline.next_seq += changes.len() as u64;
        let version = self.version.load();
        version.generation.hold(hold);
        let grown = write_memtables(&version, first, &changes);
        self.visible.store(pipeline.next_seq - 1, Ordering::Release);
        let active = self.active_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        let seal = (active >= self.shares.seal_at).then_some(version.generation.number);
        Ok((pipeline.end(), pipeline.pending(), seal))
    }

    /// Prepares segments until a record of `len` bytes fits.
    fn make_room(&self, len: usize) -> Result<()> {
        let mut writer = self.writer.lock();
        self.write_out_with(&mut writer)?;
        while writer.room() < len {
            self.add_segment(&mut writer)?;
        }
        let mut pipeline = self.pipeline.lock();
        pipeline.room = writer.room();
        Ok(())
    }

    /// Lists one more segment in the manifest and gives it to the writer.
    pub(crate) fn add_segment(&self, writer: &mut Writer) -> Result<()> {
        let (zone, hold) = match self.zones.take_zone(Purpose::Journal, Reserve::Keep) {
            Err(zones::Error::NoSpace) => {
                // What is set aside is for merging: the journal must soon be short again.
                self.journal_tight.store(true, Ordering::Release);
                self.zones.take_zone(Purpose::Journal, Reserve::Use)?
            }
            taken => taken?,
        };
        let mut manifest = self.manifest()?;
        let segment = Segment { number: manifest.state().next_segment, zone, epoch: self.env.random(), end: None };
        manifest.commit(vec![Edit::Segment(segment)])?;
        writer.add(Owned { segment, hold });
        Ok(())
    }

    /// Hands the journal's buffer to the device, not synced. Gives the position up to which the stream is written.
    pub(crate) fn write_out(&self) -> Result<u64> {
        self.write_out_with(&mut self.writer.lock())
    }

    pub(crate) fn write_out_with(&self, writer: &mut Writer) -> Result<u64> {
        self.health.check()?;
        let mut buffer = {
            let mut pipeline = self.pipeline.lock();
            let taken = pipeline.pending();
            if taken == 0 {
                return Ok(pipeline.position);
            }
            let mut empty = std::mem::take(&mut pipeline.spare);
            empty.clear();
            empty.resize(HEADER, 0);
            pipeline.position += taken as u64;
            pipeline.room = writer.room().saturating_sub(crate::journal::cost(taken));
            std::mem::replace(&mut pipeline.buffer, empty)
        };
        writer.write(&mut buffer, self.durable.load(Ordering::Acquire)).map_err(|e| self.health.fail("writing the journal", &e))?;
        self.counters.journal_device.set(writer.bytes());
        let mut pipeline = self.pipeline.lock();
        // What has gathered meanwhile was let in by the more careful figure above.
        pipeline.room = writer.room();
        if buffer.capacity() <= 2 * self.shares.journal_buffer {
            pipeline.spare = buffer;
        }
        drop(pipeline);
        Ok(writer.position().position)
    }

    /// Everything committed before this call is durable when it returns.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.health.check()?;
        let end = self.pipeline.lock().end();
        if end == self.marked.load(Ordering::Relaxed) {
            // Nothing but a mark came since the last sync.
            return Ok(());
        }
        self.sync_to(end)
    }

    /// Returns when the journal's stream is durable up to `position`.
    pub(crate) fn sync_to(&self, position: u64) -> Result<()> {
        let mut syncing = self.syncing.lock();
        loop {
            if self.durable.load(Ordering::Acquire) >= position {
                return Ok(());
            }
            self.health.check()?;
            if !syncing.running {
                break;
            }
            self.sync_done.wait(&mut syncing);
        }
        syncing.running = true;
        drop(syncing);
        let result = self.write_out().and_then(|written| {
            // The writer is not locked here: others fill and write the buffer while this sync is under way.
            self.zones.sync().map_err(|e| self.health.fail("syncing the journal", &e.into()))?;
            self.counters.syncs.add(1);
            Ok(written)
        });
        let mut syncing = self.syncing.lock();
        syncing.running = false;
        if let Ok(written) = result {
            self.durable.fetch_max(written, Ordering::AcqRel);
        }
        drop(syncing);
        self.sync_done.notify_all();
        result.map(|_| ())
    }

    /// Closes generation `number` for commits, if nobody did so before.
    pub(crate) fn seal(&self, number: u64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.write_out_with(&mut writer)?;
        let mut pipeline = self.pipeline.lock();
        if self.version.load().generation.number != number {
            return Ok(());
        }
        // What came since the write above belongs to this generation too.
        let mut rest = std::mem::replace(&mut pipeline.buffer, vec![0; HEADER]);
        let taken = rest.len() - HEADER;
        pipeline.position += taken as u64;
        pipeline.room = writer.room().saturating_sub(crate::journal::cost(taken));
        let seq = pipeline.next_seq - 1;
        self.swap_version(|v| *v = v.sealed());
        let bytes = self.active_bytes.swap(0, Ordering::Relaxed);
        drop(pipeline);
        if taken > 0 {
            let synced = self.durable.load(Ordering::Acquire);
            writer.write(&mut rest, synced).map_err(|e| self.health.fail("writing the journal", &e))?;
        }
        let at = writer.position();
        let start = JournalStart { segment: at.segment, offset: at.offset, position: at.position, seq };
        let mut sealed = self.sealed.lock();
        sealed.push_back(Sealed { generation: number, bytes, start });
        self.sealed_bytes.fetch_add(bytes, Ordering::Release);
        drop(sealed);
        drop(writer);
        self.background.flush_wanted();
        Ok(())
    }
}

fn key(op: &Op) -> &Bytes {
    match op {
        Op::Put(k, _) | Op::Delete(k) | Op::DeleteRange(k, _) => k,
    }
}

fn size(op: &Op) -> u64 {
    (match op {
        Op::Put(k, v) => k.len() + v.len(),
        Op::Delete(k) => k.len(),
        Op::DeleteRange(s, e) => s.len() + e.len(),
    }) as u64
}

/// The batch's changes, if all of them are possible; and whether none of them adds data, or the batch says that it gives more back.
fn validate(version: &Version, batch: Batch) -> Result<(Changes, bool)> {
    let (mut deletes_only, releases) = (true, batch.releases);
    let mut changes = Vec::with_capacity(batch.changes.len());
    for change in batch.changes {
        let dict = change.dictionary();
        version.tree(dict)?;
        let op = match change {
            Change::Put(_, k, v) => {
                deletes_only = false;
                if v.len() > MAX_VALUE {
                    return Err(Error::Invalid(format!("a value of {} bytes; at most {MAX_VALUE} are allowed", v.len())));
                }
                Op::Put(k, Value::Inline(v))
            }
            Change::Delete(_, k) => Op::Delete(k),
            Change::DeleteRange(_, s, e) if s < e => Op::DeleteRange(s, e),
            Change::DeleteRange(..) => continue,
        };
        let longest = match &op {
            Op::DeleteRange(s, e) => s.len().max(e.len()),
            op => key(op).len(),
        };
        if longest > MAX_KEY {
            return Err(Error::Invalid(format!("a key of {longest} bytes; at most {MAX_KEY} are allowed")));
        }
        changes.push((dict, op));
    }
    Ok((changes, deletes_only || releases))
}

/// Writes numbered changes into the newest memtables; gives the bytes by which they grew. Changes of dictionaries that are gone
/// are left out.
pub(crate) fn write_memtables(version: &Version, first: Seq, changes: &Changes) -> usize {
    /// Readers wait while a memtable is locked.
    const AT_ONCE: usize = 256;
    let mut grown = 0;
    let mut seq = first;
    for stretch in changes.chunk_by(|a, b| a.0 == b.0) {
        let memtable = version.trees.get(&stretch[0].0).and_then(|t| t.layers.first()).map(|l| &l.memtable);
        let Some(memtable) = memtable else {
            seq += stretch.len() as u64;
            continue;
        };
        let before = memtable.bytes();
        for part in stretch.chunks(AT_ONCE) {
            let mut writer = memtable.writer();
            for (_, op) in part {
                match op {
                    // Copied: the bytes may be a slice of something much larger.
                    Op::Put(k, Value::Inline(v)) => writer.put_slice(k, seq, v),
                    Op::Put(k, v) => writer.put(k, seq, v.clone()),
                    Op::Delete(k) => writer.delete(k, seq),
                    Op::DeleteRange(s, e) => writer.delete_range(s, e, seq),
                }
                seq += 1;
            }
        }
        grown += memtable.bytes().saturating_sub(before);
    }
    grown
}

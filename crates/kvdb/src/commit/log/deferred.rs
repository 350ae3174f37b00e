//! Large values between their commit and their place. A buffered commit of a few of them copies
//! them into buffers and returns. The thread that writes the journal out places them together:
//! sorted by key, so that neighbours in key order are close on the device, and written once. Only
//! then are the references in the journal's records filled in and the records written. The
//! memtables refer to the buffers until then, and to the places afterwards.
//!
//! This is the late-binding journal of BetrFS 0.2 (§3) for values that arrive one by one: logged in
//! order first, and bound to places before the record is durable.
//!
//! A value that a later commit in the same write has overwritten or deleted, and that no view
//! reads, gets no place: it is discarded, and its record says up to which position the journal must
//! reach to hide it. If the journal does not reach that far, recovery takes it to end before such a
//! record.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Compression, DEFERRED_OVERHEAD, DeferredSlot, ExtentRef, Packer, Seq};
use zones::{Priority, Purpose, SECTOR, ZONE_SIZE};

use super::Log;
use super::hold::Cut;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::{Writer, record};
use crate::log::chunk::HEADER;
use crate::version::generation::{Generation, Layer};

/// The number of values whose places a memtable records under one lock. Readers wait for that time.
const PER_LOCK: usize = 256;

/// A committed value that has no place yet.
pub(crate) struct DeferredValue {
    pub dict: DictionaryId,
    pub key: Bytes,
    pub seq: Seq,
    pub value: Bytes,
    /// The codec for the value, used if that makes it smaller.
    pub codec: Compression,
    /// The offset of its reference in the journal's buffer, or `None` if there is no journal.
    pub at: Option<usize>,
    /// The layer whose memtable holds it, and its slot there.
    pub layer: Layer,
    pub slot: DeferredSlot,
}

/// Returns how much memory a deferred value of `len` bytes takes, bytes.
pub(crate) fn heap(len: usize) -> usize {
    len + DEFERRED_OVERHEAD
}

/// The longest value that may be deferred, bytes, unless values are held.
pub(crate) const LONGEST: u64 = 256 << 10;

/// Returns the share of [`room`] that a value takes, bytes. A longer one than [`LONGEST`] counts
/// twice, for itself and for the end of the zone that it may leave empty.
pub(crate) fn cost(len: usize) -> u64 {
    let whole = (len as u64).next_multiple_of(SECTOR);
    if whole > LONGEST { 2 * whole } else { whole }
}

/// Returns how many bytes of values are guaranteed to fit into `zones` zones. The last value of a
/// zone may need the next one.
pub(crate) fn room(zones: usize) -> u64 {
    zones as u64 * (ZONE_SIZE - LONGEST)
}

/// Returns the maximum number of zones that values of this cost need.
pub(crate) fn zones_for(cost: u64) -> usize {
    cost.div_ceil(ZONE_SIZE - LONGEST) as usize
}

/// The committed part of the journal's stream that is not written yet, with its deferred values.
pub(crate) struct Pending {
    /// `HEADER` bytes, then the journal's stream.
    pub stream: Vec<u8>,
    pub values: Vec<DeferredValue>,
    /// The share of [`room`] that the values need.
    pub cost: u64,
    /// The share of [`room`] that the discarded values would have needed.
    pub discarded: u64,
    /// The length of the stream when it was last left in memory. See [`Log::write_gathered`].
    pub looked_at: usize,
    /// The end of the stream, set when it is taken to be written.
    pub end: PendingEnd,
    /// The places where it can be divided, in their order; none unless values are held.
    pub(super) cuts: Vec<Cut>,
    /// The cost of the values since the last cut.
    pub(super) since_cut: u64,
}

/// A position of the journal's stream, and the newest commit at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingEnd {
    pub position: u64,
    /// The newest commit.
    pub seq: Seq,
}

impl Pending {
    pub(crate) fn new(mut stream: Vec<u8>) -> Pending {
        stream.clear();
        stream.resize(HEADER, 0);
        let end = PendingEnd::default();
        Pending {
            stream,
            values: Vec::new(),
            cost: 0,
            discarded: 0,
            looked_at: 0,
            end,
            cuts: Vec::new(),
            since_cut: 0,
        }
    }

    /// Returns the length of the stream, bytes.
    pub(crate) fn len(&self) -> usize {
        self.stream.len() - HEADER
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.values.is_empty()
    }

    pub(crate) fn push(&mut self, value: DeferredValue) {
        let cost = cost(value.value.len());
        self.cost += cost;
        self.since_cut += cost;
        self.values.push(value);
    }

    /// Appends the pending data of later commits.
    pub(crate) fn append(&mut self, mut later: Pending) {
        let by = self.len();
        later.values.iter_mut().flat_map(|v| &mut v.at).for_each(|at| *at += by);
        self.append_cuts(&later.cuts, later.since_cut, by);
        self.stream.extend_from_slice(&later.stream[HEADER..]);
        self.values.append(&mut later.values);
        self.cost += later.cost;
        self.discarded += later.discarded;
    }

    /// Fills the references to placed values into the records and the memtables, and forgets the
    /// values. `extents` has one extent for each value, in the order of the values. Returns the
    /// memory that the values took.
    fn fill_in(&mut self, extents: &[ExtentRef]) -> usize {
        let mut memory = 0;
        for (v, extent) in self.values.iter().zip(extents) {
            if let Some(at) = v.at {
                record::place(&mut self.stream, at, extent, v.codec);
            }
            memory += heap(v.value.len());
        }
        let mut rest = extents;
        for values in self.values.chunk_by(|a, b| Arc::ptr_eq(&a.layer.memtable, &b.layer.memtable))
        {
            let (here, next) = rest.split_at(values.len());
            for (values, extents) in values.chunks(PER_LOCK).zip(here.chunks(PER_LOCK)) {
                values[0]
                    .layer
                    .memtable
                    .place(values.iter().map(|v| v.slot).zip(extents.iter().copied()));
            }
            rest = next;
        }
        self.values.clear();
        self.cost = 0;
        memory
    }
}

impl Log {
    /// Places the values, writes them, and fills in their references. On an error the values stay
    /// unplaced. Each commit has made sure that the writer has enough zones set aside, so that no
    /// sync finds the store full.
    pub(crate) fn place_values(&self, pending: &mut Pending, writer: &mut Writer) -> Result<()> {
        if pending.values.is_empty() {
            return Ok(());
        }
        // The sort is stable, so versions of one key stay in order.
        pending.values.sort_by(|a, b| (a.dict, &a.key).cmp(&(b.dict, &b.key)));
        let mut pages = self.engine.zones.extent_writer(Purpose::Pages, Priority::Flush);
        let set_aside = writer.reserved.len();
        pages.supply(std::mem::take(&mut writer.reserved));
        let mut extents: Vec<ExtentRef> = Vec::with_capacity(pending.values.len());
        let mut packer = Packer::default();
        let placed = pending.values.iter().try_for_each(|v| {
            let (of, series) = ((v.dict, &v.key[..]), &self.engine.series);
            extents.push(series.place(of, &mut pages, &mut packer, v.codec, &v.value)?);
            Ok::<_, Error>(())
        });
        writer.reserved = pages.unused();
        let placed = match placed {
            Ok(()) => pages.finish().map_err(Error::from),
            Err(e) => {
                drop(pages);
                Err(e)
            }
        };
        let pin = placed.inspect_err(|_| {
            // The next attempt needs as many zones, and other commits rely on the zones that
            // admitted them. The zones that this attempt has used are free again.
            while writer.reserved.len() < set_aside
                && let Ok(zone) = self.engine.zones.reserve_zone(Priority::Flush)
            {
                writer.reserved.push(zone);
            }
        })?;
        let mut generations: Vec<&Arc<Generation>> =
            pending.values.iter().map(|v| &v.layer.generation).collect();
        generations.dedup_by_key(|g| g.number);
        for generation in generations {
            generation.pin(self.engine.zones.pin(pin.uses())?);
        }
        let memory = pending.fill_in(&extents);
        self.deferred_bytes.fetch_sub(memory, env::sync::atomic::Ordering::Release);
        let bytes: u64 = extents.iter().map(|extent| u64::from(extent.stored)).sum();
        self.engine.counters.bound_bytes.add(bytes);
        self.engine.signals.memory_is_free();
        Ok(())
    }

    /// Discards the values of a write that no reader can see any more.
    pub(crate) fn discard_hidden(&self, pending: &mut Pending) {
        let memtable = |v: &DeferredValue| Arc::as_ptr(&v.layer.memtable);
        let same = |a: &DeferredValue, b: &DeferredValue| memtable(a) == memtable(b);
        if !pending.values.chunk_by(same).any(|values| values[0].layer.memtable.hides()) {
            return;
        }
        // A commit after the end does not hide a value yet, since its record may never be durable.
        let newest = pending.end.seq;
        let read = self.engine.versions.read_by_views(newest);
        let read_since = |seq| read[read.partition_point(|at| *at < seq)..].first().copied();
        let mut discarded = Vec::with_capacity(pending.values.len());
        for values in pending.values.chunk_by(same) {
            for values in values.chunks(PER_LOCK) {
                let each = values
                    .iter()
                    .map(|v| (&v.key[..], v.seq, v.slot, read_since(v.seq).unwrap_or(newest)));
                discarded.extend(values[0].layer.memtable.discard(each));
            }
        }
        let (mut discarded, mut memory, mut bytes) = (discarded.into_iter(), 0, 0);
        let Pending { values, stream, cost, discarded: saved, end, .. } = pending;
        values.retain(|v| {
            let keep = !discarded.next().unwrap_or_default();
            if !keep {
                if let Some(at) = v.at {
                    record::hide(stream, at, end.position);
                }
                memory += heap(v.value.len());
                bytes += v.value.len() as u64;
                *cost -= self::cost(v.value.len());
                *saved += self::cost(v.value.len());
            }
            keep
        });
        self.deferred_bytes.fetch_sub(memory, env::sync::atomic::Ordering::Release);
        self.engine.counters.discarded_bytes.add(bytes);
        if memory > 0 {
            self.engine.signals.memory_is_free();
        }
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
            let writer = commits.log.writer.lock();
            commits.log.pipeline.lock().take(&writer)
        };
        let put_back = |taken| {
            let writer = commits.log.writer.lock();
            commits.log.pipeline.lock().put_back(taken, &writer);
        };
        put(&[1; 5000]);
        let mut taken = take();
        put(b"small");
        commits.log.discard_hidden(&mut taken);
        assert_eq!((taken.values.len(), commits.engine.counters.discarded_bytes.get()), (1, 0));
        put_back(taken);
        let mut taken = take();
        commits.log.discard_hidden(&mut taken);
        assert_eq!((taken.values.len(), commits.engine.counters.discarded_bytes.get()), (0, 5000));
        put_back(taken);
        db.sync().unwrap();
        assert_eq!(db.get(dict, b"k").unwrap().unwrap(), b"small"[..]);
    }
}

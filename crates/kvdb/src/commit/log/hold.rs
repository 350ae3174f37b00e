//! Held values: with [`OpenOptions::hold_values`](crate::OpenOptions::hold_values), large values
//! wait in memory until the next sync, so that those which are overwritten or deleted before then
//! are never written.
//!
//! The pending data is examined when it takes as much memory as may be held. Values that later
//! commits hide are discarded (`deferred`). If enough memory is free then, the rest stays.
//! Otherwise the oldest part is written, up to a *cut*, and the newer part is put back in front of
//! the commits since. A cut is a place between two records; commits make one from time to time. A
//! part that is long is written in pieces of a window each, so that the memory of each piece is
//! free as soon as it is written, and commits need not wait for the whole.
//!
//! Invariants:
//!
//! 1. The part that is put back is a suffix, so records are written in the order of their commits.
//! 2. A record of a written part may say that a commit of the part that was put back hides its
//!    value. A write of everything pending includes that commit, and no position is called durable
//!    but the end of such a write. So recovery, which ends before such a record if the journal does
//!    not reach that far, loses nothing that was synced.
//! 3. Each piece is a write of its own, with its own waste in segments and zones. The pending data
//!    counts that of its cuts ([`Pending::room`]). If the reserved zones are too few for pieces,
//!    the whole is written at once.
//! 4. A buffer of values is free when all of its values are. The memory that dropped values still
//!    take is counted, and if it is much, everything is written.

use std::collections::VecDeque;

use bytes::Bytes;
use env::sync::atomic::Ordering;
use vt_tree::Seq;
use zones::Priority;

use super::deferred::{self, Pending, PendingEnd};
use super::{Log, Pipeline};
use crate::error::Result;
use crate::journal::{self, Writer, record};
use crate::log::chunk::HEADER;

/// The longest value that is held, bytes. Longer ones are placed before their commit.
const LONGEST_HELD: usize = 1 << 20;

/// Values of at least this many bytes have memory of their own while values are held, so that none
/// of them keeps that of others.
const OWN: usize = 32 << 10;

/// A place between two records at which the pending data can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The length of the stream before it, bytes.
    pub len: usize,
    /// The number of the first change after it.
    seq: Seq,
}

/// The most of the pending data that stays when the rest is written.
#[derive(Clone, Copy)]
struct Keep {
    /// The memory of the values, bytes.
    memory: usize,
    /// The length of the stream, bytes.
    stream: usize,
}

/// The values of a commit that holds them, until it is visible and they wait with the others.
/// Without these, commits of many threads would each find room for theirs at the same moment.
pub(in crate::commit) struct Coming<'a> {
    log: &'a Log,
    bytes: u64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.log.coming.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Pending {
    /// Returns the room in segments that a write of it needs, in pieces or at once, bytes: 0 in a
    /// store without a journal.
    pub(super) fn room(&self) -> usize {
        match self.len() {
            0 => 0,
            len => len + self.cuts.len() * journal::cost(0),
        }
    }

    /// Returns the memory of its values, bytes.
    fn memory(&self) -> usize {
        self.values.iter().map(|v| deferred::heap(v.value.len())).sum()
    }

    /// Returns the length of those values that share buffers, bytes.
    fn buffered(&self) -> usize {
        self.values.iter().map(|v| v.value.len()).filter(|len| *len < OWN).sum()
    }

    /// Returns whether values of cost `values`, or `stream` bytes of stream, have come since the
    /// last cut.
    fn is_cut_due(&self, values: u64, stream: usize) -> bool {
        let since = self.len() - self.cuts.last().map_or(0, |cut| cut.len);
        self.since_cut >= values || since >= stream
    }

    /// Adds the cuts of later data, which was appended after `by` bytes of stream.
    pub(super) fn append_cuts(&mut self, later: &[Cut], since_cut: u64, by: usize) {
        self.since_cut = if later.is_empty() { self.since_cut + since_cut } else { since_cut };
        self.cuts.extend(later.iter().map(|cut| Cut { len: cut.len + by, ..*cut }));
    }

    /// Returns the index of the first cut after which no more remains than `keep` allows.
    fn cut_leaving(&self, keep: Keep) -> Option<usize> {
        let (mut memory, len) = (self.memory(), self.len());
        let mut values = self.values.iter().peekable();
        self.cuts.iter().position(|cut| {
            while let Some(v) = values.next_if(|v| v.seq < cut.seq) {
                memory -= deferred::heap(v.value.len());
            }
            memory <= keep.memory && len - cut.len <= keep.stream
        })
    }

    /// Returns the indexes of the cuts that divide it into pieces, which have at least `memory`
    /// bytes of values or `stream` bytes of stream, but for the last one.
    fn ends_of_pieces(&self, memory: usize, stream: usize) -> Vec<usize> {
        let (mut ends, mut begin, mut here) = (Vec::new(), 0, 0);
        let mut values = self.values.iter().peekable();
        for (i, cut) in self.cuts.iter().enumerate() {
            while let Some(v) = values.next_if(|v| v.seq < cut.seq) {
                here += deferred::heap(v.value.len());
            }
            if here >= memory || cut.len - begin >= stream {
                ends.push(i);
                (begin, here) = (cut.len, 0);
            }
        }
        ends
    }

    /// Splits off what follows the cut with index `at`, and returns it. The values must be in the
    /// order of their commits.
    fn split_at(&mut self, at: usize) -> Pending {
        let mut rest = Pending::new(Vec::new());
        let cuts = self.cuts.split_off(at);
        let Some((&Cut { len, seq }, cuts)) = cuts.split_first() else { return rest };
        rest.stream.extend(self.stream.drain(HEADER + len..));
        rest.values = self.values.split_off(self.values.partition_point(|v| v.seq < seq));
        rest.values.iter_mut().flat_map(|v| &mut v.at).for_each(|at| *at -= len);
        rest.cuts.extend(cuts.iter().map(|cut| Cut { len: cut.len - len, ..*cut }));
        rest.since_cut = std::mem::take(&mut self.since_cut);
        rest.cost = rest.values.iter().map(|v| deferred::cost(v.value.len())).sum();
        self.cost -= rest.cost;
        rest.end = self.end;
        self.end = PendingEnd { position: rest.end.position - rest.len() as u64, seq: seq - 1 };
        rest
    }

    /// Undoes [`Pending::split_at`]: appends the part that was split off, with the cut before it.
    fn rejoin(mut self, later: Pending) -> Pending {
        self.cuts.push(Cut { len: self.len(), seq: self.end.seq + 1 });
        self.since_cut = 0;
        let end = later.end;
        self.append(later);
        self.end = end;
        self
    }
}

impl Log {
    /// Returns whether values are held: the store was opened so, and callers do not wait for syncs
    /// from time to time.
    pub(crate) fn holds(&self) -> bool {
        self.hold.load(Ordering::Relaxed) > 0 && !self.writes_early()
    }

    /// Returns the memory of values that are held at most, bytes.
    pub(super) fn held_at_most(&self) -> usize {
        self.hold.load(Ordering::Relaxed)
    }

    /// Sets how much is held, next to memtables of `memtables` bytes.
    pub(in crate::commit) fn hold_next_to(&self, memtables: usize) {
        if self.shares.hold > 0 && !self.is_mirrored() {
            self.hold.store(self.shares.hold_next_to(memtables), Ordering::Relaxed);
        }
    }

    /// Lets a commit with `total` bytes of large values, the longest of `longest` bytes, hold them.
    /// If too much is held, it returns `None`, and the commit places them itself: then it need
    /// neither wait for the thread that writes the oldest ones nor be slowed down for it. That
    /// thread is notified.
    pub(in crate::commit) fn may_hold(&self, total: u64, longest: usize) -> Option<Coming<'_>> {
        let bound = self.held_at_most() as u64;
        if !self.holds() || longest > LONGEST_HELD || total > bound / 2 {
            return None;
        }
        // It counts before the values that wait, since other commits move theirs to these.
        let others = self.coming.fetch_add(total, Ordering::AcqRel);
        let coming = Coming { log: self, bytes: total };
        let waiting = self.deferred_memory() as u64;
        let fits = waiting + others + total <= bound;
        // Three quarters stay when the oldest values are written.
        if !fits && waiting > bound / 4 * 3 {
            self.crowded.store(true, Ordering::Relaxed);
        }
        fits.then_some(coming)
    }

    /// Returns whether the pending data is to be examined since too much is held.
    pub(super) fn is_held_too_much(&self) -> bool {
        self.crowded.swap(false, Ordering::Relaxed) || self.deferred_memory() >= self.held_at_most()
    }

    /// Returns a copy of a value that is deferred.
    pub(in crate::commit) fn copy_value(&self, value: &[u8]) -> Bytes {
        if self.shares.hold > 0 && value.len() >= OWN {
            return Bytes::copy_from_slice(value);
        }
        self.value_buffers.lock().copy(value)
    }

    /// Returns the memory of deferred values and the memory that dropped values still take, in
    /// bytes. Of the latter no more than half of the bound counts, since readers may keep such
    /// values for any time.
    pub(crate) fn deferred_memory(&self) -> usize {
        let wasted = self.wasted.load(Ordering::Relaxed);
        self.deferred_bytes() + wasted.min(self.held_at_most() / 2)
    }

    /// Makes a cut before the next commit, if one is due.
    pub(in crate::commit) fn cut_if_due(&self, pipeline: &mut Pipeline) {
        let next = pipeline.next_seq;
        let pending = &mut pipeline.pending;
        let (values, stream) = (self.shares.window as u64 / 2, self.shares.journal_write_at / 2);
        if self.held_at_most() == 0 || !pending.is_cut_due(values, stream) {
            return;
        }
        pending.cuts.push(Cut { len: pending.len(), seq: next });
        pending.since_cut = 0;
        if self.journal {
            // Each write begins with the number of its first change.
            pending.stream.extend_from_slice(&record::number(next));
        }
    }

    /// Returns whether values are held, and a quarter of a window of them waits.
    pub(in crate::commit) fn has_many_values(&self) -> bool {
        self.holds() && self.pipeline.lock().pending.cost > self.shares.window as u64 / 4
    }

    /// Returns whether the pending data has cuts, so that it is written in pieces.
    pub(super) fn has_cuts(&self) -> bool {
        !self.pipeline.lock().pending.cuts.is_empty()
    }

    /// Examines the pending data. If it is too much then, writes the oldest part of it.
    pub(super) fn write_held(&self, writer: &mut Writer) -> Result<()> {
        let Some(mut taken) = self.take_examined(writer)? else { return Ok(()) };
        let (bound, stream) = (self.held_at_most(), self.shares.journal_write_at);
        let wasted = self.measure_waste(taken.buffered());
        if !taken.values.is_empty() && wasted <= bound / 4 {
            let keep = Keep { memory: bound / 4 * 3 - wasted, stream: 2 * stream };
            if taken.memory() <= keep.memory && taken.len() < 3 * stream {
                self.put_back_whole(writer, taken);
                return Ok(());
            }
            taken = self.put_back_newer(writer, taken, keep);
        }
        self.write_pieces(writer, taken)?;
        self.measure_waste(0);
        Ok(())
    }

    /// Writes the pending data in pieces, unless some of its values were discarded and `little`
    /// holds for the rest.
    pub(super) fn write_in_pieces(
        &self,
        writer: &mut Writer,
        little: impl FnOnce(&Pending) -> bool,
    ) -> Result<()> {
        let Some(taken) = self.take_examined(writer)? else { return Ok(()) };
        if taken.discarded > 0 && little(&taken) {
            self.put_back_whole(writer, taken);
            return Ok(());
        }
        self.write_pieces(writer, taken)?;
        self.measure_waste(0);
        Ok(())
    }

    /// Takes the pending data, and discards the values in it that nothing reads any more. Returns
    /// `None` if nothing is pending.
    fn take_examined(&self, writer: &Writer) -> Result<Option<Pending>> {
        let Some(mut taken) = self.take_pending(writer)? else { return Ok(None) };
        // A write that failed has left them in the order of their keys.
        if !taken.values.is_sorted_by_key(|v| v.seq) {
            taken.values.sort_by_key(|v| v.seq);
        }
        self.discard_hidden(&mut taken);
        Ok(Some(taken))
    }

    /// Measures the memory in buffers that dropped values still take, notes and returns it. `taken`
    /// is the length of the values in buffers that are not in the pipeline.
    fn measure_waste(&self, taken: usize) -> usize {
        // Commits under way may have copied theirs already.
        let coming = self.coming.load(Ordering::Acquire) as usize;
        let newer = self.pipeline.lock().pending.buffered();
        let most = self.held_at_most() + self.shares.window;
        let used = self.value_buffers.lock().in_use(most);
        let wasted = used.saturating_sub(taken + newer + coming);
        self.wasted.store(wasted, Ordering::Relaxed);
        wasted
    }

    fn put_back_whole(&self, writer: &Writer, mut taken: Pending) {
        taken.looked_at = taken.len();
        self.pipeline.lock().put_back(taken, writer);
    }

    /// Puts back the newer part of the pending data, as much as `keep` allows, and returns the
    /// older one. Returns all of it if it cannot be divided so, or if there is no zone for the
    /// values of two writes.
    fn put_back_newer(&self, writer: &mut Writer, mut taken: Pending, keep: Keep) -> Pending {
        let Some(at) = taken.cut_leaving(keep) else { return taken };
        let mut rest = taken.split_at(at);
        let mut pipeline = self.pipeline.lock();
        let needed = deferred::zones_for(taken.cost)
            + deferred::zones_for(rest.cost + pipeline.pending.cost);
        if writer.reserved.len() < needed
            && let Ok(zone) = self.engine.zones.reserve_zone(Priority::User)
        {
            writer.reserved.push(zone);
        }
        if writer.reserved.len() < needed {
            return taken.rejoin(rest);
        }
        rest.looked_at = rest.len();
        pipeline.put_back(rest, writer);
        pipeline.leave_room([&taken], writer);
        taken
    }

    /// Writes data that was taken, in pieces. After an error, what is not written is pending again.
    fn write_pieces(&self, writer: &mut Writer, taken: Pending) -> Result<()> {
        let mut pieces = self.pieces_of(writer, taken);
        while let Some(mut piece) = pieces.pop_front() {
            if let Err(e) = self.place_values(&mut piece, writer) {
                piece.values.sort_by_key(|v| v.seq);
                let rest = pieces.into_iter().fold(piece, Pending::rejoin);
                self.pipeline.lock().put_back(rest, writer);
                return Err(self.fail_unless_full("writing values", e));
            }
            self.write_stream(writer, &mut piece.stream)?;
            writer.is_whole();
            let mut pipeline = self.pipeline.lock();
            self.update_after_write(&mut pipeline, writer, piece.stream);
            pipeline.leave_room(&pieces, writer);
        }
        Ok(())
    }

    /// Divides data that was taken into pieces, if there are zones for the values of each.
    fn pieces_of(&self, writer: &Writer, mut taken: Pending) -> VecDeque<Pending> {
        let ends = taken.ends_of_pieces(self.shares.window, self.shares.journal_write_at);
        let mut pieces = VecDeque::with_capacity(ends.len() + 1);
        for at in ends.into_iter().rev() {
            pieces.push_front(taken.split_at(at));
        }
        pieces.push_front(taken);
        let mut pipeline = self.pipeline.lock();
        pipeline.leave_room(&pieces, writer);
        if pipeline.pending.cost > pipeline.place_room {
            pieces = pieces.into_iter().reduce(Pending::rejoin).into_iter().collect();
            pipeline.leave_room(&pieces, writer);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::Simulated;
    use zones::MemoryDevice;

    use super::*;
    use crate::{CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};

    fn store(memory: usize) -> (Kvdb, DictionaryId) {
        let open = OpenOptions {
            memory,
            hold_values: usize::MAX,
            threads: false,
            zero_journal: false,
            ..OpenOptions::default()
        };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let device = Arc::new(MemoryDevice::new());
        let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        (db, dict)
    }

    fn put(db: &Kvdb, dict: DictionaryId, key: u32, len: usize) {
        db.put(dict, &key.to_be_bytes(), &vec![key as u8; len], Durability::Buffered).unwrap();
    }

    /// The offset of each reference, counted from the end, the numbers and the costs.
    fn shape(pending: &Pending) -> (Vec<(Seq, Option<usize>)>, u64, usize, u64) {
        let end = pending.stream.len();
        let values = pending.values.iter().map(|v| (v.seq, v.at.map(|at| end - at))).collect();
        (values, pending.cost, pending.len(), pending.end.seq)
    }

    #[test]
    fn a_part_that_is_split_off_and_joined_again_is_what_it_was() {
        let (db, dict) = store(16 << 20);
        (0..60).for_each(|key| put(&db, dict, key, 50_000));
        let log = &db.pipeline().log;
        let writer = log.writer.lock();
        let mut taken = log.pipeline.lock().take(&writer);
        let (before, stream, cuts) = (shape(&taken), taken.stream.clone(), taken.cuts.clone());
        assert!(cuts.len() >= 3, "{cuts:?}");
        for (at, cut) in cuts.iter().enumerate() {
            let rest = taken.split_at(at);
            assert_eq!(taken.cuts.len() + rest.cuts.len() + 1, cuts.len());
            assert_eq!(taken.end.seq + 1, cut.seq);
            assert_eq!(taken.end.position + rest.len() as u64, rest.end.position);
            assert!(taken.values.iter().all(|v| v.seq < cut.seq));
            assert!(rest.values.iter().all(|v| v.seq >= cut.seq));
            taken = taken.rejoin(rest);
            assert_eq!((shape(&taken), &taken.cuts), (before.clone(), &cuts));
            assert_eq!(taken.stream[HEADER..], stream[HEADER..]);
        }
        log.pipeline.lock().put_back(taken, &writer);
        drop(writer);
        db.sync().unwrap();
        for key in 0..60u32 {
            assert_eq!(db.get(dict, &key.to_be_bytes()).unwrap().unwrap(), vec![key as u8; 50_000]);
        }
    }

    /// One value of each buffer lives on, and all others die.
    #[test]
    fn values_that_are_gone_keep_no_more_memory_than_may_be_held() {
        let (db, dict) = store(64 << 20);
        let log = &db.pipeline().log;
        let most = log.shares.hold + log.shares.window;
        for i in 0..40_000u32 {
            let key = if i.is_multiple_of(200) { 1000 + i } else { i % 7 };
            put(&db, dict, key, 5000);
            assert!(log.deferred_memory() <= most, "{}", log.deferred_memory());
        }
        let used = log.value_buffers.lock().in_use(usize::MAX);
        assert!(used <= most, "{used} bytes of buffers");
        assert!(db.stats().discarded_bytes > 150_000_000, "{}", db.stats().discarded_bytes);
    }

    /// Threads that commit at the same time share the room that there is.
    #[test]
    fn commits_under_way_count_as_held() {
        let (db, dict) = store(64 << 20);
        let log = &db.pipeline().log;
        let third = log.held_at_most() as u64 / 3;
        let (one, other) = (log.may_hold(third, 1000), log.may_hold(third, 1000));
        assert!(one.is_some() && other.is_some());
        put(&db, dict, 1, 200_000);
        assert!(log.may_hold(third, 1000).is_none(), "there is no room for a third one");
        drop(one);
        assert!(log.may_hold(third, 1000).is_some());
        drop(other);
        assert_eq!(log.coming.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn values_are_not_held_while_syncs_are_expected() {
        let (db, dict) = store(64 << 20);
        put(&db, dict, 1, 100_000);
        let log = &db.pipeline().log;
        assert!(log.holds() && log.deferred_bytes() > 100_000);
        db.sync().unwrap();
        assert!(!log.holds() && log.deferred_bytes() == 0);
        put(&db, dict, 2, 100_000);
        assert_eq!(log.deferred_bytes(), 0, "it was placed before its commit");
    }
}

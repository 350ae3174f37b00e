//! The second phase of opening a store: the first pass over the journal, which finds its end and
//! the data that it binds. Nothing is changed.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BlockCache, ExtentRef, Run, Seq, Value};
use zones::{SECTOR, ZONE_SIZE, ZoneId, ZoneUse, Zones};

use super::Recovery;
use super::found::{bounded, decode_run};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::Segment;
use crate::journal::record::{self, Bound, Op, Ops, Record};
use crate::log::chunk::Kind;
use crate::log::records::Records;
use crate::log::stream::{StreamPart, StreamReader};
use crate::manifest::{JournalStart, ManifestState};

/// The result of the first pass over the journal.
pub(crate) struct Journal {
    /// The position after the last valid record.
    pub end: u64,
    pub last_seq: u64,
    pub records: u64,
    /// The segments that hold a part of the stream, with their ends.
    pub used: Vec<Segment>,
    /// The places of bound values.
    pub bound: ZoneUse,
    /// The runs that commits have bound, in order.
    pub runs: VecDeque<BoundRuns>,
    /// The sum of the sizes that the runs in `runs` claim.
    weight: u64,
}

impl Journal {
    pub(super) fn parts(&self) -> Vec<StreamPart> {
        self.used.iter().map(Segment::part).collect()
    }
}

/// Returns the offset in the first segment at which the journal's stream begins.
pub(super) fn offset_in(segments: &[Segment], start: &JournalStart) -> u64 {
    segments.first().filter(|first| first.number == start.segment).map_or(0, |_| start.offset)
}

/// The runs that one commit in the journal has bound, opened.
pub(crate) struct BoundRuns {
    places: Vec<u64>,
    /// The runs of each dictionary, the newest first.
    pub runs: Vec<(DictionaryId, Vec<Arc<Run>>)>,
}

impl BoundRuns {
    fn open(
        cache: &Arc<BlockCache>,
        state: &ManifestState,
        seq: Seq,
        bound: &Bound,
    ) -> Result<BoundRuns> {
        let mut runs = Vec::new();
        for (dict, roots) in &bound.runs {
            // The data of a dropped dictionary may already be gone.
            if state.takes(*dict, seq) {
                let decoded: Result<Vec<_>> = roots
                    .iter()
                    .map(|root| {
                        decode_run(cache, root, || "the root of a run in the journal".into())
                    })
                    .collect();
                runs.push((*dict, decoded?));
            }
        }
        Ok(BoundRuns { places: bound.places.clone(), runs })
    }

    /// Reports to `zones` where the runs end, so that writes to open zones continue after the runs.
    /// Must be called before allocation begins.
    pub(super) fn saw(&self, zones: &Zones) {
        for (zone, _) in
            self.runs.iter().flat_map(|(_, runs)| runs).flat_map(|run| run.uses().iter())
        {
            let open = self.places.iter().find(|&&place| ZoneId::of(place) == zone);
            zones.saw_extent(zone.start(), open.map_or(ZONE_SIZE, |place| place - zone.start()));
        }
    }
}

/// The contents of a commit in the journal.
pub(super) enum Content {
    Ops(Ops),
    /// Runs that were written before the record.
    Bound(Bound),
}

/// Numbers the changes of a journal in the order of its records.
pub(super) struct Numbers {
    pub next: Seq,
}

impl Numbers {
    /// Returns a commit and the number of its first change, or `None` if the record is not a
    /// commit.
    pub fn take(&mut self, record: Record) -> Result<Option<(Seq, Content)>> {
        let (content, count) = match record {
            Record::Mark | Record::Snapshot { .. } => return Ok(None),
            Record::Number(next) if next == self.next => return Ok(None),
            Record::Number(next) => {
                return Err(Error::Corrupt(format!(
                    "the journal goes on with change {next} where {} is next",
                    self.next
                )));
            }
            Record::Commit(changes) => {
                let count = changes.len() as u64;
                (Content::Ops(changes), count)
            }
            Record::Bind(bound) => (Content::Bound(bound), 1),
        };
        let first = self.next;
        let next = first.checked_add(count);
        self.next = next.ok_or_else(|| {
            Error::Corrupt("the journal has more changes than can be numbered".into())
        })?;
        Ok(Some((first, content)))
    }
}

/// A record that may not have been durable before the crash, with the values that it binds.
struct Unsynced {
    begin: u64,
    end: u64,
    /// The number of the record's last change, or `None` if the record is not a commit.
    last_seq: Option<u64>,
    extents: Vec<ExtentRef>,
    /// The position that the journal must reach so that later changes hide the record's discarded
    /// values.
    until: u64,
    bound: Option<Bound>,
}

impl Unsynced {
    /// Decodes the record at the positions from `begin` to `end` of the journal, and numbers its
    /// changes.
    fn decode(
        bytes: &Bytes,
        (begin, end): (u64, u64),
        numbers: &mut Numbers,
        state: &ManifestState,
    ) -> Result<Unsynced> {
        let commit = numbers.take(record::decode(bytes)?)?;
        let last_seq = commit.as_ref().map(|_| numbers.next - 1);
        let (mut extents, mut until, mut bound) = (Vec::new(), 0, None);
        match commit {
            None => {}
            Some((first, Content::Ops(changes))) => {
                until = changes.iter().map(|(_, op)| op.hidden_before()).max().unwrap_or(0);
                extents.extend((first..).zip(&changes).filter_map(|(seq, (dict, op))| match op {
                    // The data of a dropped dictionary may already be gone.
                    Op::Put(_, Value::Extent(e)) if state.takes(*dict, seq) => Some(*e),
                    _ => None,
                }));
            }
            Some((_, Content::Bound(runs))) => bound = Some(runs),
        }
        Ok(Unsynced { begin, end, last_seq, extents, until, bound })
    }
}

/// Returns the number of leading records in `unsynced` that are valid. A record for which `missing`
/// holds ends the valid part, and so does a record that needs more of the journal than this leaves.
fn countable(unsynced: &VecDeque<Unsynced>, missing: impl Fn(&Unsynced) -> bool) -> usize {
    let mut count = unsynced.iter().position(missing).unwrap_or(unsynced.len());
    loop {
        let end = match count.checked_sub(1) {
            Some(last) => unsynced[last].end,
            None => return 0,
        };
        match unsynced.iter().take(count).position(|record| record.until > end) {
            Some(first) => count = first,
            None => return count,
        }
    }
}

/// Returns the number of records in `unsynced`, the last records of a journal, that are valid. The
/// journal ends at `end` and is known to be durable up to `synced`. An invalid record before
/// `synced` is damage.
fn valid(
    unsynced: &VecDeque<Unsynced>,
    cache: &BlockCache,
    synced: u64,
    end: u64,
) -> Result<usize> {
    let count = countable(unsynced, |record| {
        // If the record exists but a value that it binds does not, both were being written when the
        // store crashed.
        record.end > synced
            && record.extents.iter().any(|e| cache.read_value(&Value::Extent(*e)).is_err())
    });
    match unsynced.get(count).filter(|first| first.end <= synced) {
        None => Ok(count),
        Some(first) => Err(Error::Corrupt(format!(
            "the journal ends at {end}, before the change that hides a value discarded at {}",
            first.begin
        ))),
    }
}

/// Makes the first pass over the journal. Each durable extent that the journal binds is passed to
/// `bound`.
pub(crate) fn read_journal(
    zones: &Zones,
    cache: &Arc<BlockCache>,
    state: &ManifestState,
    recovery: &mut Recovery,
    bound: &mut dyn FnMut(&ExtentRef),
) -> Result<Journal> {
    let start = state.start;
    if start.offset > ZONE_SIZE || !start.offset.is_multiple_of(SECTOR) {
        return Err(Error::Corrupt(format!(
            "the manifest's journal begins at offset {} of a zone",
            start.offset
        )));
    }
    let segments = segments_of(state);
    let parts: Vec<StreamPart> = segments.iter().map(Segment::part).collect();
    let mut reader = StreamReader::new(
        zones,
        Kind::Journal,
        &parts,
        offset_in(&segments, &start),
        start.position,
    );
    let mut records = Records::new(start.position);
    let mut journal = Journal::beginning_at(start.position);
    // `ends[i]` is the position at which the share of part `i` in the stream ends.
    let mut ends: Vec<u64> = Vec::new();
    let mut unsynced: VecDeque<Unsynced> = VecDeque::new();
    let mut numbers = Numbers { next: start.seq + 1 };
    while let Some((at, piece)) = reader.next()? {
        ends.resize(reader.part() + 1, at);
        ends[reader.part()] = at + piece.len() as u64;
        let mut begin = records.position();
        records.push(&piece, |end, bytes| {
            unsynced.push_back(Unsynced::decode(&bytes, (begin, end), &mut numbers, state)?);
            begin = end;
            Ok(true)
        })?;
        // A discarded value is synced together with the change that hides it.
        let synced = reader.synced();
        while unsynced.front().is_some_and(|r| r.end.max(r.until) <= synced) {
            if let Some(record) = unsynced.pop_front() {
                journal.take(cache, state, &record, bound)?;
            }
        }
    }
    let tail = reader.tail()?;
    recovery.torn_bytes += tail.torn + records.unfinished();
    let count = valid(&unsynced, cache, tail.synced, records.position())?;
    if let Some(first) = unsynced.get(count) {
        recovery.torn_bytes += records.position() - first.begin;
    }
    for record in unsynced.iter().take(count) {
        journal.take(cache, state, record, bound)?;
    }
    (recovery.records, recovery.bytes) = (journal.records, journal.end - start.position);
    recovery.bound_bytes = journal.bound.total_bytes();
    journal.note_segments(start.position, &segments, &ends);
    Ok(journal)
}

/// Returns the segments in which the journal may lie. If the store was closed properly, the end of
/// the stream is recorded, and the segments after it are empty and need not be searched for data
/// that a crash has left.
fn segments_of(state: &ManifestState) -> Vec<Segment> {
    let first = state.start.segment;
    state
        .segments
        .iter()
        .filter(|s| s.number >= first && (!state.closed || s.end.is_some()))
        .copied()
        .collect()
}

impl Journal {
    /// Returns a journal without records that begins at a position.
    fn beginning_at(position: u64) -> Journal {
        Journal {
            end: position,
            last_seq: 0,
            records: 0,
            used: Vec::new(),
            bound: ZoneUse::new(),
            runs: VecDeque::new(),
            weight: 0,
        }
    }

    /// Records the segments that hold a part of the stream. The share of the first segment begins
    /// at `from`, and the share of segment `i` ends at `ends[i]`.
    fn note_segments(&mut self, mut from: u64, segments: &[Segment], ends: &[u64]) {
        for (segment, &to) in segments.iter().zip(ends) {
            if from < self.end {
                self.used.push(Segment { end: Some(to.min(self.end)), ..*segment });
            }
            from = to;
        }
    }

    /// Adds the next valid record to the result.
    fn take(
        &mut self,
        cache: &Arc<BlockCache>,
        state: &ManifestState,
        record: &Unsynced,
        bound: &mut dyn FnMut(&ExtentRef),
    ) -> Result<()> {
        if let Some(runs) = &record.bound {
            let bound = BoundRuns::open(cache, state, record.last_seq.unwrap_or(0), runs)?;
            self.weight = bounded(
                self.weight,
                bound.runs.iter().flat_map(|(_, runs)| runs).map(|run| &**run),
            )?;
            self.runs.push_back(bound);
        }
        self.end = record.end;
        if let Some(seq) = record.last_seq {
            self.last_seq = seq;
            self.records += 1;
        }
        for extent in &record.extents {
            self.bound.add_extent(extent.addr, u64::from(extent.stored));
            bound(extent);
        }
        Ok(())
    }
}

//! What the manifest says, edits applied: pure data, that knows nothing of open runs. Edits that contradict it are corruption.

use std::collections::BTreeMap;

use bytes::Bytes;
use zones::Purpose;

use super::edit::{Edit, JournalStart, RunId};
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::journal::Segment;

/// One dictionary: its options, and its runs, each at a level, by age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DictionaryState {
    pub info: DictionaryInfo,
    pub runs: BTreeMap<RunId, (u32, Bytes)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub dictionaries: BTreeMap<DictionaryId, DictionaryState>,
    /// The journal's segments in order, those prepared but not yet written included.
    pub segments: Vec<Segment>,
    pub start: JournalStart,
    /// Where open zones go on: behind everything that runs refer to.
    pub streams: Vec<(Purpose, u64)>,
    /// The store was closed, and nothing was written since.
    pub closed: bool,
    pub next_dictionary: u32,
    pub next_run: u64,
    pub next_segment: u64,
}

/// The deepest level that an edit may name; a bound for what damaged bytes can make us allocate.
pub(crate) const MAX_LEVEL: u32 = 63;

impl State {
    pub(crate) fn new() -> Self {
        State { next_dictionary: 1, next_run: 1, next_segment: 1, ..Default::default() }
    }

    fn dictionary(&mut self, id: DictionaryId) -> Result<&mut DictionaryState> {
        self.dictionaries.get_mut(&id).ok_or_else(|| contradiction(format!("dictionary {} does not exist", id.0)))
    }

    pub(crate) fn apply(&mut self, edit: Edit) -> Result<()> {
        self.closed = edit == Edit::Closed;
        match edit {
            Edit::Dictionary(info) => {
                let id = info.id;
                let next = id.0.checked_add(1).ok_or_else(|| contradiction(format!("number {} is out of range", id.0)))?;
                self.next_dictionary = self.next_dictionary.max(next);
                if self.dictionaries.insert(id, DictionaryState { info, runs: BTreeMap::new() }).is_some() {
                    return Err(contradiction(format!("dictionary {} is created twice", id.0)));
                }
            }
            Edit::DropDictionary(id) => {
                self.dictionary(id)?;
                self.dictionaries.remove(&id);
            }
            Edit::AddRun { dict, level, id, run } => {
                self.next_run = self.next_run.max(next(id.0)?);
                if level > MAX_LEVEL || self.dictionary(dict)?.runs.insert(id, (level, run)).is_some() {
                    return Err(contradiction(format!("run {} cannot be added", id.0)));
                }
            }
            Edit::DropRun { dict, id } => {
                if self.dictionary(dict)?.runs.remove(&id).is_none() {
                    return Err(contradiction(format!("run {} is dropped but not there", id.0)));
                }
            }
            Edit::StitchAt { dict, stitch_at } => self.dictionary(dict)?.info.options.stitch_at = stitch_at,
            Edit::JournalStart(start) => self.start = start,
            Edit::Segment(segment) => {
                if self.segments.last().is_some_and(|s| s.number >= segment.number) {
                    return Err(contradiction("journal segments are out of order".into()));
                }
                self.next_segment = self.next_segment.max(next(segment.number)?);
                self.segments.push(segment);
            }
            Edit::SegmentEnds { number, position } => {
                let segment = self.segments.iter_mut().find(|s| s.number == number);
                segment.ok_or_else(|| contradiction(format!("journal segment {number} does not exist")))?.end = Some(position);
            }
            Edit::DropSegments { before } => self.segments.retain(|s| s.number >= before),
            Edit::Streams(streams) => self.streams = streams,
            Edit::Closed => {}
            Edit::ForgetSegment { number } => self.segments.retain(|s| s.number != number),
            Edit::NextIds { dictionary, run, segment } => {
                self.next_dictionary = self.next_dictionary.max(dictionary);
                self.next_run = self.next_run.max(run);
                self.next_segment = self.next_segment.max(segment);
            }
        }
        Ok(())
    }

    /// Edits that build this state from nothing.
    pub(crate) fn checkpoint(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for (&dict, d) in &self.dictionaries {
            edits.push(Edit::Dictionary(d.info.clone()));
            edits.extend(d.runs.iter().map(|(&id, (level, run))| Edit::AddRun { dict, level: *level, id, run: run.clone() }));
        }
        for s in &self.segments {
            edits.push(Edit::Segment(*s));
            if let Some(position) = s.end {
                edits.push(Edit::SegmentEnds { number: s.number, position });
            }
        }
        edits.push(Edit::JournalStart(self.start));
        let (dictionary, run, segment) = (self.next_dictionary, self.next_run, self.next_segment);
        edits.push(Edit::NextIds { dictionary, run, segment });
        edits.push(Edit::Streams(self.streams.clone()));
        edits.extend(self.closed.then_some(Edit::Closed));
        edits
    }
}

fn next(id: u64) -> Result<u64> {
    id.checked_add(1)
        .filter(|&n| n < u64::from(u32::MAX) << 16)
        .ok_or_else(|| contradiction(format!("number {id} is out of range")))
}

fn contradiction(why: String) -> Error {
    Error::Corrupt(format!("the manifest contradicts itself: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::DictionaryOptions;
    use zones::ZoneId;

    fn sample() -> State {
        let mut state = State::new();
        let info =
            |id, name: &str| DictionaryInfo { id: DictionaryId(id), name: name.into(), options: DictionaryOptions::default() };
        let add = |dict, id| Edit::AddRun { dict: DictionaryId(dict), level: 1, id: RunId(id), run: Bytes::from_static(b"run") };
        let segment = |number| Edit::Segment(Segment { number, zone: ZoneId(number as u32 + 5), epoch: number * 3, end: None });
        let edits = [
            Edit::Dictionary(info(1, "a")),
            Edit::Dictionary(info(2, "b")),
            add(1, 1),
            add(1, 2),
            add(2, 3),
            Edit::DropRun { dict: DictionaryId(1), id: RunId(1) },
            Edit::DropDictionary(DictionaryId(2)),
            Edit::StitchAt { dict: DictionaryId(1), stitch_at: 5 },
            segment(1),
            segment(2),
            segment(3),
            Edit::DropSegments { before: 2 },
            Edit::SegmentEnds { number: 2, position: 99 },
            Edit::JournalStart(JournalStart { segment: 2, offset: 4096, position: 50, seq: 12 }),
            Edit::ForgetSegment { number: 3 },
            Edit::Streams(vec![(Purpose::Index, 77)]),
            Edit::Closed,
        ];
        for e in edits {
            state.apply(e).unwrap();
        }
        state
    }

    #[test]
    fn a_checkpoint_builds_the_same_state() {
        let state = sample();
        assert_eq!((state.next_dictionary, state.next_run, state.next_segment), (3, 4, 4));
        let mut again = State::new();
        for e in state.checkpoint() {
            again.apply(e).unwrap();
        }
        assert_eq!(again, state);
    }

    #[test]
    fn contradictions_are_errors() {
        let refused = |e: Edit| assert!(sample().apply(e.clone()).is_err(), "{e:?}");
        refused(Edit::DropRun { dict: DictionaryId(1), id: RunId(1) });
        refused(Edit::DropDictionary(DictionaryId(2)));
        refused(Edit::StitchAt { dict: DictionaryId(2), stitch_at: 0 });
        refused(Edit::Segment(Segment { number: 2, zone: ZoneId(1), epoch: 0, end: None }));
        refused(Edit::SegmentEnds { number: 1, position: 0 });
        refused(Edit::AddRun { dict: DictionaryId(1), level: 64, id: RunId(9), run: Bytes::new() });
        refused(Edit::AddRun { dict: DictionaryId(1), level: 0, id: RunId(u64::MAX), run: Bytes::new() });
    }

    #[test]
    fn an_edit_after_the_close_voids_it() {
        let mut state = sample();
        state.apply(Edit::DropSegments { before: 0 }).unwrap();
        assert!(!state.closed);
    }
}

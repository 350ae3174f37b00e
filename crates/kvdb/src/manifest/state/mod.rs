//! The state that results from the manifest's edits. The state is pure data, without open runs.
//! Edits that contradict the state are corruption. `branching` applies the edits of snapshots and
//! branches, and `checkpoint` has the edits that build a state from nothing.
//!
//! A snapshot is a set of dictionaries as they were when the snapshot was made. The snapshot and
//! its branch share each dictionary until the branch changes it. A snapshot therefore costs a few
//! pointers, and a copy of the whole state little more. The cost of an edit does not depend on the
//! size of the unchanged part.

mod branched;
mod branching;
mod checkpoint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use vt_tree::Seq;
use zones::Purpose;

pub(crate) use branched::{BranchedDictionaries, OfBranch};
pub(crate) use checkpoint::make_branches;

use super::edit::{Edit, JournalStart};
use crate::dictionary::{ADAPTIVE_SEPARATION, Described, DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::ids::{Label, RunId};
use crate::journal::Segment;
use crate::persistent_map::PersistentMap;

/// The runs of a dictionary in the order of their age, each with its level. A clone shares the runs
/// of its snapshot until it gets other runs.
pub(crate) type RunsOf = Arc<BTreeMap<RunId, (u32, Bytes)>>;

/// One dictionary with its options and its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DictionaryState {
    pub info: Described,
    pub runs: RunsOf,
}

impl DictionaryState {
    pub(crate) fn new(info: Described) -> Self {
        static NONE: LazyLock<RunsOf> = LazyLock::new(RunsOf::default);
        DictionaryState { info, runs: NONE.clone() }
    }

    /// Returns the runs for a change that affects only this dictionary.
    pub(super) fn runs_mut(&mut self) -> &mut BTreeMap<RunId, (u32, Bytes)> {
        Arc::make_mut(&mut self.runs)
    }
}

/// A map of dictionaries by number.
pub(crate) type Dictionaries = PersistentMap<DictionaryId, Arc<DictionaryState>>;

/// A map of snapshots by name.
pub(crate) type SnapshotStates = PersistentMap<String, Arc<SnapshotState>>;

/// A snapshot of the dictionaries of one branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotState {
    pub label: Label,
    pub dictionaries: OfBranch,
}

/// The kept data that a checkpoint has listed so far, to which it refers by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeptSoFar {
    runs: Vec<Bytes>,
    dictionaries: Vec<Arc<DictionaryState>>,
    /// The dictionaries of the newest snapshot, and their numbers. Most other snapshots share these
    /// dictionaries.
    newest: (Vec<u64>, OfBranch),
    /// The lists of runs that several dictionaries may share, by their length and newest run.
    lists: HashMap<(usize, RunId), RunsOf>,
    /// The dictionary that got a kept run last.
    filled: Option<DictionaryId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    pub dictionaries: BranchedDictionaries,
    pub snapshots: SnapshotStates,
    /// The branches other than the main branch, with the snapshots from which they were cloned.
    pub branches: PersistentMap<Arc<str>, Arc<str>>,
    /// The number of branches that were cloned from each snapshot, by the snapshot's name.
    clones: PersistentMap<Arc<str>, usize>,
    /// The limits on the bytes that branches may have in addition to shared data.
    pub limits: PersistentMap<String, u64>,
    /// The limits on the files that branches may have in addition to shared files.
    pub limits_of_files: PersistentMap<String, u64>,
    /// The dictionaries that were rolled back, each with the commit up to which its changes in the
    /// journal are void.
    pub since: BTreeMap<DictionaryId, Seq>,
    /// The journal's segments in order, including those that are prepared but not written yet.
    pub segments: Vec<Segment>,
    pub start: JournalStart,
    /// The positions at which writes to open zones continue. All data to which runs refer lies
    /// before these positions or in other zones.
    pub streams: Vec<(Purpose, u64)>,
    /// Is `true` if the store was closed and nothing was written since.
    pub closed: bool,
    pub next_dictionary: u32,
    pub next_run: u64,
    pub next_segment: u64,
    /// The kept data that the record being applied has listed so far.
    kept: KeptSoFar,
}

/// The deepest level that an edit may name. The limit bounds the memory that the program allocates
/// for damaged edits.
pub(crate) const MAX_LEVEL: u32 = 63;

/// The exclusive upper bound of numbers that count upwards. No store can ever reach this bound.
const LARGEST: u64 = 1 << 60;

impl ManifestState {
    pub(crate) fn new() -> Self {
        ManifestState { next_dictionary: 1, next_run: 1, next_segment: 1, ..Default::default() }
    }

    fn change<T>(
        &mut self,
        id: DictionaryId,
        change: impl FnOnce(&mut DictionaryState) -> T,
    ) -> Result<T> {
        let changed = self.dictionaries.change(id, change);
        changed.ok_or_else(|| contradiction(format!("dictionary {} does not exist", id.0)))
    }

    /// Replaces runs with other runs in the dictionaries of all branches and snapshots. A run that
    /// maps to `None` is removed.
    pub(crate) fn replace_runs(&mut self, instead: &HashMap<Bytes, Option<Bytes>>) {
        // Dictionaries that several snapshots share stay shared.
        let mut known: HashMap<*const DictionaryState, Arc<DictionaryState>> = HashMap::new();
        let mut replaced = |d: &Arc<DictionaryState>| {
            if !d.runs.values().any(|(_, run)| instead.contains_key(run)) {
                return d.clone();
            }
            let make = || {
                let runs = d.runs.iter().filter_map(|(id, (level, run))| match instead.get(run) {
                    None => Some((*id, (*level, run.clone()))),
                    Some(new) => new.clone().map(|run| (*id, (*level, run))),
                });
                Arc::new(DictionaryState { info: d.info.clone(), runs: Arc::new(runs.collect()) })
            };
            known.entry(Arc::as_ptr(d)).or_insert_with(make).clone()
        };
        let dictionaries = self.dictionaries.values().map(&mut replaced).collect();
        let snapshots = self.snapshots.iter().map(|(name, snapshot)| {
            let dictionaries = snapshot.dictionaries.values().map(&mut replaced).collect();
            (name.clone(), Arc::new(SnapshotState { label: snapshot.label.clone(), dictionaries }))
        });
        self.snapshots = snapshots.collect();
        self.dictionaries = dictionaries;
    }

    /// Adds a run above all other runs of a dictionary.
    pub(crate) fn add_newest(&mut self, dict: DictionaryId, run: Bytes) -> Result<RunId> {
        let id = RunId(self.next_run);
        self.apply(Edit::AddRun { dict, level: 0, id, run })?;
        Ok(id)
    }

    /// Returns whether a change in the journal is valid, that is, whether its dictionary exists and
    /// was not rolled back after the change.
    pub(crate) fn takes(&self, dict: DictionaryId, seq: Seq) -> bool {
        self.dictionaries.contains_key(&dict)
            && self.since.get(&dict).is_none_or(|since| seq > *since)
    }

    /// Applies the edits of one record.
    pub(crate) fn apply_all(&mut self, edits: impl IntoIterator<Item = Edit>) -> Result<()> {
        self.apply_each(edits.into_iter().map(Ok))
    }

    /// Applies the edits of one encoded record. Each edit is applied before the next one is
    /// decoded, since the edits of a checkpoint together take more memory than the state. The state
    /// must not be used after an error.
    pub(crate) fn apply_record(&mut self, record: &Bytes) -> Result<()> {
        self.apply_each(Edit::each(record))
    }

    fn apply_each(&mut self, mut edits: impl Iterator<Item = Result<Edit>>) -> Result<()> {
        edits.try_for_each(|edit| self.apply(edit?))?;
        self.share_kept_runs();
        self.kept = KeptSoFar::default();
        Ok(())
    }

    pub(crate) fn apply(&mut self, edit: Edit) -> Result<()> {
        self.closed = edit == Edit::Closed;
        match edit {
            Edit::Dictionary(info) => {
                if !info.branch.is_empty() && !self.branches.contains_key(&*info.branch) {
                    return Err(contradiction(format!("branch {} does not exist", info.branch)));
                }
                self.share_kept_runs();
                let info = self.described(info);
                self.insert(DictionaryState::new(info))?;
            }
            Edit::DropDictionary(id) => {
                self.dictionaries
                    .remove(id)
                    .ok_or_else(|| contradiction(format!("dictionary {} does not exist", id.0)))?;
            }
            Edit::AddRun { dict, level, id, run } => {
                self.next_run = self.next_run.max(next(id.0)?);
                if level > MAX_LEVEL
                    || self.change(dict, |d| d.runs_mut().insert(id, (level, run)))?.is_some()
                {
                    return Err(contradiction(format!("run {} cannot be added", id.0)));
                }
            }
            Edit::DropRun { dict, id } => {
                if self.change(dict, |d| d.runs_mut().remove(&id))?.is_none() {
                    return Err(contradiction(format!("run {} is dropped but not there", id.0)));
                }
            }
            Edit::StitchAt { dict, stitch_at } => {
                self.change(dict, |d| d.info.change().options.stitch_at = stitch_at)?
            }
            Edit::Options(d) => self.change(d.id, |there| {
                let kind = there.info.change();
                kind.short_outside =
                    d.short_outside && d.options.separate_at == ADAPTIVE_SEPARATION;
                kind.options = d.options;
            })?,
            Edit::JournalStart(start) => {
                // Numbers below the bound can be incremented without overflow.
                if [start.segment, start.offset, start.position, start.seq]
                    .iter()
                    .any(|&n| n >= LARGEST)
                {
                    return Err(contradiction("the journal begins out of range".into()));
                }
                self.start = start;
                self.since.retain(|_, since| *since > start.seq);
            }
            Edit::Segment(segment) => {
                if self.segments.last().is_some_and(|s| s.number >= segment.number) {
                    return Err(contradiction("journal segments are out of order".into()));
                }
                self.next_segment = self.next_segment.max(next(segment.number)?);
                self.segments.push(segment);
            }
            Edit::SegmentEnds { number, position } => {
                let segment = self.segments.iter_mut().find(|s| s.number == number);
                segment
                    .ok_or_else(|| {
                        contradiction(format!("journal segment {number} does not exist"))
                    })?
                    .end = Some(position);
            }
            Edit::DropSegments { before } => self.segments.retain(|s| s.number >= before),
            Edit::Streams(streams) => self.streams = streams,
            Edit::Closed => {}
            Edit::ForgetSegment { number } => self.segments.retain(|s| s.number != number),
            Edit::NextIds { dictionary, run, segment } => {
                self.next_dictionary = self.next_dictionary.max(dictionary);
                for (next, least) in [(&mut self.next_run, run), (&mut self.next_segment, segment)]
                {
                    *next = (*next).max(least);
                    if *next >= LARGEST {
                        return Err(contradiction(format!("number {least} is out of range")));
                    }
                }
            }
            edit => self.apply_branching(edit)?,
        }
        Ok(())
    }

    /// Returns the description of a new dictionary. A dictionary of a clone shares the name of its
    /// branch, and the parts that equal the dictionary of the snapshot.
    fn described(&self, info: DictionaryInfo) -> Described {
        let mut described = Described::from(info);
        if let Some((branch, origin)) = self.branches.get_key_value(&*described.branch) {
            described.branch = branch.clone();
            let like =
                self.snapshots.get(&**origin).and_then(|of| of.dictionaries.named(&described.name));
            if let Some(like) = like {
                described.share_with(&like.info);
            }
        }
        described
    }

    fn insert(&mut self, state: DictionaryState) -> Result<()> {
        let id = state.info.id;
        let next =
            id.0.checked_add(1)
                .ok_or_else(|| contradiction(format!("number {} is out of range", id.0)))?;
        self.next_dictionary = self.next_dictionary.max(next);
        match self.dictionaries.insert(Arc::new(state)) {
            None => Ok(()),
            Some(_) => Err(contradiction(format!("dictionary {} is created twice", id.0))),
        }
    }
}

fn next(id: u64) -> Result<u64> {
    id.checked_add(1)
        .filter(|&n| n < LARGEST)
        .ok_or_else(|| contradiction(format!("number {id} is out of range")))
}

fn contradiction(why: String) -> Error {
    Error::Corrupt(format!("the manifest contradicts itself: {why}"))
}

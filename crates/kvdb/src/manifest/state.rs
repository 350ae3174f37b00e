//! What the manifest says, edits applied: pure data, that knows nothing of open runs. Edits that
//! contradict it are corruption.
//!
//! A snapshot is a set of dictionaries as they stood when it was made. They are shared until one of
//! them changes, so a snapshot costs a few pointers, and a copy of the whole state little more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::Seq;
use zones::Purpose;

use super::edit::{Edit, JournalStart, Kept};
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::ids::{Label, RunId};
use crate::journal::Segment;

/// One dictionary: its options, and its runs, each at a level, by age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DictionaryState {
    pub info: DictionaryInfo,
    pub runs: BTreeMap<RunId, (u32, Bytes)>,
}

impl DictionaryState {
    pub(crate) fn new(info: DictionaryInfo) -> Self {
        DictionaryState { info, runs: BTreeMap::new() }
    }
}

/// Dictionaries by number.
pub(crate) type Dictionaries = BTreeMap<DictionaryId, Arc<DictionaryState>>;

/// A snapshot: dictionaries of one branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotState {
    pub label: Label,
    pub dictionaries: Dictionaries,
}

/// What a checkpoint has named so far and refers to by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeptSoFar {
    runs: Vec<Bytes>,
    dictionaries: Vec<Arc<DictionaryState>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    pub dictionaries: Dictionaries,
    /// By name.
    pub snapshots: Arc<BTreeMap<String, Arc<SnapshotState>>>,
    /// Branches beside the main one, and the snapshots that they were cloned from.
    pub branches: Arc<BTreeMap<String, String>>,
    /// Dictionaries that were rolled back: what the journal has of them up to this commit is void.
    pub since: BTreeMap<DictionaryId, Seq>,
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
    /// Of the record that is being applied.
    kept: KeptSoFar,
}

/// The deepest level that an edit may name; a bound for what damaged bytes can make us allocate.
pub(crate) const MAX_LEVEL: u32 = 63;

/// Numbers that are counted upwards stay below in every store that was ever written.
const LARGEST: u64 = 1 << 60;

impl ManifestState {
    pub(crate) fn new() -> Self {
        ManifestState { next_dictionary: 1, next_run: 1, next_segment: 1, ..Default::default() }
    }

    fn dictionary(&mut self, id: DictionaryId) -> Result<&mut DictionaryState> {
        let there = self.dictionaries.get_mut(&id).map(Arc::make_mut);
        there.ok_or_else(|| contradiction(format!("dictionary {} does not exist", id.0)))
    }

    /// Puts runs in the place of others wherever these are: in dictionaries of all branches, and in
    /// snapshots. `None`: in their place is nothing.
    pub(crate) fn replace_runs(&mut self, instead: &HashMap<Bytes, Option<Bytes>>) {
        // What snapshots share they go on sharing.
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
                Arc::new(DictionaryState { info: d.info.clone(), runs: runs.collect() })
            };
            known.entry(Arc::as_ptr(d)).or_insert_with(make).clone()
        };
        let dictionaries = self.dictionaries.iter().map(|(id, d)| (*id, replaced(d))).collect();
        let snapshots = self.snapshots.iter().map(|(name, snapshot)| {
            let dictionaries =
                snapshot.dictionaries.iter().map(|(id, d)| (*id, replaced(d))).collect();
            (name.clone(), Arc::new(SnapshotState { label: snapshot.label.clone(), dictionaries }))
        });
        self.snapshots = Arc::new(snapshots.collect());
        self.dictionaries = dictionaries;
    }

    /// Puts a run above all others of a dictionary.
    pub(crate) fn add_newest(&mut self, dict: DictionaryId, run: Bytes) -> Result<RunId> {
        let id = RunId(self.next_run);
        self.apply(Edit::AddRun { dict, level: 0, id, run })?;
        Ok(id)
    }

    /// Whether a change of the journal counts: its dictionary exists, and was not rolled back
    /// since.
    pub(crate) fn takes(&self, dict: DictionaryId, seq: Seq) -> bool {
        self.dictionaries.contains_key(&dict)
            && self.since.get(&dict).is_none_or(|since| seq > *since)
    }

    /// Applies the edits of one record.
    pub(crate) fn apply_all(&mut self, edits: impl IntoIterator<Item = Edit>) -> Result<()> {
        edits.into_iter().try_for_each(|e| self.apply(e))?;
        self.kept = KeptSoFar::default();
        Ok(())
    }

    pub(crate) fn apply(&mut self, edit: Edit) -> Result<()> {
        self.closed = edit == Edit::Closed;
        match edit {
            Edit::Dictionary(info) => {
                if !info.branch.is_empty() && !self.branches.contains_key(&info.branch) {
                    return Err(contradiction(format!("branch {} does not exist", info.branch)));
                }
                self.insert(DictionaryState::new(info))?;
            }
            Edit::DropDictionary(id) => {
                self.dictionary(id)?;
                self.dictionaries.remove(&id);
            }
            Edit::AddRun { dict, level, id, run } => {
                self.next_run = self.next_run.max(next(id.0)?);
                if level > MAX_LEVEL
                    || self.dictionary(dict)?.runs.insert(id, (level, run)).is_some()
                {
                    return Err(contradiction(format!("run {} cannot be added", id.0)));
                }
            }
            Edit::DropRun { dict, id } => {
                if self.dictionary(dict)?.runs.remove(&id).is_none() {
                    return Err(contradiction(format!("run {} is dropped but not there", id.0)));
                }
            }
            Edit::StitchAt { dict, stitch_at } => {
                self.dictionary(dict)?.info.options.stitch_at = stitch_at
            }
            Edit::JournalStart(start) => {
                // What counts upwards from here has room.
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

    /// The edits of snapshots and branches.
    fn apply_branching(&mut self, edit: Edit) -> Result<()> {
        match edit {
            Edit::Snapshot { label, below } => {
                let of = |d: &DictionaryState| d.info.branch == label.branch && d.info.id.0 < below;
                let dictionaries = self
                    .dictionaries
                    .iter()
                    .filter(|(_, d)| of(d))
                    .map(|(id, d)| (*id, d.clone()))
                    .collect();
                self.keep(SnapshotState { label, dictionaries })?;
            }
            Edit::DropSnapshot(name) => {
                self.snapshot(&name)?;
                Arc::make_mut(&mut self.snapshots).remove(&name);
            }
            Edit::Clone { snapshot, branch, first } => {
                let of = self.snapshot(&snapshot)?;
                self.add_branch(branch.clone(), snapshot)?;
                for (n, d) in of.dictionaries.values().enumerate() {
                    let id = first.checked_add(n as u32).map(DictionaryId);
                    let id = id.ok_or_else(|| {
                        contradiction(format!("a clone is numbered from {first} on"))
                    })?;
                    let info = DictionaryInfo { id, branch: branch.clone(), ..d.info.clone() };
                    self.insert(DictionaryState { info, runs: d.runs.clone() })?;
                }
            }
            Edit::Branch { name, of } => self.add_branch(name, of)?,
            Edit::DropBranch(name) => {
                self.remove_branch(&name)?;
                self.dictionaries.retain(|_, d| d.info.branch != name);
            }
            Edit::RollBack { snapshot, seq } => {
                let to = self.snapshot(&snapshot)?;
                let branch = &to.label.branch;
                if !branch.is_empty() {
                    Arc::make_mut(&mut self.branches).entry(branch.clone()).or_default();
                }
                self.dictionaries.retain(|_, d| d.info.branch != *branch);
                for (id, d) in &to.dictionaries {
                    if self.dictionaries.insert(*id, d.clone()).is_some() {
                        return Err(contradiction(format!(
                            "dictionary {} is of two branches",
                            id.0
                        )));
                    }
                    self.since.insert(*id, seq);
                }
            }
            Edit::Since { dict, seq } => _ = self.since.insert(dict, seq),
            Edit::Adopt { from, to } => {
                self.remove_branch(&from)?;
                if !to.is_empty() {
                    Arc::make_mut(&mut self.branches).entry(to.clone()).or_default();
                }
                self.dictionaries.retain(|_, d| d.info.branch != to);
                for d in self.dictionaries.values_mut().filter(|d| d.info.branch == from) {
                    Arc::make_mut(d).info.branch.clone_from(&to);
                }
            }
            Edit::KeptRun(run) => self.kept.runs.push(run),
            Edit::KeptDictionary(info, runs) => {
                let mut state = DictionaryState::new(info);
                for kept in runs {
                    let (id, run) = self.kept_run(kept)?;
                    state.runs.insert(id, run);
                }
                self.kept.dictionaries.push(Arc::new(state));
            }
            Edit::KeptSnapshot(label, numbers) => {
                let mut dictionaries = Dictionaries::new();
                for n in numbers {
                    let state = usize::try_from(n).ok().and_then(|n| self.kept.dictionaries.get(n));
                    let state = state.ok_or_else(|| {
                        contradiction(format!(
                            "snapshot {} has a dictionary that is not there",
                            label.name
                        ))
                    })?;
                    dictionaries.insert(state.info.id, state.clone());
                }
                self.keep(SnapshotState { label, dictionaries })?;
            }
            Edit::AddKeptRun(dict, kept) => {
                let (id, run) = self.kept_run(kept)?;
                if self.dictionary(dict)?.runs.insert(id, run).is_some() {
                    return Err(contradiction(format!("run {} is added twice", id.0)));
                }
            }
            // The others have their place in `apply`.
            _ => {}
        }
        Ok(())
    }

    fn insert(&mut self, state: DictionaryState) -> Result<()> {
        let id = state.info.id;
        let next =
            id.0.checked_add(1)
                .ok_or_else(|| contradiction(format!("number {} is out of range", id.0)))?;
        self.next_dictionary = self.next_dictionary.max(next);
        match self.dictionaries.insert(id, Arc::new(state)) {
            None => Ok(()),
            Some(_) => Err(contradiction(format!("dictionary {} is created twice", id.0))),
        }
    }

    fn snapshot(&self, name: &str) -> Result<Arc<SnapshotState>> {
        self.snapshots
            .get(name)
            .cloned()
            .ok_or_else(|| contradiction(format!("snapshot {name} does not exist")))
    }

    fn keep(&mut self, snapshot: SnapshotState) -> Result<()> {
        let name = snapshot.label.name.clone();
        match Arc::make_mut(&mut self.snapshots).insert(name, Arc::new(snapshot)) {
            None => Ok(()),
            Some(twice) => {
                Err(contradiction(format!("snapshot {} is made twice", twice.label.name)))
            }
        }
    }

    fn add_branch(&mut self, name: String, of: String) -> Result<()> {
        if name.is_empty() || Arc::make_mut(&mut self.branches).insert(name.clone(), of).is_some() {
            return Err(contradiction(format!("branch {name:?} is made twice")));
        }
        Ok(())
    }

    fn remove_branch(&mut self, name: &str) -> Result<()> {
        let gone = Arc::make_mut(&mut self.branches).remove(name);
        gone.map(drop).ok_or_else(|| contradiction(format!("branch {name:?} does not exist")))
    }

    /// A run that the record has named, at its level.
    fn kept_run(&mut self, (level, id, n): Kept) -> Result<(RunId, (u32, Bytes))> {
        self.next_run = self.next_run.max(next(id.0)?);
        let run = usize::try_from(n)
            .ok()
            .and_then(|n| self.kept.runs.get(n))
            .filter(|_| level <= MAX_LEVEL);
        let run =
            run.ok_or_else(|| contradiction(format!("run {} is kept but not there", id.0)))?;
        Ok((id, (level, run.clone())))
    }

    /// Edits that build the snapshots from nothing, and the numbers of the runs in them. What
    /// several have in common is written once.
    fn checkpoint_snapshots(&self, edits: &mut Vec<Edit>) -> HashMap<Bytes, u64> {
        let mut runs: HashMap<Bytes, u64> = HashMap::new();
        let mut kept: HashMap<*const DictionaryState, u64> = HashMap::new();
        let mut number = |run: &Bytes, edits: &mut Vec<Edit>| {
            let next = runs.len() as u64;
            *runs.entry(run.clone()).or_insert_with(|| {
                edits.push(Edit::KeptRun(run.clone()));
                next
            })
        };
        for snapshot in self.snapshots.values() {
            let mut dictionaries = Vec::new();
            for d in snapshot.dictionaries.values() {
                let next = kept.len() as u64;
                dictionaries.push(*kept.entry(Arc::as_ptr(d)).or_insert_with(|| {
                    let runs = d
                        .runs
                        .iter()
                        .map(|(id, (level, run))| (*level, *id, number(run, edits)))
                        .collect();
                    edits.push(Edit::KeptDictionary(d.info.clone(), runs));
                    next
                }));
            }
            edits.push(Edit::KeptSnapshot(snapshot.label.clone(), dictionaries));
        }
        // Clones of a snapshot that is gone have runs in common as well.
        let mut seen: HashMap<&Bytes, bool> = HashMap::new();
        for (_, run) in self
            .dictionaries
            .values()
            .filter(|_| !self.branches.is_empty())
            .flat_map(|d| d.runs.values())
        {
            seen.entry(run).and_modify(|twice| *twice = true).or_insert(false);
        }
        seen.into_iter().filter(|(_, twice)| *twice).for_each(|(run, _)| _ = number(run, edits));
        runs
    }

    /// Edits that build this state from nothing.
    pub(crate) fn checkpoint(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        let kept = self.checkpoint_snapshots(&mut edits);
        edits.extend(
            self.branches
                .iter()
                .map(|(name, of)| Edit::Branch { name: name.clone(), of: of.clone() }),
        );
        for (&dict, d) in &self.dictionaries {
            edits.push(Edit::Dictionary(d.info.clone()));
            edits.extend(d.runs.iter().map(|(&id, (level, run))| match kept.get(run) {
                Some(&n) => Edit::AddKeptRun(dict, (*level, id, n)),
                None => Edit::AddRun { dict, level: *level, id, run: run.clone() },
            }));
        }
        for s in &self.segments {
            edits.push(Edit::Segment(*s));
            if let Some(position) = s.end {
                edits.push(Edit::SegmentEnds { number: s.number, position });
            }
        }
        edits.push(Edit::JournalStart(self.start));
        edits.extend(self.since.iter().map(|(&dict, &seq)| Edit::Since { dict, seq }));
        let (dictionary, run, segment) = (self.next_dictionary, self.next_run, self.next_segment);
        edits.push(Edit::NextIds { dictionary, run, segment });
        edits.push(Edit::Streams(self.streams.clone()));
        edits.extend(self.closed.then_some(Edit::Closed));
        edits
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::DictionaryOptions;
    use std::time::Duration;
    use zones::ZoneId;

    fn sample() -> ManifestState {
        let mut state = ManifestState::new();
        let info = |id, name: &str| DictionaryInfo {
            id: DictionaryId(id),
            name: name.into(),
            branch: String::new(),
            options: DictionaryOptions::default(),
        };
        let add = |dict, id| Edit::AddRun {
            dict: DictionaryId(dict),
            level: 1,
            id: RunId(id),
            run: Bytes::from_static(b"run"),
        };
        let segment = |number| {
            Edit::Segment(Segment {
                number,
                zone: ZoneId(number as u32 + 5),
                epoch: number * 3,
                end: None,
            })
        };
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
        let mut again = ManifestState::new();
        again.apply_all(state.checkpoint()).unwrap();
        assert_eq!(again, state);
    }

    fn label(name: &str, branch: &str) -> Label {
        Label {
            name: name.into(),
            branch: branch.into(),
            id: [1; 16],
            created: Duration::from_secs(9),
            seq: 12,
        }
    }

    /// `sample` with a branch, and snapshots of both.
    fn branched() -> ManifestState {
        let mut state = sample();
        let (d, run) = (DictionaryId(1), Bytes::from(vec![7; 500]));
        let edits = [
            Edit::AddRun { dict: d, level: 0, id: RunId(8), run: run.clone() },
            Edit::Snapshot { label: label("a", ""), below: 2 },
            Edit::Clone { snapshot: "a".into(), branch: "try".into(), first: 5 },
            Edit::DropRun { dict: d, id: RunId(8) },
            Edit::Snapshot { label: label("b", ""), below: 9 },
            Edit::AddRun {
                dict: DictionaryId(5),
                level: 0,
                id: RunId(9),
                run: Bytes::from_static(b"more"),
            },
            Edit::Snapshot { label: label("c", "try"), below: 9 },
            Edit::Branch { name: "empty".into(), of: String::new() },
            Edit::RollBack { snapshot: "a".into(), seq: 40 },
        ];
        state.apply_all(edits).unwrap();
        state
    }

    fn runs(d: &DictionaryState) -> Vec<u64> {
        d.runs.keys().map(|id| id.0).collect()
    }

    #[test]
    fn snapshots_have_what_was_there_and_branches_go_their_own_ways() {
        let mut state = branched();
        let of = |name: &str| {
            state.snapshots[name].dictionaries.values().map(|d| runs(d)).collect::<Vec<_>>()
        };
        assert_eq!(
            (of("a"), of("b"), of("c")),
            (vec![vec![2, 8]], vec![vec![2]], vec![vec![2, 8, 9]])
        );
        let (main, branch) =
            (&state.dictionaries[&DictionaryId(1)], &state.dictionaries[&DictionaryId(5)]);
        assert_eq!((runs(main), runs(branch)), (vec![2, 8], vec![2, 8, 9]));
        assert_eq!(state.since, BTreeMap::from([(DictionaryId(1), 40)]));
        state.apply_all([Edit::Adopt { from: "try".into(), to: String::new() }]).unwrap();
        assert_eq!(state.dictionaries.values().map(|d| runs(d)).collect::<Vec<_>>(), [[2, 8, 9]]);
        assert_eq!(state.branches.keys().collect::<Vec<_>>(), ["empty"]);
        state
            .apply_all([Edit::DropBranch("empty".into()), Edit::DropSnapshot("b".into())])
            .unwrap();
        assert!(state.branches.is_empty() && state.snapshots.len() == 2);
    }

    #[test]
    fn a_checkpoint_writes_once_what_snapshots_share() {
        let mut state = branched();
        for i in 0..1000 {
            state
                .apply_all([Edit::Snapshot {
                    label: label(&format!("snapshot {i}"), ""),
                    below: 9,
                }])
                .unwrap();
        }
        let edits = state.checkpoint();
        let mut again = ManifestState::new();
        again.apply_all(edits.clone()).unwrap();
        assert_eq!(again, state);
        let bytes = Edit::encode_all(&edits).len();
        assert!(bytes < 1000 * 50 + 2000, "{bytes} bytes for 1000 snapshots");
        let one = again.snapshots["snapshot 1"].dictionaries[&DictionaryId(1)].clone();
        let same = again
            .snapshots
            .values()
            .filter_map(|s| s.dictionaries.get(&DictionaryId(1)))
            .filter(|d| Arc::ptr_eq(d, &one));
        assert_eq!(
            same.count(),
            1001,
            "and is kept in memory once, with the one that was rolled back to"
        );
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
        refused(Edit::AddRun {
            dict: DictionaryId(1),
            level: 0,
            id: RunId(u64::MAX),
            run: Bytes::new(),
        });
        refused(Edit::NextIds { dictionary: 0, run: u64::MAX, segment: 0 });
        refused(Edit::NextIds { dictionary: 0, run: 0, segment: u64::MAX });
        refused(Edit::JournalStart(JournalStart { seq: u64::MAX, ..JournalStart::default() }));
        refused(Edit::JournalStart(JournalStart {
            position: u64::MAX - 5,
            ..JournalStart::default()
        }));
        let refused = |e: Edit| assert!(branched().apply(e.clone()).is_err(), "{e:?}");
        refused(Edit::Snapshot { label: label("a", ""), below: 9 });
        refused(Edit::DropSnapshot("z".into()));
        refused(Edit::Clone { snapshot: "z".into(), branch: "y".into(), first: 20 });
        refused(Edit::Clone { snapshot: "a".into(), branch: "try".into(), first: 20 });
        refused(Edit::Clone { snapshot: "a".into(), branch: "y".into(), first: 5 });
        refused(Edit::Clone { snapshot: "a".into(), branch: "y".into(), first: u32::MAX });
        refused(Edit::Branch { name: String::new(), of: String::new() });
        refused(Edit::DropBranch("y".into()));
        refused(Edit::RollBack { snapshot: "z".into(), seq: 1 });
        refused(Edit::Adopt { from: "y".into(), to: String::new() });
        refused(Edit::KeptSnapshot(label("y", ""), vec![0]));
        refused(Edit::AddKeptRun(DictionaryId(1), (0, RunId(50), 0)));
    }

    #[test]
    fn an_edit_after_the_close_voids_it() {
        let mut state = sample();
        state.apply(Edit::DropSegments { before: 0 }).unwrap();
        assert!(!state.closed);
    }
}
